"""The five-layer AlexNet of the projection papers, at any width."""

import torch.nn.functional as F
from torch import Tensor, nn

from perdure.errors import WrongValue
from perdure.fast.dropout import dropout, relu_dropout_pool
from perdure.nets.network import Backbone

KERNELS = (4, 3, 2)


class AlexNet(Backbone):
    """Three convolutions and two linear layers, none with a bias: layer → batch norm → ReLU → dropout (→ 2×2 max-pool).

    Batch norm always uses the statistics of the batch. With the default widths and 32-pixel images this is the
    papers' CIFAR-100 network: 6,499,328 weights in layers, 9,088 in batch norms.
    """

    independent = True
    channels_last = True

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        filters: tuple[int, int, int] = (64, 128, 256),
        units: tuple[int, int] = (2048, 2048),
        dropout: bool = True,
    ) -> None:
        super().__init__()
        channels, height, width = shape
        for kernel in KERNELS:
            height, width = (height - kernel + 1) // 2, (width - kernel + 1) // 2
        if min(height, width) < 1:
            raise WrongValue(f"alexnet needs images of at least 19×19 pixels, not {shape[1]}×{shape[2]}")
        self.conv1 = nn.Conv2d(channels, filters[0], KERNELS[0], bias=False)
        self.bn1 = nn.BatchNorm2d(filters[0], track_running_stats=False)
        self.conv2 = nn.Conv2d(filters[0], filters[1], KERNELS[1], bias=False)
        self.bn2 = nn.BatchNorm2d(filters[1], track_running_stats=False)
        self.conv3 = nn.Conv2d(filters[1], filters[2], KERNELS[2], bias=False)
        self.bn3 = nn.BatchNorm2d(filters[2], track_running_stats=False)
        self.fc1 = nn.Linear(filters[2] * height * width, units[0], bias=False)
        self.bn4 = nn.BatchNorm1d(units[0], track_running_stats=False)
        self.fc2 = nn.Linear(units[0], units[1], bias=False)
        self.bn5 = nn.BatchNorm1d(units[1], track_running_stats=False)
        self.width = units[1]
        self.light, self.heavy = (0.2, 0.5) if dropout else (0.0, 0.0)
        self.patch_images = {"conv1": 24, "conv2": 100, "conv3": 100, "fc1": 125, "fc2": 125}

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        light, heavy = (self.light, self.heavy) if self.training else (0.0, 0.0)
        x = relu_dropout_pool(self.bn1(self.conv1(x)), light)
        x = relu_dropout_pool(self.bn2(self.conv2(x)), light)
        x = relu_dropout_pool(self.bn3(self.conv3(x)), heavy).flatten(1)
        features: Tensor = self.fc2(dropout(F.relu(self.bn4(self.fc1(x))), heavy))
        return dropout(F.relu(self.bn5(features)), heavy), features


class SlimAlexNet(AlexNet):
    """The same network at an eighth of the width and without dropout: minutes instead of days."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        filters: tuple[int, int, int] = (16, 32, 64),
        units: tuple[int, int] = (256, 256),
        dropout: bool = False,
    ) -> None:
        super().__init__(shape, filters=filters, units=units, dropout=dropout)


class OneNormAlexNet(AlexNet):
    """The network of FS-DGPM's code: the same sizes, but a batch norm after the second convolution alone, which keeps
    running statistics, one for all tasks; all of the 125 images are sampled in every layer."""

    shared_statistics = True

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        filters: tuple[int, int, int] = (64, 128, 256),
        units: tuple[int, int] = (2048, 2048),
        dropout: bool = True,
    ) -> None:
        super().__init__(shape, filters=filters, units=units, dropout=dropout)
        for name in ("bn1", "bn3", "bn4", "bn5"):
            self.add_module(name, nn.Identity())
        self.bn2 = nn.BatchNorm2d(filters[1])
        self.patch_images = dict.fromkeys(self.layers(), 125)
