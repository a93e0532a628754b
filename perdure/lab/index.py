"""The runs of a store: listed, found by the beginning of a hash, removed.

A line per run is cached in an index, `.index.json`, beside the runs, so that ten thousand are listed in a moment. It is
made anew when it is gone, damaged or of another schema, and left out where it cannot be written. No torch here.
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, Field

from perdure import files, registry
from perdure.data.paths import one_line
from perdure.errors import CorruptFile, PerdureError, UnknownName, WrongValue, short
from perdure.lab import store
from perdure.lab.saved import SavedFailure, SavedSpec

INDEX = ".index.json"
LARGEST_INDEX = 2**30  # bytes; ten thousand runs have three millions
SCHEMA = [5, store.SCHEMA]  # of the index, and of the records that were read for it

State = Literal["finished", "unfinished", "failed", "damaged", "newer"]
STATES: tuple[State, ...] = get_args(State)
DIGEST = re.compile(r"[0-9a-f]{16}")
NAMES = ("method", "benchmark", "network", "seed")


class RunSummary(NamedTuple):
    """A run in a line; what is not known is None."""

    path: str  # below the store: benchmark/method/hash
    state: State
    method: str | None = None
    benchmark: str | None = None
    network: str | None = None
    seed: int | None = None
    tasks: int | None = None
    acc: float | None = None
    bwt: float | None = None
    seconds: float | None = None
    finished: float | None = None  # seconds since 1970
    problem: str | None = None  # of one that failed, is damaged or newer
    outliers: str | None = None  # among its training images

    @property
    def digest(self) -> str:
        return self.path.rpartition("/")[2]


class FileStamp(NamedTuple):
    """What a file looked like when it was read."""

    file: str
    mtime_ns: int
    size: int


class IndexFile(BaseModel):
    """What the index holds, besides its checksum."""

    version: list[int] = Field(alias="schema")
    runs: list[tuple[FileStamp, RunSummary]]


Index = dict[str, tuple[FileStamp, RunSummary]]


# --- listing ---


def runs(out: str | Path = "runs", filters: Sequence[str] = ()) -> list[RunSummary]:
    """The runs of a store, by benchmark, method and seed: what `perdure ls runs` lists.

    Each filter is a method, a benchmark or a state (finished, unfinished, failed, damaged, newer). Records are read
    only if they are new or changed since the last time.

    >>> runs("nowhere", ["rcl", "six", "finished"])
    []
    """
    root = Path(out)
    before = _read_index(root)
    now: Index = {}
    paths, unreadable = _scan(root)
    for path in paths:
        if (stamp := _stamp(f"{root}/{path}")) is not None:
            known = before.get(path)
            now[path] = known if known is not None and known[0] == stamp else (stamp, _read(root, path, stamp))
    if now != before:
        _write_index(root, now)
    rows = [*unreadable, *(row for _, row in now.values())]
    rows.sort(key=lambda row: (str(row.benchmark), str(row.method), str(row.seed).rjust(9), row.path))
    return _filtered(rows, filters)


def _filtered(rows: list[RunSummary], filters: Sequence[str]) -> list[RunSummary]:
    known = {
        "method": {*registry.methods, *(row.method for row in rows if row.method)},
        "benchmark": {*registry.benchmarks, *(name for row in rows for name in _benchmark_names(row))},
        "state": {*STATES},
    }
    wanted: dict[str, set[str]] = {kind: set() for kind in known}
    for word in filters:
        kind = next((kind for kind in ("state", "method", "benchmark") if word in known[kind]), None)
        if kind is None:
            raise UnknownName("method, benchmark or state", word, set().union(*known.values()))
        wanted[kind].add(word)
    return [
        row
        for row in rows
        if (not wanted["method"] or row.method in wanted["method"])
        and (not wanted["benchmark"] or wanted["benchmark"] & _benchmark_names(row))
        and (not wanted["state"] or row.state in wanted["state"])
    ]


def _benchmark_names(row: RunSummary) -> set[str]:
    """folder:some/photos is also known as folder, and as folder-photos, the name of its directory."""
    full = row.benchmark or ""
    return {full, full.partition(":")[0], row.path.partition("/")[0]} - {""}


def _scan(root: Path) -> tuple[list[str], list[RunSummary]]:
    """Directories placed and named as runs are, benchmark/method/hash, and folders that cannot be read."""
    level, unreadable = [""], []
    for _ in range(3):
        found: list[str] = []
        for parent in level:
            place = f"{root}/{parent}" if parent else str(root)
            try:
                with os.scandir(place) as entries:
                    names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
            except FileNotFoundError:  # removed in this moment, or a store that was never made
                continue
            except OSError as error:
                problem = f"{place}: cannot be read ({error.strerror}); "
                if not parent:
                    raise PerdureError(f"{problem}name a folder of runs with --out") from None
                unreadable.append(RunSummary(parent, "damaged", problem=f"{problem}check that you may read it"))
                continue
            found += [f"{parent}/{name}" if parent else name for name in names]
        level = found
    return [path for path in level if DIGEST.fullmatch(path.rpartition("/")[2])], unreadable


def _stamp(place: str) -> FileStamp | None:
    """Of the file that tells most: record, failure, specification or checkpoints; None if there is none of them."""
    for file in ("record.json", "failed.json", "spec.toml", "checkpoint"):
        try:
            found = os.stat(f"{place}/{file}")  # noqa: PTH116 — ten thousand of these; a Path each would double the time
        except OSError:
            continue
        return FileStamp(file, found.st_mtime_ns, found.st_size)
    return None


def _read(root: Path, path: str, stamp: FileStamp) -> RunSummary:
    """A run in a line, whatever its files hold; nothing in it breaks the line."""
    row = _summary(root, path, stamp)
    texts = {name: getattr(row, name) for name in ("method", "benchmark", "network", "problem", "outliers")}
    escaped: dict[str, Any] = {name: one_line(text) for name, text in texts.items() if text and not text.isprintable()}
    return row._replace(**escaped)


def _summary(root: Path, path: str, stamp: FileStamp) -> RunSummary:
    benchmark, method, _ = path.split("/")
    place = root / path
    if stamp.file == "record.json":
        try:
            record = store.read_record(place)
            if record is None:  # removed in this moment
                return RunSummary(path, "unfinished", method, benchmark)
            return _finished(path, record, stamp)
        except CorruptFile as error:
            return RunSummary(path, "damaged", method, benchmark, problem=f"{error}; run it again")
        except PerdureError as error:
            return RunSummary(path, "newer", method, benchmark, problem=str(error))
    if stamp.file == "failed.json":
        failure = SavedFailure()
        with suppress(OSError, ValueError):
            failure = SavedFailure.model_validate(files.read_json(place / stamp.file))
        return RunSummary(path, "failed", **_asked(failure, method, benchmark), problem=f"{place}: {failure.error}")
    spec = SavedSpec()
    with suppress(OSError, ValueError):
        spec = SavedSpec.model_validate(files.read_toml(place / stamp.file))
    return RunSummary(path, "unfinished", **_asked(spec, method, benchmark))


def _asked(spec: SavedSpec, method: str, benchmark: str) -> dict[str, Any]:
    """What a file says of a run; where it does not, the names of its folders."""
    said = {name: getattr(spec, name) for name in (*NAMES, "tasks", "outliers")}
    return {**said, "method": spec.method or method, "benchmark": spec.benchmark or benchmark}


def _finished(path: str, record: dict[str, Any], stamp: FileStamp) -> RunSummary:
    known = {name: record[name] for name in (*NAMES, "acc", "bwt", "seconds")}
    tasks = len(record["accuracy_matrix"][-1])
    # Records of earlier versions do not say when they were written: their files do.
    finished = _seconds(record["finished"]) if record.get("finished") else round(stamp.mtime_ns / 1e9, 3)
    return RunSummary(path, "finished", **known, tasks=tasks, finished=finished, outliers=record.get("outliers"))


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def flattened(content: Mapping[str, Any]) -> dict[str, Any]:
    """Nested groups as one row; what is neither number nor text becomes JSON text.

    >>> flattened({"seed": 1, "values": {"radius": 0.1, "sizes": [2, 3]}})
    {'seed': 1, 'values.radius': 0.1, 'values.sizes': '[2, 3]'}
    """
    row: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            row |= {f"{name}.{inner}": found for inner, found in flattened(value).items()}
        else:
            row[name] = value if isinstance(value, bool | int | float | str | None) else json.dumps(value)
    return row


# --- the index ---

# The checksum is of the bytes that follow it, so that checking ten thousand rows takes a millisecond.
_HEAD = b'{"check": "%08x", "index": '


def _read_index(root: Path) -> Index:
    """The index as it was written last; empty if any of it is in doubt."""
    try:
        content = files.read_bytes(root / INDEX, LARGEST_INDEX)
        body = content[len(_HEAD % 0) : -2]
        if content != _HEAD % zlib.crc32(body) + body + b"}\n":
            return {}
        index = IndexFile.model_validate(files.parse_json(body))
    except (OSError, ValueError):
        return {}
    return {row.path: (stamp, row) for stamp, row in index.runs} if index.version == SCHEMA else {}


def _write_index(root: Path, index: Index) -> None:
    body = json.dumps({"schema": SCHEMA, "runs": list(index.values())}).encode()
    with suppress(PerdureError):  # a store that may only be read is read without
        store.write(root / INDEX, _HEAD % zlib.crc32(body) + body + b"}\n")


# --- one run ---


def is_run(path: Path) -> bool:
    """Whether a directory is named as a run is and holds what a run leaves."""
    return DIGEST.fullmatch(path.name) is not None and path.is_dir() and _stamp(str(path)) is not None


def read_summary(path: Path) -> RunSummary:
    """The line about one run, finished or not."""
    place = path.resolve()
    stamp = _stamp(str(place)) or FileStamp("checkpoint", 0, 0)
    return _read(place.parents[2], "/".join(place.parts[-3:]), stamp)


def find_run(root: Path, name: str) -> Path:
    """The directory of a run by its path, by its path below the store, or by a unique beginning of its hash."""
    for path in (Path(name), root / name):
        if name and is_run(path):
            return path
    begin = [root / path for path in _scan(root)[0] if name and path.rpartition("/")[2].startswith(name)]
    found = sorted(path for path in begin if is_run(path))
    if not found:
        raise WrongValue(f"no run {short(name)!r} in {root}; `perdure ls runs --out {root}` lists those there are")
    if len(found) > 1:
        some = ", ".join(str(path) for path in found[:3]) + (", …" if len(found) > 3 else "")
        raise WrongValue(f"{len(found)} runs begin with {short(name)!r} ({some}); write more of the hash, or the path")
    return found[0]


def read_finished(path: Path, thorough: bool = False) -> dict[str, Any]:
    """The record of a run that must be finished and whole."""
    try:
        record = store.read_record(path, thorough)
    except CorruptFile as error:
        raise PerdureError(f"{error}; run it again") from None
    if record is None:
        raise PerdureError(f"{path}: not finished yet; run the command that began it again to resume")
    return record


def remove_run(root: Path, path: Path) -> None:
    """Remove a run, whole or not at all; only if it is one, lies in the store and nobody is at work on it."""
    run = root / _below_store(root, path)
    with store.lock_run(root, run):
        if not is_run(run):
            raise WrongValue(f"{path}: not the directory of a run; nothing was removed")
        aside = run.with_name(f".removed-{run.name}")
        _delete_removed(run.parent)
        try:
            run.rename(aside)  # in one moment: half a run would look like a damaged one
        except OSError as error:
            raise PerdureError(f"cannot remove {run}: {error.strerror}; check that you may") from None
        _delete_removed(run.parent)
        if aside.exists():
            raise PerdureError(f"{run} is no run any more, but files of it are left in {aside}; remove them yourself")
        for folder in (run.parent, run.parent.parent):
            with suppress(OSError):  # other runs are in it
                folder.rmdir()


def _delete_removed(folder: Path) -> None:
    """Delete the files of removed runs, also of one whose removal was cut short."""
    for aside in folder.glob(".removed-*"):
        shutil.rmtree(aside, ignore_errors=True)


def _below_store(root: Path, path: Path) -> Path:
    """Where a run lies below the store, by real folders all the way."""
    try:
        place = (path.parent.resolve() / path.name).relative_to(root.resolve())
    except ValueError:
        place = Path()
    if len(place.parts) != 3 or any(part.startswith(".") for part in place.parts):
        raise WrongValue(f"{path}: not a run of the store {root}; name its store with --out")
    if path.is_symlink():
        raise WrongValue(f"{path}: a link, not a run; remove the link yourself, or the run it leads to")
    return place
