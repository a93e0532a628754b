"""Linear layers whose gradient δᵀa is not multiplied out before it is known what it is for.

δ are the gradients at a layer's outputs and a its inputs, both with as many rows as the batch. Projecting the product,
δᵀa (I − M Mᵀ), is the same as projecting the inputs, δᵀ(a − a M Mᵀ): for 64 images and a layer of 2048 outputs a
thirtieth of the work. And a step along the gradient needs the two factors only (`fast.lazy`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.fast.lazy import LazyWeight

Receiver = Callable[[Tensor, Tensor], None]
"""Takes the factors of a gradient: δ (n, out) and a (n, in)."""

_receivers: dict[int, Receiver] = {}  # id of a weight → who takes its factors; backward passes on a GPU run in a thread


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, for a network that learns."""
    if isinstance(weight, LazyWeight):
        return weight.linear(input, bias, linear)
    if torch.is_grad_enabled() and weight.requires_grad and input.numel() // input.shape[-1] < len(weight):
        out: Tensor = _Linear.apply(input, weight, bias)  # type: ignore[no-untyped-call]
        return out
    return F.linear(input, weight, bias)


@contextmanager
def receiving(receivers: Mapping[int, Receiver]) -> Iterator[None]:
    """In a backward pass inside, the factors of these weights' gradients go to their receivers; autograd has none."""
    _receivers.update(receivers)
    try:
        yield
    finally:
        for key in receivers:
            del _receivers[key]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.key = id(weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grad.to(weight)  # a forward in half precision sends back what it sent
        rows = grad.reshape(-1, grad.shape[-1])
        of_weight = None
        if ctx.needs_input_grad[1]:
            inputs = x.reshape(-1, x.shape[-1]).to(weight)
            receiver = _receivers.get(ctx.key)
            if receiver is None:
                of_weight = rows.T @ inputs
            elif torch.is_grad_enabled():  # the gradient is going to be derived again
                receiver(rows, inputs)
            else:
                receiver(rows.detach(), inputs.detach())
        of_x = (grad @ weight).to(x) if ctx.needs_input_grad[0] else None
        return of_x, of_weight, rows.sum(0) if ctx.needs_input_grad[2] else None
