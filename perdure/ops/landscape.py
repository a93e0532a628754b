"""How flat the loss is around given weights.

A loss is a function of weights. It may give one number or, where one graph of all data would not fit, its terms one
after another: gradients are then gathered term by term, and one term's graph at a time is in memory.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from perdure.ops.gradients import TINY, add, dot, grad, norm
from perdure.seeding import generator
from perdure.types import Gradient, Weights

Loss = Callable[[Weights], Tensor | Iterable[Tensor]]


class Eigenvalue(NamedTuple):
    value: float
    residual: float  # some eigenvalue lies no farther than this from the value


class TraceEstimate(NamedTuple):
    mean: float
    error: float  # the standard error of the mean


# --- directions ---


def layer_normalized(direction: Weights, weights: Weights) -> Gradient:
    """Each tensor of two or more dimensions scaled to the length of its weight, so that rescaled networks compare;
    others are left out."""
    return {
        name: part * (torch.linalg.vector_norm(weights[name]) / torch.linalg.vector_norm(part).clamp_min(1e-30))
        for name, part in direction.items()
        if part.ndim > 1
    }


def filter_normalized(direction: Weights, weights: Weights) -> Gradient:
    """Each filter (or row) of a tensor of two or more dimensions scaled to the length of its own weights (Li et al.,
    NeurIPS 2018); others are left out, so they stay where they are."""

    def lengths(tensor: Tensor) -> Tensor:
        found: Tensor = torch.linalg.vector_norm(tensor, dim=tuple(range(1, tensor.ndim)), keepdim=True)
        return found

    return {
        name: part * (lengths(weights[name]) / (lengths(part) + 1e-10))
        for name, part in direction.items()
        if part.ndim > 1
    }


def random_direction(weights: Weights, number: int) -> Gradient:
    """The direction of that number, filter-normalized. Each tensor is drawn by its name and shape alone, so that two
    networks with the same layers are looked at along the same lines, whoever trained them."""
    drawn = {
        name: torch.randn(weight.shape, generator=generator(0, "landscape", number, name)).to(weight)
        for name, weight in weights.items()
        if weight.ndim > 1
    }
    return filter_normalized(drawn, weights)


def moved(weights: Weights, direction: Weights, size: float) -> Gradient:
    """W + size · v"""
    return add(weights, {name: size * part for name, part in direction.items()})


# --- the loss itself, and how it rises ---


def loss_at(loss: Loss, weights: Weights) -> Tensor:
    """L(W), without gradients; terms are summed in double precision, since rises are small differences."""
    with torch.no_grad():
        return _sum(_terms(loss, weights))


def loss_and_grad(loss: Loss, weights: Weights) -> tuple[Tensor, Gradient]:
    """L(W) and its gradient; weights that the loss does not depend on are left out of it."""
    here, gradient, terms = _leaves(weights), Gradient(), []
    with torch.enable_grad():
        for term in _terms(loss, here):
            for name, part in grad(term, here).items():
                gradient[name] = gradient[name] + part if name in gradient else part
            terms.append(term.detach())
    return _sum(terms), gradient


def climb(loss: Loss, weights: Weights, size: float = 0.01, steps: int = 1) -> Tensor:
    """The loss at W and after each of some steps uphill, (1 + steps,), on the sphere ‖w′_l − w_l‖ = ξ ‖w_l‖.

    A step goes ξ ‖w_l‖ along each layer's gradient and is then put back on the sphere: the first ends at the gradient's
    own direction, each later one turns halfway to the gradient that it met. Where one leads down, the next starts again
    from the best point and goes half as far.
    """
    before, gradient = loss_and_grad(loss, weights)
    losses, direction = [before], layer_normalized(gradient, weights)
    best, highest, length = direction, -torch.inf, 1.0
    for _ in range(steps - 1):
        here, uphill = loss_and_grad(loss, moved(weights, direction, size))
        losses.append(here)
        if float(here) > highest:
            best, highest, gradient = direction, float(here), uphill
        else:
            length /= 2
        direction = layer_normalized(moved(best, layer_normalized(gradient, weights), length), weights)
    return torch.stack([*losses, loss_at(loss, moved(weights, direction, size))])


def worst_case_flatness(losses: Tensor) -> Tensor:
    """max over v of L(W + ξ v) − L(W) with v layer-normalized (Eq. 5): the best that the steps of `climb` found.

    With one step to first order: v is the gradient. More steps never find less.
    """
    return (losses[1:] - losses[0]).max()


def sharpness(loss: Loss, weights: Weights, radius: float = 0.05) -> Tensor:
    """L(W + ρ g/‖g‖) − L(W), one norm over all tensors: what SAM makes small."""
    before, gradient = loss_and_grad(loss, weights)
    return loss_at(loss, add(weights, gradient, radius / (float(norm(gradient)) + TINY))) - before


# --- curvature ---


def hessian_times(loss: Loss, weights: Weights, direction: Weights) -> Gradient:
    """∇²L(W) · v, by deriving the gradient along v once more."""
    here = _leaves(weights)
    found = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    with torch.enable_grad():
        for term in _terms(loss, here):
            along = dot(grad(term, here, create_graph=True), direction)
            if along.requires_grad:  # a straight loss has a gradient without a graph
                for name, part in grad(along, here).items():
                    found[name] += part
    return found


def top_eigenvalue(loss: Loss, weights: Weights, steps: int, rng: torch.Generator) -> Eigenvalue:
    """The Hessian's largest eigenvalue, by so many steps of Lanczos; a more negative one does not hide it, as it would
    from a power iteration.

    Two vectors are kept, not all: what rounding then costs is that eigenvalues found come again, not that they are
    wrong. Fewer steps are made where the first vectors already span all that the Hessian can reach.
    """
    like = _flat(weights)
    now = torch.randn(len(like), generator=rng).to(like)
    now /= torch.linalg.vector_norm(now)
    past, off, diagonal, beside = torch.zeros_like(now), 0.0, list[float](), list[float]()
    for _ in range(steps):
        new = _flat(hessian_times(loss, weights, _shaped(now, weights)))
        diagonal.append(float(now @ new))
        new -= diagonal[-1] * now + off * past
        off = float(torch.linalg.vector_norm(new))
        beside.append(off)
        if off <= torch.finfo(like.dtype).eps ** 0.5 * max(map(abs, diagonal)):
            break
        past, now = now, new / off
    small = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    rim = torch.tensor(beside[:-1], dtype=torch.float64)
    values, vectors = torch.linalg.eigh(small + torch.diag(rim, 1) + torch.diag(rim, -1))
    return Eigenvalue(float(values[-1]), beside[-1] * abs(float(vectors[-1, -1])))


def trace(loss: Loss, weights: Weights, draws: int, rng: torch.Generator) -> TraceEstimate:
    """The sum of the Hessian's eigenvalues by Hutchinson: the mean of vᵀHv over two or more draws of random signs."""
    like, found = _flat(weights), []
    for _ in range(draws):
        signs = torch.randint(0, 2, (len(like),), generator=rng).mul_(2).sub_(1).to(like)
        found.append(float(signs @ _flat(hessian_times(loss, weights, _shaped(signs, weights)))))
    each = torch.tensor(found, dtype=torch.float64)
    return TraceEstimate(float(each.mean()), float(each.std()) / draws**0.5)


# --- parts ---


def _terms(loss: Loss, weights: Weights) -> Iterable[Tensor]:
    found = loss(weights)
    return [found] if isinstance(found, Tensor) else found


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return torch.stack([term.double() for term in terms]).sum()


def _leaves(weights: Weights) -> Gradient:
    return {name: weight.detach().requires_grad_() for name, weight in weights.items()}


def _flat(weights: Weights) -> Tensor:
    return torch.cat([weight.reshape(-1) for weight in weights.values()])


def _shaped(flat: Tensor, weights: Weights) -> Gradient:
    pieces = torch.split(flat, [weight.numel() for weight in weights.values()])
    return {name: piece.view(weight.shape) for piece, (name, weight) in zip(pieces, weights.items(), strict=True)}
