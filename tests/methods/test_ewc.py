"""Springs on the weights that old tasks need."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import Diverged
from perdure.lab.run import run_spec as run
from perdure.lab.spec import spec
from perdure.methods.ewc import EWC
from perdure.methods.finetune import FineTune
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.ops.gradients import norm
from perdure.train.evaluate import evaluate
from perdure.train.fit import fit
from perdure.train.plan import Plan
from perdure.types import Batch, Lesson, Stream

PLAN = Plan(rate=0.002, epochs=4, batch=16, schedule="linear", keep="last")


@pytest.fixture
def stream() -> Stream:
    """Ninety images a task, which the figures below count on."""
    return synthetic(seed=1, tasks=2)


def net() -> Network:
    torch.manual_seed(7)
    return Network(MLP((3, 32, 32), units=(20,)))


def taught(stream: Stream, **values: float) -> tuple[EWC, Lesson, Lesson]:
    """A method that has learned the first of two lessons."""
    method = EWC(net(), **values)
    first, second = method.lessons(stream)
    fit(method, first, PLAN, seed=1)
    return method, first, second


def test_stiffer_springs_move_less_and_forget_less(stream: Stream) -> None:
    stretched, forgotten = [], []
    for coefficient in (0.0, 50_000.0, 500_000.0):
        method, first, second = taught(stream, coefficient=coefficient)
        anchor, fisher = dict(method.anchor.items()), dict(method.fisher.items())
        before = evaluate(method, first.parts[0].train, 0).loss
        fit(method, second, PLAN, seed=1)
        with torch.no_grad():
            stretched.append(
                sum(float((f * (method.trainable()[name] - anchor[name]) ** 2).sum()) for name, f in fisher.items())
            )
        forgotten.append(evaluate(method, first.parts[0].train, 0).loss - before)
        assert evaluate(method, second.parts[0].train, 1).accuracy > 80
    assert stretched == sorted(stretched, reverse=True)
    assert stretched[2] < stretched[0] / 4
    assert forgotten[2] < forgotten[0] / 2


def test_springs_hold_what_was_used_and_nothing_else(stream: Stream) -> None:
    method, _, second = taught(stream)
    assert set(method.fisher) == set(method.anchor) == {"backbone.hidden.0.weight", "heads.0.weight"}
    assert all(torch.equal(value, method.net.get_parameter(name)) for name, value in method.anchor.items())
    fit(method, second, PLAN, seed=1)
    assert set(method.fisher) == {"backbone.hidden.0.weight", "heads.0.weight", "heads.1.weight"}
    weights = sum(value.numel() for value in method.net.parameters())
    assert method.memory_bytes() == {"fisher": 2 * 4 * weights}  # F and θ*


def test_the_anchor_is_a_copy(stream: Stream) -> None:
    method, _, second = taught(stream)
    method.net.add_head(3)
    at_rest = method.gradient(second.sample(8))
    kept = {name: value.clone() for name, value in method.anchor.items()}
    with torch.no_grad():
        for name, slope in at_rest.items():
            method.net.get_parameter(name).sub_(slope)
    assert all(torch.equal(kept[name], value) for name, value in method.anchor.items())


def test_the_penalty_is_none_at_the_anchor_and_grows_with_the_square_of_the_distance(stream: Stream) -> None:
    method = EWC(Network(MLP(stream.shape, units=(8,))), coefficient=30.0, clip=None)
    first, second = method.lessons(stream)
    fit(method, first, PLAN, seed=1)
    assert method.penalty() == 0
    fit(method, second, PLAN, seed=1)
    weights, (anchor, fisher) = method.trainable(), method._springs()
    with torch.no_grad():
        for weight in weights.values():
            weight += 0.1
        springs = sum((fisher[name] * (weights[name] - anchor[name]) ** 2).sum() for name in fisher)
    assert method.penalty() == pytest.approx(30 / 2 * float(springs), rel=1e-5)
    assert method.penalty() > 0


def test_the_gradient_is_cut_to_length(stream: Stream) -> None:
    method, _, second = taught(stream, coefficient=1e6)
    method.net.add_head(3)
    with torch.no_grad():
        for weight in method.net.parameters():
            weight.add_(1.0)
    batch = second.sample(8)
    cut = method.gradient(batch)
    method.clip = None
    full = method.gradient(batch)
    assert float(norm(full)) > 1000
    assert float(norm(cut)) == pytest.approx(100, rel=1e-4)
    factor = 100 / float(norm(full))
    torch.testing.assert_close(cut["heads.0.weight"], full["heads.0.weight"] * factor)


def test_files_sorted_by_class_make_no_batches_of_one_class(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of such batches are far longer than those of training: on `six` F came out six times as large."""
    method, first, _ = taught(stream)
    order = first.parts[0].train.y.argsort()
    train = first.parts[0].train
    ordered = type(train)(train.x[order], train.y[order], train.mean, train.std)
    seen: list[Batch] = []
    real = EWC.loss

    def watched(self: EWC, batch: Batch) -> Tensor:
        seen.append(batch)
        return real(self, batch)

    monkeypatch.setattr(EWC, "loss", watched)
    method.end(Lesson(1, (type(first.parts[0])(0, 3, ordered, ordered),)))
    assert sum(map(len, seen)) == len(train)
    assert all(len(batch.y.unique()) > 1 for batch in seen)


def test_the_first_lesson_is_plain(stream: Stream, fresh_net: Callable[[], Network]) -> None:
    ewc, plain = EWC(fresh_net()), FineTune(fresh_net())
    for method in (ewc, plain):
        fit(method, next(iter(method.lessons(stream))), PLAN, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(ewc.net.parameters(), plain.net.parameters(), strict=True))


def test_springs_too_stiff_diverge_with_a_remedy_and_without_a_record(tmp_path: Path) -> None:
    wishes = {"coefficient": 1e12, "clip": None}
    wanted = spec("ewc", "synthetic", network="mlp", tasks=2, values=wishes, plan={"rate": 0.05, "epochs": 30})
    with pytest.raises(
        Diverged, match=r"lower the learning rate.*or soften the springs, e.g. --set coefficient=1e\+11"
    ):
        run(wanted, out=tmp_path)
    assert not list(tmp_path.rglob("record.json"))  # so no NaN in one
