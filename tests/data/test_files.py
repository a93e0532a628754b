"""Files come from any mirror that has them, whole or not at all; what goes wrong is one clear line."""

import errno
import gzip
import hashlib
import io
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from filelock import FileLock
from perdure.data.files import Download, fetch

from perdure.data import archives, files
from perdure.errors import BadData, DownloadError, PerdureError

GOOD = hashlib.shake_256(b"good").digest(300_000)
WRONG = GOOD[:200_000] + b"x" + GOOD[200_001:]
HALF = 150_000
PART, LOCK = ".set.bin.part", ".set.bin.lock"


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def published(*urls: str, content: bytes = GOOD, **changes: object) -> Download:
    return replace(Download("set.bin", len(content), md5(content), urls), **changes)


@dataclass
class Mirror:
    """How a server answers requests for one file."""

    content: bytes = GOOD
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    ranges: str = "kept"  # or ignored, refused, shifted, of another file, of unknown length
    length: str = "told"  # or untold, chunked
    breaks: list[int] = field(default_factory=list)  # bytes after which the first, second … connection ends
    ending: str = "closed"  # or reset, stalled
    pause: float = 0.0  # seconds before each tenth of the content


class Answer(BaseHTTPRequestHandler):
    server: "Server"

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.seen.append((self.path, asked))
        mirror = self.server.mirrors[self.path]
        first = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        status, headers, whole = mirror.status, dict(mirror.headers), len(mirror.content)
        if status != 200:
            body = mirror.content
        elif first and mirror.ranges == "refused":
            status, body = 416, b""
        elif first and mirror.ranges != "ignored":
            told = first + 1 if mirror.ranges == "shifted" else first
            total = {"of another file": whole + 1, "of unknown length": "*"}.get(mirror.ranges, whole)
            headers["Content-Range"] = f"bytes {told}-{whole - 1}/{total}"
            status, body = 206, mirror.content[first:]
        else:
            body = mirror.content
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if mirror.length == "told":
            self.send_header("Content-Length", str(len(body)))
        elif mirror.length == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
            body = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
        self.end_headers()
        until = mirror.breaks.pop(0) if mirror.breaks else len(body)
        step = len(body) // 10 + 1
        for at in range(0, until, step):
            time.sleep(mirror.pause)
            self.wfile.write(body[at : min(at + step, until)])
        if until < len(body) and mirror.ending == "stalled":
            self.server.ended.wait(20)
        if until < len(body) and mirror.ending == "reset":
            time.sleep(0.3)  # a reset overtakes bytes that were not read yet
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Answers on this machine only, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.mirrors: dict[str, Mirror] = {}
        self.seen: list[tuple[str, str | None]] = []
        self.ended = threading.Event()

    def add(self, mirror: Mirror) -> str:
        path = f"/{len(self.mirrors)}/set.bin"
        self.mirrors[path] = mirror
        return f"http://127.0.0.1:{self.server_port}{path}"

    @property
    def asked(self) -> list[str | None]:
        return [asked for _, asked in self.seen]

    def handle_error(self, *_: object) -> None:
        pass  # the other side hung up


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.ended.set()
        made.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(files, "PAUSE", 0.0)
    monkeypatch.setattr(files, "STALL", 5.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path) -> Path:
    made = tmp_path / "root"
    made.mkdir()
    (made / "mine.txt").write_bytes(b"mine")
    return made


def tree(root: Path) -> dict[str, bytes]:
    """All that is below a folder, but for locks: a lock stays, since another process may be waiting for it."""
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.suffix != ".lock"}
    return {name: path.read_bytes() if path.is_file() else b"(no file)" for name, path in found.items()}


def one_line(error: PerdureError) -> str:
    """The message is one line that ends with what to do."""
    text = str(error)
    assert "\n" not in text
    assert any(verb in text.split(";")[-1] for verb in ("get ", "put ", "move ", "make room", "choose", "check"))
    return text


# --- one mirror ---


def test_file_is_fetched_once(server, root):
    url = server.add(Mirror())
    download = published(url, folder="a/b")
    assert fetch(download, root) == f"fetched from {url}"
    assert tree(root) == {"mine.txt": b"mine", "a": b"(no file)", "a/b": b"(no file)", "a/b/set.bin": GOOD}
    assert stat.S_IMODE((root / "a/b/set.bin").stat().st_mode) & 0o444 == 0o444 & ~umask()
    assert fetch(download, root) == "already there"
    assert server.asked == [None]


def umask() -> int:
    os.umask(now := os.umask(0))
    return now


def test_root_is_made(server, tmp_path):
    root = tmp_path / "new" / "root"
    fetch(published(server.add(Mirror())), root)
    assert (root / "set.bin").read_bytes() == GOOD


@pytest.mark.parametrize(
    ("ending", "length"),
    [("closed", "told"), ("closed", "untold"), ("closed", "chunked"), ("reset", "told"), ("stalled", "told")],
)
def test_broken_connection_is_taken_up_where_it_ended(server, root, monkeypatch, length, ending):
    monkeypatch.setattr(files, "STALL", 0.5 if ending == "stalled" else 5.0)
    url = server.add(Mirror(breaks=[100_000, 50_000], ending=ending, length=length))
    assert fetch(published(url), root) == f"fetched from {url}"
    assert (root / "set.bin").read_bytes() == GOOD
    first, *others = server.asked
    begins = [int(asked.removeprefix("bytes=").removesuffix("-")) for asked in others]
    head = 7 if length == "chunked" else 0  # bytes of a chunk's own header
    assert first is None
    assert begins == [100_000 - head, 150_000 - 2 * head]


@pytest.mark.parametrize("total", ["kept", "of unknown length"])
def test_part_is_completed_by_the_missing_bytes_only(server, root, total):
    (root / PART).write_bytes(GOOD[:HALF])
    url = server.add(Mirror(ranges=total))
    fetch(published(url), root)
    assert server.asked == [f"bytes={HALF}-"]
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


@pytest.mark.parametrize("ranges", ["refused", "shifted", "of another file"])
def test_part_that_the_server_cannot_go_on_with_is_started_over(server, root, ranges):
    (root / PART).write_bytes(GOOD[:HALF])
    fetch(published(server.add(Mirror(ranges=ranges))), root)
    assert server.asked == [f"bytes={HALF}-", None]
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


def test_server_without_ranges_starts_over(server, root):
    (root / PART).write_bytes(GOOD[:HALF])
    fetch(published(server.add(Mirror(ranges="ignored"))), root)
    assert server.asked == [f"bytes={HALF}-"]
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


@pytest.mark.parametrize(
    ("part", "asked"),
    [
        (b"other" + GOOD[5:HALF], [f"bytes={HALF}-", None]),
        (WRONG, [None]),
        (GOOD + b"x", [None]),
        (b"", [None]),
    ],
    ids=["of another file", "whole but wrong", "too long", "empty"],
)
def test_spoiled_part_is_started_over(server, root, part, asked):
    (root / PART).write_bytes(part)
    url = server.add(Mirror())
    assert fetch(published(url), root) == f"fetched from {url}"
    assert server.asked == asked
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


def test_complete_part_needs_no_network(root):
    (root / PART).write_bytes(GOOD)
    assert fetch(published("http://127.0.0.1:9/"), root) == "fetched from an earlier download"
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


def test_redirects_are_followed_with_the_range(server, root):
    (root / PART).write_bytes(GOOD[:HALF])
    server.add(Mirror())
    relative = server.add(Mirror(status=308, headers={"Location": "../0/set.bin"}))
    url = server.add(Mirror(status=302, headers={"Location": relative}))
    assert fetch(published(url), root) == f"fetched from {url}"
    assert server.seen == [(f"/{n}/set.bin", f"bytes={HALF}-") for n in (2, 1, 0)]


def test_proxy_of_the_environment_is_used(server, root, monkeypatch):
    url = "http://mirror.invalid/set.bin"
    server.mirrors[url] = Mirror()
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("no_proxy", raising=False)
    assert fetch(published(url), root) == f"fetched from {url}"
    assert server.seen == [(url, None)]


def test_progress_counts_up_to_the_end(server, root, monkeypatch):
    monkeypatch.setattr(files, "TICK", 0.0)
    told: list[tuple[str, int, int]] = []
    (root / PART).write_bytes(GOOD[:HALF])
    fetch(published(server.add(Mirror())), root, lambda *report: told.append(report))
    assert {(name, total) for name, _, total in told} == {("set.bin", len(GOOD))}
    done = [done for _, done, _ in told]
    assert done[0] == HALF
    assert done[-1] == len(GOOD)
    assert done == sorted(done)


def test_progress_is_not_told_too_often(server, root, monkeypatch):
    monkeypatch.setattr(files, "CHUNK", 1000)
    told: list[int] = []
    started = time.monotonic()
    fetch(published(server.add(Mirror())), root, lambda _, done, __: told.append(done))
    assert told[0] == 0
    assert told[-1] == len(GOOD)
    assert len(told) <= 2 + (time.monotonic() - started) / files.TICK


def test_interrupted_fetch_is_continued(server, root, monkeypatch):
    monkeypatch.setattr(files, "TICK", 0.0)
    monkeypatch.setattr(files, "CHUNK", 10_000)

    def interrupt(_name: str, done: int, _total: int) -> None:
        if done >= HALF:
            raise KeyboardInterrupt

    download = published(server.add(Mirror()))
    with pytest.raises(KeyboardInterrupt):
        fetch(download, root, interrupt)
    kept = (root / PART).read_bytes()
    assert HALF <= len(kept) < HALF + 10_000
    assert kept == GOOD[: len(kept)]
    fetch(download, root)
    assert server.asked == [None, f"bytes={len(kept)}-"]
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


def test_error_of_the_watcher_is_not_taken_for_one_of_the_network(server, root):
    def broken(*_: object) -> None:
        raise BrokenPipeError("nobody reads")

    with pytest.raises(BrokenPipeError):
        fetch(published(server.add(Mirror())), root, broken)


# --- several mirrors ---

USELESS = {
    "not there": (Mirror(status=404), "answers 404"),
    "out of order": (Mirror(status=500), "answers 500"),
    "no content": (Mirror(status=204, content=b""), "answers 204"),
    "a part unasked": (Mirror(status=206), "answers 206"),
    "wrong bytes": (Mirror(content=WRONG), rf"wrong file \(md5 {md5(WRONG)} instead of {md5(GOOD)}\)"),
    "a shorter file": (Mirror(content=GOOD[:-1]), "offers 299999 bytes instead of 300000"),
    "an error page": (Mirror(content=b"<html>sign in</html>"), "offers 20 bytes"),
    "length is no number": (Mirror(length="untold", headers={"Content-Length": "many"}), "offers many bytes"),
    "too many bytes": (Mirror(content=GOOD + b"x", length="untold"), "more than 300000 bytes"),
    "too many bytes, chunked": (Mirror(content=GOOD * 9, length="chunked"), "more than 300000 bytes"),
    "breaks off at once": (Mirror(breaks=[0]), "broke off after 0 of 300000 bytes"),
    "resets at once": (Mirror(breaks=[0], ending="reset"), "cannot be reached|broke off after 0"),
    "stalls at once": (Mirror(breaks=[0], ending="stalled"), r"sent nothing for 0\.3 s"),
    "redirect to a file": (Mirror(status=302, headers={"Location": "file:///etc/passwd"}), "kind 'file'"),
    "redirect to ftp": (Mirror(status=301, headers={"Location": "ftp://127.0.0.1/set.bin"}), "kind 'ftp'"),
    "redirect to data": (Mirror(status=307, headers={"Location": "data:,x"}), "kind 'data'"),
    "redirect to itself": (Mirror(status=302, headers={"Location": "set.bin"}), "redirects without end"),
    "redirect to nonsense": (Mirror(status=302, headers={"Location": "http://["}), "cannot be reached"),
    "redirect to nowhere": (Mirror(status=302), "answers 302"),
}  # fmt: skip


def fresh(mirror: Mirror) -> Mirror:
    return replace(mirror, breaks=list(mirror.breaks))


@pytest.mark.parametrize("members", ["", "a"], ids=["file", "archive"])
@pytest.mark.parametrize("case", USELESS)
def test_useless_mirror(server, root, monkeypatch, case, members):
    mirror, says = USELESS[case]
    monkeypatch.setattr(files, "STALL", 0.3 if mirror.ending == "stalled" else 5.0)
    before = tree(root)
    with pytest.raises(DownloadError, match=says) as caught:
        fetch(published(server.add(fresh(mirror)), folder="new/folder", members=members), root)
    text = one_line(caught.value)
    where = root if members else root / "new/folder"
    assert text.startswith("set.bin: 127.0.0.1 ")
    assert f"get set.bin (md5 {md5(GOOD)}) elsewhere, put it into {where} and run `perdure data fetch` again" in text
    assert len(text) < 300 + len(str(where))
    assert tree(root) == before
    assert len(server.seen) == (10 if case == "redirect to itself" else 1)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("case", USELESS)
def test_next_mirror_is_used(server, root, monkeypatch, case):
    mirror = USELESS[case][0]
    monkeypatch.setattr(files, "STALL", 0.5 if mirror.ending == "stalled" else 5.0)
    first, second = server.add(fresh(mirror)), server.add(Mirror())
    assert fetch(published(first, second), root) == f"fetched from {second}"
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_all_mirrors_fail(server, root, monkeypatch):
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    dead = f"http://127.0.0.1:{closed_port()}/set.bin"
    with pytest.raises(DownloadError) as caught:
        fetch(published(dead, server.add(Mirror(status=404)), "ftp://127.0.0.1/set.bin"), root)
    text = one_line(caught.value)
    assert "127.0.0.1 cannot be reached (Connection refused), 127.0.0.1 answers 404, 127.0.0.1 leads to" in text
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(DownloadError, match=r"mirror\.invalid cannot be reached \(Name or service not known\)"):
        fetch(published("http://mirror.invalid/set.bin"), root)
    assert tree(root) == {"mine.txt": b"mine"}


def test_part_survives_mirrors_that_break_off(server, root):
    dropping = Mirror(breaks=[1000] * 99)
    download = published(server.add(dropping), server.add(Mirror(status=404)), server.add(Mirror(content=b"page")))
    with pytest.raises(DownloadError, match="broke off after 5000 of 300000 bytes"):
        fetch(download, root)
    assert server.asked[: files.TRIES] == [None, "bytes=1000-", "bytes=2000-", "bytes=3000-", "bytes=4000-"]
    assert server.asked[files.TRIES :] == ["bytes=5000-", "bytes=5000-", None]
    assert tree(root) == {"mine.txt": b"mine", PART: GOOD[:5000]}
    dropping.breaks.clear()
    fetch(download, root)
    assert server.asked[-1] == "bytes=5000-"
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


def test_mirror_that_comes_no_further_is_left(server, root):
    first = server.add(Mirror(breaks=[1000, 1000, 1000, 1000, 1000], ranges="ignored"))
    second = server.add(Mirror())
    assert fetch(published(first, second), root) == f"fetched from {second}"
    assert server.asked == [None, "bytes=1000-", "bytes=1000-"]


def test_bytes_of_a_bad_mirror_do_not_spoil_the_next(server, root):
    bad = server.add(Mirror(content=b"bad" + GOOD[3:], breaks=[HALF, 0]))
    good = server.add(Mirror())
    assert fetch(published(bad, good), root) == f"fetched from {good}"
    assert server.asked == [None, f"bytes={HALF}-", f"bytes={HALF}-", None]
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


# --- several processes ---

CODE = """
from pathlib import Path
from perdure.data.files import Download, fetch
print(fetch(Download(**{download!r}), Path({root!r}), there=lambda: {there}))
"""


def start(root: Path, download: Download, there: str = "False") -> subprocess.Popen[str]:
    code = CODE.format(download=vars(download), root=str(root), there=there)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("kind", ["file", "archive"])
def test_two_processes_make_one_download(server, root, kind):
    content = GOOD if kind == "file" else tar(A, B)
    url = server.add(Mirror(content, pause=0.1))
    download = published(url, content=content, **({} if kind == "file" else ARCHIVE))
    there = f"Path({str(root / 'sub/a.txt')!r}).exists()"
    both = [start(root, download, there) for _ in range(2)]
    said = sorted(process.communicate(timeout=60) for process in both)
    assert [errors for _, errors in said] == ["", ""]
    assert [phrase for phrase, _ in said] == ["already there\n", f"fetched from {url}\n"]
    assert server.asked == [None]
    assert tree(root) == ({"mine.txt": b"mine", "set.bin": GOOD} if kind == "file" else UNPACKED)


def test_waiting_shows_how_far_the_other_process_is(root):
    lock = FileLock(root / LOCK, thread_local=False)
    lock.acquire()
    (root / PART).write_bytes(GOOD[:HALF])
    told: list[tuple[str, int, int]] = []

    def callback(*report) -> None:
        told.append(report)
        if len(told) == 2:
            (root / PART).rename(root / "set.bin")
            (root / "set.bin").write_bytes(GOOD)
            lock.release()

    said: list[str] = []
    waiter = threading.Thread(target=lambda: said.append(fetch(published(), root, callback)))
    waiter.start()
    waiter.join(30)
    assert said == ["already there"]
    assert told == [("set.bin", HALF, len(GOOD))] * 2


def test_killed_process_leaves_a_part_and_no_lock(server, root):
    mirror = Mirror(breaks=[HALF], ending="stalled")
    download = published(server.add(mirror))
    process = start(root, download)
    until(lambda: (root / PART).exists() and (root / PART).stat().st_size > 0)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = (root / PART).read_bytes()
    assert kept == GOOD[: len(kept)]
    assert (root / LOCK).exists()
    fetch(download, root)
    assert server.asked == [None, f"bytes={len(kept)}-"]
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.01)


# --- files that are there, and disks that are not ---


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"short", "5 bytes instead of 300000"), (WRONG, f"md5 {md5(WRONG)} instead of {md5(GOOD)}"), (None, "not even")],
    ids=["other size", "other bytes", "folder"],
)
@pytest.mark.parametrize("members", ["", "a"], ids=["file", "archive"])
def test_file_of_the_user_is_never_overwritten(server, root, content, says, members):
    path = root / "set.bin"
    path.mkdir() if content is None else path.write_bytes(content)
    before = tree(root)
    with pytest.raises(BadData, match=says) as caught:
        fetch(published(server.add(Mirror()), members=members), root)
    assert one_line(caught.value).startswith(f"{path}: not the official file (")
    assert tree(root) == before
    assert server.seen == []


@pytest.mark.parametrize("content", [GOOD, WRONG], ids=["right", "wrong"])
def test_file_that_appears_while_fetching_stays(server, root, content):
    path = root / "set.bin"
    download = published(server.add(Mirror()))

    def put(*_: object) -> None:
        path.write_bytes(content)

    if content == GOOD:
        fetch(download, root, put)
    else:
        with pytest.raises(BadData, match="not the official file"):
            fetch(download, root, put)
    assert path.read_bytes() == content


def test_too_little_space(server, root, monkeypatch):
    usage = shutil.disk_usage(root)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=9_900_000))
    (root / PART).write_bytes(GOOD[:HALF])
    before = tree(root)
    with pytest.raises(PerdureError, match=r"set\.bin needs 17 MB, but 9 MB are free") as caught:
        fetch(published(server.add(Mirror()), folder="new"), root)
    one_line(caught.value)
    with pytest.raises(PerdureError, match="needs 117 MB"):
        fetch(published(server.add(Mirror()), members="a", unpacked=100_000_000), root)
    (root / "set.bin").write_bytes(GOOD)
    with pytest.raises(PerdureError, match="needs 116 MB"):
        fetch(published(members="a", unpacked=100_000_000), root)
    (root / "set.bin").unlink()
    assert tree(root) == before
    assert server.seen == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=files.SLACK + len(GOOD) - HALF))
    fetch(published(server.add(Mirror())), root)  # only what is still missing must fit


class FullDisk:
    """A file on a disk that takes so many bytes more."""

    def __init__(self, file: io.BufferedWriter, room: int, code: int) -> None:
        self.file, self.room, self.code = file, room, code

    def write(self, content: bytes) -> int:
        self.file.write(content[: self.room])
        if len(content) > self.room:
            raise OSError(self.code, os.strerror(self.code))
        self.room -= len(content)
        return len(content)

    def close(self) -> None:
        self.file.close()


@pytest.fixture
def fill(monkeypatch):
    real = Path.open

    def start(room: int, code: int = errno.ENOSPC) -> None:
        def opened(path, mode="r", *rest, **named):
            file = real(path, mode, *rest, **named)
            return FullDisk(file, room, code) if mode in ("ab", "wb", "xb") else file

        monkeypatch.setattr(Path, "open", opened)

    return start


@pytest.mark.parametrize(
    ("code", "says"), [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "disk is full"), (errno.EIO, "cannot be written")]
)
@pytest.mark.parametrize("part", [b"", GOOD[:HALF]], ids=["new", "resumed"])
def test_disk_full_while_fetching(server, root, fill, code, says, part):
    before = tree(root)
    if part:
        (root / "new").mkdir()
        (root / "new" / PART).write_bytes(part)
        before["new"] = b"(no file)"
    fill(100_000, code)
    with pytest.raises(PerdureError, match=says) as caught:
        fetch(published(server.add(Mirror()), server.add(Mirror()), folder="new"), root)
    one_line(caught.value)
    assert tree(root) == before
    assert len(server.seen) == 1  # another mirror has no more room


def test_disk_full_at_the_end(server, root, monkeypatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = tree(root)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PerdureError, match="disk is full") as caught:
        fetch(published(server.add(Mirror()), folder="new"), root)
    assert one_line(caught.value).startswith(f"{root / 'new/set.bin'}: ")
    assert tree(root) == before


def test_disk_full_while_unpacking(root, fill):
    content = tar(A, B)
    (root / "set.bin").write_bytes(content)
    before = tree(root)
    fill(4)
    with pytest.raises(PerdureError, match="disk is full") as caught:
        fetch(published(content=content, **ARCHIVE), root)
    one_line(caught.value)
    assert tree(root) == before


ROOTS = {
    "below a file": lambda tmp_path, _: tmp_path / "root" / "mine.txt" / "root",
    "a file": lambda tmp_path, _: tmp_path / "root" / "mine.txt",
    "folder forbidden": lambda tmp_path, patch: forbid(patch, Path, "mkdir", tmp_path / "new"),
    "lock forbidden": lambda tmp_path, patch: forbid(patch, FileLock, "acquire", tmp_path / "root"),
}


def forbid(patch: pytest.MonkeyPatch, owner: type, name: str, root: Path) -> Path:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    patch.setattr(owner, name, refuse)
    return root


@pytest.mark.parametrize("case", ROOTS)
def test_impossible_root(server, tmp_path, root, monkeypatch, case):
    before = tree(tmp_path)
    asked = ROOTS[case](tmp_path, monkeypatch)
    with pytest.raises(PerdureError, match="cannot be written") as caught:
        fetch(published(server.add(Mirror())), asked)
    assert one_line(caught.value).startswith(f"{asked}: ")
    assert tree(tmp_path) == before
    assert server.seen == []
    assert root.exists()


def test_read_only_root(server, root):
    (root / "there.bin").write_bytes(GOOD)
    root.chmod(0o555)
    try:
        if os.access(root, os.W_OK):
            pytest.skip("this user may write anywhere")
        with pytest.raises(PerdureError, match="cannot be written") as caught:
            fetch(published(server.add(Mirror())), root)
        assert one_line(caught.value).startswith(f"{root}: ")
        assert fetch(published(name="there.bin"), root) == "already there"
    finally:
        root.chmod(0o755)
    assert tree(root) == {"mine.txt": b"mine", "there.bin": GOOD}


def test_file_in_a_read_only_root_is_found(root, monkeypatch):
    (root / "set.bin").write_bytes(GOOD)
    forbid(monkeypatch, FileLock, "acquire", root)
    forbid(monkeypatch, Path, "mkdir", root)
    assert fetch(published(), root) == "already there"


# --- archives ---

ARCHIVE = {"folder": "sub", "members": r"[ab]\.txt|deep/.*", "unpacked": 1000, "count": 3}
A, B = ("a.txt", b"alpha"), ("b.txt", b"beta")
UNPACKED = {"mine.txt": b"mine", "sub": b"(no file)", "sub/a.txt": b"alpha", "sub/b.txt": b"beta"}
TAR_KINDS = {
    "symlink": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
    "block device": tarfile.BLKTYPE,
    "pipe": tarfile.FIFOTYPE,
    "folder": tarfile.DIRTYPE,
}
ZIP_KINDS = {
    "symlink": stat.S_IFLNK,
    "device": stat.S_IFCHR,
    "block device": stat.S_IFBLK,
    "pipe": stat.S_IFIFO,
    "folder": stat.S_IFDIR,
}

Member = tuple[str, bytes] | tuple[str, bytes, str]


def plain_tar(*members: Member) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content, *kind in members:
            info = tarfile.TarInfo(name)
            if kind:
                info.type, info.linkname = TAR_KINDS[kind[0]], content.decode()
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def tar(*members: Member) -> bytes:
    return gzip.compress(plain_tar(*members), 1, mtime=0)


def zipped(*members: Member) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two members of one name
        for name, content, *kind in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = (ZIP_KINDS[kind[0]] if kind else stat.S_IFREG) << 16
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def spoiled(content: bytes, old: bytes, new: bytes) -> bytes:
    assert old in content
    return content.replace(old, new)


def tar_header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


END = bytes(1024)
PACKERS = {"tar.gz": tar, "tar": plain_tar, "zip": zipped}


def both(*members: Member) -> dict[str, Callable[[], bytes]]:
    return {"tar.gz": lambda: tar(*members), "zip": lambda: zipped(*members)}


BAD = {
    "path traversal": (both(A, ("../b.txt", b"beta")), r"refused, for '\.\./b\.txt' leads out"),
    "path traversal inside": (both(A, ("deep/../../b.txt", b"beta")), "leads out of its folder"),
    "path traversal of a folder": (both(A, ("deep/../../..", b"", "folder")), "leads out of its folder"),
    "path traversal on Windows": (both(A, ("deep/..\\..\\b.txt", b"beta")), "leads out of its folder"),
    "drive of Windows": (both(A, ("C:\\b.txt", b"beta")), "leads out of its folder"),
    "absolute path": (both(A, ("/absolute/b.txt", b"beta")), "leads out of its folder"),
    "long hostile name": (both(A, ("../" + "\n" * 5000, b"beta")), "leads out of its folder"),
    "symlink": (both(A, ("b.txt", b"/etc/passwd", "symlink")), "'b.txt' is a link or a device"),
    "hard link": ({"tar.gz": lambda: tar(A, ("b.txt", b"a.txt", "hard link"))}, "link or a device"),
    "device": (both(A, ("b.txt", b"", "device")), "link or a device"),
    "block device": (both(A, ("b.txt", b"", "block device")), "link or a device"),
    "pipe": (both(A, ("b.txt", b"", "pipe")), "link or a device"),
    "twice": (both(A, B, A), "'a.txt' is in it twice"),
    "twice, spelled differently": (both(A, ("./a.txt", b"other")), "'./a.txt' is in it twice"),
    "file that was a folder": (both(("deep/x/y", b"1"), ("deep/x", b"2")), "twice"),
    "folder that was a file": (both(("deep/x", b"1"), ("deep/x/y", b"2")), "cannot be written"),
    "bomb of one file": (both(A, ("b.txt", bytes(2_000_000))), "more bytes would come out"),
    "bomb of two files": (both(("a.txt", bytes(600)), ("b.txt", bytes(401))), "more bytes would come out"),
    "bomb of many files": (both(A, B, ("deep/c", b""), ("deep/d", b"")), "more than 3 files would come out"),
    "bomb of many unwanted files": (both(A, *((f"x{n}", b"") for n in range(1100))), "far more than it should"),
    "bomb of unwanted bytes": ({"tar.gz": lambda: tar(A, ("x", bytes(70 << 20)), B)}, "far more bytes"),
    "header claims too much": ({"tar": lambda: tar_header("a.txt", 1 << 33) + END}, "not a readable archive"),
    "header claims too little": ({"zip": lambda: understated()}, "not a readable archive"),
    "unwanted header claims too much": ({"tar": lambda: tar_header("x", 1 << 33) + END}, "headers tell lies"),
    "name of a gigabyte": ({
        "tar": lambda: tar_header("././@LongLink", 1 << 30, tarfile.GNUTYPE_LONGNAME) + bytes(512) + END,
        "tar.gz": lambda: gzip.compress(tar_header("pax", 1 << 25, tarfile.XHDTYPE) + bytes(1 << 25) + END, 1),
    }, "headers tell lies"),
    "negative size": ({"tar": lambda: plain_tar(A)[:1024] + tar_header("x", -1024) + END}, "headers tell lies"),
    "cut short": ({kind: lambda pack=pack: pack(A, B)[:-100] for kind, pack in (("tar.gz", tar), ("zip", zipped))},
        "not a readable archive"),
    "cut within a file": ({"tar": lambda: plain_tar(A, ("b.txt", bytes(900)))[:2100]}, "not a readable archive"),
    "cut between files": ({"tar": lambda: plain_tar(A, B)[:1024]}, r"not a readable archive \(EOFError\)"),
    "damaged between files": ({"tar": lambda: plain_tar(A, B)[:1024] + b"x" * 512 + END}, "not a readable archive"),
    "damaged within": ({
        "tar.gz": lambda: tar(A, B)[:40] + b"\xff" * 20 + tar(A, B)[60:],
        "zip": lambda: spoiled(zipped(A), zlib.compress(b"alpha", wbits=-15), b"\xff" * 7),
    }, "not a readable archive"),
    "locked with a password": ({"zip": lambda: locked(zipped(A))}, "not a readable archive"),
    "not an archive": ({"text": lambda: b"<html>not found</html>"}, "not a readable archive"),
    "gzip of something else": ({"gz": lambda: gzip.compress(GOOD)}, "not a readable archive"),
    "empty": ({"byte": lambda: b"\0", "tar": plain_tar, "zip": zipped}, "not a readable archive|none of the files"),
    "nothing wanted": (both(("c.txt", b""), ("other/a.txt", b"alpha"), ("a.txt.bak", b"")), "none of the files"),
    "only a folder": (both(("deep/x/", b"", "folder")), "none of the files"),
}  # fmt: skip


def understated() -> bytes:
    """A zip whose headers say that 5000 bytes are 50."""
    content = zipped(("a.txt", bytes(5000)))
    assert content.count((5000).to_bytes(4, "little")) == 2
    return spoiled(content, (5000).to_bytes(4, "little"), (50).to_bytes(4, "little"))


def locked(content: bytes) -> bytes:
    """With the flag in both headers that says that the content is encrypted."""
    changed = bytearray(content)
    changed[6] |= 1
    changed[content.index(b"PK\1\2") + 8] |= 1
    return bytes(changed)


@pytest.mark.parametrize(("case", "kind"), [(case, kind) for case, (packed, _) in BAD.items() for kind in packed])
@pytest.mark.parametrize("way", ["by hand", "fetched"])
def test_bad_archive(server, root, tmp_path, case, kind, way):
    content = BAD[case][0][kind]()
    if way == "by hand":
        (root / "set.bin").write_bytes(content)
    before = tree(tmp_path)
    with pytest.raises(PerdureError, match=BAD[case][1]) as caught:
        fetch(published(server.add(Mirror(content)), content=content, **ARCHIVE), root)
    text = one_line(caught.value)
    assert len(text) < 250 + 2 * len(str(root))
    assert tree(tmp_path) == before
    assert len(server.seen) == (way == "fetched")
    assert isinstance(caught.value, BadData) or "cannot be written" in text
    assert not isinstance(caught.value, DownloadError)


@pytest.mark.parametrize("kind", PACKERS)
def test_archive_that_is_fetched_is_unpacked_and_removed(server, root, kind):
    content = PACKERS[kind](("./", b"", "folder"), ("./a.txt", b"alpha"), ("c.txt", b"unwanted"), B)
    url = server.add(Mirror(content))
    assert fetch(published(url, content=content, **ARCHIVE), root) == f"fetched from {url}"
    assert tree(root) == UNPACKED


@pytest.mark.parametrize("kind", PACKERS)
def test_archive_put_there_by_hand_is_unpacked_and_kept(server, root, kind):
    content = PACKERS[kind](A, ("elsewhere", b"/etc", "symlink"), B)
    (root / "set.bin").write_bytes(content)
    download = published(server.add(Mirror()), content=content, **ARCHIVE)
    assert fetch(download, root) == f"unpacked from {root / 'set.bin'}"
    assert tree(root) == UNPACKED | {"set.bin": content}
    assert server.seen == []


def test_archive_of_many_files(root):
    content = tar(*((f"deep/{n % 7}/{n}", str(n).encode()) for n in range(300)))
    (root / "set.bin").write_bytes(content)
    fetch(published(content=content, **ARCHIVE | {"count": 300, "folder": ""}), root)
    assert sum(value != b"(no file)" for value in tree(root / "deep").values()) == 300
    assert (root / "deep/3/10").read_bytes() == b"10"


def test_archive_whose_files_are_there_is_not_fetched(server, root):
    download = published(server.add(Mirror()), **ARCHIVE)
    assert fetch(download, root, there=lambda: True) == "already there"
    assert server.seen == []


def test_limits_are_inclusive(root):
    content = tar(("a.txt", bytes(500)), ("b.txt", bytes(500)), ("deep/c", b""))
    (root / "set.bin").write_bytes(content)
    fetch(published(content=content, **ARCHIVE), root)
    assert (root / "sub/b.txt").read_bytes() == bytes(500)


def test_member_that_is_there_already_is_left_alone(root):
    content = tar(A, B)
    (root / "set.bin").write_bytes(content)
    (root / "sub").mkdir()
    (root / "sub/b.txt").write_bytes(b"beta")
    os.utime(root / "sub/b.txt", (1, 1))
    fetch(published(content=content, **ARCHIVE), root)
    assert tree(root) == UNPACKED | {"set.bin": content}
    assert (root / "sub/b.txt").stat().st_mtime == 1


@pytest.mark.parametrize("way", ["by hand", "fetched"])
@pytest.mark.parametrize("other", [b"gamma", b"BETA", None], ids=["other size", "other bytes", "folder"])
def test_member_of_the_user_is_never_overwritten(server, root, way, other):
    content = tar(A, B)
    target = root / "sub/b.txt"
    target.parent.mkdir()
    target.mkdir() if other is None else target.write_bytes(other)
    if way == "by hand":
        (root / "set.bin").write_bytes(content)
    before = tree(root)
    download = published(server.add(Mirror(content)), content=content, **ARCHIVE)
    with pytest.raises(BadData, match="not the same as in the official archive; move it away") as caught:
        fetch(download, root)
    assert one_line(caught.value).startswith(f"{target}: ")
    assert tree(root) == before | ({PART: content} if way == "fetched" else {})
    target.rmdir() if other is None else target.unlink()
    fetch(download, root)  # without asking again for what is here
    assert {name: value for name, value in tree(root).items() if name != "set.bin"} == UNPACKED
    assert len(server.seen) == (way == "fetched")


def test_move_that_fails_is_undone(root, monkeypatch):
    content = tar(A, ("deep/x/y", b"1"), B)
    (root / "set.bin").write_bytes(content)
    before = tree(root)
    real = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if target.name == "b.txt":
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PerdureError, match=r"sub/b\.txt: cannot be written \(Permission denied\)") as caught:
        fetch(published(content=content, **ARCHIVE), root)
    one_line(caught.value)
    assert tree(root) == before


def test_leftovers_of_a_killed_process_are_cleared(root):
    content = tar(A, B)
    (root / "set.bin").write_bytes(content)
    (root / ".set.bin.unpacked").mkdir()
    (root / ".set.bin.unpacked/a.txt").write_bytes(b"half")
    fetch(published(content=content, **ARCHIVE), root)
    assert tree(root) == UNPACKED | {"set.bin": content}


def test_interrupt_while_unpacking_leaves_the_archive_for_the_next_time(server, root, monkeypatch):
    content = tar(A, B)
    download = published(server.add(Mirror(content)), content=content, **ARCHIVE)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(archives, "_move_in", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch(download, root)
    assert tree(root) == {"mine.txt": b"mine", PART: content}
    assert fetch(download, root) == "fetched from an earlier download"
    assert tree(root) == UNPACKED
