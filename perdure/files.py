"""Reading files that anybody may have written: regular ones of bounded size, and one way to read JSON and TOML.

Opening a pipe would wait for ever, and a device may have no end. What is wrong with a file is an OSError (it cannot be
read) or a ValueError (it does not hold what it should).
"""

import errno
import json
import os
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

LARGEST_TEXT = 2**26  # bytes of a JSON file; records have some thousands
LARGEST_TOML = 2**18  # bytes; what people write has some thousands, and it is read slowly
DOTS = 200  # on a line of TOML: the time for a key of dotted parts grows with the square of their number
DEEPEST = 64  # tables and lists within each other; whoever walks through them calls itself for each


class NotPlainFile(OSError):
    """A pipe, a device or a socket."""

    def __init__(self) -> None:
        super().__init__(errno.EINVAL, "it is no plain file")


class FileTooLarge(OSError):
    def __init__(self, size: int, largest: int) -> None:
        super().__init__(errno.EFBIG, f"it has {size:,} bytes, and at most {largest:,} are allowed")
        self.size = size


def check_plain(path: Path, largest: int) -> None:
    """Raise an OSError unless this is a regular file of at most so many bytes."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise NotPlainFile
    if found.st_size > largest:
        raise FileTooLarge(found.st_size, largest)


@contextmanager
def open_plain(path: Path, largest: int) -> Iterator[IO[bytes]]:
    """A regular file of at most so many bytes, open for reading."""
    check_plain(path, largest)
    with path.open("rb") as file:
        yield file


def read_bytes(path: Path, largest: int = LARGEST_TEXT) -> bytes:
    """All of a regular file."""
    with open_plain(path, largest) as file:
        content = file.read(largest + 1)  # it may grow meanwhile, and what a system makes up as it is read has no size
    if len(content) > largest:
        raise FileTooLarge(len(content), largest)
    return content


def read_json(path: Path) -> Any:
    return parse_json(read_bytes(path))


def read_json_lines(path: Path) -> list[Any]:
    """The values in a file with one on each line."""
    return [parse_json(line) for line in read_bytes(path).splitlines()]


def read_toml(path: Path) -> dict[str, Any]:
    return parse_toml(read_bytes(path, LARGEST_TOML))


def parse_json(content: bytes, *, finite: bool = True) -> Any:
    """JSON that can be written again: of bounded depth, text that UTF-8 can hold, and NaN or infinity only if asked."""
    try:
        found = json.loads(content, parse_constant=_not_a_number if finite else None)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if b"\\ud" in content.lower():  # half a character, of which the other half may be missing
        json.dumps(found, ensure_ascii=False).encode()
    if content.count(b"[") + content.count(b"{") > DEEPEST:
        _check_depth(found)
    return found


def parse_toml(content: bytes) -> dict[str, Any]:
    if any(line.count(b".") > DOTS for line in content.splitlines()):
        raise ValueError("nested too deeply")
    try:
        found = tomllib.loads(content.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _check_depth(found)
    return found


def _not_a_number(name: str) -> float:
    raise ValueError(f"{name} is not allowed")


def _check_depth(content: Any) -> None:
    level = [content]
    for _ in range(DEEPEST):
        tables = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [inner for table in tables for inner in table]
    if level:
        raise ValueError("nested too deeply")
