"""Archives: the wanted files are taken out of them within limits, by name, and put in their place all or none.

An archive may be damaged, or made to do harm: whatever it holds or says of itself is not believed.
"""

import filecmp
import gzip
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Literal, NamedTuple, cast
from zipfile import ZipFile

from perdure.data.disk import CHUNK, InTheWay, made_folder, settle, writing
from perdure.errors import BadData, PerdureError

_UNWANTED = 4  # an archive may hold so many times what is taken out of it, and a little more


class Wanted(NamedTuple):
    """What is taken out of an archive."""

    names: str  # a regular expression
    most_bytes: int
    most_files: int


class _Hostile(Exception):
    """An archive that was made to do harm, or might as well have been."""


_Kind = Literal["file", "folder", "other"]


class _Entry(NamedTuple):
    name: str
    kind: _Kind
    open: Callable[[], IO[bytes] | None]


def unpack(archive: Path, label: str, wanted: Wanted, base: Path, fresh: Path) -> None:
    """Take the wanted files out of an archive into the folder `base`, all of them or none; `fresh` is to work in."""
    advice = f"nothing was unpacked; get its files elsewhere and put them into {base}"
    shutil.rmtree(fresh, ignore_errors=True)  # of a process that was killed, for we hold the lock
    try:
        with writing(fresh):
            fresh.mkdir()
        names = _take_out(archive, fresh, wanted)
        if not names:
            raise _Hostile("it holds none of the files that it should")
        with writing(fresh):
            settle([fresh / name for name in names])
        _move_in(fresh, base, names)
    except PerdureError:
        raise
    except _Hostile as reason:
        raise BadData(f"{label}: refused, for {reason}; {advice}") from None
    except Exception as error:  # a damaged archive can fail in any way at all
        raise BadData(f"{label}: not a readable archive ({type(error).__name__}); {advice}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _take_out(archive: Path, fresh: Path, wanted: Wanted) -> list[str]:
    """Write the wanted files into an empty folder; returns their names below it."""
    taken: list[str] = []
    left = wanted.most_bytes
    for seen, entry in enumerate(_entries(archive, wanted)):
        windows = PureWindowsPath(entry.name)  # which also knows what Unix calls a root
        if windows.anchor or ".." in windows.parts:
            raise _Hostile(f"{_shown(entry)} leads out of its folder")
        if seen > _UNWANTED * wanted.most_files + 1000:
            raise _Hostile(f"it holds more than {seen} files, far more than it should")
        name = str(PurePosixPath(entry.name))
        if entry.kind == "folder" or not re.fullmatch(wanted.names, name):
            continue
        if entry.kind == "other":
            raise _Hostile(f"{_shown(entry)} is a link or a device, not a file")
        if (fresh / name).exists():
            raise _Hostile(f"{_shown(entry)} is in it twice")
        if len(taken) == wanted.most_files:
            raise _Hostile(f"more than {wanted.most_files} files would come out of it")
        left -= _copy(entry, fresh / name, left)
        taken.append(name)
    return taken


def _copy(entry: _Entry, path: Path, most: int) -> int:
    """Write what an entry holds, counting, for headers may lie; returns the number of bytes."""
    done = 0
    source = entry.open()
    assert source is not None  # tarfile has nothing to read only for what is not a file
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("xb")
    try:
        while chunk := source.read(CHUNK):
            done += len(chunk)
            if done > most:
                raise _Hostile("more bytes would come out of it than it should hold")
            with writing(path):
                file.write(chunk)
    finally:
        source.close()
        with writing(path):
            file.close()
    return done


def _entries(archive: Path, wanted: Wanted) -> Iterator[_Entry]:
    """What an archive holds, in its order; each entry is to be read before the next is asked for."""
    with archive.open("rb") as file:
        start = file.read(2)
        file.seek(0)
        if start == b"PK":
            yield from _zip_entries(file)
        elif start == b"\x1f\x8b":
            with gzip.open(file) as stream:
                yield from _tar_entries(cast(IO[bytes], stream), wanted)
        else:
            yield from _tar_entries(file, wanted)


def _zip_entries(file: IO[bytes]) -> Iterator[_Entry]:
    with ZipFile(file) as archive:
        for info in archive.infolist():
            plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
            kind: _Kind = "folder" if info.is_dir() else "file" if plain else "other"
            yield _Entry(info.filename, kind, partial(archive.open, info))


def _tar_entries(stream: IO[bytes], wanted: Wanted) -> Iterator[_Entry]:
    metered = _Metered(stream, _UNWANTED * wanted.most_bytes + (64 << 20))
    with tarfile.open(fileobj=cast(IO[bytes], metered), mode="r:") as archive:
        for info in archive:
            kind: _Kind = "folder" if info.isdir() else "file" if info.isreg() else "other"
            yield _Entry(info.name, kind, partial(archive.extractfile, info))
    if metered.last.strip(b"\0") or len(metered.last) != tarfile.BLOCKSIZE:
        raise EOFError  # the end is a block of zeros, but tarfile also stops at a damaged or missing header


class _Metered:
    """A stream that tarfile reads from beginning to end, within limits.

    tarfile believes what headers say of their own length, and would take gigabytes of memory for one of them; a
    negative length sends it back to where it was, for ever.
    """

    lies = "its headers tell lies, or it holds far more bytes than it should"

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self.stream, self.most, self.last = stream, most, b""

    def tell(self) -> int:
        return self.stream.tell()

    def seek(self, position: int) -> int:
        if position < self.tell() or position > self.most:
            raise _Hostile(self.lies)
        return self.stream.seek(position)

    def read(self, size: int) -> bytes:
        if not 0 <= size <= CHUNK:
            raise _Hostile(self.lies)
        self.last = self.stream.read(size)
        return self.last


def _shown(entry: _Entry) -> str:
    return ascii(entry.name)[:80]


def _move_in(fresh: Path, base: Path, names: list[str]) -> None:
    """Move files from one folder into another, all of them or none; those that are there already stay."""
    absent = [name for name in names if not _is_same(fresh / name, base / name)]
    with ExitStack() as folders:
        for folder in sorted({(base / name).parent for name in absent}):
            folders.enter_context(made_folder(folder))
        moved: list[Path] = []
        try:
            for name in absent:
                with writing(base / name):
                    (fresh / name).rename(base / name)
                moved.append(base / name)
        except BaseException:
            for path in moved:
                with suppress(OSError):
                    path.unlink()
            raise


def _is_same(fresh: Path, target: Path) -> bool:
    """Whether a file is in its place already; raises if another one is."""
    if not os.path.lexists(target):
        return False
    same = False
    with suppress(OSError):
        same = target.is_file() and filecmp.cmp(fresh, target, shallow=False)
    if not same:
        raise InTheWay(f"{target}: not the same as in the official archive; move it away and run again")
    return True
