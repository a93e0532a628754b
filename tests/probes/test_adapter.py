"""A run as a plain module: the same answers, and the same accuracy under the attacks of other libraries.

The libraries are not needed for anything else; where one is not installed, its comparison is left out. What they do to
a small model is recorded, and compared everywhere (tests/ops/test_attacks.py).
"""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perdure.data.benchmarks.synthetic import synthetic
from perdure.methods.finetune import FineTune
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.ops.attacks import Ball, apgd, fgsm, pgd
from perdure.probes.adapter import torch_module
from perdure.probes.probe import TaskModel, TrainedMethod
from perdure.seeding import chance, generator
from perdure.train.learn import learn
from perdure.train.plan import Plan

RADIUS = 20 / 255
STEPS = 20
RATE = RADIUS / 8


@cache
def apart() -> tuple[TaskModel, nn.Module, Tensor, Tensor]:
    """A network that does not couple its images, part of which fall to the attacks."""
    stream = synthetic(seed=1, tasks=1)
    with chance(1, "network"):
        method = FineTune(Network(MLP(stream.shape)))
    learned = learn(method, stream, Plan(rate=0.05, epochs=8, batch=16, schedule="linear", keep="last"), 1)
    split = learned.tasks[0].test
    model = TaskModel(method, 0, split)
    (x, y), *_ = model.batches()
    return model, torch_module(method, 0, split), x, y


def left(module: nn.Module, x: Tensor, y: Tensor) -> int:
    """Right answers."""
    with torch.no_grad():
        return int((module(x).argmax(1) == y).sum())


def by_us(attack: str) -> tuple[int, Tensor]:
    model, module, x, y = apart()
    ball = Ball("linf", RADIUS)
    moved = {
        "fgsm": lambda: fgsm(model, x, y, ball),
        "pgd": lambda: pgd(model, x, y, ball, steps=STEPS, rate=RATE, rng=None),
        "apgd": lambda: apgd(model, x, y, ball, steps=STEPS, rng=generator(0, "test")),
    }[attack]()
    return left(module, moved, y), moved


@pytest.fixture(autouse=True)
def same_chance() -> Any:
    with chance(1, "other libraries"):
        yield


def test_the_module_answers_as_the_run_does_and_has_its_slopes(trained: TrainedMethod) -> None:
    model = trained.model(1)
    module = torch_module(trained.method, 1, trained.tasks[1].test)
    module.train()  # as libraries do
    x, y = next(iter(model.batches(16)))
    logits, _, slope = model.input_gradient(x, lambda z: nn.functional.cross_entropy(z, y, reduction="none"))
    start = x.clone().requires_grad_()
    out = module(start)
    nn.functional.cross_entropy(out, y, reduction="sum").backward()
    torch.testing.assert_close(out.detach(), logits, rtol=0, atol=0)
    torch.testing.assert_close(start.grad, slope, rtol=0, atol=0)
    assert not any(weight.requires_grad for weight in module.parameters())


def test_the_module_keeps_its_weights_when_the_run_goes_on() -> None:
    model, _, x, _ = apart()
    before = {name: weight.detach().clone() for name, weight in model.method.named_parameters()}
    module = torch_module(model.method, 0, model.split)
    answers = module(x)
    with torch.no_grad():
        for weight in model.method.parameters():
            weight.add_(1)
        try:
            torch.testing.assert_close(module(x), answers, rtol=0, atol=0)
            assert all(weight.requires_grad for weight in model.method.parameters())
        finally:
            for name, weight in model.method.named_parameters():
                weight.copy_(before[name])


def test_the_attacks_leave_some_and_not_all() -> None:
    _, module, x, y = apart()
    counts = [left(module, x, y), *(by_us(attack)[0] for attack in ("fgsm", "pgd", "apgd"))]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[1] > 0


def test_foolbox_agrees() -> None:
    foolbox = pytest.importorskip("foolbox")
    _, module, x, y = apart()
    victim = foolbox.PyTorchModel(module, bounds=(0, 1), device=x.device)
    steps = {"abs_stepsize": RATE, "steps": STEPS, "random_start": False}
    for ours, theirs in (
        ("fgsm", foolbox.attacks.FGSM()),
        ("pgd", foolbox.attacks.LinfBasicIterativeAttack(**steps)),
    ):
        _, moved, _ = theirs(victim, x, y, epsilons=RADIUS)
        _agree(ours, moved)


def test_torchattacks_agrees() -> None:
    torchattacks = pytest.importorskip("torchattacks", exc_type=ImportError)
    _, module, x, y = apart()
    _agree("fgsm", torchattacks.FGSM(module, eps=RADIUS)(x, y))
    _agree("pgd", torchattacks.PGD(module, eps=RADIUS, alpha=RATE, steps=STEPS, random_start=False)(x, y))
    moved = torchattacks.APGD(module, eps=RADIUS, steps=STEPS, n_restarts=1)(x, y)
    assert abs(by_us("apgd")[0] - left(module, moved, y)) <= 1  # its starts are others


def test_art_agrees() -> None:
    evasion = pytest.importorskip("art.attacks.evasion", exc_type=ImportError)
    classification = pytest.importorskip("art.estimators.classification", exc_type=ImportError)
    _, module, x, y = apart()
    victim = classification.PyTorchClassifier(
        module,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(x.shape[1:]),
        nb_classes=3,
        clip_values=(0, 1),
        device_type="cpu",
    )
    size = {"eps": RADIUS, "batch_size": len(x)}
    for ours, theirs in (
        ("fgsm", evasion.FastGradientMethod(victim, **size)),
        ("pgd", evasion.ProjectedGradientDescent(victim, **size, eps_step=RATE, max_iter=STEPS, verbose=False)),
    ):
        _agree(ours, torch.from_numpy(theirs.generate(x.numpy(), y.numpy())))


def test_autoattack_agrees() -> None:
    pyautoattack = pytest.importorskip("pyautoattack")
    model, module, x, y = apart()
    ball, several = Ball("linf", RADIUS), {"steps": 100, "restarts": 5}
    for name, loss in (("apgd-ce", "ce"), ("apgd-dlr", "dlr")):
        theirs = pyautoattack.AutoAttack(module, version="custom", attacks=[name], eps=RADIUS, seed=0)
        moved, _ = theirs.run_standard_evaluation(x, y)
        ours = apgd(model, x, y, ball, loss=loss, **several, rng=generator(0, "test"))  # type: ignore[arg-type]
        assert abs(left(module, ours, y) - left(module, moved, y)) <= 1


def _agree(attack: str, theirs: Tensor) -> None:
    """The same images, but for pixels whose slope is so small that its sign is chance; the same answers."""
    _, module, _, y = apart()
    count, moved = by_us(attack)
    assert left(module, theirs, y) == count
    assert float((moved - theirs).abs().gt(1e-5).double().mean()) < 0.01
