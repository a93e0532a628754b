"""Readers of the files in which image sets are distributed: CIFAR records, CIFAR pickles, IDX, SVHN's .mat.

A file that is not what it should be raises BadData, one that is not there MissingFile: one line that names the
file and says what to do.
"""

import gzip
import math
import pickle
import re
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import numpy.typing as npt

from perdure.errors import BadData, MissingFile

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

AGAIN = "unpack its archive again, or fetch that anew"
_PIXELS = 3 * 32 * 32  # red plane, green plane, blue plane
_ANEW = "fetch the file anew"
_LARGEST_ARRAY = 2 * 10**9  # bytes; the largest IDX file known, of all EMNIST, has 0.55 · 10⁹
_LARGEST_FILE = 4 * 10**9  # bytes; the pickles of MiniImageNet have 1.1 · 10⁹


def read_cifar_binary(path: Path, coarse_bytes: int) -> tuple[Images, Labels]:
    """Images (n, 3, 32, 32) and labels (n,) of a .bin file of CIFAR.

    A record is `coarse_bytes` bytes (1 in CIFAR-100, 0 in CIFAR-10), a label, and 3072 pixels. In CIFAR-100
    the label is the fine one.
    """
    content = np.frombuffer(read_bytes(path), np.uint8)
    length = coarse_bytes + 1 + _PIXELS
    if len(content) == 0 or len(content) % length:
        raise BadData(f"{path}: {len(content)} bytes are not whole records of {length} bytes; {AGAIN}")
    records = content.reshape(-1, length)
    labels = records[:, coarse_bytes].astype(np.int64)
    _check_labels(path, labels, 100 if coarse_bytes else 10)
    return records[:, coarse_bytes + 1 :].reshape(-1, 3, 32, 32), labels


def read_cifar_pickle(path: Path, classes: int) -> tuple[Images, Labels]:
    """Images (n, 3, 32, 32) and labels (n,) of a pickled file of CIFAR with 10 or 100 classes; of 100 the fine labels.

    Nothing that the pickle names is called: see `read_pickle`.
    """
    found = read_pickle(path)
    data = found.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != _PIXELS:
        raise BadData(f"{path}: holds no 'data' of n × {_PIXELS} bytes; {AGAIN}")
    key = "fine_labels" if classes == 100 else "labels"
    given = found.get(key)
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if not isinstance(given, list) or len(given) != len(data) or any(type(label) is not int for label in given):
        raise BadData(f"{path}: holds no list '{key}' of {len(data)} whole numbers; {AGAIN}")
    if len(data) == 0:
        raise BadData(f"{path}: holds no images; {AGAIN}")
    _check_labels(path, np.array(given, dtype=object), classes)
    return data.reshape(-1, 3, 32, 32), np.array(given, dtype=np.int64)


def read_pickle(path: Path) -> dict[str, Any]:
    """A pickled dictionary of arrays of numbers, texts, bytes and numbers, also in lists, tuples and dictionaries, and
    of nothing else.

    Keys come back as text, also where Python 2 wrote them.
    """
    packed = read_bytes(path)
    try:
        found = _Guarded(BytesIO(packed), encoding="bytes").load()
        if isinstance(found, dict) and all(isinstance(key, str | bytes) for key in found):
            return dict(_plain(found, {}))
    except _Refused as refusal:
        raise BadData(f"{path}: refused, for the pickle {refusal}; use the file of the official archive") from None
    except Exception as error:  # a damaged pickle can fail in any way at all
        raise BadData(f"{path}: not a readable pickle ({type(error).__name__}); {AGAIN}") from None
    raise BadData(f"{path}: holds no dictionary with names as keys; {AGAIN}")


def read_idx(path: Path) -> Images:
    """The array of bytes in an IDX file, in the shape that its header gives; gzip is noticed by itself.

    No more is read, or inflated, than the header promises.
    """
    with _opened(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not packed:
            return _read_idx(path, file)
        try:
            with gzip.GzipFile(fileobj=file) as inflated:
                return _read_idx(path, inflated)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise BadData(f"{path}: the gzip stream is damaged or cut short; {_ANEW}") from None


def _read_idx(path: Path, file: IO[bytes] | gzip.GzipFile) -> Images:
    # Magic: two zeros, 8 for unsigned bytes, and the number of dimensions, each a big-endian 32-bit length.
    magic = file.read(4)
    if len(magic) < 4 or magic[:3] != b"\0\0\x08" or not 1 <= magic[3] <= 4:
        raise BadData(f"{path}: not an IDX file of bytes (it begins with {magic.hex() or 'nothing'}); {AGAIN}")
    lengths = file.read(4 * magic[3])
    header = 4 + 4 * magic[3]
    if len(lengths) < header - 4:
        raise BadData(f"{path}: has {4 + len(lengths)} bytes, too few for a header of {header}; {AGAIN}")
    shape = tuple(np.frombuffer(lengths, ">u4").tolist())
    promised = math.prod(shape)
    if promised > _LARGEST_ARRAY:
        limit = f"more than the {_LARGEST_ARRAY:,} bytes that are allowed"
        raise BadData(f"{path}: its header asks for shape {shape}, {limit}; {AGAIN}")
    pixels = bytearray()
    while piece := file.read(min(2**20, promised + 1 - len(pixels))):
        pixels += piece
    if len(pixels) != promised:
        more = "at least " if len(pixels) > promised else ""
        needed = f"{header + promised} bytes for shape {shape}"
        raise BadData(f"{path}: has {more}{header + len(pixels)} bytes instead of {needed}; {AGAIN}")
    return np.frombuffer(pixels, np.uint8).reshape(shape)


def read_idx_pair(folder: Path, part: str) -> tuple[Images, Labels]:
    """Images (n, 28, 28) and labels (n,), 0 to 9, of the `part` "train" or "t10k" of a set like MNIST.

    Each of its two files may be gzipped; of a file that is there in both forms the plain one is read.
    """
    images_path, images = _read_idx_or_gz(Path(folder) / f"{part}-images-idx3-ubyte")
    labels_path, labels = _read_idx_or_gz(Path(folder) / f"{part}-labels-idx1-ubyte")
    if images.ndim != 3 or images.shape[1:] != (28, 28):
        raise BadData(f"{images_path}: holds shape {images.shape} instead of n × 28 × 28; {AGAIN}")
    if labels.ndim != 1:
        raise BadData(f"{labels_path}: holds shape {labels.shape} instead of one label per image; {AGAIN}")
    if len(images) != len(labels):
        other = f"{len(images)} images in {images_path.name}"
        raise BadData(f"{labels_path}: holds {len(labels)} labels for {other}; fetch both files anew")
    if len(images) == 0:
        raise BadData(f"{images_path}: holds no images; {AGAIN}")
    numbers = labels.astype(np.int64)
    _check_labels(labels_path, numbers, 10)
    return images, numbers


def read_svhn(path: Path) -> tuple[Images, Labels]:
    """Images (n, 3, 32, 32) and labels (n,), 0 to 9, of a .mat file of SVHN's cropped digits.

    The file holds `X` (32, 32, 3, n) and `y` (n, 1), where 10 stands for the digit 0.
    """
    found = _read_mat(path, ("X", "y"))
    images, labels = found.get("X", np.empty(0)), found.get("y", np.empty(0))
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3) or images.size == 0:
        raise BadData(f"{path}: holds no X of 32 × 32 × 3 × n bytes; {_ANEW}")
    count = images.shape[3]
    if labels.shape not in ((count, 1), (1, count)):
        raise BadData(f"{path}: holds no y with one label for each of {count} images; {_ANEW}")
    labels = labels.ravel()
    if not np.isin(labels, np.arange(1, 11)).all():
        reach = f"labels reach from {labels.min():g} to {labels.max():g}"
        raise BadData(f"{path}: {reach}, but SVHN's are whole, 1 to 9 and 10 for the digit 0; {_ANEW}")
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10


def _read_mat(path: Path, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of these names in a MATLAB file of version 5, as far as they are plain arrays of numbers.

    scipy is not asked: its reader ends the whole process on some damaged files. The file is a header of 128 bytes and
    a sequence of elements, each with a tag (kind, length); a variable is an element of elements, mostly deflated.
    """
    found = {}
    with _opened(path) as file:
        start = file.read(520)
        if b"\x89HDF\r\n\x1a\n" in (start[:8], start[512:]):
            official = "use the file of the official site, which is of version 5"
            raise BadData(f"{path}: a MATLAB file of version 7.3 (HDF5), which is not read; {official}")
        order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(start[124:128])
        if order is None:
            raise BadData(f"{path}: not a MATLAB file of version 5; {_ANEW}")
        file.seek(128)
        try:
            while tag := file.read(8):
                kind, length = struct.unpack(f"{order}II", tag)
                end = file.tell() + length
                stream: IO[bytes] | _Inflated = file
                if kind == _COMPRESSED:
                    stream = _Inflated(file, length)
                    kind, _ = struct.unpack(f"{order}II", stream.read(8))
                if kind == _MATRIX:
                    name, array = _read_variable(stream, order, names)
                    if array is not None:
                        found[name] = array
                file.seek(end)
        except (struct.error, zlib.error, ValueError, TypeError, KeyError, MemoryError) as error:
            raise BadData(f"{path}: a damaged MATLAB file ({type(error).__name__}); {_ANEW}") from None
    return found


_COMPRESSED, _MATRIX = 15, 14
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MEANT = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""What a variable's class says; MATLAB stores whole numbers in fewer bytes than that."""


def _read_variable(
    stream: "IO[bytes] | _Inflated", order: str, names: Sequence[str]
) -> tuple[str, npt.NDArray[Any] | None]:
    (flags, *_), shape, letters = (_read_element(stream, order, 4096).tolist() for _ in range(3))
    name = bytes(letters).decode("latin1")
    if name not in names or flags & 0xFF not in _MEANT or flags & 0x800:  # of no numbers, or of complex ones
        return name, None
    values = _read_element(stream, order, _LARGEST_ARRAY)
    if isinstance(stream, _Inflated):
        stream.finish()
    with np.errstate(invalid="ignore"):
        return name, values.astype(_MEANT[flags & 0xFF], copy=False).reshape(shape, order="F")


def _read_element(stream: "IO[bytes] | _Inflated", order: str, limit: int) -> npt.NDArray[Any]:
    """The numbers of an element; up to four bytes of them can stand within its tag."""
    tag = stream.read(8)
    kind, length = struct.unpack(f"{order}II", tag)
    if kind >> 16:
        kind, length, content = kind & 0xFFFF, kind >> 16, tag[4:]
    elif length > limit:
        raise ValueError(f"an element of {length} bytes")
    else:
        content = stream.read(length + -length % 8)
    kept = content if len(content) == length else content[:length]
    return np.frombuffer(kept, f"{order}{_STORED[kind]}")  # too few of them do not fit the shape


class _Inflated:
    """Reads a deflated part of a file, and no more of it than is asked for."""

    def __init__(self, file: IO[bytes], length: int) -> None:
        self._file, self._left = file, length
        self._inflate, self._packed = zlib.decompressobj(), b""

    def read(self, count: int) -> bytearray:
        found = bytearray()
        while len(found) < count and not self._inflate.eof:
            if not self._packed:
                self._packed = self._file.read(min(2**16, self._left))
                self._left -= len(self._packed)
                if not self._packed:
                    break
            found += self._inflate.decompress(self._packed, count - len(found))
            self._packed = self._inflate.unconsumed_tail
        return found

    def finish(self) -> None:
        """Check the sum at the end."""
        if self.read(8) or not self._inflate.eof:
            raise ValueError("a deflated part that does not end where it should")


def read_bytes(path: Path) -> bytes:
    """All bytes of a file."""
    with _opened(path) as file:
        return file.read()


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        found = Path(path).stat()
        # Opening a pipe would wait for ever, and a device may have no end.
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            raise BadData(f"{path}: cannot be read (it is no plain file); put the file itself there")
        if found.st_size > _LARGEST_FILE:
            raise BadData(f"{path}: has {found.st_size:,} bytes, far more than any file of an image set; {AGAIN}")
        with Path(path).open("rb") as file:
            yield file
    except FileNotFoundError:
        raise MissingFile(f"{path}: no such file; put it there, or point PERDURE_DATA at its folder") from None
    except OSError as error:
        raise BadData(f"{path}: cannot be read ({error.strerror}); check that it is a file you may read") from None


def _read_idx_or_gz(path: Path) -> tuple[Path, Images]:
    packed = path.with_name(f"{path.name}.gz")
    for form in (path, packed):
        try:
            return form, read_idx(form)
        except MissingFile:
            continue
    how = "put it there, or point PERDURE_DATA at its folder"
    raise MissingFile(f"{path}: no such file, nor {packed.name}; {how}")


def _check_labels(path: Path, labels: npt.NDArray[Any], classes: int) -> None:
    low, high = labels.min(), labels.max()
    if low < 0 or high >= classes:
        allowed = f"{classes} classes allow 0 to {classes - 1}"
        raise BadData(f"{path}: labels reach from {low} to {high}, but {allowed}; {AGAIN}")


class _Refused(pickle.UnpicklingError):
    pass


def _load_bytes(unpickler: Any) -> None:
    """The bytes of an array in protocol 5. Python's own reader first takes as much memory as the file says it needs."""
    (length,) = struct.unpack("<Q", unpickler.read(8))
    unpickler.append(unpickler.read(length))


class _Guarded(pickle._Unpickler):
    """Reads a pickle without trust.

    Admitting numpy's own functions would not be enough: numpy's dtype believes the flags a pickle gives it,
    and wrong ones make it read bytes as pointers. So each admitted name leads to a stand-in below. Of Python's two
    unpicklers this is the one in Python: in the other, five bytes can ask for gigabytes of memo.
    """

    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch, pickle.BYTEARRAY8[0]: _load_bytes}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise _Refused(f"asks for {ascii(f'{module}.{name}')[:80]}, which images never need")
        return _ADMITTED[module, name]


class _Kind:
    """Stands in for numpy.dtype."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.code, self.order = _text(code), "="
        if not re.fullmatch("b1|[iu][1248]|f[248]", self.code):
            raise _Refused(f"holds an array of {ascii(self.code)[:20]}, not of numbers")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = {">": ">", "<": "<"}.get(_text(state[1]), "=")

    def decode(self, content: bytes) -> npt.NDArray[Any]:
        return np.frombuffer(content, np.dtype(self.order + self.code))


class _Array:
    """Stands in for numpy's _reconstruct, which makes an array that is filled later."""

    def __init__(self, *_: object) -> None:
        self.array: npt.NDArray[Any] = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_column, content = state
        self.array = kind.decode(content).reshape(shape, order="F" if by_column else "C")


def _from_buffer(content: bytes, kind: _Kind, shape: tuple[int, ...], order: str | bytes) -> _Array:
    made = _Array()
    made.__setstate__((1, shape, kind, _text(order) == "F", content))
    return made


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """A value with its stand-ins replaced by arrays; `done` holds the parts that were met, which may be shared.

    Without it, forty lists that each hold the next one twice would become 2⁴⁰.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, _Array):
        return value.array
    if id(value) in done:
        return done[id(value)]
    if type(value) is list:
        done[id(value)] = value
        value[:] = [_plain(part, done) for part in value]
    elif type(value) is dict:
        done[id(value)] = {}
        done[id(value)].update((_key(key), _plain(part, done)) for key, part in value.items())
    elif type(value) is tuple:
        done[id(value)] = tuple(_plain(part, done) for part in value)
    else:
        raise _Refused(f"holds a {ascii(type(value).__name__.strip('_'))[:20]}, which images never need")
    return done[id(value)]


def _key(key: Any) -> Any:
    if key is not None and not isinstance(key, bool | int | float | str | bytes):
        raise _Refused("holds a dictionary whose keys are neither names nor numbers")
    return _text(key) if isinstance(key, bytes) else key


def _scalar(kind: _Kind, content: bytes) -> Any:
    return kind.decode(content).item()


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":  # the one in which Python 3 writes bytes for Python 2
        raise _Refused(f"asks for the encoding {ascii(encoding)[:20]}, which images never need")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


def _text(value: str | bytes) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value


_ADMITTED: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): None,  # named as the type to make, which is never another
    ("numpy", "dtype"): _Kind,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,  # protocol 5
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,  # bytes, written by Python 3 in protocols 0 to 2
    ("builtins", "bytes"): _no_bytes,
    ("__builtin__", "bytes"): _no_bytes,
}
