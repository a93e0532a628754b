"""Losses: of predictions, and of how features lie on the unit sphere."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


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
    if len(z) == 2:  # a single pair may be closer than an inner product's rounding
        return -temperature * (z[0] - z[1]).square().sum()
    return _uniformity(_squared_distances(z), temperature)


def _uniformity(distances: Tensor, temperature: float) -> Tensor:
    """From squared distances (n, n), which have each pair twice, and everyone with themselves, which does not count."""
    n = len(distances)
    alone = torch.eye(n, dtype=torch.bool, device=distances.device)
    potentials = (-temperature * distances).masked_fill(alone, -torch.inf)
    return potentials.flatten().logsumexp(0) - math.log(n * (n - 1))


def alignment(z: Tensor, other: Tensor, exponent: float = 2.0) -> Tensor:
    """Mean distance of positive pairs, row by row (Eq. 7 with the sign that Eq. 9 uses); z, other (n, d)."""
    return (z - other).square().sum(1).pow(exponent / 2).mean()


def released_uniform_alignment(z: Tensor, mixed: Tensor, temperature: float = 2.0) -> Tensor:
    """Uniformity over raw and mixed features together, alignment of each image with its own mixture."""
    distances = _squared_distances(torch.cat([z, mixed]))  # those of an image and its own mixture are among them
    return distances.diagonal(len(z)).mean() + _uniformity(distances, temperature)


def uniform_alignment(
    z: Tensor, mixed: Tensor, partner: Tensor, temperature: float = 2.0, exponent: float = 2.0
) -> Tensor:
    """Uniformity of the raw features, alignment of the mixture with both of its images (Eq. 9); partner (n,) is π."""
    pulled = alignment(z, mixed, exponent) + alignment(z[partner], mixed, exponent)
    return uniformity(z, temperature) + pulled / 2


def _squared_distances(z: Tensor) -> Tensor:
    """Of all rows to all rows (n, n), from their inner products: several times as fast as `torch.pdist`."""
    products = z @ z.T
    squares = products.diagonal()
    return squares[:, None] + squares - 2 * products
