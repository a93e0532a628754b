"""Grown layers: the weight by value is the layer with more inputs."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from perdure.ops.expansion import (
    effective,
    expansion,
    fresh_columns,
    patch_norms,
    retain_ratio,
    transform,
    transformed,
)
from perdure.ops.layers import columns
from perdure.ops.soft_projection import part_inside, parts_inside
from perdure.ops.subspace import project


def test_the_effective_weight_is_the_layer_with_more_inputs() -> None:
    """The twin: mix the channels of the image, put them beside it, and convolve with all columns."""
    torch.manual_seed(0)
    x, whole = torch.randn(2, 3, 6, 5).double(), torch.randn(4, 6, 2, 3).double()
    phis = [torch.randn(3, 1).double(), torch.randn(3, 2).double()]
    wide = torch.cat([x, *(torch.einsum("nchw,ce->nehw", x, phi) for phi in phis)], dim=1)
    own, one, two = whole.split([3, 1, 2], dim=1)
    assert torch.allclose(F.conv2d(x, effective(own, [(one, phis[0]), (two, phis[1])])), F.conv2d(wide, whole))
    assert effective(own, []) is own
    # and what the new columns read is what those patches are
    layer, wider = nn.Conv2d(3, 4, (2, 3)), nn.Conv2d(6, 4, (2, 3))
    shown = columns(x, layer)
    assert torch.allclose(torch.cat([shown, *(transformed(shown, phi) for phi in phis)]), columns(wide, wider))


def test_patch_norms_are_spectral() -> None:
    torch.manual_seed(0)
    for kernel in ((3, 3), (2, 4), (4, 2), (1, 1), (1, 3)):
        shown = torch.randn(5 * kernel[0] * kernel[1], 7).double()
        patches = shown.reshape(5, *kernel, 7).permute(0, 3, 1, 2)
        assert torch.allclose(patch_norms(shown, kernel), torch.linalg.matrix_norm(patches, 2))
    linear = torch.randn(5, 7)
    assert torch.allclose(patch_norms(linear, ()), linear.abs())


def test_transforms_are_the_strongest_left_singular_vectors() -> None:
    torch.manual_seed(0)
    norms = torch.rand(6, 20).double()
    phi, u = transform(norms, 2), torch.linalg.svd(norms).U[:, :2]
    assert torch.allclose(phi @ phi.T, u @ u.T)
    assert transform(norms[:, :1], 4).shape == (6, 4)  # more than there are samples


def test_expansion_is_rounded_up_and_capped() -> None:
    ratios = (0.6, 0.5, 0.49, 0.41, 0.39, 0.0)
    assert [expansion(ratio, 0.5, 10, 64) for ratio in ratios] == [0, 0, 1, 1, 2, 5]
    assert expansion(0.0, 0.5, 10, 3) == 3
    assert expansion(0.0, 0.5, 0, 3) == 0


def test_retain_ratio() -> None:
    raw = torch.tensor([[3.0, 4.0]])
    assert float(retain_ratio(raw, torch.tensor([[3.0, 0.0]]))) == pytest.approx(0.6)
    assert float(retain_ratio(torch.zeros(1, 2), torch.zeros(1, 2))) == 1  # nothing asked for, nothing lacking


def test_new_columns_are_drawn_as_torch_draws_a_layer() -> None:
    torch.manual_seed(0)
    found = fresh_columns(nn.Conv2d(20, 50, 3).double(), 5, grown=7)
    limit = 1 / math.sqrt((20 + 7 + 5) * 9)
    assert found.shape == (50, 5, 3, 3)
    assert found.dtype == torch.float64
    assert 0.99 * limit < float(found.abs().max()) <= limit
    assert float(found.std()) == pytest.approx(limit / math.sqrt(3), rel=0.05)
    assert fresh_columns(nn.Linear(6, 4), 2).shape == (4, 2)


def test_soft_projection_is_the_hard_one_where_every_direction_counts() -> None:
    torch.manual_seed(0)
    gradient, basis = torch.randn(4, 3, 2, 2).double(), torch.linalg.qr(torch.randn(12, 5).double()).Q
    assert torch.allclose(gradient - part_inside(gradient, basis, torch.ones(5)), project(gradient, basis))
    assert not part_inside(gradient, basis, torch.zeros(5)).any()
    one = part_inside(gradient, basis, torch.eye(5).double()[2])
    rows, axis = gradient.flatten(1), basis[:, 2]
    assert torch.allclose(one.flatten(1), torch.outer(rows @ axis, axis))
    parts = parts_inside({"w": gradient}, {"a": basis, "b": basis}, {"a": torch.ones(5).double()}, {"a": "w", "b": "v"})
    assert parts.keys() == {"w"}
