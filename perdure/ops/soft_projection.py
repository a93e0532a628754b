"""Soft projection: each direction of a basis counts with a weight of its own, between not at all and fully."""

from collections.abc import Mapping

from torch import Tensor

from perdure.types import Gradient, Weights


def part_inside(gradient: Tensor, basis: Tensor, importance: Tensor) -> Tensor:
    """G M diag(λ) Mᵀ: the part of a gradient inside a basis, direction by direction as much as its λ says.

    Gradient (out, …), basis (d, k), importance (k,). With λ = 1 this is G M Mᵀ.
    """
    return (((gradient.flatten(1) @ basis) * importance) @ basis.T).view_as(gradient)


def parts_inside(
    gradient: Weights, bases: Mapping[str, Tensor], importance: Weights, names: Mapping[str, str]
) -> Gradient:
    """The parts of all layers that have a basis; `names` says which parameter belongs to which layer."""
    return {
        weight: part_inside(gradient[weight], bases[layer], importance[layer])
        for layer, weight in names.items()
        if weight in gradient and layer in bases
    }
