"""Gradients and weights of linear layers as what they are made of.

A gradient δᵀa has rank n, the number of images. Its norm, ‖δᵀa‖² = ⟨δδᵀ, aaᵀ⟩, its projection and the answer of a
layer with the weight W + c δᵀa, which is x Wᵀ + c (x aᵀ) δ, take only the factors. To all other code these are tensors:
what it does with them that is not listed here writes them out first.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]

_METADATA = {"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf"}


class Lazy(Tensor):
    """A tensor that is written out when something asks for its entries."""

    def dense(self) -> Tensor:
        raise NotImplementedError

    @classmethod
    def shaped(cls, like: Tensor, shape: Sequence[int]) -> Self:
        """Without entries: they share one number, which nobody reads."""
        empty: Self = Tensor._make_subclass(cls, like.detach().new_empty(()).expand(shape))
        return empty

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat = [one for arg in args for one in (arg if isinstance(arg, list | tuple) else [arg])]
        rules = [] if kwargs else [type(one).rules().get(func) for one in flat if isinstance(one, Lazy)]
        for rule in rules:
            if rule is not None and (found := rule(*args)) is not NotImplemented:
                return found
        if getattr(getattr(func, "__self__", None), "__name__", "") in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        return func(*(_dense(one) for one in args), **{name: _dense(one) for name, one in kwargs.items()})

    @staticmethod
    def rules() -> dict[Any, Callable[..., Any]]:
        """Function of torch → how to compute it without writing the tensor out, or NotImplemented for these values."""
        return {}


def _dense(value: Any) -> Any:
    if isinstance(value, Lazy):
        return value.dense()
    return type(value)(map(_dense, value)) if isinstance(value, list | tuple) else value


class LowRankGrad(Lazy):
    """δᵀa."""

    rows: Tensor  # δ (n, out)
    inputs: Tensor  # a (n, in)

    @staticmethod
    def of(rows: Tensor, inputs: Tensor) -> "LowRankGrad":
        grad = LowRankGrad.shaped(rows, (rows.shape[1], inputs.shape[1]))
        grad.rows, grad.inputs = rows, inputs
        return grad

    @staticmethod
    def join(parts: Sequence["LowRankGrad"]) -> "LowRankGrad":
        """Their sum: the factors one below the other."""
        if len(parts) == 1:
            return parts[0]
        return LowRankGrad.of(torch.cat([part.rows for part in parts]), torch.cat([part.inputs for part in parts]))

    def worth(self) -> bool:
        """Four thin products, two forward and two back, against a large one."""
        (n, out), (_, width) = self.rows.shape, self.inputs.shape
        return 2 * n * (out + width) < out * width

    def dense(self) -> Tensor:
        return self.rows.T @ self.inputs

    @staticmethod
    def rules() -> dict[Any, Callable[..., Any]]:
        return _LOW_RANK


def _norm(grad: LowRankGrad, *order: Any) -> Any:
    if order:
        return NotImplemented
    return ((grad.rows @ grad.rows.T) * (grad.inputs @ grad.inputs.T)).sum().clamp_min(0).sqrt()


def _times_matrix(grad: Any, matrix: Any) -> Any:
    if not isinstance(grad, LowRankGrad) or isinstance(matrix, Lazy) or matrix.ndim != 2:
        return NotImplemented
    return LowRankGrad.of(grad.rows, grad.inputs @ matrix)


def _times(grad: Any, factor: Any) -> Any:
    if not isinstance(grad, LowRankGrad):
        grad, factor = factor, grad
    if isinstance(factor, Tensor) and factor.ndim > 1:
        return NotImplemented
    return LowRankGrad.of(grad.rows, grad.inputs * factor)  # a vector counts by column


def _clamp(grad: LowRankGrad, low: Any = None, high: Any = None) -> Any:
    """No entry of δᵀa, an inner product of two columns, is larger than the product of the largest norms."""
    if not isinstance(low, float | int) or not isinstance(high, float | int):
        return NotImplemented
    largest = [torch.linalg.vector_norm(factor.detach(), dim=0).max() for factor in (grad.rows, grad.inputs)]
    if grad.rows.device.type != "cpu" or largest[0] * largest[1] > min(-low, high):  # a GPU would have to wait
        return NotImplemented
    return grad


def _plus(one: Any, other: Any) -> Any:
    if isinstance(one, LowRankGrad) or not isinstance(other, LowRankGrad):
        return NotImplemented
    if isinstance(one, PerturbedWeight):
        return PerturbedWeight.of(one.base, [*one.steps, other])
    return PerturbedWeight.of(one, [other])


def _flatten(grad: LowRankGrad, start: int = 0, *_end: int) -> Any:
    return grad if start == 1 else NotImplemented  # it has two dimensions


def _view_as(grad: Tensor, other: Tensor) -> Any:
    return grad if grad.shape == other.shape else NotImplemented


_LOW_RANK: dict[Any, Callable[..., Any]] = {
    torch.linalg.vector_norm: _norm,
    Tensor.matmul: _times_matrix,
    Tensor.mul: _times,
    Tensor.clamp: _clamp,
    Tensor.add: _plus,
    Tensor.flatten: _flatten,
    Tensor.view_as: _view_as,
}


class LazyWeight(Lazy):
    """The weight of a linear layer, made of `base` and something else."""

    base: Tensor
    """What a gradient at this weight is a gradient of."""

    def linear(self, x: Tensor, bias: Tensor | None, linear: Linear) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def rules() -> dict[Any, Callable[..., Any]]:
        return {F.linear: _linear}


def _linear(x: Tensor, weight: LazyWeight, bias: Tensor | None = None) -> Tensor:
    return weight.linear(x, bias, F.linear)


class PerturbedWeight(LazyWeight):
    """W + Σ δᵀa."""

    steps: Sequence[LowRankGrad]

    @staticmethod
    def of(base: Tensor, steps: Sequence[LowRankGrad]) -> "PerturbedWeight":
        weight = PerturbedWeight.shaped(base, base.shape)
        weight.base, weight.steps = base.view_as(base), steps  # a gradient at this weight ends here
        return weight

    def leaf(self) -> "PerturbedWeight":
        """The same, cut off from any graph, to take a gradient there."""
        steps = [LowRankGrad.of(step.rows.detach(), step.inputs.detach()) for step in self.steps]
        weight = PerturbedWeight.of(self.base, steps)
        weight.base = self.base.detach().requires_grad_()
        return weight

    def dense(self) -> Tensor:
        weight = self.base
        for step in self.steps:
            weight = weight + step.dense()
        return weight

    def linear(self, x: Tensor, bias: Tensor | None, linear: Linear) -> Tensor:
        out = linear(x, self.base, bias)
        for step in self.steps:
            out = out + (x @ step.inputs.T) @ step.rows
        return out

    @staticmethod
    def rules() -> dict[Any, Callable[..., Any]]:
        return {F.linear: _linear, Tensor.add: _plus}


class RescaledWeight(LazyWeight):
    """W + Σ W B (S − I) Bᵀ, by scaling the inputs: x (W + W B (S − I) Bᵀ)ᵀ = (x + x B (S − I)ᵀ Bᵀ) Wᵀ."""

    scales: Sequence[tuple[Tensor, Tensor]]  # B (in, k), S (k, k)
    make_dense: Callable[[Tensor, Sequence[tuple[Tensor, Tensor]]], Tensor]

    @staticmethod
    def of(base: Tensor, scales: Sequence[tuple[Tensor, Tensor]], dense: Any) -> "RescaledWeight":
        weight = RescaledWeight.shaped(base, base.shape)
        weight.base, weight.scales, weight.make_dense = base, scales, dense
        return weight

    def dense(self) -> Tensor:
        return self.make_dense(self.base, self.scales)

    def linear(self, x: Tensor, bias: Tensor | None, linear: Linear) -> Tensor:
        if x.numel() // x.shape[-1] >= len(self.base):
            return linear(x, self.dense(), bias)
        scaled = x
        for basis, scale in self.scales:
            inside = x @ basis
            scaled = scaled + (inside @ scale.T - inside) @ basis.T
        return linear(scaled, self.base, bias)
