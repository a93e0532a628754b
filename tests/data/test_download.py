"""Files come from any mirror that has them, whole or not at all; what goes wrong is one clear line."""

import errno
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
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from filelock import FileLock
from image_files import one_line

from perdure.data import download as module
from perdure.data.catalog import Download
from perdure.data.download import fetch
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
    ranges: str = "kept"  # or ignored, refused, shifted
    length: str = "given"  # or missing, chunked
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
            begin = first + 1 if mirror.ranges == "shifted" else first
            headers["Content-Range"] = f"bytes {begin}-{whole - 1}/{whole}"
            status, body = 206, mirror.content[begin:]
        else:
            body = mirror.content
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if mirror.length == "given":
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
    monkeypatch.setattr(module, "PAUSE", 0.0)
    monkeypatch.setattr(module, "STALL", 5.0)
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


# --- one mirror ---


def test_file_is_fetched_once(server, tmp_path):
    root = tmp_path / "new" / "root"
    url = server.add(Mirror())
    download = published(url, folder="a/b")
    assert fetch(download, root) == f"fetched from {url}"
    assert tree(root) == {"a": b"(no file)", "a/b": b"(no file)", "a/b/set.bin": GOOD}
    os.umask(umask := os.umask(0))
    assert stat.S_IMODE((root / "a/b/set.bin").stat().st_mode) & 0o444 == 0o444 & ~umask
    assert fetch(download, root) == "already there"
    assert server.asked == [None]


@pytest.mark.parametrize(
    ("ending", "length"),
    [("closed", "given"), ("closed", "missing"), ("closed", "chunked"), ("reset", "given"), ("stalled", "given")],
)
def test_broken_connection_is_taken_up_where_it_ended(server, root, monkeypatch, length, ending):
    monkeypatch.setattr(module, "STALL", 0.5 if ending == "stalled" else 5.0)
    url = server.add(Mirror(breaks=[100_000, 50_000], ending=ending, length=length))
    assert fetch(published(url), root) == f"fetched from {url}"
    assert (root / "set.bin").read_bytes() == GOOD
    first, *others = server.asked
    begins = [int(asked.removeprefix("bytes=").removesuffix("-")) for asked in others]
    head = 7 if length == "chunked" else 0  # bytes of a chunk's own header
    assert first is None
    assert begins == [100_000 - head, 150_000 - 2 * head]


HAVE_HALF = f"bytes={HALF}-"


@pytest.mark.parametrize(
    ("part", "ranges", "asked"),
    [
        (GOOD[:HALF], "kept", [HAVE_HALF]),  # only the missing bytes
        (GOOD[:HALF], "ignored", [HAVE_HALF]),  # all of them
        (GOOD[:HALF], "refused", [HAVE_HALF, None]),
        (GOOD[:HALF], "shifted", [HAVE_HALF, None]),
        (b"other" + GOOD[5:HALF], "kept", [HAVE_HALF, None]),  # of another file
        (WRONG, "kept", [None]),
        (GOOD + b"x", "kept", [None]),
        (b"", "kept", [None]),
        (GOOD, "kept", []),
    ],
)
def test_part_is_completed_or_started_over(server, root, part, ranges, asked):
    (root / PART).write_bytes(part)
    url = server.add(Mirror(ranges=ranges))
    assert fetch(published(url), root) == f"fetched from {url if asked else 'an earlier download'}"
    assert server.asked == asked
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


def test_redirects_are_followed_with_the_range(server, root):
    (root / PART).write_bytes(GOOD[:HALF])
    server.add(Mirror())
    relative = server.add(Mirror(status=308, headers={"Location": "../0/set.bin"}))
    url = server.add(Mirror(status=302, headers={"Location": relative}))
    assert fetch(published(url), root) == f"fetched from {url}"
    assert server.seen == [(f"/{n}/set.bin", HAVE_HALF) for n in (2, 1, 0)]


def test_proxy_of_the_environment_is_used(server, root, monkeypatch):
    url = "http://mirror.invalid/set.bin"
    server.mirrors[url] = Mirror()
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("no_proxy", raising=False)
    assert fetch(published(url), root) == f"fetched from {url}"
    assert server.seen == [(url, None)]


def test_progress_counts_up_to_the_end(server, root):
    (root / PART).write_bytes(GOOD[:HALF])
    reports: list[tuple[str, int, int]] = []
    fetch(published(server.add(Mirror())), root, lambda *report: reports.append(report))
    assert {(name, total) for name, _, total in reports} == {("set.bin", len(GOOD))}
    done = [done for _, done, _ in reports]
    assert (done[0], done[-1]) == (HALF, len(GOOD))
    assert done == sorted(done)


def test_interrupted_fetch_is_continued(server, root, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 10_000)

    def interrupt(_name: str, done: int, _total: int) -> None:
        if done >= HALF:
            raise KeyboardInterrupt

    download = published(server.add(Mirror()))
    with pytest.raises(KeyboardInterrupt):
        fetch(download, root, interrupt)
    kept = (root / PART).read_bytes()
    assert HALF <= len(kept) < HALF + 10_000
    fetch(download, root)
    assert server.asked == [None, f"bytes={len(kept)}-"]
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


# --- several mirrors ---

USELESS = {
    "not there": (Mirror(status=404), "answers 404"),
    "out of order": (Mirror(status=500), "answers 500"),
    "no content": (Mirror(status=204, content=b""), "offers 0 bytes"),
    "wrong bytes": (Mirror(content=WRONG), rf"wrong file \(md5 {md5(WRONG)} instead of {md5(GOOD)}\)"),
    "a shorter file": (Mirror(content=GOOD[:-1]), "offers 299999 bytes instead of 300000"),
    "an error page": (Mirror(content=b"<html>sign in</html>"), "offers 20 bytes"),
    "length is no number": (Mirror(length="missing", headers={"Content-Length": "many"}), "offers many"),
    "too many bytes": (Mirror(content=GOOD + b"x", length="missing"), "300001 bytes instead of 300000"),
    "too many bytes, chunked": (Mirror(content=GOOD * 9, length="chunked"), "300001 bytes instead of 300000"),
    "breaks off at once": (Mirror(breaks=[0]), "broke off after 0 of 300000 bytes"),
    "resets at once": (Mirror(breaks=[0], ending="reset"), "cannot be reached|broke off after 0"),
    "stalls at once": (Mirror(breaks=[0], ending="stalled"), r"sent nothing for 0\.3 s"),
    "redirect to a file": (Mirror(status=302, headers={"Location": "file:///etc/passwd"}), "answers 302"),
    "redirect to itself": (Mirror(status=302, headers={"Location": "set.bin"}), "answers 302"),
    "redirect to nonsense": (Mirror(status=302, headers={"Location": "http://["}), "cannot be reached"),
    "redirect to nowhere": (Mirror(status=302), "answers 302"),
}  # fmt: skip


@pytest.mark.parametrize("case", USELESS)
def test_useless_mirror(server, root, monkeypatch, case):
    mirror, says = USELESS[case]
    monkeypatch.setattr(module, "STALL", 0.3 if mirror.ending == "stalled" else 5.0)
    useless = server.add(replace(mirror, breaks=mirror.breaks * 2))
    with pytest.raises(DownloadError, match=says) as caught:
        fetch(published(useless, folder="new"), root)
    text = one_line(caught.value, "set.bin: 127.0.0.1 ", 400)
    assert f"get set.bin (md5 {md5(GOOD)}) elsewhere, put it into {root / 'new'} and run `perdure data fetch`" in text
    assert not (root / "new/set.bin").exists()
    good = server.add(Mirror())
    assert fetch(published(useless, good), root) == f"fetched from {good}"
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD, "new": b"(no file)"} | leftover(root)


def leftover(root: Path) -> dict[str, bytes]:
    """A part of nothing, where a mirror promised bytes and sent none."""
    return {f"new/{PART}": b""} if (root / "new" / PART).exists() else {}


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_all_mirrors_fail(server, root, monkeypatch):
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    dead = f"http://127.0.0.1:{closed_port()}/set.bin"
    with pytest.raises(DownloadError) as caught:
        fetch(published(dead, server.add(Mirror(status=404))), root)
    assert "127.0.0.1 cannot be reached (Connection refused), 127.0.0.1 answers 404; get" in one_line(caught.value)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(DownloadError, match=r"mirror\.invalid cannot be reached \(Name or service not known\)"):
        fetch(published("http://mirror.invalid/set.bin"), root)
    assert tree(root) == {"mine.txt": b"mine"}


def test_part_survives_mirrors_that_break_off(server, root):
    dropping = Mirror(breaks=[1000] * 99)
    download = published(server.add(dropping), server.add(Mirror(status=404)), server.add(Mirror(content=b"page")))
    with pytest.raises(DownloadError, match="broke off after 5000 of 300000 bytes"):
        fetch(download, root)
    assert server.asked[: module.TRIES] == [None, "bytes=1000-", "bytes=2000-", "bytes=3000-", "bytes=4000-"]
    assert tree(root) == {"mine.txt": b"mine", PART: GOOD[:5000]}
    dropping.breaks.clear()
    fetch(download, root)
    assert server.asked[-1] == "bytes=5000-"
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


def test_bytes_of_a_bad_mirror_do_not_spoil_the_next(server, root):
    bad = server.add(Mirror(content=b"bad" + GOOD[3:], breaks=[HALF, 0]))
    good = server.add(Mirror())
    assert fetch(published(bad, good), root) == f"fetched from {good}"
    assert server.asked == [None, HAVE_HALF, HAVE_HALF, None]
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


# --- several processes ---

CODE = """
from pathlib import Path
from perdure.data import download as module
from perdure.data.catalog import Download
from perdure.data.download import fetch
print(fetch(Download(**{download!r}), Path({root!r}), is_unpacked=lambda: {is_unpacked}))
"""


def start(root: Path, download: Download, is_unpacked: str = "False") -> subprocess.Popen[str]:
    code = CODE.format(download=vars(download), root=str(root), is_unpacked=is_unpacked)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("kind", ["file", "archive"])
def test_two_processes_make_one_download(server, root, kind):
    content = GOOD if kind == "file" else tar(A, B)
    url = server.add(Mirror(content, pause=0.1))
    download = published(url, content=content, **({} if kind == "file" else ARCHIVE))
    both = [start(root, download, f"Path({str(root / 'sub/a.txt')!r}).exists()") for _ in range(2)]
    said = sorted(process.communicate(timeout=60) for process in both)
    assert said == [("already there\n", ""), (f"fetched from {url}\n", "")]
    assert server.asked == [None]
    assert tree(root) == ({"mine.txt": b"mine", "set.bin": GOOD} if kind == "file" else UNPACKED)


def test_waiting_shows_how_far_the_other_process_is(root):
    lock = FileLock(root / LOCK, thread_local=False)
    lock.acquire()
    (root / PART).write_bytes(GOOD[:HALF])
    reports: list[tuple[str, int, int]] = []

    def progress(*report) -> None:
        reports.append(report)
        if len(reports) == 2:
            (root / PART).rename(root / "set.bin")
            (root / "set.bin").write_bytes(GOOD)
            lock.release()

    said: list[str] = []
    waiter = threading.Thread(target=lambda: said.append(fetch(published(), root, progress)))
    waiter.start()
    waiter.join(30)
    assert said == ["already there"]
    assert reports == [("set.bin", HALF, len(GOOD))] * 2


def test_killed_process_leaves_a_part_and_no_lock(server, root):
    download = published(server.add(Mirror(breaks=[HALF], ending="stalled")))
    process = start(root, download)
    ends = time.monotonic() + 30
    while not ((root / PART).exists() and (root / PART).stat().st_size):
        assert time.monotonic() < ends
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = (root / PART).read_bytes()
    assert kept == GOOD[: len(kept)]
    fetch(download, root)
    assert server.asked == [None, f"bytes={len(kept)}-"]
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


# --- files that are there, and disks that are not ---


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"short", "5 bytes instead of 300000"), (WRONG, f"md5 {md5(WRONG)} instead of {md5(GOOD)}"), (None, "not even")],
)
@pytest.mark.parametrize("members", ["", "a"], ids=["file", "archive"])
def test_file_of_the_user_is_never_overwritten(server, root, content, says, members):
    path = root / "set.bin"
    path.mkdir() if content is None else path.write_bytes(content)
    before = tree(root)
    with pytest.raises(BadData, match=says) as caught:
        fetch(published(server.add(Mirror()), members=members), root)
    one_line(caught.value, f"{path}: not the official file (")
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
    assert tree(root) == before
    assert server.seen == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=module.SLACK + len(GOOD) - HALF))
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


@pytest.mark.parametrize(
    ("code", "says"), [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "disk is full"), (errno.EIO, "cannot be written")]
)
def test_disk_full_while_fetching(server, root, monkeypatch, code, says):
    download = published(server.add(Mirror()), server.add(Mirror()))
    real = Path.open

    def opened(path, mode="r", *rest, **named):
        file = real(path, mode, *rest, **named)
        return FullDisk(file, 100_000, code) if mode in ("ab", "wb") else file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened)
        with pytest.raises(PerdureError, match=says) as caught:
            fetch(download, root)
    one_line(caught.value)
    assert len(server.seen) == 1  # another mirror has no more room
    assert tree(root) == {"mine.txt": b"mine", PART: GOOD[:100_000]}
    fetch(download, root)
    assert server.asked == [None, "bytes=100000-"]
    assert tree(root) == {"mine.txt": b"mine", "set.bin": GOOD}


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize("case", ["below a file", "a file", "folder forbidden", "lock forbidden"])
def test_impossible_root(server, tmp_path, root, monkeypatch, case):
    before = tree(tmp_path)
    asked = {"below a file": root / "mine.txt" / "root", "a file": root / "mine.txt"}.get(case, root)
    if "forbidden" in case:
        monkeypatch.setattr(*((Path, "mkdir") if case.startswith("folder") else (FileLock, "acquire")), refuse)
    with pytest.raises(PerdureError, match="cannot be written") as caught:
        fetch(published(server.add(Mirror())), asked)
    one_line(caught.value, f"{asked}: ")
    assert tree(tmp_path) == before
    assert server.seen == []


def test_file_in_a_read_only_root_is_found(root, monkeypatch):
    (root / "set.bin").write_bytes(GOOD)
    monkeypatch.setattr(FileLock, "acquire", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert fetch(published(), root) == "already there"


# --- archives ---

ARCHIVE = {"folder": "sub", "members": r"[ab]\.txt|deep/.*", "unpacked": 1000}
A, B = ("a.txt", b"alpha"), ("b.txt", b"beta")
UNPACKED = {"mine.txt": b"mine", "sub": b"(no file)", "sub/a.txt": b"alpha", "sub/b.txt": b"beta"}


def tar(*members: tuple[str, bytes], link: str = "") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
    return packed.getvalue()


def test_archive_that_is_fetched_is_unpacked_and_removed(server, root):
    content = tar(("./a.txt", b"alpha"), ("c.txt", b"unwanted"), ("../b.txt", b"outside"), B, link="elsewhere")
    url = server.add(Mirror(content))
    assert fetch(published(url, content=content, **ARCHIVE), root) == f"fetched from {url}"
    assert tree(root) == UNPACKED
    assert fetch(published(url, content=content, **ARCHIVE), root, is_unpacked=lambda: True) == "already there"
    assert len(server.seen) == 1


def test_archive_put_there_by_hand_is_unpacked_and_kept(server, root):
    content = tar(A, B)
    (root / "set.bin").write_bytes(content)
    (root / ".set.bin.unpacked").mkdir()
    (root / ".set.bin.unpacked/a.txt").write_bytes(b"half")  # left over by a process that was killed
    (root / "sub").mkdir()
    (root / "sub/b.txt").write_bytes(b"beta")
    os.utime(root / "sub/b.txt", (1, 1))
    download = published(server.add(Mirror()), content=content, **ARCHIVE)
    assert fetch(download, root) == f"unpacked from {root / 'set.bin'}"
    assert tree(root) == UNPACKED | {"set.bin": content}
    assert (root / "sub/b.txt").stat().st_mtime == 1  # it was there already
    assert server.seen == []


def test_archive_whose_checksum_is_wrong_is_not_opened(server, root, monkeypatch):
    content = tar(A, B)
    monkeypatch.setattr(tarfile, "open", None)
    with pytest.raises(DownloadError, match="sent a wrong file"):
        fetch(published(server.add(Mirror(content[:-1] + b"x")), content=content, **ARCHIVE), root)


def test_link_is_not_followed_out_of_the_folder(root):
    content = tar(A, link="b.txt")
    (root / "set.bin").write_bytes(content)
    before = tree(root)
    with pytest.raises(tarfile.FilterError):
        fetch(published(content=content, **ARCHIVE), root)
    assert tree(root) == before


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
    one_line(caught.value, f"{target}: ")
    assert tree(root) == before | ({PART: content} if way == "fetched" else {})
    target.rmdir() if other is None else target.unlink()
    fetch(download, root)  # without asking again for what is here
    assert {name: value for name, value in tree(root).items() if name != "set.bin"} == UNPACKED
    assert len(server.seen) == (way == "fetched")


def test_disk_full_while_unpacking_leaves_the_archive_for_the_next_time(server, root, monkeypatch):
    content = tar(A, B)
    download = published(server.add(Mirror(content)), content=content, **ARCHIVE)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(tarfile, "copyfileobj", full)
        with pytest.raises(PerdureError, match="disk is full") as caught:
            fetch(download, root)
    one_line(caught.value)
    assert tree(root) == {"mine.txt": b"mine", PART: content}
    assert fetch(download, root) == "fetched from an earlier download"
    assert tree(root) == UNPACKED
