"""How a new task relates to old ones: by how much of its gradient lies in the directions that they use.

A layer's weight is (out, …) and is read as (out, d); a basis is (d, k) with orthonormal columns.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from perdure import fast
from perdure.fast.lazy import RescaledWeight
from perdure.ops.subspace import extend


def length_inside(gradient: Tensor, basis: Tensor) -> Tensor:
    """‖G B Bᵀ‖: how long the part of a gradient is that lies in a basis."""
    length: Tensor = torch.linalg.vector_norm(gradient.flatten(1) @ basis)  # Bᵀ has orthonormal rows: it keeps lengths
    return length


def related(gradient: Tensor, bases: Mapping[int, Tensor], most: int, trust: float) -> list[int]:
    """The old tasks that a new one may lean on, in increasing order: those whose basis holds more than a share `trust`
    of the length of the new gradient (the trust region of TRGP), and of these the `most` that hold most of it.

    >>> gradient, axes = torch.tensor([[3.0, 2.0, 1.0]]), torch.eye(3)
    >>> related(gradient, {0: axes[:, :1], 1: axes[:, 1:2], 2: axes[:, 2:]}, most=2, trust=0.5)
    [0, 1]
    """
    bound = trust * float(torch.linalg.vector_norm(gradient))
    lengths = {task: float(length_inside(gradient, basis)) for task, basis in bases.items()}
    inside = [task for task, length in lengths.items() if length > bound]
    return sorted(sorted(inside, key=lambda task: lengths[task], reverse=True)[:most])


def scaled(weight: Tensor, spaces: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """W + Σ W B (S − I) Bᵀ: the weight with its part inside each basis B (d, k) multiplied by a scale S (k, k)."""
    rows = total = weight.flatten(1)
    for basis, scale in spaces:
        inside = rows @ basis
        total = total + (inside @ scale - inside) @ basis.T
    return total.view_as(weight)


def scaled_by_inputs(weight: Tensor, spaces: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The same, for weights that change in every step: a linear layer scales its inputs instead, where that is less
    work."""
    if weight.ndim == 2 and fast.on("rescale_inputs"):
        return RescaledWeight.of(weight, spaces, scaled)
    return scaled(weight, spaces)


def joint_space(basis: Tensor, representation: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """A later task's own space, chosen among old and new directions together: (own, new), both (d, k).

    The directions that a layer's basis already has and those that `representation` (d, n) adds are ranked by the
    energy that the representation has along each. The strongest that together hold a share ε of it are the task's own
    space; `new` are those of them that the basis lacks, strongest first.
    """
    r = representation.double()
    directions = extend(basis.to(r), r, 1.0)  # the basis, then all that is left, strongest first
    energies, order = (directions.T @ r).square().sum(1).sort(descending=True, stable=True)
    count = int((energies.cumsum(0) - energies < threshold * r.square().sum()).sum())
    chosen = order[:count].sort().values
    own, new = directions[:, chosen], directions[:, chosen[chosen >= basis.shape[1]]]
    return own.to(representation), new.to(representation)
