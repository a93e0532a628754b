"""The test by which one attack is found stronger than another: it passes, warns or fails."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import comb
from typing import Literal

from torch import Tensor

Verdict = Literal["pass", "warn", "fail"]
RANKS: tuple[Verdict, ...] = ("pass", "warn", "fail")
LEAST: dict[Verdict, tuple[float, float]] = {"fail": (0.01, 5.0), "warn": (0.05, 2.0)}  # p at most, points at least


@dataclass(frozen=True)
class SignTest:
    """What a rival attack has over the one that is judged, on the same images."""

    points: float  # percent points of accuracy that it takes in addition
    p: float  # of seeing so many by chance, were both as strong

    def verdict(self, comparisons: int = 1) -> Verdict:
        """How bad it is for the judged attack, as one of so many comparisons (Bonferroni)."""
        for verdict in ("fail", "warn"):
            p, points = LEAST[verdict]
            if self.p * comparisons <= p and self.points >= points:
                return verdict
        return "pass"


def sign_test(judged: Tensor, rival: Tensor) -> SignTest:
    """Exact and one-sided, from the right answers (n,) that each attack leaves.

    >>> import torch
    >>> left, rival_left = torch.tensor([True] * 10), torch.tensor([False] * 5 + [True] * 5)
    >>> sign_test(left, rival_left)
    SignTest(points=50.0, p=0.03125)
    """
    taken, spared = int((judged & ~rival).sum()), int((~judged & rival).sum())
    split = taken + spared
    tail = sum(comb(split, k) for k in range(taken, split + 1))
    return SignTest(100 * (taken - spared) / len(judged), tail / 2**split)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The gravest of some verdicts.

    >>> worst(["pass", "fail", "warn"])
    'fail'
    """
    return max(verdicts, key=RANKS.index)
