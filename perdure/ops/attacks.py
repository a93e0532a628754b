"""Adversarial inputs."""

from collections.abc import Callable

import torch
from torch import Tensor


def fgsm(
    loss: Callable[[Tensor], Tensor], x: Tensor, step: Tensor | float, low: Tensor | float, high: Tensor | float
) -> Tensor:
    """One step along the sign of the loss's gradient, kept within [low, high].

    `step`, `low` and `high` are in the units of x and broadcast over it: a strength of ε in pixels is ε/std per
    channel of a normalized image.
    """
    start = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(start), start)
    return torch.clamp(x + step * slope.sign(), min=torch.as_tensor(low).to(x), max=torch.as_tensor(high).to(x))
