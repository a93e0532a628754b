"""Which task is an image of? By how usual the inputs of all layers are for each task; measured, not promised.

For every task, mean and variance of each layer's inputs over training images are kept, channel by channel, after a mean
over positions. An image is as far from a task as these inputs, computed with the task's own statistics and
normalization, are unusual for it: the negative log-likelihood of independent Gaussians, a mean over channels and layers.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from perdure.methods.method import Method
from perdure.ops.layers import layer_inputs
from perdure.types import Split

LEAST = 1e-6  # variance of a channel that never varies
KNOWN = 0.975  # share of a task's validation images that must be taken to be known
PREFIX = "usual"  # of the tensors' names in a state: usual/TASK/LAYER

Usual = dict[str, Tensor]
"""Layer → mean and variance of its inputs (2, channels)."""


class Guess(NamedTuple):
    """Which task each image was taken to be of; −1 for none."""

    tasks: list[int]
    distances: Tensor  # (n, tasks)


@torch.no_grad()
def usual_inputs(method: Method, task: int, split: Split, batch: int = 64) -> Usual:
    """Mean and variance over the images of a split."""
    sums: dict[str, Tensor] = {}
    for x, _ in split.batches(batch):
        for name, each in _means(method, x, task).items():
            found = torch.stack([each.sum(0), each.square().sum(0)])
            sums[name] = sums[name] + found if name in sums else found
    count = len(split)
    means = {name: (one / count, two / count) for name, (one, two) in sums.items()}
    return {
        name: torch.stack([one, (two - one.square()).clamp(min=LEAST)]).float().contiguous()
        for name, (one, two) in means.items()
    }


@torch.no_grad()
def distance(method: Method, x: Tensor, task: int, usual: Usual) -> Tensor:
    """How unusual normalized images (n, …) are for a task (n,)."""
    total = torch.zeros(len(x), dtype=torch.float64)
    for name, each in _means(method, x, task).items():
        mean, variance = usual[name].double().to(each.device)
        total += ((each - mean).square() / variance + variance.log()).mean(1).cpu() / 2
    return total / len(usual)


def guess(distances: Tensor, known: Sequence[float | None]) -> list[int]:
    """The nearest task, or −1 where even that is further away than its own images are."""
    nearest = distances.argmin(1).tolist()
    rows = enumerate(nearest)
    return [-1 if (limit := known[task]) is not None and distances[row, task] > limit else task for row, task in rows]


def threshold(distances: Tensor) -> float:
    """The distance that most of a task's own images do not exceed."""
    return float(torch.quantile(distances, KNOWN))


def _means(method: Method, x: Tensor, task: int) -> Mapping[str, Tensor]:
    """Layer → mean over positions of what it receives (n, channels), double precision."""
    method.eval()
    inputs = layer_inputs(method.net.backbone, lambda: method.forward(x, task))
    found = {}
    for name, received in inputs.items():
        if received.layer.kind != "embedding":
            channels = -1 if received.layer.kind == "linear" else 1
            parts = [_pooled(part, channels, len(x)) for part in received.x]
            found[name] = torch.stack(parts).mean(0) if len(parts) > 1 else parts[0]
    return found


def _pooled(x: Tensor, channels: int, n: int) -> Tensor:
    moved = x.double().movedim(channels, -1)
    if len(moved) != n and moved.ndim > 2 and moved.shape[1] == n:  # attention may have the batch second
        moved = moved.movedim(1, 0)
    return moved.reshape(n, -1, moved.shape[-1]).mean(1)
