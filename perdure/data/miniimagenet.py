"""Split MiniImageNet: twenty tasks of five classes, drawn by the seed."""

from pathlib import Path

from perdure.data.catalog import MINIIMAGENET
from perdure.data.imageset import load, source_notes, task_of_classes
from perdure.data.stream import legacy_generator, task_count
from perdure.types import Stream

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
VALID_SHARE = 0.02
TASKS, CLASSES = 20, 5


def class_order(seed: int) -> list[list[int]]:
    """The classes of each task; a class's label within its task is its place there.

    >>> class_order(1)[:3]
    [[80, 84, 33, 81, 93], [17, 36, 82, 69, 65], [92, 39, 56, 52, 51]]
    """
    groups: list[list[int]] = legacy_generator(seed).permutation(TASKS * CLASSES).reshape(TASKS, CLASSES).tolist()
    return groups


def miniimagenet(*, seed: int, root: Path | None = None, tasks: int | None = None) -> Stream:
    """Twenty tasks of five classes: 2450 images to train on, 50 to validate with, 500 to test, each (3, 84, 84).

    `seed` draws the classes of the tasks, as in the published runs, and the validation images, which those runs drew
    with torch's generator in whatever state it happened to be. `tasks` keeps the first few.
    """
    count = task_count(tasks, TASKS)
    images = load(MINIIMAGENET, root)
    made = [
        task_of_classes(f"miniimagenet-{task}", images, classes, valid_share=VALID_SHARE, seed=seed, mean=MEAN, std=STD)
        for task, classes in enumerate(class_order(seed)[:count])
    ]
    notes = {**source_notes({images.name: images}), "tasks": f"{count} of {TASKS}"}
    return Stream("miniimagenet", made, notes, images.fingerprint)
