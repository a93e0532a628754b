"""`synthetic`: a stream made in milliseconds and learned in seconds, for tests and first steps."""

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.data.images import machine_memory
from perdure.errors import WrongValue, short
from perdure.seeding import generator
from perdure.types import Split, Stream, Task

CELLS = 4  # patterns are smooth: noise on a grid of 4 × 4, enlarged
SIGNAL, WOBBLE, NUISANCE = 0.2, 0.04, 0.1  # deviation of the pixels from 0.5 that a pattern causes
NOISE = 0.05  # of every pixel by itself
# Pixels deviate by 0.25; dividing by less makes larger inputs, for an epoch of 90 images has few steps to learn in.
MEAN, STD = (0.5,) * 3, (0.16,) * 3


def synthetic(
    *,
    seed: int,
    tasks: int | None = None,  # 3 when left out; any number is allowed
    classes: int = 3,
    size: int = 32,  # height and width
    per_class: int = 30,  # images to train on; a third of it validates, two thirds test
) -> Stream:
    """Tasks of smooth colored patterns (3, size, size) in [0, 1] plus noise.

    All tasks mix the same 2 · classes patterns. Each has directions of its own among them: half tell its classes
    apart, the other half vary at random and have to be ignored. What one task teaches a network to ignore is in part
    what another needs, so plain training forgets. A task does not depend on how many follow it.

    >>> stream = synthetic(seed=1, size=8)
    >>> len(stream), stream.shape, [len(part) for part in (stream.tasks[0].train, stream.tasks[0].test)]
    (3, (3, 8, 8), [90, 60])
    """
    count = 3 if tasks is None else tasks
    for name, value, least in (
        ("tasks", count, 1),
        ("classes", classes, 2),
        ("size", size, 1),
        ("per_class", per_class, 3),
    ):
        if value < least:
            raise WrongValue(f"{name}={value} is not allowed; use {least} or more")
    _check_memory(count, classes, size, per_class)
    patterns = _patterns(seed, 2 * classes, size)
    made = []
    for task in range(count):
        chance = generator(seed, "synthetic", task)
        directions = torch.linalg.qr(torch.randn(2 * classes, 2 * classes, generator=chance))[0]
        train, valid, test = (
            _draw(patterns, directions, number, chance) for number in (per_class, per_class // 3, 2 * per_class // 3)
        )
        made.append(Task(f"synthetic-{task}", tuple(f"class {n}" for n in range(classes)), train, valid, test))
    return Stream("synthetic", made, {"source": "made by perdure", "completeness": "complete"})


def _check_memory(tasks: int, classes: int, size: int, per_class: int) -> None:
    """Before anything is drawn: the system would promise more memory than there is, and end the process later."""
    images = tasks * classes * (per_class + per_class // 3 + 2 * per_class // 3)
    numbers = (images + 2 * classes) * 3 * size**2 + (2 * classes) ** 2
    if numbers * torch.float32.itemsize > machine_memory():
        asked = f"tasks={short(tasks)}, classes={short(classes)}, size={short(size)}, per_class={short(per_class)}"
        raise WrongValue(f"synthetic: {asked} do not fit in memory; make some of them smaller")


def _patterns(seed: int, number: int, size: int) -> Tensor:
    """(number, 3, size, size), together about zero with deviation 1."""
    grid = torch.randn(number, 3, CELLS, CELLS, generator=generator(seed, "synthetic patterns"))
    smooth = F.interpolate(grid, size=(size, size), mode="bilinear", align_corners=True)
    return (smooth - smooth.mean()) / smooth.std()


def _draw(patterns: Tensor, directions: Tensor, per_class: int, chance: torch.Generator) -> Split:
    """`per_class` images of every class in mixed order. Class n lies along row n of `directions`
    (2 · classes, 2 · classes); along the second half of the rows images vary whatever their class."""
    classes = len(directions) // 2
    y = torch.arange(classes).repeat_interleave(per_class)
    y = y[torch.randperm(len(y), generator=chance)]
    spread = torch.tensor([WOBBLE, NUISANCE]).repeat_interleave(classes)
    along = SIGNAL * F.one_hot(y, 2 * classes) + spread * torch.randn(len(y), 2 * classes, generator=chance)
    x = 0.5 + torch.einsum("np,pchw->nchw", along @ directions, patterns)
    x = x + NOISE * torch.randn(x.shape, generator=chance)
    return Split(x.clamp(0, 1), y, MEAN, STD)
