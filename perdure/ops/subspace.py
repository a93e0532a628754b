"""The directions that old tasks use: inputs of each layer as columns, a basis for them, projection away from it.

Works for any network of `Conv2d` and `Linear` layers: the inputs are met by hooks, never by hand-typed shapes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perdure import fast

Layer = nn.Conv2d | nn.Linear
COLUMNS = 20_000  # about as many as the papers take from AlexNet's first layer; for layers that name no image count


def layers_of(module: nn.Module) -> dict[str, Layer]:
    """Every convolution and linear layer inside, by name, in the order of definition."""
    return {name: part for name, part in module.named_modules() if isinstance(part, nn.Conv2d | nn.Linear)}


def layer_inputs(module: nn.Module, run: Callable[[], Any]) -> dict[str, Tensor]:
    """What each layer of `module` receives in the forward that `run` makes; a layer used twice has its inputs joined."""
    seen: dict[str, list[Tensor]] = {}
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, received, name=name: seen.setdefault(name, []).append(received[0].detach())
        )
        for name, layer in layers_of(module).items()
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return {name: torch.cat(parts) if len(parts) > 1 else parts[0] for name, parts in seen.items()}


def columns(x: Tensor, layer: Layer) -> Tensor:
    """The vectors that a layer's weight rows are multiplied with, as columns (d, positions); d = in·k·k (Eq. 16).

    For grouped convolutions d is that of one group and the columns of all groups stand side by side: one basis then
    covers every group.
    """
    if isinstance(layer, nn.Linear):
        return x.reshape(-1, x.shape[-1]).T
    padded = F.pad(x, _padding(layer), mode="constant" if layer.padding_mode == "zeros" else layer.padding_mode)
    patches = F.unfold(
        padded, layer.kernel_size, dilation=layer.dilation, stride=layer.stride
    )  # (n, in·k·k, positions)
    n, rows, positions = patches.shape
    grouped = patches.reshape(n, layer.groups, rows // layer.groups, positions)
    return grouped.permute(2, 1, 0, 3).reshape(rows // layer.groups, -1)


def representations(
    inputs: Mapping[str, Tensor], layers: Mapping[str, Layer], images: Mapping[str, int]
) -> dict[str, Tensor]:
    """Every layer's inputs as columns, cut from the first so many images; from enough of them where it is not said."""
    found = {}
    for name, layer in layers.items():
        x = inputs[name]
        wanted = images.get(name) or -(-COLUMNS // columns(x[:1], layer).shape[1])
        found[name] = columns(x[:wanted], layer)
    return found


def _padding(layer: nn.Conv2d) -> list[int]:
    """(left, right, top, bottom), as `F.pad` wants it."""
    if isinstance(layer.padding, str):
        spans = [
            d * (k - 1) if layer.padding == "same" else 0
            for d, k in zip(layer.dilation, layer.kernel_size, strict=True)
        ]
        height, width = [(span // 2, span - span // 2) for span in spans]
    else:
        height, width = [(side, side) for side in layer.padding]
    return [*width, *height]


def extend(basis: Tensor | None, representation: Tensor, threshold: float) -> Tensor:
    """Add a task's directions to a layer's basis until it holds a share ε of their energy (Eq. 18, Alg. 2).

    `representation` is (d, n), `basis` (d, k) with orthonormal columns. With no basis at all (the first task) the
    released rule holds: as many directions as stay *below* ε. With a basis, even an empty one, directions are added
    until ε is *reached*.
    """
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
