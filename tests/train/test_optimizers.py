import pytest
import torch
from torch import nn

from perdure.train.optimizers import SGD


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_is_that_of_torch_to_the_last_bit(momentum: float) -> None:
    torch.manual_seed(1)
    shapes = {"wide": (5, 3, 3, 3), "flat": (7,), "late": (2, 2)}
    own = {name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    theirs = {name: nn.Parameter(weight.detach().clone()) for name, weight in own.items()}
    mine, other = SGD(own, momentum), torch.optim.SGD(theirs.values(), lr=1.0, momentum=momentum)
    for step in range(6):
        rate = 0.1 / (step + 1)
        gradient = {name: torch.randn_like(weight) for name, weight in own.items()}
        if step in (0, 3):
            del gradient["late"]  # not moved, and its velocity neither
        before = {name: slope.clone() for name, slope in gradient.items()}
        mine.step(gradient, rate)
        other.param_groups[0]["lr"] = rate
        for name, weight in theirs.items():
            weight.grad = before.get(name)
        other.step()
        assert all(torch.equal(own[name], theirs[name]) for name in own)
        assert all(torch.equal(gradient[name], before[name]) for name in gradient)  # left as it was
    assert set(mine.state["momentum"]) == (set(own) if momentum else set())


def test_no_gradient_at_all_moves_nothing() -> None:
    weights = {"w": nn.Parameter(torch.ones(2))}
    SGD(weights, 0.9).step({}, 0.1)
    assert torch.equal(weights["w"], torch.ones(2))


def test_it_goes_on_with_the_velocity_it_had() -> None:
    gradient = {"w": torch.tensor([1.0, 2.0])}
    whole, first, second = ({"w": nn.Parameter(torch.ones(2))} for _ in range(3))
    mover = SGD(whole, 0.5)
    mover.step(gradient, 0.1)
    mover.step(gradient, 0.1)
    half = SGD(first, 0.5)
    half.step(gradient, 0.1)
    with torch.no_grad():
        second["w"].copy_(first["w"])
    SGD(second, 0.5, half.state).step(gradient, 0.1)
    assert torch.equal(whole["w"], second["w"])
