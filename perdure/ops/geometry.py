"""How points lie: on a sphere, on a circle, and class by class.

Points are rows z (n, d); `group` (n,) names the class of each with any whole numbers.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.seeding import generator

NEIGHBORS = 10
WAVES = 64
"""Angles at which a potential is read; up to temperature 5 its waves beyond half as many are below 1e-20."""


# ── in any number of dimensions ─────────────────────────────────────────────────────────────────────────────


def class_alignment(z: Tensor, group: Tensor) -> Tensor:
    """Mean squared distance over all pairs of points of one class, without visiting the pairs: in a class of n points
    they sum to n Σ|z|² − |Σz|².

    >>> square = torch.tensor([[0.0, 0.0], [0.0, 2.0], [9.0, 9.0], [9.0, 9.0]])
    >>> float(class_alignment(square, torch.tensor([0, 0, 1, 1])))  # one pair at 4, one at 0
    2.0
    """
    sums, sizes, own = _classes(z, group)
    distances = (sizes[own] * z.square().sum(1)).sum() - sums.square().sum()
    return distances / (sizes * (sizes - 1) / 2).sum()


def effective_rank(z: Tensor) -> Tensor:
    """Over how many directions the points spread around their mean: exp of the entropy of the singular values, taken
    as shares of their sum (Roy & Vetterli, EUSIPCO 2007). A single point has rank 0; n points have at most n − 1.

    >>> corners = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> round(float(effective_rank(corners)), 4)
    2.0
    """
    energies = torch.linalg.eigvalsh(_gram(z - z.mean(0))).flip(0)
    noise = torch.finfo(z.dtype).eps * max(z.shape) * z.square().sum()  # what rounding leaves of a direction
    lengths = energies[energies > noise].sqrt()
    rank: Tensor = torch.special.entr(lengths / lengths.sum()).sum().exp()
    return rank if len(lengths) else torch.zeros_like(rank)


def closer_to_another_class(z: Tensor, group: Tensor) -> Tensor:
    """For each point, whether another class's mean is nearer than its own class's, from which it is left out: else it
    would pull that mean towards itself. (m,) of the points whose class has another point."""
    sums, sizes, own = _classes(z, group)
    others = torch.cdist(z, sums / sizes[:, None]).scatter(1, own[:, None], torch.inf).amin(1)
    rest = (sums[own] - z) / (sizes[own] - 1).clamp_min(1)[:, None]
    away: Tensor = others < torch.linalg.vector_norm(z - rest, dim=1)
    return away[sizes[own] > 1]


def foreign_neighbors(z: Tensor, group: Tensor, neighbors: int = NEIGHBORS) -> Tensor:
    """The share of each point's nearest neighbors that are of another class; (n,)."""
    distances = torch.cdist(z, z).fill_diagonal_(torch.inf)
    nearest = distances.topk(min(neighbors, len(z) - 1), largest=False).indices
    return (group[nearest] != group[:, None]).to(z.dtype).mean(1)


def _classes(z: Tensor, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum (classes, d) and size (classes,) of each class, and to which of them each point belongs (n,)."""
    own = torch.unique(group, return_inverse=True)[1]
    sizes = own.bincount().to(z.dtype)
    return z.new_zeros(len(sizes), z.shape[1]).index_add(0, own, z), sizes, own


def _gram(z: Tensor) -> Tensor:
    """The smaller of z zᵀ and zᵀ z, which have the same energies but for zeros."""
    return z @ z.T if len(z) < z.shape[1] else z.T @ z


# ── on the circle ───────────────────────────────────────────────────────────────────────────────────────────


def principal_plane(z: Tensor) -> Tensor:
    """The plane through the origin that holds most of the points' squared length, as two columns (d, 2).

    Through the origin and not through the mean: the angle in the plane is then an angle on the sphere, and points that
    crowd around one direction of the sphere are still seen to crowd. Signs are such that the mean is positive.
    """
    leading = torch.linalg.eigh(_gram(z)).eigenvectors[:, -2:].flip(1)
    plane = F.normalize(z.T @ leading, dim=0) if len(z) < z.shape[1] else leading
    signs = torch.where((z @ plane).mean(0) < 0, -1.0, 1.0)
    return plane * signs


def trained_plane(z: Tensor, group: Tensor, steps: int = 200, rate: float = 0.03) -> Tensor:
    """A linear layer of two units (d, 2) which lays classes together and apart from each other on the circle: Adam on
    uniformity plus alignment of all pairs of one class, all points at once, from a start that is always the same.

    Two hundred steps bring uniformity to its end; more only learn the points by heart, of which there may be no more
    than dimensions.
    """
    start = torch.randn(z.shape[1], 2, generator=generator(0, "plane"), dtype=torch.float64)
    plane = (start / math.sqrt(z.shape[1])).to(z)
    mean, square = torch.zeros_like(plane), torch.zeros_like(plane)
    for step in range(1, steps + 1):
        here = plane.detach().requires_grad_()
        with torch.enable_grad():
            circle = F.normalize(z @ here, dim=1)
            (gradient,) = torch.autograd.grad(circle_uniformity(circle) + class_alignment(circle, group), here)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient.square()
        size = (square / (1 - 0.999**step)).sqrt() + 1e-8
        plane = plane - rate * mean / (1 - 0.9**step) / size
    return plane


def circle_uniformity(z: Tensor, temperature: float = 2.0) -> Tensor:
    """`losses.uniformity` of points on the circle (n, 2), in n steps instead of n²: the potential of a pair is a sum of
    waves over its angle, and each wave's mean over all pairs is the squared length of its mean over points.

    >>> round(float(circle_uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64))), 6)
    -8.0
    """
    n, turn = len(z), torch.arange(WAVES, device=z.device, dtype=z.dtype) * (2 * math.pi / WAVES)
    heights = torch.fft.rfft((-2 * temperature * (1 - turn.cos())).exp()).real / WAVES
    angles = torch.atan2(z[:, 1], z[:, 0])[:, None] * torch.arange(1, len(heights), device=z.device)
    lengths = angles.cos().mean(0).square() + angles.sin().mean(0).square()
    everyone: Tensor = heights[0] + 2 * (heights[1:] * lengths).sum()
    return ((n * everyone - 1) / (n - 1)).log()  # without each point's pair with itself, whose potential is 1


def resultant(z: Tensor) -> Tensor:
    """Length of the mean of unit vectors: 1 if they are one, 0 if they balance."""
    length: Tensor = torch.linalg.vector_norm(z.mean(0))
    return length
