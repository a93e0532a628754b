"""Each layout of an image set is read from small files of it; what is damaged or hostile gives one clear line."""

import gzip
import os
import pickle
import struct
import subprocess
import tracemalloc
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_files import Touch, idx, one_line, picture, pixels
from image_sets import (
    DIGITS,
    NAMES,
    STORED,
    WNIDS,
    cifar,
    idx_files,
    letters,
    level,
    mat,
    mini,
    mini_folders,
    mini_pickles,
    mini_tables,
    notmnist_pickles,
    split_letters,
    svhn,
)
from PIL import Image

from perdure.data.catalog import READERS
from perdure.data.readers import miniimagenet as mini_module
from perdure.data.readers import pickles as pickles_module
from perdure.data.readers import svhn as svhn_module
from perdure.data.readers.cifar import read_binary, read_python
from perdure.data.readers.common import ImageArrays
from perdure.data.readers.idx import read_idx
from perdure.data.readers.notmnist import BROKEN, LETTERS, draw_tenth
from perdure.data.readers.pickles import read_pickle
from perdure.data.readers.svhn import read_mat
from perdure.errors import BadData, MissingFile, PerdureError

PIXELS = pixels(6, 3072)
FINE = [0, 99, 5, 17, 42, 3]
COARSE = [0, 19, 1, 2, 3, 4]
FEW = 6  # classes of a MiniImageNet that is to be refused for another reason


# --- what is right is read right ---


def check(found: ImageArrays, shape: tuple[int, ...], wanted: ImageArrays | None = None) -> None:
    for images, labels in (found.train, found.test):
        assert images.dtype == np.uint8
        assert images.shape == (len(labels), *shape)
        assert images.flags.c_contiguous
        assert images.flags.writeable  # torch warns of arrays that are not
        assert labels.dtype == np.int64
    if wanted:
        assert found.classes == wanted.classes
        for mine, theirs in zip((*found.train, *found.test), (*wanted.train, *wanted.test), strict=True):
            assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("layout", NAMES)
def test_cifar(tmp_path, layout):
    wanted = cifar(tmp_path, layout)
    check(READERS[layout](tmp_path), (3, 32, 32), wanted)
    (tmp_path / NAMES[layout]).unlink()
    assert READERS[layout](tmp_path).classes is None


@pytest.mark.parametrize("packed", [(), ("images-idx3-ubyte",), ("images-idx3-ubyte", "labels-idx1-ubyte")])
def test_idx(tmp_path, packed):
    wanted = idx_files(tmp_path, packed)
    check(READERS["idx"](tmp_path), (1, 28, 28), wanted)
    if packed:  # a plain file goes first
        (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(np.zeros((20, 28, 28))))
        assert not READERS["idx"](tmp_path).train[0].any()


@pytest.mark.parametrize("shape", [(7,), (2, 3), (2, 4, 5)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_of_any_shape(put, shape, pack):
    array = pixels(*shape)
    assert np.array_equal(read_idx(put(pack(idx(array)))), array)


def test_svhn(tmp_path):
    wanted = svhn(tmp_path)
    check(READERS["svhn"](tmp_path), (3, 32, 32), wanted)


@pytest.mark.parametrize(
    ("compress", "labels"),
    [(True, STORED), (False, STORED.astype("f8")), (True, STORED.astype("i2")), (False, STORED.T)],
)
def test_mat(tmp_path, compress, labels):
    mat(tmp_path / "a.mat", compress, other=np.ones(3), y=labels, cell=[1, "b"])
    images, found = read_mat(tmp_path / "a.mat")
    assert images.flags.c_contiguous
    assert np.array_equal(images, DIGITS.transpose(3, 2, 0, 1))
    assert found.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]


def test_mat_without_scipy(tmp_path, monkeypatch):
    monkeypatch.setattr(svhn_module, "find_spec", lambda _: None)
    with pytest.raises(PerdureError, match=r"need scipy: pip install .*\[svhn\]'"):
        read_mat(tmp_path / "a.mat")


def test_notmnist_idx_is_scaled_by_lanczos(tmp_path):
    given = idx_files(tmp_path)
    found = READERS["notmnist_idx"](tmp_path)
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
    found = READERS["notmnist_folder"](tmp_path)
    check(found, (1, 32, 32))
    assert found.classes == LETTERS
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
    found = READERS["notmnist_folder"](tmp_path)
    assert len(found.train[1]) + len(found.test[1]) == 300
    assert all(name in found.notes["unreadable"] for name in BROKEN)
    (tmp_path / "B" / sorted(BROKEN)[0].removeprefix("A/")).write_bytes(b"")  # elsewhere it is not excused
    with pytest.raises(BadData, match=r"B: 1 of 303 images cannot be read: RGV.*; unpack"):
        READERS["notmnist_folder"](tmp_path)


@pytest.mark.parametrize("spell", [str, str.lower])
def test_notmnist_split_folders(tmp_path, spell):
    for part, count in (("Train", 3), ("Test", 2)):
        for label, letter in enumerate(LETTERS):
            for number in range(count):
                picture(tmp_path / spell(part) / spell(letter) / f"{number}.png", level(label, number), (28, 28), "L")
    found = READERS["notmnist_split_folders"](tmp_path)
    check(found, (1, 32, 32))
    for (images, labels), count in ((found.train, 3), (found.test, 2)):
        assert labels.tolist() == np.repeat(np.arange(10), count).tolist()
        assert images[:, 0, 16, 16].tolist() == [level(label, number) for label in range(10) for number in range(count)]
    assert found.notes == {}


def test_notmnist_pickles(tmp_path):
    wanted = notmnist_pickles(tmp_path)
    check(READERS["notmnist_pickles"](tmp_path), (1, 32, 32), wanted)


@pytest.mark.parametrize(
    "given",
    [
        lambda images: images.astype("i8"),
        lambda images: images + np.float32(0.7),  # cut, as the papers' code does
        lambda images: (images / 255).astype("f4"),
        list,
    ],
)
def test_notmnist_pickles_of_other_numbers(tmp_path, given):
    images, labels = pixels(10, 1, 32, 32) // 2, list(range(10))
    notmnist_pickles(tmp_path, features=given(images), labels=labels)
    assert np.array_equal(READERS["notmnist_pickles"](tmp_path).test[0], images)


def test_miniimagenet_folders(tmp_path):
    mini_folders(tmp_path)
    (tmp_path / "train" / "other").mkdir()
    found = READERS["miniimagenet_folders"](tmp_path)
    check(found, (3, 84, 84))
    assert found.classes == tuple(WNIDS)
    assert found.train[1].tolist() == np.repeat(np.arange(100), 2).tolist()
    assert found.train[0][:, 0, 40, 40].tolist() == [level(label, number) for label in range(100) for number in (0, 1)]
    assert found.test[0][:, 0, 40, 40].tolist() == [level(label, 2) for label in range(100)]
    assert found.notes == {}


@pytest.mark.parametrize(("layout", "count"), [("classes", 2), ("classes", 12), ("csv", 12)])
def test_miniimagenet_split_in_sixths(tmp_path, layout, count):
    """Of `count` images of each class the first five sixths, in natural order of names, train."""
    if layout == "classes":
        mini(tmp_path, count)
    else:
        mini_tables(tmp_path, count)
        picture(tmp_path / "images" / "unnamed.png")
    found = READERS[f"miniimagenet_{layout}"](tmp_path)
    check(found, (3, 84, 84))
    assert found.classes == tuple(WNIDS)
    cut = count * 5 // 6
    for (images, labels), numbers in ((found.train, range(cut)), (found.test, range(cut, count))):
        assert labels.tolist() == np.repeat(np.arange(100), len(numbers)).tolist()
        assert images[:, 0, 40, 40].tolist() == [level(label, number) for label in range(100) for number in numbers]
    assert found.notes["split"].startswith("ours: of each class the first five sixths")


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("side", [84, 64])
def test_miniimagenet_pickles(tmp_path, as_list, side):
    wanted = mini_pickles(tmp_path, as_list, side)
    found = READERS["miniimagenet_pickles"](tmp_path)
    check(found, (3, 84, 84), wanted if side == 84 else None)
    assert found.test[1].tolist() == wanted.test[1].tolist()
    middle = found.train[0][:, :, 42, 42].astype(int) - wanted.train[0][:, :, side // 2, side // 2]
    assert np.abs(middle).max() < 5


# --- pickles ---


def pickled(protocol: int = 2, **changes: object) -> bytes:
    content = {"data": PIXELS, "fine_labels": FINE, "coarse_labels": COARSE, "filenames": ["a.png"] * 6}
    kept = {key: value for key, value in (content | changes).items() if value is not None}
    return pickle.dumps(kept, protocol=protocol)


def pickled_by_python_2(pixels: np.ndarray = PIXELS, labels: list[int] = FINE) -> bytes:
    """Opcode by opcode as Python 2 and its numpy wrote the official files: protocol 2, byte strings for names."""

    def name(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    def whole(number: int) -> bytes:
        return b"J" + struct.pack("<i", number)

    kind = b"cnumpy\ndtype\n" + name(b"u1") + whole(0) + whole(1) + b"\x87R"
    kind += b"(" + whole(3) + name(b"|") + b"NNN" + whole(-1) + whole(-1) + whole(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + whole(0) + b"\x85" + name(b"b") + b"\x87R"
    content = pixels.tobytes()
    shape = b"".join(map(whole, pixels.shape)) + b"\x86"
    array += b"(" + whole(1) + shape + kind + b"\x89T" + struct.pack("<i", len(content)) + content + b"tb"
    numbers = b"](" + b"".join(map(whole, labels)) + b"e"
    return b"\x80\x02}(" + name(b"data") + array + name(b"fine_labels") + numbers + b"u."


OLD_NUMPY, NEW_NUMPY = b"numpy.core.", b"numpy._core."
SCALARS = pickled(fine_labels=[np.int64(label) for label in FINE]).replace(NEW_NUMPY, OLD_NUMPY)
PICKLES = {
    **{f"protocol {protocol}": pickled(protocol) for protocol in range(6)},
    "Python 2": pickled_by_python_2(),
    "old numpy": SCALARS,
    "new numpy": SCALARS.replace(OLD_NUMPY, NEW_NUMPY),
    "laid by columns": pickled(data=np.asfortranarray(PIXELS)),
    "big-endian labels": pickled(fine_labels=np.array(FINE, ">i4")),
}


@pytest.mark.parametrize("kind", PICKLES)
def test_pickle(put, kind):
    assert np.array_equal(next(iter(pickle.loads(PICKLES[kind], encoding="bytes").values())), PIXELS)  # so reads numpy
    images, labels = read_python(put(PICKLES[kind]), 100)
    assert labels.dtype == np.int64
    assert labels.tolist() == FINE
    assert np.array_equal(images, PIXELS.reshape(6, 3, 32, 32))


@pytest.mark.parametrize("protocol", range(6))
def test_pickle_of_names_and_of_lists_of_arrays(put, protocol):
    content = {b"names": [b"apple", "bear", b""], "number": 1.5, "images": [PIXELS[:1], PIXELS[1:3]]}
    found = read_pickle(put(pickle.dumps(content, protocol=protocol)))
    assert [array.tolist() for array in found.pop("images")] == [PIXELS[:1].tolist(), PIXELS[1:3].tolist()]
    assert found == {"names": [b"apple", "bear", b""], "number": 1.5}
    assert read_pickle(put(b"(dp1\nS'data'\np2\nS'\\xff\\x00\\n'\np3\ns.")) == {"data": b"\xff\0\n"}  # of Python 2


@pytest.mark.parametrize("hide", [lambda evil: evil, lambda evil: [PIXELS, evil], lambda evil: ({"a": (evil,)},)])
@pytest.mark.parametrize("protocol", range(6))
def test_pickle_that_calls_something(put, tmp_path, protocol, hide):
    mark = tmp_path / "mark"
    content = pickled(protocol, filenames=hide(Touch(mark)))
    path = put(content)
    with pytest.raises(BadData, match=r"refused, for the pickle asks for 'posix\.system'") as caught:
        read_pickle(path)
    one_line(caught.value, path)
    assert not mark.exists()
    pickle.loads(content)
    assert mark.exists()  # so the pickle was a real one


@pytest.mark.parametrize(
    "name",
    [
        *("builtins\neval", "__builtin__\neval", "builtins\ngetattr", "builtins\nbytearray", "os\nsystem"),
        *("numpy\nload", "numpy.core.multiarray\nfromfile", "numpy._core.multiarray\nndarray.tofile"),
        *("copyreg\n_reconstructor", "torch\nload", "a" * 500 + "\nb", "é\nü"),
    ],
)
def test_pickle_that_names_something_else(put, name):
    path = put(f"c{name}\n.".encode())
    with pytest.raises(BadData, match=r"asks for|not a readable") as caught:
        read_pickle(path)
    one_line(caught.value, path)


@pytest.mark.parametrize(
    "content",
    [
        b"c_codecs\nencode\n(Vtext\nVzlib\ntR.",  # bytes in a codec of its choice
        b"cbuiltins\nbytes\n(I99999999999\ntR.",  # bytes of a length of its choice
        b"cnumpy\ndtype\n(VO8\nI00\nI01\ntR.",  # an array of objects
        b"\x80\x02}r" + struct.pack("<I", 2**24) + b".",  # a memo of 268 MB
        b"\x80\x05\x96" + struct.pack("<Q", 10**8) + b".",  # an array of 100 MB
        b"\x80\x05B" + struct.pack("<I", 10**8) + b".",
    ],
)
def test_pickle_that_asks_for_too_much(put, content):
    path = put(content)
    with little_memory(5e6), pytest.raises(BadData, match=r"refused|not a readable") as caught:
        read_pickle(path)
    one_line(caught.value, path)


# On the stack a list; in slot 40 of the memo a tuple that holds the same tuple twice, which holds the same twice, …
TUPLES = b"](]q\0" + b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(40)) + b"e"
MANY_KEYS = b"}(" + b"".join(
    b"\x8a" + bytes([len(key)]) + key + b"K\1"
    for key in ((n * (2**61 - 1)).to_bytes(11, "little") for n in range(1, 9_000))
) + b"u."  # fmt: skip
DTYPE = b"cnumpy\ndtype\n(U\2u1K\0K\1tR(K\3U\1|NNNI-1\nI-1\nI0\ntb"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tU\1btR(K\1%b" + DTYPE + b"\x89%btb"
IMAGE = ARRAY % (b"(K\x54K\x54K\3t", b"T" + struct.pack("<i", 21168) + bytes(21168))
LABELS_OF_2_20000 = pickled(fine_labels=[2**20000] * 6)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (TUPLES + b"}h\x28K\1s.", "keys that are no names"),
        (TUPLES + b"c_codecs\nencode\nU\1ah\x28\x86R.", "an encoding that images never need"),
        (MANY_KEYS, "keys that are no names"),
        (LABELS_OF_2_20000, "is made of LONG4"),
        (b"\x80\x02}U\6images](" + IMAGE + b"q\1" + b"h\1" * 1000 + b"es.", "the same array many times over"),
        (b"2" * 10, "is made of DUP"),
    ],
)
def test_pickle_that_asks_for_too_much_time_or_memory(put, content, says):
    path = put(content)
    with little_memory(5e6), pytest.raises(BadData, match=says) as caught:
        read_pickle(path)
    one_line(caught.value, path)


def test_pickle_without_end(put, monkeypatch):
    monkeypatch.setattr(pickles_module, "MOST_OPCODES", 100)
    with pytest.raises(BadData, match="has no end"):
        read_pickle(put(b"N" * 1000))


@pytest.mark.parametrize("shape", [b"(M\xff\xffK\0t", b"(M\xff\xffK\0K\0K\3t", b")"])
def test_pickled_images_of_a_shape_without_pixels(tmp_path, shape):
    content = b"}(U\6images" + ARRAY % (shape, b"U\0" if shape != b")" else b"U\1a") + b"U\6labels]u."
    for name in ("train.pkl", "test.pkl"):
        (tmp_path / name).write_bytes(content)
    with little_memory(5e6), pytest.raises(BadData, match="no 'images'"):
        READERS["miniimagenet_pickles"](tmp_path)


def test_class_names_that_are_no_texts(tmp_path):
    cifar(tmp_path, "cifar100_python")
    (tmp_path / "meta").write_bytes(TUPLES + b"}U\x10fine_label_names](" + b"h\x28" * 100 + b"es.")
    with pytest.raises(BadData, match="0 class names instead of 100"):
        READERS["cifar100_python"](tmp_path)


# --- what is wrong with a file gives one line ---


@pytest.fixture
def put(tmp_path):
    def write(content: bytes) -> Path:
        path = tmp_path / "file"
        path.write_bytes(content)
        return path

    return write


@contextmanager
def little_memory(most):
    """What is done within takes no more bytes at its peak."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def binary(*columns: list[int], pixels: np.ndarray = PIXELS) -> bytes:
    return np.concatenate([np.array(columns, np.uint8).T, pixels], axis=1).tobytes()


def of_ten(path):
    return read_python(path, 10)


def of_hundred(path):
    return read_python(path, 100)


def read_records(path):
    return read_binary(path, 100)


GOOD_BINARY, GOOD_PICKLE, GOOD_IDX = binary(COARSE, FINE), pickled(), idx(PIXELS)
BAD_FILES = {
    "binary: empty": (read_records, b"", "0 bytes"),
    "binary: cut short": (read_records, GOOD_BINARY[:-1], "records of 3074 bytes"),
    "binary: CIFAR-10": (read_records, binary(FINE), "records of 3074 bytes"),
    "binary: label 100": (read_records, binary(COARSE, [100, *FINE[1:]]), "from 3 to 100, .* 0 to 99"),
    "pickle: empty": (of_hundred, b"", "not a readable pickle"),
    "pickle: text": (of_hundred, b"<html>not found</html>", "not a readable pickle"),
    "pickle: cut short": (of_hundred, GOOD_PICKLE[:-100], "not a readable pickle"),
    "pickle: cut short, protocol 5": (of_hundred, pickled(5)[:-10], "not a readable pickle"),
    "pickle: a list": (of_hundred, pickle.dumps([1, 2]), "no dictionary"),
    "pickle: number as key": (of_hundred, pickle.dumps({1: 2}), "no dictionary"),
    "pickle: no data": (of_hundred, pickled(data=None), "no 'data'"),
    "pickle: data in a list": (of_hundred, pickled(data=PIXELS.tolist()), "no 'data'"),
    "pickle: records too short": (of_hundred, pickled(data=PIXELS[:, 1:]), "no 'data'"),
    "pickle: floats": (of_hundred, pickled(data=PIXELS.astype("f4")), "no 'data'"),
    "pickle: no images": (of_hundred, pickled(data=PIXELS[:0], fine_labels=[]), "no images"),
    "pickle: a label too few": (of_hundred, pickled(fine_labels=FINE[1:]), "no 'fine_labels' of 6"),
    "pickle: labels as text": (of_hundred, pickled(fine_labels=list("abcdef")), "whole numbers"),
    "pickle: labels as floats": (of_hundred, pickled(fine_labels=[0.5] * 6), "whole numbers"),
    "pickle: label -1": (of_hundred, pickled(fine_labels=[-1, *FINE[1:]]), "from -1 to 99"),
    "pickle: label 2¹⁰⁰": (of_hundred, pickled(fine_labels=[2**100] * 6), "beyond all bounds, .* 0 to 99"),
    "pickle: label 10 of CIFAR-10": (of_ten, pickled(fine_labels=None, labels=[10] * 6), "0 to 9;"),
    "pickle: array of objects": (of_hundred, pickled(data=np.array([[{}]])), "not of numbers"),
    "pickle: array of text": (of_hundred, pickled(data=np.array(["a"])), "not of numbers"),
    "pickle: shape too large": (of_hundred, pickled_by_python_2(PIXELS).replace(
        b"J" + struct.pack("<i", 6), b"J" + struct.pack("<i", 7), 1), "not a readable pickle"),
    "pickle: CIFAR-100 for CIFAR-10": (of_ten, GOOD_PICKLE, "no 'labels' of 6"),
    "idx: empty": (read_idx, b"", "begins with nothing"),
    "idx: header cut short": (read_idx, GOOD_IDX[:6], "has 6 bytes"),
    "idx: wrong magic": (read_idx, b"\x89PNG" + GOOD_IDX[4:], "begins with 89504e47"),
    "idx: of floats": (read_idx, b"\0\0\x0d" + GOOD_IDX[3:], "not an IDX file of bytes"),
    "idx: cut short": (read_idx, GOOD_IDX[:-1], "instead of 18444 bytes"),
    "idx: one byte more": (read_idx, GOOD_IDX + b"x", "instead of 18444 bytes"),
    "idx: gzip cut short": (read_idx, gzip.compress(GOOD_IDX)[:-20], "gzip stream is damaged"),
    "idx: gzip damaged": (read_idx, gzip.compress(GOOD_IDX)[:10] + b"\xff" * 50, "gzip stream is damaged"),
    "idx: gzip, wrong checksum": (read_idx, gzip.compress(GOOD_IDX)[:-8] + bytes(8), "gzip stream is damaged"),
    "idx: gzip bomb": (read_idx, gzip.compress(GOOD_IDX + bytes(50_000_000)), "at least 18445 bytes instead of 18444"),
    "idx: shape beyond all bounds": (read_idx, b"\0\0\x08\x03" + b"\xff" * 12, "more than the 2,000,000,000 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file(put, case):
    read, content, says = BAD_FILES[case]
    path = put(content)
    with little_memory(5e6), pytest.raises(BadData, match=says) as caught:
        read(path)
    one_line(caught.value, path)


BAD_MAT = {
    "no X": ({"X": None}, "no X of 32 × 32 × 3 × n bytes"),
    "no y": ({"y": None}, "no y with one label for each of 12"),
    "floats": ({"X": DIGITS / 255}, "no X of"),
    "X of 28": ({"X": DIGITS[:28, :28]}, "no X of"),
    "too few labels": ({"y": STORED[1:]}, "no y with one label for each of 12"),
    "labels 11": ({"y": STORED + 1}, "from 2 to 11, but SVHN's are whole, 1 to 9 and 10"),
    "labels not a number": ({"y": STORED * np.nan}, "from nan to nan, but SVHN's are whole"),
    "labels in cells": ({"y": np.array([[[1]], "b"], object)}, "damaged, or not a MATLAB file"),
}


FEW_MAT = {"no X", "labels 11", "labels in cells"}  # each is read in a process of its own


@pytest.mark.parametrize(
    "case", [case if case in FEW_MAT else pytest.param(case, marks=pytest.mark.thorough) for case in BAD_MAT]
)
def test_bad_mat(tmp_path, case):
    changes, says = BAD_MAT[case]
    mat(tmp_path / "a.mat", **changes)
    with pytest.raises(BadData, match=says) as caught:
        read_mat(tmp_path / "a.mat")
    one_line(caught.value, tmp_path / "a.mat")


@pytest.mark.parametrize("spoil", [lambda _: b"", lambda _: b"<html>" * 99, lambda good: good[:9000]])
def test_damaged_mat(tmp_path, spoil):
    path = tmp_path / "a.mat"
    mat(path, compress=False)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(BadData, match="damaged, or not a MATLAB file of version 5; fetch") as caught:
        read_mat(path)
    one_line(caught.value, path)


def test_mat_that_inflates_to_more_than_svhn_has(tmp_path, monkeypatch):
    path = tmp_path / "a.mat"
    mat(path)
    monkeypatch.setattr(svhn_module, "MOST_BYTES", DIGITS.size - 1)
    with pytest.raises(BadData, match="says that it holds far more than SVHN") as caught:
        read_mat(path)
    one_line(caught.value, path)


def test_mat_is_read_in_bounded_memory(tmp_path, monkeypatch):
    path = tmp_path / "a.mat"
    mat(path, X=np.zeros((32, 32, 3, 20_000), np.uint8))  # more than what is free in memory that it has already
    monkeypatch.setattr(svhn_module, "MOST_MEMORY", 1_000_000)
    with pytest.raises(BadData, match="damaged, or not a MATLAB file"):
        read_mat(path)


def test_mat_that_ends_the_process_that_reads_it(tmp_path, monkeypatch):
    path = tmp_path / "a.mat"
    mat(path)
    monkeypatch.setattr(svhn_module, "_LOAD", "import os; os.abort()")
    with pytest.raises(BadData, match="damaged, or not a MATLAB file"):
        read_mat(path)


@pytest.mark.parametrize("read", [read_records, of_hundred, read_idx, read_mat])
def test_missing_huge_and_no_file(tmp_path, read):
    huge, pipe = tmp_path / "huge", tmp_path / "pipe"
    with huge.open("wb") as file:
        file.truncate(5 * 10**9)  # takes no room on the disk
    os.mkfifo(pipe)
    for path, says in (
        (huge, "5,000,000,000 bytes, far more than"),
        (pipe, "no plain file"),
        (tmp_path, "cannot be read"),
        (tmp_path / "absent", "no such file"),
    ):
        with pytest.raises(BadData, match=says) as caught:
            read(path)
        one_line(caught.value, path)
        assert isinstance(caught.value, MissingFile) == (path.name == "absent")


SMALL = {
    "pickle": (of_hundred, pickled_by_python_2(PIXELS[:1], [7])),
    "pickle, protocol 5": (of_hundred, pickled(5, data=PIXELS[:1], fine_labels=[7])),
    "binary": (read_records, binary([3], [7], pixels=PIXELS[:1])),
    "idx": (read_idx, idx(PIXELS[:2, :5])),
    "gzip": (read_idx, gzip.compress(idx(PIXELS[:2, :5]), mtime=0)),
}


@pytest.mark.parametrize("kind", SMALL)
@settings(max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_damage_of_any_kind_is_bad_data_or_harmless(put, kind, data):
    read, content = SMALL[kind]
    # Most bytes are pixels, whose damage cannot be seen; headers and opcodes are at both ends.
    ends = st.integers(0, 119).map(lambda at: at if at < 80 else at - 120)
    spoiled = bytearray(content)
    for at, byte in data.draw(st.lists(st.tuples(ends, st.integers(0, 255)), min_size=1, max_size=4)):
        spoiled[at % len(spoiled)] = byte
    path = put(bytes(spoiled))
    try:
        read(path)
    except BadData as error:
        one_line(error, path)


# --- what is wrong with a layout gives one line ---

Spoil = Callable[[Path], object]


def content(name: str, content: bytes) -> Spoil:
    return lambda folder: (folder / name).write_bytes(content)


def remove(name: str) -> Spoil:
    return lambda folder: subprocess.run(["rm", "-r", folder / name], check=True)


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


WRITERS = {
    **{layout: lambda folder, layout=layout: cifar(folder, layout) for layout in NAMES},
    "idx": idx_files,
    "svhn": svhn,
    "notmnist_folder": letters,
    "notmnist_split_folders": split_letters,
    "notmnist_idx": idx_files,
    "notmnist_pickles": notmnist_pickles,
    "miniimagenet_folders": lambda folder: mini_folders(folder, WNIDS[:FEW]),
    "miniimagenet_classes": lambda folder: mini(folder, 2, WNIDS[:FEW]),
    "miniimagenet_csv": lambda folder: mini_tables(folder, 3, WNIDS[:FEW]),
    "miniimagenet_pickles": mini_pickles,
}
CLASS_3 = WNIDS[3]
CIFAR_100 = pickle.dumps({"data": pixels(10, 3072), "fine_labels": [50] * 10})
TWO_NAMES = pickle.dumps({"fine_label_names": ["one", "two"], "label_names": np.arange(2)})
TRAIN_X, TRAIN_Y = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def features(**values: object) -> Spoil:
    return changed("notmnist_train.pkl", **values)


def colors(**values: object) -> Spoil:
    return changed("train.pkl", **values)


BAD_LAYOUTS = {
    "cifar10_binary": [
        (remove("data_batch_4.bin"), "data_batch_4.bin: no such file"),
        (content("data_batch_2.bin", bytes(3074)), "data_batch_2.bin: 3074 bytes are not whole"),
        (content("batches.meta.txt", b"cat dog"), "holds 2 class names instead of 10"),
        (content("test_batch.bin", bytes(3073)), "class thing_1 has images to train on but none to test"),
    ],
    "cifar10_python": [
        (content("data_batch_1", CIFAR_100), "data_batch_1: holds no 'labels'"),
        (content("batches.meta", TWO_NAMES), "holds 0 class names instead of 10"),
        (content("batches.meta", b"<html>"), "batches.meta: not a readable pickle"),
    ],
    "cifar100_python": [
        (content("meta", TWO_NAMES), "meta: holds 2 class names instead of 100"),
        (content("test", b"<html>"), "test: not a readable pickle"),
    ],
    "idx": [
        (remove("t10k-labels-idx1-ubyte"), r"t10k-labels-idx1-ubyte: no such file, nor .*\.gz; put"),
        (content(TRAIN_Y, idx(np.arange(20) % 9)), "class 9 has images to test but none to train on"),
        (content(TRAIN_Y, idx(np.arange(19) % 10)), f"{TRAIN_Y}: holds 19 labels for 20 images in train-images"),
        (content(TRAIN_Y, idx(np.arange(20) % 10 + 1)), "from 1 to 10, but 10 classes allow 0 to 9"),
        (content(TRAIN_Y, idx(np.zeros((10, 2)))), rf"{TRAIN_Y}: holds shape \(10, 2\) instead of"),
        (content(TRAIN_X, idx(pixels(20, 32, 32))), rf"{TRAIN_X}: holds shape \(20, 32, 32\) instead of n × 28 × 28"),
        (lambda folder: [content(TRAIN_X, idx(pixels(0, 28, 28)))(folder), content(TRAIN_Y, idx(pixels(0)))(folder)],
            "holds no images"),
    ],
    "svhn": [(remove("test_32x32.mat"), "test_32x32.mat: no such file")],
    "notmnist_folder": [
        (lambda _: None, "class [A-J] has images to train on but none to test"),
        (remove("C"), "C: no such folder; unpack"),
        (emptied("C"), "C: a class without images; unpack"),
        (lambda folder: (emptied("F")(folder), content(sorted(BROKEN)[1], b"")(folder)), "F: a class without images"),
        (content("E/1.png", b"text"), r"E: 1 of 30 images cannot be read: 1\.png; unpack"),
    ],
    "notmnist_split_folders": [
        (remove("Test/C"), "Test/C: no such folder"),
        (emptied("Test/C"), "Test/C: a class without images"),
        (content("Test/D/0.png", b""), r"Test/D: 1 of 10 images cannot be read: 0\.png"),
    ],
    "notmnist_idx": [(content(TRAIN_Y, idx(np.arange(20) % 11)), "from 0 to 10, but 10 classes")],
    "notmnist_pickles": [
        (remove("notmnist_test.pkl"), "notmnist_test.pkl: no such file"),
        (features(features=None), "no 'features' of n × 1 × 32 × 32"),
        (features(features=pixels(20, 3, 32, 32)), "no 'features' of n × 1"),
        (features(features=[pixels(1, 9, 9), pixels(1, 8, 8)]), "no 'features'"),
        (features(features=pixels(20, 1, 32, 32) / 99 - 1), "from -1 to 1.576, not 0 to 255"),
        (features(features=pixels(20, 1, 32, 32) * np.nan), "from nan to nan, not 0 to 255"),
        (features(features=pixels(0, 1, 32, 32), labels=[]), "no 'features'"),
        (features(labels=[1] * 19), "no 'labels' of 20 whole numbers"),
        (features(labels=list("ABCDEFGHIJ" * 2)), "no 'labels' of 20 whole numbers"),
        (features(labels=np.full(20, 0.5)), "no 'labels' of 20 whole numbers"),
        (features(labels=np.arange(20) % 11), "from 0 to 10, but 10 classes allow 0 to 9"),
    ],
    "miniimagenet_folders": [
        (lambda folder: (folder / "test").rename(folder / "val"), "test: no such folder"),
        (remove(f"test/{CLASS_3}"), rf"train/{CLASS_3} is not in test \(1 such"),
        (remove(f"train/{CLASS_3}"), rf"test/{CLASS_3} is not in train .*side by side"),
        (lambda folder: [remove(f"{part}/{CLASS_3}")(folder) for part in ("train", "test")],
            "has 5 classes, MiniImageNet has 6; put train/<wnid>"),
        (emptied(f"test/{CLASS_3}"), f"test/{CLASS_3}: a class without images"),
        (content(f"train/{CLASS_3}/x.jpg", b"text"), r"1 of 13 images cannot be read: x\.jpg"),
    ],
    "miniimagenet_classes": [
        (remove(CLASS_3), "has 5 classes, MiniImageNet has 6; put <wnid>"),
        (emptied(CLASS_3), f"{CLASS_3}: a class without images"),
        (remove(f"{CLASS_3}/{CLASS_3}1.png"), f"class {CLASS_3} has one image"),
    ],
    "miniimagenet_csv": [
        (remove("val.csv"), "val.csv: no such file"),
        (lambda folder: (folder / "images").rename(folder / "other"), "images: no such folder"),
        (lambda folder: [remove(f"images/{CLASS_3}{n}.png")(folder) for n in (0, 2)],
            f"images: lacks 2 of the 18 files that its tables name, the first is '{CLASS_3}2.png'; unpack"),
        (with_row("train.csv", f"../train.csv,{CLASS_3}\n"), r"lacks 1 of the 19 .*'\.\./train\.csv'"),
        (with_row("test.csv", f"{CLASS_3}0.png,{CLASS_3}\n"), f"test.csv: names '{CLASS_3}0.png' again"),
        (content("val.csv", b"file,class\na.png,n00000001\n"), "val.csv: row 2 has no filename"),
        (with_row("val.csv", "a.png\n"), "val.csv: row 8 has no filename, or no label"),
        (with_row("val.csv", "a.png,dog\n"), "no label like n01532829"),
        (content("val.csv", b""), "val.csv: names no files"),
        (content("val.csv", b"\xff\xfe\x00"), "val.csv: not a table of texts"),
        (content("val.csv", b'filename,label\n"a.png,n00000001'), "val.csv: not a table of texts"),
        (content("val.csv", f"filename,label\n{WNIDS[1]}0.png,{CLASS_3}\n".encode()),
            "has 4 classes, MiniImageNet has 6; put images"),
    ],
    "miniimagenet_pickles": [
        (remove("test.pkl"), "test.pkl: no such file"),
        (colors(images=None), "train.pkl: holds no 'images' of n × 84 × 84 × 3"),
        (colors(images=[], labels=[]), "holds no 'images'"),
        (colors(images=["a.jpg"] * 200), "holds no 'images'"),
        (colors(images=np.zeros((200, 8, 8, 3))), "holds no 'images'"),
        (colors(images=pixels(200, 3, 8, 8)), "holds no 'images'"),
        (colors(images=list(pixels(200, 8, 8))), "holds no 'images'"),
        (colors(labels=[0] * 199), "no 'labels' of 200 whole numbers"),
        (colors(labels=[100] * 200), "from 100 to 100, but 100 classes"),
        (colors(labels=[n % 50 for n in range(200)]), "train.pkl: has 50 classes, MiniImageNet has 100"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "number"), [(name, n) for name, cases in BAD_LAYOUTS.items() for n in range(len(cases))]
)
def test_bad_layout(tmp_path, monkeypatch, layout, number):
    spoil, says = BAD_LAYOUTS[layout][number]
    if layout.startswith("miniimagenet") and layout != "miniimagenet_pickles":
        monkeypatch.setattr(mini_module, "CLASSES", FEW)  # a hundred folders take their time
    WRITERS[layout](tmp_path)
    spoil(tmp_path)
    with pytest.raises(BadData, match=says) as caught:
        READERS[layout](tmp_path)
    text = one_line(caught.value, tmp_path)
    assert isinstance(caught.value, MissingFile) == ("no such" in text or "lacks" in text)


@pytest.mark.parametrize("layout", WRITERS)
def test_empty_and_absent_folder(tmp_path, layout):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(BadData, match=f"{folder}.*: (no such|has 0 classes)"):
            READERS[layout](folder)
