"""Readers of the files in which image sets are distributed: CIFAR records, CIFAR pickles, IDX.

A file that is not what it should be raises BadData, one that is not there MissingFile: one line that names the
file and says what to do.
"""

import gzip
import math
import pickle
import re
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perdure.errors import BadData, MissingFile

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

_PIXELS = 3 * 32 * 32  # red plane, green plane, blue plane
_AGAIN = "unpack its archive again, or fetch that anew"


def read_cifar_binary(path: Path, coarse_bytes: int) -> tuple[Images, Labels]:
    """Images (n, 3, 32, 32) and labels (n,) of a .bin file of CIFAR.

    A record is `coarse_bytes` bytes (1 in CIFAR-100, 0 in CIFAR-10), a label, and 3072 pixels. In CIFAR-100
    the label is the fine one.
    """
    content = np.frombuffer(_content(path), np.uint8)
    length = coarse_bytes + 1 + _PIXELS
    if len(content) == 0 or len(content) % length:
        raise BadData(f"{path}: {len(content)} bytes are not whole records of {length} bytes; {_AGAIN}")
    records = content.reshape(-1, length)
    labels = records[:, coarse_bytes].astype(np.int64)
    _check_labels(path, labels, 100 if coarse_bytes else 10)
    return records[:, coarse_bytes + 1 :].reshape(-1, 3, 32, 32), labels


def read_cifar_pickle(path: Path) -> tuple[Images, Labels]:
    """Images (n, 3, 32, 32) and labels (n,) of a pickled file of CIFAR; in CIFAR-100 the fine labels.

    Nothing that the pickle names is called: see `read_pickle`.
    """
    found = read_pickle(path)
    data = found.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != _PIXELS:
        raise BadData(f"{path}: holds no 'data' of n × {_PIXELS} bytes; {_AGAIN}")
    key, classes = ("fine_labels", 100) if "fine_labels" in found else ("labels", 10)
    given = found.get(key)
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if not isinstance(given, list) or len(given) != len(data) or any(type(label) is not int for label in given):
        raise BadData(f"{path}: holds no list '{key}' of {len(data)} whole numbers; {_AGAIN}")
    if len(data) == 0:
        raise BadData(f"{path}: holds no images; {_AGAIN}")
    _check_labels(path, np.array(given, dtype=object), classes)
    return data.reshape(-1, 3, 32, 32), np.array(given, dtype=np.int64)


def read_pickle(path: Path) -> dict[str, Any]:
    """A pickled dictionary of arrays of numbers, lists, texts, bytes and numbers, and of nothing else.

    Keys come back as text, also where Python 2 wrote them.
    """
    content = _content(path)
    try:
        found = _Guarded(BytesIO(content), encoding="bytes").load()
    except _Refused as refusal:
        raise BadData(f"{path}: refused, for the pickle {refusal}; use the file of the official archive") from None
    except Exception as error:  # a damaged pickle can fail in any way at all
        raise BadData(f"{path}: not a readable pickle ({type(error).__name__}); {_AGAIN}") from None
    if not isinstance(found, dict) or not all(isinstance(key, str | bytes) for key in found):
        raise BadData(f"{path}: holds no dictionary with names as keys; {_AGAIN}")
    return {_text(key): value.array if isinstance(value, _Array) else value for key, value in found.items()}


def read_idx(path: Path) -> Images:
    """The array of bytes in an IDX file, in the shape that its header gives; gzip is noticed by itself."""
    content = _content(path)
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error):
            raise BadData(f"{path}: the gzip stream is damaged or cut short; fetch the file anew") from None
    # Magic: two zeros, 8 for unsigned bytes, and the number of dimensions, each a big-endian 32-bit length.
    if len(content) < 4 or content[:3] != b"\0\0\x08" or not 1 <= content[3] <= 4:
        raise BadData(f"{path}: not an IDX file of bytes (it begins with {content[:4].hex() or 'nothing'}); {_AGAIN}")
    header = 4 + 4 * content[3]
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    if len(content) != header + math.prod(shape):
        needed = f"{header + math.prod(shape)} bytes for shape {tuple(shape)}"
        raise BadData(f"{path}: has {len(content)} bytes instead of {needed}; {_AGAIN}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise MissingFile(f"{path}: no such file; put it there, or point PERDURE_DATA at its folder") from None
    except OSError as error:
        raise BadData(f"{path}: cannot be read ({error.strerror}); check that it is a file you may read") from None


def _check_labels(path: Path, labels: npt.NDArray[Any], classes: int) -> None:
    low, high = labels.min(), labels.max()
    if low < 0 or high >= classes:
        allowed = f"{classes} classes allow 0 to {classes - 1}"
        raise BadData(f"{path}: labels reach from {low} to {high}, but {allowed}; {_AGAIN}")


class _Refused(pickle.UnpicklingError):
    pass


class _Guarded(pickle._Unpickler):
    """Reads a pickle without trust.

    Admitting numpy's own functions would not be enough: numpy's dtype believes the flags a pickle gives it,
    and wrong ones make it read bytes as pointers. So each admitted name leads to a stand-in below. Of Python's two
    unpicklers this is the one in Python: in the other, five bytes can ask for gigabytes of memo.
    """

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
