"""Losses: of predictions, and of how features lie on the unit sphere."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure import fast


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy of a batch (Eq. 1); logits (n, classes), y (n,)."""
    return F.cross_entropy(logits, y)


def mixed_cross_entropy(logits: Tensor, y: Tensor, partner_y: Tensor, share: Tensor) -> Tensor:
    """Cross-entropy against ỹ = (1 − γ) y + γ y_π, sample by sample: the labels mixed as the images are."""
    own = F.cross_entropy(logits, y, reduction="none")
    partner = F.cross_entropy(logits, partner_y, reduction="none")
    return ((1 - share) * own + share * partner).mean()


def released_mixed_cross_entropy(logits: Tensor, y: Tensor, partner_y: Tensor, share: Tensor) -> Tensor:
    """The released code's mixed loss: label weights averaged over the batch, swapped, and constant.

    With γ ~ Beta(20, 20) both weights are close to ½, so the swap hardly shows; with Beta(1, 1) it does.
    """
    weight = share.detach().mean()
    return weight * cross_entropy(logits, y) + (1 - weight) * cross_entropy(logits, partner_y)


def uniformity(z: Tensor, temperature: float = 2.0) -> Tensor:
    """Log of the mean Gaussian potential over all pairs of rows (Eqs. 6, 11); z (n, d), n ≥ 2.

    >>> opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> float(uniformity(opposite))  # one pair at squared distance 4
    -8.0
    """
    if len(z) > 2 and fast.on("pairs"):
        squares = z.square().sum(1)
        distances = (squares[:, None] + squares - 2 * z @ z.T)[*torch.triu_indices(len(z), len(z), 1)]
    else:  # a single pair may be closer than the rounding of its inner product
        distances = torch.pdist(z).square()
    potentials = -temperature * distances
    return potentials.logsumexp(0) - math.log(len(potentials))


def alignment(z: Tensor, other: Tensor, exponent: float = 2.0) -> Tensor:
    """Mean distance of positive pairs, row by row (Eq. 7 with the sign that Eq. 9 uses); z, other (n, d)."""
    return (z - other).square().sum(1).pow(exponent / 2).mean()


def released_uniform_alignment(z: Tensor, mixed: Tensor, temperature: float = 2.0, exponent: float = 2.0) -> Tensor:
    """Uniformity over raw and mixed features together, alignment of each image with its own mixture."""
    return alignment(z, mixed, exponent) + uniformity(torch.cat([z, mixed]), temperature)


def uniform_alignment(
    z: Tensor, mixed: Tensor, partner: Tensor, temperature: float = 2.0, exponent: float = 2.0
) -> Tensor:
    """Uniformity of the raw features, alignment of the mixture with both of its images (Eq. 9); partner (n,) is π."""
    pulled = alignment(z, mixed, exponent) + alignment(z[partner], mixed, exponent)
    return uniformity(z, temperature) + pulled / 2
