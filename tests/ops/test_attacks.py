"""Attacks, on classifiers whose worst case is known, and beside those of other libraries."""

import importlib.util
import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.errors import WrongValue
from perdure.ops import attacks
from perdure.ops import square as squares
from perdure.ops.attacks import Ball, Norm
from perdure.ops.fab import _beyond_the_boundary, fab, fab_cost, to_plane
from perdure.ops.square import _l2_squares, square, square_cost
from perdure.seeding import generator

FREE = (-torch.inf, torch.inf)
NORMS: tuple[Norm, ...] = ("linf", "l2")
Attack = Callable[..., Tensor]


class CountingModel:
    """Any function of images; counts what is asked of it and keeps every batch it was shown."""

    def __init__(self, classify: Callable[[Tensor], Tensor], bounds: tuple[float, float] = FREE) -> None:
        self.classify, self.bounds = classify, bounds
        self.forwards, self.gradients = 0, 0
        self.shown: list[Tensor] = []

    def logits(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        self.shown.append(x)
        return self.classify(x)

    def input_gradient(self, x: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        self.gradients += len(x)
        self.shown.append(x)
        start = x.clone().requires_grad_()
        logits = self.classify(start)
        each = loss(logits)
        (slope,) = torch.autograd.grad(each.sum(), start)
        return logits.detach(), each.detach(), slope


def some(n: int = 40, classes: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Images, labels and the weights of a linear classifier."""
    chance = generator(0, "test", "attacks")
    x = torch.rand(n, 3, 4, 4, generator=chance, dtype=torch.float64)
    weights = torch.randn(classes, 48, generator=chance, dtype=torch.float64)
    y = (x.flatten(1) @ weights.T).argmax(1)
    y[::5] = (y[::5] + 1) % classes  # some are wrong from the start
    return x, y, weights


def linear(weights: Tensor, bounds: tuple[float, float] = FREE) -> CountingModel:
    return CountingModel(lambda x: x.flatten(1) @ weights.T, bounds)


def leads(weights: Tensor, y: Tensor) -> Tensor:
    """w_y − w_k of each image and class (n, classes, d)."""
    return weights[y][:, None] - weights[None]


def margins(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """By how much the right class leads each other one (n, classes); infinitely much itself."""
    each = torch.einsum("nkd,nd->nk", leads(weights, y), x.flatten(1))
    return each.scatter(1, y[:, None], torch.inf)


def dual(way: Tensor, norm: Norm) -> Tensor:
    return way.abs().sum(-1) if norm == "linf" else way.norm(dim=-1)


def chance() -> torch.Generator:
    return generator(0, "test", "chance")


def size(way: Tensor, norm: Norm) -> Tensor:
    return way.abs().flatten(1).amax(1) if norm == "linf" else way.flatten(1).norm(dim=1)


ALL: dict[str, Attack] = {
    "fgsm": attacks.fgsm,
    "pgd": lambda *on: attacks.pgd(*on, steps=5, restarts=2, rng=chance()),
    "apgd ce": lambda *on: attacks.apgd(*on, steps=10, rng=chance()),
    "apgd dlr": lambda *on: attacks.apgd(*on, loss="dlr", steps=10, rng=chance()),
    "apgd-t": lambda *on: attacks.apgd_targeted(*on, targets=3, steps=10, rng=chance()),
    "fab": lambda *on: fab(*on, targets=3, steps=10),
    "square": lambda *on: square(*on, queries=30, rng=chance()),
    "noise": lambda model, x, y, ball: attacks.noise(x, ball, model.bounds, chance()),  # noqa: ARG005
}


@pytest.mark.parametrize("norm", NORMS)
def test_two_linear_classes_lose_exactly_the_radius_times_the_dual_length(norm: Norm) -> None:
    x, y, weights = some(classes=2)
    ball = Ball(norm, 0.05)
    rows, other = torch.arange(len(y)), 1 - y
    least = margins(x, y, weights)[rows, other] - 0.05 * dual(weights[0] - weights[1], norm)
    for name, attack in {
        "fgsm": attacks.fgsm,
        "pgd": lambda *on: attacks.pgd(*on, rng=None),
        "random pgd": lambda *on: attacks.pgd(*on, steps=100, rate=0.05, rng=chance()),
        "apgd": lambda *on: attacks.apgd(*on, steps=100, rng=chance()),
        "apgd-t": lambda *on: attacks.apgd_targeted(*on, steps=100, rng=chance()),
    }.items():
        found = margins(attack(linear(weights), x, y, ball), y, weights)[rows, other]
        torch.testing.assert_close(found, least, rtol=0, atol=1e-9 if norm == "linf" else 1e-6, msg=name)


def test_within_bounds_two_linear_classes_reach_the_worst_corner() -> None:
    x, y, weights = some(classes=2)
    uphill = (weights[1 - y] - weights[y]).view_as(x).sign()
    corner = (x + 0.3 * uphill).clamp(0, 1)
    torch.testing.assert_close(attacks.fgsm(linear(weights, (0, 1)), x, y, Ball("linf", 0.3)), corner)
    torch.testing.assert_close(attacks.pgd(linear(weights, (0, 1)), x, y, Ball("linf", 0.3), rng=chance()), corner)


@pytest.mark.parametrize("norm", NORMS)
def test_many_linear_classes_no_attack_beats_the_worst_case_and_the_strong_ones_reach_it(norm: Norm) -> None:
    x, y, weights = some()
    ball = Ball(norm, 0.02 if norm == "linf" else 0.15)
    least = (margins(x, y, weights) - ball.radius * dual(leads(weights, y), norm)).amin(1)
    hopeless = least < 0
    assert 10 < int(hopeless.sum()) < 35  # neither all nor none, or nothing is tested
    for name, attack in ALL.items():
        found = margins(attack(linear(weights), x, y, ball), y, weights).amin(1)
        assert bool((found >= least - 1e-9).all()), name
    for attack in (
        lambda *on: attacks.pgd(*on, steps=50, restarts=5, rng=chance()),
        lambda *on: attacks.apgd(*on, steps=50, restarts=2, rng=chance()),
        lambda *on: attacks.apgd(*on, loss="dlr", steps=50, restarts=2, rng=chance()),
        lambda *on: attacks.apgd_targeted(*on, steps=20, rng=chance()),
        lambda *on: fab(*on, steps=20),
    ):
        found = margins(attack(linear(weights), x, y, ball), y, weights).amin(1)
        clear = least.abs() > 0.05  # the highest loss is not quite the least margin
        torch.testing.assert_close((found < 0)[clear], hopeless[clear])


@pytest.mark.parametrize("norm", NORMS)
def test_apgd_finds_at_least_the_loss_that_pgd_finds(norm: Norm) -> None:
    x, y, weights = some()
    bends = torch.randn(48, 30, generator=chance(), dtype=torch.float64)
    curved = CountingModel(lambda x: 3 * torch.tanh((x.flatten(1) - 0.5) @ bends) @ weights[:, :30].T, (0, 1))
    ball = Ball(norm, 0.03 if norm == "linf" else 0.2)
    by_pgd = attacks.pgd(curved, x, y, ball, steps=50, rng=chance())
    by_apgd = attacks.apgd(curved, x, y, ball, steps=50, rng=chance())
    loss = [float(F.cross_entropy(curved.logits(moved), y)) for moved in (x, by_pgd, by_apgd)]
    assert loss[0] < loss[1] < loss[2]


@pytest.mark.parametrize("norm", NORMS)
def test_apgd_halves_its_stride_until_it_stands_on_the_top(norm: Norm) -> None:
    x, y, _ = some(8)
    top = Ball(norm, 0.05).uniform(x, FREE, chance())
    hill = CountingModel(lambda x: torch.stack([-(x - top).square().flatten(1).sum(1), torch.zeros(len(x))], 1))
    moved = attacks.apgd(hill, x, torch.ones_like(y), Ball(norm, 0.1), steps=100, rng=chance())
    assert float(size(moved - top, norm).max()) < 0.01


def test_apgd_takes_a_quarter_of_each_step_from_the_step_before() -> None:
    x, y, _ = some(8)
    ball = Ball("linf", 0.1)
    top = ball.uniform(x, FREE, generator(0, "top"))
    hill = CountingModel(lambda x: torch.stack([-(x - top).square().flatten(1).sum(1), torch.zeros(len(x))], 1))
    attacks.apgd(hill, x, torch.ones_like(y), ball, steps=100, rng=chance())
    _, start, one, two, *_ = hill.shown
    torch.testing.assert_close(one, x + (start - x + 0.2 * (top - start).sign()).clamp(-0.1, 0.1))
    ahead = x + (one - x + 0.2 * (top - one).sign()).clamp(-0.1, 0.1)
    torch.testing.assert_close(two, x + (0.75 * ahead + 0.5 * one - 0.25 * start - x).clamp(-0.1, 0.1))


def test_the_square_attack_comes_near_the_worst_case_without_a_gradient() -> None:
    x, y, weights = some(classes=2)
    least = 0.05 * dual(weights[0] - weights[1], "linf")
    model = linear(weights)
    moved = square(model, x, y, Ball("linf", 0.05), queries=400, rng=chance())
    rows, other = torch.arange(len(y)), 1 - y
    lost = (margins(x, y, weights) - margins(moved, y, weights))[rows, other]
    assert model.gradients == 0
    assert float(lost.mean()) > 0.8 * float(least)
    moved = square(model, x, y, Ball("l2", 0.2), queries=400, rng=chance())
    lost = (margins(x, y, weights) - margins(moved, y, weights))[rows, other]
    assert float(lost.mean()) > 0.5 * 0.2 * float(dual(weights[0] - weights[1], "l2"))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ALL)
def test_images_stay_in_the_ball_and_in_the_bounds(name: str, norm: Norm) -> None:
    x, y, weights = some()
    model = linear(weights, (0, 1))
    moved = ALL[name](model, x, y, Ball(norm, 0.3))
    assert moved.shape == x.shape
    for shown in (moved, *(model.shown if name != "fab" else [])):  # FAB looks for wrong answers outside, too
        assert float(size(shown - x, norm).max()) <= 0.3 + 1e-12
        torch.testing.assert_close(shown, shown.clamp(0, 1), rtol=0, atol=0)
    assert float(size(moved - x, norm).max()) > (0.05 if name == "fab" else 0.1)  # FAB goes no further than it must


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ALL)
def test_a_flat_loss_moves_nothing_to_nowhere(name: str, norm: Norm) -> None:
    x, y, weights = some()
    moved = ALL[name](linear(0 * weights.float(), (0, 1)), x.float(), y, Ball(norm, 0.1))
    assert bool(torch.isfinite(moved).all())
    still = ALL[name](linear(weights), x, y, Ball(norm, 0.0))
    torch.testing.assert_close(still, x, rtol=0, atol=0)


def test_the_steepest_direction_has_unit_length_however_faint_the_slope() -> None:
    x, _, _ = some()
    for scale in (1.0, 1e-30, 1e30):
        torch.testing.assert_close(size(Ball("l2", 1).steepest(scale * x.float()), "l2"), torch.ones(len(x)))
    assert float(Ball("l2", 1).steepest(torch.zeros(2, 3, 4, 4)).abs().max()) == 0


def test_the_ball_is_filled_evenly() -> None:
    start = torch.zeros(4000, 1, 1, 2, dtype=torch.float64)
    flat = Ball("linf", 0.5).uniform(start, FREE, chance())
    assert float(flat.abs().max()) <= 0.5
    assert float(flat.square().mean()) == pytest.approx(0.5**2 / 3, rel=0.05)
    round_ = size(Ball("l2", 0.5).uniform(start, FREE, chance()), "l2")
    assert float(round_.max()) <= 0.5
    assert float(round_.square().mean()) == pytest.approx(0.5**2 / 2, rel=0.05)  # of a disc
    again = Ball("l2", 0.5).uniform(start, FREE, chance())
    torch.testing.assert_close(size(again, "l2"), round_)


def test_noise_has_full_size() -> None:
    x, _, _ = some()
    torch.testing.assert_close((attacks.noise(x, Ball("linf", 0.1), FREE, chance()) - x).abs(), torch.full_like(x, 0.1))
    way = attacks.noise(x, Ball("l2", 0.1), FREE, chance()) - x
    torch.testing.assert_close(size(way, "l2"), torch.full((40,), 0.1, dtype=torch.float64))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["pgd", "apgd ce", "apgd dlr", "apgd-t", "fab", "square"])
def test_of_a_coupled_batch_the_worst_that_was_looked_at_is_returned(name: str, norm: Norm) -> None:
    x, y, weights = some()

    def coupled(x: Tensor) -> Tensor:
        each = x.flatten(1)
        return F.batch_norm(each @ weights.T, None, None, training=True) * (1 + each.mean())

    model = CountingModel(coupled, (0, 1))
    moved = ALL[name](model, x, y, Ball(norm, 0.02 if norm == "linf" else 0.15))
    hits = [int((coupled(shown).argmax(1) == y).sum()) for shown in model.shown]
    own = [shown for shown in model.shown if torch.equal(shown, moved)]
    assert own, "never looked at as a whole"
    if name == "pgd":
        hits = [hits[0], hits[-1]]  # not its steps
    if name == "fab":  # those in the ball
        radius = 0.02 if norm == "linf" else 0.15
        inside = [float(size(shown - x, norm).max()) <= radius + 1e-12 for shown in model.shown]
        hits = [count for count, near in zip(hits, inside, strict=True) if near]
    assert int((coupled(moved).argmax(1) == y).sum()) == min(hits) < hits[0]


@pytest.mark.parametrize("name", ["pgd", "apgd ce"])
def test_the_worst_of_each_image_may_be_harmless_together(name: str) -> None:
    """All answers are 1 once the mean of the whole batch is high enough: only if all images move up."""
    x = torch.full((40, 3, 4, 4), 0.5, dtype=torch.float64)
    y = torch.cat([torch.zeros(30, dtype=torch.int64), torch.ones(10, dtype=torch.int64)])
    model = CountingModel(lambda x: torch.stack([torch.zeros(len(x)), (x.mean() - 0.58).expand(len(x))], 1).double())
    moved = ALL[name](model, x, y, Ball("linf", 0.1))
    assert int((model.classify(moved).argmax(1) == y).sum()) == 10


@pytest.mark.parametrize(
    ("attack", "cost"),
    [
        (attacks.fgsm, (0, 1)),
        (lambda *on: attacks.pgd(*on, steps=3, restarts=2, rng=chance()), attacks.pgd_cost(3, 2)),
        (lambda *on: attacks.apgd(*on, steps=7, restarts=2, rng=chance()), attacks.pgd_cost(7, 2)),
        (
            lambda *on: attacks.apgd_targeted(*on, steps=3, restarts=2, targets=3, rng=chance()),
            attacks.apgd_targeted_cost(3, 2, 3),
        ),
        (lambda *on: attacks.apgd_targeted(*on, steps=2, rng=chance()), attacks.apgd_targeted_cost(2, 1, 4)),
        (lambda *on: fab(*on, steps=3, targets=2), fab_cost(3, 2)),
        (lambda *on: fab(*on, steps=2), fab_cost(2, 4)),
        (lambda *on: square(*on, queries=9, rng=chance()), square_cost(9)),
    ],
)
@pytest.mark.parametrize("norm", NORMS)
def test_attacks_take_what_they_say(attack: Attack, cost: tuple[int, int], norm: Norm) -> None:
    x, y, weights = some()
    model = linear(weights)
    attack(model, x, y, Ball(norm, 0.1))
    assert (model.forwards, model.gradients) == (40 * cost[0], 40 * cost[1])


def test_dlr_needs_three_classes_and_does_not_mind_the_scale() -> None:
    x, y, weights = some(classes=2)
    with pytest.raises(WrongValue, match="use ce"):
        attacks.apgd(linear(weights), x, y, Ball("linf", 0.1), loss="dlr", rng=chance())
    logits = torch.tensor([[4.0, 1.0, 2.0, 0.0]], dtype=torch.float64)
    for scale in (1, 1e4):
        assert float(attacks.logits_ratio(scale * logits, torch.tensor([0]))) == pytest.approx(-(4 - 2) / (4 - 1))
        assert float(attacks.logits_ratio(scale * logits, torch.tensor([1]))) == pytest.approx((4 - 1) / (4 - 1))


# --- towards one class after another ---


def test_targets_are_the_most_likely_wrong_classes() -> None:
    logits = torch.tensor([[4.0, 1.0, 3.0, 2.0], [4.0, 1.0, 3.0, 2.0]])
    y = torch.tensor([0, 2])  # the second is answered wrong
    assert [target.tolist() for target in attacks.wrong_classes(logits, y, 9)] == [[2, 0], [3, 3], [1, 1]]
    assert [target.tolist() for target in attacks.wrong_classes(logits, y, 1)] == [[2, 0]]


def test_the_targeted_ratio_grows_with_the_target_and_does_not_mind_the_scale() -> None:
    logits = torch.tensor([[4.0, 1.0, 2.0, 0.0, 3.0]], dtype=torch.float64)
    spread = 4 - (2 + 1) / 2  # the first but the mean of the third and the fourth
    for scale in (1, 1e4):
        for right, target, told in ((0, 3, -4), (0, 4, -1), (3, 1, 1)):
            found = attacks.targeted_ratio(scale * logits, torch.tensor([right]), torch.tensor([target]))
            assert float(found) == pytest.approx(told / spread)
    few = attacks.targeted_ratio(logits[:, :3], torch.tensor([0]), torch.tensor([1]))
    assert float(few) == 1 - 4  # the difference alone


def test_apgd_goes_for_one_target_after_another() -> None:
    """Of three linear classes, where the loss is the difference of logits, each run takes from the lead over its own
    target all that there is to take."""
    x, y, weights = some(classes=3)
    model = linear(weights)
    attacks.apgd_targeted(model, x, y, Ball("linf", 0.05), steps=50, rng=chance())
    runs, rows = torch.stack(model.shown[2:-1]).unflatten(0, (2, 51)), torch.arange(len(y))
    for run, target in zip(runs, attacks.wrong_classes(model.classify(x), y, 2), strict=True):
        least = margins(x, y, weights)[rows, target] - 0.05 * dual(weights[y] - weights[target], "linf")
        found = torch.stack([margins(point, y, weights)[rows, target] for point in run]).amin(0)
        torch.testing.assert_close(found, least, rtol=0, atol=1e-9)


def test_whatever_the_target_the_least_lead_of_each_image_is_kept() -> None:
    x, y, weights = some()
    model = linear(weights)
    moved = attacks.apgd_targeted(model, x, y, Ball("linf", 0.02), targets=3, steps=10, rng=chance())
    leads_seen = torch.stack([margins(shown, y, weights).amin(1) for shown in model.shown])
    torch.testing.assert_close(margins(moved, y, weights).amin(1), leads_seen.amin(0), rtol=0, atol=0)


# --- FAB ---


@pytest.mark.parametrize("norm", NORMS)
def test_fab_finds_how_far_the_boundary_is(norm: Norm) -> None:
    """Of linear classes within a percent; images that are wrong as they are stay where they are."""
    x, y, weights = some()
    each = margins(x, y, weights) / dual(leads(weights, y), norm).scatter(1, y[:, None], 1)
    ball = Projected(norm, 0.02 if norm == "linf" else 0.15)
    moved = fab(linear(weights), x, y, ball, steps=20)
    far = size(ball.given[-1] - x, norm)
    told = each.amin(1).clamp_min(0)
    assert bool((far >= told - 1e-12).all())
    assert bool((far <= 1.01 * told).all())
    torch.testing.assert_close(margins(moved, y, weights).amin(1) > 0, far > ball.radius)
    assert float(size(moved - x, norm).max()) == pytest.approx(ball.radius)  # what is farther is brought into the ball


class Projected(Ball):
    """Keeps what it was asked to bring into the ball."""

    def __init__(self, norm: Norm, radius: float) -> None:
        super().__init__(norm, radius)
        object.__setattr__(self, "given", [])

    def project(self, moved: Tensor, start: Tensor, bounds: attacks.Bounds) -> Tensor:
        self.given.append(moved)  # type: ignore[attr-defined]
        return super().project(moved, start, bounds)


def test_a_step_of_fab_is_that_of_the_paper() -> None:
    """Two classes, no bounds: both projections are known, and so are the bias, the overshoot and the way back."""
    x, _, weights = some(6, classes=2)
    y = (x.flatten(1) @ weights.T).argmax(1)
    model = linear(weights)
    fab(model, x, y, Ball("l2", 1.0), steps=2)
    _, _, _, first, back, second, *_ = model.shown
    normal = (weights[1 - y] - weights[y]).view_as(x)
    length = normal.square().flatten(1).sum(1).view(-1, 1, 1, 1)

    def to_boundary(at: Tensor) -> Tensor:
        return -(normal * at).flatten(1).sum(1).view(-1, 1, 1, 1) / length * normal

    torch.testing.assert_close(first, x + 1.05 * to_boundary(x))
    torch.testing.assert_close(back, x + 0.9 * (first - x))
    one, other = (size(to_boundary(at), "l2").view(-1, 1, 1, 1) for at in (back, x))
    alpha = (one / (one + other)).clamp_max(0.1)
    assert 0 < float(alpha.min()) < 0.1  # or the bias is never less than the most
    told = (1 - alpha) * (back + 1.05 * to_boundary(back)) + alpha * (x + 1.05 * to_boundary(x))
    torch.testing.assert_close(second, told)


def test_however_far_fab_went_a_tenth_of_its_step_begins_at_the_image() -> None:
    x, _, _ = some(1)
    here, normal = x.roll(1, 3), torch.ones_like(x)
    ahead = normal.sum().view(1)  # the boundary is one off at every pixel, from here as from the image
    step = _beyond_the_boundary(here, x, ahead, normal, Ball("linf", 1.0), FREE)
    torch.testing.assert_close(step, 0.9 * (here - 1.05) + 0.1 * (x - 1.05))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bounds", [(0.0, 1.0), FREE])
def test_the_way_to_a_plane_is_the_shortest_within_the_bounds(norm: Norm, bounds: tuple[float, float]) -> None:
    """As bisection finds it, pixel by pixel; where no way leads to the plane, all pixels end at their bounds."""
    rng = chance()
    x = torch.rand(30, 1, 3, 3, generator=rng, dtype=torch.float64)
    slope = torch.randn(x.shape, generator=rng, dtype=torch.float64)
    slope[::3, :, 0] = 0
    height = torch.linspace(-4, 4, 30, dtype=torch.float64)
    found = to_plane(x, slope, height, norm, bounds)
    blocked = 0
    for image, way, at, change in zip(x.flatten(1), slope.flatten(1), height.tolist(), found.flatten(1), strict=True):
        uphill = -math.copysign(1, at) * way
        pace = uphill.sign() if norm == "linf" else uphill

        def after(time: float) -> Tensor:
            return (image + time * pace).clamp(*bounds) - image  # noqa: B023

        low, high = 0.0, 1e6
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (low, middle) if float((uphill * after(middle)).sum()) >= abs(at) else (middle, high)
        torch.testing.assert_close(change, after(high), rtol=0, atol=1e-9)
        blocked += high == 1e6
    assert (blocked > 0) == (bounds == (0.0, 1.0))
    nowhere = to_plane(x, 0 * slope, height, norm, bounds)
    torch.testing.assert_close(nowhere, torch.zeros_like(x), rtol=0, atol=0)


# --- answers that depend on chance ---


class Shaken(CountingModel):
    """A linear classifier whose weights are others at every pass: now too much, now too little."""

    def __init__(self, weights: Tensor, noise: float) -> None:
        rng = chance()
        super().__init__(
            lambda x: x.flatten(1) @ (weights + noise * torch.randn(weights.shape, generator=rng).to(weights)).T, (0, 1)
        )


def test_means_are_taken_of_so_many_passes() -> None:
    x, y, weights = some()
    draws = iter([weights, 3 * weights, weights, 3 * weights])
    model = CountingModel(lambda x: x.flatten(1) @ next(draws).T, (0, 1))
    mean = attacks.MeanOverPasses(model, 2)
    torch.testing.assert_close(mean.logits(x), 2 * x.flatten(1) @ weights.T)
    logits, loss, gradient = mean.input_gradient(x, lambda logits: logits.gather(1, y[:, None])[:, 0].square())
    own = (x.flatten(1) @ weights.T).gather(1, y[:, None])[:, 0]
    torch.testing.assert_close(logits, 2 * x.flatten(1) @ weights.T)
    torch.testing.assert_close(loss, (1 + 9) / 2 * own.square())
    torch.testing.assert_close(gradient.flatten(1), (1 + 9) * own[:, None] * weights[y])
    assert (model.forwards, model.gradients, mean.bounds) == (2 * len(x), 2 * len(x), (0, 1))


def test_on_average_gradients_lead_where_those_of_one_pass_do_not() -> None:
    x, y, weights = some()
    ball, still = Ball("linf", 0.05), linear(weights, (0, 1))

    def lead(model: attacks.Classifier) -> float:
        moved = attacks.pgd(model, x, y, ball, steps=5, rng=None)
        return float(margins(moved, y, weights).amin(1).mean())

    shaken = Shaken(weights, 3.0)
    one, many, best = lead(shaken), lead(attacks.MeanOverPasses(shaken, 100)), lead(still)
    assert best < many < one
    assert many - best < (one - best) / 2


@pytest.mark.parametrize("radius", [-0.1, float("nan"), float("inf")])
def test_a_radius_that_is_none_is_refused(radius: float) -> None:
    with pytest.raises(WrongValue, match="strength"):
        Ball("linf", radius)


# --- the Square attack, step by step ---


def changes(model: CountingModel, x: Tensor) -> list[Tensor]:
    """How far each query was from the images; neither the images themselves nor the batch put together at the end."""
    return [shown - x for shown in model.shown[1:-1]]


@pytest.mark.parametrize("norm", NORMS)
def test_squares_shrink_as_in_the_paper(norm: Norm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the area after 10, 50, 200, … of 10000 queries, beginning with 0.8 of the image."""
    sides = []

    def spy(here: Tensor, x: Tensor, radius: float, side: int, rng: torch.Generator) -> Tensor:  # noqa: ARG001
        sides.append(side)
        return here

    monkeypatch.setattr(squares, "_linf_squares" if norm == "linf" else "_l2_squares", spy)
    x, y = torch.full((2, 1, 32, 32), 0.5), torch.zeros(2, dtype=torch.int64)
    square(linear(torch.zeros(2, 1024)), x, y, Ball(norm, 0.1), queries=1000, rng=chance())
    until = {1: 29, 5: 20, 20: 14, 50: 10, 100: 7, 200: 5, 400: 4, 600: 3, 800: 2, 999: 1}  # query → √(0.8 · 32² / 2ᵏ)
    expected = [next(side for last, side in until.items() if query <= last) for query in range(1, 1000)]
    assert sides == [max(side, 1 if norm == "linf" else 3) for side in expected]


def test_stripes_are_vertical_and_squares_are_always_at_the_edge_of_the_ball() -> None:
    x, y, weights = some()
    model = linear(weights)
    square(model, x, y, Ball("linf", 0.1), queries=30, rng=chance())
    stripes, *squares = changes(model, x)
    torch.testing.assert_close(stripes, stripes[:, :, :1].expand_as(stripes))
    assert bool((stripes.sign() != stripes[..., :1].sign()).any())
    for change in (stripes, *squares):
        torch.testing.assert_close(change.abs(), torch.full_like(x, 0.1))


def test_a_square_that_changes_nothing_is_not_kept() -> None:
    """All of them, where the loss is flat: every query differs from the stripes by one square alone."""
    x, y, weights = some()
    model = linear(0 * weights)
    square(model, x, y, Ball("linf", 0.1), queries=40, rng=chance())
    stripes, *squares = changes(model, x)
    for change in squares[-20:]:  # whose side is one pixel: √(0.8 · 4² / 2⁵) and less
        assert int((change.sign() != stripes.sign()).any(1).flatten(1).sum(1).max()) == 1


def hill(height: int, width: int) -> Tensor:
    """Eq. 3 of the paper, place by place; rows and columns are counted from 1."""
    n = height // 2
    rows = []
    for r in range(1, height + 1):
        far = [max(abs(r - height // 2 - 1), abs(s - width // 2 - 1)) for s in range(1, width + 1)]
        rows.append([sum(1 / (n + 1 - k) ** 2 for k in range(n - distance + 1)) for distance in far])
    return torch.tensor(rows, dtype=torch.float64)


def hills(side: int) -> Tensor:
    """One beside another of opposite sign, of length 1."""
    both = torch.cat([hill(side, side // 2), -hill(side, side - side // 2)], 1)
    return both / both.norm()


def test_l2_begins_with_five_by_five_tiles() -> None:
    x = torch.full((6, 3, 15, 15), 0.5, dtype=torch.float64)
    model = CountingModel(lambda x: x.flatten(1)[:, :2])
    square(model, x, torch.zeros(6, dtype=torch.int64), Ball("l2", 0.7), queries=1, rng=chance())
    (change,) = changes(model, x)
    tiles = change.unfold(2, 3, 3).unfold(3, 3, 3).flatten(0, 3)
    lengths = (tiles * hills(3)).sum((1, 2))
    torch.testing.assert_close(tiles, lengths.view(-1, 1, 1) * hills(3))  # all of one shape
    torch.testing.assert_close(lengths.abs(), torch.full_like(lengths, 0.7 / math.sqrt(3 * 25)))  # and of one size
    assert 0.3 < float((lengths > 0).double().mean()) < 0.7


@pytest.mark.parametrize("turned", [False, True])
def test_l2_moves_change_from_one_window_into_another(turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alg. 3 of the paper, channel by channel, with windows, signs and turn that are known."""
    x = torch.full((1, 2, 9, 9), 0.5, dtype=torch.float64)
    change = 0.1 * torch.randn(x.shape, generator=chance(), dtype=torch.float64)
    radius = 2 * float(change.norm())
    places = [(1, 2), (3, 4)]  # rows and columns where windows of 4 begin; they overlap
    order = iter(places)

    def window(x: Tensor, side: int, rng: torch.Generator) -> Any:  # noqa: ARG001
        top, left = next(order)
        return slice(None), slice(None), slice(top, top + side), slice(left, left + side)

    monkeypatch.setattr(squares, "_windows", window)
    monkeypatch.setattr(squares, "random_signs", lambda x, shape, rng: x.new_tensor([1.0, -1.0]).view(shape))  # noqa: ARG005
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.full(size[0], 0.7 if turned else 0.2))
    found = _l2_squares(x + change, x, radius, 4, chance()) - x
    to, off = ((slice(top, top + 4), slice(left, left + 4)) for top, left in places)
    pattern = hills(4).T if turned else hills(4)
    for channel, sign in ((0, 1.0), (1, -1.0)):
        old = change[0, channel]
        new = old.clone()
        new[off] = 0
        new[to] = 0
        fresh = sign * pattern + old[to] / old[to].norm()
        budget = float(old.square().sum() - new.square().sum()) + (radius**2 - float(change.square().sum())) / 2
        new[to] = fresh / fresh.norm() * math.sqrt(budget)
        torch.testing.assert_close(found[0, channel], new)
    assert float(found.norm()) == pytest.approx(radius)  # the whole radius is used again


# --- other libraries, as benchmarks/attack_vectors.py has recorded them ---

FOLDER = Path(__file__).parent
found = importlib.util.spec_from_file_location("attack_vectors", FOLDER.parents[1] / "benchmarks" / "attack_vectors.py")
assert found is not None
assert found.loader is not None
recipe = importlib.util.module_from_spec(found)
found.loader.exec_module(recipe)

VECTORS: list[dict[str, Any]] = json.loads((FOLDER / "attack_vectors.json").read_text("utf-8"))["vectors"]


def recorded(*kinds: str) -> Any:
    """A test for each vector of these attacks."""
    some = [vector for vector in VECTORS if vector["attack"] in kinds]
    assert some
    return pytest.mark.parametrize("vector", some, ids=lambda one: f"{one['library']} {one['attack']} {one['norm']}")


@cache
def attacked() -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    return recipe.model(), *recipe.images()


def ball_of(vector: dict[str, Any]) -> Ball:
    return Ball(vector["norm"], recipe.RADIUS[vector["norm"]])


def test_what_was_attacked_is_made_again() -> None:
    """The model and the images are those of the record: else nothing below means anything."""
    clean = json.loads((FOLDER / "attack_vectors.json").read_text("utf-8"))["clean"]
    _, x, _ = attacked()
    assert recipe.right(x) == clean["right"] == 90
    assert recipe.losses(x).tolist() == pytest.approx(clean["loss"], rel=1e-8)


@recorded("fgsm", "pgd")
def test_pixels_are_those_of_other_libraries(vector: dict[str, Any]) -> None:
    """To 1e-6, and all losses to 1e-5: ART computes in single precision."""
    model, x, y = attacked()
    on, ball = CountingModel(model, (0, 1)), ball_of(vector)
    if vector["attack"] == "fgsm":
        moved = attacks.fgsm(on, x, y, ball)
    else:
        moved = attacks.pgd(on, x, y, ball, steps=recipe.STEPS, rate=recipe.RATE[ball.norm], rng=None)
    pixels = torch.tensor(vector["pixels"], dtype=torch.float64)
    torch.testing.assert_close(moved[: len(pixels)].flatten(1), pixels, rtol=0, atol=1e-6)
    assert recipe.losses(moved).tolist() == pytest.approx(vector["loss"], abs=1e-5)
    assert recipe.right(moved) == vector["right"]


class GivenStart(Ball):
    """Whose random points are those of the recipe."""

    def uniform(self, start: Tensor, bounds: attacks.Bounds, rng: torch.Generator) -> Tensor:  # noqa: ARG002
        points: Tensor = recipe.starts(self.norm)
        return points[: len(start)]


@recorded("apgd-ce", "apgd-dlr")
def test_apgd_climbs_as_high_as_autoattack_from_the_same_starts(vector: dict[str, Any]) -> None:
    """Image by image, to 1e-6, for nine in ten: AutoAttack counts a rise from the point before a jump, not from where
    it jumped to, and halves the step at ρ exactly; the paper says otherwise. By cross-entropy, the others are within
    0.2 %; the ratio of logits has poles, and is compared where the answer stays right."""
    model, x, y = attacked()
    on, loss = CountingModel(model, (0, 1)), vector["settings"]["loss"]
    ball = GivenStart(vector["norm"], recipe.RADIUS[vector["norm"]])
    moved = attacks.apgd(on, x, y, ball, loss=loss, steps=recipe.AUTO_STEPS, rng=chance())

    def height(points: Tensor) -> Tensor:
        if loss == "ce":
            return F.cross_entropy(model(points), y, reduction="none")
        logits = model(points)
        first, second, third = logits.sort(descending=True).values[:, :3].T
        own = logits.gather(1, y[:, None])[:, 0]
        return -(own - torch.where(own == first, second, first)) / (first - third)

    highest = torch.stack([height(points) for points in on.shown[1:]]).amax(0)
    theirs = torch.tensor(vector["loss"], dtype=torch.float64)
    apart = (highest - theirs).abs() / (1 + theirs.abs())
    assert int((apart < 1e-6).sum()) >= 90
    assert loss == "dlr" or float(apart.max()) < 0.002
    assert recipe.right(moved) == vector["right"]
    robust = model(moved).argmax(1) == y
    torch.testing.assert_close(height(moved)[robust], theirs[robust], rtol=0, atol=0.005)


@recorded("apgd-t")
def test_targeted_apgd_climbs_as_high_as_autoattack_from_the_same_starts(vector: dict[str, Any]) -> None:
    """Image by image towards its best target, to 1e-6 for three in four and to 2 % for all but one; for the differences
    see APGD. Which image's path parts from theirs, and how far, depends on the order in which a processor adds. The
    same images stay right."""
    model, x, y = attacked()
    x, y = x[: recipe.FEW], y[: recipe.FEW]
    on, ball = CountingModel(model, (0, 1)), GivenStart(vector["norm"], recipe.RADIUS[vector["norm"]])
    moved = attacks.apgd_targeted(on, x, y, ball, steps=recipe.AUTO_STEPS, rng=chance())
    runs = torch.stack(on.shown[2:-1]).unflatten(0, (recipe.CLASSES - 1, -1))
    ranked = model(x).scatter(1, y[:, None], -torch.inf).argsort(1, descending=True).T

    def height(run: Tensor, target: Tensor) -> Tensor:
        logits = model(run.flatten(0, 1)).unflatten(0, run.shape[:2])
        first, _, third, fourth = logits.sort(descending=True).values[..., :4].unbind(-1)
        rows = torch.arange(len(y))
        return -(logits[:, rows, y] - logits[:, rows, target]) / (first - (third + fourth) / 2)

    highest = torch.stack([height(run, target) for run, target in zip(runs, ranked, strict=False)]).amax((0, 1))
    theirs = torch.tensor(vector["loss"], dtype=torch.float64)
    apart = (highest - theirs).abs() / (1 + theirs.abs())
    assert int((apart < 1e-6).sum()) >= 30
    assert int((apart < 0.02).sum()) >= len(apart) - 1
    assert int((model(moved).argmax(1) == y).sum()) == vector["right"]


@recorded("fab-t")
def test_fab_finds_wrong_answers_as_near_as_autoattack(vector: dict[str, Any]) -> None:
    """To 0.02 % for 38 of 40 images and to 0.2 % for all: it computes in single precision."""
    model, x, y = attacked()
    x, y = x[: recipe.FEW], y[: recipe.FEW]
    ball = Projected(vector["norm"], recipe.RADIUS[vector["norm"]])
    moved = fab(CountingModel(model, (0, 1)), x, y, ball, steps=recipe.FAB_STEPS)
    far, theirs = size(ball.given[-1] - x, ball.norm), torch.tensor(vector["distance"], dtype=torch.float64)
    apart = (far - theirs).abs() / theirs.clamp_min(1e-9)
    assert int((apart < 2e-4).sum()) >= 38
    assert float(apart.max()) < 2e-3
    assert int((model(moved).argmax(1) == y).sum()) == int((far > ball.radius).sum()) == vector["right"]


@cache
def after_squares(norm: Norm) -> tuple[float, float]:
    """How many stay right, and the lead that is left of them: means over two seeds."""
    model, x, y = attacked()
    rights, leads = [], []
    for seed in (0, 1):
        on, rng = CountingModel(model, (0, 1)), generator(seed, "test", "square")
        moved = square(on, x, y, Ball(norm, recipe.RADIUS[norm]), queries=recipe.QUERIES, rng=rng)
        rights.append(recipe.right(moved))
        leads.append(recipe.lead(moved))
    return sum(rights) / 2, sum(leads) / 2


@recorded("square", "square to the edge")
def test_the_square_attack_does_as_much_as_that_of_autoattack(vector: dict[str, Any]) -> None:
    """Its windows never reach the last row and column; where they are made to, three images of a hundred and 6 % of the
    lead are chance. As it is, it does less."""
    right, lead = after_squares(vector["norm"])
    right_there, lead_there = (sum(vector[name]) / len(vector[name]) for name in ("right", "lead"))
    if vector["attack"] == "square":
        assert right < right_there + 2
        assert lead < lead_there
    else:
        assert right == pytest.approx(right_there, abs=3)
        assert lead == pytest.approx(lead_there, rel=0.06)
