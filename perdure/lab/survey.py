"""Which runs of a study are done already, and which cannot be done."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure import registry
from perdure.errors import CorruptFile, PerdureError, WrongValue
from perdure.lab.build import build, open_clean
from perdure.lab.probe_run import probe_spec
from perdure.lab.spec import RunSpec
from perdure.lab.store import read_probes, read_record, run_directory, write_json
from perdure.methods.method import Method
from perdure.types import Stream


@dataclass(frozen=True)
class Planned:
    """A run of a study as it stands before anything is computed."""

    spec: RunSpec
    path: Path | None = None  # its directory; None where its data cannot be read
    lessons: int = 1
    record: dict[str, Any] | None = None  # if it is done
    error: str = ""  # why it cannot be done


def survey(specs: Sequence[RunSpec], *, out: Path, root: Path | None, probes: Sequence[str]) -> list[Planned]:
    """Output at every run's directory. Data are opened once for all runs that share them, and not kept."""
    streams: dict[str, list[int]] = {}
    for number, spec in enumerate(specs):
        streams.setdefault(data_key(spec), []).append(number)
    found: dict[int, Planned] = {}
    for numbers in streams.values():
        try:
            stream = open_clean(specs[numbers[0]], root)
        except WrongValue:
            raise
        except PerdureError as error:
            found |= {number: Planned(specs[number], error=str(error)) for number in numbers}
            continue
        found |= {number: _look(specs[number], stream, out, probes) for number in numbers}
    planned = [found[number] for number in range(len(specs))]
    _all_apart(planned)
    return planned


def keep_error(planned: Planned, error: str) -> None:
    """Leave word of a failure in the run's directory, beside what it had come to."""
    if planned.path is not None:
        write_json(planned.path / "failed.json", {**planned.spec.plain(), "error": error})


def forget_error(planned: Planned) -> None:
    """Of a run that is done, an earlier failure is of no interest."""
    if planned.path is not None:
        with suppress(OSError):  # there is none, or nothing may be changed here
            (planned.path / "failed.json").unlink()


def _look(spec: RunSpec, stream: Stream, out: Path, probes: Sequence[str]) -> Planned:
    path = run_directory(out, spec.benchmark_dir, spec.method, spec.digest(stream.fingerprint))
    lessons = lessons_of(spec, stream)
    try:
        record = read_record(path)
    except CorruptFile:  # whoever does the run sets it aside
        return Planned(spec, path, lessons)
    except PerdureError as error:
        return Planned(spec, path, lessons, error=str(error))
    wanted = {probe_spec(probe).key for probe in probes}
    if record is None or not wanted <= (measured := read_probes(path, record)).keys():
        return Planned(spec, path, lessons)
    return Planned(spec, path, lessons, {**record, "probes": measured, "path": str(path)})


def lessons_of(spec: RunSpec, stream: Stream) -> int:
    """How many lessons a run has: one per task, unless the method sees to that itself."""
    if registry.methods.load(spec.method).lessons is Method.lessons:
        return len(stream)
    return sum(1 for _ in build(spec, stream).lessons(stream))


def data_key(spec: RunSpec) -> str:
    """Runs with one key see the same data, but for outliers."""
    return json.dumps([spec.benchmark, spec.seed, spec.tasks, spec.settings], sort_keys=True)


def _all_apart(planned: Sequence[Planned]) -> None:
    """Two names for one folder of images make one run of two."""
    seen: dict[Path, RunSpec] = {}
    for one in planned:
        if one.path is None:
            continue
        if one.path in seen:
            twins = f"{seen[one.path].benchmark} and {one.spec.benchmark}"
            raise WrongValue(f"{twins} are the same images under the same name; leave one of them out of the study")
        seen[one.path] = one.spec
