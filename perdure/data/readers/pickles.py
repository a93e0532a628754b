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

MOST_OPCODES = 5_000_000  # some eighty for each of MiniImageNet's 60 000 images
MOST_KEYS = 1000


def read_pickle(path: Path) -> dict[str, Any]:
    """A pickled dictionary of arrays of numbers, lists of those, texts and numbers.

    Keys come back as text, also where Python 2 wrote them.
    """
    packed = read_bytes(path)
    try:
        _check_opcodes(packed)
        found = _Unpickler(BytesIO(packed), encoding="bytes").load()
        if isinstance(found, dict) and sum(map(_size, found.values())) > len(packed):
            raise _Refused("holds the same array many times over")  # a list of two bytes for each could ask for all
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


def _check_opcodes(packed: bytes) -> None:
    """Before anything is made: what a pickle would make is bounded by its own size, and so is the time that takes.

    In C, five bytes can ask for gigabytes of memo, or for an array of any length: genops reads as far as there is.
    Keys are few and no tuples, since many that collide take for ever, and so does one tuple that holds the same tuple
    twice, which holds the same tuple twice, and so on.
    """
    stack: list[str] = []  # for each object the opcode that made it
    memo: dict[int, str] = {}
    marks: list[int] = []
    keys = 0
    for number, (opcode, argument, _) in enumerate(pickletools.genops(_Opcodes(packed))):
        name, pushed = opcode.name, opcode.name
        if name not in _OPCODES or number == MOST_OPCODES:
            raise _Refused(f"is made of {name}, which arrays never need" if number < MOST_OPCODES else "has no end")
        if name == "MARK":
            marks.append(len(stack))
            continue
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            slot = len(memo) if name == "MEMOIZE" else int(argument or 0)
            if slot > len(packed):
                raise _Refused("asks for more memory than its arrays need")
            memo[slot] = stack[-1]
            continue
        if name in ("GET", "BINGET", "LONG_BINGET"):
            pushed = memo[int(argument or 0)]
        if name == "BUILD":
            pushed = stack[-2]
        marked = pickletools.markobject in opcode.stack_before
        taken = stack[(first := marks.pop()) :] if marked else stack[-2:]
        if name in ("DICT", "SETITEM", "SETITEMS"):
            keys += len(taken) // 2
            if keys > MOST_KEYS or any("TUPLE" in key for key in taken[::2]):
                raise _Refused("has keys that are no names")
        below = opcode.stack_before.index(pickletools.markobject) if marked else len(opcode.stack_before)
        del stack[(first if marked else len(stack)) - below :]
        stack += [pushed] * len(opcode.stack_after)


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
        order = _text(state[1])
        self.order = order if order in (">", "<") else "="

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
        raise _Refused("asks for an encoding that images never need")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


def _arrays(value: Any) -> Any:
    """An array for its stand-in, also in a list; stand-ins further inside do no harm, and nothing asks for them."""
    if isinstance(value, list):
        return [part.array if isinstance(part, _Array) else part for part in value]
    return value.array if isinstance(value, _Array) else value


def _size(value: Any) -> int:
    """Bytes of the arrays that `_arrays` gives."""
    parts = value if isinstance(value, list) else [value]
    return sum(part.array.nbytes for part in parts if isinstance(part, _Array))


def _text(value: str | bytes) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value


# Those that Python 2 and 3 write for dictionaries, lists, texts, numbers and arrays.
_OPCODES = frozenset(
    """
    PROTO FRAME STOP MARK GLOBAL STACK_GLOBAL REDUCE BUILD
    NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 FLOAT BINFLOAT
    STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8
    BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8
    LIST EMPTY_LIST APPEND APPENDS TUPLE EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 DICT EMPTY_DICT SETITEM SETITEMS
    PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET
    """.split()  # noqa: SIM905 — a list of fifty strings reads worse
)

_ADMITTED: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): None,  # named as the type to make, which is never another
    ("numpy", "dtype"): _DType,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,  # protocol 5
    ("_codecs", "encode"): _encode,  # bytes, written by Python 3 in protocols 0 to 2
    ("builtins", "bytes"): _no_bytes,
}
