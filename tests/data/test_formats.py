"""Original files are read as they are; damaged and hostile ones give one clear line."""

import gzip
import os
import pickle
import struct
import tracemalloc
import zlib
from contextlib import contextmanager
from io import BytesIO

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from perdure.data.formats import (
    read_cifar_binary,
    read_cifar_pickle,
    read_idx,
    read_idx_pair,
    read_pickle,
    read_svhn,
)

from perdure.errors import BadData, MissingFile

CHANCE = np.random.RandomState(0)
PIXELS = CHANCE.randint(0, 256, (6, 3072)).astype(np.uint8)
FINE = [0, 99, 5, 17, 42, 3]
COARSE = [0, 19, 1, 2, 3, 4]


def binary(*columns: list[int], pixels: np.ndarray = PIXELS) -> bytes:
    return np.concatenate([np.array(columns, np.uint8).T, pixels], axis=1).tobytes()


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


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


DIGITS = CHANCE.randint(0, 256, (32, 32, 3, 12)).astype(np.uint8)
STORED = np.arange(12, dtype=np.uint8)[:, None] % 10 + 1  # 1 to 9, 10 for the digit 0, 1, 2


def mat(compress: bool = True, order: str = "<", **changes: object) -> bytes:
    """A .mat file of SVHN, with some of its variables changed or, as None, left out."""
    content = b"MATLAB 5.0 MAT-file".ljust(124) + {"<": b"\x00\x01IM", ">": b"\x01\x00MI"}[order]
    for name, array in ({"X": DIGITS, "y": STORED} | changes).items():
        if array is not None:
            whole = mat_variable(name, array, order)
            content += deflated(whole, order) if compress else whole
    return content


def deflated(element: bytes, order: str = "<", cut: int = 0) -> bytes:
    packed = zlib.compress(element)[: -cut or None]
    return struct.pack(f"{order}II", 15, len(packed)) + packed


def mat_variable(name: str, array: np.ndarray, order: str = "<") -> bytes:
    def element(kind: int, content: bytes) -> bytes:
        if 0 < len(content) <= 4:
            return struct.pack(f"{order}I", len(content) << 16 | kind) + content.ljust(4, b"\0")
        return struct.pack(f"{order}II", kind, len(content)) + content + bytes(-len(content) % 8)

    kind, meant = {"u1": (2, 9), "f8": (9, 6), "i2": (3, 10), "b1": (1, 1)}[array.dtype.str[1:]]
    content = element(6, struct.pack(f"{order}II", meant, 0)) + element(
        5, np.array(array.shape, f"{order}i4").tobytes()
    )
    content += element(1, name.encode()) + element(kind, array.astype(array.dtype.newbyteorder(order)).tobytes("F"))
    return struct.pack(f"{order}II", 14, len(content)) + content


HEADER = mat(X=None, y=None)
STRANGE = mat_variable("Z", STORED).replace(struct.pack("<II", 2, 12), struct.pack("<II", 99, 12))


@pytest.fixture
def put(tmp_path):
    def write(content: bytes):
        path = tmp_path / "file"
        path.write_bytes(content)
        return path

    return write


def of_ten(path):
    return read_cifar_pickle(path, 10)


def of_hundred(path):
    return read_cifar_pickle(path, 100)


@contextmanager
def little_memory(most):
    """What is done within takes no more bytes at its peak."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


# --- what is right is read right ---


@pytest.mark.parametrize(("coarse_bytes", "columns"), [(1, (COARSE, FINE)), (0, ([9, 0, 1, 2, 3, 4],))])
def test_binary(put, coarse_bytes, columns):
    images, labels = read_cifar_binary(put(binary(*columns)), coarse_bytes)
    assert images.dtype == np.uint8
    assert labels.dtype == np.int64
    assert labels.tolist() == columns[-1]
    assert np.array_equal(images, PIXELS.reshape(6, 3, 32, 32))


@pytest.mark.parametrize("protocol", range(6))
def test_pickle_of_each_protocol(put, protocol):
    images, labels = of_hundred(put(pickled(protocol)))
    assert labels.dtype == np.int64
    assert labels.tolist() == FINE
    assert np.array_equal(images, PIXELS.reshape(6, 3, 32, 32))


def test_pickle_of_python_2(put):
    content = pickled_by_python_2()
    assert np.array_equal(pickle.loads(content, encoding="bytes")[b"data"], PIXELS)  # it is what numpy reads
    images, labels = of_hundred(put(content))
    assert labels.tolist() == FINE
    assert np.array_equal(images, PIXELS.reshape(6, 3, 32, 32))


@pytest.mark.parametrize("package", [b"numpy.core.", b"numpy._core."])
def test_pickle_of_old_and_new_numpy(put, package):
    content = pickled(2, fine_labels=[np.int64(label) for label in FINE])
    content = content.replace(b"numpy._core.", b"numpy.core.").replace(b"numpy.core.", package)
    assert content.count(package) == 2  # _reconstruct and scalar
    images, labels = of_hundred(put(content))
    assert labels.tolist() == FINE
    assert np.array_equal(images, PIXELS.reshape(6, 3, 32, 32))


def test_pickle_of_cifar_10_and_of_label_arrays(put):
    labels = np.array([9, 0, 1, 2, 3, 4], ">i4")
    assert of_ten(put(pickled(fine_labels=None, labels=labels)))[1].tolist() == labels.tolist()


def test_pickle_laid_by_columns(put):
    images, _ = of_hundred(put(pickled(data=np.asfortranarray(PIXELS))))
    assert np.array_equal(images, PIXELS.reshape(6, 3, 32, 32))


def test_pickle_of_names(put):
    found = read_pickle(put(pickle.dumps({b"fine_label_names": [b"apple", "bear", b""], "number": 1.5}, protocol=2)))
    assert found == {"fine_label_names": [b"apple", "bear", b""], "number": 1.5}


@pytest.mark.parametrize("shape", [(7,), (2, 3), (2, 4, 5)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx(put, shape, pack):
    array = CHANCE.randint(0, 256, shape).astype(np.uint8)
    assert np.array_equal(read_idx(put(pack(idx(array)))), array)


def test_idx_can_be_written_to(put):
    assert read_idx(put(gzip.compress(idx(PIXELS)))).flags.writeable  # torch warns of arrays that cannot


@pytest.mark.parametrize("part", ["train", "t10k"])
@pytest.mark.parametrize("packed", [(), ("images-idx3",), ("labels-idx1",), ("images-idx3", "labels-idx1")])
def test_idx_pair(tmp_path, part, packed):
    images, labels = CHANCE.randint(0, 256, (10, 28, 28)).astype(np.uint8), np.arange(10, dtype=np.uint8)[::-1]
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        path = tmp_path / f"{part}-{name}-ubyte{'.gz' if name in packed else ''}"
        path.write_bytes(gzip.compress(idx(array)) if name in packed else idx(array))
    x, y = read_idx_pair(tmp_path, part)
    assert np.array_equal(x, images)
    assert y.dtype == np.int64
    assert y.tolist() == labels.tolist()
    if packed:  # a plain file goes first
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels[::-1]))
        assert read_idx_pair(tmp_path, part)[1].tolist() == labels[::-1].tolist()


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("labels", [STORED, STORED.astype("f8"), STORED.astype("i2"), STORED.T])
def test_svhn(put, compress, order, labels):
    images, found = read_svhn(put(mat(compress, order, other=np.ones(3), y=labels, cell=np.ones((2, 2), bool))))
    assert images.dtype == np.uint8
    assert images.flags.c_contiguous
    assert images.shape == (12, 3, 32, 32)
    assert images[5, 2, 30, 1] == DIGITS[30, 1, 2, 5]
    assert found.dtype == np.int64
    assert found.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]


def test_svhn_beside_what_cannot_be_read(put):
    assert len(read_svhn(put(HEADER + STRANGE + mat()[128:]))[1]) == 12


def test_svhn_of_two_images(put):
    _, labels = read_svhn(put(mat(X=DIGITS[..., :2], y=STORED[8:10])))  # so few that they stand within the tag
    assert labels.tolist() == [9, 0]


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("labels", [STORED, STORED.astype("f8")])
def test_svhn_as_scipy_has_it(put, compress, labels):
    scipy_io = pytest.importorskip("scipy.io", reason="scipy is not installed; nothing but this comparison needs it")
    file = BytesIO()
    scipy_io.savemat(file, {"X": DIGITS, "y": labels, "text": "a", "cell": [1, "b"]}, do_compression=compress)
    for content in (file.getvalue(), mat(compress, y=labels)):
        images, found = read_svhn(put(content))
        theirs = scipy_io.loadmat(BytesIO(content))
        assert np.array_equal(images, theirs["X"].transpose(3, 2, 0, 1))
        assert found.tolist() == (theirs["y"].ravel() % 10).tolist()


@pytest.mark.parametrize("protocol", range(6))
def test_pickle_of_arrays_in_lists_tuples_and_dictionaries(put, protocol):
    content = {
        "images": [PIXELS[:1], PIXELS[1:3]],
        "pair": (PIXELS[0], [1, (PIXELS[1], "text")]),
        "deep": {b"a": PIXELS, 7: b"x"},
    }
    found = read_pickle(put(pickle.dumps(content, protocol=protocol)))
    assert [array.tolist() for array in found["images"]] == [PIXELS[:1].tolist(), PIXELS[1:3].tolist()]
    first, (one, (second, text)) = found["pair"]
    assert (one, text) == (1, "text")
    assert np.array_equal(first, PIXELS[0])
    assert np.array_equal(second, PIXELS[1])
    assert list(found["deep"]) == ["a", 7]
    assert np.array_equal(found["deep"]["a"], PIXELS)


def test_pickle_whose_parts_are_shared(put):
    row = [PIXELS]
    found = read_pickle(put(pickle.dumps({"a": row, "b": (row, row), "c": {"d": row}})))
    assert found["a"] is found["b"][0] is found["b"][1] is found["c"]["d"]
    assert np.array_equal(found["a"][0], PIXELS)


@pytest.mark.parametrize("kind", [list, tuple, lambda pair: dict(enumerate(pair))])
def test_pickle_of_few_bytes_that_would_unfold_into_2_to_the_60(put, kind):
    part = kind([PIXELS[0], 1])
    for _ in range(60):
        part = kind([part, part])
    found = read_pickle(put(pickle.dumps({"part": part})))["part"]
    for _ in range(60):
        found = found[1]
    assert np.array_equal(found[0], PIXELS[0])


def test_pickle_that_holds_itself(put):
    ring: list[object] = [PIXELS]
    ring.append((ring, {"ring": ring}))
    found = read_pickle(put(pickle.dumps({"ring": ring})))["ring"]
    assert found[1][0] is found
    assert found[1][1]["ring"] is found
    assert np.array_equal(found[0], PIXELS)


# --- what is wrong is refused in one line ---

GOOD_BINARY, GOOD_PICKLE, GOOD_IDX = binary(COARSE, FINE), pickled(), idx(PIXELS)
NEGATIVE = [-1, *FINE[1:]]


BAD = {
    "binary: empty": (read_cifar_binary, b"", "0 bytes"),
    "binary: cut short": (read_cifar_binary, GOOD_BINARY[:-1], "records of 3074 bytes"),
    "binary: one byte more": (read_cifar_binary, GOOD_BINARY + b"x", "records of 3074 bytes"),
    "binary: CIFAR-10": (read_cifar_binary, binary(FINE), "records of 3074 bytes"),
    "binary: label 100": (read_cifar_binary, binary(COARSE, [100, *FINE[1:]]), "from 3 to 100, .* 0 to 99"),
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
    "pickle: no labels": (of_ten, pickled(fine_labels=None), "no list 'labels'"),
    "pickle: a label too few": (of_hundred, pickled(fine_labels=FINE[1:]), "no list 'fine_labels' of 6"),
    "pickle: labels as text": (of_hundred, pickled(fine_labels=list("abcdef")), "whole numbers"),
    "pickle: labels as floats": (of_hundred, pickled(fine_labels=[0.5] * 6), "whole numbers"),
    "pickle: label 100": (of_hundred, pickled(fine_labels=[100, *FINE[1:]]), "from 3 to 100, .* 0 to 99"),
    "pickle: label -1": (of_hundred, pickled(fine_labels=NEGATIVE), "from -1 to 99"),
    "pickle: label 2¹⁰⁰": (of_hundred, pickled(fine_labels=[2**100] * 6), "0 to 99"),
    "pickle: label 10 of CIFAR-10": (of_ten, pickled(fine_labels=None, labels=[10] * 6), "0 to 9;"),
    "pickle: array of objects": (of_hundred, pickled(data=np.array([[{}]])), "not of numbers"),
    "pickle: array of text": (of_hundred, pickled(data=np.array(["a"])), "not of numbers"),
    "pickle: shape too large": (of_hundred, pickled_by_python_2(PIXELS).replace(
        b"J" + struct.pack("<i", 6), b"J" + struct.pack("<i", 7), 1), "not a readable pickle"),
    "pickle: CIFAR-100 for CIFAR-10": (of_ten, GOOD_PICKLE, "no list 'labels' of 6"),
    "pickle: CIFAR-10 for CIFAR-100": (of_hundred, pickled(fine_labels=None, labels=[1] * 6), "no list 'fine_labels'"),
    "pickle: a set": (read_pickle, pickle.dumps({"a": [{1}]}, protocol=4), "refused, .* holds a 'set'"),
    "pickle: a function": (read_pickle, b"\x80\x02}U\x01ac_codecs\nencode\ns.", "refused, .* holds a 'function'"),
    "pickle: a type in a list": (read_pickle, b"\x80\x02}U\x01a]cnumpy\ndtype\nas.", "refused, .* holds a 'type'"),
    "pickle: tuples as keys": (read_pickle, pickle.dumps({"a": {(1, 2): 3}}), "refused, .* keys"),
    "pickle: lists in lists in …": (read_pickle, b"}U\x01a" + b"]" * 9999 + b"a" * 9998 + b"s.", "RecursionError"),
    "pickle: objects in a list": (read_pickle, pickle.dumps({"a": [np.array([{}])]}), "not of numbers"),
    "idx: empty": (read_idx, b"", "begins with nothing"),
    "idx: header cut short": (read_idx, GOOD_IDX[:6], "has 6 bytes"),
    "idx: wrong magic": (read_idx, b"\x89PNG" + GOOD_IDX[4:], "begins with 89504e47"),
    "idx: of floats": (read_idx, b"\0\0\x0d" + GOOD_IDX[3:], "not an IDX file of bytes"),
    "idx: no dimensions": (read_idx, b"\0\0\x08\0", "not an IDX file of bytes"),
    "idx: cut short": (read_idx, GOOD_IDX[:-1], "instead of 18444 bytes"),
    "idx: one byte more": (read_idx, GOOD_IDX + b"x", "instead of 18444 bytes"),
    "idx: gzip cut short": (read_idx, gzip.compress(GOOD_IDX)[:-20], "gzip stream is damaged"),
    "idx: gzip damaged": (read_idx, gzip.compress(GOOD_IDX)[:10] + b"\xff" * 50, "gzip stream is damaged"),
    "idx: gzip, one byte more": (read_idx, gzip.compress(GOOD_IDX + b"x"), "at least 18445 bytes instead of 18444"),
    "idx: gzip, wrong checksum": (read_idx, gzip.compress(GOOD_IDX)[:-8] + bytes(8), "gzip stream is damaged"),
    "idx: shape beyond all bounds": (read_idx, b"\0\0\x08\x03" + b"\xff" * 12, "more than the 2,000,000,000 bytes"),
    "idx: gzip of that": (read_idx, gzip.compress(b"\0\0\x08\x02\0\1\0\0\0\1\0\0"), "more than the 2,000,000,000"),
    "idx: gzip of something else": (read_idx, gzip.compress(b"hello"), "not an IDX file of bytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_file(put, case):
    read, content, says = BAD[case]
    path = put(content)
    with pytest.raises(BadData, match=says) as caught:
        read(path, 1) if read is read_cifar_binary else read(path)
    one_line(caught.value, path)


BAD_MAT = {
    "empty": (lambda: b"", "not a MATLAB file of version 5"),
    "text": (lambda: b"<html>not found</html>" * 40, "not a MATLAB file of version 5"),
    "HDF5": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(1000), "version 7.3 .HDF5."),
    "version 7.3": (lambda: b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + bytes(384) + b"\x89HDF\r\n\x1a\n", "HDF5"),
    "a header": (lambda: HEADER, "no X of"),
    "noise": (lambda: HEADER + CHANCE.bytes(2000), "damaged|no X of"),
    "no header of MATLAB": (lambda: mat()[128:], "not a MATLAB file of version 5"),
    "cut short": (lambda: mat()[:-3000], "damaged MATLAB file"),
    "cut short, uncompressed": (lambda: mat(False)[:9000], "damaged MATLAB file"),
    "y cut short": (lambda: mat()[:-10], "damaged MATLAB file"),
    "damaged within": (lambda: mat()[:5000] + bytes(500) + mat()[5500:], "damaged MATLAB file"),
    "no X": (lambda: mat(X=None), "no X of 32 × 32 × 3 × n bytes"),
    "no y": (lambda: mat(y=None), "no y with one label for each of 12"),
    "floats": (lambda: mat(X=DIGITS / 255), "no X of"),
    "X turned": (lambda: mat(X=DIGITS.transpose(3, 0, 1, 2)), "no X of"),
    "X of 28": (lambda: mat(X=DIGITS[:28, :28]), "no X of"),
    "one image without its axis": (lambda: mat(X=DIGITS[..., 0], y=STORED[:1]), "no X of"),
    "no images": (lambda: mat(X=DIGITS[..., :0], y=STORED[:0]), "no X of"),
    "too few labels": (lambda: mat(y=STORED[1:]), "no y with one label for each of 12"),
    "labels 11": (lambda: mat(y=STORED + 1), "from 2 to 11, but SVHN's are whole, 1 to 9 and 10"),
    "labels 0": (lambda: mat(y=STORED - 1), "from 0 to 9, but SVHN's are whole, 1 to 9 and 10"),
    "labels 1½": (lambda: mat(y=STORED + 0.5), "from 1.5 to 10.5, but SVHN's are whole"),
    "labels not a number": (lambda: mat(y=STORED * np.nan), "from nan to nan, but SVHN's are whole"),
    "labels in cells": (lambda: mat(y=np.ones((12, 1), bool)), "no y with one label"),
    "shape too large": (lambda: mat(False).replace(struct.pack("<I", 12), struct.pack("<I", 13), 1), "damaged"),
    "wrong sum": (lambda: mat()[:-4] + bytes(4), "damaged"),
    "no sum": (lambda: HEADER + deflated(mat_variable("X", DIGITS), cut=4), "damaged"),
    "more than its tag says": (lambda: HEADER + deflated(mat_variable("X", DIGITS) + b"x"), "damaged"),
    "complex numbers": (lambda: mat(False).replace(b"\x09\0\0\0", b"\x09\x08\0\0", 1), "no X of"),
    "unknown kind of numbers": (lambda: HEADER + STRANGE.replace(b"Z", b"X"), "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_MAT)
def test_bad_mat(put, case):
    make, says = BAD_MAT[case]
    path = put(make())
    with pytest.raises(BadData, match=says) as caught:
        read_svhn(path)
    one_line(caught.value, path)


def test_mat_that_asks_for_4_gigabytes(put):
    tag = struct.pack("<II", 2, DIGITS.size)
    path = put(HEADER + mat_variable("X", DIGITS).replace(tag, struct.pack("<II", 2, 2**32 - 8)))
    with little_memory(5e6), pytest.raises(BadData, match="damaged MATLAB file"):
        read_svhn(path)


def test_mat_bomb_is_inflated_no_further_than_needed(put):
    huge = struct.pack("<II", 14, 0) + mat_variable("X", DIGITS)[8:] + bytes(50_000_000)  # more than its tag says
    bomb = HEADER + deflated(huge)
    assert len(bomb) < 150_000
    path = put(bomb)
    with little_memory(5e6), pytest.raises(BadData, match="damaged MATLAB file"):
        read_svhn(path)


IMAGES, TEN = np.zeros((10, 28, 28), np.uint8), np.arange(10, dtype=np.uint8)
BAD_PAIRS = {
    "a label too few": (IMAGES, TEN[1:], "labels-idx1", "holds 9 labels for 10 images in train-images"),
    "label 10": (IMAGES, TEN + 1, "labels-idx1", "from 1 to 10, but 10 classes allow 0 to 9"),
    "32 × 32": (np.zeros((10, 32, 32), np.uint8), TEN, "images-idx3", r"shape \(10, 32, 32\) instead of n × 28 × 28"),
    "flat images": (np.zeros((10, 784), np.uint8), TEN, "images-idx3", r"shape \(10, 784\) instead of"),
    "two labels each": (IMAGES, TEN.reshape(5, 2), "labels-idx1", r"shape \(5, 2\) instead of"),
    "none": (IMAGES[:0], TEN[:0], "images-idx3", "holds no images"),
    "changed places": (TEN, IMAGES, "images-idx3", r"shape \(10,\) instead of"),
}


@pytest.mark.parametrize("case", BAD_PAIRS)
def test_bad_pair(tmp_path, case):
    images, labels, culprit, says = BAD_PAIRS[case]
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    with pytest.raises(BadData, match=says) as caught:
        read_idx_pair(tmp_path, "train")
    one_line(caught.value, tmp_path / f"train-{culprit}-ubyte")


def test_pair_without_one_of_its_files(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(IMAGES))
    with pytest.raises(
        MissingFile, match=r"train-labels-idx1-ubyte: no such file, nor train-labels-idx1-ubyte\.gz; put"
    ):
        read_idx_pair(tmp_path, "train")


def test_gzip_bomb_is_inflated_no_further_than_its_header_says(put):
    path = put(gzip.compress(idx(PIXELS) + bytes(50_000_000)))
    with little_memory(5e6), pytest.raises(BadData, match="at least 18445 bytes instead of 18444"):
        read_idx(path)


@pytest.mark.parametrize("read", [lambda path: read_cifar_binary(path, 1), of_hundred, read_idx, read_svhn])
def test_file_beyond_all_bounds_and_pipe(tmp_path, read):
    huge, pipe = tmp_path / "huge", tmp_path / "pipe"
    with huge.open("wb") as file:
        file.truncate(5 * 10**9)  # takes no room on the disk
    os.mkfifo(pipe)
    for path, says in ((huge, "5,000,000,000 bytes, far more than"), (pipe, "no plain file")):
        with pytest.raises(BadData, match=says) as caught:
            read(path)
        one_line(caught.value, path)


@pytest.mark.parametrize("read", [lambda path: read_cifar_binary(path, 1), of_hundred, read_idx, read_svhn])
def test_missing_file_and_folder(tmp_path, read):
    with pytest.raises(MissingFile, match="no such file") as caught:
        read(tmp_path / "absent")
    one_line(caught.value, tmp_path / "absent")
    with pytest.raises(BadData, match="cannot be read") as caught:
        read(tmp_path)
    assert not isinstance(caught.value, MissingFile)
    one_line(caught.value, tmp_path)


class Touch:
    """A pickle of this runs a shell command when an ordinary unpickler reads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(6))
def test_pickle_that_calls_something(put, tmp_path, protocol):
    mark = tmp_path / "mark"
    content = pickled(protocol, filenames=Touch(mark))
    path = put(content)
    with pytest.raises(BadData, match=r"refused, for the pickle asks for 'posix\.system'") as caught:
        of_hundred(path)
    one_line(caught.value, path)
    assert not mark.exists()
    pickle.loads(content)
    assert mark.exists()  # so the pickle was a real one


@pytest.mark.parametrize("hide", [lambda evil: [PIXELS, evil], lambda evil: ({"a": (evil,)},)])
def test_pickle_that_calls_something_deep_inside(put, tmp_path, hide):
    mark = tmp_path / "mark"
    content = pickled(filenames=hide(Touch(mark)))
    with pytest.raises(BadData, match=r"refused, for the pickle asks for 'posix\.system'"):
        read_pickle(put(content))
    assert not mark.exists()
    pickle.loads(content)
    assert mark.exists()


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
    with pytest.raises(BadData, match="asks for") as caught:
        read_pickle(path)
    one_line(caught.value, path)


@pytest.mark.parametrize(
    "content",
    [
        b"c_codecs\nencode\n(Vtext\nVzlib\ntR.",  # bytes in a codec of its choice
        b"cbuiltins\nbytes\n(I99999999999\ntR.",  # bytes of a length of its choice
        b"cnumpy\ndtype\n(VO8\nI00\nI01\ntR.",  # an array of objects
    ],
)
def test_pickle_that_misuses_what_is_admitted(put, content):
    with pytest.raises(BadData, match=r"refused|not a readable"):
        read_pickle(put(content))


def test_pickle_that_asks_for_a_large_memo(put):
    path = put(b"\x80\x02}r" + struct.pack("<I", 2**24) + b".")  # the unpickler in C would take 268 MB
    with little_memory(10e6):
        assert read_pickle(path) == {}


def test_pickle_that_asks_for_a_large_array(put):
    path = put(b"\x80\x05\x96" + struct.pack("<Q", 10**8) + b".")  # twelve bytes; Python's reader would take 100 MB
    with little_memory(5e6), pytest.raises(BadData, match="not a readable pickle") as caught:
        read_pickle(path)
    one_line(caught.value, path)


SMALL = {
    "pickle": (of_hundred, pickled_by_python_2(PIXELS[:1], [7])),
    "pickle, protocol 5": (of_hundred, pickled(5, data=PIXELS[:1], fine_labels=[7])),
    "binary": (lambda path: read_cifar_binary(path, 1), binary([3], [7], pixels=PIXELS[:1])),
    "idx": (read_idx, idx(PIXELS[:2, :5])),
    "gzip": (read_idx, gzip.compress(idx(PIXELS[:2, :5]), mtime=0)),
    "mat": (read_svhn, mat(False, X=DIGITS[..., :1], y=STORED[:1])),
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


def one_line(error: BadData, path: object) -> None:
    """The message is one line that begins with the file and ends with what to do."""
    text = str(error)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert len(text) < len(str(path)) + 220
    assert any(verb in text.split(";")[-1] for verb in ("unpack", "fetch", "put", "use the file", "check"))
