"""The gradient along mixing shares from the first convolution, against that of every pixel."""

import pytest
import torch
from torch import Tensor, nn

from perdure import fast
from perdure.fast.mixed_images import MixedImages
from perdure.ops.mixup import Mixing, draw_mixing, mix


def images(count: int) -> Tensor:
    return torch.rand(count, 3, 9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def grads(net: nn.Module, *, joint: bool, plain: bool) -> tuple[Tensor, ...]:
    """Along the shares and of the weights; raw images may come first, in the same forward."""
    x = images(5)
    torch.manual_seed(1)
    drawn = draw_mixing(5, 2.0, x)
    share = drawn.share.detach().requires_grad_()
    with fast.without(*["mixed_images"] if plain else []):
        mixed = mix(x, Mixing(share, drawn.partner))
        assert isinstance(mixed, MixedImages) != plain
        loss = net(torch.cat([x, mixed]) if joint else mixed).square().sum()
    return torch.autograd.grad(loss, [share, *net.parameters()])


CONVOLUTIONS = {
    "usual": {},
    "stride, padding, dilation": {"stride": 2, "padding": 1, "dilation": 2},
    "groups": {"groups": 3},
    "without bias": {"bias": False},
    "padding by name": {"padding": "same"},  # written out
    "another padding": {"padding": 1, "padding_mode": "reflect"},  # padded first, so something else reads them
}


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_the_same_gradient_as_through_every_pixel(kind: str, joint: bool) -> None:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 6, 3, **CONVOLUTIONS[kind])
    net = nn.Sequential(first, nn.Tanh(), nn.Conv2d(6, 4, 2)).double()
    quick, slow = (grads(net, joint=joint, plain=plain) for plain in (False, True))
    torch.testing.assert_close(quick, slow)


@pytest.mark.parametrize("joint", [False, True])
def test_whatever_else_reads_them_gets_a_tensor(joint: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(243, 4)).double()
    quick, slow = (grads(net, joint=joint, plain=plain) for plain in (False, True))
    torch.testing.assert_close(quick, slow)


def test_without_a_gradient_along_the_shares_there_is_nothing_to_save() -> None:
    x = images(4)
    drawn = draw_mixing(4, 2.0, x)
    mixed = mix(x, drawn)
    assert type(mixed) is Tensor
    share = drawn.share.requires_grad_()
    torch.testing.assert_close(mix(x, Mixing(share, drawn.partner)).dense().detach(), mixed)
