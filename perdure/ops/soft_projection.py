"""Soft projection: each direction of a basis counts with a weight of its own, between not at all and fully."""

from collections.abc import Mapping

import torch
from torch import Tensor

from perdure.types import Gradient, Weights


def part_inside(gradient: Tensor, basis: Tensor, importance: Tensor) -> Tensor:
    """G M diag(λ) Mᵀ: the part of a gradient inside a basis, direction by direction as much as its λ says.

    Gradient (out, …), basis (d, k), importance (k,). With λ = 1 this is G M Mᵀ.
    """
    return (((gradient.flatten(1) @ basis) * importance) @ basis.T).view_as(gradient)


def part_outside(gradient: Tensor, basis: Tensor, importance: Tensor) -> Tensor:
    """G − G M diag(λ) Mᵀ: what is left of a gradient; along a direction of little importance, nearly all of it."""
    return gradient - part_inside(gradient, basis.to(gradient), importance.to(gradient))


def importances(basis: Tensor, representation: Tensor, scale: float, before: Tensor | None = None) -> Tensor:
    """λ of each direction of a basis (d, k) for a task's inputs (d, n): (α + 1) v/(α v + max v), v the length of the
    inputs along it; what the first directions mattered `before` is added, and no λ is above 1."""
    v = torch.linalg.vector_norm(basis.T @ representation, dim=1)
    top = v.max() if len(v) else v.sum()
    found = (scale + 1) * v / (scale * v + top) if top > 0 else torch.zeros_like(v)
    if before is not None:
        found[: len(before)] += before
    return found.clamp_max(1.0)


def parts_inside(
    gradient: Weights, bases: Mapping[str, Tensor], importance: Weights, names: Mapping[str, str]
) -> Gradient:
    """The parts of all layers that have a basis; `names` says which parameter belongs to which layer."""
    return {
        weight: part_inside(gradient[weight], bases[layer], importance[layer])
        for layer, weight in names.items()
        if weight in gradient and layer in bases
    }
