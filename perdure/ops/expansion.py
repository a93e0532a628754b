"""Growing a layer's input for a new task: when, by how much, and what the new inputs are (Liang and Li, CVPR 2023).

A grown layer reads, beside its channels x, a few linear mixtures Φᵀx of them, through new weight columns E. That is the
same layer with the weight W + E Φᵀ, taken at each kernel position, so nothing has to be rebuilt.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from perdure.ops.layers import Layer


def retain_ratio(raw: Tensor, projected: Tensor) -> Tensor:
    """‖projected‖/‖raw‖: how much of a gradient is left to learn with; 1 where there is no gradient."""
    length = torch.linalg.vector_norm(raw)
    return torch.where(length > 0, torch.linalg.vector_norm(projected) / length, 1.0)


def expansion(ratio: float, floor: float, factor: float, channels: int) -> int:
    """How many inputs a layer is short of: min(⌈(ρ − r)₊ K⌉, channels).

    >>> expansion(0.32, floor=0.5, factor=10, channels=64), expansion(0.7, floor=0.5, factor=10, channels=64)
    (2, 0)
    """
    return min(math.ceil(max((floor - ratio) * factor, 0)), channels)


def patch_norms(representation: Tensor, kernel: Sequence[int]) -> Tensor:
    """Spectral norm of each channel's part of each patch: (channels·k·k, n) → (channels, n)."""
    height, width = kernel or (1, 1)  # a linear layer has none
    patches = representation.reshape(-1, height, width, representation.shape[1]).permute(0, 3, 1, 2)
    if min(height, width) == 1:
        lengths: Tensor = torch.linalg.vector_norm(patches, dim=(2, 3))
        return lengths
    gram = patches @ patches.mT if height <= width else patches.mT @ patches
    norms: Tensor = torch.linalg.eigvalsh(gram)[..., -1].clamp_min(0).sqrt()
    return norms


def transform(norms: Tensor, size: int) -> Tensor:
    """Φ to begin with: the strongest left singular vectors of the norms; (channels, n) → (channels, size)."""
    vectors: Tensor = torch.linalg.eigh(norms.double() @ norms.double().T).eigenvectors
    return vectors.flip(1)[:, :size].to(norms).contiguous()


def effective(weight: Tensor, grown: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """W + Σ E Φᵀ at each kernel position; weight (out, channels, …), E (out, e, …), Φ (channels, e)."""
    for columns, phi in grown:
        weight = weight + torch.einsum("oe...,ce->oc...", columns, phi)
    return weight


def transformed(representation: Tensor, phi: Tensor) -> Tensor:
    """What the new columns read: (channels·k·k, n) → (e·k·k, n)."""
    positions = representation.reshape(len(phi), -1, representation.shape[1])
    return torch.einsum("ce,cpn->epn", phi, positions).reshape(-1, representation.shape[1])


def fresh_columns(layer: Layer, size: int, grown: int = 0) -> Tensor:
    """New weight columns (out, size, …), drawn as torch draws a layer that has these inputs too: uniform within
    1/√fan-in. `grown` inputs were added before."""
    shape = (layer.weight.shape[0], size, *layer.weight.shape[2:])
    inputs = (layer.weight.shape[1] + grown + size) * math.prod(shape[2:])
    return torch.empty(shape, dtype=layer.weight.dtype, device=layer.weight.device).uniform_(
        -(inputs**-0.5), inputs**-0.5
    )
