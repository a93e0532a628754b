"""Losses, mixing, noise, algebra and scores: properties that hold for any input."""

import math

import pytest
import torch

from perdure.ops import gradients, losses, metrics
from perdure.ops.mixup import Mixing, draw_mixing, mix, shift
from perdure.ops.outliers import excess_loss
from perdure.ops.phi import train_phi


def test_uniformity_is_the_mean_over_pairs() -> None:
    z = torch.nn.functional.normalize(torch.randn(7, 4, dtype=torch.float64), dim=1)
    pairs = [math.exp(-2 * float((z[i] - z[j]).square().sum())) for i in range(7) for j in range(i)]
    assert float(losses.uniformity(z)) == pytest.approx(math.log(sum(pairs) / len(pairs)))


def test_distances_from_inner_products_are_those_of_pdist() -> None:
    z = torch.nn.functional.normalize(torch.randn(20, 30, dtype=torch.float64), dim=1).requires_grad_()
    plain = torch.pdist(z).square().mul(-2).exp().mean().log()
    torch.testing.assert_close(losses.uniformity(z), plain)
    torch.testing.assert_close(torch.autograd.grad(losses.uniformity(z), z), torch.autograd.grad(plain, z))


def test_both_readings_of_uniform_alignment() -> None:
    z, mixed = (torch.nn.functional.normalize(torch.randn(5, 3), dim=1) for _ in range(2))
    partner = torch.tensor([1, 2, 3, 4, 0])
    released = losses.alignment(z, mixed) + losses.uniformity(torch.cat([z, mixed]))
    torch.testing.assert_close(losses.released_uniform_alignment(z, mixed), released)
    paper = losses.uniformity(z) + (losses.alignment(z, mixed) + losses.alignment(z[partner], mixed)) / 2
    torch.testing.assert_close(losses.uniform_alignment(z, mixed, partner), paper)


def test_other_temperatures_and_exponents() -> None:
    z, mixed = (torch.nn.functional.normalize(torch.randn(5, 3).double(), dim=1) for _ in range(2))
    partner = torch.tensor([1, 2, 3, 4, 0])
    own, other = (z - mixed).norm(dim=1), (z[partner] - mixed).norm(dim=1)
    for temperature, exponent in ((2.0, 1.0), (3.0, 2.0), (0.5, 3.0)):
        spread = torch.pdist(z).square().mul(-temperature).exp().mean().log()
        paper = spread + ((own**exponent).mean() + (other**exponent).mean()) / 2
        torch.testing.assert_close(losses.uniform_alignment(z, mixed, partner, temperature, exponent), paper)
        released = (own**2).mean() + torch.pdist(torch.cat([z, mixed])).square().mul(-temperature).exp().mean().log()
        torch.testing.assert_close(losses.released_uniform_alignment(z, mixed, temperature), released)


def test_a_single_pair_may_be_closer_than_inner_products_can_tell() -> None:
    """As θ and θ̃ are, when φ is fresh."""
    angle = 1e-5
    pair = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
    assert float(losses.uniformity(pair)) == pytest.approx(-2 * angle**2, rel=1e-5)


def test_mixed_labels_per_sample_and_as_released() -> None:
    logits, y, other = torch.randn(4, 3), torch.tensor([0, 1, 2, 0]), torch.tensor([2, 2, 1, 1])
    share = torch.tensor([0.1, 0.4, 0.9, 0.0], requires_grad=True)
    log_p = logits.log_softmax(1)
    by_hand = -torch.stack([(1 - share[i]) * log_p[i, y[i]] + share[i] * log_p[i, other[i]] for i in range(4)]).mean()
    torch.testing.assert_close(losses.mixed_cross_entropy(logits, y, other, share), by_hand)
    released = losses.released_mixed_cross_entropy(logits, y, other, share)
    weight = float(share.detach().mean())
    swapped = weight * losses.cross_entropy(logits, y) + (1 - weight) * losses.cross_entropy(logits, other)
    torch.testing.assert_close(released, swapped)
    assert not released.requires_grad  # the label weights are constants


def test_mixing_keeps_an_image_with_share_zero_and_takes_the_partner_with_one() -> None:
    x = torch.randn(3, 2, 4, 4)
    mixing = Mixing(torch.tensor([0.0, 1.0, 0.25]), torch.tensor([2, 0, 1]))
    mixed = mix(x, mixing)
    assert torch.equal(mixed[0], x[0])
    assert torch.equal(mixed[1], x[0])
    torch.testing.assert_close(mixed[2], 0.75 * x[2] + 0.25 * x[1])


def test_drawn_shares_follow_the_beta_distribution() -> None:
    torch.manual_seed(0)
    shares = draw_mixing(4000, 20.0, torch.zeros(1)).share
    assert float(shares.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(shares.std()) == pytest.approx(math.sqrt(1 / (4 * 41)), rel=0.05)  # var of Beta(a, a) is 1/(4(2a+1))
    assert sorted(draw_mixing(9, 1.0, torch.zeros(1)).partner.tolist()) == list(range(9))
    for dtype in (torch.float32, torch.float64):  # in which the images are to be mixed
        assert draw_mixing(9, 1.0, torch.zeros(1, dtype=dtype)).share.dtype == dtype


def test_shift_moves_by_the_radius_and_stays_within_bounds() -> None:
    share, slope = torch.tensor([0.5, 0.5, 0.999]), torch.tensor([3.0, -4.0, 12.0])
    moved = shift(share, slope, 0.13)
    torch.testing.assert_close(moved, torch.tensor([0.53, 0.46, 1.0]))
    assert torch.equal(shift(share, torch.zeros(3), 0.05), share)


def test_ascent_has_the_radius_as_its_length() -> None:
    weights = {"a": torch.tensor([1.0]), "b": torch.zeros(1, 1), "c": torch.ones(2)}
    worst = gradients.perturb(weights, {"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}, 0.05)
    torch.testing.assert_close(
        {name: w.detach() for name, w in worst.items()},
        {"a": torch.tensor([1.03]), "b": torch.tensor([[0.04]]), "c": torch.ones(2)},
    )
    assert all(w.requires_grad for w in worst.values())
    flat = gradients.perturb(weights, {"a": torch.zeros(1)}, 0.05)
    assert flat["a"].detach().tolist() == [1]


def test_add_moves_by_value_and_dot_skips_what_is_missing() -> None:
    weights = {"a": torch.ones(2, requires_grad=True), "b": torch.ones(2)}
    moved = gradients.add(weights, {"a": torch.ones(2), "not there": torch.ones(1)})
    assert moved["a"].tolist() == [2, 2]
    assert weights["a"].tolist() == [1, 1]
    assert moved["b"] is weights["b"]
    assert float(gradients.dot(moved, {"a": torch.ones(2)})) == 4


def test_noise_grows_by_itself_and_a_cap_holds_it() -> None:
    torch.manual_seed(0)
    weight, noise = torch.randn(8, 4, 3, 3) * 0.1, torch.randn(8, 4, 3, 3)
    scale = torch.empty_like(weight).uniform_(-1e-3, 1e-3)

    def ratio(**values: float | bool) -> float:
        moved, _ = train_phi(weight, noise, scale, steps=100, rate=0.1, **values)
        return float((moved - weight).norm() / weight.norm())

    assert ratio() > 1
    assert ratio(cap=0.1) == pytest.approx(0.1, rel=1e-4)
    assert ratio(cap=1e6) == pytest.approx(ratio())
    one, _ = train_phi(weight, noise, scale, steps=1, rate=0.1)
    torch.testing.assert_close(one, weight + scale * noise)  # kept before the first update
    last, trained = train_phi(weight, noise, scale, steps=1, rate=0.1, keep_last=True)
    torch.testing.assert_close(last, weight + trained * noise)


def test_a_cap_stops_the_training_of_noise_where_it_is_passed() -> None:
    torch.manual_seed(0)
    weight, noise = torch.randn(8, 4).double(), torch.randn(8, 4).double()
    scale = torch.empty_like(weight).uniform_(-1e-3, 1e-3)
    reached = [train_phi(weight, noise, scale, steps=steps, rate=2.0)[0] - weight for steps in range(1, 60)]
    limit = 0.1 * weight.norm()
    beyond = next(step for step in reached if step.norm() > limit)
    assert limit < beyond.norm() < reached[-1].norm() / 2
    capped, _ = train_phi(weight, noise, scale, steps=60, rate=2.0, cap=0.1)
    torch.testing.assert_close(capped, weight + beyond * limit / beyond.norm())


def test_scores_of_one_lesson_and_of_a_single_row() -> None:
    assert metrics.backward_transfer([[80.0]]) is None
    assert metrics.forgetting([[80.0]]) is None
    assert metrics.learning_accuracy([[80.0], [70.0, 90.0]]) == 85
    joint = [[70.0, 80.0, 90.0]]  # all tasks learned at once
    assert metrics.average_accuracy(joint) == 80
    assert metrics.backward_transfer(joint) is None
    assert metrics.learning_accuracy(joint) is None


def test_excess_loss_is_the_first_order_growth() -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1, 2, 0])
    loss = torch.nn.functional.cross_entropy(x, y, reduction="none")
    (slope,) = torch.autograd.grad(loss.sum(), x)
    shift_by = 1e-6 * torch.randn_like(x)
    after = torch.nn.functional.cross_entropy(x + shift_by, y, reduction="none")
    torch.testing.assert_close(excess_loss(slope, shift_by), after - loss, rtol=1e-4, atol=0)


def test_clip_shortens_what_is_too_long_and_nothing_else() -> None:
    long = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    assert float(gradients.norm(gradients.clip(long, 2.0))) == pytest.approx(2.0, rel=1e-5)
    torch.testing.assert_close(gradients.clip(long, 10.0)["b"], long["b"])
    assert gradients.clip({}, 1.0) == {}
