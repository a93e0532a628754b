"""All tasks at once."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import BadData
from perdure.methods.mtl import MTL
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.train.learn import learn
from perdure.train.plan import Plan
from perdure.types import Stream


@pytest.fixture
def stream() -> Stream:
    """Ninety images a task, which the figures below count on."""
    return synthetic(seed=1, tasks=2)


def test_one_lesson_of_all_tasks_and_one_row_of_scores(stream: Stream, fresh_net: Callable[[], Network]) -> None:
    method = MTL(fresh_net())
    (lesson,) = method.lessons(stream)
    assert [part.task for part in lesson.parts] == [0, 1]
    assert len(lesson) == sum(len(task.train) for task in stream)
    learned = learn(method, stream, Plan(rate=0.05, epochs=4, batch=16, schedule="linear", keep="last"))
    (row,) = learned.matrix
    assert min(row) > 80  # three classes each


def test_every_image_counts_the_same_with_its_own_head(stream: Stream) -> None:
    """The loss is Σ n_t CE_t / N."""
    torch.manual_seed(0)
    method = MTL(Network(MLP((3, 32, 32), units=(16,))))
    (lesson,) = method.lessons(stream)
    for classes in (3, 5):  # a head wider than its task
        method.net.add_head(classes)
    batch = lesson.sample(20)
    assert isinstance(batch.task, torch.Tensor)
    assert batch.task.unique().tolist() == [0, 1]
    total = torch.zeros(())
    for task in (0, 1):
        rows = batch.task == task
        total = total + F.cross_entropy(method.net(batch.x[rows], task).logits, batch.y[rows], reduction="sum")
    torch.testing.assert_close(method.loss(batch), total / len(batch))
    assert {"heads.0.weight", "heads.1.weight"} < set(method.gradient(batch))


def test_batches_are_drawn_over_all_tasks_unless_they_are_to_be_apart(stream: Stream) -> None:
    net = Network(MLP((3, 32, 32), units=(4,)))
    tasks: dict[str, list[set[int]]] = {}
    for given in ({}, {"batches": "mixed"}, {"batches": "apart"}):
        (lesson,) = MTL(net, **given).lessons(stream)
        batches = lesson.batches(30, torch.Generator().manual_seed(0))
        tasks[str(given)] = [{b.task} if isinstance(b.task, int) else set(b.task.tolist()) for b in batches]
    default, mixed, apart = tasks.values()
    assert default == mixed == [{0, 1}] * 6  # 180 images
    assert sorted(map(max, apart)) == [0, 0, 0, 1, 1, 1]
    assert all(len(of) == 1 for of in apart)


def test_no_task_is_an_error_that_says_so(fresh_net: Callable[[], Network]) -> None:
    with pytest.raises(BadData, match="no task to learn jointly"):
        list(MTL(fresh_net()).lessons([]))
