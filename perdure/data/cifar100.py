"""Split CIFAR-100: ten tasks of ten classes."""

from pathlib import Path

from perdure.data.catalog import CIFAR100
from perdure.data.imageset import load, source_notes, task_of_classes
from perdure.data.stream import task_count
from perdure.types import Stream

MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)
VALID_SHARE = 0.05
TASKS, CLASSES = 10, 10


def cifar100(*, seed: int, root: Path | None = None, tasks: int | None = None) -> Stream:
    """Ten tasks of ten classes in the order of their indices: 4750 images to train on, 250 to validate with,
    1000 to test, each (3, 32, 32).

    `seed` draws the validation images of every task; `tasks` keeps the first few. The files are looked for in
    `root`, else $PERDURE_DATA, else the user's cache, and are never changed. The notes say whether they are the
    complete official ones, for only then may published figures be compared.
    """
    count = task_count(tasks, TASKS)
    images = load(CIFAR100, root)
    made = [
        task_of_classes(
            f"cifar100-{task}",
            images,
            range(task * CLASSES, (task + 1) * CLASSES),
            valid_share=VALID_SHARE,
            seed=seed,
            mean=MEAN,
            std=STD,
        )
        for task in range(count)
    ]
    notes = {**source_notes({images.name: images}), "tasks": f"{count} of {TASKS}"}
    return Stream("cifar100", made, notes, images.fingerprint)
