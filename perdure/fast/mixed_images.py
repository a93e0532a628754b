"""Mixed images whose gradient along the mixing shares is cheap.

x̃ = (1 − γ) x + γ x_π depends on γ along one direction, d = x_π − x. The first convolution that reads it is linear, so
∂L/∂γᵢ = ⟨δᵢ, conv(d)ᵢ⟩ with δ the gradient at its output: one more forward of that layer, where a gradient of every
pixel takes five times as long. Whatever else reads the images gets them as an ordinary tensor.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.fast.lazy import Lazy


class MixedImages(Lazy):
    value: Tensor  # (rows, …), without a graph; the last of the rows are mixed
    difference: Tensor  # d (n, …)
    share: Tensor  # γ (n,)

    @staticmethod
    def of(value: Tensor, difference: Tensor, share: Tensor) -> "MixedImages":
        images = MixedImages.shaped(value, value.shape)
        images.value, images.difference, images.share = value, difference, share
        return images

    def dense(self) -> Tensor:
        change = self.share - self.share.detach()  # zero, with a gradient
        moved = change.view(-1, *[1] * (self.value.ndim - 1)) * self.difference
        rest = len(self.value) - len(moved)
        return self.value + torch.cat([torch.zeros_like(self.value[:rest]), moved])

    @staticmethod
    def rules() -> dict[Any, Callable[..., Any]]:
        return {torch.cat: _cat, F.conv2d: _conv2d}


def _cat(parts: Sequence[Tensor]) -> Any:
    *others, last = parts
    if not isinstance(last, MixedImages) or any(isinstance(part, Lazy) for part in others):
        return NotImplemented
    return MixedImages.of(torch.cat([*others, last.value]), last.difference, last.share)


def _conv2d(x: Any, weight: Tensor, bias: Tensor | None = None, *how: Any) -> Any:
    # as `nn.Conv2d` calls it: stride, padding, dilation and groups in their places, and in numbers
    if not isinstance(x, MixedImages) or isinstance(weight, Lazy) or len(how) != 4 or isinstance(how[1], str):
        return NotImplemented
    return _FirstConvolution.apply(x.share, x.value, x.difference, weight, bias, how)  # type: ignore[no-untyped-call]


class _FirstConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, share: Tensor, x: Tensor, difference: Tensor, weight: Tensor, bias: Tensor | None, how: Sequence[Any]
    ) -> Tensor:
        ctx.save_for_backward(share, x, difference, weight)
        ctx.how, ctx.biased = how, bias is not None
        return F.conv2d(x, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        share, x, difference, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.how
        halved = weight.to(grad.dtype)  # a forward in half precision sends back what it sent
        _, of_weight, of_bias = torch.ops.aten.convolution_backward(
            grad, x.to(grad), halved, [len(weight)], stride, padding, dilation, False, [0, 0], groups,
            [False, True, ctx.biased],
        )  # fmt: skip
        along = F.conv2d(difference.to(grad), halved, None, *ctx.how)
        of_share = (grad[-len(along) :] * along).sum(tuple(range(1, grad.ndim)), dtype=share.dtype)
        return of_share, None, None, of_weight.to(weight), of_bias.to(weight) if ctx.biased else None, None
