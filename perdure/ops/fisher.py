"""How much each weight matters to old tasks, and what moving it costs (Kirkpatrick et al., PNAS 2017)."""

from collections.abc import Iterable

import torch

from perdure.types import Gradient, Weights


def diagonal_fisher(gradients: Iterable[Weights], batch: int, samples: int) -> Gradient:
    """F = Σ_b batch · g_b² / samples, g_b the gradient of the mean loss of batch b; a name no gradient has is left out.

    This is the estimate of HAT's code (Serrà et al. 2018), in whose scale the coefficient 5000 is meant: it squares
    gradients of batches, and a short last batch counts like a full one. With `batch` 1 it is the textbook's: the mean
    of the squared gradients of single samples.

    >>> one, other = {"w": torch.tensor([1.0, 3.0])}, {"w": torch.tensor([2.0, 0.0])}
    >>> diagonal_fisher([one, other], batch=1, samples=2)["w"].tolist()
    [2.5, 4.5]
    """
    fisher: Gradient = {}
    for gradient in gradients:
        for name, g in gradient.items():
            share = g.square() * (batch / samples)
            fisher[name] = fisher[name] + share if name in fisher else share
    return fisher


def merge(old: Weights, new: Weights, tasks: int) -> Gradient:
    """The mean over `tasks` old tasks and a new one, (F_new + t F_old)/(t + 1); a missing name counts as zero.

    >>> merged = merge({"w": torch.tensor(1.0)}, {"w": torch.tensor(4.0), "head": torch.tensor(6.0)}, tasks=2)
    >>> float(merged["w"]), float(merged["head"])
    (2.0, 2.0)
    """
    both = {name: new[name] + tasks * old[name] for name in new if name in old}
    left = {name: tasks * fisher for name, fisher in old.items() if name not in new}
    return {name: total / (tasks + 1) for name, total in {**left, **new, **both}.items()}


@torch.no_grad()
def add_ewc_gradient(
    gradient: Weights, weights: Weights, anchor: Weights, fisher: Weights, coefficient: float
) -> Gradient:
    """g + λ F (θ − θ*): the gradient of the loss and of (λ/2) Σ F (θ − θ*)², in closed form, no backward pass.

    >>> one = torch.ones(())
    >>> float(add_ewc_gradient({"w": one}, {"w": 5 * one}, {"w": one}, {"w": 2 * one}, 10.0)["w"])
    81.0
    """
    if not fisher:
        return dict(gradient)
    away = torch._foreach_sub([weights[name] for name in fisher], [anchor[name] for name in fisher])
    for name, distance in zip(fisher, away, strict=True):  # each sum takes the place of its distance
        own = gradient[name] if name in gradient else torch.zeros_like(distance)
        torch.addcmul(own, distance, fisher[name], value=coefficient, out=distance)
    return {**gradient, **dict(zip(fisher, away, strict=True))}


@torch.no_grad()
def ewc_penalty(weights: Weights, anchor: Weights, fisher: Weights, coefficient: float) -> float:
    """(λ/2) Σ F (θ − θ*)².

    >>> one = torch.ones(())
    >>> ewc_penalty({"w": 5 * one}, {"w": one}, {"w": 2 * one}, 10.0)
    160.0
    """
    parts = [(importance * (weights[name] - anchor[name]).square()).sum() for name, importance in fisher.items()]
    return coefficient / 2 * float(torch.stack(parts).sum()) if parts else 0.0
