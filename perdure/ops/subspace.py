"""The directions that old tasks use: a basis for the inputs of a layer (`ops.layers`), and projection away from it."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure import fast


def extend(basis: Tensor | None, representation: Tensor, threshold: float) -> Tensor:
    """Add a task's directions to a layer's basis until it holds a share ε of their energy (Eq. 18, Alg. 2).

    `representation` is (d, n), `basis` (d, k) with orthonormal columns. With no basis at all (the first task) the
    released rule holds: as many directions as stay *below* ε. With a basis, even an empty one, directions are added
    until ε is *reached*.

    Of an embedding, the rows that were looked up are marked by ones (d,): all of them are kept.
    """
    if representation.ndim == 1:
        return representation if basis is None else torch.maximum(basis, representation.to(basis))
    return extended(basis, representation, threshold)[0]


def extended(basis: Tensor | None, representation: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """As `extend`, with the share of the energy that each new direction adds, the largest first."""
    none = torch.empty(len(representation), 0, dtype=torch.float64, device=representation.device)
    old = none if basis is None else basis.double()
    quick = _wide(representation) and fast.on("gram")
    # A basis that was rounded to fewer digits is not quite orthonormal any more, but it spans what it has to.
    span = old if basis is None or basis.dtype == representation.dtype else torch.linalg.qr(old).Q
    energy, values, directions = _outside_by_gram(representation, span) if quick else _outside(representation, span)
    if energy == 0:
        return old.to(representation), none[0]
    shares = values / energy
    if basis is None:
        count = int((shares.cumsum(0) < threshold).sum())
    else:
        held = 1 - shares.sum()
        count = int((held + shares.cumsum(0) - shares < threshold).sum())
    count = min(count, len(old) - old.shape[1], int((shares > 1e-12).sum()))
    return torch.cat([old, directions(count)], dim=1).to(representation), shares[:count]


Outside = tuple[Tensor, Tensor, Callable[[int], Tensor]]
"""Of some columns: their energy, the energies outside a basis by direction, strongest first, and the first so many of
these directions."""


def _outside(representation: Tensor, old: Tensor) -> Outside:
    """From what is left of the columns outside the basis: by the smaller of their Gram matrices."""
    r = representation.double()
    rest = r - old @ (old.T @ r)
    if _wide(r):
        values, vectors = torch.linalg.eigh(rest @ rest.T)
        return r.square().sum(), values.flip(0).clamp_min(0), lambda count: vectors.flip(1)[:, :count]
    values, right = torch.linalg.eigh(rest.T @ rest)
    return (
        r.square().sum(),
        values.flip(0).clamp_min(0),
        lambda count: F.normalize(rest @ right.flip(1)[:, :count], dim=0),
    )


def _outside_by_gram(r: Tensor, old: Tensor) -> Outside:
    """From their Gram matrix C alone, as the complement N of the basis sees it, NᵀCN: many columns are multiplied once
    and never seen again, the eigenproblem shrinks as the basis grows, and what is found is at right angles to it."""
    gram, free = _gram(r), complement(old)
    values, vectors = torch.linalg.eigh(free.T @ gram @ free)
    return gram.trace(), values.flip(0).clamp_min(0), lambda count: free @ vectors.flip(1)[:, :count]


def complement(basis: Tensor) -> Tensor:
    """An orthonormal basis of everything outside a basis: (d, k) → (d, d − k)."""
    d, k = basis.shape
    if k == 0:
        return torch.eye(d, dtype=basis.dtype, device=basis.device)
    square: Tensor = torch.linalg.qr(basis.double(), mode="complete").Q
    return square[:, k:].to(basis)


def _gram(r: Tensor, rows: int = 128, columns: int = 2048) -> Tensor:
    """R Rᵀ in float64, computed below the diagonal alone and copied above it.

    Products of float32 columns are taken in float32, whose rounding they have from the network already, and summed in
    float64 every `columns` columns.
    """
    gram = torch.zeros(len(r), len(r), dtype=torch.float64, device=r.device)
    for piece in torch.split(r, columns, dim=1):
        for row in range(0, len(r), rows):
            gram[row : row + rows, : row + rows] += piece[row : row + rows] @ piece[: row + rows].T
    lower = gram.tril()
    return lower + lower.tril(-1).T


def _wide(r: Tensor) -> bool:
    return r.shape[0] <= r.shape[1]


def project(gradient: Tensor, basis: Tensor) -> Tensor:
    """G − G M Mᵀ (Eq. 15): what is left of a gradient outside the basis; gradient (out, …), basis (d, k)."""
    rows, basis = gradient.reshape(len(gradient), -1), basis.to(gradient)  # which may be held in half precision
    return (rows - (rows @ basis) @ basis.T).view_as(gradient)


def project_rows(gradient: Tensor, basis: Tensor) -> Tensor:
    """G − M MᵀG, where the inputs are in the rows of a weight; with marks (d,), the rows that are not marked."""
    if basis.ndim == 1:
        return gradient * (1 - basis.to(gradient)).view(-1, *[1] * (gradient.ndim - 1))
    rows, basis = gradient.flatten(1), basis.to(gradient)
    return (rows - basis @ (basis.T @ rows)).view_as(gradient)
