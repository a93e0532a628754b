"""Projected gradients of linear layers for a fraction of the work.

A linear layer's gradient is δᵀa, with as many rows in a as there are images. Projecting it, δᵀa (I − M Mᵀ), is the same
as projecting what the layer read, δᵀ(a − a M Mᵀ): for 64 images and a layer of 2048 outputs a thirtieth of the work.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from perdure import fast
from perdure.ops.algebra import grad
from perdure.ops.linear import LinearInterception, Met, keeping
from perdure.types import Gradient, Weights

Projection = Callable[[Tensor], Tensor]
"""Rows (n, d) → their projections (n, d); linear, and the same for every row."""


class Shield(LinearInterception):
    """While a forward runs inside, linear layers prepare for gradients of these weights that come out projected.

    After `grad`, `done` has the names of the weights for which this holds. The others, convolutions and layers that
    read more rows than they have outputs, are cheaper to project afterwards, and are left to the caller.
    """

    def __init__(self, weights: Mapping[str, Tensor], projections: Mapping[str, Projection]) -> None:
        super().__init__({name: weights[name] for name in projections} if fast.on("inputs") else {})
        self.projections = projections
        self.products: Gradient = {}

    @property
    def done(self) -> frozenset[str]:
        return frozenset(self.products)

    def worth(self, rows: int, weight: Tensor) -> bool:
        return rows < len(weight)

    def answer(self, name: str, met: Met) -> Tensor:
        def keep(slopes: Tensor, inputs: Tensor) -> None:
            self._add(name, slopes.T @ self.projections[name](inputs))

        return keeping(keep, met)

    def grad(self, loss: Tensor, weights: Weights) -> Gradient:
        """∂loss/∂weights. What came to a weight in other ways than through linear layers is projected here."""
        self.products.clear()
        slopes = grad(loss, weights)
        for name in self.products:
            if name in slopes:
                self._add(name, self.projections[name](slopes[name]))
        return {name: slope for name in weights if (slope := self.products.get(name, slopes.get(name))) is not None}

    def _add(self, name: str, product: Tensor) -> None:
        self.products[name] = self.products[name] + product if name in self.products else product
