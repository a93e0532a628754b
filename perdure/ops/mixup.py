"""Mixed images: who is mixed with whom, and how much."""

from dataclasses import dataclass

import torch
from torch import Tensor

from perdure.ops.gradients import TINY


@dataclass(frozen=True)
class Mixing:
    share: Tensor  # γ (n,): how much of the partner is in the mixture
    partner: Tensor  # π (n,): who the partner is


def draw_mixing(n: int, concentration: float, like: Tensor) -> Mixing:
    """γᵢ ~ Beta(a, a) for each sample and one permutation π, on the device and in the precision of `like`."""
    a = torch.full((n,), concentration, device=like.device, dtype=torch.float64)
    share = torch.distributions.Beta(a, a, validate_args=False).sample().clamp(0, 1)
    return Mixing(share.to(like.dtype), torch.randperm(n, device=like.device))


def mix(x: Tensor, mixing: Mixing) -> Tensor:
    """x̃ᵢ = (1 − γᵢ) xᵢ + γᵢ x_π(i); x (n, …)."""
    share = mixing.share.view(-1, *[1] * (x.ndim - 1))
    return (1 - share) * x + share * x[mixing.partner]


def shift(share: Tensor, grad: Tensor, radius: float) -> Tensor:
    """γ̂ = clamp(γ + ρ g/‖g‖, 0, 1): the worst mixture within the radius, to first order (Eqs. 8, 17)."""
    length: Tensor = torch.linalg.vector_norm(grad)
    return (share + radius * grad / (length + TINY)).clamp(0, 1)
