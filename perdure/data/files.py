"""Published files: fetched from one of several mirrors, checked, put in their place whole or not at all.

This is the only module that opens sockets. Whatever goes wrong is one line that says what to do; what was below the
root before is never overwritten.
"""

import hashlib
import math
import os
import re
import shutil
import string
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import cast
from urllib import request
from urllib.error import URLError
from urllib.parse import quote, urljoin, urlsplit

from filelock import FileLock, Timeout

from perdure.data.archives import Wanted, unpack
from perdure.data.disk import ANOTHER_ROOT, CHUNK, InTheWay, made_folder, settle, writing
from perdure.errors import BadData, DownloadError, PerdureError

STALL = 30.0  # seconds without a byte, after which a connection counts as dropped
PAUSE = 1.0  # seconds between a dropped connection and the next
TRIES = 5  # connections to one mirror, as long as each brings the file further
TICK = 0.1  # seconds between two reports of progress
SLACK = 16_000_000  # bytes that are to stay free on the disk

_REDIRECTS = 10

Progress = Callable[[str, int, int], None]
"""Told the name of a file, the bytes that are here, and the bytes in all; starting over goes back to 0."""


@dataclass(frozen=True)
class Download:
    """A published file: what it must be, and where it can be had."""

    name: str
    size: int  # bytes
    md5: str
    urls: tuple[str, ...]  # tried in this order
    folder: str = ""  # below the root: where the file goes; an archive is unpacked there
    members: str = ""  # of an archive: which names to take out, a regular expression; without it, not an archive
    unpacked: int = 0  # of an archive: at most so many bytes are taken out
    count: int = 0  # of an archive: at most so many files are taken out

    def place(self, root: Path) -> Path:
        """Where the file itself is looked for: an archive in the root, any other file where it is used."""
        return root / self.name if self.members else root / self.folder / self.name


def nothing(_name: str, _done: int, _total: int) -> None:
    """Progress that nobody watches."""


def never() -> bool:
    return False


def fetch(
    download: Download,
    root: Path,
    progress: Progress = nothing,
    *,
    there: Callable[[], bool] = never,
) -> str:
    """Put a file, or what its archive holds, in its place below `root`, and say in a phrase what was done.

    An archive that somebody put into `root` is unpacked and kept; one that is fetched is removed after that. Of
    several processes that want the same file one fetches, and the others wait and show its progress. Then `there`
    says whether what an archive holds is in its place by now.
    """
    root = Path(root)
    place = download.place(root)
    if not download.members and _is_official(place, download):
        return "already there"  # found before anything is written, for the root may be read-only
    part = place.with_name(f".{download.name}.part")
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
    with _alone(root / f".{download.name}.lock", lambda: progress(download.name, _size(part), download.size)):
        if there() if download.members else _is_official(place, download):
            return "already there"
        if download.members and _is_official(place, download):
            _check_space(root, download, download.unpacked)
            _unpack(place, str(place), download, root)
            return f"unpacked from {place}"
        with made_folder(place.parent):
            return _fetch_to(place, part, download, root, progress)


def _fetch_to(place: Path, part: Path, download: Download, root: Path, progress: Progress) -> str:
    """Complete the part, unpack or rename it, and say where it came from."""
    if _size(part) > download.size:
        _discard(part)
    missing = download.size - _size(part)
    if missing == 0 and not _fault(part, download):
        source = "an earlier download"
    else:
        _check_space(root, download, missing + download.unpacked)
        source = _from_any_mirror(download, place, part, progress)
    try:
        if download.members:
            _unpack(part, download.name, download, root)
        elif not _is_official(place, download):  # for somebody may have put it there meanwhile
            with writing(place):
                settle([part])
                part.rename(place)
    except InTheWay:
        raise  # with the part kept: once the way is free, nothing need be fetched again
    except PerdureError:
        _discard(part)
        raise
    _discard(part)
    return f"fetched from {source}"


def _unpack(archive: Path, label: str, download: Download, root: Path) -> None:
    wanted = Wanted(download.members, download.unpacked, download.count)
    unpack(archive, label, wanted, root / download.folder, root / f".{download.name}.unpacked")


# --- the network ---


class _Failed(Exception):
    """A mirror is of no use; says why in a few words."""


class _Dropped(_Failed):
    """The connection broke, and may be taken up again."""


class _Wrong(_Failed):
    """Bytes that cannot be those of the file."""


def _from_any_mirror(download: Download, place: Path, part: Path, progress: Progress) -> str:
    """Complete the part from the first mirror that can, and return its address."""
    tick = _paced(progress, download)
    failures = []
    for url in download.urls:
        try:
            _from_mirror(url, download, part, tick)
        except _Failed as failure:
            failures.append(f"{urlsplit(url).hostname} {failure}")
        except PerdureError:  # the disk is full, or broken
            _discard(part)
            raise
        else:
            progress(download.name, download.size, download.size)
            return url
    if _size(part) == 0:
        _discard(part)
    raise DownloadError(f"{download.name}: {', '.join(failures)}; {_by_hand(download, place)}")


def _from_mirror(url: str, download: Download, part: Path, tick: Callable[[int], None]) -> None:
    """Complete the part from one mirror, over several connections if need be."""
    mixed = _size(part) > 0  # it began elsewhere or earlier, so wrong bytes need not be this mirror's
    drops = 0
    while True:
        before = _size(part)
        try:
            _receive(url, download, part, tick)
            fault = _fault(part, download)
        except _Dropped:
            drops += 1
            if drops == TRIES or _size(part) <= before:
                raise
            time.sleep(PAUSE)
            continue
        except _Wrong as wrong:
            fault = str(wrong)
        if not fault:
            return
        _discard(part)
        if not mixed:
            raise _Failed(f"sent a wrong file ({fault})")
        mixed = False


def _receive(url: str, download: Download, part: Path, tick: Callable[[int], None]) -> None:
    """Add to the part what one connection brings; raises unless it has the right size then."""
    if _size(part) == download.size:
        return
    response, done = _ask(url, _size(part), download.size)
    with response:
        with writing(part):
            file = part.open("ab" if done else "wb")
        try:
            tick(done)
            while chunk := _read(response, min(CHUNK, download.size - done + 1)):
                if done + len(chunk) > download.size:
                    raise _Wrong(f"more than {download.size} bytes")
                with writing(part):
                    file.write(chunk)
                done += len(chunk)
                tick(done)
        finally:
            with writing(part):
                file.close()
    if done < download.size:
        raise _Dropped(f"broke off after {done} of {download.size} bytes")


def _ask(url: str, have: int, size: int) -> tuple[HTTPResponse, int]:
    """Ask for the bytes from `have` on, or for all if those are not to be had; returns the offset of the first."""
    response = _open(url, have)
    if have and response.status in (206, 416):
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if response.status == 206 and found and int(found[1]) == have and found[2] in (str(size), "*"):
            return response, have
        response.close()
        response = _open(url, 0)
    if response.status != 200:
        response.close()
        raise _Failed(f"answers {response.status}")
    offered = response.headers.get("Content-Length", str(size))
    if offered != str(size):
        response.close()
        raise _Failed(f"offers {ascii(offered)[1:-1][:20]} bytes instead of {size}")
    return response, 0


def _open(url: str, have: int) -> HTTPResponse:
    """The answer, of whatever status, to a request for the bytes from `have` on; redirects are followed."""
    headers = {"User-Agent": "perdure", "Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with _listening():
        for _ in range(_REDIRECTS):
            scheme = urlsplit(url).scheme
            if scheme not in ("http", "https"):
                raise _Failed(f"leads to an address of kind {ascii(scheme)[:20]}, not http or https")
            response = _opener().open(request.Request(url, headers=headers), timeout=STALL)
            target = response.headers.get("Location")
            if response.status not in (301, 302, 303, 307, 308) or not target:
                return cast(HTTPResponse, response)
            response.close()
            url = urljoin(url, quote(target, safe=string.punctuation, encoding="latin1"))
    raise _Failed("redirects without end")


def _opener() -> request.OpenerDirector:
    """Speaks http and https, through the proxies of the environment, and hands over any answer as it is."""
    opener = request.OpenerDirector()
    for handler in (request.ProxyHandler, request.HTTPHandler, request.HTTPSHandler, request.UnknownHandler):
        opener.add_handler(handler())
    return opener


def _read(response: HTTPResponse, most: int) -> bytes:
    with _listening():
        return response.read1(most)  # what is there, since a longer read that breaks would lose it


@contextmanager
def _listening() -> Iterator[None]:
    """Turns whatever the network does into a dropped connection."""
    try:
        yield
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, TimeoutError):
            text = f"sent nothing for {STALL:g} s"
        else:
            said = (reason.strerror if isinstance(reason, OSError) else "") or str(reason) or type(reason).__name__
            text = f"cannot be reached ({' '.join(said.split())[:80]})"
        raise _Dropped(text) from None


def _paced(progress: Progress, download: Download) -> Callable[[int], None]:
    """Progress that is not told more often than can be seen."""
    last = -math.inf

    def tick(done: int) -> None:
        nonlocal last
        if (now := time.monotonic()) >= last + TICK:
            last = now
            progress(download.name, done, download.size)

    return tick


def _by_hand(download: Download, place: Path) -> str:
    into = f"put it into {place.parent} and run `perdure data fetch` again"
    return f"get {download.name} (md5 {download.md5}) elsewhere, {into}"


# --- the disk ---


def _is_official(path: Path, download: Download) -> bool:
    """Whether the file is there; raises if another one is there in its stead."""
    if not os.path.lexists(path):
        return False
    if fault := _fault(path, download):
        raise InTheWay(f"{path}: not the official file ({fault}); move it away and run again")
    return True


def _fault(path: Path, download: Download) -> str:
    """What is wrong with a file, in a few words; nothing if it is the right one."""
    try:
        if not path.is_file():
            return "not even a file"
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != download.size:
                return f"{size} bytes instead of {download.size}"
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise BadData(f"{path}: cannot be read ({error.strerror}); check that it is a file you may read") from None
    return "" if md5 == download.md5 else f"md5 {md5} instead of {download.md5}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _discard(part: Path) -> None:
    with writing(part):
        part.unlink(missing_ok=True)


def _check_space(root: Path, download: Download, needed: int) -> None:
    with writing(root):
        free = shutil.disk_usage(root).free
    if free < needed + SLACK:
        amounts = f"{math.ceil((needed + SLACK) / 1e6)} MB, but {int(free / 1e6)} MB are free"
        raise PerdureError(f"{root}: {download.name} needs {amounts}; make room, or {ANOTHER_ROOT}")


@contextmanager
def _alone(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock; call `waiting` now and then until it is had.

    The system drops the lock of a process that ends, however it ends. The file stays: another process may be about
    to lock it.
    """
    lock = FileLock(path)
    while not lock.is_locked:
        with writing(path.parent), suppress(Timeout):
            lock.acquire(timeout=0.2)
        if not lock.is_locked:
            waiting()
    try:
        yield
    finally:
        lock.release()
