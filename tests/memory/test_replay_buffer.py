"""Memories hold what they promise."""

import pytest
import torch
from torch import Tensor

from perdure.memory.replay_buffer import ReplayBuffer, ReservoirBuffer, TaskBuffer, join
from perdure.methods.agem import agem_project
from perdure.types import Batch


def items(numbers: Tensor, task: int | Tensor = 0) -> Batch:
    return Batch(numbers.float().view(-1, 1, 1, 1), numbers, task)


def test_every_item_of_a_stream_is_equally_likely_to_be_held() -> None:
    """Also in batches in the middle of which the memory gets full."""
    torch.manual_seed(0)
    times, length, capacity = 3000, 20, 6
    held = torch.zeros(length)
    for _ in range(times):
        memory = ReservoirBuffer(capacity)
        for numbers in torch.arange(length).split(8):
            memory.add(items(numbers))
        assert len(set(memory["y"].tolist())) == capacity
        held[memory["y"]] += 1
    share = capacity / length
    deviation = (share * (1 - share) / times) ** 0.5
    assert float((held / times - share).abs().max()) < 4.5 * deviation


def test_every_held_item_is_equally_likely_to_be_drawn_and_none_twice() -> None:
    torch.manual_seed(0)
    memory, times = ReservoirBuffer(10), 2000
    memory.add(items(torch.arange(10), torch.arange(10) % 3))
    drawn = torch.zeros(10)
    for _ in range(times):
        batch = memory.sample(4)
        assert len(batch.y.unique()) == len(batch) == 4
        assert torch.equal(batch.x.flatten().long(), batch.y)
        assert torch.equal(batch.task, batch.y % 3)
        drawn[batch.y] += 1
    assert float((drawn / times - 0.4).abs().max()) < 4.5 * (0.4 * 0.6 / times) ** 0.5
    assert len(memory.sample(99)) == 10


def test_of_one_task_each_is_drawn_as_often_as_it_has_images_but_none_alone() -> None:
    torch.manual_seed(0)
    memory, times = ReservoirBuffer(10), 2000
    tasks = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 2])
    memory.add(items(torch.arange(10), tasks))
    drawn = torch.zeros(3)
    for _ in range(times):
        batch = memory.sample_of_one_task(4)
        assert len(batch.y.unique()) == len(batch) == min(4, int((tasks == batch.task).sum()))
        assert (tasks[batch.y] == batch.task).all()
        drawn[batch.task] += 1
    assert drawn[2] == 0
    assert abs(float(drawn[0]) / times - 2 / 3) < 4.5 * (2 / 9 / times) ** 0.5
    alone = ReservoirBuffer(10)
    alone.add(items(torch.arange(1), 5))
    assert alone.sample_of_one_task(4).task == 5


@pytest.mark.parametrize("maker", [ReservoirBuffer, TaskBuffer])
def test_a_memory_comes_back_and_goes_on_the_same(maker: type[ReplayBuffer]) -> None:
    memory, again = maker(7), maker(7)
    memory.add(items(torch.arange(12)))
    again.load_state_dict(memory.state_dict())
    for each in (memory, again):
        torch.manual_seed(3)
        each.add(items(torch.arange(12, 40), 1))
    assert memory.state_dict().keys() == again.state_dict().keys()
    assert all(torch.equal(again[name], value) for name, value in memory.items())


@pytest.mark.parametrize("maker", [ReservoirBuffer, TaskBuffer])
def test_a_memory_of_nothing_draws_nothing(maker: type[ReplayBuffer]) -> None:
    memory = maker(0)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    memory.add(items(torch.arange(12)))
    assert torch.equal(torch.get_rng_state(), state)
    assert (memory.held, memory.bytes(), memory.counts()) == (0, 0, [])


def test_what_is_held_is_a_copy() -> None:
    for memory in (ReservoirBuffer(12), TaskBuffer(12)):
        batch = items(torch.arange(12))
        memory.add(batch)
        batch.x.zero_()
        assert memory["x"].flatten().tolist() == list(range(12))


def test_shares_of_tasks() -> None:
    """As equal as can be, the first task's the largest; a task with too few images leaves its room empty."""
    memory, held = TaskBuffer(10), []
    for task in range(12):
        memory.add(items(torch.arange(2 if task == 3 else 10), task))
        held.append(memory.counts())
    assert held[:5] == [[10], [5, 5], [4, 3, 3], [3, 3, 2, 2], [2, 2, 2, 2, 2]]
    assert held[-1] == [1] * 10  # more tasks than room


def test_tasks_that_come_together_are_told_apart() -> None:
    memory = TaskBuffer(5)
    memory.add(items(torch.arange(8), torch.tensor([0, 0, 0, 0, 2, 2, 2, 2])))
    assert memory["task"].tolist() == [0, 0, 0, 2, 2]
    assert memory["y"].tolist() == [0, 1, 2, 4, 5]


def test_join() -> None:
    both = join(items(torch.arange(2), 4), items(torch.arange(3), torch.tensor([0, 1, 0])))
    assert both.y.tolist() == [0, 1, 0, 1, 2]
    assert isinstance(both.task, Tensor)
    assert both.task.tolist() == [4, 4, 0, 1, 0]


@pytest.mark.parametrize("queued", [False, True])
def test_a_missing_gradient_counts_as_zero(queued: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.methods.agem.is_async", lambda _: queued)
    gradient = {"shared": torch.tensor([1.0, 0.0]), "new head": torch.tensor([3.0])}
    reference = {"shared": torch.tensor([-1.0, 1.0]), "old head": torch.tensor([2.0])}
    bent, conflict = agem_project(gradient, reference)  # g·r = −1, r·r = 6
    assert conflict
    assert bent.keys() == {"shared", "new head", "old head"}
    torch.testing.assert_close(bent["shared"], torch.tensor([1 - 1 / 6, 1 / 6]))
    torch.testing.assert_close(bent["old head"], torch.tensor([1 / 3]))
    assert torch.equal(bent["new head"], gradient["new head"])
    assert gradient["shared"].tolist() == [1.0, 0.0], "by value"
