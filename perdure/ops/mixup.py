"""Mixed images: who is mixed with whom, and how much."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure import fast
from perdure.ops.algebra import TINY
from perdure.ops.interception import Interception


@dataclass(frozen=True)
class Mixing:
    share: Tensor  # γ (n,): how much of the partner is in the mixture
    partner: Tensor  # π (n,): who the partner is


def draw_mixing(n: int, concentration: float, like: Tensor) -> Mixing:
    """γᵢ ~ Beta(a, a) for each sample and one permutation π, on the device and in the precision of `like`."""
    a = torch.full((n,), concentration, device=like.device, dtype=torch.float64)
    share = torch.distributions.Beta(a, a, validate_args=False).sample().clamp(0, 1)
    return Mixing(share.to(like.dtype), torch.randperm(n, device=like.device))


def mix(x: Tensor, mixing: Mixing) -> Tensor:
    """x̃ᵢ = (1 − γᵢ) xᵢ + γᵢ x_π(i); x (n, …)."""
    share = mixing.share.view(-1, *[1] * (x.ndim - 1))
    return (1 - share) * x + share * x[mixing.partner]


def shift(share: Tensor, slope: Tensor, radius: float) -> Tensor:
    """γ̂ = clamp(γ + ρ g/‖g‖, 0, 1): the worst mixture within the radius, to first order (Eqs. 8, 17)."""
    length: Tensor = torch.linalg.vector_norm(slope)
    return (share + radius * slope / (length + TINY)).clamp(0, 1)


class Mixture(Interception):
    """Mixed images `x`, and a forward inside which their slope along the mixing shares is cheap.

    The first convolution that reads them is linear, so ∂L/∂γᵢ = ⟨δᵢ, conv(x_π(i) − xᵢ)⟩, δ being the slope of L at its
    output: one more forward of that layer, for half the price of a way back to every pixel. Where something else reads
    the images first, they have their slopes the usual way.
    """

    function = F.conv2d

    def __init__(self, raw: Tensor, mixing: Mixing) -> None:
        self.raw, self.mixing, self.x = raw, mixing, mix(raw, mixing)
        self.nothing_to_meet = not (self.x.requires_grad and fast.on("first"))

    def meet(self, call: Callable[..., Tensor], args: Sequence[Any], given: dict[str, Any]) -> Any:
        # as `nn.Conv2d` calls it: stride, padding, dilation and groups in their places, and in numbers
        if len(args) == 7 and args[0] is self.x and not isinstance(args[4], str):
            _, weight, bias, *how = args
            difference = self.raw[self.mixing.partner] - self.raw
            wanted = self.mixing.share, self.x.detach(), difference, weight, bias, how
            return _FirstConvolution.apply(*wanted)  # type: ignore[no-untyped-call]
        return call(*args, **given)


class _FirstConvolution(torch.autograd.Function):
    """A convolution of mixed images with slopes of its weight, its bias and the mixing shares."""

    @staticmethod
    def forward(
        ctx: Any, share: Tensor, x: Tensor, difference: Tensor, weight: Tensor, bias: Tensor | None, how: Sequence[Any]
    ) -> Tensor:
        ctx.save_for_backward(share, x, difference, weight)
        ctx.how, ctx.biased = how, bias is not None
        return F.conv2d(x, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        share, x, difference, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.how
        slope = slope.to(weight)  # a forward in half precision sends back what it sent
        along = F.conv2d(difference, weight, None, *ctx.how)
        _, of_weight, of_bias = torch.ops.aten.convolution_backward(
            slope, x, weight, [len(weight)], stride, padding, dilation, False, [0, 0], groups, [False, True, ctx.biased]
        )
        of_share = (slope * along).sum(tuple(range(1, slope.ndim))).to(share)
        return of_share, None, None, of_weight, of_bias if ctx.biased else None, None
