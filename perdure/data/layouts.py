"""The layouts in which image sets are distributed, one reader for each: a folder goes in, `Raw` comes out.

What is missing, damaged or of another set raises BadData (MissingFile): one line that says what to do.
"""

import csv
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perdure.data.formats import (
    AGAIN,
    Images,
    Labels,
    read_bytes,
    read_cifar_binary,
    read_cifar_pickle,
    read_idx_pair,
    read_pickle,
    read_svhn,
)
from perdure.data.pictures import list_pictures, natural, read_pictures, scale_images, unreadable_error
from perdure.errors import BadData, MissingFile

LETTERS = tuple("ABCDEFGHIJ")
BROKEN = frozenset(  # the two files of the official notMNIST_small.tar.gz that are no images
    {"A/RGVtb2NyYXRpY2FCb2xkT2xkc3R5bGUgQm9sZC50dGY=.png", "F/Q3Jvc3NvdmVyIEJvbGRPYmxpcXVlLnR0Zg==.png"}
)
MINI_CLASSES, MINI_SIDE = 100, 84

_Part = tuple[Images, Labels]


@dataclass(frozen=True)
class Raw:
    """What a reader found in a folder: images (n, channels, height, width) uint8 with labels (n,) int64, for training
    and for testing."""

    train: tuple[Images, Labels]
    test: tuple[Images, Labels]
    classes: tuple[str, ...] | None = None  # where the files say them
    notes: Mapping[str, str] = field(default_factory=dict)  # e.g. "split", where the split is ours


# --- CIFAR ---


def cifar10_binary(folder: Path) -> Raw:
    """data_batch_1.bin to data_batch_5.bin and test_batch.bin; batches.meta.txt may be left out."""
    train = [read_cifar_binary(folder / f"data_batch_{number}.bin", 0) for number in range(1, 6)]
    test = read_cifar_binary(folder / "test_batch.bin", 0)
    return _raw(folder, _join(train), test, _names_in_text(folder / "batches.meta.txt", 10))


def cifar10_python(folder: Path) -> Raw:
    """data_batch_1 to data_batch_5 and test_batch, all pickles; batches.meta may be left out."""
    train = [read_cifar_pickle(folder / f"data_batch_{number}", 10) for number in range(1, 6)]
    test = read_cifar_pickle(folder / "test_batch", 10)
    return _raw(folder, _join(train), test, _names_in_pickle(folder / "batches.meta", "label_names", 10))


def cifar100_binary(folder: Path) -> Raw:
    """train.bin and test.bin; fine_label_names.txt may be left out."""
    train, test = (read_cifar_binary(folder / name, 1) for name in ("train.bin", "test.bin"))
    return _raw(folder, train, test, _names_in_text(folder / "fine_label_names.txt", 100))


def cifar100_python(folder: Path) -> Raw:
    """train and test, both pickles; meta may be left out."""
    train, test = (read_cifar_pickle(folder / name, 100) for name in ("train", "test"))
    return _raw(folder, train, test, _names_in_pickle(folder / "meta", "fine_label_names", 100))


def _names_in_text(path: Path, count: int) -> tuple[str, ...] | None:
    try:
        text = read_bytes(path).decode("utf-8", "replace")
    except MissingFile:
        return None
    return _counted(path, text.split(), count)


def _names_in_pickle(path: Path, key: str, count: int) -> tuple[str, ...] | None:
    try:
        given = read_pickle(path).get(key)
    except MissingFile:
        return None
    names = given if isinstance(given, list) else []
    return _counted(path, [_text(name) for name in names], count)


def _text(name: object) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def _counted(path: Path, names: Sequence[str], count: int) -> tuple[str, ...]:
    if len(names) != count:
        raise BadData(
            f"{path}: holds {len(names)} class names instead of {count}; unpack its archive again or remove it"
        )
    return tuple(names)


# --- MNIST, Fashion-MNIST, SVHN ---


def idx(folder: Path) -> Raw:
    """train- and t10k-images-idx3-ubyte and -labels-idx1-ubyte, each plain or .gz; images (n, 1, 28, 28)."""
    train, test = (read_idx_pair(folder, part) for part in ("train", "t10k"))
    return _raw(folder, (train[0][:, None], train[1]), (test[0][:, None], test[1]))


def svhn(folder: Path) -> Raw:
    """train_32x32.mat and test_32x32.mat."""
    train, test = (read_svhn(folder / f"{part}_32x32.mat") for part in ("train", "test"))
    return _raw(folder, train, test)


# --- notMNIST: letters A to J as 0 to 9, all images (n, 1, 32, 32) ---
#
# The published runs used a conversion of notMNIST_small: each gray image of 28×28 scaled to 32×32 by Lanczos, 90 % of
# all to train on and 10 % to test. Every reader here scales likewise.


def notmnist_folder(folder: Path) -> Raw:
    """Folders A to J of PNG files, as notMNIST_small.tar.gz holds them."""
    classes = [_folder_of(folder, letter) for letter in LETTERS]
    paths = [sorted(_pictures_of(place)) for place in classes]  # by code point, so that others can repeat the split
    images, labels = _read_all(paths, 32, 1, BROKEN)
    test, train = draw_tenth(len(labels))
    split = "ours: 10 % of all images, drawn by numpy's RandomState(42), test; the published draw is the same but its "
    notes = {"split": f"{split}order of files was that of a disk"}
    if len(labels) < sum(map(len, paths)):
        files = " and ".join(name for name in sorted(BROKEN) if folder / name in (*paths[0], *paths[5]))
        others = "the published conversion has two black images labeled A in place of the two"
        notes["unreadable"] = f"left out {files}, no images in the official archive either; {others}"
    return _raw(folder, (images[train], labels[train]), (images[test], labels[test]), LETTERS, notes)


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


def notmnist_split_folders(folder: Path) -> Raw:
    """Train/A to Train/J and Test/A to Test/J, folders of PNG files; lower case is as good."""
    parts = (_folder_of(folder, part) for part in ("Train", "Test"))
    train, test = (_read_all([_pictures_of(_folder_of(part, letter)) for letter in LETTERS], 32, 1) for part in parts)
    return _raw(folder, train, test, LETTERS)


def notmnist_idx(folder: Path) -> Raw:
    """The four IDX files of `idx`; the split is theirs."""
    train, test = (read_idx_pair(folder, part) for part in ("train", "t10k"))
    train, test = ((scale_images(images[:, None], 32), labels) for images, labels in (train, test))
    return _raw(folder, train, test, LETTERS)


def notmnist_pickles(folder: Path) -> Raw:
    """notmnist_train.pkl and notmnist_test.pkl: 'features' (n, 1, 32, 32) and 'labels' (n,), as the papers' code makes
    them."""
    train, test = (_read_features(folder / f"notmnist_{part}.pkl") for part in ("train", "test"))
    return _raw(folder, train, test, LETTERS)


def _read_features(path: Path) -> _Part:
    found = read_pickle(path)
    given = found.get("features")
    if isinstance(given, list) and len({one.shape if isinstance(one, np.ndarray) else None for one in given}) == 1:
        given = np.array(given)
    if not isinstance(given, np.ndarray) or given.ndim != 4 or given.shape[1] != 1 or 0 in given.shape:
        raise BadData(f"{path}: holds no 'features' of n × 1 × 32 × 32 pixels; {AGAIN}")
    images = scale_images(_as_bytes(path, given), 32)
    return images, _labels(path, found, len(images), len(LETTERS))


def _as_bytes(path: Path, pixels: npt.NDArray[Any]) -> Images:
    """Pixels from 0 to 255, cut to whole ones as the papers' code does; floats up to 1 are scaled."""
    if pixels.dtype != np.uint8:
        low, high = pixels.min(), pixels.max()
        if not (low >= 0 and high <= 255):  # also where one is not a number
            raise BadData(f"{path}: 'features' reach from {low:.4g} to {high:.4g}, pixels from 0 to 255; {AGAIN}")
        pixels = np.rint(pixels * 255) if pixels.dtype.kind == "f" and high <= 1 else pixels
    return pixels.astype(np.uint8, copy=False)


# --- MiniImageNet: 100 classes, all images (n, 3, 84, 84) ---

_WNID = "n[0-9]{8}"
_SIXTHS = "ours: of each class the first five sixths of the files by name train, the others test"


def miniimagenet_folders(folder: Path) -> Raw:
    """train/<wnid>/*.jpg and test/<wnid>/*.jpg with the same 100 classes; a label is the rank of its sorted wnid."""
    train, test = (_class_folders(folder / part) for part in ("train", "test"))
    if alone := sorted(set(train) ^ set(test)):
        one, other = ("train", "test") if alone[0] in train else ("test", "train")
        how = "unpack it again, or, if it is the few-shot split, put all class folders side by side"
        raise BadData(f"{folder}: {one}/{alone[0]} has no twin in {other} ({len(alone)} such classes); {how}")
    _check_hundred(folder, len(train), "train/<wnid>/*.jpg and test/<wnid>/*.jpg")
    paths = ([_pictures_of(place) for place in part.values()] for part in (train, test))
    train_part, test_part = (_read_all(part, MINI_SIDE, 3) for part in paths)
    return _raw(folder, train_part, test_part, tuple(train))


def miniimagenet_classes(folder: Path) -> Raw:
    """<wnid>/*.jpg, 100 folders of 600 images (or fewer): of each the first five sixths by name train."""
    classes = _class_folders(folder)
    _check_hundred(folder, len(classes), "<wnid>/*.jpg")
    return _split_each(folder, {name: _pictures_of(place) for name, place in classes.items()})


def miniimagenet_csv(folder: Path) -> Raw:
    """images/*.jpg and train.csv, val.csv, test.csv with the columns filename and label.

    That is the few-shot split, whose parts have different classes: all are pooled, and of each class the first five
    sixths by name train.
    """
    pictures = {path.name: path for path in list_pictures(folder / "images")}
    classes: dict[str, list[Path]] = {}
    missing, listed = [], set()
    for table in ("train.csv", "val.csv", "test.csv"):
        for name, label in _rows(folder / table):
            if name in listed:
                raise BadData(f"{folder / table}: names {name[:80]!a} again; {AGAIN}")
            listed.add(name)
            if name in pictures:
                classes.setdefault(label, []).append(pictures[name])
            else:
                missing.append(name)
    if missing:
        lacks = f"{len(missing):,} of the {len(listed):,} files that its tables name"
        raise MissingFile(f"{folder / 'images'}: lacks {lacks}, the first is {missing[0][:80]!a}; {AGAIN}")
    _check_hundred(folder, len(classes), "images/*.jpg with train.csv, val.csv and test.csv")
    by_name = {name: sorted(classes[name], key=lambda path: natural(path.name)) for name in sorted(classes)}
    return _split_each(folder, by_name)


def miniimagenet_pickles(folder: Path) -> Raw:
    """train.pkl and test.pkl: 'images' (n, 84, 84, 3), an array or a list, and 'labels' 0 to 99."""
    train, test = (_read_colors(folder / name) for name in ("train.pkl", "test.pkl"))
    return _raw(folder, train, test)


def _read_colors(path: Path) -> _Part:
    found = read_pickle(path)
    given = found.get("images")
    wanted = f"{path}: holds no 'images' of n × {MINI_SIDE} × {MINI_SIDE} × 3 bytes; {AGAIN}"
    if not isinstance(given, np.ndarray | list) or len(given) == 0:
        raise BadData(wanted)
    images = np.empty((len(given), 3, MINI_SIDE, MINI_SIDE), np.uint8)
    for row, image in enumerate(given):
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.shape[2:] != (3,) or 0 in image.shape:
            raise BadData(wanted)
        images[row] = scale_images(image.transpose(2, 0, 1)[None], MINI_SIDE)[0]
    labels = _labels(path, found, len(images), MINI_CLASSES)
    _check_hundred(path, len(np.unique(labels)), "'labels' 0 to 99")
    return images, labels


def _class_folders(folder: Path) -> dict[str, Path]:
    """Folders named like n01532829, sorted; others may lie beside them."""
    return {name: folder / name for name in sorted(_folders(folder)) if re.fullmatch(_WNID, name)}


def _check_hundred(where: Path, count: int, expected: str) -> None:
    if count != MINI_CLASSES:
        raise BadData(
            f"{where}: has {count} classes, MiniImageNet has {MINI_CLASSES}; put {expected} of all of them there"
        )


def _split_each(folder: Path, classes: Mapping[str, Sequence[Path]]) -> Raw:
    for name, paths in classes.items():
        if len(paths) < 2:
            raise BadData(f"{folder}: class {name} has one image, to train on and to test takes two; {AGAIN}")
    train = _read_all([paths[: len(paths) * 5 // 6] for paths in classes.values()], MINI_SIDE, 3)
    test = _read_all([paths[len(paths) * 5 // 6 :] for paths in classes.values()], MINI_SIDE, 3)
    return _raw(folder, train, test, tuple(classes), {"split": _SIXTHS})


def _rows(path: Path) -> Iterable[tuple[str, str]]:
    try:
        text = read_bytes(path).decode("utf-8-sig")
        rows = list(csv.DictReader(StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error):
        raise BadData(f"{path}: not a table of texts separated by commas; {AGAIN}") from None
    for number, row in enumerate(rows, start=2):
        name, label = row.get("filename"), row.get("label")
        if not name or not label or not re.fullmatch(_WNID, label):
            raise BadData(f"{path}: row {number} has no filename, or no label like n01532829; {AGAIN}")
        yield name, label
    if not rows:
        raise BadData(f"{path}: names no files; {AGAIN}")


# --- what they share ---


def _raw(
    folder: Path,
    train: _Part,
    test: _Part,
    classes: tuple[str, ...] | None = None,
    notes: Mapping[str, str] | None = None,
) -> Raw:
    alone = np.setxor1d(train[1], test[1])
    if len(alone):
        name = classes[alone[0]] if classes else str(alone[0])
        where = "to train on but none to test" if alone[0] in train[1] else "to test but none to train on"
        raise BadData(f"{folder}: class {name} has images {where}; {AGAIN}")
    # Of a pickle the arrays cannot be written, which torch warns of.
    train, test = ((np.require(images, requirements=["C", "W"]), labels) for images, labels in (train, test))
    return Raw(train, test, classes, notes or {})


def _join(parts: Sequence[_Part]) -> _Part:
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _folder_of(folder: Path, name: str) -> Path:
    """The folder of that name, or of the name in lower case."""
    there = _folders(folder)
    for spelled in (name, name.lower()):
        if spelled in there:
            return folder / spelled
    raise MissingFile(f"{folder / name}: no such folder; {AGAIN}")


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        raise MissingFile(f"{folder}: no such folder; put it there, or point PERDURE_DATA at the one above") from None
    except OSError as error:
        raise BadData(f"{folder}: cannot be read ({error.strerror}); check that it is a folder you may read") from None


def _pictures_of(folder: Path) -> list[Path]:
    paths = list_pictures(folder)
    if not paths:
        raise BadData(f"{folder}: a class without images; {AGAIN}")
    return paths


def _read_all(
    classes: Sequence[Sequence[Path]], size: int, channels: int, broken: frozenset[str] = frozenset()
) -> _Part:
    """Images (n, channels, size, size) and labels (n,) of the files of each class, less the `broken` ones.

    Those are files known to be unreadable, as "class/name"; any other is an error.
    """
    paths = [path for own in classes for path in own]
    labels = np.repeat(np.arange(len(classes)), [len(own) for own in classes])
    images, rows, unreadable = read_pictures(paths, size, channels, skip_unreadable=True)
    if others := [path for path in unreadable if f"{path.parent.name.upper()}/{path.name}" not in broken]:
        raise unreadable_error(others, len(paths), AGAIN)
    for label in np.setdiff1d(labels, labels[rows]):
        raise BadData(f"{classes[label][0].parent}: a class without images; {AGAIN}")
    return images, labels[rows]


def _labels(path: Path, found: Mapping[str, Any], count: int, classes: int) -> Labels:
    given = found.get("labels")
    if isinstance(given, list) and all(type(label) is int for label in given):
        given = np.array(given, object)  # of any size, so that 2¹⁰⁰ is a label out of range too
    numbers = given if isinstance(given, np.ndarray) and given.dtype.kind in "iuO" else np.empty(0)
    if numbers.shape != (count,):
        raise BadData(f"{path}: holds no 'labels' of {count} whole numbers; {AGAIN}")
    low, high = numbers.min(), numbers.max()
    if low < 0 or high >= classes:
        allowed = f"{classes} classes allow 0 to {classes - 1}"
        raise BadData(f"{path}: labels reach from {low} to {high}, but {allowed}; {AGAIN}")
    return numbers.astype(np.int64)
