"""How much bases tell of the very images they were made from: whether an image was among them shows in what is left of
its layer inputs outside of the basis."""

import torch
from torch import Tensor

from perdure.memory.gradient_memory import DualMemory, GradientMemory
from perdure.methods.method import Method
from perdure.ops.layers import layer_inputs
from perdure.seeding import chance
from perdure.types import Lesson, Part


@torch.no_grad()
def membership(method: Method, lesson: Lesson, seed: int) -> dict[str, float]:
    """Linear layer → AUC of telling images that a basis was made from, from validation images of the same task; 0.5 is
    chance. Empty for methods without bases."""
    memory, samples = getattr(method, "memory", None), getattr(method, "samples", 0)
    if not isinstance(memory, GradientMemory) or isinstance(memory, DualMemory) or not samples:
        return {}
    (part,) = lesson.parts
    with chance(seed, "end", lesson.index):  # the draw by which `Method.end` chose them
        members = lesson.sample(samples).x
    others, _ = part.valid.take(torch.arange(len(part.valid)))
    inside, outside = _outside(method, memory, members, part), _outside(method, memory, others, part)
    return {name: auc(outside[name], inside[name]) for name in inside}


def auc(higher: Tensor, lower: Tensor) -> float:
    """The chance that one of the first is larger than one of the second; ties count half.

    >>> auc(torch.tensor([2.0, 3.0]), torch.tensor([1.0, 2.0]))
    0.875
    """
    wins = (higher[:, None] > lower[None]).double() + (higher[:, None] == lower[None]).double() / 2
    return float(wins.mean())


def _outside(method: Method, memory: GradientMemory, x: Tensor, part: Part) -> dict[str, Tensor]:
    """Linear layer → share of each image's input energy outside of the basis."""
    method.eval()
    inputs = layer_inputs(method.net.backbone, lambda: method.forward(x, part.task))
    found = {}
    for name, received in inputs.items():
        if received.layer.kind == "linear" and name in memory and memory[name].shape[1] and received.x[0].ndim == 2:
            rows = received.x[0].double()
            basis = memory[name].double()
            left = rows - rows @ basis @ basis.T
            found[name] = left.square().sum(1) / rows.square().sum(1).clamp(min=1e-30)
    return found
