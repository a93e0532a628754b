"""What `ls` and `show` print."""

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from perdure.cli.options import note
from perdure.errors import UnknownName, WrongValue
from perdure.lab.index import RunSummary, find_run, is_run, read_finished, read_summary
from perdure.lab.saved import Budget
from perdure.lab.store import read_probes
from perdure.ops.statistics import as_255ths
from perdure.registry import Entry, OwnEntry, benchmarks, methods, networks, own_name, probes
from perdure.report.table import Cell, Table, names, table
from perdure.report.tables import comparison, matrix

if TYPE_CHECKING:
    from perdure.schema import Value


def listing(name: str, entries: dict[str, str]) -> Table:
    return _table(name, [(Cell(entry, bold=True), about) for entry, about in entries.items()])


def _table(title: str, rows: Sequence[Sequence[str | Cell]], columns: Sequence[str] = ()) -> Table:
    return table(title, names(*(columns or [""] * len(rows[0]))), rows, framed=False, merged=bool(columns))


Description = tuple[dict[str, Any], str, Sequence[Table | str]]  # as data, in a line, and in tables


def describe(name: str, out: Path, on: str | None = None) -> Description:
    """A method (on one benchmark, if one is named), a benchmark, a network, a probe, a study, or a run of a store."""
    from perdure.lab.study_file import shipped

    name = own_name(name)
    if on is not None:
        methods.find(name)
        return _method_on(name, own_name(on))
    if (path := _run_path(name, out)) is not None:
        return _run(path)
    studies = shipped()
    study = _study(name) if name in studies or name.endswith(".toml") else None
    if name in benchmarks or name in probes:
        return _with_study(_benchmark(name) if name in benchmarks else _probe(name), study)
    if study is not None:
        return study
    if name in networks:
        return _network(name)
    if name in methods:
        content = _method(name)
        return content, content["about"], _method_tables(content)
    if "/" in name or Path(name).exists():
        there = "not a run" if Path(name).exists() else "no such path"
        raise WrongValue(f"{name}: {there}; `perdure ls runs --out {out}` lists the runs of a store")
    known = [*methods, *benchmarks, *networks, *probes, *studies]
    raise UnknownName("method, benchmark, network, probe, study or run", name, known)


# --- runs ---


def _run_path(name: str, out: Path) -> Path | None:
    """Of a run by its path, also below the store, or by the beginning of its hash if the name looks like one."""
    for path in (Path(name), out / name):
        if is_run(path) or (path / "record.json").exists():
            return path
    return find_run(out, name) if name not in methods and re.fullmatch("[0-9a-f]{2,16}", name) else None


def _run(path: Path) -> Description:
    summary = read_summary(path) if is_run(path) else None
    if summary is not None and summary.state in ("unfinished", "failed"):
        return _unfinished(path, summary)
    record = read_finished(path)
    record = {**record, "probes": read_probes(path, record, lambda text: note(f"warning: {text}")), "path": str(path)}
    return record, f"{record['method']} on {record['benchmark']}, seed {record['seed']}", run_tables(record)


def _unfinished(path: Path, summary: RunSummary) -> Description:
    """How far a run has come that is not finished, and why it failed, if it did."""
    from perdure.lab.checkpoint import how_far

    reached = how_far(path / "checkpoint")
    lessons, epochs = reached or (0, 0)
    content = {**summary._asdict(), "path": str(path), "learned_tasks": lessons, "learned_epochs_of_the_next": epochs}
    name = f"{summary.method} on {summary.benchmark}, seed {summary.seed}"
    where = f"its last checkpoint is in task {lessons + 1}, after {epochs} epochs" if reached else "no checkpoint yet"
    if summary.problem:
        error = summary.problem.removeprefix(f"{path.resolve()}: ")
        return content, f"{name}: failed: {error} (run the same command to try again; {where})", []
    return content, f"{name}: unfinished, {where}; run the same command to resume", []


def run_tables(record: dict[str, Any]) -> list[Table]:
    """Accuracies, data, memory and warnings of a run."""
    data = [(name, str(text)) for name, text in record["data"].items() if text and name != "fingerprint"]
    memory = record["memory_bytes"] or {"nothing besides the network": 0}
    rows: list[tuple[str, str]] = [(kind, f"{size / 1e6:,.2f} MB") for kind, size in memory.items()]
    with suppress(ValidationError):  # most have none
        rows.append(("budget", _budget(Budget.model_validate(record["facts"].get("budget")))))
    rows += [("warning", text) for text in record["cautions"]]
    return [matrix(record), comparison([record]), _table("data", data), _table("memory", rows)]


def _budget(spent: Budget) -> str:
    """What was allowed, and what it costs: how much of the last task's energy each layer's basis holds."""
    shares = ", ".join(f"{layer} {100 * share:.1f}" for layer, share in spent.protected.items())
    allowed, wanted = f"{spent.bytes / 1e6:,.2f} MB, in {spent.precision}", f"wanted: {100 * spent.wanted:.1f}"
    return f"{allowed}; of the last task's energy it protects, in %: {shares} ({wanted})"


# --- benchmarks, networks and probes ---


def _benchmark(name: str) -> Description:
    from perdure.lab.spec import settings_of

    content = _description("benchmark", name, benchmarks.find(name), settings_of)
    return content, content["about"], _description_tables(content, "settings (--data name=value)")


def _probe(name: str) -> Description:
    from perdure.schema import values_of

    content = _description("probe", name, probes.find(name), values_of)
    return content, content["about"], _description_tables(content, "values (--set name=value)")


def _network(name: str) -> Description:
    from perdure.lab.build import network_coverage
    from perdure.schema import values_of

    content = _description("network", name, networks.find(name), values_of)
    coverage = network_coverage(name)
    layers = {layer: list(found.weight.shape) for layer, found in coverage.layers.items()}
    parameters = sum(part.numbers for part in coverage.parts if part.parameter)
    content |= {"parameters": parameters, "layers": layers, "coverage": coverage.plain()}
    tables = _description_tables(content, "values (in Python; --net takes the defaults)")
    tables.append(f"{parameters:,} parameters for images of 3×32×32, heads left out")
    rows = [
        (part.name, "×".join(map(str, part.shape)), f"{part.numbers:,}", part.role, part.why) for part in coverage.parts
    ]
    title = "what becomes of it under projection, after the first task"
    tables.append(_table(title, rows, ("name", "shape", "numbers", "role", "why")))
    return content, content["about"], tables


def _description(
    kind: str, name: str, entry: Entry | OwnEntry, settings: Callable[[Any], "dict[str, Value]"]
) -> dict[str, Any]:
    """What it is and what can be set about it; lines of its docstring are broken only between paragraphs."""
    made = entry.load()
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(made.__doc__ or ""))
    values = {
        name: {"default": value.default, "allowed": value.allowed, "about": value.about}
        for name, value in settings(made).items()
    }
    return {kind: name, "about": entry.about, "text": text, "settings": values}


def _description_tables(content: dict[str, Any], title: str) -> list[Table | str]:
    rows = [(name, str(v["default"]), v["allowed"], v["about"]) for name, v in content["settings"].items()]
    return [content["text"], *([_table(title, rows, ("name", "default", "allowed", "meaning"))] if rows else [])]


# --- studies ---


def _study(name: str) -> Description:
    from perdure.lab.study_file import read, specs

    study = read(name)
    grids = [grid.model_dump(exclude_defaults=True) for grid in study.grids]
    content = {"study": name, "about": study.about, "runs": len(specs(study)), "probes": list(study.probes)}
    content |= {"figures": list(study.figures), "threads": study.threads, "against": study.against, "blocks": grids}
    rows = []
    for number, grid in enumerate(grids, 1):
        for i, (key, value) in enumerate(grid.items()):
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            rows.append((str(number) if i == 0 else "", key, text))
    probed = f"; probes: {', '.join(study.probes)}" if study.probes else ""
    probed += f"; figures: {', '.join(study.figures)}" if study.figures else ""
    command = f"perdure study {name}"
    how = f"{content['runs']} runs{probed}; `{command} --dry` says how long they take, `{command}` does those not done"
    return content, study.about, [_table("what is run", rows, ("block", "name", "value")), how]


def _with_study(described: Description, study: Description | None) -> Description:
    """A benchmark or a probe, and the study of the same name."""
    if study is None:
        return described
    content, headline, tables = described
    return {**content, "study": study[0]}, headline, [*tables, f"The study of this name: {study[1]}", *study[2]]


# --- methods ---


def _method(name: str) -> dict[str, Any]:
    """What it is, its values, what each preset sets them to and why."""
    from perdure.lab.spec import preset, presets
    from perdure.schema import values_of

    entry = methods.find(name)
    proposed = {of: preset(of, name) for of, table in presets().items() if name in table.get("methods", {})}
    return {
        "method": name,
        "about": entry.about,
        "values": {
            key: {"symbol": v.symbol, "default": v.default, "allowed": v.allowed, "about": v.about}
            for key, v in values_of(entry.load()).items()
        },
        "presets": {
            of: {"network": p.network, "plan": p.plan, "values": p.values} | _by_variant(of, name)
            for of, p in proposed.items()
        },
    }


def _by_variant(benchmark: str, method: str) -> dict[str, Any]:
    """What a preset has for variants other than the default: variant → its own values."""
    from perdure.lab.spec import preset, variants

    usual = preset(benchmark, method).values
    found = {
        variant: {
            key: pair for key, pair in preset(benchmark, method, variant).values.items() if pair != usual.get(key)
        }
        for variant in variants(benchmark, method)
    }
    return {"variants": found} if found else {}


def _method_on(name: str, on: str) -> Description:
    """Every value and every option of the plan as a run on one benchmark has them, and where each comes from."""
    from perdure.lab.spec import preset, spec, split_name
    from perdure.schema import values_of
    from perdure.train.plan import Plan

    kind = split_name(on)[0]
    benchmarks.find(kind)
    proposed, full = preset(kind, name), spec(name, on)
    own = values_of(methods.load(name))
    values = {
        key: {"symbol": own[key].symbol, "value": value, "source": proposed.values.get(key, (0, "default"))[1]}
        | {"about": own[key].about}
        for key, value in full.values.items()
    }
    for variant, found in _by_variant(kind, name).get("variants", {}).items():
        for key, (value, source) in found.items():
            values[key]["source"] += f"; with variant={variant} {value} ({source})"
    plan = {
        key: {"symbol": v.symbol, "value": getattr(full.plan, key)}
        | {"source": proposed.plan.get(key, (0, "default"))[1], "about": v.about}
        for key, v in values_of(Plan).items()
    }
    network = {"value": full.network, "source": proposed.network[1]}
    content = {"method": name, "benchmark": on, "network": network, "values": values, "plan": plan}
    columns = ("name", "symbol", "value", "source", "meaning")
    tables = [
        _table(
            title, [(key, v["symbol"], _said(v["value"]), v["source"], v["about"]) for key, v in rows.items()], columns
        )
        for title, rows in (("values (--set name=value)", values), ("plan (--plan name=value)", plan))
        if rows
    ]
    return content, f"as on {on}; network {network['value']} ({network['source']})", tables


def _said(value: Any) -> str:
    return (as_255ths(value) if isinstance(value, float) else "") or str(value)


def _method_tables(content: dict[str, Any]) -> list[Table]:
    values = [
        (name, v["symbol"], _said(v["default"]), v["allowed"], v["about"]) for name, v in content["values"].items()
    ]
    sources = []
    for benchmark, preset in content["presets"].items():
        rows = {"network": preset["network"], **preset["plan"], **preset["values"]}
        for variant, own in preset.get("variants", {}).items():
            rows |= {f"{name} (variant={variant})": pair for name, pair in own.items()}
        sources += [(benchmark, name, str(value), source) for name, (value, source) in rows.items()]
    tables = []
    if values:
        of_values = ("name", "symbol", "default", "allowed", "meaning")
        tables.append(_table("values (--set name=value)", values, of_values))
    if sources:  # one's own method has no presets
        of_sources = ("benchmark", "name", "value", "source")
        tables.append(_table("presets: what each benchmark sets", sources, of_sources))
    return tables
