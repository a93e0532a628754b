"""CIFAR-10 and CIFAR-100: binary records, or the pickles of Python."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from perdure.data.readers.common import UNPACK_AGAIN, ImageArrays, LabeledImages, check_labels, image_arrays, read_bytes
from perdure.data.readers.pickles import pickled_labels, read_pickle
from perdure.errors import BadData, MissingFile

PIXELS = 3 * 32 * 32  # red plane, green plane, blue plane
BATCHES = [f"data_batch_{number}" for number in range(1, 6)]


def cifar10_binary(folder: Path) -> ImageArrays:
    """data_batch_1.bin to data_batch_5.bin and test_batch.bin; batches.meta.txt may be left out."""
    names = _names_in_text(folder / "batches.meta.txt", 10)
    return _read(folder, [f"{name}.bin" for name in BATCHES], "test_batch.bin", read_binary, 10, names)


def cifar10_python(folder: Path) -> ImageArrays:
    """data_batch_1 to data_batch_5 and test_batch, all pickles; batches.meta may be left out."""
    names = _names_in_pickle(folder / "batches.meta", "label_names", 10)
    return _read(folder, BATCHES, "test_batch", read_python, 10, names)


def cifar100_binary(folder: Path) -> ImageArrays:
    """train.bin and test.bin; fine_label_names.txt may be left out."""
    names = _names_in_text(folder / "fine_label_names.txt", 100)
    return _read(folder, ["train.bin"], "test.bin", read_binary, 100, names)


def cifar100_python(folder: Path) -> ImageArrays:
    """train and test, both pickles; meta may be left out."""
    names = _names_in_pickle(folder / "meta", "fine_label_names", 100)
    return _read(folder, ["train"], "test", read_python, 100, names)


def read_binary(path: Path, classes: int) -> LabeledImages:
    """Images (n, 3, 32, 32) and labels (n,) of a .bin file of CIFAR with 10 or 100 classes.

    A record is a label and 3072 pixels; in CIFAR-100 a coarse label goes before the fine one, which is taken.
    """
    content = np.frombuffer(read_bytes(path), np.uint8)
    skip = 1 if classes == 100 else 0
    length = skip + 1 + PIXELS
    if len(content) == 0 or len(content) % length:
        raise BadData(f"{path}: {len(content)} bytes are not whole records of {length} bytes; {UNPACK_AGAIN}")
    records = content.reshape(-1, length)
    return records[:, skip + 1 :].reshape(-1, 3, 32, 32), check_labels(path, records[:, skip], classes)


def read_python(path: Path, classes: int) -> LabeledImages:
    """The same of a pickled file."""
    found = read_pickle(path)
    data = found.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise BadData(f"{path}: holds no 'data' of n × {PIXELS} bytes; {UNPACK_AGAIN}")
    if len(data) == 0:
        raise BadData(f"{path}: holds no images; {UNPACK_AGAIN}")
    labels = pickled_labels(path, found, "fine_labels" if classes == 100 else "labels", len(data), classes)
    return data.reshape(-1, 3, 32, 32), labels


def _read(
    folder: Path,
    train: Sequence[str],
    test: str,
    read: Callable[[Path, int], LabeledImages],
    classes: int,
    names: tuple[str, ...] | None,
) -> ImageArrays:
    images, labels = zip(*(read(folder / name, classes) for name in train), strict=True)
    together = np.concatenate(images), np.concatenate(labels)
    return image_arrays(folder, together, read(folder / test, classes), names)


def _names_in_text(path: Path, count: int) -> tuple[str, ...] | None:
    try:
        return _check_names(path, read_bytes(path).decode("utf-8", "replace").split(), count)
    except MissingFile:
        return None


def _names_in_pickle(path: Path, key: str, count: int) -> tuple[str, ...] | None:
    try:
        given = read_pickle(path).get(key)
    except MissingFile:
        return None
    names = [name for name in given if isinstance(name, str | bytes)] if isinstance(given, list) else []
    return _check_names(path, [n.decode("utf-8", "replace") if isinstance(n, bytes) else n for n in names], count)


def _check_names(path: Path, names: Sequence[str], count: int) -> tuple[str, ...]:
    if len(names) != count:
        how = "unpack its archive again or remove it"
        raise BadData(f"{path}: holds {len(names)} class names instead of {count}; {how}")
    return tuple(names)
