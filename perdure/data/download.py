"""Published files: fetched from one of several mirrors, checked, put in their place whole or not at all.

This is the only module that opens connections. Whatever goes wrong is one line that says what to do; what was below
the root before is never overwritten.
"""

import errno
import filecmp
import hashlib
import math
import os
import re
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, build_opener

from filelock import FileLock, Timeout

from perdure.data.catalog import Download
from perdure.data.paths import reading
from perdure.errors import BadData, DownloadError, PerdureError

STALL = 30.0  # seconds without a byte, after which a connection counts as dropped
PAUSE = 1.0  # seconds between a dropped connection and the next
TRIES = 5  # connections to one mirror, as long as each brings the file further
SLACK = 16_000_000  # bytes that are to stay free on the disk
CHUNK = 1 << 18  # bytes moved at once
ANOTHER_ROOT = "choose another folder with --root or PERDURE_DATA"

Progress = Callable[[str, int, int], None]
"""Gets the name of a file, the bytes that are here, and the bytes in all; starting over goes back to 0."""


def no_progress(*_: object) -> None:
    pass


def fetch(
    download: Download,
    root: Path,
    progress: Progress = no_progress,
    *,
    is_unpacked: Callable[[], bool] = lambda: False,
) -> str:
    """Put a file, or what its archive holds, in its place below `root`, and say in a phrase what was done.

    An archive that somebody put into `root` is unpacked and kept; one that is fetched is removed after that. Of
    several processes that want the same file one fetches, and the others wait and show its progress. Then `is_unpacked`
    says whether what an archive holds is in its place by now.
    """
    path = download.path(root)
    if not download.members and _is_official(path, download):
        return "already there"  # found before anything is written, for the root may be read-only
    part = path.with_name(f".{download.name}.part")
    with _writing(root):
        root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f".{download.name}.lock", lambda: progress(download.name, _size(part), download.size)):
        if is_unpacked() if download.members else _is_official(path, download):
            return "already there"
        if download.members and _is_official(path, download):
            _unpack(path, download, root)
            return f"unpacked from {path}"
        source = _complete(part, download, root, progress)
        if download.members:
            _unpack(part, download, root)
        elif not _is_official(path, download):  # for somebody may have put it there meanwhile
            with _writing(path):
                with part.open("rb+") as file:
                    os.fsync(file.fileno())
                part.rename(path)
        part.unlink(missing_ok=True)
        return f"fetched from {source}"


def _unpack(archive: Path, download: Download, root: Path) -> None:
    """Take the wanted files out of an archive whose checksum is right; those that are there already stay."""
    base, fresh = root / download.folder, root / f".{download.name}.unpacked"
    _check_space(root, download, download.unpacked)
    shutil.rmtree(fresh, ignore_errors=True)  # of a process that was killed, for we hold the lock
    try:
        with _writing(fresh), tarfile.open(archive) as tar:
            wanted = [file for file in tar if re.fullmatch(download.members, str(PurePosixPath(file.name)))]
            tar.extractall(fresh, wanted, filter="data")
        names = sorted(path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file())
        for name in names:
            there = base / name
            if os.path.lexists(there) and not (there.is_file() and filecmp.cmp(fresh / name, there, shallow=False)):
                raise BadData(f"{base / name}: not the same as in the official archive; move it away and run again")
        for name in names:
            with _writing(base / name):
                (base / name).parent.mkdir(parents=True, exist_ok=True)
                if not os.path.lexists(base / name):
                    (fresh / name).rename(base / name)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


# --- the network ---


class _MirrorFailed(Exception):
    """A mirror is of no use; says why in a few words."""


def _complete(part: Path, download: Download, root: Path, progress: Progress) -> str:
    """Complete the part from the first mirror that can, and return its address."""
    if _size(part) == download.size and not _fault(part, download):
        return "an earlier download"
    if _size(part) >= download.size:
        part.unlink()
    _check_space(root, download, download.size - _size(part) + download.unpacked)
    with _writing(part):
        part.parent.mkdir(parents=True, exist_ok=True)
    failures = []
    for url in download.urls:
        try:
            _from_mirror(url, download, part, progress)
        except _MirrorFailed as failure:
            failures.append(f"{urlsplit(url).hostname} {failure}")
        else:
            return url
    by_hand = f"get {download.name} (md5 {download.md5}) elsewhere, put it into {download.path(root).parent}"
    raise DownloadError(f"{download.name}: {', '.join(failures)}; {by_hand} and run `perdure data fetch` again")


def _from_mirror(url: str, download: Download, part: Path, progress: Progress) -> None:
    """Complete the part from one mirror, over several connections if need be."""
    for attempt in range(TRIES):
        before = _size(part)
        try:
            _receive(url, download, part, progress)
        except HTTPError as error:
            raise _MirrorFailed(f"answers {error.code}") from None
        except (OSError, EOFError, HTTPException, ValueError) as error:
            if attempt == TRIES - 1 or _size(part) <= before:
                raise _MirrorFailed(_reason(error)) from None
            time.sleep(PAUSE)
            continue
        fault = _fault(part, download)
        if not fault:
            return
        part.unlink(missing_ok=True)
        if not before:  # else the wrong bytes may be those of another mirror: start over
            raise _MirrorFailed(f"sent a wrong file ({fault})")
    raise _MirrorFailed("sent a wrong file again and again")


def _receive(url: str, download: Download, part: Path, progress: Progress) -> None:
    """Add to the part what one connection brings, and a byte too many at most."""
    response, done = _connect(url, _size(part))
    with response:
        offered, missing = response.headers.get("Content-Length"), download.size - done
        if offered is not None and offered != str(missing):
            raise _MirrorFailed(f"offers {ascii(offered)[1:-1][:20]} bytes instead of {missing}")
        with _writing(part):
            file = part.open("ab" if done else "wb")
        try:
            progress(download.name, done, download.size)
            while chunk := response.read1(min(CHUNK, download.size - done + 1)):
                with _writing(part):
                    file.write(chunk)
                done += len(chunk)
                progress(download.name, done, download.size)
        finally:
            with _writing(part):
                file.close()
    if done < download.size:
        raise EOFError(f"broke off after {done} of {download.size} bytes")


def _connect(url: str, start: int) -> tuple[HTTPResponse, int]:
    """Ask for the bytes from `start` on, or for all if those are not to be had; returns the offset of the first."""
    headers = {"User-Agent": "perdure", "Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response: HTTPResponse = build_opener().open(Request(url, headers=headers), timeout=STALL)
    except HTTPError as error:
        if start and error.code == 416:
            return _connect(url, 0)
        raise
    if start and response.status == 206:
        if not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            response.close()
            return _connect(url, 0)
        return response, start
    return response, 0


def _reason(error: Exception) -> str:
    if isinstance(error, EOFError):
        return str(error)
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, TimeoutError):
        return f"sent nothing for {STALL:g} s"
    said = (reason.strerror if isinstance(reason, OSError) else "") or str(reason) or type(reason).__name__
    return f"cannot be reached ({' '.join(said.split())[:80]})"


# --- the disk ---


def _is_official(path: Path, download: Download) -> bool:
    """Whether the file is there; raises if another one is there in its stead."""
    if not os.path.lexists(path):
        return False
    if fault := _fault(path, download):
        raise BadData(f"{path}: not the official file ({fault}); move it away and run again")
    return True


def _fault(path: Path, download: Download) -> str:
    """What is wrong with a file, in a few words; nothing if it is the right one."""
    if not path.is_file():
        return "not even a file"
    if (size := _size(path)) != download.size:
        return f"{size} bytes instead of {download.size}"
    with reading(path), path.open("rb") as file:
        md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    return "" if md5 == download.md5 else f"md5 {md5} instead of {download.md5}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _check_space(root: Path, download: Download, needed: int) -> None:
    with _writing(root):
        free = shutil.disk_usage(root).free
    if free < needed + SLACK:
        amounts = f"{math.ceil((needed + SLACK) / 1e6)} MB, but {int(free / 1e6)} MB are free"
        raise PerdureError(f"{root}: {download.name} needs {amounts}; make room, or {ANOTHER_ROOT}")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns an error of the file system into one line about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PerdureError(f"{path}: the disk is full; make room, or {ANOTHER_ROOT}") from None
        raise PerdureError(f"{path}: cannot be written ({error.strerror or error}); {ANOTHER_ROOT}") from None


@contextmanager
def _locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock, which the system drops when its process ends; call `waiting` now and then until it is had."""
    lock = FileLock(path)
    while not lock.is_locked:
        with _writing(path.parent), suppress(Timeout):
            lock.acquire(timeout=0.2)
        if not lock.is_locked:
            waiting()
    try:
        yield
    finally:
        lock.release()
