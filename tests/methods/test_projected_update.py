"""What a method protects stays under any optimizer: the update is projected, not only the gradient it is made of."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from checks import PLAN, directions, make, shared_weights

from perdure.data.benchmarks.synthetic import synthetic
from perdure.methods.method import Method
from perdure.train.fit import fit
from perdure.train.optimizers import Optimizer
from perdure.train.plan import Plan
from perdure.types import Batch, Gradient

PLANS = {
    "adamw": replace(PLAN, epochs=1, rate=0.005, optimizer="adamw", weight_decay=0.1),
    "sgd": replace(PLAN, epochs=1, momentum=0.9, nesterov=True, weight_decay=0.05),
}
# Largest ‖ΔW M‖/‖W M‖ of a layer. FS-DGPM leaves 1 − λ of each direction, OWM up to 0.05 of those looked at here;
# SGP's directions are those of full importance.
LIMITS = dict.fromkeys(("gpm", "pat", "dfgp", "rcl", "sgp", "trgp", "api"), 1e-5) | {"fsdgpm": 1e-4, "owm": 5e-3}


def change(method: Method, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> float:
    """Largest ‖ΔW M‖/‖W M‖ over layers, M what is protected when the second task begins, ΔW what it does."""
    first, second = method.lessons(synthetic(seed=1, tasks=2, per_class=15))
    fit(method, first, plan, seed=1)
    protected, before, own, named = directions(method), shared_weights(method), method.gradient, set()
    start = {name: weight.detach().clone() for name, weight in method.named_parameters()}

    def gradient(batch: Batch) -> Gradient:
        found = own(batch)
        named.update(found)
        return found

    monkeypatch.setattr(method, "gradient", gradient)
    fit(method, second, plan, seed=1)
    left_out = [name for name in start if name.startswith("net.") and name.removeprefix("net.") not in named]
    assert any("norm" in name for name in left_out)
    for name in left_out:  # neither moved nor decayed
        assert torch.equal(start[name], method.get_parameter(name)), name
    after = shared_weights(method)
    moved = {layer: (after[layer] - before[layer]).double() for layer in protected}
    assert max(float(m.norm()) for m in moved.values()) > 1e-2  # something was learned
    return max(
        float((moved[layer] @ basis.double()).norm() / (before[layer].double() @ basis.double()).norm())
        for layer, basis in protected.items()
    )


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize(
    "plan",
    [pytest.param(plan, marks=[pytest.mark.thorough] if name == "sgd" else []) for name, plan in PLANS.items()],
    ids=PLANS,
)
def test_responses_to_what_is_remembered_stay(name: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert change(make(name), plan, monkeypatch) <= LIMITS[name]
    if plan is PLANS["sgd"]:  # that it can fail is shown with the other, which turns gradients further
        return
    step = Optimizer.step

    def unprojected(self: Optimizer, gradient: Any, rate: float, _project: Any = None) -> None:
        step(self, gradient, rate)

    monkeypatch.setattr(Optimizer, "step", unprojected)
    assert change(make(name), plan, monkeypatch) > 0.03


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_so_they_do_in_layers_that_grew(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    method = make("api", floor=1.0)
    assert change(method, plan, monkeypatch) <= LIMITS["api"]
    assert all(any(sizes) for sizes in method.facts()["grown"].values())


@pytest.mark.parametrize("name", ["finetune", "mtl", "ewc", "er", "agem"])
def test_others_take_updates_as_they_are(name: str) -> None:
    update = {"w": torch.ones(2, 2), "b": torch.ones(2)}
    assert make(name).project(update) is update
