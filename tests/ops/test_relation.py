"""Related tasks, scaled weights and joint spaces against slow, obvious twins."""

import pytest
import torch
from torch import Tensor

from perdure.ops.trust_region import joint_space, length_inside, related, scaled


def basis(d: int, k: int) -> Tensor:
    return torch.linalg.qr(torch.randn(d, k, dtype=torch.float64))[0]


def test_length_inside_is_that_of_the_projected_gradient() -> None:
    torch.manual_seed(0)
    gradient, b = torch.randn(5, 3, 2, 2, dtype=torch.float64), basis(12, 4)
    torch.testing.assert_close(length_inside(gradient, b), (gradient.reshape(5, 12) @ b @ b.T).norm())


def test_the_trust_region_is_open_and_the_longest_come_first() -> None:
    gradient, axes = torch.tensor([[4.0, 0.0, 3.0]]), torch.eye(3)  # length 5
    bases = {0: axes[:, :1], 1: axes[:, 1:2], 2: axes[:, 2:]}
    assert related(gradient, bases, most=3, trust=0.6) == [0]  # 3 of 5 is not more than 0.6
    assert related(gradient, bases, most=3, trust=0.59) == [0, 2]
    assert related(gradient, bases, most=1, trust=0.0) == [0]
    assert related(gradient, bases, most=2, trust=0.0) == [0, 2]  # nothing at all is not more than nothing
    assert related(gradient, {7: axes[:, 2:], 3: axes[:, :1]}, most=2, trust=0.0) == [3, 7]  # by number, not by length
    assert related(torch.zeros(1, 3), bases, most=3, trust=0.0) == []
    assert related(gradient, {0: torch.empty(3, 0)}, most=1, trust=0.0) == []


def test_scaling_acts_inside_the_basis_only() -> None:
    torch.manual_seed(0)
    weight, b, scale = torch.randn(4, 3, 2, 2, dtype=torch.float64), basis(12, 5), torch.randn(5, 5).double()
    rows, moved = weight.reshape(4, 12), scaled(weight, [(b, scale)])
    assert moved.shape == weight.shape
    torch.testing.assert_close(moved.reshape(4, 12) @ b, rows @ b @ scale)
    outside = torch.randn(12, 3, dtype=torch.float64)
    outside -= b @ (b.T @ outside)
    torch.testing.assert_close(moved.reshape(4, 12) @ outside, rows @ outside)
    torch.testing.assert_close(scaled(weight, [(b, torch.eye(5).double())]), weight)
    assert torch.equal(scaled(weight, []), weight)


def slow_joint_space(old: Tensor, r: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """One direction at a time, by a full singular value decomposition."""
    u, s, _ = torch.linalg.svd(r - old @ old.T @ r, full_matrices=False)
    ranked = [(float((b @ r).square().sum()), "old", b) for b in old.T]
    ranked += [(float(value**2), "new", column) for value, column in zip(s, u.T, strict=True)]
    ranked.sort(key=lambda entry: -entry[0])
    held, own, new = 0.0, [], []
    for energy, kind, direction in ranked:
        if held >= threshold * float(r.square().sum()):
            break
        held += energy
        own.append(direction)
        new += [direction] if kind == "new" else []
    empty = r.new_empty(0, len(r))
    return (torch.stack(own) if own else empty).T, (torch.stack(new) if new else empty).T


@pytest.mark.parametrize("shape", [(12, 40), (30, 11), (20, 20)])
@pytest.mark.parametrize("threshold", [0.3, 0.9, 0.97, 0.995])
@pytest.mark.parametrize("held", [0, 1, 6])
def test_joint_space_equals_its_slow_twin(shape: tuple[int, int], threshold: float, held: int) -> None:
    torch.manual_seed(shape[0])
    d, n = shape
    r = torch.randn(d, d, dtype=torch.float64) * 0.8 ** torch.arange(d) @ torch.randn(d, n, dtype=torch.float64)
    old = basis(d, held)
    for fast, slow in zip(joint_space(old, r, threshold), slow_joint_space(old, r, threshold), strict=True):
        assert fast.shape == slow.shape
        torch.testing.assert_close(fast @ fast.T, slow @ slow.T, atol=1e-9, rtol=0)
        torch.testing.assert_close(fast.T @ fast, torch.eye(fast.shape[1]).double(), atol=1e-9, rtol=0)


def test_new_directions_come_strongest_first_and_old_ones_only_where_they_are_used() -> None:
    axes = torch.eye(5)
    r = torch.diag(torch.tensor([0.0, 2.0, 1.0, 4.0, 3.0]))  # energies 0, 4 | 1, 16, 9 of 30
    own, new = joint_space(axes[:, :2], r, 0.95)  # 16 + 9 + 4 of 30 are 0.967
    assert own.abs().round().argmax(0).tolist() == [1, 3, 4]
    assert new.abs().round().argmax(0).tolist() == [3, 4]
    own, new = joint_space(axes[:, :2], r, 1.0)
    assert (own.shape[1], new.shape[1]) == (4, 3)  # the direction that holds nothing is left out
    assert joint_space(axes[:, 3:], r, 0.8)[1].shape == (5, 0)


def test_a_layer_that_receives_nothing_has_no_space() -> None:
    own, new = joint_space(torch.eye(4)[:, :1], torch.zeros(4, 6), 0.9)
    assert own.shape == new.shape == (4, 0)
