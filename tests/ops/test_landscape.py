"""Flatness and curvature against quadratic losses, where all of it is known in closed form."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from perdure.ops import landscape, losses
from perdure.seeding import generator
from perdure.types import Weights

SHAPES = {"one": (3, 2), "two": (2, 2), "bias": (3,)}
SIZES = [6, 4, 3]


def numbers(*shape: int, purpose: str = "numbers") -> Tensor:
    return torch.randn(shape, generator=generator(1, purpose), dtype=torch.float64)


def flat(weights: Weights) -> Tensor:
    return torch.cat([weights[name].reshape(-1) for name in weights])


def shaped(vector: Tensor) -> dict[str, Tensor]:
    return {name: part.view(SHAPES[name]) for name, part in zip(SHAPES, vector.split(SIZES), strict=True)}


class Quadratic:
    """½ wᵀAw + bᵀw over all tensors together."""

    def __init__(self, matrix: Tensor, linear: Tensor) -> None:
        self.matrix, self.linear = matrix, linear

    def __call__(self, weights: Weights) -> Tensor:
        w = flat(weights)
        return w @ self.matrix @ w / 2 + self.linear @ w

    def at(self, w: Tensor) -> Tensor:
        return w @ self.matrix @ w / 2 + self.linear @ w

    def slope(self, w: Tensor) -> Tensor:
        return self.matrix @ w + self.linear


@pytest.fixture
def weights() -> dict[str, Tensor]:
    return shaped(numbers(13, purpose="weights"))


@pytest.fixture
def bowl() -> Quadratic:
    root = numbers(13, 13, purpose="matrix")
    return Quadratic((root + root.T) / 2, numbers(13, purpose="linear"))


def test_one_step_is_the_layer_normalized_gradient(bowl: Quadratic, weights: dict[str, Tensor]) -> None:
    w = flat(weights)
    step = torch.zeros(13, dtype=torch.float64)
    for rows in (slice(0, 6), slice(6, 10)):  # what has one dimension stays
        g = bowl.slope(w)[rows]
        step[rows] = 0.3 * g / g.norm() * w[rows].norm()
    expected = bowl.at(w + step) - bowl.at(w)
    torch.testing.assert_close(landscape.worst_case_flatness(landscape.climb(bowl, weights, 0.3)), expected)


@pytest.mark.parametrize("curve", [2.0, -2.0])
def test_a_round_bowl_is_climbed_in_one_step_and_further_steps_stay(curve: float) -> None:
    w, b, size = numbers(3, 2, purpose="w"), numbers(6, purpose="b"), 0.5
    bowl = Quadratic(curve * torch.eye(6, dtype=torch.float64), b)
    length = size * w.norm()
    exact = length * bowl.slope(w.reshape(-1)).norm() + curve * length**2 / 2
    for steps in (1, 7):
        torch.testing.assert_close(landscape.worst_case_flatness(landscape.climb(bowl, {"w": w}, size, steps)), exact)


def highest_on_sphere(matrix: Tensor, slope: Tensor, radius: Tensor) -> Tensor:
    """max of gᵀd + ½ dᵀAd over ‖d‖ = r: (λI − A) d = g with the λ above all eigenvalues that gives d its length."""
    values, vectors = torch.linalg.eigh(matrix)
    along = vectors.T @ slope
    low, high = values[-1], values[-1] + along.norm() / radius
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (along / (middle - values)).norm() > radius else (low, middle)
    d = along / (high - values)
    return along @ d + (values * d * d).sum() / 2


@pytest.mark.parametrize("sign", [1, -1])
def test_many_steps_reach_the_highest_point_of_the_sphere(sign: int) -> None:
    w, root = numbers(3, 2, purpose="w"), numbers(6, 6, purpose="root")
    bowl = Quadratic(sign * root @ root.T, numbers(6, purpose="b"))
    exact = highest_on_sphere(bowl.matrix, bowl.slope(w.reshape(-1)), 0.8 * w.norm())
    one, many = (landscape.worst_case_flatness(landscape.climb(bowl, {"w": w}, 0.8, steps)) for steps in (1, 100))
    torch.testing.assert_close(many, exact)
    assert float(one) < 0.95 * float(exact)


def test_more_steps_never_find_less(weights: dict[str, Tensor]) -> None:
    def waves(weights: Weights) -> Tensor:
        return torch.sin(3 * flat(weights)).sum()

    heights = landscape.climb(waves, weights, 0.5, 8)
    torch.testing.assert_close(heights[0], waves(weights))
    assert bool((heights[1:].diff() < 0).any())  # some steps go over a crest and down again
    found = [float(landscape.worst_case_flatness(landscape.climb(waves, weights, 0.5, steps))) for steps in range(1, 9)]
    assert found == sorted(found)
    assert found[0] == float(heights[1] - heights[0])


def test_sharpness_moves_all_weights_by_one_radius(bowl: Quadratic, weights: dict[str, Tensor]) -> None:
    w = flat(weights)
    g = bowl.slope(w)
    exact = bowl.at(w + 0.2 * g / g.norm()) - bowl.at(w)
    torch.testing.assert_close(landscape.sharpness(bowl, weights, 0.2), exact)


def test_sharpness_has_sams_radius_where_none_is_given(bowl: Quadratic, weights: dict[str, Tensor]) -> None:
    assert landscape.sharpness(bowl, weights) == landscape.sharpness(bowl, weights, 0.05)


def test_flatness_does_not_change_when_a_layer_is_rescaled() -> None:
    x, y = numbers(16, 6, purpose="x"), torch.arange(16) % 4
    w = {"one": numbers(8, 6, purpose="one"), "two": numbers(4, 8, purpose="two")}

    def loss(weights: Weights) -> Tensor:
        return losses.cross_entropy(torch.relu(x @ weights["one"].T) @ weights["two"].T, y)

    rescaled = {"one": 3 * w["one"], "two": w["two"] / 3}
    for steps in (1, 4):
        found = landscape.worst_case_flatness(landscape.climb(loss, w, steps=steps))
        assert float(found) > 0
        torch.testing.assert_close(landscape.worst_case_flatness(landscape.climb(loss, rescaled, steps=steps)), found)
    normalized = landscape.layer_normalized({"one": torch.ones_like(w["one"]), "bias": torch.ones(3)}, w)
    assert list(normalized) == ["one"]
    torch.testing.assert_close(normalized["one"].norm(), w["one"].norm())


def test_a_loss_in_terms_is_their_sum(bowl: Quadratic, weights: dict[str, Tensor]) -> None:
    straight = numbers(13, purpose="straight")

    def terms(weights: Weights) -> Iterator[Tensor]:
        yield bowl(weights) / 2
        yield straight @ flat(weights)  # whose slope has no graph
        yield bowl(weights) / 2

    whole = Quadratic(bowl.matrix, bowl.linear + straight)
    for one, other in zip(
        landscape.loss_and_grad(terms, weights), landscape.loss_and_grad(whole, weights), strict=True
    ):
        torch.testing.assert_close(one, other)
    direction = shaped(numbers(13, purpose="direction"))
    product = landscape.hessian_times(terms, weights, direction)
    torch.testing.assert_close(flat(product), bowl.matrix @ flat(direction))


def test_terms_in_single_precision_are_summed_in_double() -> None:
    """Two to the 24th and one have no sum in single precision."""

    def terms(weights: Weights) -> Iterator[Tensor]:
        yield 2.0**24 * weights["w"].sum()
        yield weights["w"].sum()

    weights = {"w": torch.ones(1)}
    assert float(landscape.loss_at(terms, weights)) == 2**24 + 1
    assert float(landscape.loss_and_grad(terms, weights)[0]) == 2**24 + 1


def with_eigenvalues(values: list[float]) -> Quadratic:
    turn, _ = torch.linalg.qr(numbers(13, 13, purpose="turn"))
    return Quadratic(turn @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ turn.T, torch.zeros_like(turn[0]))


@pytest.mark.parametrize("values", [[*range(-6, 7)], [-50.0, *range(12)], [*range(-14, -1)], [0.0] * 12 + [3.0]])
def test_top_eigenvalue_is_the_largest_and_not_the_longest(values: list[float], weights: dict[str, Tensor]) -> None:
    loss = with_eigenvalues(values)
    found = landscape.top_eigenvalue(loss, weights, 40, generator(0, "start"))
    assert found.value == pytest.approx(float(torch.linalg.eigvalsh(loss.matrix)[-1]), rel=1e-9)
    assert found.residual < 1e-6


def test_residual_says_how_far_the_value_may_be_off(bowl: Quadratic, weights: dict[str, Tensor]) -> None:
    exact = torch.linalg.eigvalsh(bowl.matrix)
    for steps in range(1, 8):
        value, residual = landscape.top_eigenvalue(bowl, weights, steps, generator(0, "start"))
        assert float((exact - value).abs().min()) <= residual * (1 + 1e-9)
        assert value <= float(exact[-1]) + 1e-9
    assert residual < 0.5 < landscape.top_eigenvalue(bowl, weights, 1, generator(0, "start")).residual


def test_no_more_steps_than_there_are_eigenvalues(weights: dict[str, Tensor]) -> None:
    """What rounding leaves after the last is not taken for another direction."""
    loss, calls = with_eigenvalues([3.0] * 6 + [1.0] * 7), 0

    def counted(here: dict[str, Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        return loss(here)

    loss.matrix, loss.linear = loss.matrix.float(), loss.linear.float()
    single = {name: part.float() for name, part in weights.items()}
    landscape.top_eigenvalue(counted, single, 9, generator(0, "start"))
    assert calls == 2


def test_a_straight_loss_is_not_bent(weights: dict[str, Tensor]) -> None:
    b = numbers(13, purpose="straight")
    assert landscape.top_eigenvalue(lambda w: b @ flat(w), weights, 5, generator(0, "start")) == (0.0, 0.0)


def test_trace_lies_within_its_error_and_is_exact_where_the_axes_are_those_of_the_weights(
    bowl: Quadratic, weights: dict[str, Tensor]
) -> None:
    mean, error = landscape.trace(bowl, weights, 400, generator(0, "signs"))
    assert mean == pytest.approx(float(bowl.matrix.trace()), abs=2.5 * error)
    off = bowl.matrix - torch.diag(bowl.matrix.diag())
    assert error == pytest.approx((2 * float(off.square().sum()) / 400) ** 0.5, rel=0.2)  # var of vᵀHv is 2 Σ h²
    straight = Quadratic(torch.diag(bowl.matrix.diag()), bowl.linear)
    mean, error = landscape.trace(straight, weights, 2, generator(0, "signs"))
    assert mean == pytest.approx(float(bowl.matrix.trace()))
    assert error == pytest.approx(0, abs=1e-12)


def test_a_random_direction_depends_on_name_shape_and_number_and_fits_each_filter() -> None:
    own = {"a": torch.randn(4, 3), "b": torch.randn(2, 3, 2, 2), "scale": torch.randn(4)}
    found = landscape.random_direction(own, 0)
    assert list(found) == ["a", "b"]
    for name, part in found.items():
        torch.testing.assert_close(part.flatten(1).norm(dim=1), own[name].flatten(1).norm(dim=1))
    other = {"b": 2 * own["b"], "new": torch.randn(5, 5), "a": own["a"].double()}
    again = landscape.random_direction(other, 0)
    torch.testing.assert_close(again["b"], 2 * found["b"])
    torch.testing.assert_close(again["a"].float(), found["a"])  # float32 has no more digits
    assert not torch.equal(landscape.random_direction(own, 1)["a"], found["a"])
    twins = landscape.random_direction({"a": own["a"], "c": own["a"]}, 0)
    assert not torch.equal(twins["a"], twins["c"])
