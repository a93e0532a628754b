"""c06, the part on landscapes: random directions with the lengths of the weights, and the points they lead to."""

import pytest
import torch
from torch import Tensor

from perdure.ops.gradients import add
from perdure.ops.landscape import filter_normalized, layer_normalized

from .golden import CLEARLY, DTYPES, GRADIENT, RECIPE, Case, draw, stream, tensor, weight

STEP = RECIPE["c06"]["direction_step"]


def weights_and_direction(precision: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    rs, shapes, dtype = stream(60), RECIPE["c06"]["direction_shapes"], DTYPES[precision]
    weights = [(weight if len(shape) > 1 else draw)(rs, *shape) for shape in shapes]
    direction = [draw(rs, *shape) for shape in shapes]
    numbered = [
        {str(number): tensor(part, dtype) for number, part in enumerate(parts, 1)} for parts in (weights, direction)
    ]
    return numbered[0], numbered[1]


@pytest.mark.parametrize("precision", DTYPES)
def test_one_length_per_layer(precision: str) -> None:
    weights, direction = weights_and_direction(precision)
    found = layer_normalized(direction, weights)
    Case("c06_directions_sam").check_all(f"{precision}/layer_dir", found, GRADIENT[precision])


@pytest.mark.parametrize("precision", DTYPES)
def test_one_length_per_filter(precision: str) -> None:
    case, (weights, direction) = Case("c06_directions_sam"), weights_and_direction(precision)
    found = filter_normalized(direction, weights)
    still = {name: torch.zeros_like(part) for name, part in direction.items() if name not in found}
    assert {part.ndim for part in still.values()} == {1}  # the files keep what is left out as zeros
    case.check_all(f"{precision}/filter_dir", found | still, GRADIENT[precision])
    points = add(weights, {name: STEP * part for name, part in found.items()})
    case.check_all(f"{precision}/point_s{STEP}_", points, GRADIENT[precision])


def test_the_two_are_told_apart() -> None:
    case, (weights, direction) = Case("c06_directions_sam"), weights_and_direction("f64")
    for name, part in layer_normalized(direction, weights).items():
        assert case.miss(f"f64/filter_dir{name}", part, GRADIENT["f64"]) > CLEARLY
    for name, part in filter_normalized(direction, weights).items():
        assert case.miss(f"f64/layer_dir{name}", part, GRADIENT["f64"]) > CLEARLY
