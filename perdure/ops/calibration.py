"""Whether a classifier is as often right as it says.

Confidence (n,) is the largest probability of each answer, hits (n,) whether the answer was right, `where` (n,) the bin
that it falls into.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Reliability:
    """What was said and what was true, bin by bin; zeros where a bin is empty."""

    count: Tensor  # (bins,) int64
    hits: Tensor  # (bins,) int64
    confidence: Tensor  # (bins,) mean, in 0 … 1
    accuracy: Tensor  # (bins,) share of hits

    def expected_error(self) -> Tensor:
        """ECE: how far confidence is from accuracy, averaged over images (Naeini et al., AAAI 2015)."""
        return (self.count * (self.confidence - self.accuracy).abs()).sum() / self.count.sum()


def by_width(confidence: Tensor, bins: int) -> Tensor:
    """Bins of equal width over 0 … 1, each with its upper end, as Guo et al. (ICML 2017) cut them.

    >>> by_width(torch.tensor([0.0, 0.5, 0.51, 1.0]), 2)
    tensor([0, 0, 1, 1])
    """
    inner = torch.linspace(0, 1, bins + 1, dtype=confidence.dtype, device=confidence.device)[1:-1]
    return torch.bucketize(confidence, inner)


def by_mass(confidence: Tensor, bins: int) -> Tensor:
    """Bins of equally many images, as near as that can be had while equal confidences stay in one bin.

    >>> by_mass(torch.tensor([0.9, 0.3, 0.8, 0.6]), 2), by_mass(torch.tensor([0.7, 0.7, 0.7]), 3)
    (tensor([1, 0, 1, 0]), tensor([0, 0, 0]))
    """
    below = torch.searchsorted(confidence.sort().values, confidence)
    return below * bins // len(confidence)


def reliability(confidence: Tensor, hits: Tensor, where: Tensor, bins: int) -> Reliability:
    count = where.bincount(minlength=bins)
    right = where[hits].bincount(minlength=bins)
    said = confidence.new_zeros(bins).index_add(0, where, confidence)
    some = count.clamp_min(1)
    return Reliability(count, right, said / some, right / some.to(said.dtype))


def brier(probabilities: Tensor, y: Tensor) -> Tensor:
    """Squared distance of the probabilities (n, classes) from the truth, summed over classes (Brier, 1950), of each
    image (n,): 0 if sure and right, 2 if sure and wrong.

    >>> brier(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 1, 0]))
    tensor([0.0000, 2.0000, 0.5000])
    """
    return (probabilities - F.one_hot(y, probabilities.shape[1])).square().sum(1)
