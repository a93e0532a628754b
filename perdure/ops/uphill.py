"""Steps uphill that never write their largest matrices out.

A linear layer's gradient is δᵀa; both factors have as many rows as went through the layer. Climbing to worse weights
nearby, and a look around there, takes no more than these: ‖δᵀa‖² = ⟨δδᵀ, aaᵀ⟩, and a layer with the weight W + c δᵀa
answers x Wᵀ + c (x aᵀ) δ. For 128 images and 2048 × 2048 weights that is a quarter of the work of multiplying δᵀa, and
it spares measuring the product and adding it to W.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from perdure import fast
from perdure.ops.algebra import TINY, add, grad, norm, waits
from perdure.ops.linear import LinearInterception, Met, keeping
from perdure.types import Gradient, Weights


@dataclass(frozen=True)
class Thin:
    """δᵀa, left as a product."""

    slopes: Tensor  # δ (n, out)
    inputs: Tensor  # a (n, in)

    def whole(self) -> Tensor:
        return self.slopes.T @ self.inputs

    def times(self, factor: float | Tensor) -> "Thin":
        return Thin(self.slopes * factor, self.inputs)

    def bound(self) -> Tensor:
        """No entry of δᵀa is larger: each is an inner product of two columns."""
        columns = (torch.linalg.vector_norm(factor.detach(), dim=0).max() for factor in (self.slopes, self.inputs))
        return torch.stack(list(columns)).prod()

    def length(self) -> Tensor:
        """‖δᵀa‖."""
        return ((self.slopes @ self.slopes.T) * (self.inputs @ self.inputs.T)).sum().clamp_min(0).sqrt()


def total(products: Sequence[Thin]) -> Thin:
    """Their sum, one below the other."""
    if len(products) == 1:
        return products[0]
    return Thin(torch.cat([each.slopes for each in products]), torch.cat([each.inputs for each in products]))


@dataclass(frozen=True)
class Uphill:
    """A gradient, some of it as products."""

    full: Gradient
    thin: dict[str, Thin]

    def whole(self) -> Gradient:
        return {**self.full, **{name: product.whole() for name, product in self.thin.items()}}

    def length(self) -> Tensor:
        return norm({**self.full, **{name: product.length() for name, product in self.thin.items()}})


@dataclass(frozen=True)
class Nearby:
    """Weights that have moved, but for those in `thin`, which are still where they were."""

    weights: Weights
    thin: dict[str, Thin]

    def leaves(self) -> Weights:
        """To take a gradient there, of a forward inside `moved`."""
        return {name: weight.detach().requires_grad_() for name, weight in self.weights.items()}

    def moved(self, leaves: Weights | None = None) -> "Moved":
        """Inside, a forward with these weights, or with leaves made of them, is one with the moved weights."""
        return Moved(self.weights if leaves is None else leaves, self.thin)

    def whole(self) -> Gradient:
        return {**self.weights, **{name: self.weights[name] + step.whole() for name, step in self.thin.items()}}


def worst_nearby(weights: Weights, uphill: Uphill, radius: float) -> Nearby:
    """W + ρ g/‖g‖: the worst weights within the radius, to first order (Eqs. 12, 13)."""
    if not uphill.full and not uphill.thin:
        return Nearby(dict(weights), {})
    length = uphill.length()
    reach = radius / (length + TINY) if waits(length) else radius / (float(length) + TINY)
    thin = {name: product.times(reach) for name, product in uphill.thin.items()}
    return Nearby(add(weights, uphill.full, reach), thin)


class Factoring(LinearInterception):
    """While a forward runs inside, linear layers prepare to leave the gradients of these weights as products."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__(weights)
        self.kept: dict[str, list[Thin]] = {}

    def answer(self, name: str, met: Met) -> Tensor:
        def keep(slopes: Tensor, inputs: Tensor) -> None:
            self.kept.setdefault(name, []).append(Thin(slopes, inputs))

        return keeping(keep, met)

    def grad(self, loss: Tensor, weights: Weights, create_graph: bool = False) -> Uphill:
        """∂loss/∂weights. A weight that has a gradient in other ways, too, has all of it written out."""
        self.kept.clear()
        full, thin = grad(loss, weights, create_graph), {}
        for name, kept in self.kept.items():
            if name in full:
                full[name] = full[name] + total(kept).whole()
            else:
                thin[name] = total(kept)
        return Uphill(full, thin)


class Thinning(Factoring):
    """The same, where it is less work for a climb."""

    def watch(self, weights: Mapping[str, Tensor]) -> Self:
        return super().watch(weights if fast.on("thin") else {})

    def worth(self, rows: int, weight: Tensor) -> bool:
        """Four thin multiplications, two forward and two back, against one that is not."""
        return 2 * rows * sum(weight.shape) < weight.numel()


class Moved(LinearInterception):
    """While a forward runs inside, these weights count as moved by their products. As on the way up, linear layers are
    all that may read them."""

    def __init__(self, weights: Mapping[str, Tensor], thin: Mapping[str, Thin]) -> None:
        super().__init__({name: weights[name] for name in thin})
        self.thin = thin

    def answer(self, name: str, met: Met) -> Tensor:
        step = self.thin[name]
        return met.call(met.x, met.weight, met.bias) + (met.x @ step.inputs.T) @ step.slopes
