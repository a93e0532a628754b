"""Where runs differ, in what was asked for and in what came of it; the rest is said once."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.ops.statistics import spread, without_file
from perdure.report.render import number
from perdure.report.table import Table, names, table

Record = Mapping[str, Any]
RESULTS = {
    "acc": "ACC",
    "bwt": "BWT",
    "learning_accuracy": "new task",
    "forgetting": "forgetting",
    "seconds": "seconds",
}


def asked(record: Record) -> dict[str, str]:
    """Everything that was asked for and where it was computed, flat, in words."""
    found = {name: record.get(name) for name in ("method", "benchmark", "network", "seed")}
    found["tasks"] = len(record["task_names"])
    found |= {"outliers": record.get("outliers") or "none", "tested on": record.get("judged_on", "test")}
    found |= {f"data {name}": value for name, value in record["settings"].items()}
    found |= {f"plan {name}": value for name, value in record["plan"].items()}
    found |= record["values"]
    found |= {f"code of {kind}": code.get("checksum") for kind, code in (record.get("code") or {}).items()}
    found |= {"images": record["data"].get("fingerprint") or record["data"].get("source")}
    found |= {f"version of {name}": version for name, version in record["versions"].items()}
    found |= {"threads": record["threads"], "device": record["device"]}
    return {name: _words(value) for name, value in found.items()}


def _words(value: Any) -> str:
    if isinstance(value, str):
        return without_file(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value)) or "none"
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def specification(record: Record) -> Table:
    """All of a run's specification."""
    return table("specification", names("name", "value"), [[name, value] for name, value in asked(record).items()])


def differing_tables(runs: Mapping[str, Sequence[Record]]) -> list[Table | None]:
    """What differs in specification, what differs in result, and what is the same in all; None where that is nothing.

    Columns are runs, or several runs under one name; then a cell has each of their values.
    """
    if len(runs) < 2:
        return []
    columns = list(runs)
    wanted = [[asked(record) for record in some] for some in runs.values()]
    keys = dict.fromkeys(name for some in wanted for one in some for name in one)
    rows, same = [], []
    for name in keys:
        cells = [_values(one.get(name, "–") for one in some) for some in wanted]
        if len(set(cells)) > 1:
            rows.append([name, *cells])
        else:
            same.append([name, cells[0]])
    found = [[results(record) for record in some] for some in runs.values()]
    figures = dict.fromkeys(name for some in found for one in some for name in one)
    outcome = [[name, *(_spread([one.get(name) for one in some], name) for some in found)] for name in figures]
    outcome = [row for row in outcome if len(set(row[1:])) > 1]
    return [
        table("what differs in specification", names("", *columns), rows) if rows else None,
        table("what differs in result", ["", *columns], outcome) if outcome else None,
        table("what is the same in all", names("name", "value"), same) if same else None,
    ]


def results(record: Record) -> dict[str, float | None]:
    """What came of a run: its figures, and the accuracy on each task in the end."""
    found = {name: record[key] for key, name in RESULTS.items()}
    found["memory, MB"] = sum(record["memory_bytes"].values()) / 1e6
    tasks = zip(record["task_names"], record["accuracy_matrix"][-1], strict=True)
    return found | {f"{name}, in the end": value for name, value in tasks}


def _spread(values: Sequence[float | None], name: str) -> str:
    """A figure; of several runs its mean and deviation."""
    found = spread([value for value in values if value is not None])
    if found is None:
        return "–"
    sign = "+" if name == "BWT" else ""
    error = "" if found.deviation is None else f" ± {found.deviation:.1f}"
    return number(round(found.mean, 1) + 0.0, f"{sign}.1f") + error  # − 0 is 0


def _values(values: Any) -> str:
    """Each value once."""
    return ", ".join(dict.fromkeys(values))
