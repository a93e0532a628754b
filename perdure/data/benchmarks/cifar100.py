"""Split CIFAR-100: ten tasks of ten classes."""

from pathlib import Path
from typing import Literal

from perdure.data.catalog import CIFAR100
from perdure.data.load import stream_of_classes
from perdure.data.tasks import legacy_generator
from perdure.types import Stream

MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)
GROUPS = [range(first, first + 10) for first in range(0, 100, 10)]


def class_order(seed: int) -> list[list[int]]:
    """The classes of each task where they are drawn at random; a class's label within its task is its place there.

    >>> [sorted(sum(class_order(seed), [])) == list(range(100)) for seed in (1, 2)], class_order(1) == class_order(2)
    ([True, True], False)
    """
    groups: list[list[int]] = legacy_generator(seed).permutation(100).reshape(10, 10).tolist()
    return groups


def cifar100(
    *,
    seed: int,
    root: str | Path | None = None,
    tasks: int | None = None,
    order: Literal[
        "index", "random"
    ] = "index",  # of the classes: as in the published runs, or drawn, as the paper says
) -> Stream:
    """Ten tasks of ten classes in the order of their indices: 4750 images to train on, 250 to validate with,
    1000 to test, each (3, 32, 32).

    `seed` draws the validation images of every task, and the classes if they have a random order; `tasks` keeps the
    first few. The files are looked for in
    `root`, else $PERDURE_DATA, else the user's cache, and are never changed. The notes say whether they are the
    complete official ones, for only then may published figures be compared.
    """
    groups = GROUPS if order == "index" else class_order(seed)
    return stream_of_classes(CIFAR100, groups, root=root, tasks=tasks, valid_share=0.05, seed=seed, mean=MEAN, std=STD)
