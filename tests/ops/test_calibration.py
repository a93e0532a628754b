import pytest
import torch
from torch import Tensor

from perdure.ops.calibration import brier, by_mass, by_width, reliability
from perdure.seeding import generator


def error(confidence: Tensor, hits: Tensor, bins: int, cut=by_width) -> float:
    return float(reliability(confidence, hits, cut(confidence, bins), bins).expected_error())


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_two_bins_by_hand() -> None:
    confidence = numbers(0.3, 0.5, 0.8, 0.9, 1.0)
    hits = torch.tensor([True, False, True, True, False])
    found = reliability(confidence, hits, by_width(confidence, 2), 2)
    assert found.count.tolist() == [2, 3]
    assert found.hits.tolist() == [1, 2]
    torch.testing.assert_close(found.confidence, numbers(0.4, 0.9))
    torch.testing.assert_close(found.accuracy, numbers(1 / 2, 2 / 3))
    assert float(found.expected_error()) == pytest.approx(2 / 5 * 0.1 + 3 / 5 * (0.9 - 2 / 3))


@pytest.mark.parametrize("bins", [1, 2, 10, 15])
def test_full_confidence_is_in_the_last_bin_and_edges_belong_below(bins: int) -> None:
    assert by_width(numbers(0.0, 1.0), bins).tolist() == [0, bins - 1]
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:]
    assert by_width(edges, bins).tolist() == list(range(bins))
    assert by_width(edges[:-1] + 1e-9, bins).tolist() == list(range(1, bins))


def test_who_is_as_often_right_as_he_says_has_no_error() -> None:
    confidence = numbers(*[0.25] * 4, *[0.5] * 4, *[1.0] * 4)
    hits = torch.tensor([True, False, False, False, True, True, False, False, True, True, True, True])
    assert error(confidence, hits, 15) == pytest.approx(0, abs=1e-12)
    assert error(confidence, hits, 3, by_mass) == pytest.approx(0, abs=1e-12)
    assert error(confidence, ~hits, 15) == pytest.approx((0.5 + 0 + 1) / 3)


def test_a_constant_answer_errs_by_its_own_distance_from_the_truth() -> None:
    confidence, hits = numbers(*[0.8] * 10), torch.arange(10) < 3
    assert error(confidence, hits, 15) == pytest.approx(0.5)
    assert error(confidence, hits, 15, by_mass) == pytest.approx(0.5)


def test_bins_by_mass_hold_equally_many() -> None:
    confidence = torch.rand(60, generator=generator(0, "test"), dtype=torch.float64) ** 4
    where = by_mass(confidence, 15)
    assert where.bincount().tolist() == [4] * 15
    assert where[confidence.argsort()].tolist() == sorted(where.tolist())


def test_brier_sums_over_classes() -> None:
    right, wrong, even = numbers(0, 1, 0, 0), numbers(1, 0, 0, 0), numbers(0.25, 0.25, 0.25, 0.25)
    found = brier(torch.stack([right, wrong, even]), torch.tensor([1, 1, 1]))
    torch.testing.assert_close(found, numbers(0, 2, 3 / 4))
