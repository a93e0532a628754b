"""c04: the noise on the first weights and the growth of its scale."""

import numpy as np
import pytest
import torch
from torch import Tensor

from perdure.ops.phi import add_noise, train_phi

from .golden import CLEARLY, DTYPES, GRADIENT, RECIPE, Case, draw, stream, tensor, weight

SIZES = RECIPE["c04"]
CONFIGURATIONS = range(len(SIZES["ranges"]))
# A scale that float32 cannot feel leaves the weights as they are, and rounding decides its gradient.
FELT = [index for index in CONFIGURATIONS if SIZES["ranges"][index] > torch.finfo(torch.float32).eps]
RUNS = [("f64", index) for index in CONFIGURATIONS] + [("f32", index) for index in FELT]


def layers(index: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(θ, ε, φ) of every layer."""
    rs, shapes = stream(40 + index), SIZES["layers"]
    weights = [weight(rs, *shape) for shape in shapes]
    noises = [draw(rs, *shape) for shape in shapes]
    reach = SIZES["ranges"][index]
    scales = [(reach * np.tanh(rs.standard_normal(size=shape))).astype(np.float32) for shape in shapes]
    return [tuple(tensor(part, dtype) for part in parts) for parts in zip(weights, noises, scales, strict=True)]


def spread(index: int, steps: int, dtype: torch.dtype) -> dict[str, Tensor]:
    found = {}
    for number, (theta, noise, scale) in enumerate(layers(index, dtype), 1):
        kept, grown = train_phi(theta, noise, scale, steps=steps, rate=SIZES["rate"])
        found |= {f"theta_tilde{number}": kept, f"phi_next{number}": grown}
    return found


@pytest.mark.parametrize(("precision", "index"), RUNS)
def test_weights_and_scales(precision: str, index: int) -> None:
    case = Case("c04_phi")
    for steps in SIZES["epochs"][index]:
        found = spread(index, steps, DTYPES[precision])
        case.check_all(f"cfg{index}/{precision}/epochs{steps}/", found, GRADIENT[precision])


@pytest.mark.parametrize("index", [index for index in CONFIGURATIONS if 1 in SIZES["epochs"][index]])
def test_added_noise_is_the_first_step(index: int) -> None:
    case = Case("c04_phi")
    for number, (theta, noise, scale) in enumerate(layers(index, torch.float64), 1):
        case.check(f"cfg{index}/f64/epochs1/theta_tilde{number}", add_noise(theta, scale, noise), GRADIENT["f64"])


@pytest.mark.parametrize("index", CONFIGURATIONS)
def test_wrong_growth_is_told_apart(index: int) -> None:
    """A doubled rate, and attraction for repulsion."""
    case, steps = Case("c04_phi"), SIZES["epochs"][index][-1]
    for number, (theta, noise, scale) in enumerate(layers(index, torch.float64), 1):
        for rate in (2 * SIZES["rate"], -SIZES["rate"]):
            _, wrong = train_phi(theta, noise, scale, steps=steps, rate=rate)
            assert case.miss(f"cfg{index}/f64/epochs{steps}/phi_next{number}", wrong, GRADIENT["f64"]) > CLEARLY


def test_weights_of_the_step_after_are_told_apart() -> None:
    """What is kept stands before the last update; told by the largest scale, for tiny ones hardly move."""
    index = int(np.argmax(SIZES["ranges"]))
    case, steps = Case("c04_phi"), SIZES["epochs"][index][0]
    late = spread(index, steps + 1, torch.float64)
    for number in range(1, len(SIZES["layers"]) + 1):
        name = f"theta_tilde{number}"
        assert case.miss(f"cfg{index}/f64/epochs{steps}/{name}", late[name], GRADIENT["f64"]) > CLEARLY
