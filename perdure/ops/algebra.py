"""Gradients as dictionaries: name → tensor."""

import torch
from torch import Tensor

from perdure.types import Gradient, Weights

TINY = 1e-16  # keeps 0/0 at zero; far below any norm that matters


def waits(tensor: Tensor) -> bool:
    """Whether reading a number off it means to wait for a queue of work, as on a GPU: then no step should."""
    return tensor.device.type != "cpu"


def grad(loss: Tensor, weights: Weights, create_graph: bool = False) -> Gradient:
    """∂loss/∂weights; weights that the loss does not depend on are left out. With a graph it can be derived again."""
    slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph, allow_unused=True)
    return {name: slope for name, slope in zip(weights, slopes, strict=True) if slope is not None}


def norm(gradient: Weights) -> Tensor:
    """One Euclidean norm over all tensors. On a CPU torch's own is slower than inner products and, in float32, less
    exact."""
    if any(map(waits, gradient.values())):
        length: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradient.values()))))
        return length
    return dot(gradient, gradient).sqrt()


def dot(one: Weights, other: Weights) -> Tensor:
    """Inner product over the names that both have; a missing gradient counts as zero."""
    return torch.stack([torch.dot(one[name].flatten(), other[name].flatten()) for name in one if name in other]).sum()


def ascent(gradient: Weights, radius: float) -> Gradient:
    """The worst perturbation of norm `radius` to first order, v = ρ g/‖g‖ (Eqs. 12, 13)."""
    if not gradient:
        return {}
    steps = torch._foreach_mul(list(gradient.values()), radius / (norm(gradient) + TINY))
    return dict(zip(gradient, steps, strict=True))


def add(weights: Weights, gradient: Weights, times: float | Tensor = 1.0) -> Gradient:
    """weights + times · gradient by value, cut off from any graph; names without a gradient stay as they are."""
    moved = dict(weights)
    if not (names := [name for name in gradient if name in moved]):
        return moved
    steps = [gradient[name] for name in names]
    with torch.no_grad():
        if isinstance(times, Tensor):
            steps, times = list(torch._foreach_mul(steps, times)), 1.0
        sums = torch._foreach_add([moved[name] for name in names], steps, alpha=times)
    moved.update(zip(names, sums, strict=True))
    return moved


def clip(gradient: Weights, limit: float) -> Gradient:
    """Scaled down to a norm of at most `limit`, by torch's rule: min(1, limit/(‖g‖ + 1e-6))."""
    if not gradient:
        return {}
    factor = (limit / (norm(gradient) + 1e-6)).clamp_max(1)
    if not waits(factor) and factor == 1:
        return dict(gradient)
    return dict(zip(gradient, torch._foreach_mul(list(gradient.values()), factor), strict=True))
