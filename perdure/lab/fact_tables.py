"""Tables of the paper that need no runs: its data and its hyperparameters, as they are here."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.errors import PerdureError
from perdure.lab.build import open_clean
from perdure.lab.paper import printed
from perdure.lab.spec import presets, spec, split_name
from perdure.report.table import Column, Table, names, table
from perdure.types import Task


def datasets(benchmarks: Sequence[str], _methods: Sequence[str], root: Path | None) -> Table:
    """Classes and images of every task, and whether the paper says the same; tasks alike are one row."""
    rows: list[list[list[str]]] = []
    for benchmark in benchmarks:
        try:
            stream = open_clean(spec("finetune", benchmark), root)
        except PerdureError as error:
            rows.append([[benchmark, f"not read: {error}", *["–"] * 5]])
            continue
        theirs = printed()["datasets"].get(split_name(benchmark)[0])
        note = stream.notes.get("completeness", "complete")
        rows.append([[benchmark, *found] for found in _alike(stream.tasks, theirs, note)])
    columns = [*names("benchmark", "tasks"), *map(Column, ("classes", "train", "valid", "test")), *names("paper")]
    return table("images of each task", columns, *rows)


def _alike(tasks: Sequence[Task], theirs: dict[str, Any] | None, note: str) -> list[list[str]]:
    """A row for neighbors with the same numbers, here and in the paper."""
    counts = [[len(t.classes), len(t.train), len(t.valid), len(t.test)] for t in tasks]
    said = [[theirs["classes"], *images] for images in theirs["images"] * theirs["tasks"]] if theirs else []
    both = [(ours, said[place] if place < len(said) else None) for place, ours in enumerate(counts)]
    found: list[list[str]] = []
    first = 0
    for place, (ours, paper) in enumerate(both):
        if place + 1 < len(both) and both[place + 1] == both[first]:
            continue
        which = tasks[first].name if first == place else f"{tasks[first].name} … {tasks[place].name}"
        word = "–" if paper is None else "the same" if paper == ours else " / ".join(map(str, paper[1:]))
        found.append([which, *map(str, ours), word if note == "complete" else f"{word} ({note} here)"])
        first = place + 1
    return found


def hyperparameters(benchmarks: Sequence[str], methods: Sequence[str], _root: Path | None) -> Table:
    """The presets: how all methods are trained, and what each has besides; value (source), by benchmark."""
    kinds = {benchmark: presets()[split_name(benchmark)[0]] for benchmark in benchmarks}
    groups = [_values("all", {one: preset_file["plan"] for one, preset_file in kinds.items()})]
    for method in methods:
        own = {one: preset_file["methods"].get(method, {}) for one, preset_file in kinds.items()}
        groups.append(_values(method, {one: _flat(values) for one, values in own.items()}))
    return table("presets: value (source)", names("method", "value", *benchmarks), *groups, merged=True)


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """A method's table of a preset: its plan, its values, and those of its variants."""
    found = dict(values.get("plan", {}))
    for name, inner in values.items():
        if isinstance(inner, Mapping) and name != "plan":
            found |= {f"{key} (variant={name})": pair for key, pair in inner.items()}
        elif name != "plan":
            found[name] = inner
    return found


def _values(method: str, found: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """A row for each value that any benchmark has."""
    listed = dict.fromkeys(name for values in found.values() for name in values)
    cells = [[values.get(name) for values in found.values()] for name in listed]
    texts = [["–" if pair is None else f"{pair[0]} ({pair[1]})" for pair in row] for row in cells]
    return [[method, name, *row] for name, row in zip(listed, texts, strict=True)]


FACT_TABLES: dict[str, Callable[[Sequence[str], Sequence[str], Path | None], Table]] = {
    "datasets": datasets,
    "hyperparameters": hyperparameters,
}
