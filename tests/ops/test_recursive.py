"""The recursive projector against the recursion itself, input by input, and against the inverse it stands for."""

import pytest
import torch
from torch import Tensor

from perdure.ops.rls import update


def one_by_one(projector: Tensor, inputs: Tensor, regularizer: float) -> Tensor:
    for r in inputs.T:
        k = projector @ r
        projector = projector - torch.outer(k, k) / (regularizer + r @ k)
    return projector


def eye(d: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.eye(d, dtype=dtype)


@pytest.mark.parametrize("n", [1, 5, 12, 40])
@pytest.mark.parametrize("regularizer", [1.0, 1e-2, 1e-5])
def test_all_inputs_at_once_equal_one_after_another(n: int, regularizer: float) -> None:
    torch.manual_seed(n)
    fast = slow = eye(12)
    for _ in range(3):  # the second and third time it does not start from the identity
        inputs = torch.randn(12, n, dtype=torch.float64).relu()
        fast, slow = update(fast, inputs, regularizer), one_by_one(slow, inputs, regularizer)
        torch.testing.assert_close(fast, slow, atol=1e-10, rtol=0)


def test_it_is_the_inverse_of_what_was_seen() -> None:
    """P⁻¹ = I + Σ R Rᵀ/α, however α changes on the way."""
    torch.manual_seed(0)
    projector = information = eye(9)
    for regularizer in (1.0, 0.3, 0.1):
        inputs = torch.randn(9, 4, dtype=torch.float64)
        projector = update(projector, inputs, regularizer)
        information = information + inputs @ inputs.T / regularizer
    torch.testing.assert_close(projector, torch.linalg.inv(information))


def test_order_and_grouping_of_the_inputs_do_not_matter() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(8, 6, dtype=torch.float64)
    at_once = update(eye(8), inputs, 0.1)
    torch.testing.assert_close(update(eye(8), inputs.flip(1), 0.1), at_once)
    torch.testing.assert_close(update(update(eye(8), inputs[:, :2], 0.1), inputs[:, 2:], 0.1), at_once)


def test_a_direction_seen_is_shrunk_by_the_known_factor_and_others_are_left() -> None:
    torch.manual_seed(0)
    r, regularizer = torch.randn(7, 1, dtype=torch.float64), 1e-3
    other = torch.randn(7, 1, dtype=torch.float64)
    other -= r * (r.T @ other) / (r.T @ r)
    projector = update(eye(7), r, regularizer)
    torch.testing.assert_close(projector @ r, r * regularizer / (regularizer + r.T @ r))
    torch.testing.assert_close(projector @ other, other)


def test_float64_keeps_it_positive_where_float32_does_not() -> None:
    torch.manual_seed(0)
    hidden, steps = torch.randn(64, 8, dtype=torch.float64), 400
    lowest = {}
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(1)
        projector = eye(64, dtype)
        for step in range(steps):
            r = (hidden @ torch.randn(8, 1, dtype=torch.float64)).relu()
            projector = update(projector, r, 1e-5 ** (step / steps))
        torch.testing.assert_close(projector, projector.T)
        lowest[dtype] = float(torch.linalg.eigvalsh(projector.double())[0])
    assert lowest[torch.float64] > 0 > lowest[torch.float32]


def test_inputs_that_are_no_numbers_do_not_stop_it() -> None:
    """The loop finds out, and says what to do about it."""
    for n in (1, 9):
        assert update(eye(4), torch.full((4, n), torch.nan), 0.1).isnan().any()
