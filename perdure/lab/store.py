"""One directory per run, named by the hash of what changes its numbers; plain files, written whole or not at all.

runs/<benchmark>/<method>/<hash>/
    spec.toml           what was asked for
    record.json         the results; there only when the run is finished
    epochs.jsonl        a line per epoch
    model.safetensors   weights and the method's own state in the end
    failed.json         why it failed; gone when it is tried again
    checkpoint/         while it is not finished: the latest states, to resume from
    snapshots/          the method after each task, where asked for
    probes/             measurements made of the finished model
    matrix.png, curves.png   pictures, see `pictures.py`
"""

import errno
import json
import os
import re
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from filelock import FileLock, Timeout

from perdure import files
from perdure.errors import CorruptFile, PerdureError, RunLocked
from perdure.lab.saved import S, SavedProbe, SavedRecord, check

SCHEMA = 1  # of record.json
FILES = ("spec.toml", "epochs.jsonl", "model.safetensors")  # that a finished run must have besides
LARGEST = 2**36  # bytes of a model or an array
_PART = re.compile(r"\.(?!failed\.).+\.(json|jsonl|toml|safetensors)\.[a-z0-9_]{8}")


def run_directory(root: Path, benchmark: str, method: str, digest: str) -> Path:
    return root / benchmark / method / digest


# --- writing ---


@contextmanager
def atomic_write(path: Path, advice: str = "choose another place with --out") -> Iterator[Path]:
    """A temporary file to fill, which replaces `path` once all of it is on the disk: nobody ever sees half a file.

    `advice` ends the error, should it not be possible.
    """
    part: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            part = Path(file.name)
        yield part
        with part.open("rb") as file:
            os.fchmod(file.fileno(), 0o644)  # temporary files are private, records are not
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        if part is not None:
            part.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        make_room = "make room, or " if error.errno in (errno.ENOSPC, errno.EDQUOT, 0) else ""
        raise PerdureError(f"cannot write {path}: {error.strerror or error}; {make_room}{advice}") from None


def write(path: Path, content: bytes, **how: str) -> None:
    with atomic_write(path, **how) as part:
        part.write_bytes(content)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write(path, (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def write_checked(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Write JSON with a checksum of itself, of what will be read; returns what was written."""
    written = {**content, "check": _check(json.loads(json.dumps(content)))}
    write_json(path, written)
    return written


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write(path, "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows).encode())


def sweep(path: Path) -> None:
    """Remove what writes of a killed process left in a run's directory, which nobody else may be at work on.

    A failure and pictures are written without its lock, so those may be somebody's.
    """
    for folder in (path, *(path / name for name in ("checkpoint", "snapshots", "probes"))):
        with suppress(OSError):  # there is none, or nothing may be changed here
            for part in folder.iterdir():
                if _PART.fullmatch(part.name):
                    part.unlink()


def sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# --- one process at a time ---


@contextmanager
def lock_run(root: Path, path: Path) -> Iterator[None]:
    """Be the only process at work on a run. The system drops the lock of a process that ends, however it ends."""
    locks = root / ".locks"
    name = "-".join(path.relative_to(root).parts)
    worker = locks / f"{name}.worker"  # who has the lock
    lock = FileLock(locks / f"{name}.lock", timeout=0)
    try:
        locks.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        worker.unlink(missing_ok=True)
        worker.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
    except Timeout:
        try:
            who = files.read_bytes(worker, 1000).decode().strip()
        except (OSError, ValueError):
            who = "another process"
        raise RunLocked(f"{path}: {who} is at work on it; wait for it, or stop it") from None
    except OSError as error:
        lock.release()
        place = error.filename or locks
        raise PerdureError(f"cannot write {place}: {error.strerror}; choose another place with --out") from None
    try:
        yield
    finally:
        with suppress(OSError):
            worker.unlink(missing_ok=True)
        lock.release()


# --- failed runs ---


def save_failure(path: Path, spec: Mapping[str, Any], error: str) -> None:
    """Write why a run failed into its directory, so that listings tell it from one that was interrupted."""
    write_json(path / "failed.json", {**spec, "error": error})


def clear_failure(path: Path) -> None:
    """Remove what an earlier failure left."""
    with suppress(OSError):  # there is none, or nothing may be changed here
        (path / "failed.json").unlink()


# --- finished runs ---


def finish(path: Path, record: Mapping[str, Any], names: Iterable[str] = FILES) -> dict[str, Any]:
    """Write the record, the last file of a run, with the time, the checksums of the other files and its own."""
    sums = {name: file_sum(path / name) for name in names}
    for name, found in sums.items():
        if not found:
            raise PerdureError(f"{path / name}: gone while the run was at work; run the same command again")
    content = {**record, "finished": now(), "schema": SCHEMA, "files": sums}
    place = path / "record.json"
    check(SavedRecord, json.loads(json.dumps(content)), place, "a record that could be read again")
    return write_checked(place, content)


def read_record(path: Path, thorough: bool = False) -> dict[str, Any] | None:
    """The record of a finished run, or None. Raises CorruptFile if it, or a file it names, is not whole."""
    place = path / "record.json"
    try:
        record = _checked(place, "a record of a run", SCHEMA)
    except FileNotFoundError:
        return None
    check(SavedRecord, record, place, "a record of a run")
    if thorough:
        for name in {**dict.fromkeys(FILES), **record["files"]}:
            if file_sum(file := path / name) != record["files"].get(name):
                raise CorruptFile(f"{file}: damaged or gone, its checksum is not the one in the record", file)
    return record


def read_checked(path: Path, form: type[S], what: str, schema: int) -> S:
    """JSON that `write_checked` wrote, of this form. Raises CorruptFile if it is not whole, or not of it."""
    try:
        return check(form, _checked(path, what, schema), path, what)
    except FileNotFoundError:
        raise CorruptFile(f"{path}: is gone", path) from None


def _checked(path: Path, what: str, schema: int) -> dict[str, Any]:
    try:
        content = files.read_json(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        kind = "a readable " + what.split(" of ")[0].removeprefix("a ")
        raise CorruptFile(f"{path}: not {kind} ({why(error)})", path) from None
    if not isinstance(content, dict) or not isinstance(content.get("schema"), int):
        raise CorruptFile(f"{path}: not {what}", path)
    if content["schema"] > schema:
        raise PerdureError(f"{path}: written by a newer perdure (schema {content['schema']}); update to read it")
    if content.get("check") != _check(content):
        raise CorruptFile(f"{path}: damaged, its checksum is wrong", path)
    return content


def read_probes(path: Path, record: Mapping[str, Any], warn: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Probe results of a finished run. Those of another model are left out, and so are damaged ones: `warn` is called
    with a line about each."""
    model, found = [record["files"].get("model.safetensors")], {}
    for file in sorted((path / "probes").glob("*.json")):
        try:
            content = read_probe(file)
        except CorruptFile as error:
            warn(f"{error}; `perdure probe` measures it again")
        else:
            if content["models"] == model:
                found[file.stem] = content
    return found


def read_probe(file: Path) -> dict[str, Any]:
    """The result of a probe. Raises CorruptFile if its file or that of its arrays is gone or not whole."""
    try:
        content: dict[str, Any] = files.read_json(file)
    except (OSError, ValueError) as error:
        raise CorruptFile(f"{file}: not a readable result of a probe ({why(error)})", file) from None
    check(SavedProbe, content, file, "the result of a probe")
    if content.get("check", _check(content)) != _check(content):  # earlier versions wrote none
        raise CorruptFile(f"{file}: damaged, its checksum is wrong", file)
    arrays = file.with_suffix(".safetensors")
    if content["arrays"] and file_sum(arrays) != content["arrays_sum"]:
        raise CorruptFile(f"{arrays}: damaged or gone, its checksum is not the one in {file.name}", arrays)
    return content


def set_aside(path: Path) -> Path:
    """Rename a damaged file, so that it is neither used nor lost."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    try:
        path.rename(aside)
    except OSError as error:
        raise PerdureError(f"cannot set {path} aside: {error.strerror}; move it away yourself") from None
    return aside


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _check(record: Mapping[str, Any]) -> str:
    content = {name: value for name, value in record.items() if name != "check"}
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def why(error: OSError | ValueError) -> str:
    """What is wrong with a file, in a few words."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return " ".join(str(error).split())[:100]


def file_sum(path: Path) -> str:
    """The checksum of a file; empty if it cannot be read."""
    found = 0
    try:
        with files.open_plain(path, LARGEST) as file:
            while chunk := file.read(1 << 22):
                found = zlib.crc32(chunk, found)
    except OSError:
        return ""
    return f"{found:08x}"
