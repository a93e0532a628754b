"""Projected gradients of linear layers for a fraction of the work.

A linear layer's gradient is δᵀa, with as many rows in a as there are images. Projecting it, δᵀa (I − M Mᵀ), is the same
as projecting what the layer read, δᵀ(a − a M Mᵀ): for 64 images and a layer of 2048 outputs a thirtieth of the work.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure import fast
from perdure.ops.interception import Interception

Projection = Callable[[Tensor], Tensor]
"""Rows (n, d) → their projections (n, d); linear, and the same for every row. Twice must be as good as once where a
weight is used in several ways, for then what came out projected is projected again with the rest."""


class Shield(Interception):
    """While a forward runs inside, linear layers prepare for gradients of these weights that come out projected.

    `done` then has the names of the weights for which this holds. The others, convolutions and layers that read more
    rows than they have outputs, are cheaper to project afterwards, and are left to the caller.
    """

    def __init__(self, weights: Mapping[str, Tensor], projections: Mapping[str, Projection]) -> None:
        super().__init__()
        wanted = projections if fast.on("inputs") else {}
        self.names = {id(weights[name]): name for name in wanted if weights[name].ndim == 2}
        self.nothing_to_meet = not self.names
        self.projections = projections
        self.met: set[str] = set()
        self.used_otherwise: set[str] = set()

    @property
    def done(self) -> frozenset[str]:
        return frozenset(self.met - self.used_otherwise)

    def meet(self, func: Callable[..., Any], args: Sequence[Any], given: dict[str, Any]) -> Any:
        for place, arg in enumerate((*args, *given.values())):
            if (name := self.names.get(id(arg))) is None or getattr(func, "__name__", "") == "__get__":
                continue  # asking for its shape is no use of it
            x = args[0]
            if func is F.linear and place == 1 and x.numel() // x.shape[-1] < len(arg):
                self.met.add(name)
                return _Linear.apply(x, arg, _bias(args, given), self.projections[name])  # type: ignore[no-untyped-call]
            self.used_otherwise.add(name)
        return func(*args, **given)


def _bias(args: Sequence[Any], given: Mapping[str, Any]) -> Tensor | None:
    return args[2] if len(args) > 2 else given.get("bias")


class _Linear(torch.autograd.Function):
    """`F.linear` with a projected gradient of its weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, projection: Projection) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.projection = projection
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        slope = slope.to(weight)  # a forward in half precision sends back what it sent
        slopes = slope.reshape(-1, slope.shape[-1])
        of_x = (slope @ weight).to(x) if ctx.needs_input_grad[0] else None
        rows = x.reshape(-1, x.shape[-1]).to(weight)
        of_weight = slopes.T @ ctx.projection(rows) if ctx.needs_input_grad[1] else None
        of_bias = slopes.sum(0) if ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias, None
