"""How much of a method's accuracy is left under attack."""

from collections.abc import Sequence
from typing import Any

import torch

from perdure.methods.method import Method
from perdure.ops.attacks import fgsm
from perdure.ops.losses import cross_entropy
from perdure.types import Split, Task

STRENGTHS = (1 / 255, 2 / 255, 4 / 255)


def fgsm_accuracy(method: Method, tasks: Sequence[Task], strengths: Sequence[float] = STRENGTHS) -> dict[str, Any]:
    """Accuracy (percent, mean over tasks) under FGSM; strengths are in pixels of [0, 1], images stay within it.

    The attacked batch has the composition of the clean one, since batch norm may couple its images.
    """
    by_task = [[_attacked(method, task.test, i, size) for i, task in enumerate(tasks)] for size in strengths]
    return {
        "space": "pixels in [0, 1], clipped",
        "strengths": list(strengths),
        "acc": [sum(row) / len(row) for row in by_task],
        "by_task": by_task,
    }


def _attacked(method: Method, split: Split, task: int, strength: float) -> float:
    method.eval()
    weights = {name: weight.detach() for name, weight in method.weights(task).items()}
    hits = 0
    for x, y in split.batches(64):
        step = strength / split.scale(x)
        low, high = split.normalize(torch.zeros_like(x[:1])), split.normalize(torch.ones_like(x[:1]))

        def loss(moved: torch.Tensor, y: torch.Tensor = y) -> torch.Tensor:
            return cross_entropy(method.look(moved, task, weights).logits, y)

        attacked = fgsm(loss, x, step, low, high)
        with torch.no_grad():
            hits += int((method.look(attacked, task, weights).logits.argmax(1) == y).sum())
    return 100 * hits / len(split)
