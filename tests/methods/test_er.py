"""Replay of a uniform sample of the past."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from perdure.data.benchmarks.synthetic import synthetic
from perdure.methods.er import ER
from perdure.methods.finetune import FineTune
from perdure.methods.method import Method
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.ops.gradients import norm
from perdure.train.evaluate import evaluate
from perdure.train.fit import fit
from perdure.train.plan import Plan
from perdure.types import EpochStart, Lesson, Stream

PLAN = Plan(rate=0.02, epochs=5, batch=16, schedule="linear", keep="last")


@pytest.fixture
def stream() -> Stream:
    """Ninety images a task, which the figures below count on."""
    return synthetic(seed=1, tasks=2)


def net() -> Network:
    torch.manual_seed(7)
    return Network(MLP((3, 32, 32), units=(20,)))


def exactly(lesson: Lesson) -> Lesson:
    """In float64."""
    part = lesson.parts[0]
    return replace(lesson, parts=(replace(part, train=replace(part.train, x=part.train.x.double())),))


def test_images_are_kept_in_the_first_epoch_only(stream: Stream) -> None:
    method = ER(net(), memory=1000)
    for count, lesson in enumerate(method.lessons(stream), 1):
        fit(method, lesson, PLAN, seed=1)
        assert int(method.memory["seen"]) == method.memory.held == count * len(lesson)
    assert method.facts() == {"images_held": [90, 90]}
    assert method.memory_bytes() == {"replay": 180 * (3 * 32 * 32 * 4 + 8 + 8) + 8}


def test_all_tasks_have_their_share_of_a_small_memory(stream: Stream) -> None:
    method = ER(net(), memory=60)
    for lesson in method.lessons(stream):
        fit(method, lesson, PLAN, seed=1)
    held = method.facts()["images_held"]
    assert sum(held) == 60
    assert min(held) > 15  # 30 each on average, deviation 3.2


def test_new_and_old_images_share_one_mean_and_batch_statistics(
    stream: Stream, fresh_net: Callable[[], Network]
) -> None:
    method = ER(fresh_net().double(), memory=5, replay_batch=7)
    first, second = (exactly(lesson) for lesson in method.lessons(stream))
    for classes in (3, 4):
        method.net.add_head(classes)
    method.memory.add(first.sample(5))
    batch, old = second.sample(9), method.memory.sample(5)
    found = method.gradient(batch)  # draws all five, in some order

    hidden, _ = method.net.backbone(torch.cat([batch.x, old.x]))
    new_loss = F.cross_entropy(method.net.heads[1](hidden[:9]), batch.y, reduction="sum")
    old_loss = F.cross_entropy(method.net.heads[0](hidden[9:]), old.y, reduction="sum")
    weights = method.trainable()
    slopes = torch.autograd.grad((new_loss + old_loss) / 14, list(weights.values()))
    assert set(found) == set(weights)
    for name, slope in zip(weights, slopes, strict=True):
        torch.testing.assert_close(found[name], slope)


def test_apart_new_and_old_images_have_batch_statistics_of_their_own(
    stream: Stream, fresh_net: Callable[[], Network]
) -> None:
    method = ER(fresh_net().double(), memory=5, replay_batch=7, batches="apart")
    first, second = (exactly(lesson) for lesson in method.lessons(stream))
    for classes in (3, 4):
        method.net.add_head(classes)
    method.memory.add(first.sample(5))
    batch, old = second.sample(9), method.memory.sample(5)
    found = method.gradient(batch)  # draws all five, in some order

    losses = [
        F.cross_entropy(method.net.heads[task](method.net.backbone(part.x)[0]), part.y, reduction="sum")
        for task, part in ((1, batch), (0, old))
    ]
    weights = method.trainable()
    slopes = torch.autograd.grad(sum(losses) / 14, list(weights.values()))
    for name, slope in zip(weights, slopes, strict=True):
        torch.testing.assert_close(found[name], slope)


def test_a_batch_is_kept_after_its_gradient(stream: Stream) -> None:
    method, plain = ER(net(), memory=50), FineTune(net())
    lesson = next(iter(method.lessons(stream)))
    method.net.add_head(3)
    plain.net.load_state_dict(method.net.state_dict())
    batch = lesson.sample(10)
    method.begin_epoch(EpochStart(0, 2))
    found, expected = method.gradient(batch), plain.gradient(batch)
    assert all(torch.equal(found[name], slope) for name, slope in expected.items())
    assert method.memory.held == 10
    method.begin_epoch(EpochStart(1, 2))
    method.gradient(lesson.sample(10))
    assert method.memory.held == 10


def test_the_memory_is_really_used(stream: Stream) -> None:
    """Less is forgotten; and with false labels in the memory, more."""

    def forgotten(method: Method, falsify: bool = False) -> float:
        first, second = method.lessons(stream)
        fit(method, first, PLAN, seed=1)
        before = evaluate(method, first.parts[0].train, 0).loss
        if falsify:
            method.memory["y"] = (method.memory["y"] + 1) % 3
        fit(method, second, PLAN, seed=1)
        return evaluate(method, first.parts[0].train, 0).loss - before

    plain, true, false = (
        forgotten(FineTune(net())),
        forgotten(ER(net(), memory=60, replay_batch=16)),
        forgotten(ER(net(), memory=60, replay_batch=16), falsify=True),
    )
    assert true < plain / 2
    assert false > 2 * plain


def test_the_gradient_is_cut_to_length_where_asked(stream: Stream) -> None:
    method = ER(net(), clip=0.01)
    batch = next(iter(method.lessons(stream))).sample(10)
    method.net.add_head(3)
    assert float(norm(method.gradient(batch))) == pytest.approx(0.01, rel=1e-3)
