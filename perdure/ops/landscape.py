"""How flat the loss is around given weights."""

from collections.abc import Callable

import torch
from torch import Tensor

from perdure.ops.algebra import add, grad
from perdure.types import Gradient, Weights


def layer_normalized(direction: Weights, weights: Weights) -> Gradient:
    """Each tensor of two or more dimensions scaled to the length of its weight, so that rescaled networks compare;
    others are left out."""
    return {
        name: part * (torch.linalg.vector_norm(weights[name]) / torch.linalg.vector_norm(part).clamp_min(1e-30))
        for name, part in direction.items()
        if part.ndim > 1
    }


def filter_normalized(direction: Weights, weights: Weights) -> Gradient:
    """Each filter (or row) of a tensor of two or more dimensions scaled to the length of its own weights (Li et al.,
    NeurIPS 2018); others are left out, so they stay where they are."""
    return {name: part * _filter_scale(part, weights[name]) for name, part in direction.items() if part.ndim > 1}


def _filter_scale(part: Tensor, weight: Tensor) -> Tensor:
    inner = tuple(range(1, part.ndim))
    lengths = torch.linalg.vector_norm(part, dim=inner, keepdim=True)
    scale: Tensor = torch.linalg.vector_norm(weight, dim=inner, keepdim=True) / (lengths + 1e-10)
    return scale


def worst_case_flatness(loss: Callable[[Weights], Tensor], weights: Weights, size: float = 0.01) -> Tensor:
    """max over v of L(W + ξ v) − L(W) with v layer-normalized, to first order: v is the gradient (Eq. 5)."""
    here = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    before = loss(here)
    uphill = layer_normalized(grad(before, here), here)
    with torch.no_grad():
        return loss(add(here, {name: size * part for name, part in uphill.items()})) - before
