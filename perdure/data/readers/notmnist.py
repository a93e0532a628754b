"""notMNIST in its four forms: letters A to J as 0 to 9, all images (n, 1, 32, 32).

The published runs used a conversion of notMNIST_small: each gray image of 28×28 scaled to 32×32 by Lanczos, 90 % of
all to train on and 10 % to test. Every reader here scales likewise.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perdure.data.images import Images, list_folders, scale_images
from perdure.data.readers.common import (
    UNPACK_AGAIN,
    ImageArrays,
    LabeledImages,
    image_arrays,
    list_class,
    read_classes,
)
from perdure.data.readers.idx import read_idx_pair
from perdure.data.readers.pickles import pickled_labels, read_pickle
from perdure.errors import BadData, MissingFile

LETTERS = tuple("ABCDEFGHIJ")
SIDE = 32
BROKEN = frozenset(  # the two files of the official notMNIST_small.tar.gz that are no images
    {"A/RGVtb2NyYXRpY2FCb2xkT2xkc3R5bGUgQm9sZC50dGY=.png", "F/Q3Jvc3NvdmVyIEJvbGRPYmxpcXVlLnR0Zg==.png"}
)


def notmnist_folder(folder: Path) -> ImageArrays:
    """Folders A to J of PNG files, as notMNIST_small.tar.gz holds them."""
    paths = [sorted(files) for files in _letters(folder)]  # by code point, so that others can repeat the split
    images, labels = read_classes(paths, SIDE, 1, BROKEN)
    test, train = draw_tenth(len(labels))
    split = "ours: 10 % of all images, drawn by numpy's RandomState(42), test; the published draw is the same but its "
    notes = {"split": f"{split}order of files was that of a disk"}
    if len(labels) < sum(map(len, paths)):
        files = " and ".join(name for name in sorted(BROKEN) if folder / name in (*paths[0], *paths[5]))
        others = "the published conversion has two black images labeled A in place of the two"
        notes["unreadable"] = f"left out {files}, no images in the official archive either; {others}"
    return image_arrays(folder, (images[train], labels[train]), (images[test], labels[test]), LETTERS, notes)


def draw_tenth(n: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows to test (⌈n/10⌉,) and to train on (the rest), as scikit-learn's train_test_split draws them with
    test_size=0.1 and random_state=42.

    >>> test, train = draw_tenth(18726)
    >>> len(test), len(train), test[:4].tolist()
    (1873, 16853, [10596, 12368, 5046, 11614])
    """
    rows = np.random.RandomState(42).permutation(n)
    held = math.ceil(0.1 * n)
    return rows[:held], rows[held:]


def notmnist_split_folders(folder: Path) -> ImageArrays:
    """Train/A to Train/J and Test/A to Test/J, folders of PNG files; lower case is as good."""
    train, test = (read_classes(_letters(_subfolder(folder, part)), SIDE, 1) for part in ("Train", "Test"))
    return image_arrays(folder, train, test, LETTERS)


def notmnist_idx(folder: Path) -> ImageArrays:
    """The four IDX files of `idx`; the split is theirs."""
    pairs = (read_idx_pair(folder, part) for part in ("train", "t10k"))
    train, test = ((scale_images(images, SIDE), labels) for images, labels in pairs)
    return image_arrays(folder, train, test, LETTERS)


def notmnist_pickles(folder: Path) -> ImageArrays:
    """notmnist_train.pkl and notmnist_test.pkl: 'features' (n, 1, 32, 32) and 'labels' (n,), as the papers' code makes
    them."""
    train, test = (_read_pickle(folder / f"notmnist_{part}.pkl") for part in ("train", "test"))
    return image_arrays(folder, train, test, LETTERS)


def _read_pickle(path: Path) -> LabeledImages:
    found = read_pickle(path)
    given = found.get("features")
    if isinstance(given, list) and len({one.shape if isinstance(one, np.ndarray) else None for one in given}) == 1:
        given = np.array(given)
    if not isinstance(given, np.ndarray) or given.ndim != 4 or given.shape[1] != 1 or 0 in given.shape:
        raise BadData(f"{path}: holds no 'features' of n × 1 × 32 × 32 pixels; {UNPACK_AGAIN}")
    labels = pickled_labels(path, found, "labels", len(given), len(LETTERS))
    return scale_images(_as_bytes(path, given), SIDE), labels


def _as_bytes(path: Path, pixels: npt.NDArray[Any]) -> Images:
    """Pixels from 0 to 255, cut to whole ones as the papers' code does; floats up to 1 are scaled."""
    if pixels.dtype != np.uint8:
        low, high = pixels.min(), pixels.max()
        if not (low >= 0 and high <= 255):  # also where one is not a number
            raise BadData(f"{path}: 'features' reach from {low:.4g} to {high:.4g}, not 0 to 255; {UNPACK_AGAIN}")
        pixels = np.rint(pixels * 255) if pixels.dtype.kind == "f" and high <= 1 else pixels
    return pixels.astype(np.uint8, copy=False)


def _letters(folder: Path) -> list[list[Path]]:
    return [list_class(_subfolder(folder, letter)) for letter in LETTERS]


def _subfolder(folder: Path, name: str) -> Path:
    """The folder of that name, or of the name in lower case."""
    there = [place.name for place in list_folders(folder)]
    for spelled in (name, name.lower()):
        if spelled in there:
            return folder / spelled
    raise MissingFile(f"{folder / name}: no such folder; {UNPACK_AGAIN}")
