"""c01: uniformity and alignment of features, and their gradients."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from perdure.ops.losses import alignment, released_uniform_alignment, uniformity

from .golden import CLEARLY, DTYPES, GRADIENT, RECIPE, VALUE, Case, draw, stream, tensor

SETS = range(len(RECIPE["c01"]["sets"]))
TEMPERATURE = RECIPE["c01"]["temperature"]


def features(index: int, precision: str) -> tuple[Tensor, Tensor]:
    """u1 and u2, before they are brought to unit length."""
    rs = stream(10 + index)
    first = draw(rs, *RECIPE["c01"]["sets"][index])
    keep, add = (np.float32(share) for share in RECIPE["c01"]["mix"])
    second = keep * first + add * draw(rs, *first.shape)
    assert second.dtype == np.float32, "the recipe mixes in float32"
    return tensor(first, DTYPES[precision]), tensor(second, DTYPES[precision])


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("index", SETS)
def test_values_and_gradients(index: int, precision: str) -> None:
    case, prefix = Case("c01_ua"), f"set{index}/{precision}/"
    u1, u2 = (u.requires_grad_() for u in features(index, precision))
    z1, z2 = normalize(u1), normalize(u2)
    loss = released_uniform_alignment(z1, z2, temperature=TEMPERATURE)
    values = {
        "uniform_raw_only": uniformity(z1, temperature=TEMPERATURE),
        "uniform_concat": uniformity(torch.cat([z1, z2]), temperature=TEMPERATURE),
        "align": alignment(z1, z2),
        "ua": loss,
    }
    slopes = dict(zip(("dz1", "dz2", "du1", "du2"), torch.autograd.grad(loss, (z1, z2, u1, u2)), strict=True))

    case.check_all(prefix, values, VALUE[precision], complete=False)
    case.check_all(prefix, slopes, GRADIENT[precision], complete=False)
    assert case.names(prefix) == set(values) | set(slopes)


@pytest.mark.parametrize("index", SETS)
def test_wrong_variants_are_told_apart(index: int) -> None:
    case, prefix, bound = Case("c01_ua"), f"set{index}/f64/", VALUE["f64"]
    z1, z2 = map(normalize, features(index, "f64"))
    both = torch.cat([z1, z2])
    squared = torch.cdist(both, both).square()
    with_self_pairs = squared.mul(-TEMPERATURE).exp().mean().log()
    apart = (uniformity(z1, temperature=TEMPERATURE) + uniformity(z2, temperature=TEMPERATURE)) / 2
    unsquared = alignment(z1, z2, exponent=1.0)

    assert case.miss(f"{prefix}uniform_concat", with_self_pairs, bound) > CLEARLY
    assert case.miss(f"{prefix}uniform_concat", apart, bound) > CLEARLY
    assert case.miss(f"{prefix}align", unsquared, bound) > CLEARLY
    assert case.miss(f"{prefix}ua", case[f"{prefix}uniform_concat"] - case[f"{prefix}align"], bound) > CLEARLY
