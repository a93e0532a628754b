"""Pickled dictionaries of arrays, read without trust: nothing that a file names is called."""

import pickle
import pickletools
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perdure.data.readers.common import UNPACK_AGAIN, Labels, check_labels, read_bytes
from perdure.errors import BadData


def read_pickle(path: Path) -> dict[str, Any]:
    """A pickled dictionary of arrays of numbers, lists of those, texts and numbers.

    Keys come back as text, also where Python 2 wrote them.
    """
    packed = read_bytes(path)
    try:
        # In C, five bytes can ask for gigabytes of memo, or for an array of any length: this reads as far as there is.
        for opcode, argument, _ in pickletools.genops(_Opcodes(packed)):
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(packed):
                raise _Refused("asks for more memory than its arrays need")
        found = _Unpickler(BytesIO(packed), encoding="bytes").load()
    except _Refused as refusal:
        raise BadData(f"{path}: refused, for the pickle {refusal}; use the file of the official archive") from None
    except Exception as error:  # a damaged pickle can fail in any way at all
        raise BadData(f"{path}: not a readable pickle ({type(error).__name__}); {UNPACK_AGAIN}") from None
    if not isinstance(found, dict) or not all(isinstance(key, str | bytes) for key in found):
        raise BadData(f"{path}: holds no dictionary with names as keys; {UNPACK_AGAIN}")
    return {_text(key): _arrays(value) for key, value in found.items()}


def pickled_labels(path: Path, found: dict[str, Any], key: str, count: int, classes: int) -> Labels:
    """The `count` labels of a pickle, as an array or a list of whole numbers."""
    given = found.get(key)
    if isinstance(given, list) and all(type(label) is int for label in given):
        given = np.array(given, object)  # of any size, so that 2¹⁰⁰ is a label out of range too
    if not isinstance(given, np.ndarray) or given.dtype.kind not in "iuO" or given.shape != (count,):
        raise BadData(f"{path}: holds no '{key}' of {count} whole numbers; {UNPACK_AGAIN}")
    return check_labels(path, given, classes)


class _Refused(pickle.UnpicklingError):
    pass


class _Opcodes(BytesIO):
    """A pickle for genops, which cannot decode the bytes that Python 2 wrote as escapes."""

    def readline(self, size: int | None = -1) -> bytes:
        return super().readline(size).replace(b"\\", b"/")


class _Unpickler(pickle.Unpickler):
    """Admits the names that arrays need, and leads each of them to a stand-in below.

    Admitting numpy's own functions would not be enough: its dtype believes the flags that a pickle gives it, and wrong
    ones make it read bytes as pointers.
    """

    def find_class(self, module: str, name: str) -> Any:
        admitted = (module.replace("numpy._core", "numpy.core").replace("__builtin__", "builtins"), name)
        if admitted not in _ADMITTED:
            raise _Refused(f"asks for {ascii(f'{module}.{name}')[:80]}, which images never need")
        return _ADMITTED[admitted]


class _DType:
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
        _, shape, dtype, by_column, content = state
        self.array = dtype.decode(content).reshape(shape, order="F" if by_column else "C")


def _from_buffer(content: bytes, dtype: _DType, shape: tuple[int, ...], order: str | bytes) -> _Array:
    made = _Array()
    made.__setstate__((1, shape, dtype, _text(order) == "F", content))
    return made


def _scalar(dtype: _DType, content: bytes) -> Any:
    return dtype.decode(content).item()


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":  # the one in which Python 3 writes bytes for Python 2
        raise _Refused(f"asks for the encoding {ascii(encoding)[:20]}, which images never need")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


def _arrays(value: Any) -> Any:
    """An array for its stand-in, also in a list; stand-ins further inside do no harm, and nothing asks for them."""
    if isinstance(value, list):
        return [part.array if isinstance(part, _Array) else part for part in value]
    return value.array if isinstance(value, _Array) else value


def _text(value: str | bytes) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value


_ADMITTED: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): None,  # named as the type to make, which is never another
    ("numpy", "dtype"): _DType,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,  # protocol 5
    ("_codecs", "encode"): _encode,  # bytes, written by Python 3 in protocols 0 to 2
    ("builtins", "bytes"): _no_bytes,
}
