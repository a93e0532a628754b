"""What `ls` and `show` print."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.errors import UnknownName
from perdure.lab.index import find_run, is_run, read_finished
from perdure.lab.store import read_probes
from perdure.registry import Entry, OwnEntry, benchmarks, methods, probes
from perdure.report.table import Cell, Table, names, table
from perdure.report.tables import comparison, matrix

if TYPE_CHECKING:
    from perdure.schema import Value


def listing(name: str, entries: dict[str, str]) -> Table:
    return _table(name, [(Cell(entry, bold=True), about) for entry, about in entries.items()])


def _table(title: str, rows: Sequence[Sequence[str | Cell]], columns: Sequence[str] = ()) -> Table:
    return table(title, names(*(columns or [""] * len(rows[0]))), rows, framed=False, merged=bool(columns))


def describe(name: str, out: Path) -> tuple[dict[str, Any], str, Sequence[Table | str]]:
    """A benchmark, a method, a probe or a run of the store `out`: as data, in a line, and in tables."""
    if (path := _run_path(name, out)) is not None:
        record = read_finished(path)
        record = {**record, "probes": read_probes(path, record), "path": str(path)}
        return record, f"{record['method']} on {record['benchmark']}, seed {record['seed']}", run_tables(record)
    if name in benchmarks:
        from perdure.lab.spec import settings_of

        content = _description("benchmark", name, benchmarks.find(name), settings_of)
        return content, content["about"], _description_tables(content, "settings (--data name=value)")
    if name in probes:
        from perdure.schema import values_of

        content = _description("probe", name, probes.find(name), values_of)
        return content, content["about"], _description_tables(content, "values (--set name=value)")
    if name not in methods:
        raise UnknownName("method, benchmark, probe or run", name, [*methods, *benchmarks, *probes])
    content = _method(name)
    return content, content["about"], _method_tables(content)


# --- runs ---


def _run_path(name: str, out: Path) -> Path | None:
    """Of a run by its path, or by the beginning of its hash if the name looks like one."""
    if is_run(Path(name)) or (Path(name) / "record.json").exists():
        return Path(name)
    return find_run(out, name) if name not in methods and re.fullmatch("[0-9a-f]{2,16}", name) else None


def run_tables(record: dict[str, Any]) -> list[Table]:
    """Accuracies, data, memory and warnings of a run."""
    data = [(name, str(text)) for name, text in record["data"].items() if text and name != "fingerprint"]
    memory = record["memory_bytes"] or {"nothing besides the network": 0}
    rows: list[tuple[str, str]] = [(kind, f"{size / 1e6:,.2f} MB") for kind, size in memory.items()]
    if budget := record["facts"].get("budget"):
        rows.append(("budget", _budget(budget)))
    rows += [("warning", text) for text in record["cautions"]]
    return [matrix(record), comparison([record]), _table("data", data), _table("memory", rows)]


def _budget(spent: Mapping[str, Any]) -> str:
    """What was allowed, and what it costs: how much of the last task's energy each layer's basis holds."""
    shares = ", ".join(f"{layer} {100 * share:.1f}" for layer, share in spent["protected"].items())
    allowed, wanted = f"{spent['bytes'] / 1e6:,.2f} MB, in {spent['precision']}", f"wanted: {100 * spent['wanted']:.1f}"
    return f"{allowed}; of the last task's energy it protects, in %: {shares} ({wanted})"


# --- benchmarks and probes ---


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
        "presets": {of: {"network": p.network, "plan": p.plan, "values": p.values} for of, p in proposed.items()},
    }


def _method_tables(content: dict[str, Any]) -> list[Table]:
    values = [(name, v["symbol"], str(v["default"]), v["allowed"], v["about"]) for name, v in content["values"].items()]
    sources = []
    for benchmark, preset in content["presets"].items():
        rows = {"network": preset["network"], **preset["plan"], **preset["values"]}
        sources += [(benchmark, name, str(value), source) for name, (value, source) in rows.items()]
    tables = [_table("presets: what each benchmark sets", sources, ("benchmark", "name", "value", "source"))]
    if values:
        columns = ("name", "symbol", "default", "allowed", "meaning")
        tables.insert(0, _table("values (--set name=value)", values, columns))
    return tables
