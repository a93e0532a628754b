"""Finished runs as one table for other programs, CSV or Parquet, or as a store without models, to be published."""

import csv as csv_format
import io
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from perdure import files
from perdure.errors import PerdureError, UnknownName, install_hint
from perdure.lab import store
from perdure.lab.index import RunSummary, flattened, runs
from perdure.ops.statistics import headlines
from perdure.report.table import safe_cell

Table = list[dict[str, Any]]
SUFFIXES = (".csv", ".parquet")


def export_runs(
    out: str | Path = "runs",
    *,
    filters: Sequence[str] = (),
    per: str = "run",
    csv: str | Path | None = None,
    parquet: str | Path | None = None,
    records: str | Path | None = None,
    warn: Callable[[str], None] | None = None,
) -> Table:
    """All finished runs of a store as rows, written to a CSV or a Parquet file where one is named.

    A folder for `records` becomes a store of the same runs without their models, some kilobytes each: reports, tables
    and listings are made from it as from the whole one. Filters are those of `runs`; `per` is "run" or "task". What is
    not finished or not readable is left out, and `warn` is called with what that was.

    >>> export_runs("nowhere", filters=["rcl"], per="task")
    []
    """
    if per not in ("run", "task"):
        raise UnknownName("kind of row", per, ["run", "task"])
    if parquet is not None:
        import_pyarrow()  # before anything is read or written
    table: Table = []
    for row, record in _records(Path(out), runs(out, filters), warn or (lambda _: None)):
        facts = _row(row, record)
        table += [facts] if per == "run" else [{**facts, **task} for task in _tasks(record)]
        if records is not None:
            _copy_record(Path(out, row.path), Path(records, row.path), record["probes"])
    for file, convert in ((csv, to_csv), (parquet, to_parquet)):
        if file is not None:
            store.write(Path(file), convert(table), advice="name another file")
    return table


def _records(
    root: Path, rows: Sequence[RunSummary], warn: Callable[[str], None]
) -> Iterator[tuple[RunSummary, dict[str, Any]]]:
    for row in rows:
        if row.state == "unfinished":
            continue
        try:
            record = store.read_record(root / row.path) if row.problem is None else None
        except PerdureError as error:
            row, record = row._replace(problem=str(error)), None
        if record is None:
            warn(f"left out: {row.problem or row.path}")
        else:
            probes = store.read_probes(root / row.path, record, lambda text: warn(f"left out: {text}"))
            yield row, {**record, "probes": probes}
    if unfinished := sum(row.state == "unfinished" for row in rows):
        warn(f"left out: {unfinished} unfinished")


def _copy_record(run: Path, place: Path, probes: Mapping[str, Mapping[str, Any]]) -> None:
    """All of a run but its model, snapshots and pictures; the record last, as a run itself writes it."""
    names = ["spec.toml", "epochs.jsonl"]
    for key, found in probes.items():
        names += [f"probes/{key}.json", *([f"probes/{key}.safetensors"] if found["arrays"] else [])]
    for name in (*names, "record.json"):
        try:
            with files.open_plain(run / name, store.LARGEST) as source:
                _copy(source, place / name)
        except OSError as error:
            raise PerdureError(f"{run / name}: cannot be read ({store.why(error)})") from None


def _copy(source: IO[bytes], place: Path) -> None:
    with store.atomic_write(place, "name another folder") as part, part.open("wb") as copy:
        shutil.copyfileobj(source, copy)


def _row(row: RunSummary, record: dict[str, Any]) -> dict[str, Any]:
    """Names and figures; values, plan and settings as values.radius, plan.rate …; probes as measured.ECE …"""
    figures = ("acc", "bwt", "learning_accuracy", "forgetting", "seconds")
    return {
        "run": row.digest,
        **{name: record[name] for name in ("method", "benchmark", "network", "seed")},
        "tasks": row.tasks,
        "outliers": row.outliers,
        **{name: record.get(name) for name in figures},
        "memory_bytes": sum((record.get("memory_bytes") or {}).values()),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(row.finished)),
        **{name: record.get(name) for name in ("device", "threads")},
        **flattened({name: record.get(name, {}) for name in ("values", "plan", "settings", "versions")}),
        **{f"measured.{name}": figure for name, figure in headlines(record).items()},
    }


def _tasks(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The accuracy of each task just after it was learned, where tasks came one by one, and in the end."""
    matrix = record["accuracy_matrix"]
    one_by_one = len(matrix) == len(matrix[-1])
    for number, (name, final) in enumerate(zip(record["task_names"], matrix[-1], strict=True)):
        learned = matrix[number][number] if one_by_one else None
        yield {"task": number + 1, "task_name": name, "accuracy_learned": learned, "accuracy_final": final}


def to_csv(table: Table) -> bytes:
    """Names of tasks and runs are texts, and no formulas to a spreadsheet."""
    text, names = io.StringIO(), _names(table)
    writer = csv_format.writer(text, lineterminator="\n")
    rows: list[list[Any]] = [names, *([row.get(name) for name in names] for row in table)]
    writer.writerows([safe_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return text.getvalue().encode(errors="backslashreplace")


def to_parquet(table: Table) -> bytes:
    """A column has one type: where runs disagree, e.g. 3 and "all", all of it becomes text."""
    arrow, content, columns = import_pyarrow(), io.BytesIO(), {}
    for name in _names(table):
        values = [row.get(name) for row in table]
        kinds = {type(value) for value in values if value is not None}
        too_large = any(isinstance(value, int) and abs(value) >= 2**63 for value in values)
        if too_large or (len(kinds) > 1 and kinds != {int, float}):
            values = [value if isinstance(value, str | None) else json.dumps(value) for value in values]
        columns[name] = values
    arrow.parquet.write_table(arrow.table(columns), content)
    return content.getvalue()


def _names(table: Table) -> list[str]:
    return list(dict.fromkeys(name for row in table for name in row))


def import_pyarrow() -> Any:
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError:
        raise PerdureError(f"Parquet needs pyarrow: {install_hint('parquet')}; or write --csv") from None
