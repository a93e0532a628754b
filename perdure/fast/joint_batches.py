"""Several batches in one forward that know nothing of each other.

One large product is faster than two of half the size, and a weight's gradient is then summed once. Only batch norm
couples the images of a batch, so it is computed batch by batch.

RCL's features come from a forward without dropout after convolutions. Everything before the first such dropout is the
same with and without it: there the rows are doubled, and from there on dropout is applied to the first half only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class ForwardMode:
    """How the forward at hand treats its rows."""

    rows: int | None = None  # of each batch; None: there is only one
    conv_dropout: Literal["on", "off", "fork", "first half"] = "on"  # "fork": rows are doubled at the first dropout

    def dropped(self, x: Tensor) -> int:
        """How many of the rows have dropout, if they come from a convolution."""
        if x.ndim != 4 or self.conv_dropout in ("on", "fork"):
            return len(x)
        return 0 if self.conv_dropout == "off" else len(x) // 2

    def forks(self, x: Tensor) -> bool:
        """Whether this is the first dropout after a convolution, where the rows are to be doubled."""
        if x.ndim != 4 or self.conv_dropout != "fork":
            return False
        self.conv_dropout = "first half"
        return True


_mode: ContextVar[ForwardMode] = ContextVar("mode", default=ForwardMode())  # noqa: B039 — never written to


def mode() -> ForwardMode:
    return _mode.get()


@contextmanager
def forward_mode(mode: ForwardMode) -> Iterator[ForwardMode]:
    before = _mode.set(mode)
    try:
        yield mode
    finally:
        _mode.reset(before)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`F.batch_norm`, with the statistics of each batch by itself."""
    rows = mode().rows
    rest = running_mean, running_var, weight, bias, training, momentum, eps
    if rows is None or not training or len(input) == rows:
        return F.batch_norm(input, *rest)
    half = input.dtype == torch.bfloat16  # its statistics and weights are of full precision
    if running_mean is None and weight is not None and bias is not None and (half or input.dtype == weight.dtype):
        out: Tensor = _JointBatchNorm.apply(input, weight, bias, rows, eps)  # type: ignore[no-untyped-call]
        return out
    return torch.cat([F.batch_norm(part, *rest) for part in torch.split(input, rows)])


class _JointBatchNorm(torch.autograd.Function):
    """Each batch is written to its place in the result: to cut and join large maps costs as much as to compute them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, rows: int, eps: float) -> Tensor:
        out, statistics = torch.empty_like(x), []
        for part, place in zip(torch.split(x, rows), torch.split(out, rows), strict=True):
            mean, inverse_std = torch.empty_like(weight), torch.empty_like(weight)
            torch.ops.aten.native_batch_norm.out(
                part, weight, bias, None, None, True, 0.0, eps, out=place, save_mean=mean, save_invstd=inverse_std
            )
            statistics += [mean, inverse_std]
        ctx.save_for_backward(x, weight, *statistics)
        ctx.rows, ctx.eps = rows, eps
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *statistics = ctx.saved_tensors
        of_x, of_weight, of_bias = torch.empty_like(x), torch.zeros_like(weight), torch.zeros_like(weight)
        own, shift = torch.empty_like(weight), torch.empty_like(weight)
        parts = zip(*(torch.split(whole, ctx.rows) for whole in (grad, x, of_x)), strict=True)
        for index, (part, read, place) in enumerate(parts):
            mean, inverse_std = statistics[2 * index : 2 * index + 2]
            torch.ops.aten.native_batch_norm_backward.out(
                part.to(read), read, weight, None, None, mean, inverse_std, True, ctx.eps, [True, True, True],
                out0=place, out1=own, out2=shift,
            )  # fmt: skip
            of_weight += own
            of_bias += shift
        return of_x, of_weight, of_bias, None, None
