"""A tiny network with dropout and running statistics, and what probes do to networks, written out: no code of the
package but the streams of chance, so that the figures of probes can be told from elsewhere.

No image depends on another here, so that attacks are those of the papers, image by image.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perdure.methods.finetune import FineTune
from perdure.methods.method import Method
from perdure.nets.network import Backbone, Network
from perdure.probes.probe import TrainedMethod
from perdure.seeding import chance, generator
from perdure.types import Split, Task

Weights = dict[str, Tensor]
CLASSES = 3
TEST, TRAIN = (72, 80, 76), (90, 75, 84)  # images of each task: more than one batch, and not as many in each


class Tiny(Backbone):
    """Of few enough weights for a whole Hessian."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm1, self.drop1 = nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Dropout2d(0.5)
        self.fc, self.norm2, self.drop2 = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.width = 6

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.avg_pool2d(self.drop1(torch.tanh(self.norm1(self.conv(x)))), 3).flatten(1)
        features = self.drop2(torch.tanh(self.norm2(self.fc(x))))
        return features, features


class Answers:
    """The same network's answers to the images of one task: pixels in, logits out."""

    def __init__(self, method: Method, task: int, split: Split) -> None:
        self.state = {name: tensor.detach().clone() for name, tensor in method.net.state_dict().items()}
        self.task = task
        self.mean, self.std = (torch.tensor(values).double().view(1, 3, 1, 1) for values in (split.mean, split.std))

    @property
    def weights(self) -> Weights:
        """Those that this task's answers depend on."""
        own, statistics = f"heads.{self.task}.weight", ("running_mean", "running_var", "num_batches_tracked")
        return {
            name: tensor
            for name, tensor in self.state.items()
            if name == own or (name.startswith("backbone.") and not name.endswith(statistics))
        }

    def normalized(self, pixels: Tensor) -> Tensor:
        return (pixels - self.mean) / self.std

    def pooled(self, pixels: Tensor, weights: Weights | None = None) -> Tensor:
        """What the linear layer is given."""
        w = {**self.state, **(weights or {})}
        x = F.conv2d(self.normalized(pixels), w["backbone.conv.weight"], w["backbone.conv.bias"])
        x = torch.tanh(_normalized(x, w, "backbone.norm1"))
        return torch.stack([x[:, :, i : i + 3, j : j + 3].mean((2, 3)) for i in (0, 3) for j in (0, 3)], 2).flatten(1)

    def hidden(self, pixels: Tensor, weights: Weights | None = None) -> Tensor:
        w = {**self.state, **(weights or {})}
        x = self.pooled(pixels, weights) @ w["backbone.fc.weight"].T + w["backbone.fc.bias"]
        return torch.tanh(_normalized(x, w, "backbone.norm2"))

    def __call__(self, pixels: Tensor, weights: Weights | None = None) -> Tensor:
        head = {**self.state, **(weights or {})}[f"heads.{self.task}.weight"]
        return self.hidden(pixels, weights) @ head.T

    def right(self, pixels: Tensor, y: Tensor) -> Tensor:
        return self(pixels).argmax(1) == y

    def losses(self, pixels: Tensor, y: Tensor, weights: Weights | None = None) -> Tensor:
        """Cross-entropy of each image."""
        return -self(pixels, weights).log_softmax(1).gather(1, y[:, None])[:, 0]

    def gradient(self, pixels: Tensor, y: Tensor) -> Tensor:
        """Of the summed loss, by the pixels."""
        start = pixels.clone().requires_grad_()
        (found,) = torch.autograd.grad(self.losses(start, y).sum(), start)
        return found


def _normalized(x: Tensor, w: Weights, name: str) -> Tensor:
    shape = (1, -1, *[1] * (x.ndim - 2))
    mean, variance, scale, shift = (
        w[f"{name}.{part}"].view(shape) for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (variance + 1e-5).sqrt() * scale + shift


class Made(NamedTuple):
    """What probes are tried on: a method with its history, another one, and the first behind a saturated softmax."""

    trained: TrainedMethod
    other: TrainedMethod
    sure: TrainedMethod


def make() -> Made:
    rng = generator(0, "plain")

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    first = Network(Tiny()).double()
    for _ in TEST:
        first.add_head(CLASSES)
    with torch.no_grad():
        for name, weight in first.named_parameters():
            noise = drawn(*weight.shape)
            weight.copy_(1 + 0.2 * noise if "norm" in name and name.endswith("weight") else noise / 2)
            if name.startswith("heads."):
                weight.mul_(3)
    pixels = [[torch.rand(n, 3, 8, 8, generator=rng, dtype=torch.float64) for n in sizes] for sizes in (TEST, TRAIN)]
    scales = [((0.5, 0.45, 0.4), (0.25, 0.2, 0.3)), ((0.4, 0.5, 0.5), (0.3, 0.25, 0.2)), ((0.5,) * 3, (0.25,) * 3)]
    with chance(0, "statistics"), torch.no_grad():  # running statistics that are not those of any batch
        for task, (mean, std) in enumerate(scales):
            first((pixels[0][task] - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1), task)

    def moved(size: float, heads: int = len(TEST)) -> FineTune:
        net = deepcopy(first)
        net.heads = net.heads[:heads]  # type: ignore[assignment]
        with torch.no_grad():
            for weight in net.parameters():
                weight.add_(size * drawn(*weight.shape))
        return FineTune(net).train()  # probes have to switch to evaluation themselves

    snapshots = [moved(0.2, 1), moved(0.1, 2), moved(0.0)]
    tasks = []
    for task, (mean, std) in enumerate(scales):
        splits = []
        for x in (pixels[0][task], pixels[1][task]):
            blank = Split(x, torch.zeros(len(x), dtype=torch.int64), mean, std)
            y = Answers(snapshots[-1], task, blank)(x).argmax(1)
            y[::3] = (y[::3] + 1) % CLASSES
            splits.append(Split(x, y, mean, std))
        test, train = splits
        tasks.append(Task(f"task {task}", ("a", "b", "c"), train, test, test))
    sure = deepcopy(snapshots[-1])
    with torch.no_grad():
        for head in sure.net.heads:
            head.weight.mul_(300)
    return Made(
        TrainedMethod(snapshots[-1], tasks, "one", snapshots),
        TrainedMethod(moved(0.15), tasks, "other"),
        TrainedMethod(sure, tasks, "sure"),
    )


def batches(split: Split, limit: int | None = None) -> list[tuple[Tensor, Tensor]]:
    """Shuffled once for all, 64 at a time."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:limit]
    return [(split.x[rows], split.y[rows]) for rows in order.split(64)]


# --- attacks ---


def worst(model: Answers, points: Sequence[Tensor], y: Tensor, loss: str = "ce") -> Tensor:
    """Of each image the point where it is answered wrong, then the one of the highest loss. A batch that is as bad as
    a whole was there first, and differs where losses are 0 throughout."""
    rights = torch.stack([model.right(point, y) for point in points])
    heights = torch.stack([height(model(point), y, loss) for point in points])
    places = range(len(points))
    chosen = [max(places, key=lambda k: (not rights[k, n], float(heights[k, n]))) for n in range(len(y))]
    together = torch.stack([points[k][n] for n, k in enumerate(chosen)])
    return min(
        [*points, together],
        key=lambda batch: (int(model.right(batch, y).sum()), -float(height(model(batch), y, loss).sum())),
    )


def height(logits: Tensor, y: Tensor, loss: str | int) -> Tensor:
    """By the name of a loss, or by how far a class is ahead of the right one."""
    if loss == "ce":
        return -logits.log_softmax(1).gather(1, y[:, None])[:, 0]
    found = []
    for row, label in zip(logits, y.tolist(), strict=True):
        if isinstance(loss, int):
            found.append(row[loss] - row[label])
            continue
        first, _, third = row.sort(descending=True).values[:3]
        others = torch.cat([row[:label], row[label + 1 :]])
        found.append(-(row[label] - others.max()) / (first - third if loss == "dlr" else 1))
    return torch.stack(found)


def fgsm(model: Answers, x: Tensor, y: Tensor, radius: float) -> Tensor:
    return (x + radius * model.gradient(x, y).sign()).clamp(0, 1)


def noise(x: Tensor, radius: float, rng: torch.Generator) -> Tensor:
    return (x + radius * (2.0 * torch.randint(2, x.shape, generator=rng) - 1)).clamp(0, 1)


def random_start(x: Tensor, radius: float, rng: torch.Generator) -> Tensor:
    return (x + radius * (2 * torch.rand(x.shape, generator=rng).double() - 1)).clamp(0, 1)


def pgd(
    model: Answers, x: Tensor, y: Tensor, radius: float, rng: torch.Generator, *, steps: int, restarts: int = 1
) -> Tensor:
    ends = []
    for _ in range(restarts):
        at = random_start(x, radius, rng)
        for _ in range(steps):
            at = at + 2.5 * radius / steps * model.gradient(at, y).sign()
            at = torch.minimum(torch.maximum(at, x - radius), x + radius).clamp(0, 1)
        ends.append(at)
    return worst(model, [x, *ends], y)


def apgd(model: Answers, x: Tensor, y: Tensor, radius: float, rng: torch.Generator, *, steps: int, loss: str) -> Tensor:
    paths = apgd_paths(model, x, y, radius, rng, steps=steps, loss=loss)
    points = [torch.cat([path[step] for path in paths]) for step in range(steps + 1)]
    return worst(model, [x, *points], y, loss)


def apgd_paths(
    model: Answers, x: Tensor, y: Tensor, radius: float, rng: torch.Generator, *, steps: int, loss: str
) -> list[list[Tensor]]:
    """Alg. 1 of Croce and Hein, one image after the other: every point of each."""
    starts = random_start(x, radius, rng)
    each = zip(x.split(1), y.split(1), starts.split(1), strict=True)
    return [_apgd_path(model, *image, radius, steps, loss) for image in each]


def apgd_t(model: Answers, x: Tensor, y: Tensor, radius: float, rng: torch.Generator, *, steps: int) -> Tensor:
    """Of three classes: first towards the more likely wrong one of each image, then towards the other, by the
    difference of logits; kept by the lead of the right class."""
    points = [x]
    for place in (0, 1):
        each = zip(x.split(1), y.split(1), random_start(x, radius, rng).split(1), wrong(model, x, y), strict=True)
        paths = [
            _apgd_path(model, image, label, start, radius, steps, targets[place])
            for image, label, start, targets in each
        ]
        points += [torch.cat([path[step] for path in paths]) for step in range(steps + 1)]
    return worst(model, points, y, "lead")


def wrong(model: Answers, x: Tensor, y: Tensor) -> list[list[int]]:
    """The wrong classes of each image, the most likely first."""
    ranked = [sorted(range(CLASSES), key=lambda k: -float(row[k])) for row in model(x)]
    return [[k for k in row if k != label] for row, label in zip(ranked, y.tolist(), strict=True)]


def fab(model: Answers, x: Tensor, y: Tensor, radius: float, *, steps: int) -> Tensor:
    """Alg. 1 of Croce and Hein, image by image towards both wrong classes: the nearest wrong answer if it is within the
    radius, else the image."""
    found = []
    for image, label, targets in zip(x.split(1), y.split(1), wrong(model, x, y), strict=True):
        nearest, least = image, 0.0 if not bool(model.right(image, label)) else math.inf
        for target in targets:
            here = image
            for _ in range(steps):
                at = here.clone().requires_grad_()
                ahead = height(model(at), label, target)
                (slope,) = torch.autograd.grad(ahead.sum(), at)
                value = float(ahead.detach())
                own = _to_plane(here, slope, value)
                other = _to_plane(image, slope, value + float((slope * (image - here)).sum()))
                one, two = float(own.abs().max()), float(other.abs().max())
                alpha = min(one / (one + two), 0.1)
                here = ((1 - alpha) * (here + 1.05 * own) + alpha * (image + 1.05 * other)).clamp(0, 1)
                if not bool(model.right(here, label)):
                    far = float((here - image).abs().max())
                    nearest, least = (here, far) if far < least else (nearest, least)
                    here = image + 0.9 * (here - image)
        found.append(nearest if least <= radius else image)
    return torch.cat(found)


def _to_plane(x: Tensor, slope: Tensor, value: float) -> Tensor:
    """By bisection: as far as all pixels have to go, each until it is black or white."""
    way = -math.copysign(1, value) * slope
    short, enough = 0.0, 1.0
    for _ in range(40):
        middle = (short + enough) / 2
        gained = float((way * ((x + middle * way.sign()).clamp(0, 1) - x)).sum())
        short, enough = (short, middle) if gained >= abs(value) else (middle, enough)
    return (x + enough * way.sign()).clamp(0, 1) - x


def _apgd_path(
    model: Answers, x: Tensor, y: Tensor, start: Tensor, radius: float, steps: int, loss: str | int
) -> list[Tensor]:
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    checks = [0, *sorted({math.ceil(round(share * steps, 9)) for share in shares[1:-1]})]

    def climb(at: Tensor) -> tuple[float, Tensor]:
        at = at.clone().requires_grad_()
        value = height(model(at), y, loss)
        return float(value.detach()), torch.autograd.grad(value.sum(), at)[0]

    def inside(at: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(at, x - radius), x + radius).clamp(0, 1)

    path, rate, rises, halved = [start], 2 * radius, 0, False
    here = before = best = start
    value, slope = climb(here)
    best_value, best_slope, best_then = value, slope, value
    for step in range(1, steps + 1):
        ahead = inside(here + rate * slope.sign())
        if step > 1:
            ahead = inside(here + 0.75 * (ahead - here) + 0.25 * (here - before))
        before, here, value_before = here, ahead, value
        path.append(here)
        value, slope = climb(here)
        rises += value > value_before
        if value > best_value:
            best, best_value, best_slope = here, value, slope
        if step in checks:
            window = step - checks[checks.index(step) - 1]
            halved = rises < 0.75 * window or (not halved and best_value == best_then)
            if halved:
                rate, here, value, slope = rate / 2, best, best_value, best_slope
            rises, best_then = 0, best_value
    return path


def square(model: Answers, x: Tensor, y: Tensor, radius: float, rng: torch.Generator, *, queries: int) -> Tensor:
    """Alg. 1 and 2 of Andriushchenko et al. with the margin as loss."""
    n, channels, side_of_image, _ = x.shape

    def margins(at: Tensor) -> Tensor:
        logits = model(at)
        own = logits.gather(1, y[:, None])[:, 0]
        return own - logits.scatter(1, y[:, None], -torch.inf).amax(1)

    stripes = 2.0 * torch.randint(2, (n, channels, 1, side_of_image), generator=rng) - 1
    here = (x + radius * stripes).clamp(0, 1)
    path, least = [x, here], margins(here)
    for query in range(1, queries):
        halvings = sum(query / queries > bound for bound in (1e-3, 5e-3, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8))
        side = max(round(math.sqrt(0.8 / 2**halvings) * side_of_image), 1)
        tops, lefts = (torch.randint(side_of_image - side + 1, (n, 1), generator=rng).flatten() for _ in range(2))
        signs = 2.0 * torch.randint(2, (n, channels), generator=rng) - 1
        ahead = here.clone()
        for image in range(n):
            top, left = int(tops[image]), int(lefts[image])
            for channel in range(channels):
                window = (image, channel, slice(top, top + side), slice(left, left + side))
                ahead[window] = (x[window] + radius * signs[image, channel]).clamp(0, 1)
        path.append(ahead)
        better = margins(ahead) < least
        least = torch.where(better, margins(ahead), least)
        here = torch.stack([ahead[image] if better[image] else here[image] for image in range(n)])
    wrong_first = torch.stack([-margins(point) for point in path])
    chosen = wrong_first.argmax(0)  # by the margin, wrong and highest are one
    return torch.stack([path[int(k)][image] for image, k in enumerate(chosen)])
