"""Each layout of an image set is read from small files of that layout; what is wrong with them gives one line."""

import gzip
import os
import pickle
import struct
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from perdure.data.layouts import BROKEN, LETTERS, Raw, draw_tenth
from PIL import Image

from perdure.data import layouts
from perdure.errors import BadData, MissingFile

CHANCE = np.random.RandomState(0)
WNIDS = [f"n{1000 + 7 * number:08d}" for number in range(100)]
FEW = 6  # classes of a MiniImageNet that is to be refused for another reason


def pixels(*shape: int) -> np.ndarray:
    return CHANCE.randint(0, 256, shape).astype(np.uint8)


def level(label: int, number: int) -> int:
    """One shade of gray for each image, so that it can be known again."""
    return (2 * label + 5 * number) % 256


# --- writers of each layout; every one returns what a reader must find ---


def cifar(folder: Path, kind: str, classes: int) -> Raw:
    files = {
        (10, "binary"): ([f"data_batch_{number}.bin" for number in range(1, 6)], "test_batch.bin"),
        (10, "python"): ([f"data_batch_{number}" for number in range(1, 6)], "test_batch"),
        (100, "binary"): (["train.bin"], "test.bin"),
        (100, "python"): (["train"], "test"),
    }[classes, kind]
    parts = []
    for number, name in enumerate((*files[0], files[1])):
        images = pixels(classes, 3, 32, 32)
        labels = (np.arange(classes) + number) % classes
        flat = images.reshape(classes, -1)
        if kind == "binary":
            columns = [labels // 5, labels] if classes == 100 else [labels]
            content = np.concatenate([np.stack(columns, 1).astype(np.uint8), flat], 1).tobytes()
        else:
            key = b"fine_labels" if classes == 100 else b"labels"
            content = pickle.dumps({b"data": flat, key: labels.tolist()}, protocol=2)
        (folder / name).write_bytes(content)
        parts.append((images, labels))
    names = tuple(f"thing_{number}" for number in range(classes))
    if kind == "binary":
        (folder / NAMES[classes, kind]).write_text("\n".join(names) + "\n\n")
    else:
        key = "fine_label_names" if classes == 100 else "label_names"
        content = {key.encode(): [name.encode() for name in names], b"num_vis": 3072}
        (folder / NAMES[classes, kind]).write_bytes(pickle.dumps(content, protocol=2))
    return Raw(tuple(map(np.concatenate, zip(*parts[:-1], strict=True))), parts[-1], names)


NAMES = {
    (10, "binary"): "batches.meta.txt",
    (10, "python"): "batches.meta",
    (100, "binary"): "fine_label_names.txt",
    (100, "python"): "meta",
}


def idx_content(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.astype(np.uint8).tobytes()


def idx(folder: Path, packed: bool = False) -> Raw:
    parts = []
    for part, count in (("train", 20), ("t10k", 10)):
        images, labels = pixels(count, 28, 28), np.arange(count) % 10
        for name, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            content = idx_content(array)
            path = folder / f"{part}-{name}{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content) if packed else content)
        parts.append((images[:, None], labels))
    return Raw(*parts)


def mat(images: np.ndarray, labels: np.ndarray) -> bytes:
    content = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    for name, array in (("X", images), ("y", labels)):
        inner = struct.pack("<IIII", 6, 8, 9, 0) + struct.pack("<II", 5, 4 * array.ndim)
        inner += np.array(array.shape, "<i4").tobytes() + struct.pack("<HH4s", 1, 1, name.encode())
        inner += struct.pack("<II", 2, array.size) + array.astype(np.uint8).tobytes("F") + bytes(-array.size % 8)
        content += struct.pack("<II", 14, len(inner)) + inner
    return content


def svhn(folder: Path) -> Raw:
    parts = []
    for part, count in (("train", 20), ("test", 10)):
        images, labels = pixels(32, 32, 3, count), np.arange(count) % 10
        (folder / f"{part}_32x32.mat").write_bytes(mat(images, np.where(labels, labels, 10)[:, None]))
        parts.append((images.transpose(3, 2, 0, 1), labels))
    return Raw(*parts)


@cache
def plain(shade: int, side: int, mode: str) -> bytes:
    file = BytesIO()
    Image.new(mode, (side, side), shade if mode == "L" else (shade, 0, 255 - shade)).save(file, "PNG")
    return file.getvalue()


def picture(path: Path, shade: int, side: int = 28, mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(plain(shade, side, mode))


def letters(folder: Path, per_class: int = 3) -> None:
    for label, letter in enumerate(LETTERS):
        for number in range(per_class):
            picture(folder / letter / f"{number}.png", level(label, number))


def mini(folder: Path, count: int, wnids: list[str] = WNIDS, first: int = 0, flat: bool = False) -> None:
    for wnid in wnids:
        for number in range(first, first + count):
            name = f"{wnid}{number}.png"
            picture(folder / (name if flat else Path(wnid) / name), level(WNIDS.index(wnid), number), 84, "RGB")


def mini_folders(folder: Path, wnids: list[str] = WNIDS) -> None:
    mini(folder / "train", 2, wnids)
    mini(folder / "test", 1, wnids, first=2)


def mini_tables(folder: Path, count: int, wnids: list[str] = WNIDS) -> None:
    mini(folder / "images", count, wnids, flat=True)
    for table, own in (("train.csv", wnids[::2]), ("val.csv", wnids[1::4]), ("test.csv", wnids[3::4])):
        rows = [f"{wnid}{number}.png,{wnid}\n" for number in reversed(range(count)) for wnid in reversed(own)]
        (folder / table).write_text("filename,label\n" + "".join(rows))


def mini_pickles(folder: Path, as_list: bool = False, side: int = 84) -> Raw:
    parts = []
    for part, count in (("train", 200), ("test", 100)):
        images, labels = np.empty((count, side, side, 3), np.uint8), np.arange(count) % 100
        images[:] = (np.arange(count) % 170)[:, None, None, None] + np.array([0, 2, 4])
        images += np.arange(side, dtype=np.uint8)[:, None, None] // 4 * 3  # brighter below
        content = {"images": list(images) if as_list else images, "labels": labels if as_list else labels.tolist()}
        (folder / f"{part}.pkl").write_bytes(pickle.dumps(content))
        parts.append((images.transpose(0, 3, 1, 2), labels))
    return Raw(*parts)


def not_pickles(folder: Path, **changes: object) -> Raw:
    parts = []
    for part, count in (("train", 20), ("test", 10)):
        images, labels = pixels(count, 1, 32, 32), np.arange(count) % 10
        content = {"features": images, "labels": labels} | changes
        (folder / f"notmnist_{part}.pkl").write_bytes(pickle.dumps(content))
        parts.append((images, labels))
    return Raw(*parts)


# --- what is right is read right ---


def check(found: Raw, shape: tuple[int, ...]) -> None:
    for images, labels in (found.train, found.test):
        assert images.dtype == np.uint8
        assert images.shape == (len(labels), *shape)
        assert images.flags.c_contiguous
        assert images.flags.writeable  # torch warns of arrays that are not
        assert labels.dtype == np.int64


def same(found: Raw, wanted: Raw) -> None:
    for mine, theirs in zip((*found.train, *found.test), (*wanted.train, *wanted.test), strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("kind", ["binary", "python"])
@pytest.mark.parametrize("classes", [10, 100])
def test_cifar(tmp_path, classes, kind):
    wanted = cifar(tmp_path, kind, classes)
    read = getattr(layouts, f"cifar{classes}_{kind}")
    found = read(tmp_path)
    check(found, (3, 32, 32))
    same(found, wanted)
    assert found.classes == wanted.classes
    (tmp_path / NAMES[classes, kind]).unlink()
    assert read(tmp_path).classes is None


@pytest.mark.parametrize("packed", [False, True])
def test_idx(tmp_path, packed):
    wanted = idx(tmp_path, packed)
    found = layouts.idx(tmp_path)
    check(found, (1, 28, 28))
    same(found, wanted)


def test_svhn(tmp_path):
    wanted = svhn(tmp_path)
    found = layouts.svhn(tmp_path)
    check(found, (3, 32, 32))
    same(found, wanted)


def test_notmnist_idx_is_scaled_by_lanczos(tmp_path):
    given = idx(tmp_path, packed=True)
    found = layouts.notmnist_idx(tmp_path)
    check(found, (1, 32, 32))
    assert found.classes == LETTERS
    assert found.train[1].tolist() == given.train[1].tolist()
    for row in (0, 7):
        slow = Image.fromarray(given.test[0][row, 0]).resize((32, 32), Image.Resampling.LANCZOS)
        assert np.array_equal(found.test[0][row, 0], np.asarray(slow))


def test_tenth_drawn_as_scikit_learn_draws_it():
    # It takes numpy's permutation by seed 42, which begins with the rows to test.
    for n, held in ((18726, 1873), (18724, 1873), (100, 10), (101, 11)):
        test, train = draw_tenth(n)
        assert (len(test), len(train)) == (held, n - held)
        assert sorted([*test, *train]) == list(range(n))
    assert draw_tenth(20)[0].tolist() == [0, 17]
    assert draw_tenth(20)[1].tolist() == [15, 1, 8, 5, 11, 3, 18, 16, 13, 2, 9, 19, 4, 12, 7, 10, 14, 6]


def test_notmnist_folder(tmp_path):
    letters(tmp_path, 30)
    found = layouts.notmnist_folder(tmp_path)
    check(found, (1, 32, 32))
    assert found.classes == LETTERS
    assert (len(found.train[1]), len(found.test[1])) == (270, 30)
    # Letter by letter, and within it by plain order of names: 0, 1, 10, 11, 2, …
    order = [(label, number) for label in range(10) for number in sorted(range(30), key=str)]
    for (images, labels), rows in zip((found.test, found.train), draw_tenth(300), strict=True):
        wanted = [order[row] for row in rows]
        assert labels.tolist() == [label for label, _ in wanted]
        assert images[:, 0, 16, 16].tolist() == [level(*one) for one in wanted]
    assert found.notes.keys() == {"split"}
    assert found.notes["split"].startswith("ours: 10 %")


def test_notmnist_folder_as_the_official_archive_has_it(tmp_path):
    letters(tmp_path, 30)
    for name in BROKEN:
        (tmp_path / name).write_bytes(b"")
    found = layouts.notmnist_folder(tmp_path)
    assert len(found.train[1]) + len(found.test[1]) == 300
    assert all(name in found.notes["unreadable"] for name in BROKEN)
    (tmp_path / "B" / "3.png").write_bytes(b"")
    with pytest.raises(BadData, match=r"B: 1 of 302 pictures cannot be read: 3\.png; unpack"):
        layouts.notmnist_folder(tmp_path)


def test_notmnist_broken_files_elsewhere_are_not_excused(tmp_path):
    letters(tmp_path, 30)
    name = sorted(BROKEN)[0].removeprefix("A/")
    (tmp_path / "B" / name).write_bytes(b"")
    with pytest.raises(BadData, match="B: 1 of 301 pictures cannot be read"):
        layouts.notmnist_folder(tmp_path)


@pytest.mark.parametrize("spell", [str, str.lower])
def test_notmnist_split_folders(tmp_path, spell):
    for part, count in (("Train", 3), ("Test", 2)):
        for label, letter in enumerate(LETTERS):
            for number in range(count):
                picture(tmp_path / spell(part) / spell(letter) / f"{number}.png", level(label, number))
    found = layouts.notmnist_split_folders(tmp_path)
    check(found, (1, 32, 32))
    for (images, labels), count in ((found.train, 3), (found.test, 2)):
        assert labels.tolist() == np.repeat(np.arange(10), count).tolist()
        assert images[:, 0, 16, 16].tolist() == [level(label, number) for label in range(10) for number in range(count)]
    assert found.notes == {}


def test_notmnist_pickles(tmp_path):
    wanted = not_pickles(tmp_path)
    found = layouts.notmnist_pickles(tmp_path)
    check(found, (1, 32, 32))
    assert found.classes == LETTERS
    same(found, wanted)


@pytest.mark.parametrize(
    "given",
    [
        lambda images: images.astype("f4"),
        lambda images: images.astype("i8"),
        lambda images: images + np.float32(0.7),  # cut, as the papers' code does
        lambda images: images / 255,
        lambda images: (images / 255).astype("f4"),
        list,
    ],
)
def test_notmnist_pickles_of_other_numbers(tmp_path, given):
    images, labels = pixels(10, 1, 32, 32) // 2, list(range(10))
    not_pickles(tmp_path, features=given(images), labels=labels)
    assert np.array_equal(layouts.notmnist_pickles(tmp_path).test[0], images)


def test_miniimagenet_folders(tmp_path):
    mini_folders(tmp_path)
    (tmp_path / "train" / "other").mkdir()
    found = layouts.miniimagenet_folders(tmp_path)
    check(found, (3, 84, 84))
    assert found.classes == tuple(WNIDS)
    assert found.train[1].tolist() == np.repeat(np.arange(100), 2).tolist()
    assert found.train[0][:, 0, 40, 40].tolist() == [level(label, number) for label in range(100) for number in (0, 1)]
    assert found.test[0][:, 0, 40, 40].tolist() == [level(label, 2) for label in range(100)]
    assert found.notes == {}


def in_sixths(found: Raw, count: int) -> None:
    """Of `count` images of each class the first five sixths, in natural order of names, train."""
    check(found, (3, 84, 84))
    assert found.classes == tuple(WNIDS)
    cut = count * 5 // 6
    for (images, labels), numbers in ((found.train, range(cut)), (found.test, range(cut, count))):
        assert labels.tolist() == np.repeat(np.arange(100), len(numbers)).tolist()
        assert images[:, 0, 40, 40].tolist() == [level(label, number) for label in range(100) for number in numbers]
    assert found.notes["split"].startswith("ours: of each class the first five sixths")


@pytest.mark.parametrize("count", [2, 12])
def test_miniimagenet_classes(tmp_path, count):
    mini(tmp_path, count)
    in_sixths(layouts.miniimagenet_classes(tmp_path), count)


def test_miniimagenet_csv(tmp_path):
    mini_tables(tmp_path, 12)
    picture(tmp_path / "images" / "unnamed.png", 0)
    in_sixths(layouts.miniimagenet_csv(tmp_path), 12)


def test_miniimagenet_images_are_brought_to_84(tmp_path):
    mini(tmp_path, 2)
    Image.new("RGB", (500, 300), (9, 0, 246)).save(tmp_path / WNIDS[3] / "0.png")
    found = layouts.miniimagenet_classes(tmp_path)
    check(found, (3, 84, 84))
    assert (found.train[0][3] == np.array([9, 0, 246])[:, None, None]).all()


@pytest.mark.parametrize("count", [FEW, 99])
def test_miniimagenet_of_fewer_than_a_hundred_classes(tmp_path, count):
    mini_folders(tmp_path, WNIDS[:count])
    mini_tables(tmp_path / "few-shot", 1, WNIDS[:count])
    for read, folder, expected in (
        (layouts.miniimagenet_folders, tmp_path, "train/<wnid>/*.jpg and test/<wnid>/*.jpg"),
        (layouts.miniimagenet_classes, tmp_path / "train", "<wnid>/*.jpg"),
        (layouts.miniimagenet_csv, tmp_path / "few-shot", "images/*.jpg with train.csv, val.csv and test.csv"),
    ):
        with pytest.raises(BadData) as caught:
            read(folder)
        says = f"has {count} classes, MiniImageNet has 100; put {expected} of all of them there"
        assert str(caught.value) == f"{folder}: {says}"


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("side", [84, 64])
def test_miniimagenet_pickles(tmp_path, as_list, side):
    wanted = mini_pickles(tmp_path, as_list, side)
    found = layouts.miniimagenet_pickles(tmp_path)
    check(found, (3, 84, 84))
    assert found.test[1].tolist() == wanted.test[1].tolist()
    middle = (found.train[0][:, :, 42, 42].astype(int) - wanted.train[0][:, :, side // 2, side // 2]).flatten()
    assert np.abs(middle).max() < 5
    if side == 84:
        same(found, wanted)


# --- what is wrong gives one line ---

Spoil = Callable[[Path], None]


def put(name: str, content: bytes) -> Spoil:
    return lambda folder: (folder / name).write_bytes(content)


def remove(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        if (folder / name).is_dir():
            for path in (folder / name).iterdir():
                path.unlink()
            (folder / name).rmdir()
        else:
            (folder / name).unlink()

    return spoil


def emptied(name: str) -> Spoil:
    return lambda folder: (remove(name)(folder), (folder / name).mkdir())


def changed(name: str, **values: object) -> Spoil:
    def spoil(folder: Path) -> None:
        content = pickle.loads((folder / name).read_bytes()) | values
        kept = {key: value for key, value in content.items() if value is not None}
        (folder / name).write_bytes(pickle.dumps(kept))

    return spoil


def with_row(name: str, row: str) -> Spoil:
    return lambda folder: (folder / name).write_text((folder / name).read_text() + row)


def cifar10_binary(folder: Path) -> None:
    cifar(folder, "binary", 10)


def cifar10_python(folder: Path) -> None:
    cifar(folder, "python", 10)


def cifar100_binary(folder: Path) -> None:
    cifar(folder, "binary", 100)


def cifar100_python(folder: Path) -> None:
    cifar(folder, "python", 100)


def notmnist_folder(folder: Path) -> None:
    letters(folder)


def notmnist_split_folders(folder: Path) -> None:
    letters(folder / "Train")
    letters(folder / "Test", 1)


def miniimagenet_folders(folder: Path) -> None:
    mini_folders(folder, WNIDS[:FEW])


def miniimagenet_classes(folder: Path) -> None:
    mini(folder, 2, WNIDS[:FEW])


def miniimagenet_csv(folder: Path) -> None:
    mini_tables(folder, 3, WNIDS[:FEW])


WRITERS = {
    "cifar10_binary": cifar10_binary,
    "cifar10_python": cifar10_python,
    "cifar100_binary": cifar100_binary,
    "cifar100_python": cifar100_python,
    "idx": idx,
    "svhn": svhn,
    "notmnist_folder": notmnist_folder,
    "notmnist_split_folders": notmnist_split_folders,
    "notmnist_idx": idx,
    "notmnist_pickles": not_pickles,
    "miniimagenet_folders": miniimagenet_folders,
    "miniimagenet_classes": miniimagenet_classes,
    "miniimagenet_csv": miniimagenet_csv,
    "miniimagenet_pickles": mini_pickles,
}
CLASS_3 = WNIDS[3]
CIFAR_100 = pickle.dumps({"data": pixels(10, 3072), "fine_labels": [50] * 10})
TWO_NAMES = pickle.dumps({"fine_label_names": ["one", "two"], "label_names": np.arange(2)})

BAD = {
    "cifar10_binary: a batch missing": (remove("data_batch_4.bin"), "data_batch_4.bin: no such file"),
    "cifar10_binary: no test batch": (remove("test_batch.bin"), "test_batch.bin: no such file"),
    "cifar10_binary: of CIFAR-100": (
        put("data_batch_2.bin", bytes(3074)),
        "data_batch_2.bin: 3074 bytes are not whole",
    ),
    "cifar10_binary: two names": (put("batches.meta.txt", b"cat dog"), "holds 2 class names instead of 10"),
    "cifar10_binary: a class not tested": (
        put("test_batch.bin", bytes(3073)),
        "class thing_1 has images to train on but none to test",
    ),
    "cifar10_python: of CIFAR-100": (put("data_batch_1", CIFAR_100), "data_batch_1: holds no list 'labels'"),
    "cifar10_python: names in an array": (put("batches.meta", TWO_NAMES), "holds 0 class names instead of 10"),
    "cifar10_python: names that are no pickle": (put("batches.meta", b"<html>"), "batches.meta: not a readable pickle"),
    "cifar100_binary: two names": (put("fine_label_names.txt", b"cat dog"), "holds 2 class names instead of 100"),
    "cifar100_binary: cut short": (put("train.bin", bytes(3000)), "train.bin: 3000 bytes are not whole records"),
    "cifar100_python: two names": (put("meta", TWO_NAMES), "meta: holds 2 class names instead of 100"),
    "cifar100_python: text": (put("test", b"<html>"), "test: not a readable pickle"),
    "idx: no test labels": (remove("t10k-labels-idx1-ubyte"), "t10k-labels-idx1-ubyte: no such file, nor"),
    "idx: wrong magic": (put("train-images-idx3-ubyte", b"\x89PNG1234"), "begins with 89504e47"),
    "idx: gzip bomb": (
        put("train-images-idx3-ubyte", gzip.compress(idx_content(pixels(20, 28, 28)) + bytes(10**7))),
        "at least 15697 bytes instead of 15696",
    ),
    "idx: a class not trained": (
        put("train-labels-idx1-ubyte", idx_content(np.arange(20) % 9)),
        "class 9 has images to test but none to train on",
    ),
    "svhn: no test file": (remove("test_32x32.mat"), "test_32x32.mat: no such file"),
    "svhn: text": (put("train_32x32.mat", b"<html>"), "train_32x32.mat: not a MATLAB file"),
    "svhn: labels 11": (
        put("train_32x32.mat", mat(pixels(32, 32, 3, 9), np.full((9, 1), 11))),
        "from 11 to 11, but SVHN",
    ),
    "notmnist_folder: no letter C": (remove("C"), "C: no such folder; unpack"),
    "notmnist_folder: no images of C": (emptied("C"), "C: a class without images; unpack"),
    "notmnist_folder: only broken ones": (
        lambda folder: (emptied("F")(folder), put(sorted(BROKEN)[1], b"")(folder)),
        "F: a class without images",
    ),
    "notmnist_folder: text as image": (put("E/1.png", b"text"), r"E: 1 of 30 pictures cannot be read: 1\.png; unpack"),
    "notmnist_folder: a class not tested": (None, "class [A-J] has images to train on but none to test"),
    "notmnist_split_folders: no letter C": (remove("Test/C"), "Test/C: no such folder"),
    "notmnist_split_folders: no images of C": (emptied("Test/C"), "Test/C: a class without images"),
    "notmnist_split_folders: a broken image": (
        put("Test/D/0.png", b""),
        r"Test/D: 1 of 10 pictures cannot be read: 0\.png",
    ),
    "notmnist_idx: label 10": (
        put("train-labels-idx1-ubyte", idx_content(np.arange(20) % 11)),
        "from 0 to 10, but 10 classes",
    ),
    "notmnist_pickles: no file": (remove("notmnist_test.pkl"), "notmnist_test.pkl: no such file"),
    "notmnist_pickles: no features": (changed("notmnist_train.pkl", features=None), "no 'features' of n × 1 × 32 × 32"),
    "notmnist_pickles: colors": (
        changed("notmnist_train.pkl", features=pixels(20, 3, 32, 32)),
        "no 'features' of n × 1",
    ),
    "notmnist_pickles: mixed shapes": (
        changed("notmnist_train.pkl", features=[pixels(1, 9, 9), pixels(1, 8, 8)]),
        "no 'features'",
    ),
    "notmnist_pickles: normalized": (
        changed("notmnist_train.pkl", features=pixels(20, 1, 32, 32) / 99 - 1),
        "from -1 to 1.576, pixels from 0 to 255",
    ),
    "notmnist_pickles: not a number": (
        changed("notmnist_train.pkl", features=pixels(20, 1, 32, 32) * np.nan),
        "from nan to nan, pixels",
    ),
    "notmnist_pickles: no images": (
        changed("notmnist_train.pkl", features=pixels(0, 1, 32, 32), labels=[]),
        "no 'features'",
    ),
    "notmnist_pickles: a label too few": (
        changed("notmnist_train.pkl", labels=[1] * 19),
        "no 'labels' of 20 whole numbers",
    ),
    "notmnist_pickles: letters as labels": (
        changed("notmnist_train.pkl", labels=list("ABCDEFGHIJ" * 2)),
        "no 'labels' of 20 whole numbers",
    ),
    "notmnist_pickles: half labels": (
        changed("notmnist_train.pkl", labels=np.full(20, 0.5)),
        "no 'labels' of 20 whole numbers",
    ),
    "notmnist_pickles: label 10": (
        changed("notmnist_train.pkl", labels=np.arange(20) % 11),
        "from 0 to 10, but 10 classes allow 0 to 9",
    ),
    "notmnist_pickles: label 2¹⁰⁰": (changed("notmnist_train.pkl", labels=[2**100] * 20), "10 classes allow 0 to 9"),
    "miniimagenet_folders: no test folder": (
        lambda folder: (folder / "test").rename(folder / "val"),
        "test: no such folder",
    ),
    "miniimagenet_folders: a class not tested": (
        remove(f"test/{CLASS_3}"),
        rf"train/{CLASS_3} has no twin in test \(1 such",
    ),
    "miniimagenet_folders: a class not trained": (
        remove(f"train/{CLASS_3}"),
        rf"test/{CLASS_3} has no twin in train .*side by side",
    ),
    "miniimagenet_folders: a class too few": (
        lambda folder: [remove(f"{part}/{CLASS_3}")(folder) for part in ("train", "test")],
        "has 5 classes, MiniImageNet has 6; put train/<wnid>",
    ),
    "miniimagenet_folders: a class without images": (
        emptied(f"test/{CLASS_3}"),
        f"test/{CLASS_3}: a class without images",
    ),
    "miniimagenet_folders: text as image": (
        put(f"train/{CLASS_3}/x.jpg", b"text"),
        r"1 of 13 pictures cannot be read: x\.jpg",
    ),
    "miniimagenet_classes: a class too few": (remove(CLASS_3), "has 5 classes, MiniImageNet has 6; put <wnid>"),
    "miniimagenet_classes: a class without images": (emptied(CLASS_3), f"{CLASS_3}: a class without images"),
    "miniimagenet_classes: one image": (remove(f"{CLASS_3}/{CLASS_3}1.png"), f"class {CLASS_3} has one image"),
    "miniimagenet_csv: no table": (remove("val.csv"), "val.csv: no such file"),
    "miniimagenet_csv: no images": (
        lambda folder: (folder / "images").rename(folder / "other"),
        "images: no such folder",
    ),
    "miniimagenet_csv: two images missing": (
        lambda folder: [remove(f"images/{CLASS_3}{n}.png")(folder) for n in (0, 2)],
        f"images: lacks 2 of the 18 files that its tables name, the first is '{CLASS_3}2.png'; unpack",
    ),
    "miniimagenet_csv: out of the folder": (
        with_row("train.csv", f"../train.csv,{CLASS_3}\n"),
        r"lacks 1 of the 19 .*'\.\./train\.csv'",
    ),
    "miniimagenet_csv: an image twice": (
        with_row("test.csv", f"{CLASS_3}0.png,{CLASS_3}\n"),
        f"test.csv: names '{CLASS_3}0.png' again",
    ),
    "miniimagenet_csv: other columns": (
        put("val.csv", b"file,class\na.png,n00000001\n"),
        "val.csv: row 2 has no filename",
    ),
    "miniimagenet_csv: a row cut short": (
        with_row("val.csv", "a.png\n"),
        "val.csv: row 8 has no filename, or no label",
    ),
    "miniimagenet_csv: other labels": (with_row("val.csv", "a.png,dog\n"), "no label like n01532829"),
    "miniimagenet_csv: empty": (put("val.csv", b""), "val.csv: names no files"),
    "miniimagenet_csv: no text": (put("val.csv", b"\xff\xfe\x00"), "val.csv: not a table of texts"),
    "miniimagenet_csv: an open quote": (
        put("val.csv", b'filename,label\n"a.png,n00000001'),
        "val.csv: not a table of texts",
    ),
    "miniimagenet_csv: classes too few": (
        put("val.csv", f"filename,label\n{WNIDS[1]}0.png,{CLASS_3}\n".encode()),
        "has 4 classes, MiniImageNet has 6; put images",
    ),
    "miniimagenet_pickles: no file": (remove("test.pkl"), "test.pkl: no such file"),
    "miniimagenet_pickles: no images": (
        changed("train.pkl", images=None),
        "train.pkl: holds no 'images' of n × 84 × 84 × 3",
    ),
    "miniimagenet_pickles: empty list": (changed("train.pkl", images=[], labels=[]), "holds no 'images'"),
    "miniimagenet_pickles: paths": (changed("train.pkl", images=["a.jpg"] * 200), "holds no 'images'"),
    "miniimagenet_pickles: floats": (changed("train.pkl", images=np.zeros((200, 8, 8, 3))), "holds no 'images'"),
    "miniimagenet_pickles: channels first": (changed("train.pkl", images=pixels(200, 3, 8, 8)), "holds no 'images'"),
    "miniimagenet_pickles: a gray one": (changed("train.pkl", images=[pixels(8, 8)] * 200), "holds no 'images'"),
    "miniimagenet_pickles: a label too few": (
        changed("train.pkl", labels=[0] * 199),
        "no 'labels' of 200 whole numbers",
    ),
    "miniimagenet_pickles: label 100": (changed("train.pkl", labels=[100] * 200), "from 100 to 100, but 100 classes"),
    "miniimagenet_pickles: label -1": (changed("train.pkl", labels=[-1] * 200), "from -1 to -1, but 100 classes"),
    "miniimagenet_pickles: 50 classes": (
        changed("train.pkl", labels=[n % 50 for n in range(200)]),
        "train.pkl: has 50 classes, MiniImageNet has 100",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_layout(tmp_path, monkeypatch, case):
    layout = case.partition(":")[0]
    spoil, says = BAD[case]
    if layout.startswith("miniimagenet") and layout != "miniimagenet_pickles":
        monkeypatch.setattr(layouts, "MINI_CLASSES", FEW)  # a hundred folders take their time
    WRITERS[layout](tmp_path)
    if spoil is not None:
        spoil(tmp_path)
    with pytest.raises(BadData, match=says) as caught:
        getattr(layouts, layout)(tmp_path)
    text = str(caught.value)
    assert text.startswith(str(tmp_path))
    assert "\n" not in text
    assert len(text) < 2 * len(str(tmp_path)) + 260
    assert any(verb in text.split(";")[-1] for verb in ("unpack", "fetch", "put", "remove", "check", "use the file"))
    assert isinstance(caught.value, MissingFile) == ("no such" in text or "lacks" in text)


@pytest.mark.parametrize("layout", WRITERS)
def test_empty_and_absent_folder(tmp_path, layout):
    read = getattr(layouts, layout)
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(BadData, match=f"{folder}.*: (no such|has 0 classes)"):
            read(folder)


class Touch:
    """A pickle of this runs a shell command when an ordinary unpickler reads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize(
    ("layout", "name", "key"),
    [("miniimagenet_pickles", "train.pkl", "images"), ("notmnist_pickles", "notmnist_train.pkl", "features")],
)
def test_pickle_that_calls_something_from_a_list(tmp_path, layout, name, key):
    mark = tmp_path / "mark"
    WRITERS[layout](tmp_path)
    changed(name, **{key: [pixels(8, 8, 3), Touch(mark)]})(tmp_path)
    with pytest.raises(BadData, match=r"refused, for the pickle asks for 'posix\.system'"):
        getattr(layouts, layout)(tmp_path)
    assert not mark.exists()
