"""Networks that people have, and how far old answers move in each when further tasks are learned.

    python benchmarks/zoo.py [--networks …] [--methods finetune gpm dfgp rcl] [--seed 1] [--epochs 4] [--kappa 1]
                             [--threshold 0.99] [--samples 1000]

Each network is wrapped as it is (`perdure.wrap`) and learns three tasks of `six`. Printed is how far its answers to the
first task's test images have moved since that task was learned, relative to their length, with the share of its weights
that is projected, how full the fullest layer is, and the time of GPM ÷ that of fine-tuning. In brackets: the mean
accuracy on the three tasks at the end. All methods that protect have the same thresholds and remember the inputs of all
training images. What is refused before training is told in a line.
Networks of torchvision and timm have the structure of theirs, small: neither is needed.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perdure import Plan, benchmark, learn, registry
from perdure.errors import WrongValue
from perdure.methods.method import Method
from perdure.nets.wrap import wrap
from perdure.types import Task

CLASSES = 7  # of the heads that the networks bring, and lose
LONGER = {"mobilenet_v3": 3}  # times the epochs: its running statistics have a momentum of 0.01, so they need steps


# --- networks of one's own ---


def cnn(norm: Callable[[int], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), norm(16), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.1),
        nn.Conv2d(16, 32, 3, padding=1), norm(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, CLASSES),
    )  # fmt: skip


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class Rows(nn.Module):
    """An image as a sequence of rows, for Conv1d, with a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(96, 32, 3, padding=1), nn.Conv1d(32, 32, 3, stride=2)
        self.up, self.fc = nn.ConvTranspose1d(32, 16, 2, stride=2), nn.Linear(480, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x.flatten(1, 2)))))
        out: Tensor = self.fc(F.relu(self.up(x)).flatten(1))
        return out


class Words(nn.Module):
    """A bag of words: where a coarse pixel is and how bright, embedded; the mean of them through linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.fc = nn.Embedding(64 * 16, 32), nn.Linear(32, 64), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        brightness = F.adaptive_avg_pool2d(x.mean(1), 8).flatten(1).mul(4).add(8).clamp(0, 15).long()
        words = brightness + 16 * torch.arange(64, device=x.device)
        out: Tensor = self.fc(F.relu(self.hidden(self.embedding(words).mean(1) * 8)))
        return out


class Places(nn.Module):
    """Each place's brightness embedded by itself, side by side: inputs that fill nearly all directions of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.fc = nn.Embedding(256, 8), nn.Linear(512, 64), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        words = F.adaptive_avg_pool2d(x.mean(1), 8).flatten(1).mul(48).add(128).clamp(0, 255).long()
        out: Tensor = self.fc(F.relu(self.hidden(self.embedding(words).flatten(1))))
        return out


class Tied(nn.Module):
    """Two modules with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.other = nn.Linear(768, 48), nn.Linear(48, 48), nn.Linear(48, 48)
        self.other.weight = self.one.weight
        self.fc = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(F.avg_pool2d(x, 2).flatten(1)))
        out: Tensor = self.fc(F.relu(self.other(F.relu(self.one(x)))))
        return out


class Raw(nn.Module):
    """A weight that no module holds, and one that is multiplied by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.randn(64, 768) / 28)
        self.product = nn.Parameter(torch.randn(64, 64) / 8)
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.linear(F.avg_pool2d(x, 2).flatten(1), self.raw))
        out: Tensor = self.fc(F.relu(x @ self.product))
        return out


class Attention(nn.Module):
    """Torch's own attention and transformer layers, with position embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, stride=8)
        self.position = nn.Parameter(torch.randn(1, 16, 32) / 10)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.1)
        self.fc = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        out: Tensor = self.fc(self.encoder(x + self.attention(x, x, x)[0]).mean(1))
        return out


class Unused(nn.Module):
    """A layer that no forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.spare = cnn(lambda channels: nn.GroupNorm(4, channels)), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


def partly_frozen() -> nn.Module:
    """The first convolution and its norm are frozen, running statistics and all."""
    net = cnn(nn.BatchNorm2d)
    assert isinstance(net, nn.Sequential)
    net[:2].requires_grad_(False)
    return net


# --- networks as torchvision and timm have them ---


class Basic(nn.Module):
    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters)
        self.conv2, self.bn2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False), nn.BatchNorm2d(filters)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != filters:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """torchvision's resnet18 at a quarter of its width: running statistics, a stem of stride 2 with pooling."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        blocks, channels = list[nn.Module](), width
        for stage in range(4):
            for stride in (1 if stage == 0 else 2, 1):
                blocks.append(Basic(channels, width * 2**stage, stride))
                channels = width * 2**stage
        self.layers, self.fc = nn.Sequential(*blocks), nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.maxpool(F.relu(self.bn1(self.conv1(x)))))
        out: Tensor = self.fc(x.mean((2, 3)))
        return out


class Squeeze(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.fc2(F.relu(self.fc1(x.mean((2, 3), keepdim=True)))))


class Inverted(nn.Module):
    """MobileNetV3's block: widen, filter each channel by itself, squeeze and excite, narrow."""

    def __init__(self, channels: int, wide: int, out: int, stride: int, momentum: float) -> None:
        super().__init__()
        self.same = stride == 1 and channels == out
        self.block = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide, momentum=momentum), nn.Hardswish(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide, momentum=momentum),
            nn.Hardswish(), Squeeze(wide), nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out, momentum=momentum),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x)
        return out + x if self.same else out


def mobilenet(momentum: float = 0.01) -> nn.Module:
    """With torchvision's momentum of running statistics, or another."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish(), Inverted(16, 32, 16, 1, momentum),
        Inverted(16, 48, 24, 2, momentum), Inverted(24, 64, 24, 1, momentum), nn.Conv2d(24, 96, 1, bias=False),
        nn.BatchNorm2d(96), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 64), nn.Hardswish(),
        nn.Dropout(0.2), nn.Linear(64, CLASSES),
    )  # fmt: skip


class TokenBlock(nn.Module):
    """timm's block of a vision transformer: one linear layer for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.fc1, self.fc2 = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, width)
        x = x + self.proj(seen)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    """timm's vision transformer: class token, position embeddings, blocks, norm, head."""

    def __init__(self, width: int = 48, depth: int = 4) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 8, stride=8)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width) / 50)
        self.pos_embed = nn.Parameter(torch.randn(1, 17, width) / 50)
        self.blocks = nn.Sequential(*(TokenBlock(width, 4) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        out: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return out


class TorchViT(nn.Module):
    """torchvision's vision transformer: torch's own attention inside."""

    def __init__(self, width: int = 48, depth: int = 2) -> None:
        super().__init__()
        self.conv_proj, self.class_token = nn.Conv2d(3, width, 8, stride=8), nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embedding = nn.Parameter(torch.randn(1, 17, width) / 50)
        layer = nn.TransformerEncoderLayer(width, 4, 96, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embedding
        out: Tensor = self.head(self.encoder(x)[:, 0])
        return out


class NextBlock(nn.Module):
    """ConvNeXt's block: a convolution of each channel, then two linear layers, scaled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv_dw, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        out = self.fc2(F.gelu(self.fc1(self.norm(self.conv_dw(x).movedim(1, -1)))))
        return x + (self.gamma * out).movedim(-1, 1)


def convnext() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 24, 4, stride=4), ChannelNorm(24), NextBlock(24), NextBlock(24), ChannelNorm(24),
        nn.Conv2d(24, 48, 2, stride=2), NextBlock(48), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(48),
        nn.Linear(48, CLASSES),
    )  # fmt: skip


ZOO: dict[str, Callable[[], nn.Module]] = {
    "own CNN, BatchNorm": lambda: cnn(nn.BatchNorm2d),
    "own CNN, BatchNorm, not tracking": lambda: cnn(lambda n: nn.BatchNorm2d(n, track_running_stats=False)),
    "own CNN, GroupNorm": lambda: cnn(lambda channels: nn.GroupNorm(4, channels)),
    "own CNN, LayerNorm": lambda: cnn(ChannelNorm),
    "Conv1d": Rows,
    "Embedding + Linear": Words,
    "Embedding of each place": Places,
    "tied modules": Tied,
    "raw parameters": Raw,
    "MultiheadAttention": Attention,
    "unused layer": Unused,
    "partly frozen": partly_frozen,
    "resnet18": ResNet,
    "mobilenet_v3": mobilenet,
    "mobilenet_v3, momentum 0.1": lambda: mobilenet(0.1),
    "torchvision ViT": TorchViT,
    "timm ViT": ViT,
    "ConvNeXt": convnext,
}


# --- how far old answers move ---

PROTECTION: dict[str, Any] = {"threshold": 0.99, "threshold_step": 0.003, "samples": 1000}  # of all that protect
REFUSED = ("Embedding of each place",)  # networks that no basis protects


def wrapped(name: str, method: str, seed: int, kappa: float = 1.0, **protection: Any) -> Method:
    """A method on a network of the zoo, whose weights are drawn by the seed."""
    torch.manual_seed(seed)
    kind, net = registry.methods.load(method), wrap(ZOO[name](), (3, 32, 32))
    values = {"ua_weight": kappa} if method == "rcl" else {}
    found: Method = kind(net, **(PROTECTION | protection if kind.protects else {}), **values)
    return found


@torch.no_grad()
def answers(method: Method, task: Task, number: int) -> Tensor:
    method.eval()
    return torch.cat([method.forward(x, number).logits for x, _ in task.test.batches(64)])


def drift(method: Method, tasks: list[Task], plan: Plan, seed: int) -> tuple[float, float]:
    """‖answers to the first task after all tasks − right after it‖ ÷ ‖the latter‖; the mean accuracy at the end."""
    learned = learn(method, tasks[:1], plan, seed)
    before = answers(method, tasks[0], 0)
    learned = learn(method, tasks[1:], plan, seed, learned=learned)
    moved = float((answers(method, tasks[0], 0) - before).norm() / before.norm())
    return moved, sum(learned.matrix[-1]) / len(tasks)


def fullest(method: Method) -> str:
    sizes = method.facts().get("basis", {})
    name = max(sizes, key=lambda layer: sizes[layer][0] / sizes[layer][1])
    return f"{name.removeprefix('model.')} {sizes[name][0]}/{sizes[name][1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=ZOO, default=list(ZOO))
    parser.add_argument("--methods", nargs="+", default=["finetune", "gpm", "dfgp", "rcl"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kappa", type=float, default=1.0, help="RCL's weight of uniformity and alignment")
    parser.add_argument("--threshold", type=float, default=PROTECTION["threshold"], help="share of input energy kept")
    parser.add_argument("--samples", type=int, default=PROTECTION["samples"], help="training images remembered")
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tasks = list(benchmark("six").tasks)[:3]
    columns = [*given.methods, "projected", "fullest layer (GPM)", "GPM ÷ fine-tuning"]
    print(f"| network | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}", flush=True)
    worst, refused = 0.0, dict[str, str]()
    for name in given.networks:
        found, seconds, cells, share, full = dict[str, float](), dict[str, float](), list[str](), "", ""
        epochs = given.epochs * LONGER.get(name, 1)
        plan = Plan(rate=0.05, epochs=epochs, batch=32, schedule="linear", keep="last")
        for method in given.methods:
            made = wrapped(name, method, given.seed, given.kappa, threshold=given.threshold, samples=given.samples)
            started = time.process_time()
            try:
                found[method], accuracy = drift(made, tasks, plan, given.seed)
            except WrongValue as error:
                cells.append("refused")
                refused[name] = str(error)
                continue
            seconds[method] = time.process_time() - started
            cells.append(f"{found[method]:.3f} ({accuracy:.0f})")
            coverage = made.net.coverage
            share = f"{coverage.shares().get('projected', 0.0):.0f} %" if coverage else ""
            full = fullest(made) if method == "gpm" else full
        ratio = f"{seconds['gpm'] / seconds['finetune']:.2f}" if {"gpm", "finetune"} <= seconds.keys() else ""
        print(f"| {name} | {' | '.join([*cells, share, full, ratio])} |", flush=True)
        protected = [value for method, value in found.items() if method != "finetune"]
        worst = max([worst, *(value / found["finetune"] for value in protected if "finetune" in found)])
    print()
    for name, reason in refused.items():
        print(f"{name}: {reason}")
    print(f"worst ÷ fine-tuning: {worst:.2f}")
    sys.exit(worst > 1 / 5)


if __name__ == "__main__":
    main()
