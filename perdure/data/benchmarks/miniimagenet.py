"""Split MiniImageNet: twenty tasks of five classes, drawn by the seed."""

from pathlib import Path

from perdure.data.catalog import MINIIMAGENET
from perdure.data.load import stream_of_classes
from perdure.data.tasks import legacy_generator
from perdure.types import Stream

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def class_order(seed: int) -> list[list[int]]:
    """The classes of each task; a class's label within its task is its place there.

    >>> class_order(1)[:3]
    [[80, 84, 33, 81, 93], [17, 36, 82, 69, 65], [92, 39, 56, 52, 51]]
    """
    groups: list[list[int]] = legacy_generator(seed).permutation(100).reshape(20, 5).tolist()
    return groups


def miniimagenet(*, seed: int, root: str | Path | None = None, tasks: int | None = None) -> Stream:
    """Twenty tasks of five classes: 2450 images to train on, 50 to validate with, 500 to test, each (3, 84, 84).

    `seed` draws the classes of the tasks, as in the published runs, and the validation images, which those runs drew
    with torch's generator in whatever state it happened to be. `tasks` keeps the first few.
    """
    return stream_of_classes(
        MINIIMAGENET, class_order(seed), root=root, tasks=tasks, valid_share=0.02, seed=seed, mean=MEAN, std=STD
    )
