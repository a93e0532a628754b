"""Which task is an image of? By how likely its activations are for each task; measured, not promised.

For every task, mean and variance of each layer's inputs over training images are kept, channel by channel, after a mean
over positions. An image is as far from a task as these inputs, computed with the task's own statistics and
normalization, are unusual for it: the negative log-likelihood of independent Gaussians, averaged over channels and
layers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from perdure.methods.method import Method
from perdure.nets.network import Network
from perdure.ops.layers import layer_inputs
from perdure.types import Split, cut

LEAST = 1e-6  # variance of a channel that never varies
KNOWN = 0.975  # share of a task's validation images that must be taken to be known
PREFIX = "activations"  # of the tensors' names in a state: activations/TASK/LAYER

Activations = dict[str, Tensor]
"""Layer → mean and variance of its inputs (2, channels)."""


@torch.no_grad()
def activation_statistics(method: Method, task: int, split: Split, batch: int = 64) -> Activations:
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
def distances(method: Method, split: Split, task: int, activations: Activations, batch: int = 64) -> Tensor:
    """How unlikely each image of a split, normalized as this task's are, is for a task (n,)."""
    device, found = next(method.parameters()).device, list[Tensor]()
    for rows in cut(len(split), batch):
        x = split.take(rows)[0].to(device)
        total = torch.zeros(len(x), dtype=torch.float64)
        for name, each in _means(method, x, task).items():
            mean, variance = activations[name].double().to(each.device)
            total += ((each - mean).square() / variance + variance.log()).mean(1).cpu() / 2
        found.append(total / len(activations))
    return torch.cat(found)


def nearest_task(far: Tensor, thresholds: Sequence[float | None]) -> list[int]:
    """Of distances (n, tasks) the nearest task, or −1 where even that is further away than its own images are."""
    nearest = far.argmin(1).tolist()
    limits = [thresholds[task] for task in nearest]
    return [
        task if limit is None or far[row, task] <= limit else -1
        for row, (task, limit) in enumerate(zip(nearest, limits, strict=True))
    ]


def threshold(far: Tensor) -> float:
    """The distance that most of a task's own images do not exceed."""
    return float(torch.quantile(far, KNOWN))


def _means(method: Method, x: Tensor, task: int) -> Mapping[str, Tensor]:
    """Layer → mean over positions of what it receives (n, channels), double precision."""
    method.eval()
    inputs = layer_inputs(method.net.backbone, lambda: method.forward(x, task))
    layers, found = method.net.layers(), {}
    for name, received in inputs.items():
        if name in layers and received.layer.kind != "embedding":
            channels = -1 if received.layer.kind == "linear" else 1
            parts = [_pooled(part, channels, len(x)) for part in received.x]
            found[name] = torch.stack(parts).mean(0) if len(parts) > 1 else parts[0]
    return found


def _pooled(x: Tensor, channels: int, n: int) -> Tensor:
    moved = x.double().movedim(channels, -1)
    if len(moved) != n and moved.ndim > 2 and moved.shape[1] == n:  # attention may have the batch second
        moved = moved.movedim(1, 0)
    return moved.reshape(n, -1, moved.shape[-1]).mean(1)


# --- in files, and measured ---


def with_activations(method: Method, activations: Mapping[int, Activations]) -> dict[str, Tensor]:
    extra = {f"{PREFIX}/{task}/{name}": kept for task, of in activations.items() for name, kept in of.items()}
    return {**method.state_dict(), **extra}


def split_activations(tensors: Mapping[str, Tensor]) -> tuple[dict[int, Activations], dict[str, Tensor]]:
    activations: dict[int, Activations] = {}
    own: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        first, _, rest = name.partition("/")
        task, _, layer = rest.partition("/")
        if first == PREFIX and task.isascii() and task.isdecimal():
            activations.setdefault(int(task), {})[layer] = tensor.clone()
        else:
            own[name] = tensor.clone()
    return activations, own


def check_activations(activations: Mapping[int, Activations], net: Network, tasks: int) -> None:
    for task, of in activations.items():
        for name, kept in of.items():
            if task >= tasks or kept.ndim != 2 or len(kept) != 2 or kept.dtype != torch.float32:
                raise ValueError(f"activation statistics of {name}")
            if not bool(torch.isfinite(kept).all()) or not bool((kept[1] > 0).all()):
                raise ValueError(f"activation statistics of {name}")
            if name not in net.layers():
                raise ValueError(f"activation statistics of {name}")


def inference_accuracy(
    method: Method,
    activations: Mapping[int, Activations],
    tasks: Sequence[Mapping[str, Any]],
    tests: Mapping[str, Split],
) -> dict[str, Any] | None:
    """How often the task of single test images is told right; None unless two tasks have some."""
    names = {task["name"]: number for number, task in enumerate(tasks) if number in activations}
    judged = [name for name in tests if name in names]
    if len(judged) < 2:
        return None
    known = [names[name] for name in names]
    right, total = 0, 0
    for name in judged:
        split = tests[name]
        columns = []
        for number in known:
            own = Split(split.x, split.y, tuple(tasks[number]["mean"]), tuple(tasks[number]["std"]))
            columns.append(distances(method, own, number, activations[number]))
        right += int((torch.stack(columns, 1).argmin(1) == known.index(names[name])).sum())
        total += len(split)
    return {"accuracy": 100 * right / total, "chance": 100 / len(known), "images": total, "tasks": judged}
