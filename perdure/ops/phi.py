"""Random perturbation of the first weights, trained to lie far from them (φ)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.ops.losses import uniformity


def add_noise(weight: Tensor, phi: Tensor, noise: Tensor) -> Tensor:
    """θ̃ = θ + φ ∘ ε (Eq. 10): noise by the reparameterization trick."""
    return weight + phi * noise


def train_phi(
    weight: Tensor,
    noise: Tensor,  # ε, drawn once
    phi: Tensor,  # φ, trained
    *,
    steps: int,
    rate: float,
    cap: float | None = None,  # largest ‖θ̃ − θ‖/‖θ‖
    keep_last: bool = False,
) -> tuple[Tensor, Tensor]:
    """Train φ so that θ and θ̃, each scaled to unit length, repel each other (Eq. 11); returns θ̃ and φ.

    With one pair the objective is −2 d², so φ grows exponentially, by about 1 + 0.4 ε²/‖θ‖² a step: without a cap
    the stage replaces small layers' weights rather than perturbing them. The θ̃ kept is the one before the last
    update, as released; `keep_last` takes the one after it, as Alg. 1 is written.
    """
    weight = weight.detach()
    unit = F.normalize(weight.flatten(), dim=0)
    limit = None if cap is None else cap * torch.linalg.vector_norm(weight)
    moved = weight
    for _ in range(steps):
        phi = phi.detach().requires_grad_()
        moved = add_noise(weight, phi, noise)
        pair = torch.stack([unit, F.normalize(moved.flatten(), dim=0)])
        (grad,) = torch.autograd.grad(uniformity(pair), phi)
        phi, moved = (phi - rate * grad).detach(), moved.detach()
        if limit is not None and torch.linalg.vector_norm(moved - weight) > limit:
            break
    if keep_last:
        moved = add_noise(weight, phi, noise)
    if limit is not None:
        step = moved - weight
        moved = weight + step * (limit / torch.linalg.vector_norm(step).clamp_min(1e-30)).clamp_max(1)
    return moved, phi
