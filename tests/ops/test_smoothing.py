"""Bounds and radii of randomized smoothing."""

import math
from fractions import Fraction
from statistics import NormalDist

import pytest
import torch
from scipy.stats import beta

from perdure.ops.smoothing import lower_bound, noisy, radius


@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.5])
@pytest.mark.parametrize(
    ("hits", "n"), [(1, 1), (1, 1000), (7, 10), (99, 100), (100, 100), (501, 1000), (99_000, 100_000)]
)
def test_the_bound_is_clopper_and_pearsons_of_one_side(hits: int, n: int, alpha: float) -> None:
    assert lower_bound(hits, n, alpha) == pytest.approx(beta.ppf(alpha, hits, n - hits + 1), rel=1e-10)


def test_where_all_are_hits_it_is_a_root() -> None:
    assert lower_bound(1000, 1000, 0.001) == pytest.approx(0.001 ** (1 / 1000), rel=1e-12)
    assert lower_bound(0, 1000, 0.001) == 0


def test_so_many_hits_have_the_chance_alpha_there() -> None:
    """Counted out in whole numbers."""
    p = Fraction(lower_bound(17, 20, 0.01))
    chance = sum(math.comb(20, k) * p**k * (1 - p) ** (20 - k) for k in range(17, 21))
    assert float(chance) == pytest.approx(0.01, rel=1e-9)


def test_the_bound_is_wrong_as_seldom_as_it_says() -> None:
    """Over all counts that a true probability of 0.8 gives."""
    wrong = sum(math.comb(50, k) * 0.8**k * 0.2 ** (50 - k) for k in range(51) if lower_bound(k, 50, 0.1) > 0.8)
    assert 0.02 < wrong <= 0.1


def test_a_radius_is_sigma_times_the_quantile() -> None:
    for sigma in (0.12, 0.5):
        assert radius(95, 100, sigma, 0.001) == pytest.approx(
            sigma * NormalDist().inv_cdf(float(beta.ppf(0.001, 95, 6)))
        )
    # Of all 100 000 copies, at σ = 0.5 and α = 0.001: 3.8 σ (Cohen et al., Section 3.2.2).
    assert radius(100_000, 100_000, 1.0, 0.001) == pytest.approx(3.8, abs=0.02)


def test_it_abstains_where_the_class_may_be_the_rarer_one() -> None:
    assert radius(65, 100, 0.5, 0.001) is None  # 0.49
    found = radius(66, 100, 0.5, 0.001)  # 0.50
    assert found is not None
    assert 0 < found < 0.01


def test_noise_is_gaussian_not_clipped_and_the_same_for_the_same_draws() -> None:
    x = torch.tensor([0.0, 1.0]).repeat(3, 8, 4)
    found = noisy(x, 400, 0.25, torch.Generator().manual_seed(1)) - x
    assert found.shape == (400, 3, 8, 8)
    assert float(found.std()) == pytest.approx(0.25, rel=0.01)
    for side in (0, 1):  # black and white
        assert float(found[..., side::2].mean()) == pytest.approx(0, abs=0.005)
    assert torch.equal(noisy(x, 400, 0.25, torch.Generator().manual_seed(1)) - x, found)
    assert noisy(x.double(), 2, 0.25, torch.Generator()).dtype == torch.float64
