"""Shapes and counts of the papers' networks, and what any network must do."""

import pytest
import torch
from torch import Tensor, nn

from perdure import fast
from perdure.errors import WrongValue
from perdure.nets.alexnet import AlexNet, OneNormAlexNet, SlimAlexNet
from perdure.nets.mlp import MLP
from perdure.nets.network import Backbone, Network
from perdure.nets.resnet18 import ResNet18


def count(net: nn.Module, wide: bool) -> int:
    return sum(p.numel() for p in net.parameters() if (p.ndim > 1) == wide)


def test_alexnet_has_the_published_sizes() -> None:
    net = AlexNet((3, 32, 32))
    assert count(net, wide=True) == 6_499_328
    assert count(net, wide=False) == 9_088
    assert (net.light, net.heavy) == (0.2, 0.5)
    assert (SlimAlexNet((3, 32, 32)).light, SlimAlexNet((3, 32, 32)).heavy) == (0.0, 0.0)
    assert [tuple(layer.weight.shape) for layer in net.layers().values()] == [
        (64, 3, 4, 4),
        (128, 64, 3, 3),
        (256, 128, 2, 2),
        (2048, 1024),
        (2048, 2048),
    ]


@pytest.mark.parametrize(("size", "width", "stride"), [(32, 640, 1), (84, 1440, 2)])
def test_resnet_has_the_published_sizes(size: int, width: int, stride: int) -> None:
    net = ResNet18((3, size, size))
    assert count(net, wide=True) == 1_090_140
    assert len(net.layers()) == 20
    assert len(net.layers().keys() - set(net.auxiliary)) == 16
    assert net.width == width
    assert net.stem.stride == (stride, stride)
    assert ResNet18((3, size, 32)).stem.stride == (1, 1)  # the shorter side counts


@pytest.mark.parametrize(
    "backbone",
    [AlexNet, SlimAlexNet, ResNet18, MLP],
)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 40, 36)])
def test_heads_read_what_the_backbone_says(backbone: type[Backbone], shape: tuple[int, int, int]) -> None:
    net = Network(backbone(shape))  # type: ignore[call-arg]
    net.add_head(4)
    net.add_head(7)
    x = torch.rand(3, *shape)
    assert net(x, 0).logits.shape == (3, 4)
    look = net(x, 1)
    assert look.logits.shape == (3, 7)
    torch.testing.assert_close(look.features.norm(dim=1), torch.ones(3))


def test_rows_of_mixed_tasks_are_those_of_their_own_heads() -> None:
    net = Network(MLP((3, 8, 8)))
    net.add_head(2)
    net.add_head(4)
    x, task = torch.rand(5, 3, 8, 8), torch.tensor([1, 0, 1, 0, 0])
    mixed = net(x, task).logits
    torch.testing.assert_close(mixed[task == 1], net(x, 1).logits[task == 1])  # a batch of two may add in another order
    torch.testing.assert_close(mixed[task == 0][:, :2], net(x, 0).logits[task == 0])
    assert torch.isinf(mixed[task == 0][:, 2:]).all()


class WithDropout(Backbone):
    """Torch's own dropout after a convolution and after a linear layer, and statistics that depend on the batch."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 8, 5), nn.BatchNorm2d(8), kind(0.5)
        self.fc, self.drop_fc, self.width = nn.Linear(8, 16), nn.Dropout(0.5), 16

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.fc(self.drop(self.norm(self.conv(x)).relu()).mean((2, 3)))
        return self.drop_fc(features), features


@pytest.mark.parametrize("plain", ["", "joint_batches", "pooling", "all"])
@pytest.mark.parametrize("backbone", [nn.Dropout, nn.Dropout2d, AlexNet])
def test_features_without_convolution_dropout(plain: str, backbone: type[nn.Module]) -> None:
    """Only the features, and only the dropout after convolutions; for any network."""
    torch.manual_seed(0)
    if backbone is AlexNet:
        net = Network(AlexNet((3, 32, 32), filters=(8, 8, 8), units=(32, 32)))
        net.backbone.heavy = 0.0  # the dropout after the linear layers stays, and is not asked for here
    else:
        net = Network(WithDropout(backbone))
    net.backbone.independent = True
    net.add_head(4)
    batches = [torch.rand(8, 3, 32, 32), torch.rand(8, 3, 32, 32)]
    with fast.without(plain):
        outputs, again = net.train()(batches, 0, conv_dropout=False), net(batches, 0, conv_dropout=False)
        noisy = net(batches, 0)
    for one, other in zip(outputs, again, strict=True):
        torch.testing.assert_close(one.features, other.features)
        assert not torch.allclose(one.logits, other.logits)  # what the heads read has dropout
    for module in net.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d):
            module.p = 0.0
    net.backbone.light = 0.0
    for one, loud, x in zip(outputs, noisy, batches, strict=True):
        torch.testing.assert_close(one.features, net(x, 0).features)
        assert not torch.allclose(loud.features, one.features)


def test_narrow_and_grouped_networks_keep_the_usual_memory_format() -> None:
    def last(backbone: Backbone) -> bool:
        net = Network(backbone)
        weight = next(part.weight for part in net.modules() if isinstance(part, nn.Conv2d) and part.in_channels > 3)
        return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()

    class Grouped(Backbone):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.width = nn.Conv2d(16, 16, 3, groups=2), 16

    assert last(ResNet18((3, 32, 32)))
    assert not last(ResNet18((3, 32, 32), filters=4))
    assert not last(Grouped())


def test_too_small_an_image_is_named() -> None:
    with pytest.raises(WrongValue, match="at least 19×19"):
        AlexNet((3, 18, 19))
    assert AlexNet((3, 19, 19)).fc1.in_features == 256


def test_fsdgpms_network_has_one_norm_with_running_statistics_and_samples_all_images() -> None:
    net, plain = OneNormAlexNet((3, 32, 32), seed=3), AlexNet((3, 32, 32), seed=3)
    norms = [part for part in net.modules() if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert norms == [net.bn2]
    assert (net.bn2.track_running_stats, net.bn2.momentum, net.bn2.num_features) == (True, 0.1, 128)
    assert net.patch_images == dict.fromkeys(["conv1", "conv2", "conv3", "fc1", "fc2"], 125)
    assert (net.light, net.heavy) == (plain.light, plain.heavy) == (0.2, 0.5)
    for name, layer in net.layers().items():  # and starts with the same weights as AlexNet
        assert torch.equal(layer.weight, plain.layers()[name].weight)
