"""Gradients and weights in factors against the same written out."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from perdure import fast
from perdure.fast.function_mode import LearningMode
from perdure.fast.lazy import LowRankGrad, PerturbedWeight, RescaledWeight
from perdure.ops import gradients
from perdure.ops.gradients import ascent_grad, grad, norm, perturb
from perdure.ops.trust_region import scaled, scaled_by_inputs
from perdure.types import Gradient, Weights

from .test_linear import Tied


def low_rank(rows: int = 3, out: int = 12, width: int = 10) -> LowRankGrad:
    return LowRankGrad.of(torch.randn(rows, out).double(), torch.randn(rows, width).double())


def plain(value: Any) -> Any:
    return value.dense() if isinstance(value, LowRankGrad | PerturbedWeight | RescaledWeight) else value


# --- gradients ------------------------------------------------------------------------------------

LAZY = {  # what is done to a gradient → what it is afterwards
    "matrix": (lambda g: g @ torch.arange(40.0).view(10, 4).double(), LowRankGrad),
    "part inside": (lambda g: (g.flatten(1) @ torch.ones(10, 4).double()) @ torch.ones(4, 10).double(), LowRankGrad),
    "number": (lambda g: 0.5 * g, LowRankGrad),
    "number behind": (lambda g: g * 0.5, LowRankGrad),
    "tensor of a number": (lambda g: torch.tensor(0.5).double() * g, LowRankGrad),
    "columns": (lambda g: g * torch.arange(10.0).double(), LowRankGrad),
    "view": (lambda g: g.flatten(1).view_as(g), LowRankGrad),
    "loose clamp": (lambda g: g.clamp(-1e3, 1e3), LowRankGrad),
    "step": (lambda g: torch.ones(12, 10).double() + g, PerturbedWeight),
    "two steps": (lambda g: (torch.ones(12, 10).double() + g) + 2 * g, PerturbedWeight),
    "norm": (torch.linalg.vector_norm, Tensor),
    "tight clamp": (lambda g: g.clamp(-0.5, 0.5), Tensor),
    "uneven clamp": (lambda g: g.clamp(-1e3, 0.1), Tensor),
    "matrix factor": (lambda g: g * torch.ones(12, 10).double(), Tensor),
    "square": (lambda g: g * g, Tensor),
    "matrix on the left": (lambda g: torch.ones(2, 12).double() @ g, Tensor),
    "gram": (lambda g: g @ g.T, LowRankGrad),
    "product of two": (lambda g: g.flatten(1) @ low_rank(3, 10, 4), Tensor),
    "vector": (lambda g: g @ torch.ones(10).double(), Tensor),
    "other norm": (lambda g: torch.linalg.vector_norm(g, 1), Tensor),
    "norms of rows": (lambda g: torch.linalg.vector_norm(g, dim=1), Tensor),
    "flat": (lambda g: g.flatten(), Tensor),
    "flat by keyword": (lambda g: g.flatten(start_dim=1), Tensor),
    "other view": (lambda g: g.view_as(torch.empty(120)), Tensor),
    "clamp from below": (lambda g: g.clamp(0.0), Tensor),
    "clamp by keyword": (lambda g: g.clamp(min=-1.0, max=1.0), Tensor),
    "multiple added": (lambda g: torch.ones(12, 10).double().add(g, alpha=2.0), Tensor),
    "sum with itself": (lambda g: g + g, Tensor),
    "number added": (lambda g: g + 1.0, Tensor),
    "gradient first": (lambda g: g + torch.ones(12, 10).double(), Tensor),
    "joined": (lambda g: torch.cat([g, g]), Tensor),
    "foreach": (lambda g: torch._foreach_add([torch.ones(12, 10).double()], [g], alpha=2.0)[0], Tensor),
    "row": (lambda g: g[3], Tensor),
    "keyword": (lambda g: torch.sub(input=torch.ones(12, 10).double(), other=g), Tensor),
}


@pytest.mark.parametrize("what", LAZY)
def test_a_gradient_in_factors_is_a_tensor_to_all_who_ask(what: str) -> None:
    torch.manual_seed(0)
    gradient, (do, kind) = low_rank(), LAZY[what]
    torch.manual_seed(1)
    found = do(gradient)
    assert type(found) is kind
    torch.manual_seed(1)
    torch.testing.assert_close(plain(found), plain(do(gradient.dense())))


def test_its_shape_is_known_before_it_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gradient = low_rank()
    monkeypatch.setattr(LowRankGrad, "dense", lambda _: pytest.fail("not needed"))
    assert gradient.shape == (12, 10)
    assert (gradient.ndim, gradient.dtype, gradient.device.type) == (2, torch.float64, "cpu")


def test_a_norm_of_nothing_is_nothing() -> None:
    nothing = LowRankGrad.of(torch.zeros(3, 12), torch.randn(3, 10))
    assert float(torch.linalg.vector_norm(nothing)) == 0


def test_factors_one_below_the_other_are_a_sum() -> None:
    one, other = low_rank(3), low_rank(5)
    torch.testing.assert_close(LowRankGrad.join([one, other]).dense(), one.dense() + other.dense())
    assert LowRankGrad.join([one]) is one


@pytest.mark.parametrize(("rows", "worth"), [(128, True), (512, False)])
def test_factors_are_kept_only_where_they_are_less_work(rows: int, worth: bool) -> None:
    assert LowRankGrad.of(torch.empty(rows, 2048), torch.empty(rows, 2048)).worth() == worth


# --- perturbed weights ----------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4, 10), (2, 3, 10)])
def test_a_layer_with_perturbed_weights(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    base, x = torch.randn(12, 10).double(), torch.randn(shape).double()
    shift = torch.randn(12).double() if bias else None
    weight = (base + low_rank()) + low_rank()
    assert type(weight) is PerturbedWeight
    expected = F.linear(x, weight.dense(), shift)
    torch.testing.assert_close(F.linear(x, weight, shift), expected)
    with LearningMode():
        torch.testing.assert_close(F.linear(x, weight, shift), expected)
    torch.testing.assert_close(weight @ x.flatten(0, -2).T, weight.dense() @ x.flatten(0, -2).T)  # in other ways


def ascent(net: Tied, x: Tensor, radius: float) -> tuple[Gradient, Tensor, Gradient]:
    """The gradient that leads up, the loss up there, and its gradient."""
    weights: Weights = dict(net.named_parameters())

    def loss(weights: Weights) -> Tensor:
        with LearningMode():
            output: Tensor = functional_call(net, dict(weights), (x,))
        return output.square().sum()

    up = ascent_grad(loss(weights), weights)
    worst = perturb(weights, up, radius)
    there = loss(worst)
    return up, there, grad(there, worst)


USES = ["once", "twice", "product", "twice and product"]


@pytest.mark.parametrize("uses", USES)
@pytest.mark.parametrize("shape", [(3, 10), (2, 2, 10)])
def test_worse_weights_are_the_same_in_factors(
    uses: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient that leads there, its norm, the loss there and the gradient there."""
    monkeypatch.setattr(LowRankGrad, "worth", lambda _: True)
    torch.manual_seed(0)
    net, x = Tied(uses), torch.randn(shape, dtype=torch.float64)
    up, loss, there = ascent(net, x, 0.5)
    assert isinstance(up["part.weight"], LowRankGrad) == ("product" not in uses)
    with fast.without("low_rank"):
        plain_up, plain_loss, plain_there = ascent(net, x, 0.5)
    assert not any(isinstance(g, LowRankGrad) for g in plain_up.values())
    torch.testing.assert_close(norm(up), norm(plain_up))
    torch.testing.assert_close({name: plain(g) for name, g in up.items()}, plain_up)
    torch.testing.assert_close(loss, plain_loss)
    torch.testing.assert_close(there, plain_there)


@pytest.mark.parametrize("uses", USES)
@pytest.mark.parametrize("steps", [1, 2])
def test_second_derivatives_go_through_the_factors(uses: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the loss after steps uphill, by the weights at the bottom, as FS-DGPM takes them; against torch alone."""
    monkeypatch.setattr(LowRankGrad, "worth", lambda _: True)
    torch.manual_seed(0)
    net, batches = Tied(uses), torch.randn(steps + 1, 3, 10, dtype=torch.float64)
    bottom = dict(net.named_parameters())

    def loss(weights: Weights, x: Tensor) -> Tensor:
        output: Tensor = functional_call(net, dict(weights), (x,))
        return output.tanh().square().sum()

    def quick() -> tuple[Tensor, Gradient]:
        weights: Weights = bottom
        for x in batches[:-1]:
            with LearningMode():
                here = loss(weights, x)
            up = ascent_grad(here, weights, create_graph=True)
            weights = {name: weight + 0.1 * up[name] for name, weight in weights.items()}
        assert isinstance(weights["part.weight"], PerturbedWeight) == ("product" not in uses)
        with LearningMode():
            last = loss(weights, batches[-1])
        return last, grad(last, bottom)

    weights: Weights = bottom
    for x in batches[:-1]:
        up = torch.autograd.grad(loss(weights, x), list(weights.values()), create_graph=True)
        weights = {name: weight + 0.1 * g for (name, weight), g in zip(weights.items(), up, strict=True)}
    expected = loss(weights, batches[-1])
    found, gradient = quick()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, grad(expected, bottom))


def test_leaves_are_cut_off_from_what_came_before() -> None:
    torch.manual_seed(0)
    base = torch.randn(12, 10).double().requires_grad_()
    rows, inputs = torch.randn(3, 12).double().requires_grad_(), torch.randn(3, 10).double().requires_grad_()
    weight = base + LowRankGrad.of(rows, inputs)
    assert isinstance(weight, PerturbedWeight)
    leaf = weight.leaf()
    torch.testing.assert_close(leaf.dense(), weight.dense())
    F.linear(torch.randn(4, 10).double(), leaf).sum().backward()
    assert leaf.base.grad is not None
    assert (base.grad, rows.grad, inputs.grad) == (None, None, None)


# --- rescaled weights -----------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 10), (30, 10), (2, 3, 10)])
def test_scaling_what_a_layer_reads_is_scaling_its_weight(shape: tuple[int, ...], bias: bool) -> None:
    """Forward and gradients, with few rows and with many."""
    torch.manual_seed(0)
    base, x = torch.randn(12, 10).double().requires_grad_(), torch.randn(shape).double().requires_grad_()
    shift = torch.randn(12).double() if bias else None
    spaces = [(torch.linalg.qr(torch.randn(10, k).double()).Q, torch.randn(k, k).double()) for k in (2, 4)]
    for _, scale in spaces:
        scale.requires_grad_()
    leaves = [base, x, *(scale for _, scale in spaces)]
    weight = scaled_by_inputs(base, spaces)
    assert type(weight) is RescaledWeight
    with fast.without("rescale_inputs"):
        assert type(scaled_by_inputs(base, spaces)) is Tensor
    expected = F.linear(x, scaled(base, spaces), shift)
    for mode in (False, True):
        found = F.linear(x, weight, shift)
        if mode:
            with LearningMode():
                found = F.linear(x, weight, shift)
        torch.testing.assert_close(found, expected)
        for one, other in zip(
            torch.autograd.grad(found.square().sum(), leaves),
            torch.autograd.grad(expected.square().sum(), leaves, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(one, other)
    torch.testing.assert_close(weight.T.tanh(), scaled(base, spaces).T.tanh())  # used in another way


def test_convolutions_are_rescaled_whole() -> None:
    weight, spaces = torch.randn(4, 3, 2, 2), [(torch.linalg.qr(torch.randn(12, 3)).Q, torch.randn(3, 3))]
    found = scaled_by_inputs(weight, spaces)
    assert type(found) is Tensor
    assert torch.equal(found, scaled(weight, spaces))


@pytest.mark.parametrize("queued", [False, True])
def test_the_way_up_is_the_same_where_numbers_must_not_be_read(queued: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "is_async", lambda _: queued)
    rows, inputs = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 6.0]])
    weights = {"a": torch.ones(2), "b": torch.ones(1), "c": torch.ones(2, 2)}
    gradient = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0]), "c": LowRankGrad.of(rows, inputs)}  # norm 13
    worst = perturb(weights, gradient, 0.5)
    assert worst["a"].tolist() == pytest.approx([1 + 1.5 / 13, 1.0])
    assert worst["b"].tolist() == pytest.approx([1 + 2 / 13])
    assert plain(worst["c"]).flatten().tolist() == pytest.approx([1.0, 1 + 6 / 13, 1.0, 1.0])
    unmoved = perturb(weights, {}, 0.5)
    assert {name: weight.tolist() for name, weight in unmoved.items()} == {n: w.tolist() for n, w in weights.items()}
    assert all(weight.requires_grad for weight in unmoved.values())
    assert gradients.clip(gradient, 1.3)["b"].tolist() == pytest.approx([0.4])
    assert gradients.clip(gradient, 20.0)["b"].tolist() == [4.0]
