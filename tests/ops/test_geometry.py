import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.ops.geometry import (
    circle_uniformity,
    class_alignment,
    closer_to_another_class,
    effective_rank,
    foreign_neighbors,
    principal_plane,
    resultant,
    trained_plane,
)
from perdure.ops.losses import alignment, uniformity
from perdure.seeding import generator


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "test geometry"), dtype=torch.float64)


def ring(n: int) -> Tensor:
    """Points evenly on the circle."""
    angles = torch.arange(n, dtype=torch.float64) * (2 * math.pi / n)
    return torch.stack([angles.cos(), angles.sin()], 1)


@pytest.mark.parametrize("measure", [uniformity, circle_uniformity])
@pytest.mark.parametrize("n", [3, 8, 101])
def test_uniformity_of_an_even_ring_is_the_sum_over_its_chords(measure, n: int) -> None:
    chords = [2 - 2 * math.cos(2 * math.pi * k / n) for k in range(1, n)]  # squared, from one point to all others
    expected = math.log(sum(math.exp(-2 * chord) for chord in chords) / (n - 1))
    assert float(measure(ring(n))) == pytest.approx(expected, abs=1e-12)


def test_uniformity_of_the_full_circle_is_a_bessel_function() -> None:
    n = 4096
    limit = math.log(math.exp(-4) * float(torch.special.i0(torch.tensor(4.0, dtype=torch.float64))))
    assert float(circle_uniformity(ring(n))) == pytest.approx(limit, abs=4 / n)
    with_itself = (math.exp(float(circle_uniformity(ring(n)))) * (n - 1) + 1) / n
    assert math.log(with_itself) == pytest.approx(limit, abs=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 2.0, 5.0])
def test_uniformity_by_waves_is_uniformity_by_pairs_and_so_is_its_slope(temperature: float) -> None:
    flat = draw(40, 2).requires_grad_()
    slopes = []
    for measure in (uniformity, circle_uniformity):
        value = measure(F.normalize(flat, dim=1), temperature)
        slopes.append((value.detach(), *torch.autograd.grad(value, flat)))
    torch.testing.assert_close(*slopes, rtol=1e-10, atol=1e-12)


def test_class_alignment_is_alignment_over_all_pairs_of_a_class() -> None:
    z, group = draw(30, 5), torch.arange(30) % 4 * 7  # any numbers will do as names
    first, second = torch.combinations(torch.arange(30)).T
    alike = group[first] == group[second]
    expected = alignment(z[first[alike]], z[second[alike]])
    torch.testing.assert_close(class_alignment(z, group), expected)


def test_class_alignment_of_opposite_and_of_equal_points() -> None:
    z = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, 1]], dtype=torch.float64)
    assert float(class_alignment(z, torch.tensor([0, 0, 1, 1]))) == 2.0  # one pair at 4, one at 0
    assert float(class_alignment(z, torch.tensor([0, 1, 2, 2]))) == 0.0  # alone in a class: no pair


@pytest.mark.parametrize("wide", [False, True])
def test_effective_rank_of_clouds(wide: bool) -> None:
    directions = torch.eye(200 if wide else 6, dtype=torch.float64)[:6]
    axes = torch.cat([directions, -directions])  # as far along each of six directions
    assert float(effective_rank(axes + 3)) == pytest.approx(6)
    line = torch.linspace(-1, 1, 12, dtype=torch.float64)[:, None] * directions[0]
    assert float(effective_rank(line + 3)) == pytest.approx(1, abs=1e-6)
    assert float(effective_rank(torch.full_like(axes, 0.3))) == 0


def test_effective_rank_is_the_entropy_of_singular_values() -> None:
    z = draw(30, 50) * torch.linspace(0.1, 2, 50, dtype=torch.float64) + 1
    shares = torch.linalg.svdvals(z - z.mean(0))
    shares = shares[:-1] / shares[:-1].sum()  # the mean takes one direction of thirty
    assert float(effective_rank(z)) == pytest.approx(math.exp(-float((shares * shares.log()).sum())), rel=1e-6)


def test_overlap_is_nothing_where_classes_are_apart_and_chance_where_they_are_one() -> None:
    classes, n = 5, 2000
    group = torch.arange(n) % classes
    same = draw(n, 8)
    apart = same + 100 * torch.eye(8, dtype=torch.float64)[group]
    assert not closer_to_another_class(apart, group).any()
    assert float(foreign_neighbors(apart, group).max()) == 0
    for share in (closer_to_another_class(same, group).double().mean(), foreign_neighbors(same, group).mean()):
        assert float(share) == pytest.approx(1 - 1 / classes, abs=0.04)


def test_a_point_is_left_out_of_its_own_mean() -> None:
    z = torch.tensor([[0.0], [4.0], [6.9], [7.1]], dtype=torch.float64)
    group = torch.tensor([0, 0, 1, 1])
    # The point at 4 is 3 from the others' mean and 4 from its companion, though 2 from the mean of both.
    assert closer_to_another_class(z, group).tolist() == [False, True, False, False]
    assert (
        len(closer_to_another_class(z, torch.tensor([0, 1, 2, 2]))) == 2
    )  # who is alone in a class has no mean to stray from


def test_as_near_to_another_class_is_not_nearer() -> None:
    z = torch.tensor([[0.0], [2.0], [-2.0], [-2.0]], dtype=torch.float64)
    assert closer_to_another_class(z, torch.tensor([0, 0, 1, 1])).tolist() == [False, False, False, False]


def test_ten_neighbors_are_looked_at() -> None:
    """On a line, six of the first point's ten nearest are of its own class, and none of the others."""
    z = torch.arange(30, dtype=torch.float64)[:, None]
    assert float(foreign_neighbors(z, (torch.arange(30) > 6).long())[0]) == pytest.approx(4 / 10)


def test_foreign_neighbors_by_hand() -> None:
    z = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    assert foreign_neighbors(z, torch.tensor([0, 0, 1]), 1).tolist() == [0.0, 0.0, 1.0]
    assert foreign_neighbors(z, torch.tensor([0, 0, 1]), 10).tolist() == [0.5, 0.5, 1.0]  # there are but two


@pytest.mark.parametrize("n", [20, 400])  # fewer and more points than dimensions
def test_principal_plane_finds_a_planted_one(n: int) -> None:
    planted = torch.linalg.qr(draw(50, 2, seed=1))[0]
    z = draw(n, 2) * torch.tensor([3.0, 1.0]) @ planted.T + 0.01 * draw(n, 50, seed=2)
    plane = principal_plane(z)
    torch.testing.assert_close(plane.T @ plane, torch.eye(2, dtype=torch.float64))
    assert float((planted.T @ plane).det().abs()) == pytest.approx(1, abs=1e-2)
    assert bool(((z @ plane).mean(0) >= 0).all())
    first, second = (z @ plane).square().sum(0)
    assert float(first) > 4 * float(second)  # the longer axis comes first


def test_principal_plane_sees_a_crowd_as_a_crowd() -> None:
    crowd = F.normalize(draw(300, 20) + 20 * torch.eye(20, dtype=torch.float64)[0], dim=1)
    around = F.normalize(draw(300, 20), dim=1)
    lengths = [float(resultant(F.normalize(z @ principal_plane(z), dim=1))) for z in (crowd, around)]
    assert lengths[0] > 0.9
    assert lengths[1] < 0.2


def test_trained_plane_spreads_what_a_random_one_leaves_in_a_crowd() -> None:
    group = torch.arange(120) % 6
    z = F.normalize(2 + draw(6, 10)[group] + 0.2 * draw(120, 10, seed=1), dim=1)
    start, end = (F.normalize(z @ trained_plane(z, group, steps), dim=1) for steps in (0, 60))
    assert float(circle_uniformity(end)) < float(circle_uniformity(start)) - 0.3
    assert float(class_alignment(end, group)) < 0.2
    torch.testing.assert_close(trained_plane(z, group, 5), trained_plane(z, group, 5), rtol=0, atol=0)


def test_trained_plane_is_that_of_torch_s_adam() -> None:
    """Two hundred steps at 0.03 on uniformity over all pairs plus alignment over those of one class."""
    group = torch.arange(24) % 3
    z = F.normalize(1 + draw(3, 6)[group] + 0.3 * draw(24, 6, seed=1), dim=1)
    start = torch.randn(6, 2, generator=generator(0, "plane"), dtype=torch.float64) / math.sqrt(6)
    plane = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([plane], lr=0.03)
    first, second = torch.combinations(torch.arange(24)).T
    alike = group[first] == group[second]
    for _ in range(200):
        circle = F.normalize(z @ plane, dim=1)
        squared = (circle[first] - circle[second]).square().sum(1)
        optimizer.zero_grad()
        (squared.mul(-2).exp().mean().log() + squared[alike].mean()).backward()
        optimizer.step()
    torch.testing.assert_close(trained_plane(z, group, 0), start)
    torch.testing.assert_close(trained_plane(z, group), plane.detach(), rtol=1e-6, atol=1e-6)


def test_resultant() -> None:
    assert float(resultant(ring(7))) == pytest.approx(0, abs=1e-12)
    assert float(resultant(ring(7)[:1].expand(5, 2))) == 1
