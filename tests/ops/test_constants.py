"""Values of papers and of torch that other tests would let drift: each stands here as its source has it."""

import torch
from torch import nn

from perdure.ops import attacks, layers, square
from perdure.ops.layers import Layer
from perdure.ops.mixup import draw_mixing


def test_the_square_attack_shrinks_where_its_authors_have_it() -> None:
    """Andriushchenko et al., ECCV 2020: after so many of 10 000 queries the area is halved; 0.8 is AutoAttack's."""
    assert square.SHRINK == (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
    assert square.FIRST_SHARE == 0.8


def test_apgd_has_its_authors_momentum_and_share_of_steps() -> None:
    assert (attacks.MOMENTUM, attacks.ENOUGH) == (0.75, 0.75)


def test_layers_of_no_known_image_count_are_looked_at_by_so_many_columns() -> None:
    assert layers.COLUMNS == 20_000


def test_a_transposed_convolution_is_protected_as_a_whole_and_not_in_groups() -> None:
    assert (whole := Layer.of(nn.ConvTranspose2d(4, 4, 3))) is not None
    assert whole.kind == "transposed"
    assert Layer.of(nn.ConvTranspose2d(4, 4, 3, groups=2)) is None


def test_mixing_shares_are_drawn_in_double_precision_whatever_the_images_have() -> None:
    """The same shares for images of any precision: single ones are the double ones, rounded."""
    drawn = {}
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(1)
        drawn[dtype] = draw_mixing(16, 20.0, torch.zeros(1, dtype=dtype)).share
    assert torch.equal(drawn[torch.float32], drawn[torch.float64].float())
    assert not torch.equal(drawn[torch.float32].double(), drawn[torch.float64])
