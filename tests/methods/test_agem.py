"""Gradients that would hurt the memory give way."""

from collections.abc import Callable

import pytest
import torch

from perdure.data.benchmarks.synthetic import synthetic
from perdure.methods.agem import AGEM
from perdure.methods.finetune import FineTune
from perdure.methods.method import Method
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.ops.gradients import dot, grad, norm
from perdure.train.fit import fit
from perdure.train.plan import Plan
from perdure.types import Batch, Stream

PLAN = Plan(rate=0.02, epochs=5, batch=16, schedule="linear", keep="last")


@pytest.fixture
def stream() -> Stream:
    """Ninety images a task, which the figures below count on."""
    return synthetic(seed=1, tasks=2)


def net() -> Network:
    return Network(MLP((3, 32, 32), units=(20,)))


def conflicting(stream: Stream) -> tuple[AGEM, Batch]:
    """A method that has learned a task and now meets its images with false labels under another head."""
    method = AGEM(net(), memory=30, replay_batch=30)
    fit(method, next(iter(method.lessons(stream))), PLAN, seed=1)
    method.net.add_head(3)
    with torch.no_grad():
        method.net.heads[1].weight.copy_(method.net.heads[0].weight)
    old = method.memory.sample(30)
    return method, Batch(old.x, (old.y + 1) % 3, 1)


def test_where_nothing_was_met_there_was_no_conflict(stream: Stream) -> None:
    assert AGEM(Network(MLP(stream.shape))).facts()["conflicts"] == 0


def test_a_conflict_is_taken_out_and_old_heads_move_with_it(stream: Stream) -> None:
    method, batch = conflicting(stream)
    plain = grad(method.loss(batch), method.trainable())
    reference = grad(method.loss(method.memory.sample(30)), method.trainable())
    assert float(dot(plain, reference)) < 0
    found = method.gradient(batch)
    assert abs(float(dot(found, reference))) < 1e-5 * float(norm(found) * norm(reference))
    assert set(found) == {"backbone.hidden.0.weight", "heads.0.weight", "heads.1.weight"}
    assert torch.equal(found["heads.1.weight"], plain["heads.1.weight"])
    assert bool(found["heads.0.weight"].any())
    assert method.facts()["conflicts"] == 1


def test_without_conflict_the_gradient_stays_as_it_is(stream: Stream) -> None:
    method, batch = conflicting(stream)
    same = Batch(batch.x, (batch.y - 1) % 3, 1)  # the labels that the memory has
    plain = grad(method.loss(same), method.trainable())
    found = method.gradient(same)
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], slope) for name, slope in plain.items())
    assert method.facts()["conflicts"] == 0
    method.gradient(batch)
    assert method.facts()["conflicts"] == 0.5


def test_a_step_in_conflict_does_not_raise_the_loss_of_the_memory(stream: Stream) -> None:
    method, batch = conflicting(stream)
    old = method.memory.sample(30)
    start, rises = method.loss(old).item(), []
    for gradient in (grad(method.loss(batch), method.trainable()), method.gradient(batch)):
        moved = {name: weight.detach().clone() for name, weight in method.trainable().items()}
        for name, slope in gradient.items():
            moved[name] -= 1e-4 * slope
        rises.append(method.loss(old, moved).item() - start)
    assert rises[0] > 1e-4
    assert rises[1] < rises[0] / 20


def test_shares_are_equal_and_shrink(stream: Stream) -> None:
    method = AGEM(net(), memory=51)
    held, before = [], None
    for lesson in method.lessons([*stream, *stream]):
        fit(method, lesson, PLAN, seed=1)
        held.append(method.facts()["images_held"])
        first = method.memory["x"][: held[-1][0]]
        assert before is None or torch.equal(first, before[: len(first)]), "what is kept was there before"
        before = first.clone()
    assert held == [[51], [26, 25], [17, 17, 17], [13, 13, 13, 12]]
    assert method.memory_bytes() == {"replay": 51 * (3 * 32 * 32 * 4 + 8 + 8)}


def test_the_first_lesson_is_plain_sgd(stream: Stream, fresh_net: Callable[[], Network]) -> None:
    agem, plain = AGEM(fresh_net()), FineTune(fresh_net())
    for method in (agem, plain):
        fit(method, next(iter(method.lessons(stream))), PLAN, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(agem.net.parameters(), plain.net.parameters(), strict=True))
    assert agem.memory.held == 90


def test_the_memory_is_asked_for_as_many_as_wanted(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    method = AGEM(net(), memory=40, replay_batch=12)
    first, second = method.lessons(stream)
    fit(method, first, PLAN, seed=1)
    method.net.add_head(3)
    sizes, real = [], Method.gradient
    monkeypatch.setattr(Method, "gradient", lambda self, batch: sizes.append(len(batch)) or real(self, batch))
    method.gradient(second.sample(9))
    assert sizes == [9, 12]
