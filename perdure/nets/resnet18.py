"""The reduced ResNet18 of the projection papers."""

import torch.nn.functional as F
from torch import Tensor, nn

from perdure.nets.network import Backbone


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, track_running_stats=False)


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False)
        self.bn1 = _norm(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.bn2 = _norm(filters)
        self.short: nn.Conv2d | None = None
        if stride != 1 or channels != filters:
            self.short = nn.Conv2d(channels, filters, 1, stride, bias=False)
            self.shortbn = _norm(filters)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + (x if self.short is None else self.shortbn(self.short(x))))


class ResNet18(Backbone):
    """Stem and four stages of two blocks; the widths are 1, 2, 4, 8 times `filters`; batch statistics, no bias.

    Small images (below 64 pixels) keep their size in the stem, larger ones are halved, as in the papers (32 and 84).
    """

    independent = True
    channels_last = True

    def __init__(self, shape: tuple[int, int, int], *, filters: int = 20) -> None:
        super().__init__()
        channels, height, width = shape
        stride = 1 if min(height, width) < 64 else 2
        self.stem = nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False)
        self.stem_bn = _norm(filters)
        channels = filters
        for stage in (1, 2, 3, 4):
            for block in (1, 2):
                halve = 2 if stage > 1 and block == 1 else 1
                self.add_module(f"s{stage}b{block}", Block(channels, filters * 2 ** (stage - 1), halve))
                channels = filters * 2 ** (stage - 1)
        for halve in (stride, 2, 2, 2):  # a 3×3 convolution with padding 1 rounds up
            height, width = -(-height // halve), -(-width // halve)
        self.width = channels * (height // 2) * (width // 2)
        self.patch_images = self._patch_images()
        self.auxiliary = ("stem", *(name for name in self.layers() if name.endswith(".short")))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.stem_bn(self.stem(x)))
        for block in self._blocks().values():
            x = block(x)
        hidden = F.avg_pool2d(x, 2).flatten(1)
        return hidden, hidden

    def _blocks(self) -> dict[str, Block]:
        return {name: part for name, part in self.named_children() if isinstance(part, Block)}

    def _patch_images(self) -> dict[str, int]:
        """10 images for the first eight 3×3 convolutions, 50 for the next three, 100 for the rest; a shortcut takes as
        many as the first convolution of its block."""
        counts = {"stem": 10}
        for name, block in self._blocks().items():
            for conv in ("conv1", "conv2"):
                place = sum(not layer.endswith(".short") for layer in counts)
                counts[f"{name}.{conv}"] = 10 if place < 8 else 50 if place < 11 else 100
            if block.short is not None:
                counts[f"{name}.short"] = counts[f"{name}.conv1"]
        return counts
