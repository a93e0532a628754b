"""Reports: records of runs or of a study, gathered for one page that opens without a network."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import perdure
from perdure import registry
from perdure.errors import PerdureError, UnknownName, WrongValue
from perdure.lab import index
from perdure.lab.pictures import read_result, study_tables
from perdure.lab.probe_run import probe_spec
from perdure.lab.probe_runs import run_labels
from perdure.lab.spec import complete, split_name, usual
from perdure.lab.store import read_probe, read_probes, write
from perdure.lab.study import StudyResult, notes_on, study_so_far
from perdure.lab.study_file import Study, shipped
from perdure.ops.statistics import Group, differences, groups, headlines, without_file
from perdure.report.page import FoundByProbe, Report, ReportedRun
from perdure.report.paper_figures import PaperFigure
from perdure.report.plot import read_epochs
from perdure.schema import values_of

FORMATS = {"html": "html", "markdown": "md", "latex": "tex", "csv": "csv"}
"""Of a report, and how their files' names end."""
HASH = 10  # digits of a hash that a command names a run by


def write_report(
    what: "str | Path | Sequence[str | Path] | StudyResult | None" = None,
    file: str | Path | None = None,
    store: str | Path = "runs",
    *,
    scale: float = 1.0,
    format: str = "html",
) -> Path:
    """Write a report of runs or of a study, and return its path: what `perdure report` does.

    - `what` is a run or several, by path, by the beginning of a hash, or by method and benchmark names; or a study by
      its name or file, at its `scale`, shown as far as it is done; or what `perdure.study` and `perdure.compare`
      returned. Left out, it is all finished runs of the store.
    - `file` is where it goes; when left out, beside what it shows: into the run's directory, studies/NAME or the store.
    - `format` is html, one page with all tables and figures that needs nothing else, or markdown, latex or csv, which
      have the tables alone.

    Everything is read from records; no data are opened, and nothing is computed.

    >>> import tempfile
    >>> from perdure.lab.run import run
    >>> out = tempfile.mkdtemp()
    >>> record = run("gpm", "synthetic", tasks=2, plan={"epochs": 1}, out=out, pictures=False)
    >>> write_report(store=out).name
    'report.html'
    """
    if format not in FORMATS:
        raise UnknownName("format of a report", format, FORMATS)
    found, folder = gather(what, store, scale=scale)
    place = folder / f"report.{FORMATS[format]}" if file is None else Path(file)
    content = found.html() if format == "html" else found.text(format).encode()
    write(place, content, advice="choose another place with --file")
    return place


def gather(
    what: "str | Path | Sequence[str | Path] | StudyResult | None" = None,
    store: str | Path = "runs",
    *,
    scale: float = 1.0,
) -> tuple[Report, Path]:
    """What `write_report` writes, as data, and the folder that it belongs to."""
    store = Path(store)
    if isinstance(what, StudyResult):
        return of_study(what), what.plan.folder
    words = [] if what is None else [str(word) for word in ([what] if isinstance(what, str | Path) else what)]
    if len(words) == 1 and _is_study(words[0]):
        result = study_so_far(words[0], out=store, scale=scale)
        return of_study(result), result.plan.folder
    if studies := [word for word in words if _is_study(word)]:
        raise WrongValue(f"{studies[0]} is a study: a report shows one study, or runs; name it alone")
    if scale != 1:
        raise WrongValue(f"--scale {scale:g} belongs to a study; runs are as they are")
    return _of_runs(words, store)


def _is_study(word: str) -> bool:
    named = registry.methods, registry.benchmarks
    return word.endswith(".toml") or (word in shipped() and not any(word in kind for kind in named))


# --- a study ---


def of_study(result: StudyResult) -> Report:
    """A study as far as it is done."""
    plan = result.plan
    records = {Path(run.record["path"]): run.record for run in result.runs if run.record}
    command = study_command(plan.study, plan.scale, plan.out)
    waiting = len(result.runs) - len(records)
    failed = [f"{run.spec.method} on {run.spec.benchmark}, seed {run.spec.seed}: {run.error}" for run in result.failed]
    facts = {"runs": f"{len(records)} of {len(result.runs)} done" if waiting else f"{len(records)}, all done"}
    if plan.scale != 1:
        facts["scale"] = f"epochs × {plan.scale:g}: not the plan's figures"
    notes, warnings = _split_notes(result.notes)
    rows = {
        Path(run.record["path"]): f"{run.row}, seed {run.spec.seed}" for run in result.runs if run.record and run.row
    }
    runs = _reported(records, plan.out, rows)
    return Report(
        title=_compared_title(plan.study) if plan.study.where in ("compare", "demo") else f"Study {plan.study.name}",
        command=command,
        about=plan.study.about,
        facts=facts | _facts(list(records.values())),
        notes=notes,
        warnings=[*failed, *warnings],
        tables=result.tables(),
        groups=result.groups,
        runs=runs,
        together=_together(records, plan.out),
        figures=_figures(plan.study, runs),
        probe_command=partial(_command_of_several, plan.out),
        made_by=perdure.__version__,
    )


def _figures(study: Study, runs: Sequence[ReportedRun]) -> list[PaperFigure]:
    """Those that the study asks for and can be drawn, of what its own probes found, in the order of the probes.

    Results of one key have the same values, also those that are older than one of these.
    """
    asked = [probe_spec(probe) for probe in study.probes] if study.figures else []
    found = []
    for run in runs:
        own = {one.key: one.result for one in run.probes}
        results = [(one.name, replace(own[one.key], values=one.values)) for one in asked if one.key in own]
        found.append((run.label, results))
    wished = [PaperFigure(name, found) for name in study.figures]
    return [figure for figure in wished if figure.there()]


def _compared_title(study: Study) -> str:
    methods, benchmarks = (", ".join(map(without_file, names)) for names in (study.methods, study.grids[0].benchmarks))
    return f"{methods} on {benchmarks}"


def study_command(study: Study, scale: float, out: Path) -> str:
    """The command that does a study, or shows what it came to."""
    if study.where not in ("compare", "demo"):
        words = ["perdure", "study", study.where]
        return shlex.join(words + ([] if scale == 1 else ["--scale", f"{scale:g}"]) + _store(out))
    grid = study.grids[0]
    words = ["perdure", "compare", *study.methods, *grid.benchmarks, "--seeds", ",".join(map(str, grid.seeds))]
    words += [] if grid.tasks is None else ["--tasks", str(grid.tasks)]
    words += ["--net", grid.network] if isinstance(grid.network, str) else []
    for method, values in grid.values.items():
        words += _options("--set", {f"{method}.{name}": value for name, value in values.items()})
    words += _options("--plan", grid.plan) + _options("--data", grid.settings)
    words += ["--outliers", grid.outliers] if isinstance(grid.outliers, str) and grid.outliers else []
    return shlex.join([*words, *(word for probe in study.probes for word in ("--probe", probe)), *_store(out)])


# --- runs ---


def _of_runs(words: Sequence[str], store: Path) -> tuple[Report, Path]:
    paths, warnings = _find(words, store)
    records = {}
    for path in paths:
        record = index.read_finished(path)
        records[path] = {**record, "probes": read_probes(path, record), "path": str(path)}
    shown = list(records.values())
    found = groups([{**headlines(record), **record} for record in shown])
    probed = list(dict.fromkeys(name for record in shown for name in headlines(record)))
    notes, more = _split_notes(notes_on(shown))
    report = Report(
        title=_title(shown, found, store),
        command=shlex.join(["perdure", "report", *(path.name[:HASH] for path in paths if words), *_store(store)]),
        facts={"runs": str(len(shown))} | _facts(shown),
        notes=notes,
        warnings=[*warnings, *more],
        tables=study_tables(found, probed, differences(found, measured=probed)),
        groups=found,
        runs=_reported(records, store),
        together=_together(records, store),
        probe_command=partial(_command_of_several, store),
        made_by=perdure.__version__,
    )
    return report, next(iter(records)) if len(records) == 1 else store


def _title(records: Sequence[Mapping[str, Any]], found: Sequence[Group], store: Path) -> str:
    if len(records) == 1:
        one = records[0]
        return f"{without_file(one['method'])} on {without_file(one['benchmark'])}, seed {one['seed']}"
    if len({group.benchmark for group in found}) == 1 and len(found) <= 4:
        return f"{', '.join(group.name for group in found)} on {without_file(found[0].benchmark)}"
    return f"{len(records)} runs of {store.name or store}"


def _find(words: Sequence[str], store: Path) -> tuple[list[Path], list[str]]:
    """Directories of runs; where all are asked for, also why some are not shown."""
    kinds = [word for word in words if word in registry.methods or word in registry.benchmarks]
    paths = [index.find_run(store, word) for word in words if word not in kinds]
    warnings = []
    if kinds or not words:
        rows = index.runs(store, kinds)
        paths += [store / row.path for row in rows if row.state == "finished"]
        if not words:
            warnings = [
                f"not shown: {row.problem or f'{row.path} is {row.state}'}" for row in rows if row.state != "finished"
            ]
    if not paths:
        what = f"no finished run of {' and '.join(kinds)}" if kinds else "no finished run"
        hint = "; --out names the store, --file the page" if store.suffix in (".html", ".md", ".tex", ".csv") else ""
        raise WrongValue(f"{what} in {store}{hint}; `perdure ls runs --out {store}` lists those there are")
    return list(dict.fromkeys(paths)), warnings


# --- what both share ---


def _split_notes(notes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Notes, and those of them that are warnings."""
    mark = "warning: "
    return [n for n in notes if not n.startswith(mark)], [n.removeprefix(mark) for n in notes if n.startswith(mark)]


def _facts(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What was run, when, and with what."""
    if not records:
        return {}
    finished = sorted(record["finished"] for record in records if record.get("finished"))
    when = list(dict.fromkeys(time[:16].replace("T", " ") for time in (finished[:1] + finished[-1:])))
    versions = ("perdure", "torch", "python")
    found = {
        "methods": _each(without_file(record["method"]) for record in records),
        "benchmarks": _each(without_file(record["benchmark"]) for record in records),
        "networks": _each(without_file(record["network"]) for record in records),
        "seeds": _each(map(str, sorted(record["seed"] for record in records))),
        "finished": f"{' to '.join(when)} UTC" if when else "",
        **{name: _each(str(record["versions"].get(name, "")) for record in records) for name in versions},
        "threads": _each(str(record["threads"]) for record in records),
        "device": _each(record["device"] for record in records),
    }
    return {name: text for name, text in found.items() if text}


def _each(texts: Any) -> str:
    return ", ".join(dict.fromkeys(filter(None, texts)))


def _reported(
    records: Mapping[Path, dict[str, Any]], out: Path, rows: Mapping[Path, str] | None = None
) -> list[ReportedRun]:
    """Runs with what probes found of them, by the names of a study's rows where it has names."""
    labels, found = dict(rows or {}), []
    unnamed = {path: record for path, record in records.items() if path not in labels}
    labels |= zip(unnamed, run_labels(unnamed), strict=True)
    for path, record in records.items():
        label, probes = labels[path], []
        for key, content in record["probes"].items():
            with suppress(PerdureError):  # changed in this moment
                result = read_result(path / "probes" / f"{key}.json", label)
                command = probe_command(content["probe"], content["values"], [path.name], out)
                probes.append(FoundByProbe(content["probe"], key, result, command))
        found.append(ReportedRun(label, record, run_command(record, out), read_epochs(path), probes))
    return found


def _together(records: Mapping[Path, dict[str, Any]], out: Path) -> list[FoundByProbe]:
    """What probes found that measure several runs together, if all of these are shown."""
    models = {path.name: record["files"]["model.safetensors"] for path, record in records.items()}
    found = []
    for file in sorted((out / "compared").glob("*.json")):
        content = read_probe(file)
        if content is None or not isinstance(content.get("runs"), list):
            continue
        with suppress(PerdureError, KeyError, TypeError):  # a file that anybody may have written
            names = [Path(run["path"]).name for run in content["runs"]]
            if [models.get(name) for name in names] == content["models"]:
                result = read_result(file, " | ".join(run["label"] for run in content["runs"]))
                command = probe_command(content["probe"], content["values"], names, out)
                found.append(FoundByProbe(content["probe"], file.stem, result, command))
    return found


# --- commands ---


def run_command(record: Mapping[str, Any], out: Path = Path("runs")) -> str:
    """The command that does a run, rebuilt from its specification: what presets and defaults would fill in is left out.

    Files of the user's own are never run for this, so that all values are written out where a run needs them.
    """
    code = record.get("code") or {}
    words = ["perdure", "run", *(code.get(kind, {}).get("where") or record[kind] for kind in ("method", "benchmark"))]
    words += ["--seed", str(record["seed"])]
    words += [] if record["tasks"] is None else ["--tasks", str(record["tasks"])]
    usual = None if code else _usual(record)
    record = record if usual is None else complete(record)
    if usual is None or usual["network"] != record["network"]:
        words += ["--net", code.get("network", {}).get("where") or record["network"]]
    for option, group in (("--set", "values"), ("--plan", "plan"), ("--data", "settings")):
        known = usual[group] if usual is not None else {}
        words += _options(
            option, {name: v for name, v in record[group].items() if name not in known or known[name] != _plain(v)}
        )
    words += ["--outliers", record["outliers"]] if record.get("outliers") else []
    words += ["--threads", str(record["threads"])]
    words += [] if record["device"] == "cpu" else ["--device", record["device"]]
    return shlex.join([*words, *_store(out)])


def _usual(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The specification of such a run with nothing set, as a record has it; None where it cannot be known."""
    try:
        kind = split_name(record["benchmark"])[0]
        if record["method"] not in registry.methods or kind not in registry.benchmarks:
            return None
        content = complete(usual(record).plain())
    except PerdureError:  # of another version, or of another package
        return None
    return {name: {key: _plain(value) for key, value in part.items()} if isinstance(part, dict) else part
            for name, part in content.items()}  # fmt: skip


def _plain(value: Any) -> Any:
    """As JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def probe_command(probe: str, values: Mapping[str, Any], digests: Sequence[str], out: Path = Path("runs")) -> str:
    """The command that measures runs: values that are the probe's defaults are left out."""
    usual: dict[str, Any] = {}
    if probe in registry.probes and registry.probes.own(probe) is None:
        usual = {name: _plain(value.default) for name, value in values_of(registry.probes.load(probe)).items()}
    given = {name: value for name, value in values.items() if name not in usual or usual[name] != _plain(value)}
    words = ["perdure", "probe", probe, *(digest[:HASH] for digest in digests)]
    return shlex.join([*words, *_options("--set", given), *_store(out)])


def _command_of_several(out: Path, found: FoundByProbe, digests: Sequence[str]) -> str:
    return probe_command(found.name, found.result.values, digests, out)


def _options(option: str, values: Mapping[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in (option, f"{name}={_word(value)}")]


def _word(value: Any) -> str:
    """A value as the command line takes it.

    >>> _word([2 / 255, 0.5]), _word(True), _word(None), _word(())
    ('2/255,0.5', 'true', 'none', '')
    """
    if isinstance(value, list | tuple):
        return ",".join(map(_word, value))
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float) and len(repr(value)) > 8 and round(255 * value) / 255 == value:
        return f"{round(255 * value)}/255"
    return str(value)


def _store(out: Path) -> list[str]:
    return [] if out == Path("runs") else ["--out", str(out)]
