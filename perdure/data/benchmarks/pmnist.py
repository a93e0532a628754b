"""Permuted MNIST: ten tasks of the same digits, the pixels of each shuffled in its own way."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from perdure.data.catalog import MNIST
from perdure.data.load import load, source_notes
from perdure.data.tasks import legacy_generator, task_count
from perdure.types import Split, Stream, Task

MEAN, STD = (0.1307,), (0.3081,)
VALID_SHARE = 0.1
TASKS = 10


def pixel_orders(seed: int) -> list[Tensor]:
    """For each task, which of the 784 pixels comes first, second, …; every task is shuffled, also the first.

    These are the published orders: shuffles 0 to 9 are themselves put in an order by `seed`, and shuffle r at place i
    is that of numpy's legacy generator seeded with 100 r + i.

    >>> [order[:3].tolist() for order in pixel_orders(0)[:2]]
    [[92, 516, 39], [693, 65, 276]]
    """
    numbers = np.arange(TASKS)
    legacy_generator(seed).shuffle(numbers)
    orders = []
    for place, number in enumerate(numbers):
        pixels = np.arange(28 * 28)
        legacy_generator(int(number) * 100 + place).shuffle(pixels)
        orders.append(torch.from_numpy(pixels))
    return orders


def pmnist(*, seed: int, root: str | Path | None = None, tasks: int | None = None) -> Stream:
    """Ten tasks of ten digits, each image (1, 28, 28): 54 000 to train on, 6 000 to validate with, 10 000 to test.

    `seed` orders the shuffles of the pixels. The first tenth of the training images validates, in every task.
    """
    count = task_count(tasks, TASKS)
    images = load(MNIST, root)
    (x, y), (test_x, test_y) = images.train, images.test
    held = int(VALID_SHARE * len(y))
    made = []
    for number, order in enumerate(pixel_orders(seed)[:count]):
        train, test = (pixels.flatten(1)[:, order].view_as(pixels) for pixels in (x, test_x))
        splits = (Split(train[held:], y[held:], MEAN, STD), Split(train[:held], y[:held], MEAN, STD))
        made.append(Task(f"pmnist-{number}", images.classes, *splits, Split(test, test_y, MEAN, STD)))
    return Stream("pmnist", made, source_notes({images.name: images}, count, TASKS), images.fingerprint)
