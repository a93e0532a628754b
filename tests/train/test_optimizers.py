"""The optimizers, against torch's own."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from perdure.train.optimizers import SGD, AdamW, Optimizer, optimizer_for
from perdure.train.plan import Plan
from perdure.types import Gradient

SHAPES = {"wide": (5, 3, 3, 3), "flat": (7,), "late": (2, 2)}
PLANS = {
    "sgd": Plan(),
    "momentum": Plan(momentum=0.9),
    "nesterov": Plan(momentum=0.9, nesterov=True),
    "decay": Plan(weight_decay=0.1),
    "all of sgd": Plan(momentum=0.9, nesterov=True, weight_decay=0.1),
    "adamw": Plan(optimizer="adamw"),
    "adamw, decay": Plan(optimizer="adamw", weight_decay=0.1),
}


def some_weights() -> dict[str, nn.Parameter]:
    torch.manual_seed(1)
    return {name: nn.Parameter(torch.randn(shape)) for name, shape in SHAPES.items()}


def some_gradient(step: int) -> Gradient:
    torch.manual_seed(step)
    gradient = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    if step in (0, 3):
        del gradient["late"]  # not moved, not decayed, and what is remembered of it stays
    return gradient


def torchs(plan: Plan, weights: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    if plan.optimizer == "adamw":
        return torch.optim.AdamW(weights.values(), lr=1.0, weight_decay=plan.weight_decay)
    return torch.optim.SGD(
        weights.values(), lr=1.0, momentum=plan.momentum, nesterov=plan.nesterov, weight_decay=plan.weight_decay
    )


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_it_is_that_of_torch(plan: Plan) -> None:
    """SGD to the last bit; AdamW, which adds up in another order, to rounding."""
    own, theirs = some_weights(), some_weights()
    mine, other = optimizer_for(plan, own), torchs(plan, theirs)
    for step in range(6):
        rate = 0.1 / (step + 1)
        gradient, before = some_gradient(step), some_gradient(step)
        mine.step(gradient, rate)
        other.param_groups[0]["lr"] = rate
        for name, weight in theirs.items():
            weight.grad = before[name].clone() if name in before else None
        other.step()
        for name, weight in own.items():
            if plan.optimizer == "sgd":
                assert torch.equal(weight, theirs[name]), name
            else:
                torch.testing.assert_close(weight, theirs[name], rtol=1e-6, atol=1e-7)
        assert all(torch.equal(gradient[name], before[name]) for name in gradient)  # left as it was
    remembers = plan.momentum or plan.optimizer == "adamw"
    assert set(mine.state["momentum"]) == (set(own) if remembers else set())


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_no_gradient_at_all_moves_nothing(plan: Plan) -> None:
    weights, before = some_weights(), some_weights()
    mover = optimizer_for(plan, weights)
    mover.step(some_gradient(1), 0.1)
    moved = {name: weight.detach().clone() for name, weight in weights.items()}
    assert not any(torch.equal(moved[name], before[name]) for name in moved)
    mover.step({}, 0.1)
    mover.step({}, 0.1, lambda update: update)
    assert all(torch.equal(moved[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_it_goes_on_with_what_it_remembered(plan: Plan) -> None:
    whole, broken = some_weights(), some_weights()
    one = optimizer_for(plan, whole)
    other = optimizer_for(plan, broken)
    for step in range(4):
        one.step(some_gradient(step), 0.1)
        other.step(some_gradient(step), 0.1)
        other = optimizer_for(plan, broken, other.state)
    assert all(torch.equal(whole[name], broken[name]) for name in whole)


@pytest.mark.parametrize(("name", "plan"), PLANS.items(), ids=PLANS)
def test_only_a_direction_that_may_leave_the_gradients_is_projected_again(name: str, plan: Plan) -> None:
    asked: list[Gradient] = []

    def without_flat(update: Gradient) -> Gradient:
        asked.append(update)
        return {name: value for name, value in update.items() if name != "flat"}

    weights, before = some_weights(), some_weights()
    optimizer_for(plan, weights).step(some_gradient(0), 0.1, without_flat)
    projected = "decay" in name or "adamw" in name or name == "all of sgd"
    assert len(asked) == projected
    assert all(set(update) == {"wide", "flat"} for update in asked)  # no name that had no gradient
    assert torch.equal(weights["flat"], before["flat"]) == projected
    assert torch.equal(weights["late"], before["late"])


def test_a_plan_names_its_optimizer() -> None:
    made: list[Optimizer] = [optimizer_for(plan, some_weights()) for plan in PLANS.values()]
    assert [type(one) for one in made] == [SGD] * 5 + [AdamW] * 2


@pytest.mark.parametrize("made", [lambda weights: SGD(weights, 0.0), AdamW])
def test_nothing_decays_unless_it_is_asked_to(made: Callable[[dict[str, nn.Parameter]], Optimizer]) -> None:
    weights, before = some_weights(), some_weights()
    made(weights).step({name: torch.zeros(shape) for name, shape in SHAPES.items()}, 1.0)
    assert all(torch.equal(weights[name], before[name]) for name in SHAPES)
