"""Image sets of a few images each, in every layout in which they are distributed.

Every writer takes the folder that a reader is given; most return what it must find there.
"""

import gzip
import pickle
from pathlib import Path

import numpy as np
import scipy.io
from image_files import idx, picture, pixels

from perdure.data.readers.common import ImageArrays
from perdure.data.readers.notmnist import LETTERS

WNIDS = [f"n{1000 + 7 * number:08d}" for number in range(100)]


def level(label: int, number: int) -> int:
    """One shade of gray for each image, so that it can be known again."""
    return (2 * label + 5 * number) % 256


NAMES = {
    "cifar10_binary": "batches.meta.txt",
    "cifar10_python": "batches.meta",
    "cifar100_binary": "fine_label_names.txt",
    "cifar100_python": "meta",
}


def cifar(folder: Path, layout: str) -> ImageArrays:
    classes, binary = 100 if "100" in layout else 10, layout.endswith("binary")
    train = ["train"] if classes == 100 else [f"data_batch_{number}" for number in range(1, 6)]
    parts = []
    for number, name in enumerate((*train, "test" if classes == 100 else "test_batch")):
        images, labels = pixels(classes, 3, 32, 32), (np.arange(classes) + number) % classes
        flat = images.reshape(classes, -1)
        if binary:
            columns = [labels // 5, labels] if classes == 100 else [labels]
            content = np.concatenate([np.stack(columns, 1).astype(np.uint8), flat], 1).tobytes()
        else:
            key = b"fine_labels" if classes == 100 else b"labels"
            content = pickle.dumps({b"data": flat, key: labels.tolist()}, protocol=2)
        (folder / (f"{name}.bin" if binary else name)).write_bytes(content)
        parts.append((images, labels))
    names = tuple(f"thing_{number}" for number in range(classes))
    key = b"fine_label_names" if classes == 100 else b"label_names"
    pickled = pickle.dumps({key: [name.encode() for name in names], b"num_vis": 3072}, protocol=2)
    (folder / NAMES[layout]).write_bytes("\n".join(names).encode() + b"\n\n" if binary else pickled)
    return ImageArrays(tuple(map(np.concatenate, zip(*parts[:-1], strict=True))), parts[-1], names)


def idx_files(folder: Path, packed: tuple[str, ...] = ()) -> ImageArrays:
    parts = []
    for part, count in (("train", 20), ("t10k", 10)):
        images, labels = pixels(count, 28, 28), np.arange(count) % 10
        for name, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            path = folder / f"{part}-{name}{'.gz' if name in packed else ''}"
            path.write_bytes(gzip.compress(idx(array)) if name in packed else idx(array))
        parts.append((images[:, None], labels))
    return ImageArrays(*parts)


def mat(path: Path, compress: bool = True, **changes: object) -> None:
    """A .mat file of SVHN, with some of its variables changed or, as None, left out."""
    arrays = {"X": DIGITS, "y": STORED} | changes
    scipy.io.savemat(
        path, {name: array for name, array in arrays.items() if array is not None}, do_compression=compress
    )


DIGITS = pixels(32, 32, 3, 12)
STORED = np.arange(12, dtype=np.uint8)[:, None] % 10 + 1  # 1 to 9, 10 for the digit 0, 1, 2


def svhn(folder: Path) -> ImageArrays:
    parts = []
    for part, count in (("train", 20), ("test", 10)):
        images, labels = pixels(32, 32, 3, count), np.arange(count) % 10
        mat(folder / f"{part}_32x32.mat", X=images, y=np.where(labels, labels, 10)[:, None])
        parts.append((images.transpose(3, 2, 0, 1), labels))
    return ImageArrays(*parts)


def letters(folder: Path, per_class: int = 3) -> None:
    for label, letter in enumerate(LETTERS):
        for number in range(per_class):
            picture(folder / letter / f"{number}.png", level(label, number), (28, 28), "L")


def split_letters(folder: Path) -> None:
    letters(folder / "Train")
    letters(folder / "Test", 1)


def notmnist_pickles(folder: Path, **changes: object) -> ImageArrays:
    parts = []
    for part, count in (("train", 20), ("test", 10)):
        images, labels = pixels(count, 1, 32, 32), np.arange(count) % 10
        content = {"features": images, "labels": labels} | changes
        (folder / f"notmnist_{part}.pkl").write_bytes(pickle.dumps(content))
        parts.append((images, labels))
    return ImageArrays(*parts, LETTERS)


def mini(folder: Path, count: int, wnids: list[str] = WNIDS, first: int = 0, flat: bool = False) -> None:
    for wnid in wnids:
        for number in range(first, first + count):
            name = f"{wnid}{number}.png"
            picture(folder / (name if flat else Path(wnid) / name), level(WNIDS.index(wnid), number), (84, 84))


def mini_folders(folder: Path, wnids: list[str] = WNIDS) -> None:
    mini(folder / "train", 2, wnids)
    mini(folder / "test", 1, wnids, first=2)


def mini_tables(folder: Path, count: int, wnids: list[str] = WNIDS) -> None:
    mini(folder / "images", count, wnids, flat=True)
    for table, own in (("train.csv", wnids[::2]), ("val.csv", wnids[1::4]), ("test.csv", wnids[3::4])):
        rows = [f"{wnid}{number}.png,{wnid}\n" for number in reversed(range(count)) for wnid in reversed(own)]
        (folder / table).write_text("filename,label\n" + "".join(rows))


def mini_pickles(folder: Path, as_list: bool = False, side: int = 84) -> ImageArrays:
    parts = []
    for part, count in (("train", 200), ("test", 100)):
        images, labels = np.empty((count, side, side, 3), np.uint8), np.arange(count) % 100
        images[:] = (np.arange(count) % 170)[:, None, None, None] + np.array([0, 2, 4])
        images += np.arange(side, dtype=np.uint8)[:, None, None] // 4 * 3  # brighter below
        content = {"images": list(images) if as_list else images, "labels": labels if as_list else labels.tolist()}
        (folder / f"{part}.pkl").write_bytes(pickle.dumps(content))
        parts.append((images.transpose(0, 3, 1, 2), labels))
    return ImageArrays(*parts)
