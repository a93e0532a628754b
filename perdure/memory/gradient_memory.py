"""Gradient memories: for each layer, the directions that old tasks use."""

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from perdure.memory.bank import TensorBank
from perdure.ops.dual_gpm import Dual, first_dual, project_dual, update_dual, widen
from perdure.ops.gradients import Projection
from perdure.ops.layers import ROWS_SUFFIX
from perdure.ops.subspace import extend, project, project_rows


class GradientMemory(TensorBank):
    """Layer → basis (d, k) with orthonormal columns; of an embedding, marks (d,) at the rows that were used."""

    def begin(self, representations: Mapping[str, Tensor]) -> None:
        """Bases without a direction where there are none yet: with the first task, too, they are extended until the
        threshold is *reached* (`subspace.extend`)."""
        for name, representation in representations.items():
            if name not in self and representation.ndim > 1:
                self[name] = representation.new_empty(len(representation), 0)

    def extend(self, representations: Mapping[str, Tensor], threshold: float) -> None:
        for name, representation in representations.items():
            self[name] = extend(self.get(name), representation, threshold)

    def projections(self) -> dict[str, Projection]:
        """Layer → how its gradient is projected, row by row; layers of which nothing is remembered are left out."""
        return {
            layer: partial(project, basis=basis)
            for layer, basis in self.items()
            if not layer.endswith(ROWS_SUFFIX) and basis.shape[1]
        }

    def row_projections(self) -> dict[str, Projection]:
        """The same for layers whose inputs are in the rows of their weight: these are projected column by column."""
        return {
            layer: partial(project_rows, basis=basis) for layer, basis in self.items() if layer.endswith(ROWS_SUFFIX)
        }

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Layer → (directions held, directions there are)."""
        return {
            name: (basis.shape[1] if basis.ndim > 1 else int(basis.sum()), basis.shape[0])
            for name, basis in self.items()
        }


class DualMemory(GradientMemory):
    """Layer → dual basis, stored under its kind and the layer's name, e.g. "retain.conv1"."""

    def __init__(self, thin: bool = False) -> None:
        super().__init__()
        self.thin = thin

    def duals(self) -> dict[str, Dual]:
        found = {}
        for name, basis in self.items():
            kind, _, layer = name.partition(".")
            found[layer] = Dual("retain" if kind == "retain" else "remove", basis)
        return found

    def dual(self, layer: str) -> Dual | None:
        return self.duals().get(layer)

    def put(self, layer: str, dual: Dual) -> None:
        for kind in ("remove", "retain"):
            if f"{kind}.{layer}" in self:
                del self[f"{kind}.{layer}"]
        # laid out as it would come back from a file, for rounding depends on that
        self[f"{dual.kind}.{layer}"] = dual.basis.contiguous()

    def widen(self, layer: str, rows: int) -> None:
        """The layer has so many inputs more than before."""
        if (dual := self.dual(layer)) is not None:
            self.put(layer, widen(dual, rows))

    def begin(self, representations: Mapping[str, Tensor]) -> None:
        """Nothing: the first task has a rule of its own."""

    def extend(self, representations: Mapping[str, Tensor], threshold: float) -> None:
        for layer, representation in representations.items():
            old = self.dual(layer)
            if old is None:
                self.put(layer, first_dual(representation, threshold, self.thin))
            else:
                self.put(layer, update_dual(old, representation, threshold))

    def projections(self) -> dict[str, Projection]:
        return {layer: partial(project_dual, dual=dual) for layer, dual in self.duals().items()}

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Layer → (directions protected, directions there are)."""
        return {
            layer: (k if dual.kind == "remove" else d - k, d)
            for layer, dual in self.duals().items()
            for d, k in [dual.basis.shape]
        }
