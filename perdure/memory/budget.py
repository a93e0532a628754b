"""A limit on the bytes of the bases that old tasks leave: what is kept when not all of it fits.

Everything in its own precision if that fits, else in float16, else in float16 without the new directions that protect
least for their bytes. Old directions are never dropped.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from perdure.ops.subspace import extend, extended

HALF = torch.float16


def extend_within(
    budget: int, bases: Mapping[str, Tensor], representations: Mapping[str, Tensor], threshold: float
) -> dict[str, Tensor]:
    """The bases after a task, layer by layer as `subspace.extend` has them, cut to so many bytes."""
    marks = {
        name: found for name, found in representations.items() if found.ndim == 1
    }  # of rows: few bytes, always kept
    if marks:
        rest = {name: found for name, found in representations.items() if name not in marks}
        kept = {name: extend(bases.get(name), found, threshold) for name, found in marks.items()}
        plain = {name: basis for name, basis in bases.items() if basis.ndim > 1}
        return kept | extend_within(max(budget - size(kept), 0), plain, rest, threshold)
    wanted, shares = dict(bases), {}
    for name, representation in representations.items():
        wanted[name], shares[name] = extended(bases.get(name), representation, threshold)
    # Bases that were rounded once stay rounded: to widen them again would give nothing back.
    if all(basis.dtype != HALF for basis in bases.values()) and size(wanted) <= budget:
        return wanted
    halves = {name: basis.to(HALF) for name, basis in wanted.items()}
    if size(halves) <= budget:
        return halves
    old = {name: halves[name][:, : basis.shape[1]] for name, basis in bases.items()}
    costs = {name: len(halves[name]) * HALF.itemsize for name in shares}
    counts = most_energy(shares, costs, budget - size(old))
    return {name: basis[:, : _width(old.get(name)) + counts.get(name, 0)].clone() for name, basis in halves.items()}


def most_energy(shares: Mapping[str, Tensor], costs: Mapping[str, int], room: int) -> dict[str, int]:
    """How many of each layer's new directions to keep in so much room: those with the largest share per byte.

    `shares` fall within a layer and all directions of a layer cost the same, so what is kept are the first ones.
    """
    ranked = sorted((-share / costs[name], name) for name, layer in shares.items() for share in layer.tolist())
    counts = dict.fromkeys(shares, 0)
    for _, name in ranked:
        if costs[name] <= room:
            room -= costs[name]
            counts[name] += 1
    return counts


def protected(basis: Tensor, representation: Tensor) -> float:
    """Share of the columns' energy that a basis, as it is stored, holds: 1 − ‖R − M MᵀR‖²/‖R‖²; 1 if there is none."""
    if representation.ndim == 1:
        return 1.0
    r = representation.double()
    m = basis.to(r)
    energy = r.square().sum()
    return float(1 - (r - m @ (m.T @ r)).square().sum() / energy) if energy else 1.0


def size(bases: Mapping[str, Tensor]) -> int:
    """In bytes."""
    return sum(basis.numel() * basis.element_size() for basis in bases.values())


def _width(basis: Tensor | None) -> int:
    return 0 if basis is None else basis.shape[1]
