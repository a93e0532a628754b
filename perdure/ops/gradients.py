"""Gradients as dictionaries, name → tensor: taken, projected, added, clipped, and used to perturb weights.

How a gradient comes about (see `fast`) is decided here and nowhere else.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from perdure import fast
from perdure.fast.lazy import LazyWeight, LowRankGrad, PerturbedWeight
from perdure.fast.linear import Receiver, receiving
from perdure.types import Gradient, Weights

TINY = 1e-16  # keeps 0/0 at zero; far below any norm that matters

Projection = Callable[[Tensor], Tensor]
"""Rows (n, …) → their projections; linear, and the same for every row."""


def grad(loss: Tensor, weights: Weights, create_graph: bool = False, retain_graph: bool = False) -> Gradient:
    """∂loss/∂weights; weights that the loss does not depend on are left out. With a created graph it can be derived
    again, with a retained one another gradient of the same forward can be taken."""
    tensors, keep = [_base(weight) for weight in weights.values()], create_graph or retain_graph
    grads = torch.autograd.grad(loss, tensors, retain_graph=keep, create_graph=create_graph, allow_unused=True)
    return {name: g for name, g in zip(weights, grads, strict=True) if g is not None}


def ascent_grad(loss: Tensor, weights: Weights, create_graph: bool = False) -> Gradient:
    """∂loss/∂weights, to perturb the weights with: that of a large linear layer may stay a product of two factors."""
    factors: dict[str, list[LowRankGrad]] = {}

    def receiver(name: str) -> Receiver:
        return lambda rows, inputs: factors.setdefault(name, []).append(LowRankGrad.of(rows, inputs))

    found = _received(loss, weights, weights if fast.on("low_rank") else (), receiver, create_graph)
    for name, parts in factors.items():
        whole = LowRankGrad.join(parts)
        if name in found:  # other parts of the network read this weight, too
            found[name] = found[name] + whole.dense()
        else:
            found[name] = whole if whole.worth() else whole.dense()
    return found


def projected_grad(loss: Tensor, weights: Weights, projections: Mapping[str, Projection]) -> Gradient:
    """∂loss/∂weights, projected where there is a projection."""
    products: Gradient = {}

    def receiver(name: str) -> Receiver:
        return lambda rows, inputs: _accumulate(products, name, rows.T @ projections[name](inputs))

    found = _received(loss, weights, projections if fast.on("project_inputs") else (), receiver)
    found = project(found, projections)
    for name, product in products.items():
        _accumulate(found, name, product)
    return found


def project(gradient: Gradient, projections: Mapping[str, Projection]) -> Gradient:
    """A gradient, projected where there is a projection."""
    return {name: projections[name](g) if name in projections else g for name, g in gradient.items()}


def _received(
    loss: Tensor,
    weights: Weights,
    names: Iterable[str],
    receiver: Callable[[str], Receiver],
    create_graph: bool = False,
) -> Gradient:
    """The gradient, but for what linear layers with the weights of these names send to their receivers."""
    bases = {name: _base(weights[name]) for name in names if name in weights and weights[name].ndim == 2}
    with receiving({id(weight): receiver(name) for name, weight in bases.items()}):
        return grad(loss, weights, create_graph)


def _accumulate(gradient: Gradient, name: str, g: Tensor) -> None:
    gradient[name] = gradient[name] + g if name in gradient else g


def _base(weight: Tensor) -> Tensor:
    return weight.base if isinstance(weight, LazyWeight) else weight


def perturb(weights: Weights, gradient: Weights, radius: float) -> Weights:
    """w + ρ g/‖g‖: the worst weights within the radius, to first order (Eqs. 12, 13), to take a gradient there."""
    if not gradient:
        return _leaves(weights)
    length = norm(gradient)
    reach = radius / (length + TINY) if is_async(length) else radius / (float(length) + TINY)
    low_rank = {name: g for name, g in gradient.items() if isinstance(g, LowRankGrad)}
    moved = add(weights, {name: g for name, g in gradient.items() if name not in low_rank}, reach)
    with torch.no_grad():
        return _leaves({**moved, **{name: weights[name] + reach * g for name, g in low_rank.items()}})


def _leaves(weights: Weights) -> Weights:
    with torch.enable_grad():
        return {
            name: weight.leaf() if isinstance(weight, PerturbedWeight) else weight.detach().requires_grad_()
            for name, weight in weights.items()
        }


def is_async(tensor: Tensor) -> bool:
    """Whether reading a number off it means to wait for a queue of work, as on a GPU: then no step should."""
    return tensor.device.type != "cpu"


def norm(gradient: Weights) -> Tensor:
    """One Euclidean norm over all tensors. On a CPU torch's own is slower than inner products and, in float32, less
    exact."""
    low_rank = [torch.linalg.vector_norm(g) for g in gradient.values() if isinstance(g, LowRankGrad)]
    dense = {name: g for name, g in gradient.items() if not isinstance(g, LowRankGrad)}
    if any(map(is_async, gradient.values())):
        lengths = [*torch._foreach_norm(list(dense.values())), *low_rank]
        length: Tensor = torch.linalg.vector_norm(torch.stack(lengths))
        return length
    squares = [length.square() for length in low_rank] + ([dot(dense, dense)] if dense else [])
    return torch.stack(squares).sum().sqrt()


def dot(one: Weights, other: Weights) -> Tensor:
    """Inner product over the names that both have; a missing gradient counts as zero."""
    return torch.stack([torch.dot(one[name].flatten(), other[name].flatten()) for name in one if name in other]).sum()


def add(weights: Weights, gradient: Weights, times: float | Tensor = 1.0) -> Gradient:
    """weights + times · gradient by value, cut off from any graph; names without a gradient stay as they are."""
    moved = dict(weights)
    if not (names := [name for name in gradient if name in moved]):
        return moved
    steps = [gradient[name] for name in names]
    with torch.no_grad():
        if isinstance(times, Tensor):
            steps, times = list(torch._foreach_mul(steps, times)), 1.0
        sums = torch._foreach_add([moved[name] for name in names], steps, alpha=times)
    moved.update(zip(names, sums, strict=True))
    return moved


def clip(gradient: Weights, limit: float) -> Gradient:
    """Scaled down to a norm of at most `limit`, by torch's rule: min(1, limit/(‖g‖ + 1e-6))."""
    if not gradient:
        return {}
    factor = (limit / (norm(gradient) + 1e-6)).clamp_max(1)
    if not is_async(factor) and factor == 1:
        return dict(gradient)
    return dict(zip(gradient, torch._foreach_mul(list(gradient.values()), factor), strict=True))
