"""Attacks, on classifiers whose worst case is known."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.errors import WrongValue
from perdure.ops import attacks
from perdure.ops.attacks import Ball, Norm
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
    "square": lambda *on: attacks.square(*on, queries=30, rng=chance()),
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
    moved = attacks.square(model, x, y, Ball("linf", 0.05), queries=400, rng=chance())
    rows, other = torch.arange(len(y)), 1 - y
    lost = (margins(x, y, weights) - margins(moved, y, weights))[rows, other]
    assert model.gradients == 0
    assert float(lost.mean()) > 0.8 * float(least)
    moved = attacks.square(model, x, y, Ball("l2", 0.2), queries=400, rng=chance())
    lost = (margins(x, y, weights) - margins(moved, y, weights))[rows, other]
    assert float(lost.mean()) > 0.5 * 0.2 * float(dual(weights[0] - weights[1], "l2"))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ALL)
def test_images_stay_in_the_ball_and_in_the_bounds(name: str, norm: Norm) -> None:
    x, y, weights = some()
    model = linear(weights, (0, 1))
    moved = ALL[name](model, x, y, Ball(norm, 0.3))
    assert moved.shape == x.shape
    for shown in (moved, *model.shown):
        assert float(size(shown - x, norm).max()) <= 0.3 + 1e-12
        torch.testing.assert_close(shown, shown.clamp(0, 1), rtol=0, atol=0)
    assert float(size(moved - x, norm).max()) > 0.1


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
@pytest.mark.parametrize("name", ["pgd", "apgd ce", "apgd dlr", "square"])
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
    counted = hits if name != "pgd" else [int((coupled(x).argmax(1) == y).sum()), hits[-1]]  # not its steps
    assert int((coupled(moved).argmax(1) == y).sum()) == min(counted) < hits[0]


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
        (lambda *on: attacks.square(*on, queries=9, rng=chance()), attacks.square_cost(9)),
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


@pytest.mark.parametrize("radius", [-0.1, float("nan"), float("inf")])
def test_a_radius_that_is_none_is_refused(radius: float) -> None:
    with pytest.raises(WrongValue, match="strength"):
        Ball("linf", radius)
