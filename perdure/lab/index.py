"""All runs of a store: listed in a moment however many there are, found by the beginning of a hash, removed.

What each record comes to is kept in an index, `.index.json`, beside the runs. It saves time and nothing else: it is
made anew when it is gone, damaged or of another schema, and done without where it cannot be written. No torch here.
"""

import json
import os
import re
import shutil
import tomllib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from perdure import registry
from perdure.errors import CorruptFile, PerdureError, UnknownName, WrongValue
from perdure.lab import store

INDEX = ".index.json"
SCHEMA = [3, store.SCHEMA]  # of the index, and of the records that were read for it

State = Literal["finished", "unfinished", "failed", "damaged", "newer"]
STATES: tuple[State, ...] = ("finished", "unfinished", "failed", "damaged", "newer")


class Row(NamedTuple):
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


class Seen(NamedTuple):
    """What a file looked like when it was read."""

    file: str
    mtime_ns: int
    size: int


Index = dict[str, tuple[Seen, Row]]


# --- listing ---


def runs(root: Path) -> list[Row]:
    """Every run of a store, by benchmark, method and seed. Only what is new or changed since the last time is read."""
    before = _read_index(root)
    now: Index = {}
    rows, changed = [], False
    for path in _candidates(root):
        if isinstance(path, Row):  # a folder that cannot be read
            rows.append(path)
            continue
        seen = _seen(f"{root}/{path}")
        if seen is None:
            continue
        known = before.get(path)
        if known is None or known[0] != seen:
            known, changed = (seen, _read(root, path, seen)), True
        now[path] = known
        rows.append(known[1])
    if changed or len(now) != len(before):
        _write_index(root, now)
    return sorted(rows, key=lambda row: (str(row.benchmark), str(row.method), str(row.seed).rjust(9), row.path))


def chosen(rows: Sequence[Row], words: Iterable[str]) -> list[Row]:
    """Those of these methods, of these benchmarks and in these states, by whichever of the three each word is."""
    methods, benchmarks, states = set(), set(), set()
    known_methods = {*registry.methods, *(row.method for row in rows if row.method)}
    known_benchmarks = {*registry.benchmarks, *(name for row in rows for name in _benchmark_names(row))}
    for word in words:
        if word in STATES:
            states.add(word)
        elif word in known_methods:
            methods.add(word)
        elif word in known_benchmarks:
            benchmarks.add(word)
        else:
            raise UnknownName("method, benchmark or state", word, known_methods | known_benchmarks | set(STATES))
    return [
        row
        for row in rows
        if (not methods or row.method in methods)
        and (not benchmarks or benchmarks & _benchmark_names(row))
        and (not states or row.state in states)
    ]


def _benchmark_names(row: Row) -> set[str]:
    """folder:some/photos is also known as folder, and as folder-photos, the name of its index."""
    full = row.benchmark or ""
    return {full, full.partition(":")[0], row.path.partition("/")[0]} - {""}


def _candidates(root: Path) -> Iterator[str | Row]:
    """What may be a run, by its place and name alone: benchmark/method/hash."""
    for benchmark in _folders(str(root), ""):
        for method in [benchmark] if isinstance(benchmark, Row) else _folders(str(root), benchmark):
            if isinstance(method, Row):
                yield method
                continue
            for run in _folders(str(root), method):
                if isinstance(run, Row) or _is_digest(run.rpartition("/")[2]):
                    yield run


def _folders(root: str, below: str) -> Iterator[str | Row]:
    place = f"{root}/{below}" if below else root
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_dir():
                    yield f"{below}/{entry.name}" if below else entry.name
    except FileNotFoundError:  # removed in this moment, or a store that was never made
        return
    except OSError as error:
        if not below:
            raise PerdureError(
                f"{place}: cannot be read ({error.strerror}); name a folder of runs with --out"
            ) from None
        yield Row(below, "damaged", problem=f"{place}: cannot be read ({error.strerror}); check that you may read it")


def _is_digest(name: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{16}", name) is not None


def _seen(place: str) -> Seen | None:
    """What tells of a run: its record, why it failed, its specification or its checkpoints; None if there is none."""
    for file in ("record.json", "failed.json", "spec.toml", "checkpoint"):
        try:
            found = os.stat(f"{place}/{file}")  # noqa: PTH116 — ten thousand of these; a Path each would double the time
        except OSError:
            continue
        return Seen(file, found.st_mtime_ns, found.st_size)
    return None


def _read(root: Path, path: str, seen: Seen) -> Row:
    benchmark, method, _ = path.split("/")
    if seen.file == "record.json":
        try:
            record = store.read_record(root / path)
            if record is None:  # removed in this moment
                return Row(path, "unfinished", method, benchmark)
            return _finished(root, path, record, seen)
        except CorruptFile as error:
            return Row(path, "damaged", method, benchmark, problem=f"{error}; run it again")
        except PerdureError as error:
            return Row(path, "newer", method, benchmark, problem=str(error))
    asked: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        if seen.file == "failed.json":
            asked = json.loads((root / path / "failed.json").read_text("utf-8"))
        if seen.file == "spec.toml":
            asked = tomllib.loads((root / path / "spec.toml").read_text("utf-8"))
    names = {"method": method, "benchmark": benchmark} | {name: asked[name] for name in NAMES if name in asked}
    if seen.file == "failed.json":
        return Row(path, "failed", **names, problem=f"{root / path}: {asked.get('error', 'not said why')}")
    return Row(path, "unfinished", **names)


NAMES = ("method", "benchmark", "network", "seed", "tasks", "outliers")


def _finished(root: Path, path: str, record: dict[str, Any], seen: Seen) -> Row:
    try:
        known = {name: record[name] for name in ("method", "benchmark", "network", "seed", "acc", "bwt", "seconds")}
        finished = round(seen.mtime_ns / 1e9, 3)
        counted = {
            "tasks": len(record["accuracy_matrix"][-1]),
            "outliers": record.get("outliers"),
            "finished": finished,
        }
        return Row(path, "finished", **known | counted)
    except (KeyError, TypeError, IndexError):
        place = root / path / "record.json"
        raise CorruptFile(f"{place}: not a record of a run", place) from None


def flattened(content: Mapping[str, Any]) -> dict[str, Any]:
    """Groups in one row, and what is neither number nor word as text.

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
    """What was known the last time; nothing at all if any of it is in doubt."""
    try:
        content = (root / INDEX).read_bytes()
        body = content[len(_HEAD % 0) : -2]
        if content != _HEAD % zlib.crc32(body) + body + b"}\n":
            return {}
        index = json.loads(body)
        if index["schema"] != SCHEMA:
            return {}
        return {row[0]: (Seen(*seen), Row(*row)) for seen, row in index["runs"]}
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return {}


def _write_index(root: Path, index: Index) -> None:
    body = json.dumps({"schema": SCHEMA, "runs": list(index.values())}, ensure_ascii=False).encode()
    with suppress(PerdureError):  # a store that may only be read is read without
        store.write(root / INDEX, _HEAD % zlib.crc32(body) + body + b"}\n")


# --- one run ---


def looks_like_run(path: Path) -> bool:
    """Whether a directory is named as a run is and holds what a run leaves."""
    return _is_digest(path.name) and path.is_dir() and _seen(str(path)) is not None


def find(root: Path, name: str) -> Path:
    """The directory of a run by its path, by its path below the store, or by a unique beginning of its hash."""
    for path in (Path(name), root / name):
        if name and looks_like_run(path):
            return path
    begins = (path for path in _candidates(root) if isinstance(path, str) and path.rpartition("/")[2].startswith(name))
    found = sorted(root / path for path in begins if name and looks_like_run(root / path))
    if not found:
        raise WrongValue(f"no run {name!r} in {root}; `perdure ls runs --out {root}` lists those there are")
    if len(found) > 1:
        some = ", ".join(str(path) for path in found[:3]) + (", …" if len(found) > 3 else "")
        raise WrongValue(f"{len(found)} runs begin with {name!r} ({some}); write more of the hash, or the path")
    return found[0]


def remove(root: Path, path: Path) -> None:
    """Remove a run, whole or not at all; only if it is one, lies in the store and nobody is at work on it."""
    place = _own_place(root, path)
    with store.hold(root, root / place):
        run = root / place
        if not looks_like_run(run):
            raise WrongValue(f"{path}: not the directory of a run; nothing was removed")
        aside = run.with_name(f".removed-{run.name}")
        _sweep(run.parent)
        try:
            run.rename(aside)  # in one moment: half a run would look like a damaged one
        except OSError as error:
            raise PerdureError(f"cannot remove {run}: {error.strerror}; check that you may") from None
        _sweep(run.parent)
        if aside.exists():
            raise PerdureError(f"{run} is no run any more, but files of it are left in {aside}; remove them yourself")
        for folder in (run.parent, run.parent.parent):
            with suppress(OSError):  # other runs are in it
                folder.rmdir()


def _sweep(folder: Path) -> None:
    """Remove the files of removed runs, also of one whose removal was cut short."""
    for aside in folder.glob(".removed-*"):
        shutil.rmtree(aside, ignore_errors=True)


def _own_place(root: Path, path: Path) -> Path:
    """Where a run lies below the store, by real folders all the way."""
    real_root = root.resolve()
    try:
        place = (path.parent.resolve() / path.name).relative_to(real_root)
    except ValueError:
        place = None
    if place is None or len(place.parts) != 3 or any(part.startswith(".") for part in place.parts):
        raise WrongValue(f"{path}: not a run of the store {root}; name its store with --out")
    if path.is_symlink():
        raise WrongValue(f"{path}: a link, not a run; remove the link yourself, or the run it leads to")
    return place
