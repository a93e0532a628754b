"""c10: the Fisher of two tasks, how they are merged, and a batch of EWC after each."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.methods.ewc import EWC
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.ops.fisher import diagonal_fisher, merge
from perdure.ops.gradients import grad
from perdure.types import Batch, Lesson, Part, Split

from .golden import CLEARLY, DTYPES, GRADIENT, RECIPE, VALUE, Bound, Case, draw, stream, tensor, weight

SIZES = RECIPE["c10"]
INPUTS, UNITS, CLASSES = SIZES["ewc_sizes"]
SAMPLES, BATCH, COEFFICIENT = SIZES["ewc_samples"], SIZES["ewc_batch"], SIZES["ewc_coefficient"]
NAMES = {"w1": "backbone.hidden.0.weight", "h0": "heads.0.weight", "h1": "heads.1.weight"}
SHAPES = {"w1": (UNITS, INPUTS), "h0": (CLASSES, UNITS), "h1": (CLASSES, UNITS)}
TASKS = (1, 2)


class Recipe:
    """Weights, two tasks' data and the shifts after each task, in the order of the stream."""

    def __init__(self, precision: str) -> None:
        rs, self.dtype = stream(100), DTYPES[precision]
        self.weights = {name: tensor(weight(rs, *shape), self.dtype) for name, shape in SHAPES.items()}
        images = [draw(rs, SAMPLES, INPUTS) for _ in TASKS]
        labels = [rs.randint(0, CLASSES, size=SAMPLES, dtype=np.int64) for _ in TASKS]
        self.shifts = [{name: self.shift(rs, *shape) for name, shape in SHAPES.items()} for _ in TASKS]
        self.data = [
            Split(tensor(x, self.dtype)[..., None, None], tensor(y, torch.int64))
            for x, y in zip(images, labels, strict=True)
        ]

    def shift(self, rs: np.random.RandomState, *shape: int) -> Tensor:
        return tensor((SIZES["ewc_shift"] * rs.standard_normal(size=shape)).astype(np.float32), self.dtype)

    def moved(self, weights: Mapping[str, Tensor], task: int) -> dict[str, Tensor]:
        return {name: weights[name] + shift for name, shift in self.shifts[task - 1].items()}


def consecutive(split: Split, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The recipe's batches: in the order of the data, and no tail joins another."""
    return (split.take(slice(start, start + size)) for start in range(0, len(split), size))


def quadratic_penalty(
    weights: Mapping[str, Tensor], anchor: Mapping[str, Tensor], fisher: Mapping[str, Tensor]
) -> Tensor:
    """½ Σ F (θ − θ*)², of which the method takes the gradient in closed form."""
    return sum((f * (weights[name] - anchor[name]).square()).sum() for name, f in fisher.items()) / 2


def loss(weights: Mapping[str, Tensor], x: Tensor, y: Tensor, head: str) -> Tensor:
    return F.cross_entropy(F.relu(x.flatten(1) @ weights["w1"].T) @ weights[head].T, y)


def fisher(weights: Mapping[str, Tensor], split: Split, head: str, size: int) -> dict[str, Tensor]:
    free = {name: value.clone().requires_grad_() for name, value in weights.items()}
    gradients = (grad(loss(free, x, y, head), free) for x, y in consecutive(split, size))
    return diagonal_fisher(gradients, size, len(split))


def complete(found: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A head not in use has no Fisher here, and zeros in the files."""
    return {name: found.get(name, torch.zeros_like(value)) for name, value in weights.items()}


def check_batch(
    case: Case, key: str, ce: Tensor, total: Tensor, gradient: Mapping[str, Tensor], precision: str
) -> None:
    case.check(f"{key}/ce", ce, VALUE[precision])
    case.check(f"{key}/total_loss", total, VALUE[precision])
    case.check_all(f"{key}/grad/", gradient, GRADIENT[precision])


@pytest.mark.parametrize("precision", DTYPES)
def test_functions(precision: str) -> None:
    case, it = Case("c10_ewc"), Recipe(precision)
    bound: Bound = GRADIENT[precision]
    theta, held = it.weights, {}
    x, y = it.data[1].take(slice(SIZES["ewc_loss_samples"]))
    for task in TASKS:
        anchor = theta
        new = fisher(theta, it.data[task - 1], f"h{task - 1}", BATCH)
        case.check_all(f"{precision}/task{task}/fisher_new/", complete(new, theta), bound)
        held = merge(held, new, task - 1)
        if task > 1:
            case.check_all(f"{precision}/task{task}/fisher_merged/", complete(held, theta), bound)
        theta = it.moved(theta, task)
        free = {name: value.clone().requires_grad_() for name, value in theta.items()}
        ce = loss(free, x, y, "h1")
        total = ce + COEFFICIENT * quadratic_penalty(free, anchor, held)
        check_batch(case, f"{precision}/after_task{task}", ce, total, grad(total, free), precision)

    stored = {f"task{task}/fisher_new" for task in TASKS} | {"task2/fisher_merged", "textbook_per_sample_fisher_task1"}
    stored = {f"{part}/{name}" for part in (*stored, *(f"after_task{task}/grad" for task in TASKS)) for name in SHAPES}
    stored |= {f"after_task{task}/{fact}" for task in TASKS for fact in ("ce", "total_loss")}
    assert case.names(f"{precision}/") == stored


@pytest.mark.parametrize("precision", DTYPES)
def test_textbook(precision: str) -> None:
    case, it = Case("c10_ewc"), Recipe(precision)
    found = complete(fisher(it.weights, it.data[0], "h0", 1), it.weights)
    case.check_all(f"{precision}/textbook_per_sample_fisher_task1/", found, GRADIENT[precision])


# --- the method itself ----------------------------------------------------------------------------


def method(it: Recipe, **values: Any) -> EWC:
    net = Network(MLP((INPUTS, 1, 1), units=(UNITS,)))
    for _ in TASKS:
        net.add_head(CLASSES)
    ewc = EWC(net.to(it.dtype), **{"coefficient": COEFFICIENT, "clip": None, "fisher_batch": BATCH} | values)
    put(ewc, it.weights)
    return ewc.eval()  # the Fisher is to be taken in training mode, whatever came before


def put(ewc: EWC, weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in weights.items():
            ewc.net.get_parameter(NAMES[name]).copy_(value)


def named(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    own = {inner: name for name, inner in NAMES.items()}
    return {own[inner]: value for inner, value in values.items()}


def lesson(it: Recipe, task: int) -> Lesson:
    data = it.data[task - 1]
    return Lesson(task - 1, (Part(task - 1, CLASSES, data, data),))


@pytest.mark.parametrize("precision", DTYPES)
def test_method(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Split, "batches", consecutive)
    case, it = Case("c10_ewc"), Recipe(precision)
    ewc, theta = method(it), it.weights
    x, y = it.data[1].take(slice(SIZES["ewc_loss_samples"]))
    for task in TASKS:
        ewc.end(lesson(it, task))
        assert ewc.training
        key = "fisher_new" if task == 1 else "fisher_merged"
        found = complete(named(dict(ewc.fisher.items())), theta)
        case.check_all(f"{precision}/task{task}/{key}/", found, GRADIENT[precision])
        put(ewc, theta := it.moved(theta, task))
        batch = Batch(x, y, 1)
        ce = ewc.loss(batch)
        penalty = quadratic_penalty(ewc.trainable(), dict(ewc.anchor.items()), dict(ewc.fisher.items()))
        gradient = named(ewc.gradient(batch))
        check_batch(case, f"{precision}/after_task{task}", ce, ce + COEFFICIENT * penalty, gradient, precision)


def test_method_with_batches_of_one_is_the_textbook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Split, "batches", consecutive)
    case, it = Case("c10_ewc"), Recipe("f64")
    ewc = method(it, fisher_batch=1)
    ewc.end(lesson(it, 1))
    found = complete(named(dict(ewc.fisher.items())), it.weights)
    case.check_all("f64/textbook_per_sample_fisher_task1/", found, GRADIENT["f64"])


# --- controls -------------------------------------------------------------------------------------


def test_other_fishers_are_told_apart() -> None:
    """Squares of single samples' gradients, and one batch of all."""
    case, it = Case("c10_ewc"), Recipe("f64")
    for size in (1, SAMPLES):
        for name, found in fisher(it.weights, it.data[0], "h0", size).items():
            assert case.miss(f"f64/task1/fisher_new/{name}", found, GRADIENT["f64"]) > CLEARLY


@pytest.mark.skipif(SAMPLES % BATCH == 0, reason="no short batch in this folder")
def test_a_short_batch_weighed_by_its_length_is_told_apart() -> None:
    case, it = Case("c10_ewc"), Recipe("f64")
    free = {name: value.clone().requires_grad_() for name, value in it.weights.items()}
    fair: dict[str, Tensor] = {}
    for x, y in consecutive(it.data[0], BATCH):
        part = diagonal_fisher([grad(loss(free, x, y, "h0"), free)], len(y), SAMPLES)
        fair = {name: fair.get(name, 0) + value for name, value in part.items()}
    for name, found in fair.items():
        assert case.miss(f"f64/task1/fisher_new/{name}", found, GRADIENT["f64"]) > CLEARLY


def test_other_springs_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the half, with the first task's anchor, and with Fishers added up."""
    monkeypatch.setattr(Split, "batches", consecutive)
    case, it = Case("c10_ewc"), Recipe("f64")
    x, y = it.data[1].take(slice(SIZES["ewc_loss_samples"]))
    ewc, theta = method(it, coefficient=2 * COEFFICIENT), it.weights
    for task in TASKS:
        ewc.end(lesson(it, task))
        put(ewc, theta := it.moved(theta, task))
    wrong = {"no half": named(ewc.gradient(Batch(x, y, 1)))}  # twice the coefficient
    ewc.coefficient = COEFFICIENT
    for name, value in it.weights.items():
        ewc.anchor[NAMES[name]] = value
    wrong["first anchor"] = named(ewc.gradient(Batch(x, y, 1)))
    for slip, gradient in wrong.items():
        assert case.miss("f64/after_task2/grad/w1", gradient["w1"], GRADIENT["f64"]) > CLEARLY, slip
    summed = {
        name: tensor(case[f"f64/task1/fisher_new/{name}"] + case[f"f64/task2/fisher_new/{name}"]) for name in SHAPES
    }
    assert case.miss("f64/task2/fisher_merged/w1", summed["w1"], GRADIENT["f64"]) > CLEARLY
