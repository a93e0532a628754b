"""Linear layers whose gradient is projected by projecting what they read."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perdure import fast
from perdure.fast import linear as module
from perdure.fast.function_mode import LearningMode
from perdure.fast.linear import linear, receiving
from perdure.ops import gradients
from perdure.ops.gradients import projected_grad
from perdure.ops.subspace import project

from .steps import calls_of


class Tied(nn.Module):
    """A weight in a linear layer, or in two, and perhaps in something else as well."""

    def __init__(self, uses: str) -> None:
        super().__init__()
        self.part, self.uses = nn.Linear(10, 12).double(), uses

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.part(x).tanh()
        again = self.part(hidden[..., :10]) if "twice" in self.uses else hidden
        return again @ self.part.weight if "product" in self.uses else again


def basis(d: int = 10, k: int = 4) -> Tensor:
    return torch.linalg.qr(torch.randn(d, k).double()).Q


def loss_of(layer: nn.Module, x: Tensor) -> Tensor:
    with LearningMode():
        loss: Tensor = layer(x).square().sum()
    return loss


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6, 10), (2, 3, 10)])
def test_it_is_torchs_with_first_and_second_derivatives(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(shape).double().requires_grad_(), torch.randn(12, 10).double().requires_grad_()
    rest = [torch.randn(12).double().requires_grad_()] if bias else []
    with calls_of(module._Linear, "apply") as taken:
        torch.testing.assert_close(linear(x, weight, *rest), F.linear(x, weight, *rest))
    assert len(taken) == 1
    assert torch.autograd.gradcheck(linear, (x, weight, *rest))
    assert torch.autograd.gradgradcheck(lambda *of: linear(*of).square(), (x, weight, *rest))


def test_it_is_left_to_torch_where_nothing_is_gained() -> None:
    x, weight = torch.randn(12, 10), torch.randn(12, 10, requires_grad=True)
    with calls_of(module._Linear, "apply") as taken:
        linear(x, weight)  # as many rows as outputs
        linear(x[:3], weight.detach())  # no gradient is wanted
        with torch.no_grad():
            linear(x[:3], weight)
        assert not taken
        linear(x[:3], weight)
    assert len(taken) == 1


@pytest.mark.parametrize("shape", [(6, 10), (2, 3, 10)])
def test_a_linear_layer_with_few_rows_projects_what_it_read(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer, known = nn.Linear(10, 12).double(), basis()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    seen: list[tuple[int, ...]] = []

    def projection(rows: Tensor) -> Tensor:
        seen.append(tuple(rows.shape))
        return project(rows, known)

    weights = {"w": layer.weight, "x": x, "bias": layer.bias}
    found = projected_grad(loss_of(layer, x), weights, {"w": projection})
    assert seen == [(6, 10)]  # the inputs, not the gradient, which is (12, 10)
    raw = dict(zip(weights, torch.autograd.grad(layer(x).square().sum(), list(weights.values())), strict=True))
    torch.testing.assert_close(found, {**raw, "w": project(raw["w"], known)})
    with fast.without("project_inputs"):
        torch.testing.assert_close(projected_grad(loss_of(layer, x), weights, {"w": projection}), found)
    assert seen == [(6, 10), (12, 10)]


def test_only_the_weights_that_are_asked_for_are_projected() -> None:
    layer, x = nn.Linear(10, 12).double(), torch.randn(3, 10).double()
    projections = {"w": lambda _: torch.zeros(12, 10), "elsewhere": lambda _: torch.zeros(12, 10)}
    found = projected_grad(loss_of(layer, x), {"bias": layer.bias}, projections)
    assert found.keys() == {"bias"}
    unused = nn.Linear(10, 12).double()
    found = projected_grad(loss_of(layer, x), {"w": unused.weight, "bias": layer.bias}, projections)
    assert found.keys() == {"bias"}


def test_a_layer_with_many_rows_has_its_gradient_projected() -> None:
    torch.manual_seed(0)
    layer, known, x = nn.Linear(10, 12).double(), basis(), torch.randn(12, 10).double()
    with calls_of(gradients, "_accumulate") as taken:
        found = projected_grad(loss_of(layer, x), {"w": layer.weight}, {"w": lambda rows: project(rows, known)})
    assert not taken
    (raw,) = torch.autograd.grad(layer(x).square().sum(), layer.weight)
    torch.testing.assert_close(found["w"], project(raw, known))


@pytest.mark.parametrize("uses", ["twice", "product", "twice and product"])
def test_a_weight_that_is_used_in_several_ways_is_projected_in_all(uses: str) -> None:
    torch.manual_seed(0)
    tied, known, x = Tied(uses), basis(), torch.randn(3, 10, dtype=torch.float64)
    weight = tied.part.weight
    with calls_of(gradients, "_accumulate") as taken:
        found = projected_grad(loss_of(tied, x), {"w": weight}, {"w": lambda rows: project(rows, known)})
    assert len(taken) == (3 if "twice" in uses else 2)  # each use, and the sum at the end
    (raw,) = torch.autograd.grad(tied(x).square().sum(), weight)
    torch.testing.assert_close(found["w"], project(raw, known))


def test_receivers_go_when_they_are_done_and_after_an_error() -> None:
    layer, x = nn.Linear(10, 12).double(), torch.randn(3, 10).double()
    got: list[tuple[Tensor, Tensor]] = []
    with receiving({id(layer.weight): lambda *factors: got.append(factors)}):
        loss_of(layer, x).backward()
    assert layer.weight.grad is None
    ((rows, inputs),) = got
    torch.testing.assert_close(rows, 2 * layer(x).detach())
    torch.testing.assert_close(inputs, x)
    assert not rows.requires_grad
    with pytest.raises(ZeroDivisionError), receiving({id(layer.weight): lambda *_: None}):
        _ = 1 / 0
    assert not module._receivers
    loss_of(layer, x).backward()
    torch.testing.assert_close(layer.weight.grad, rows.T @ inputs)


def test_a_forward_in_half_precision_sends_back_full_precision() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(10, 12), torch.randn(3, 10, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(layer, x.bfloat16())
    found = torch.autograd.grad(loss, [layer.weight, layer.bias, x])
    assert {g.dtype for g in found} == {torch.float32}
    exact = torch.autograd.grad(layer(x).square().sum(), [layer.weight, layer.bias, x])
    for one, other in zip(found, exact, strict=True):
        assert float(F.cosine_similarity(one.flatten(), other.flatten(), dim=0)) > 0.999
