"""MiniImageNet in its four forms: 100 classes, all images (n, 3, 84, 84)."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path

import numpy as np

from perdure.data.images import list_folders, list_images, natural_key, scale_images
from perdure.data.readers.common import (
    UNPACK_AGAIN,
    ImageArrays,
    LabeledImages,
    image_arrays,
    list_class,
    read_bytes,
    read_classes,
)
from perdure.data.readers.pickles import pickled_labels, read_pickle
from perdure.errors import BadData, MissingFile

CLASSES, IMAGES, SIDE = 100, 60_000, 84
_WNID = "n[0-9]{8}"
_SIXTHS = "ours: of each class the first five sixths of the files by name train, the others test"


def miniimagenet_folders(folder: Path) -> ImageArrays:
    """train/<wnid>/*.jpg and test/<wnid>/*.jpg with the same 100 classes; a label is the rank of its sorted wnid."""
    train, test = (_class_folders(folder / part) for part in ("train", "test"))
    if alone := sorted(set(train) ^ set(test)):
        one, other = ("train", "test") if alone[0] in train else ("test", "train")
        how = "unpack it again, or, if it is the few-shot split, put all class folders side by side"
        raise BadData(f"{folder}: {one}/{alone[0]} is not in {other} ({len(alone)} such classes); {how}")
    _check_count(folder, len(train), "train/<wnid>/*.jpg and test/<wnid>/*.jpg")
    paths = ([list_class(place) for place in part.values()] for part in (train, test))
    train_images, test_images = (read_classes(part, SIDE, 3) for part in paths)
    return image_arrays(folder, train_images, test_images, tuple(train))


def miniimagenet_classes(folder: Path) -> ImageArrays:
    """<wnid>/*.jpg, 100 folders of 600 images (or fewer): of each the first five sixths by name train."""
    classes = _class_folders(folder)
    _check_count(folder, len(classes), "<wnid>/*.jpg")
    return _split_each(folder, {name: list_class(place) for name, place in classes.items()})


def miniimagenet_csv(folder: Path) -> ImageArrays:
    """images/*.jpg and train.csv, val.csv, test.csv with the columns filename and label.

    That is the few-shot split, whose parts have different classes: all are pooled, and of each class the first five
    sixths by name train.
    """
    images = {path.name: path for path in list_images(folder / "images")}
    classes: dict[str, list[Path]] = {}
    missing, listed = [], set()
    for table in ("train.csv", "val.csv", "test.csv"):
        for name, label in _rows(folder / table):
            if name in listed:
                raise BadData(f"{folder / table}: names {name[:80]!a} again; {UNPACK_AGAIN}")
            listed.add(name)
            if name in images:
                classes.setdefault(label, []).append(images[name])
            else:
                missing.append(name)
    if missing:
        lacks = f"{len(missing):,} of the {len(listed):,} files that its tables name"
        raise MissingFile(f"{folder / 'images'}: lacks {lacks}, the first is {missing[0][:80]!a}; {UNPACK_AGAIN}")
    _check_count(folder, len(classes), "images/*.jpg with train.csv, val.csv and test.csv")
    by_name = {name: sorted(classes[name], key=lambda path: natural_key(path.name)) for name in sorted(classes)}
    return _split_each(folder, by_name)


def miniimagenet_pickles(folder: Path) -> ImageArrays:
    """train.pkl and test.pkl: 'images' (n, 84, 84, 3), an array or a list, and 'labels' 0 to 99."""
    train, test = (_read_pickle(folder / name) for name in ("train.pkl", "test.pkl"))
    return image_arrays(folder, train, test)


def _read_pickle(path: Path) -> LabeledImages:
    found = read_pickle(path)
    given = found.get("images")
    wanted = f"{path}: holds no 'images' of n × {SIDE} × {SIDE} × 3 bytes; {UNPACK_AGAIN}"
    if isinstance(given, np.ndarray):
        given = given if given.ndim == 4 and given.size else None
    if not isinstance(given, np.ndarray | list) or not 0 < len(given) <= IMAGES:
        raise BadData(wanted)
    images = np.empty((len(given), 3, SIDE, SIDE), np.uint8)
    for row, image in enumerate(given):
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.shape[2:] != (3,) or 0 in image.shape:
            raise BadData(wanted)
        images[row] = scale_images(image.transpose(2, 0, 1)[None], SIDE)[0]
    labels = pickled_labels(path, found, "labels", len(images), CLASSES)
    _check_count(path, len(np.unique(labels)), "'labels' 0 to 99")
    return images, labels


def _class_folders(folder: Path) -> dict[str, Path]:
    """Folders named like n01532829, sorted; others may lie beside them."""
    return {place.name: place for place in sorted(list_folders(folder)) if re.fullmatch(_WNID, place.name)}


def _check_count(where: Path, count: int, expected: str) -> None:
    if count != CLASSES:
        raise BadData(f"{where}: has {count} classes, MiniImageNet has {CLASSES}; put {expected} of all of them there")


def _split_each(folder: Path, classes: Mapping[str, Sequence[Path]]) -> ImageArrays:
    for name, paths in classes.items():
        if len(paths) < 2:
            raise BadData(f"{folder}: class {name} has one image, to train on and to test takes two; {UNPACK_AGAIN}")
    train = read_classes([paths[: len(paths) * 5 // 6] for paths in classes.values()], SIDE, 3)
    test = read_classes([paths[len(paths) * 5 // 6 :] for paths in classes.values()], SIDE, 3)
    return image_arrays(folder, train, test, tuple(classes), {"split": _SIXTHS})


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    try:
        text = read_bytes(path).decode("utf-8-sig")
        rows = list(csv.DictReader(StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error):
        raise BadData(f"{path}: not a table of texts separated by commas; {UNPACK_AGAIN}") from None
    for number, row in enumerate(rows, start=2):
        name, label = row.get("filename"), row.get("label")
        if not name or not label or not re.fullmatch(_WNID, label):
            raise BadData(f"{path}: row {number} has no filename, or no label like n01532829; {UNPACK_AGAIN}")
        yield name, label
    if not rows:
        raise BadData(f"{path}: names no files; {UNPACK_AGAIN}")
