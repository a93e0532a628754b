"""From arrays to tasks: which rows train, which validate."""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from perdure.errors import BadData, WrongValue, short
from perdure.types import Split, Task

Array = npt.NDArray[Any] | Tensor
Labeled = tuple[Array, Array]
"""Images (n, channels, height, width), uint8 or float in [0, 1], and their labels (n,)."""


def split_rows(n: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to train on (n − k,) and to validate with (k,), k = ⌊share · n⌋, both in shuffled order.

    This is the split of the published runs: numpy's legacy generator shuffles all rows and the first k validate.

    >>> split_rows(5000, 0.05, seed=1)[1][:6].tolist()
    [2764, 4767, 3814, 3499, 2735, 3922]
    """
    return split_rows_by_class(np.zeros(n), share, seed)


def split_rows_by_class(y: Array, share: float, seed: int, least: int = 0) -> tuple[Tensor, Tensor]:
    """As `split_rows`, with the same share of every class: for sets so small that chance would skew them.

    Where the share of a class comes to less than `least` images, so many are held out all the same.

    >>> train, valid = split_rows_by_class(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), 0.25, seed=1)
    >>> len(train), len(valid), int((valid < 4).sum())
    (6, 2, 1)
    """
    check_shares(valid_share=share)
    shuffler, labels = legacy_generator(seed), np.asarray(y)
    train, valid = [], []
    for label in np.unique(labels) if len(labels) else [0]:
        rows = np.flatnonzero(labels == label)
        shuffler.shuffle(rows)
        held = max(int(share * len(rows)), least)
        if held == 0:
            few = f"valid_share={share} of {len(rows)} images"
            raise WrongValue(f"{few} leaves none to validate with; raise it or add images")
        valid.append(rows[:held])
        train.append(rows[held:])
    return torch.from_numpy(np.concatenate(train)), torch.from_numpy(np.concatenate(valid))


def make_task(
    name: str,
    classes: Sequence[str],
    train: Labeled,
    test: Labeled,
    *,
    valid_share: float,
    seed: int,
    mean: Sequence[float],  # per channel, of pixels in [0, 1]
    std: Sequence[float],
    by_class: bool = False,  # hold out the same share of every class
) -> Task:
    """One task of images and labels; a share of the training rows, drawn by `seed`, validates.

    >>> images, labels = np.zeros((8, 3, 4, 4), np.uint8), np.arange(8) % 2
    >>> task = make_task(
    ...     "pair", ("a", "b"), (images, labels), (images, labels),
    ...     valid_share=0.25, seed=1, mean=(0.5,) * 3, std=(0.25,) * 3,
    ... )
    >>> len(task.train), len(task.valid), len(task.test)
    (6, 2, 8)
    """
    x, y = _labeled(f"task {name!r}, train", train)
    test_x, test_y = _labeled(f"task {name!r}, test", test)
    split = split_rows_by_class(y, valid_share, seed) if by_class else split_rows(len(y), valid_share, seed)
    return task_of_rows(name, classes, x, y, split, (test_x, test_y), tuple(mean), tuple(std))


def task_of_rows(
    name: str,
    classes: Sequence[str],
    x: Tensor,
    y: Tensor,
    split: tuple[Tensor, Tensor],  # rows to train on and to validate with
    test: tuple[Tensor, Tensor],
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Task:
    train, valid = (Split(x.index_select(0, rows), y[rows], mean, std) for rows in split)
    return Task(name, tuple(classes), train, valid, Split(*test, mean, std))


def task_count(asked: int | None, available: int) -> int:
    """How many tasks a stream has: all, or the first few that were asked for."""
    if asked is None:
        return available
    if not 1 <= asked <= available:
        raise WrongValue(f"tasks={asked} is not allowed; use 1 to {available}, or leave it out for all")
    return asked


def check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not (isinstance(share, Real) and 0 < share < 1):
            raise WrongValue(f"{name}={short(share)} is not allowed; use a number between 0 and 1, such as 0.1")


def legacy_generator(seed: int) -> np.random.RandomState:
    """Numpy's old generator, with which the published runs drew their splits and orders."""
    if not (isinstance(seed, Integral) and 0 <= seed < 2**32):
        raise WrongValue(f"seed={short(seed)} is not allowed; use 0 to {2**32 - 1}")
    return np.random.RandomState(seed)


def _labeled(where: str, pair: Labeled) -> tuple[Tensor, Tensor]:
    # Copies, for arrays read from files may be read-only or lie inside larger records.
    x, y = (part if isinstance(part, Tensor) else torch.from_numpy(np.array(part)) for part in pair)
    if len(x) != len(y):
        raise BadData(f"{where}: {len(x)} images but {len(y)} labels; give one label per image")
    return x, y if y.dtype.is_floating_point else y.long()
