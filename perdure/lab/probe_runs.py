"""Probes of several finished runs: which runs, which probes, tables to compare, pictures, and what it would cost."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from perdure import registry
from perdure.errors import CorruptFile, UnknownName, WrongValue
from perdure.lab import index
from perdure.lab.pictures import probe_picture, read_result, save
from perdure.lab.probe_run import (
    OpenRun,
    ProbeSpec,
    RunProgress,
    Speed,
    measure,
    open_run,
    probe_spec,
    save_result,
    timed,
)
from perdure.lab.snapshots import placeholder_snapshots
from perdure.lab.store import lock_run, read_probe, read_probes
from perdure.lab.threads import with_threads
from perdure.ops.statistics import labels
from perdure.report.probes import Result
from perdure.schema import values_of


@dataclass(frozen=True)
class FinishedRun:
    """A run, and what tells it from the others."""

    path: Path
    record: dict[str, Any]
    label: str

    @property
    def store(self) -> Path:
        return self.path.parents[2]


@dataclass(frozen=True)
class ProbeReport:
    """What one probe found: a result for each run, or a single one where it measures runs together."""

    name: str
    key: str  # names its files; the probe's name, and a hash where values are not the defaults
    results: list[Result]
    pictures: list[Path]


def probe(
    probes: str | Sequence[str],
    runs: str | Path | Sequence[str | Path],
    *,
    values: Mapping[str, Any] | None = None,
    out: str | Path = "runs",
    root: str | Path | None = None,
    device: str = "cpu",
    code: str | Path | Sequence[str | Path] = (),
    pictures: bool = True,
    progress: RunProgress | None = None,
) -> list[ProbeReport]:
    """Measure finished runs, and return a report per probe: what `perdure probe` does.

    Runs are given by path, by the beginning of a hash, or by method and benchmark names, which select all finished
    runs of the store `out` that fit. `values` sets values of the probes: "steps" of all that have it, "pgd.steps" of
    one; `my.py:Mine` is a probe of yours. Runs of a method of yours need its file: name it in `code`, or name the
    method among `runs`. Results, and pictures unless unwanted, are saved with the runs; what was measured before is
    not measured again.

    >>> import tempfile
    >>> from perdure.lab.run import run
    >>> out = tempfile.mkdtemp()
    >>> record = run("gpm", "synthetic", tasks=2, plan={"epochs": 1}, out=out)
    >>> (report,) = probe("fgsm", ["gpm", "synthetic"], out=out, pictures=False)
    >>> report.results[0].label
    'gpm, seed 1'
    """
    progress = progress or RunProgress()
    registry.allow_all(code)
    found, wanted = select_runs(runs, Path(out)), select_probes(probes, values or {})
    session = Session(None if root is None else Path(root), device, progress)
    alone = [one for one in wanted if not _across(one)]
    for run in found if alone else ():
        with session.open([run]) as (opened,):
            again = progress.training(f"{run.label}, trained again", len(run.record["accuracy_matrix"]))
            measure(opened, alone, again, f"{run.label}: ")
    reports = []
    for one in wanted:
        compared = _compared(one, found)
        if _across(one):
            results = [_measure_across(session, found, one, compared)]
            drawn = {compared: results}
        else:
            files = [run.path / "probes" / f"{one.key}.json" for run in found]
            results = [read_result(file, run.label) for file, run in zip(files, found, strict=True)]
            drawn = {file: [result] for file, result in zip(files, results, strict=True)}
            drawn |= {compared: results} if len(found) > 1 else {}
        wished: dict[Path, Any] = {}
        for file, shown in drawn.items() if pictures else ():
            wished |= probe_picture(one.name, file, partial(list, shown))
        reports.append(ProbeReport(one.name, one.key, results, save(wished, progress.warn)))
    return reports


def forecast(
    probes: str | Sequence[str],
    runs: str | Path | Sequence[str | Path],
    *,
    values: Mapping[str, Any] | None = None,
    out: str | Path = "runs",
    root: str | Path | None = None,
    device: str = "cpu",
    code: str | Path | Sequence[str | Path] = (),
) -> list[dict[str, Any]]:
    """How long `probe` would take with the same arguments, from the time of a batch here: a row per run and probe.

    What is measured already takes no time, and `note` says so.
    """
    registry.allow_all(code)
    found, wanted = select_runs(runs, Path(out)), select_probes(probes, values or {})
    session = Session(None if root is None else Path(root), device, RunProgress())
    rows = [row for run in found for row in _costs(session, run, [one for one in wanted if not _across(one)])]
    for one in wanted:
        if _across(one):
            with session.open(_two_or_more(found, one)) as opened:
                subjects = [run.subject for run in opened]
                work = one.build(opened[0].stream).cost_across(subjects)
                rows.append(_cost("all together", one, work, Speed(subjects[0])))
    return rows


# --- what is asked for ---


def select_runs(words: str | Path | Sequence[str | Path], out: Path) -> list[FinishedRun]:
    """Finished runs by path or hash, and those of the methods and benchmarks that are named."""
    names = [str(word) for word in ([words] if isinstance(words, str | Path) else words)]
    names = [registry.own_name(name) for name in names]
    kinds = [name for name in names if name in registry.methods or name in registry.benchmarks]
    paths = [_find(name, out) for name in names if name not in kinds]
    if kinds:
        paths += [out / row.path for row in index.runs(out, [*kinds, "finished"])]
    records = {path: index.read_finished(path, thorough=True) for path in dict.fromkeys(paths)}
    if not records:
        what = f"no finished run of {' and '.join(kinds)} in {out}" if kinds else "name at least one run"
        raise WrongValue(f"{what}; `perdure ls runs --out {out}` lists those there are")
    return [FinishedRun(*pair, label) for pair, label in zip(records.items(), run_labels(records), strict=True)]


def _find(name: str, out: Path) -> Path:
    try:
        return index.find_run(out, name)
    except WrongValue:
        if "/" in name or set(name) <= set("0123456789abcdef"):
            raise
        raise UnknownName("probe or run", name, registry.probes) from None


def run_labels(records: Mapping[Path, dict[str, Any]]) -> list[str]:
    """What tells runs apart: method, values where they differ, seed; the hash where that is not enough."""
    found = [
        f"{record['method']}{f' ({label})' if label else ''}, seed {record['seed']}"
        for record, label in zip(records.values(), labels(list(records.values())), strict=True)
    ]
    return [
        label if found.count(label) == 1 else f"{label}, {path.name[:6]}"
        for label, path in zip(found, records, strict=True)
    ]


def select_probes(words: str | Sequence[str], values: Mapping[str, Any]) -> list[ProbeSpec]:
    """Probes with their values: `steps=50` goes to all that have it, `pgd.steps=50` to one."""
    names = list(dict.fromkeys([words] if isinstance(words, str) else words))
    names = [registry.probes.name(name) for name in names]
    if not names:
        raise WrongValue("name at least one probe; `perdure ls probes` lists them")
    known = {name: values_of(registry.probes.load(name)) for name in names}
    given: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in values.items():
        probe_name, dot, value_name = key.rpartition(".")
        if dot and probe_name not in known:
            raise UnknownName("probe among those named", probe_name, known)
        takers = [probe_name] if dot else [name for name in names if key in known[name]]
        if not takers:
            raise UnknownName(f"value of {' or '.join(names)}", key, {key for own in known.values() for key in own})
        for name in takers:
            given[name][value_name] = value
    return [probe_spec(name, given[name]) for name in names]


def _across(one: ProbeSpec) -> bool:
    return bool(registry.probes.load(one.name).across)


def _two_or_more(runs: Sequence[FinishedRun], one: ProbeSpec) -> Sequence[FinishedRun]:
    if len(runs) < 2:
        raise WrongValue(f"{one.name} compares runs: name two or more")
    return runs


# --- measuring ---


@dataclass(frozen=True)
class Session:
    """Where runs are opened."""

    root: Path | None
    device: str
    progress: RunProgress

    @contextmanager
    def open(self, runs: Sequence[FinishedRun]) -> Iterator[list[OpenRun]]:
        """Runs, locked against other processes, each under the label that tells it apart."""
        where: dict[str, Any] = {"root": self.root, "device": self.device, "progress": self.progress}
        with ExitStack() as locks:
            for run in runs:
                locks.enter_context(lock_run(run.store, run.path))
            opened = [open_run(run.path, run.record, label=run.label, **where) for run in runs]
            locks.enter_context(with_threads(max(run.usual_threads for run in opened)))
            yield opened


def _measure_across(session: Session, runs: Sequence[FinishedRun], one: ProbeSpec, file: Path) -> Result:
    """A probe of several runs together; saved in the store, not with one of the runs."""
    models = [run.record["files"]["model.safetensors"] for run in runs]
    if not _measured(file, models):
        with session.open(_two_or_more(runs, one)) as opened:
            subjects = [run.subject for run in opened]
            probe = one.build(opened[0].stream)
            work, speed = probe.cost_across(subjects), Speed(subjects[0])
            name = f"{len(runs)} runs: {one.name}"
            found, facts = timed(name, work, speed, session.progress, lambda: probe.measure_across(subjects))
        of = [{"label": run.label, "path": str(run.path)} for run in runs]
        save_result(file, one, found, {**facts, "models": models, "runs": of})
    return read_result(file, " | ".join(run.label for run in runs))


def _measured(file: Path, models: Sequence[str]) -> bool:
    """Whether a file holds a result of these models."""
    try:
        return bool(read_probe(file)["models"] == list(models))
    except CorruptFile:
        return False


def _compared(one: ProbeSpec, runs: Sequence[FinishedRun]) -> Path:
    """The file of what compares several runs, in the store of the first."""
    names = blake2b(" ".join(run.path.name for run in runs).encode(), digest_size=4).hexdigest()
    return runs[0].store / "compared" / f"{one.key}-{names}.json"


# --- what it would cost ---


def _costs(session: Session, run: FinishedRun, wanted: Sequence[ProbeSpec]) -> Iterator[dict[str, Any]]:
    known = read_probes(run.path, run.record)
    with session.open([run]) as (opened,):
        speed, method = Speed(opened.subject), opened.subject.method
        snapshots = placeholder_snapshots(method, run.record["accuracy_matrix"])
        subject = replace(opened.subject, snapshots=snapshots, clean=opened.stream.tasks)
        for one in wanted:
            yield _cost(run.label, one, one.build(opened.stream).cost(subject), speed, one.key in known)


def _cost(run: str, one: ProbeSpec, work: Any, speed: Speed, known: bool = False) -> dict[str, Any]:
    forwards, gradients = astuple(work)
    seconds, note = (0.0, "measured already") if known else (speed.seconds(work), "")
    count = {"forwards": forwards, "gradients": gradients}
    return {"run": run, "probe": one.name, **count, "seconds": seconds, "note": note}
