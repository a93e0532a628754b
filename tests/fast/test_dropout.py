"""Dropout and pooling against torch's own, with the same masks."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from perdure import fast
from perdure.fast import dropout as module
from perdure.fast.dropout import dropout, random_mask, relu_dropout_pool
from perdure.fast.joint_batches import ForwardMode, forward_mode

from .steps import calls_of

LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("rate", [0.2, 0.5])
@pytest.mark.parametrize("path", ["", "dropout_masks"])
def test_masks_have_their_rate_and_a_seed(rate: float, path: str) -> None:
    x = torch.empty(64, 16, 29, 29).to(memory_format=torch.channels_last)
    with fast.without(path):
        torch.manual_seed(3)
        mask, other = random_mask(x, rate), random_mask(x, rate)
        torch.manual_seed(3)
        again = random_mask(x, rate)
    assert (mask.stride(), mask.dtype) == (x.stride(), x.dtype)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    # 861,184 entries: the mean is within five deviations
    assert float(mask.mean()) == pytest.approx(1 - rate, abs=5 * (rate * (1 - rate) / x.numel()) ** 0.5)
    per_channel = mask.mean((0, 2, 3))
    assert float((per_channel - (1 - rate)).abs().max()) < 5 * (rate * (1 - rate) / (64 * 29 * 29)) ** 0.5
    neighbors = (mask[..., :-1] * mask[..., 1:]).mean()
    assert float(neighbors) == pytest.approx((1 - rate) ** 2, abs=3e-3)
    assert not torch.equal(mask, other)
    assert torch.equal(mask, again)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 1001])
def test_masks_of_any_size_and_type(count: int) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        mask = random_mask(torch.empty(count, dtype=dtype), 0.5)
        assert mask.shape == (count,)
        assert mask.dtype == dtype
        assert ((mask == 0) | (mask == 1)).all()


@pytest.mark.parametrize("path", ["", "dropout_masks"])
def test_dropout_scales_what_it_keeps(path: str) -> None:
    x = torch.ones(10_000, requires_grad=True)
    with fast.without(path):
        found = dropout(x, 0.2)
        assert set(found.unique().tolist()) == {0.0, 1.25}
        (g,) = torch.autograd.grad(found.sum(), x)
        assert torch.equal(g, found)
        assert dropout(x, 0.0) is x


@pytest.mark.parametrize("path", ["", "pooling", "dropout_masks"])
@pytest.mark.parametrize("pooled", [True, False])
def test_rows_that_have_dropout_and_rows_that_have_none(pooled: bool, path: str) -> None:
    x = torch.rand(8, 4, 6, 6) + 0.5

    def run(mode: ForwardMode) -> tuple[Tensor, Tensor]:
        with fast.without(path), forward_mode(mode):
            out = relu_dropout_pool(x, 0.5) if pooled else dropout(x, 0.5)
        return out, F.max_pool2d(x, 2) if pooled else x

    out, whole = run(ForwardMode(4, "fork"))
    assert len(out) == 16
    assert torch.equal(out[8:], whole)
    assert not torch.equal(out[:8], whole)
    out, whole = run(ForwardMode(4, "first half"))
    assert torch.equal(out[4:], whole[4:])
    assert not torch.equal(out[:4], whole[:4])
    out, whole = run(ForwardMode(4, "off"))
    assert torch.equal(out, whole)
    out, whole = run(ForwardMode(4, "on"))
    assert not any(torch.equal(out[at], whole[at]) for at in range(8))


MODES = [ForwardMode(), ForwardMode(2, "fork"), ForwardMode(2, "first half"), ForwardMode(conv_dropout="off")]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.conv_dropout)
def test_relu_dropout_and_pooling_in_another_order(mode: ForwardMode, rate: float, layout: torch.memory_format) -> None:
    """Outputs, first derivatives and second ones, for maps with an odd edge as well."""
    torch.manual_seed(0)
    x = torch.randn(4, 8, 9, 7).double().to(memory_format=layout).requires_grad_()

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        with forward_mode(ForwardMode(mode.rows, mode.conv_dropout)):
            out = relu_dropout_pool(x, rate)
        weights = torch.linspace(-1, 1, out.numel()).double().view_as(out)
        (g,) = torch.autograd.grad((out.square() * weights).sum(), x, create_graph=True)
        return [out, g, torch.autograd.grad(g.square().sum(), x)[0]]

    with calls_of(module._DropPool, "apply") as taken:
        found = run()
    assert len(taken) == 1
    with fast.without("pooling"), calls_of(module._DropPool, "apply") as taken:
        expected = run()
    assert not taken
    assert len(expected[0]) == (8 if rate and mode.conv_dropout == "fork" else 4)
    for quick, slow in zip(found, expected, strict=True):
        torch.testing.assert_close(quick, slow)


def test_plain_pooling_is_relu_dropout_and_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the other tests, by hand."""
    x = torch.randn(4, 8, 6, 6)
    mask = random_mask(x, 0.3)
    monkeypatch.setattr(F, "dropout", lambda x, rate: x * mask / (1 - rate))
    with fast.without("all"):
        found = relu_dropout_pool(x, 0.3)
    squares = (x.relu() * mask / 0.7).unfold(2, 2, 2).unfold(3, 2, 2)
    torch.testing.assert_close(found, squares.amax((-1, -2)))


def test_pooling_can_be_derived_twice() -> None:
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: relu_dropout_pool(x, 0.0), x)
    assert torch.autograd.gradgradcheck(lambda x: relu_dropout_pool(x, 0.0).square(), x)
