"""Dual gradient memory: of each layer's input space, whichever is smaller is kept, what to leave alone or what is free.

A basis of kind "remove" spans the directions that old tasks use, as in GPM: a gradient loses its part in them. One of
kind "retain" spans all the others: a gradient keeps its part in them and nothing else. So no layer ever holds more than
half of its directions (Liang and Li, CVPR 2023).
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from perdure.ops.subspace import complement, extend, project


@dataclass(frozen=True)
class Dual:
    kind: Literal["remove", "retain"]
    basis: Tensor  # (d, k), orthonormal columns


def first_dual(representation: Tensor, threshold: float, thin: bool = False) -> Dual:
    """The basis after the first task; representation (d, n).

    GPM's r directions, if they are fewer than d/2; else the rest of the space. The released code takes that rest from
    the `thin` singular vectors: where n < d, directions that no sample showed are then lost to learning for good.
    """
    used = extend(None, representation, threshold)
    if used.shape[1] < len(used) / 2:
        return Dual("remove", used)
    if thin:
        vectors = torch.linalg.svd(representation.double(), full_matrices=False).U
        return Dual("retain", vectors[:, used.shape[1] :].to(used))
    return Dual("retain", complement(used))


def update_dual(dual: Dual, representation: Tensor, threshold: float) -> Dual:
    """Protect a later task too; representation (d, n). Ends with the smaller of the two bases.

    "remove" grows as in GPM. From "retain" the strongest directions of M Mᵀ R are taken away while what is retained has
    at least 1 − ε of the energy.
    """
    grown = dual.kind == "remove"
    basis = extend(dual.basis, representation, threshold) if grown else shrink(dual.basis, representation, threshold)
    return smaller(replace(dual, basis=basis))


def shrink(basis: Tensor, representation: Tensor, threshold: float) -> Tensor:
    """What is left of the free directions: basis (d, k), representation (d, n) → (d, k − r)."""
    m, r = basis.double(), representation.double()
    energy = r.square().sum()
    if energy == 0 or m.shape[1] == 0:
        return basis
    inside = m.T @ r
    values, vectors = torch.linalg.eigh(inside @ inside.T)  # within the basis, so that it stays orthonormal
    shares, vectors = values.flip(0).clamp_min(0) / energy, vectors.flip(1)
    remaining = shares.flip(0).cumsum(0).flip(0)  # before each removal
    count = min(int((remaining >= 1 - threshold).sum()), int((shares > 1e-12).sum()))
    left: Tensor = m @ vectors[:, count:]
    return left.to(basis)


def smaller(dual: Dual) -> Dual:
    """The same memory with at most d/2 columns: a larger basis is replaced by its complement."""
    if dual.basis.shape[1] <= len(dual.basis) / 2:
        return dual
    return Dual("retain" if dual.kind == "remove" else "remove", complement(dual.basis))


def widen(dual: Dual, rows: int) -> Dual:
    """Make room for new inputs, which no old task uses: zero rows, and for "retain" one free direction for each."""
    old, (d, k) = dual.basis, dual.basis.shape
    basis = torch.cat([old, old.new_zeros(rows, k)])
    if dual.kind == "retain":
        free = torch.cat([old.new_zeros(d, rows), torch.eye(rows, dtype=old.dtype, device=old.device)])
        basis = torch.cat([basis, free], dim=1)
    return replace(dual, basis=basis)


def project_dual(gradient: Tensor, dual: Dual) -> Tensor:
    """G − G M Mᵀ or G M Mᵀ; gradient (out, …)."""
    outside = project(gradient, dual.basis)
    return outside if dual.kind == "remove" else gradient - outside


def protected(dual: Dual) -> Tensor:
    """A basis of the directions that old tasks use, whichever is stored."""
    return dual.basis if dual.kind == "remove" else complement(dual.basis)
