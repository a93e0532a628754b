"""Linear layers met by their weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.ops.interception import Interception

Keep = Callable[[Tensor, Tensor], None]
"""Takes the factors of a gradient δᵀa: slopes δ (n, out) and inputs a (n, in)."""


@dataclass(frozen=True)
class Met:
    """A linear layer at work."""

    call: Callable[..., Tensor]  # `F.linear`, as it would be without the interception
    x: Tensor  # (…, in)
    weight: Tensor  # (out, in)
    bias: Tensor | None


class LinearInterception(Interception):
    """Inside, linear layers with one of these weights `answer` in another way, where it is `worth` it."""

    function = F.linear

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.watch(weights)

    def watch(self, weights: Mapping[str, Tensor]) -> Self:
        """Meet these from now on."""
        self.names = {id(weight): name for name, weight in weights.items() if weight.ndim == 2}
        self.nothing_to_meet = not self.names
        return self

    def worth(self, rows: int, weight: Tensor) -> bool:  # noqa: ARG002
        """Whether to meet a layer that reads so many rows with a weight (out, in)."""
        return True

    def answer(self, name: str, met: Met) -> Tensor:
        """What a layer with the weight of this name returns."""
        raise NotImplementedError

    def meet(self, call: Callable[..., Tensor], args: Sequence[Any], given: dict[str, Any]) -> Tensor:
        x, weight, bias = _linear(*args, **given)
        name = self.names.get(id(weight))
        if name is None or not self.worth(x.numel() // x.shape[-1], weight):
            return call(*args, **given)
        return self.answer(name, Met(call, x, weight, bias))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The arguments of `F.linear`, by its names."""
    return input, weight, bias


def keeping(keep: Keep, met: Met) -> Tensor:
    """The layer's answer; its weight gets no gradient: the factors go to `keep` instead of being multiplied."""
    found: Tensor = _Keeping.apply(met.x, met.weight, met.bias, keep)  # type: ignore[no-untyped-call]
    return found


class _Keeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, keep: Keep) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.keep = keep
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        slope = slope.to(weight)  # a forward in half precision sends back what it sent
        slopes = slope.reshape(-1, slope.shape[-1])
        if ctx.needs_input_grad[1]:
            rows = x.reshape(-1, x.shape[-1]).to(weight)
            again = torch.is_grad_enabled()  # the gradient is going to be derived again
            ctx.keep(slopes if again else slopes.detach(), rows if again else rows.detach())
        of_x = (slope @ weight).to(x) if ctx.needs_input_grad[0] else None
        return of_x, None, slopes.sum(0) if ctx.needs_input_grad[2] else None, None
