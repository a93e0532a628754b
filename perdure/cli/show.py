"""What `ls` and `show` print."""

from typing import Any

from rich.table import Table

from perdure.errors import UnknownName
from perdure.registry import Registry, benchmarks, methods, networks, probes

SHELVES: dict[str, Registry] = {"methods": methods, "networks": networks, "benchmarks": benchmarks, "probes": probes}


def shelf(name: str) -> Registry:
    if name not in SHELVES:
        raise UnknownName("list", name, SHELVES)
    return SHELVES[name]


def listing(name: str) -> Table:
    table = Table(title=name, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    for entry, about in ((key, entry.about) for key, entry in shelf(name).entries().items()):
        table.add_row(f"[bold]{entry}[/]", about)
    return table


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
