"""Randomized smoothing (Cohen, Rosenfeld, Kolter, "Certified adversarial robustness via randomized smoothing", 2019).

The smoothed class of an image is the one that a classifier gives most often when Gaussian noise of deviation σ is
added. If it is given with a probability of at least p̲ > 1/2, no change of the image shorter than R = σ Φ⁻¹(p̲) in L2
makes another class more frequent. p̲ is found by counting, and is too high with a probability of α at most.
"""

import math
from functools import cache
from statistics import NormalDist

import torch
from torch import Tensor


def noisy(x: Tensor, copies: int, sigma: float, rng: torch.Generator) -> Tensor:
    """Copies (copies, …) of one image with noise. It is not clipped: certificates hold for plain Gaussian noise.

    Drawn on the CPU, so that it is the same on every device.
    """
    return x + sigma * torch.randn((copies, *x.shape), generator=rng).to(x)


@cache  # many images have equal counts
def lower_bound(hits: int, n: int, alpha: float) -> float:
    """Clopper and Pearson's one-sided bound: the probability at which so many hits among n, or more, come with a chance
    of α. It lies above the true one in a share of α of all counts at most.

    >>> round(lower_bound(99, 100, 0.001), 4), lower_bound(0, 100, 0.001)
    (0.9114, 0.0)
    """
    if hits == 0:
        return 0.0
    counts = torch.arange(hits, n + 1, dtype=torch.float64)
    ways = math.lgamma(n + 1) - torch.lgamma(counts + 1) - torch.lgamma(n - counts + 1)

    def log_chance(p: float) -> float:
        return float(torch.logsumexp(ways + counts * math.log(p) + (n - counts) * math.log1p(-p), 0))

    low, high, limit = 0.0, 1.0, math.log(alpha)
    while low < (middle := (low + high) / 2) < high:  # until no number lies between
        low, high = (middle, high) if log_chance(middle) <= limit else (low, middle)
    return low


def radius(hits: int, n: int, sigma: float, alpha: float) -> float | None:
    """How far in L2 an image may be moved before its smoothed class can change; None, an abstention, where p̲ ≤ 1/2.

    >>> round(radius(100, 100, 0.5, 0.001), 4), radius(60, 100, 0.5, 0.001)
    (0.7502, None)
    """
    p = lower_bound(hits, n, alpha)
    return sigma * NormalDist().inv_cdf(p) if p > 0.5 else None
