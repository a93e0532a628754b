"""The made stream: fast, learnable, and forgotten by plain training."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import WrongValue


def test_defaults():
    stream = synthetic(seed=1)
    assert len(stream) == 3
    assert stream.shape == (3, 32, 32)
    for task in stream:
        counts = [part.y.bincount().tolist() for part in (task.train, task.valid, task.test)]
        assert counts == [[30] * 3, [10] * 3, [20] * 3]
        assert task.train.x.dtype == torch.float32
        assert min(len(y.unique()) for y in task.test.y.split(15)) >= 2  # in mixed order


def test_sizes_can_be_chosen():
    stream = synthetic(seed=1, tasks=7, classes=4, size=8, per_class=6)
    assert len(stream) == 7
    assert stream.shape == (3, 8, 8)
    assert stream.tasks[6].train.y.bincount().tolist() == [6] * 4
    assert stream.tasks[6].valid.y.bincount().tolist() == [2] * 4


def test_same_seed_same_bits_whatever_follows():
    few, many = synthetic(seed=1, tasks=2, size=8), synthetic(seed=1, tasks=5, size=8)
    for one, other in zip(few, many, strict=False):
        for part in ("train", "valid", "test"):
            assert getattr(one, part).x.equal(getattr(other, part).x)
            assert getattr(one, part).y.equal(getattr(other, part).y)


def test_seeds_tasks_and_parts_differ():
    one, other = synthetic(seed=1, size=8).tasks, synthetic(seed=2, size=8).tasks
    assert not one[0].train.x.equal(other[0].train.x)
    assert not one[0].train.x.equal(one[1].train.x)
    assert not one[0].train.x[:60].equal(one[0].test.x)


def test_global_chance_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    synthetic(seed=1, size=8)
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("wrong", [{"tasks": 0}, {"classes": 1}, {"size": 0}, {"per_class": 2}])
def test_values_outside_their_range(wrong):
    (name,) = wrong
    with pytest.raises(WrongValue, match=f"{name}=.* or more"):
        synthetic(seed=1, **wrong)


def learn(stream, body, width: int, epochs: int, rate: float) -> tuple[list[float], list[float]]:
    """Plain SGD through all tasks, a head each; accuracy of each task when learned, and at the end."""
    heads = nn.ModuleList(nn.Linear(width, len(task.classes)) for task in stream)

    @torch.no_grad()
    def accuracy(number: int) -> float:
        ((x, y),) = stream.tasks[number].test.batches(1000)
        return (heads[number](body(x)).argmax(1) == y).float().mean().item()

    learned = []
    for number, task in enumerate(stream):
        weights = [*body.parameters(), *heads[number].parameters()]
        for _ in range(epochs):
            for rows in torch.randperm(len(task.train)).split(10):
                x, y = task.train.take(rows)
                gradient = torch.autograd.grad(F.cross_entropy(heads[number](body(x)), y), weights)
                with torch.no_grad():
                    for weight, slope in zip(weights, gradient, strict=True):
                        weight -= rate * slope
        learned.append(accuracy(number))
    return learned, [accuracy(number) for number in range(len(stream))]


def test_small_network_learns_it_in_two_epochs():
    for seed in (1, 2):
        torch.manual_seed(seed)
        body = nn.Sequential(nn.Flatten(), nn.Linear(3072, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        learned, _ = learn(synthetic(seed=seed), body, 32, epochs=2, rate=0.01)
        assert min(learned) > 0.85  # chance is 0.33


def test_plain_training_forgets_it():
    lost = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        body = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        )
        learned, kept = learn(synthetic(seed=seed, tasks=5), body, 64, epochs=5, rate=0.1)
        lost += [before - after for before, after in zip(learned[:-1], kept[:-1], strict=True)]
    assert sum(lost) / len(lost) > 0.08
