"""The five-layer AlexNet of the projection papers, at any width."""

import torch.nn.functional as F
from torch import Tensor, nn

from perdure import fast
from perdure.errors import WrongValue
from perdure.nets.network import Backbone
from perdure.ops.apart import apart, parts
from perdure.ops.blocks import dropout, relu_drop_pool

KERNELS = (4, 3, 2)


class AlexNet(Backbone):
    """Three convolutions and two linear layers, none with a bias: layer → batch norm → ReLU → dropout (→ 2×2 max-pool).

    Batch norm always uses the statistics of the batch. With the default widths and 32-pixel images this is the
    papers' CIFAR-100 network: 6,499,328 weights in layers, 9,088 in batch norms.
    """

    together = True

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

    def forward(self, x: Tensor, quiet: bool = False) -> tuple[Tensor, Tensor]:
        first = self._start(x)
        heard = self._convolve(first, self.training)
        if not (quiet and self.training and self.light):  # there is no dropout to leave out
            placed = self._place(heard)
            return self._read(placed), placed
        if not fast.on("prefix"):
            return self._read(self._place(heard)), self._place(self._convolve(self._start(x), False))
        with apart(heard, self._convolve(first, False)) as both:
            placed = self._place(both.joint)
        return self._read(placed[: len(x)]), placed[len(x) :]

    def _start(self, x: Tensor) -> list[Tensor]:
        """As far as there is no dropout. Here and below, batches that came together meet after a pooling only, lest the
        largest maps be cut and joined around their batch norm."""
        return [self.bn1(self.conv1(part)) for part in parts(x)]

    def _convolve(self, first: list[Tensor], drops: bool) -> Tensor:
        """On to the last convolution's maps, as rows."""
        light, heavy = (self.light, self.heavy) if drops else (0.0, 0.0)
        x = relu_drop_pool(first, light)
        x = relu_drop_pool([self.bn2(part) for part in parts(self.conv2(x))], light)
        return relu_drop_pool([self.bn3(part) for part in parts(self.conv3(x))], heavy).flatten(1)

    def _place(self, maps: Tensor) -> Tensor:
        placed: Tensor = self.fc2(self._drop(F.relu(self.bn4(self.fc1(maps)))))
        return placed

    def _read(self, placed: Tensor) -> Tensor:
        return self._drop(F.relu(self.bn5(placed)))

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.heavy if self.training else 0.0)


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
