"""c06, the part on sharpness: a step of given length along a gradient, with one norm over all tensors."""

import pytest
import torch
from torch import Tensor

from perdure.ops.gradients import norm, perturb

from .golden import CLEARLY, DTYPES, GRADIENT, RECIPE, Case, draw, stream, tensor, weight

RADIUS = RECIPE["c06"]["direction_radius"]


def gradient(precision: str) -> dict[str, Tensor]:
    rs, shapes = stream(60), RECIPE["c06"]["direction_shapes"]
    for shape in shapes:  # the weights stand first in the stream, then the directions; neither is needed here
        (weight if len(shape) > 1 else draw)(rs, *shape)
    for shape in shapes:
        draw(rs, *shape)
    return {str(number): tensor(draw(rs, *shape), DTYPES[precision]) for number, shape in enumerate(shapes, 1)}


def ascent(gradient: dict[str, Tensor]) -> dict[str, Tensor]:
    """From zero weights, where the step is all there is."""
    zeros = {name: torch.zeros_like(value) for name, value in gradient.items()}
    return {name: value.detach() for name, value in perturb(zeros, gradient, RADIUS).items()}


@pytest.mark.parametrize("precision", DTYPES)
def test_ascent(precision: str) -> None:
    Case("c06_directions_sam").check_all(f"{precision}/sam_eps", ascent(gradient(precision)), GRADIENT[precision])


def test_the_step_has_the_length_asked_for() -> None:
    assert float(norm(ascent(gradient("f64")))) == pytest.approx(RADIUS, rel=1e-12)


def test_a_norm_per_tensor_is_told_apart() -> None:
    case = Case("c06_directions_sam")
    for name, value in gradient("f64").items():
        alone = ascent({name: value})[name]
        assert case.miss(f"f64/sam_eps{name}", alone, GRADIENT["f64"]) > CLEARLY
