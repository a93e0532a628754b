"""Original files are read as they are; damaged and hostile ones give one clear line."""

import gzip
import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.data.formats import read_cifar_binary, read_cifar_pickle, read_idx, read_pickle
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


@pytest.fixture
def put(tmp_path):
    def write(content: bytes):
        path = tmp_path / "file"
        path.write_bytes(content)
        return path

    return write


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
    images, labels = read_cifar_pickle(put(pickled(protocol)))
    assert labels.dtype == np.int64
    assert labels.tolist() == FINE
    assert np.array_equal(images, PIXELS.reshape(6, 3, 32, 32))


def test_pickle_of_python_2(put):
    content = pickled_by_python_2()
    assert np.array_equal(pickle.loads(content, encoding="bytes")[b"data"], PIXELS)  # it is what numpy reads
    images, labels = read_cifar_pickle(put(content))
    assert labels.tolist() == FINE
    assert np.array_equal(images, PIXELS.reshape(6, 3, 32, 32))


@pytest.mark.parametrize("package", [b"numpy.core.", b"numpy._core."])
def test_pickle_of_old_and_new_numpy(put, package):
    content = pickled(2, fine_labels=[np.int64(label) for label in FINE])
    content = content.replace(b"numpy._core.", b"numpy.core.").replace(b"numpy.core.", package)
    assert content.count(package) == 2  # _reconstruct and scalar
    images, labels = read_cifar_pickle(put(content))
    assert labels.tolist() == FINE
    assert np.array_equal(images, PIXELS.reshape(6, 3, 32, 32))


def test_pickle_of_cifar_10_and_of_label_arrays(put):
    labels = np.array([9, 0, 1, 2, 3, 4], ">i4")
    assert read_cifar_pickle(put(pickled(fine_labels=None, labels=labels)))[1].tolist() == labels.tolist()


def test_pickle_laid_by_columns(put):
    images, _ = read_cifar_pickle(put(pickled(data=np.asfortranarray(PIXELS))))
    assert np.array_equal(images, PIXELS.reshape(6, 3, 32, 32))


def test_pickle_of_names(put):
    found = read_pickle(put(pickle.dumps({b"fine_label_names": [b"apple", "bear", b""], "number": 1.5}, protocol=2)))
    assert found == {"fine_label_names": [b"apple", "bear", b""], "number": 1.5}


@pytest.mark.parametrize("shape", [(7,), (2, 3), (2, 4, 5)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx(put, shape, pack):
    array = CHANCE.randint(0, 256, shape).astype(np.uint8)
    assert np.array_equal(read_idx(put(pack(idx(array)))), array)


# --- what is wrong is refused in one line ---

GOOD_BINARY, GOOD_PICKLE, GOOD_IDX = binary(COARSE, FINE), pickled(), idx(PIXELS)
NEGATIVE = [-1, *FINE[1:]]

BAD = {
    "binary: empty": (read_cifar_binary, b"", "0 bytes"),
    "binary: cut short": (read_cifar_binary, GOOD_BINARY[:-1], "records of 3074 bytes"),
    "binary: one byte more": (read_cifar_binary, GOOD_BINARY + b"x", "records of 3074 bytes"),
    "binary: CIFAR-10": (read_cifar_binary, binary(FINE), "records of 3074 bytes"),
    "binary: label 100": (read_cifar_binary, binary(COARSE, [100, *FINE[1:]]), "from 3 to 100, .* 0 to 99"),
    "pickle: empty": (read_cifar_pickle, b"", "not a readable pickle"),
    "pickle: text": (read_cifar_pickle, b"<html>not found</html>", "not a readable pickle"),
    "pickle: cut short": (read_cifar_pickle, GOOD_PICKLE[:-100], "not a readable pickle"),
    "pickle: cut short, protocol 5": (read_cifar_pickle, pickled(5)[:-10], "not a readable pickle"),
    "pickle: a list": (read_cifar_pickle, pickle.dumps([1, 2]), "no dictionary"),
    "pickle: number as key": (read_cifar_pickle, pickle.dumps({1: 2}), "no dictionary"),
    "pickle: no data": (read_cifar_pickle, pickled(data=None), "no 'data'"),
    "pickle: data in a list": (read_cifar_pickle, pickled(data=PIXELS.tolist()), "no 'data'"),
    "pickle: records too short": (read_cifar_pickle, pickled(data=PIXELS[:, 1:]), "no 'data'"),
    "pickle: floats": (read_cifar_pickle, pickled(data=PIXELS.astype("f4")), "no 'data'"),
    "pickle: no images": (read_cifar_pickle, pickled(data=PIXELS[:0], fine_labels=[]), "no images"),
    "pickle: no labels": (read_cifar_pickle, pickled(fine_labels=None), "no list 'labels'"),
    "pickle: a label too few": (read_cifar_pickle, pickled(fine_labels=FINE[1:]), "no list 'fine_labels' of 6"),
    "pickle: labels as text": (read_cifar_pickle, pickled(fine_labels=list("abcdef")), "whole numbers"),
    "pickle: labels as floats": (read_cifar_pickle, pickled(fine_labels=[0.5] * 6), "whole numbers"),
    "pickle: label 100": (read_cifar_pickle, pickled(fine_labels=[100, *FINE[1:]]), "from 3 to 100, .* 0 to 99"),
    "pickle: label -1": (read_cifar_pickle, pickled(fine_labels=NEGATIVE), "from -1 to 99"),
    "pickle: label 2¹⁰⁰": (read_cifar_pickle, pickled(fine_labels=[2**100] * 6), "0 to 99"),
    "pickle: label 10 of CIFAR-10": (read_cifar_pickle, pickled(fine_labels=None, labels=[10] * 6), "0 to 9;"),
    "pickle: array of objects": (read_cifar_pickle, pickled(data=np.array([[{}]])), "not of numbers"),
    "pickle: array of text": (read_cifar_pickle, pickled(data=np.array(["a"])), "not of numbers"),
    "pickle: shape too large": (read_cifar_pickle, pickled_by_python_2(PIXELS).replace(
        b"J" + struct.pack("<i", 6), b"J" + struct.pack("<i", 7), 1), "not a readable pickle"),
    "idx: empty": (read_idx, b"", "begins with nothing"),
    "idx: header cut short": (read_idx, GOOD_IDX[:6], "has 6 bytes"),
    "idx: wrong magic": (read_idx, b"\x89PNG" + GOOD_IDX[4:], "begins with 89504e47"),
    "idx: of floats": (read_idx, b"\0\0\x0d" + GOOD_IDX[3:], "not an IDX file of bytes"),
    "idx: no dimensions": (read_idx, b"\0\0\x08\0", "not an IDX file of bytes"),
    "idx: cut short": (read_idx, GOOD_IDX[:-1], "instead of 18444 bytes"),
    "idx: one byte more": (read_idx, GOOD_IDX + b"x", "instead of 18444 bytes"),
    "idx: gzip cut short": (read_idx, gzip.compress(GOOD_IDX)[:-20], "gzip stream is damaged"),
    "idx: gzip damaged": (read_idx, gzip.compress(GOOD_IDX)[:10] + b"\xff" * 50, "gzip stream is damaged"),
    "idx: gzip of something else": (read_idx, gzip.compress(b"hello"), "not an IDX file of bytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_file(put, case):
    read, content, says = BAD[case]
    path = put(content)
    with pytest.raises(BadData, match=says) as caught:
        read(path, 1) if read is read_cifar_binary else read(path)
    one_line(caught.value, path)


@pytest.mark.parametrize("read", [lambda path: read_cifar_binary(path, 1), read_cifar_pickle, read_idx])
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
        read_cifar_pickle(path)
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
    tracemalloc.start()
    try:
        assert read_pickle(path) == {}
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


SMALL = {
    "pickle": (read_cifar_pickle, pickled_by_python_2(PIXELS[:1], [7])),
    "pickle, protocol 5": (read_cifar_pickle, pickled(5, data=PIXELS[:1], fine_labels=[7])),
    "binary": (lambda path: read_cifar_binary(path, 1), binary([3], [7], pixels=PIXELS[:1])),
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


def one_line(error: BadData, path: object) -> None:
    """The message is one line that begins with the file and ends with what to do."""
    text = str(error)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert len(text) < len(str(path)) + 220
    assert any(verb in text.split(";")[-1] for verb in ("unpack", "fetch", "put", "use the file", "check"))
