"""What `ls` and `show` print."""

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from perdure.errors import CorruptFile, PerdureError, UnknownName
from perdure.lab.index import find
from perdure.lab.store import read_probes, read_record
from perdure.registry import benchmarks, methods, networks, probes
from perdure.report.tables import comparison, matrix

if TYPE_CHECKING:
    from perdure.schema import Value


def shelves() -> dict[str, dict[str, str]]:
    """All that can be listed: kind → name → a line about it."""
    from perdure.lab.study_file import shipped

    kinds = {"methods": methods, "networks": networks, "benchmarks": benchmarks, "probes": probes}
    registered = {kind: {key: entry.about for key, entry in r.entries().items()} for kind, r in kinds.items()}
    return {**registered, "studies": shipped()}


def listing(name: str, entries: dict[str, str]) -> Table:
    table = Table(title=name, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    for entry, about in entries.items():
        table.add_row(f"[bold]{entry}[/]", about)
    return table


def described(name: str, out: Path) -> tuple[dict[str, Any], str, Sequence[Table | str]]:
    """A benchmark, a method or a run of the store `out`: as data, in a line, and in tables."""
    if (record := run_record(Path(name))) or (name not in methods and (record := _run_of_hash(name, out))):
        return record, f"{record['method']} on {record['benchmark']}, seed {record['seed']}", run_tables(record)
    if name in benchmarks:
        content = benchmark_description(name)
        return content, content["about"], described_tables(content, "settings (--data name=value)")
    if name in probes:
        content = probe_description(name)
        return content, content["about"], described_tables(content, "values (--set name=value)")
    if name not in methods:
        raise UnknownName("method, benchmark, probe or run", name, [*methods, *benchmarks, *probes])
    content = description(name)
    return content, content["about"], description_tables(content)


def run_record(path: Path) -> dict[str, Any] | None:
    """The record of a run with what was measured of it, if this is its directory; None if it is none."""
    try:
        record = read_record(path)
    except CorruptFile as error:
        raise PerdureError(f"{error}; run it again") from None
    return None if record is None else {**record, "probes": read_probes(path, record), "path": str(path)}


def _run_of_hash(name: str, out: Path) -> dict[str, Any] | None:
    """The run whose hash begins with the name, if the name looks like that at all."""
    if not re.fullmatch("[0-9a-f]{2,16}", name):
        return None
    path = find(out, name)
    if (record := run_record(path)) is None:
        raise PerdureError(f"{path}: not finished yet; the command that began it goes on with it")
    return record


def run_tables(record: dict[str, Any]) -> list[Table]:
    """What a run came to, which data it saw, what it held, and what was said against it."""
    seen = Table(title="data", title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, text in record["data"].items():
        if text and name != "fingerprint":
            seen.add_row(name, Text(text))
    held = Table(title="held at the end", title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    for kind, size in (record["memory_bytes"] or {"nothing besides the network": 0}).items():
        held.add_row(kind, f"{size / 1e6:,.2f} MB")
    if budget := record["facts"].get("budget"):
        held.add_row("budget", _budget(budget))
    for caution in record["cautions"]:
        held.add_row("warning", caution)
    return [matrix(record), comparison([record]), seen, held]


def _budget(spent: Mapping[str, Any]) -> str:
    """What was allowed, and what it costs: how much of the last task's energy each layer's basis holds."""
    shares = ", ".join(f"{layer} {100 * share:.1f}" for layer, share in spent["protected"].items())
    allowed, wanted = f"{spent['bytes'] / 1e6:,.2f} MB, in {spent['precision']}", f"wanted: {100 * spent['wanted']:.1f}"
    return f"{allowed}; of the last task's energy it protects, in %: {shares} ({wanted})"


def benchmark_description(name: str) -> dict[str, Any]:
    """A benchmark as data: what it is and what can be set about it."""
    from perdure.lab.spec import settings_of

    entry = benchmarks.find(name)
    opener = entry.load()
    return {"benchmark": name, "about": entry.about, "text": _text(opener), "settings": _plain(settings_of(opener))}


def probe_description(name: str) -> dict[str, Any]:
    """A probe as data: what it is and what can be set about it."""
    from perdure.schema import values_of

    entry = probes.find(name)
    maker = entry.load()
    return {"probe": name, "about": entry.about, "text": _text(maker), "settings": _plain(values_of(maker))}


def _text(thing: object) -> str:
    """Its docstring, with lines broken only between paragraphs."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(thing.__doc__ or ""))


def _plain(values: "Mapping[str, Value]") -> dict[str, Any]:
    return {name: {"default": v.default, "allowed": v.allowed, "about": v.about} for name, v in values.items()}


def described_tables(described: dict[str, Any], title: str) -> list[Table | str]:
    settings = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("name", "default", "allowed", "meaning"):
        settings.add_column(column)
    for name, value in described["settings"].items():
        settings.add_row(name, str(value["default"]), value["allowed"], value["about"])
    return [described["text"], *([settings] if described["settings"] else [])]


def description(method: str) -> dict[str, Any]:
    """A method as data: what it is, its values, what each preset sets them to and why."""
    from perdure.lab.spec import preset, presets
    from perdure.schema import values_of

    entry = methods.find(method)
    values = values_of(entry.load())
    return {
        "method": method,
        "about": entry.about,
        "values": {
            name: {"symbol": v.symbol, "default": v.default, "allowed": v.allowed, "about": v.about}
            for name, v in values.items()
        },
        "presets": {
            name: {
                "network": preset(name, method).network,
                "plan": preset(name, method).plan,
                "values": preset(name, method).values,
            }
            for name in presets()
            if method in presets()[name].get("methods", {})
        },
    }


def description_tables(described: dict[str, Any]) -> list[Table]:
    values = Table(title="values (--set name=value)", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("name", "symbol", "default", "allowed", "meaning"):
        values.add_column(column)
    for name, value in described["values"].items():
        values.add_row(name, value["symbol"], str(value["default"]), value["allowed"], value["about"])
    sources = Table(title="presets: what each benchmark sets", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("benchmark", "name", "value", "source"):
        sources.add_column(column)
    for benchmark, preset in described["presets"].items():
        rows = {"network": preset["network"], **preset["plan"], **preset["values"]}
        for i, (name, (value, source)) in enumerate(rows.items()):
            sources.add_row(benchmark if i == 0 else "", name, str(value), source)
    return [values, sources] if described["values"] else [sources]
