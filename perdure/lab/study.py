"""Studies: `study` does the runs of a grid that are not done, several at a time, and compares methods over seeds."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from perdure import registry
from perdure.errors import CorruptFile, Interrupted, PerdureError, UnknownName, WrongValue
from perdure.files import read_bytes
from perdure.lab import index
from perdure.lab.build import BenchmarkFunction, count_lessons, open_clean
from perdure.lab.estimate import RunCost, estimate_runs, parallel_seconds
from perdure.lab.execute.job import Event, Executor, Job
from perdure.lab.executors import make_executor, stop_on_signal
from perdure.lab.fact_tables import FACT_TABLES
from perdure.lab.paper import Comparison, compare_with_paper
from perdure.lab.pictures import study_tables, write_study
from perdure.lab.spec import RunSpec
from perdure.lab.store import clear_failure, read_probes, read_record, run_directory, save_failure
from perdure.lab.study_file import Study, in_memory, probe_keys, read, rows
from perdure.methods.method import Method
from perdure.nets.network import Backbone
from perdure.ops.statistics import CONFIDENCE, DDOF, Difference, Group, differences, groups, headlines
from perdure.report.table import Table, as_text
from perdure.types import Stream

FIGURES = ("acc", "bwt", "learning_accuracy", "forgetting", "seconds")


@dataclass
class StudyRun:
    """A run of a study and how far it is."""

    spec: RunSpec
    path: Path | None = None  # its directory; None where its data cannot be read
    lessons: int = 1
    state: Literal["waiting", "done", "failed", "stopped"] = "waiting"
    record: dict[str, Any] | None = None  # once it is done
    error: str = ""  # why it is not
    computed: bool = False  # now, not before
    row: str = ""  # what tables call it, where the study has a name for it
    wanted: bool = True  # now, and not by a later call

    def plain(self) -> dict[str, Any]:
        """The run as JSON has it."""
        spec, record = self.spec, self.record or {}
        asked = {"method": spec.method, "benchmark": spec.benchmark, "network": spec.network, "seed": spec.seed}
        state = {"state": self.state, "computed": self.computed, "error": self.error or None}
        return {**asked, "values": spec.values, **state, **{name: record.get(name) for name in (*FIGURES, "path")}}

    @property
    def minutes(self) -> float | None:
        """Of training and evaluation, as the authors time their runs; None where either is not known."""
        spent = [(self.record or {}).get(name) for name in ("seconds", "evaluation_seconds")]
        return None if None in spent else sum(spent) / 60  # type: ignore[arg-type]

    def save_error(self, error: str) -> None:
        """Write the reason of a failure into the run's directory."""
        if self.path is not None:
            save_failure(self.path, self.spec.plain(), error)

    def clear_error(self) -> None:
        """Remove what an earlier failure left."""
        if self.path is not None:
            clear_failure(self.path)


@dataclass(frozen=True)
class StudyPlan:
    """The runs of a study, done or not, and how those that are not will be done."""

    study: Study
    runs: list[StudyRun]
    scale: float
    out: Path
    root: Path | None
    device: str
    on: str
    executor: Executor
    jobs: int | None  # at a time, where that is known
    threads: int  # of each run

    @property
    def folder(self) -> Path:
        """Where its tables and pictures go; those of other numbers of epochs are kept apart."""
        return self.out / "studies" / (self.study.name + ("" if self.scale == 1 else f"-scale-{self.scale:g}"))

    @property
    def to_do(self) -> list[StudyRun]:
        return [run for run in self.runs if run.state == "waiting" and run.wanted]

    @property
    def done(self) -> int:
        return sum(run.state == "done" for run in self.runs)


class StudyCallback:
    """Follows a study; override what is of interest."""

    def on_start(self, plan: StudyPlan) -> None:
        """What is done already is known."""

    def on_event(self, event: Event) -> None:
        """Something happened to run number `event.job` of those that were to do."""

    def on_timed(self, spec: RunSpec) -> None:
        """A dry study has timed such a run."""


@dataclass(frozen=True, repr=False)
class StudyResult:
    """What a study came to. `print` shows its tables; a notebook does without."""

    plan: StudyPlan
    groups: list[Group]  # runs alike but for their seed
    differences: list[Difference]  # paired by seed, from the method that the study names or the first
    measured: list[str]  # names of the figures that probes found
    notes: list[str]  # on data, and on what differs between runs
    paper: list[Comparison]  # with what the paper prints, where the study is one of its tables
    costs: list[RunCost] | None = None  # of what is to do, where nothing was done
    files: list[Path] = field(default_factory=list)  # tables and pictures that were written
    facts: Table | None = None  # instead of runs

    @property
    def runs(self) -> list[StudyRun]:
        return self.plan.runs

    @property
    def failed(self) -> list[StudyRun]:
        return [run for run in self.runs if run.state in ("failed", "stopped")]

    @property
    def seconds(self) -> float:
        """How long the runs to do take at most, one after another."""
        return sum(cost.runs * cost.estimate.run for cost in self.costs or () if cost.estimate)

    @property
    def seconds_in_parallel(self) -> float | None:
        """The same with so many jobs at a time as there are, where that is known."""
        return None if self.plan.jobs is None else self.seconds_with(self.plan.jobs)

    def seconds_with(self, jobs: int) -> float:
        """The same with so many jobs at a time, each as fast as one alone is here."""
        each = [cost.estimate.run for cost in self.costs or () if cost.estimate for _ in range(cost.runs)]
        return parallel_seconds(each, jobs)

    def plain(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        plan = self.plan
        about = {"study": plan.study.name, "about": plan.study.about, "scale": plan.scale, "threads": plan.threads}
        if self.costs is not None:
            return about | {
                "runs": len(plan.runs),
                "done": plan.done,
                "to_do": len(plan.to_do),
                "impossible": [run.error for run in self.failed],
                "jobs": plan.jobs,
                "seconds_at_most": self.seconds,
                "seconds_at_most_with_these_jobs": self.seconds_in_parallel,
                "estimates": [cost.plain() for cost in self.costs],
            }
        return about | {
            "computed": sum(run.computed for run in self.runs),
            "runs": [run.plain() for run in self.runs],
            "ddof": DDOF,
            "groups": [
                {"benchmark": group.benchmark, "method": group.method, "label": group.label, "runs": len(group.runs)}
                | _plain_figures({name: group.spread(name) for name in FIGURES})
                | {"measured": _plain_figures({n: value for n in self.measured if (value := group.spread(n))})}
                for group in self.groups
            ],
            "confidence": CONFIDENCE,
            "differences": [
                {"benchmark": group.benchmark, "method": group.method, "label": group.label, "against": other.name}
                | _plain_figures(figures)
                for group, other, figures in self.differences
            ],
            "paper": [asdict(one) for one in self.paper],
            "notes": self.notes,
            "files": [str(file) for file in self.files],
        }

    def tables(self) -> dict[str, list[Table]]:
        """What it prints, by name: summary, measured, differences, cost, paper."""
        if self.facts is not None:
            return {self.plan.study.table: [self.facts]}
        return study_tables(self.groups, self.measured, self.differences, self.paper, self.plan.scale)

    def __repr__(self) -> str:
        return f"StudyResult({self.plan.study.name}: {self.plan.done} of {len(self.runs)} runs done)"

    def __str__(self) -> str:
        """The tables and how to read them, as Markdown."""
        return as_text([*(table for some in self.tables().values() for table in some), *self.notes], "markdown")

    def _repr_markdown_(self) -> str:
        return str(self)


def study(
    name: str | Path | Study,
    *,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    out: str | Path = "runs",
    root: str | Path | None = None,
    jobs: int | None = None,
    on: str = "local",
    scale: float = 1.0,
    threads: int | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    device: str = "cpu",
    trackers: Sequence[str] = (),
    dry: bool = False,
    pictures: bool = True,
    callback: StudyCallback | None = None,
) -> StudyResult:
    """Do all runs of a study that are not done, and compare methods over seeds: what `perdure study` does.

    - `name` is a shipped study, a TOML file, or what `perdure.lab.study_file.read` returned.
    - `only` names rows of its table, or methods, and `seeds` some of its seeds: other runs that are not done wait.
    - `jobs` runs at a time on this machine (1, or one per GPU), or `on` a Ray cluster, where each run takes `cpus` and
      `gpus`; each computes with `threads` threads, those of the study when left out.
    - `scale` multiplies the epochs of every plan. `trackers` are tensorboard, mlflow or wandb.
    - Tables, as Markdown, LaTeX and CSV, `pictures` of them, and with these a page of everything, report.html, are
      written to studies/NAME in the store: see `files` of the result.
    - `dry` does nothing but time an epoch or two of each kind of run: see `costs` and `seconds` of the result.

    A run that fails does not stop the others: its state and error are in the result, and the next call tries it again.
    Raises Interrupted on Ctrl-C or SIGTERM, with all work saved.
    """
    registry.check_not_loading()
    asked = name if isinstance(name, Study) else read(name)
    named = rows(asked, scale)
    wanted = [one for _, one in named]
    _check_files(wanted)
    out, root, threads = Path(out), None if root is None else Path(root), threads or asked.threads
    executor, parallel = make_executor(on, jobs=jobs, threads=threads, cpus=cpus, gpus=gpus, device=device)
    try:
        runs = find_runs(wanted, out=out, root=root, probes=probe_keys(asked))
    except WrongValue as error:  # such as more tasks than there are
        raise WrongValue(f"{asked.where}: {error}") from None
    for run, (row, _) in zip(runs, named, strict=True):
        run.row = row
    _choose(runs, only, seeds)
    plan = StudyPlan(asked, runs, scale, out, root, device, on, executor, parallel, threads)
    callback = callback or StudyCallback()
    if asked.table:
        grid = asked.grids[0]
        facts = FACT_TABLES[asked.table](grid.benchmarks, grid.methods, root)
        return _written(replace(_result(plan), facts=facts), pictures=False)
    if dry:
        place = torch.device(device if on == "local" else "cpu")
        costs = estimate_runs([run.spec for run in plan.to_do], root, place, threads, callback.on_timed)
        return _result(plan, costs)
    _execute(plan, tuple(trackers), callback)
    return _written(_result(plan), pictures)


def compare(
    methods: Sequence[str | type[Method]],
    benchmarks: str | BenchmarkFunction | Sequence[str | BenchmarkFunction],
    *,
    seeds: Sequence[int] = (1, 2, 3),
    values: Mapping[str, Mapping[str, Any]] | None = None,
    plan: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    net: str | type[Backbone] | None = None,
    tasks: int | None = None,
    probes: Sequence[str] = (),
    outliers: str = "",
    against: str | type[Method] | None = None,
    **options: Any,
) -> StudyResult:
    """Compare methods over several seeds, without a file: what `perdure compare` does.

    - Methods, benchmarks and the network are names, things in a file of yours (`my.py:Careful`), or your classes and
      functions themselves. Differences are taken from the method `against`, or the first.
    - `values` sets values of single methods, as in {"gpm": {"threshold": 0.9}}; all else is as in `perdure.run`, and
      `options` (out, root, jobs, scale, threads, device, dry, callback …) as in `perdure.study`.

    >>> result = compare(["finetune", "gpm"], "six", seeds=[1, 2])  # doctest: +SKIP
    >>> [group.method for group in result.groups]  # doctest: +SKIP
    ['finetune', 'gpm']
    """
    where = [benchmarks] if isinstance(benchmarks, str) or callable(benchmarks) else benchmarks
    names = [registry.methods.name(method) for method in methods]
    content = {
        "methods": names,
        "benchmarks": [registry.benchmarks.name(benchmark) for benchmark in where],
        "seeds": list(seeds),
        "tasks": tasks,
        "network": None if net is None else registry.networks.name(net),
        "plan": dict(plan or {}),
        "settings": dict(settings or {}),
        "values": {registry.methods.name(method): dict(own) for method, own in (values or {}).items()},
        "outliers": outliers,
        "probes": list(probes),
        "against": None if against is None else registry.methods.name(against),
    }
    return study(in_memory("compare", content), **options)


def _choose(runs: Sequence[StudyRun], only: Sequence[str], seeds: Sequence[int]) -> None:
    """Mark which runs are wanted now. A row goes by its own name, or else by its method's."""
    named = {run.row or registry.methods.short_name(run.spec.method) for run in runs}
    methods = {registry.methods.short_name(run.spec.method) for run in runs}
    for name in only:
        if name not in named | methods:
            raise UnknownName("row", name, named | methods)
    for seed in seeds:
        if seed not in {run.spec.seed for run in runs}:
            has = ", ".join(map(str, sorted({run.spec.seed for run in runs})))
            raise WrongValue(f"seed {seed} is not in the study; it has {has}")
    for run in runs:
        method = registry.methods.short_name(run.spec.method)
        chosen = (run.row or method) in only or (method in only and method not in named)
        run.wanted = (chosen or not only) and (run.spec.seed in seeds or not seeds)


def _check_files(wanted: Sequence[RunSpec]) -> None:
    """Runs of a study have processes of their own, which know what is in files only."""
    for one in wanted:
        for kind, code in one.code.items():
            if not code["where"]:
                raise WrongValue(
                    f"{getattr(one, kind, kind)} was typed into a prompt, and runs of a study are other processes: "
                    "put it into a file, as my.py, and name it as my.py:NAME"
                )


# --- what is done already ---


def find_runs(specs: Sequence[RunSpec], *, out: Path, root: Path | None, probes: Sequence[str] = ()) -> list[StudyRun]:
    """Every run as it is in the store; done means that these probes are measured, too.

    Data are opened once for all runs that share them, and not kept.
    """
    by_data: dict[str, list[StudyRun]] = {}
    runs = [StudyRun(spec) for spec in specs]
    for run in runs:
        by_data.setdefault(run.spec.data_key, []).append(run)
    for alike in by_data.values():
        try:
            stream = open_clean(alike[0].spec, root)
        except WrongValue:
            raise
        except PerdureError as error:
            for run in alike:
                run.state, run.error = "failed", str(error)
            continue
        for run in alike:
            _look_up(run, stream, out, probes)
    _check_distinct(runs)
    return runs


def study_so_far(name: str | Path, *, out: Path, scale: float = 1.0) -> StudyResult:
    """What a study came to by now, from the records of a store alone: no data are opened, and nothing is done.

    Where several records are of one specification, with other images, the one that was finished last counts.
    """
    asked = read(name)
    if asked.table:
        raise WrongValue(f"{name} is a table without runs; `perdure study {name}` prints and writes it")
    by_name: dict[tuple[Any, ...], list[str]] = {}
    for row in index.runs(out, ["finished"]):
        by_name.setdefault((row.method, row.benchmark, row.seed), []).append(row.path)
    runs = [StudyRun(spec, row=row) for row, spec in rows(asked, scale)]
    for run in runs:
        alike = [out / path for path in by_name.get((run.spec.method, run.spec.benchmark, run.spec.seed), [])]
        records = [{**index.read_finished(path), "path": str(path)} for path in alike]
        fitting = [record for record in records if _comparable(record) == _comparable(run.spec.plain())]
        if fitting:
            record = max(fitting, key=lambda one: str(one.get("finished")))
            run.path = Path(record["path"])
            run.state, run.record = "done", {**record, "probes": read_probes(run.path, record)}
    executor, parallel = make_executor(threads=asked.threads)
    return _result(StudyPlan(asked, runs, scale, out, None, "cpu", "local", executor, parallel, asked.threads))


def _comparable(content: Mapping[str, Any]) -> str:
    """What tells specifications apart, as JSON: a record has it, too. Code that lies in another place is the same."""
    names = [own.name for own in fields(RunSpec) if own.name != "code"]
    code = {kind: own["checksum"] for kind, own in (content.get("code") or {}).items()}
    usual = {"judged_on": "test", "outliers": ""}
    known = {name: content.get(name, usual.get(name)) for name in (*names, "format")}
    return json.dumps({**known, "code": code}, sort_keys=True)


def _look_up(run: StudyRun, stream: Stream, out: Path, probes: Sequence[str]) -> None:
    run.path = run_directory(out, run.spec.benchmark_dir, run.spec.method_dir, run.spec.digest(stream.fingerprint))
    run.lessons = count_lessons(run.spec, stream)
    try:
        record = read_record(run.path)
    except CorruptFile:  # whoever does the run sets it aside
        return
    except PerdureError as error:
        run.state, run.error = "failed", str(error)
        return
    if record is not None and not run.spec.is_of(record):
        return
    if record is not None and set(probes) <= (measured := read_probes(run.path, record)).keys():
        run.state, run.record = "done", {**record, "probes": measured, "path": str(run.path)}


def _check_distinct(runs: Sequence[StudyRun]) -> None:
    """Two names for one folder of images would give one run twice."""
    seen: dict[Path, RunSpec] = {}
    for run in runs:
        if run.path is not None and (other := seen.setdefault(run.path, run.spec)) is not run.spec:
            both = f"{other.benchmark} and {run.spec.benchmark}"
            raise WrongValue(f"{both} are the same images under the same name; leave one of them out of the study")


# --- doing the rest ---


def _execute(plan: StudyPlan, trackers: tuple[str, ...], callback: StudyCallback) -> None:
    for run in plan.runs:
        if run.state == "done":  # perhaps by `perdure run`, after it had failed here
            run.clear_error()
    callback.on_start(plan)
    to_do = plan.to_do
    if not to_do:
        return
    root = None if plan.root is None else str(plan.root)
    jobs = [Job(run.spec, str(plan.out), root, plan.device, plan.study.probes, trackers=trackers) for run in to_do]
    with stop_on_signal(plan.executor) as signals:
        for event in plan.executor.do(jobs):
            callback.on_event(event)
            _update(to_do[event.job], event, callback.on_event)
    if signals and plan.done < len(plan.runs):
        raise Interrupted(
            f"interrupted; {plan.done} of {len(plan.runs)} runs are done, the rest is saved, "
            "run the same command to resume",
            signals[0],
        )


def _update(run: StudyRun, event: Event, on_event: Callable[[Event], None]) -> None:
    if event.kind == "done":
        run.state, run.computed = "done", True
        run.record = {"path": str(run.path), **event.facts["record"]}
        run.clear_error()
    elif event.kind == "stopped":
        run.state, run.error = "stopped", event.facts["error"]
    elif event.kind == "failed":
        run.state, run.error = "failed", event.facts["error"]
        try:
            run.save_error(run.error)
        except PerdureError as error:  # a full disk may be why it failed
            on_event(Event(event.job, "warning", {"text": str(error)}))


# --- what it came to ---


def _result(plan: StudyPlan, costs: list[RunCost] | None = None) -> StudyResult:
    # Runs that are not done belong to a group, too, without figures.
    runs = [
        {
            **headlines(run.record or {}, probe_keys(plan.study)),
            **(run.record or {}),
            **run.spec.plain(),
            "row": run.row,
            "minutes": run.minutes,
        }
        for run in plan.runs
    ]
    records = [run.record for run in plan.runs if run.record]
    found, measured = groups(runs), _measured(plan, records)
    against = None if plan.study.against is None else registry.methods.short_name(plan.study.against)
    compared = differences(found, against, measured)
    paper = compare_with_paper(plan.study.paper, found) if plan.study.paper else []
    return StudyResult(plan, found, compared, measured, notes_on(records), paper, costs)


def _written(result: StudyResult, pictures: bool) -> StudyResult:
    """With its files."""
    from perdure.lab.report import of_study  # not above: reports read studies

    plan, warnings = result.plan, list[str]()
    if not plan.done and result.facts is None:
        return result
    found = (result.groups, result.measured, result.tables(), result.notes)
    report = of_study(result) if pictures and plan.study.figures else None

    def page() -> bytes:
        before = b""
        with suppress(OSError):  # there is none yet
            before = read_bytes(plan.folder / "report.html")
        return (report or of_study(result)).html(before)

    drawn = report.figures if report else ()
    files = write_study(plan.folder, *found, warnings.append, page=page, drawn=drawn, pictures=pictures)
    return replace(result, files=files, notes=[*result.notes, *(f"warning: {text}" for text in warnings)])


def _measured(plan: StudyPlan, records: Sequence[dict[str, Any]]) -> list[str]:
    """Figures of probes in the order in which the study asks for them; then what was measured besides."""
    keys = probe_keys(plan.study)
    asked = [found["headline"] for key in keys for record in records if (found := record["probes"].get(key))]
    return list(dict.fromkeys(name for headline in [*asked, *map(headlines, records)] for name in headline))


def notes_on(records: Sequence[dict[str, Any]]) -> list[str]:
    """What was learned from, in a line for each benchmark, or more where its runs did not all see the same; and what
    besides method, values and seed differs between runs, and may show in the last digits."""
    notes = []
    for record in records:
        about = {name: text for name, text in record["data"].items() if name not in ("fingerprint", "source", "tasks")}
        texts = [str(about.pop("completeness", "")), *(f"{name}: {text}" for name, text in about.items())]
        notes.append(f"data of {record['benchmark']}: {'; '.join(filter(None, texts))}")
    facts = {
        "threads": {str(record["threads"]) for record in records},
        "devices": {record["device"] for record in records},
        "versions of torch": {record["versions"]["torch"] for record in records},
        "versions of perdure": {record["versions"]["perdure"] for record in records},
    }
    mixed = [(name, ", ".join(sorted(found))) for name, found in facts.items() if len(found) > 1]
    return [*dict.fromkeys(notes), *(f"warning: these runs differ in {name} ({found})" for name, found in mixed)]


def _plain_figures(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value is None else asdict(value) for name, value in figures.items()}
