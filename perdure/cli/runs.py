"""`perdure ls runs`, `rm` and `export-runs`: the runs of a store, listed, removed, and as one table for other tools."""

import csv
import io
import json
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.options import AsJson, guarded, print_error, stderr
from perdure.errors import PerdureError, UnknownName, UsageError, WrongValue

if TYPE_CHECKING:
    from perdure.lab.index import Row

Out = Annotated[Path, typer.Option(help="Where records are.")]
Filters = Annotated[
    list[str],
    typer.Argument(metavar="[METHOD|BENCHMARK|STATE]...", help="Only these, e.g. rcl six; all when left out."),
]
Table = list[dict[str, Any]]


def join(app: typer.Typer) -> None:
    """Add these verbs to the command line."""
    app.command("rm")(guarded(rm))
    app.command("export-runs")(guarded(export_runs))


# --- ls runs ---


def listing(out: Path, words: Sequence[str], as_json: bool) -> None:
    """Print a line per run; what is damaged is named besides."""
    from perdure.lab import index

    rows = index.chosen(index.runs(out), words)
    if as_json:
        print(json.dumps({"store": str(out), "runs": [row._asdict() for row in rows]}, ensure_ascii=False))
        return
    if rows:
        print("\n".join(_lines(_columns(rows))))
    else:
        stderr.print(f"no {' '.join([*words, 'runs'])} in {out}", markup=False, soft_wrap=True)
    for row in rows:
        if row.problem:
            stderr.print(f"{row.state}: {row.problem}", markup=False, soft_wrap=True)


HEAD = ("run", "benchmark", "method", "network", "seed", "tasks", "outliers", "ACC", "BWT", "seconds", "state")
TO_THE_RIGHT = {"seed", "tasks", "ACC", "BWT", "seconds"}


def _cells(row: "Row") -> tuple[str, ...]:
    scores = (_figure(row.acc, ".1f"), _figure(row.bwt, "+.1f"), _figure(row.seconds, ".0f"))
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.finished)) if row.finished else ""
    names = (row.benchmark or "–", row.method or "–", row.network or "–")
    counts = (_figure(row.seed), _figure(row.tasks), row.outliers or "–")
    return (row.digest, *names, *counts, *scores, f"{row.state} {when}".strip())


def _columns(rows: Sequence["Row"]) -> list[tuple[str, ...]]:
    """Head and cells; a word on outliers only where some run has them."""
    cells = [HEAD, *(_cells(row) for row in rows)]
    if any(row.outliers for row in rows):
        return cells
    at = HEAD.index("outliers")
    return [(*line[:at], *line[at + 1 :]) for line in cells]


def _figure(value: float | None, form: str = "") -> str:
    return "–" if value is None else format(value, form)


def _lines(cells: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Columns of even width. By hand: rich takes seconds for ten thousand rows."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = [">" if name in TO_THE_RIGHT else "<" for name in cells[0]]
    for row in cells:
        yield "  ".join(f"{c:{s}{w}}" for c, s, w in zip(row, sides, widths, strict=True)).rstrip()


# --- rm ---


def rm(
    names: Annotated[list[str], typer.Argument(metavar="RUN...", help="Paths, or unique beginnings of hashes.")],
    out: Out = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove runs, finished or not, with everything in their directories."""
    from perdure.lab import index

    paths = list(dict.fromkeys(index.find(out, name) for name in names))
    if not yes:
        _ask(paths)
    removed, failures = [], []
    for path in paths:
        try:
            index.remove(out, path)
        except PerdureError as error:
            failures.append(error)
            print_error(error)
        else:
            removed.append(str(path))
            stderr.print(f"removed {path}", markup=False, soft_wrap=True)
    if as_json:
        print(json.dumps({"removed": removed, "failed": [str(error) for error in failures]}, ensure_ascii=False))
    if failures:
        raise typer.Exit(max(error.exit_code for error in failures))


def _ask(paths: Sequence[Path]) -> None:
    what = str(paths[0]) if len(paths) == 1 else f"{len(paths)} runs ({', '.join(str(path) for path in paths)})"
    if not sys.stdin.isatty():
        raise UsageError(f"would remove {what}; say --yes if you mean it")
    stderr.print(f"Remove {what}? [y/N] ", end="", markup=False, soft_wrap=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise PerdureError("nothing was removed")


# --- export-runs ---


def export_runs(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[METHOD|BENCHMARK|STATE]... [FILE.csv|FILE.parquet]...",
            help="Only these runs, e.g. rcl six, all when left out; and where to.",
        ),
    ] = [],  # noqa: B006 — typer reads it, nobody changes it
    out: Out = Path("runs"),
    per: Annotated[
        str, typer.Option(metavar="run|task", help="A row for every run, or for each of its tasks.")
    ] = "run",
    to_csv: Annotated[bool, typer.Option("--csv", help="CSV, on standard output if no FILE.csv is named.")] = False,
    to_parquet: Annotated[
        bool, typer.Option("--parquet", help="Parquet, on standard output if no FILE.parquet is named.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write all finished runs as one table: names, every value, plan, figures. CSV on standard output if not told."""
    from perdure.lab import index, store

    if per not in ("run", "task"):
        raise UnknownName("kind of row", per, ["run", "task"])
    files = [Path(word) for word in words if Path(word).suffix in FORMATS]
    named = {file.suffix for file in files}
    piped = [kind for kind, asked in ((".csv", to_csv), (".parquet", to_parquet)) if asked and kind not in named]
    if not (files or piped or as_json):
        piped = [".csv"]
    if len(piped) + as_json > 1:
        raise WrongValue("several tables would go to standard output; choose one, or name files, e.g. runs.csv")
    if piped == [".parquet"] and sys.stdout.isatty():
        raise WrongValue("Parquet is not for the stdout; name a file, e.g. --parquet runs.parquet")
    if ".parquet" in {*named, *piped}:
        _pyarrow()  # before anything is read or written
    filters = [word for word in words if Path(word).suffix not in FORMATS]
    table = gathered(out, index.chosen(index.runs(out), filters), per)
    if as_json:
        print(json.dumps(table, ensure_ascii=False))
    for kind in piped:
        sys.stdout.buffer.write(FORMATS[kind](table))
    for file in files:
        store.write(file, FORMATS[file.suffix](table))
        stderr.print(f"{len(table)} rows in {file}", markup=False, soft_wrap=True)


def gathered(root: Path, rows: Sequence["Row"], per: str) -> Table:
    """The records of these runs, flat. What is not finished or not readable is left out, and said."""
    from perdure.lab import store

    table: Table = []
    left_out = 0
    for row in rows:
        if row.state == "unfinished":
            left_out += 1
            continue
        try:
            record = store.read_record(root / row.path) if row.problem is None else None
        except PerdureError as error:
            row = row._replace(problem=str(error))
            record = None
        if record is None:
            stderr.print(f"left out: {row.problem or row.path}", markup=False, soft_wrap=True)
            continue
        facts = flat(row, {**record, "probes": store.read_probes(root / row.path, record)})
        table += [facts] if per == "run" else [{**facts, **task} for task in tasks_of(record)]
    if left_out:
        stderr.print(f"left out: {left_out} unfinished")
    return table


def flat(row: "Row", record: dict[str, Any]) -> dict[str, Any]:
    """A record as one row: names and figures, and values, plan and settings as values.radius, plan.rate …; what was
    measured as measured.ECE …"""
    from perdure.lab import index
    from perdure.ops.statistics import headlines

    names = {name: record[name] for name in ("method", "benchmark", "network", "seed")}
    figures = {name: record.get(name) for name in ("acc", "bwt", "learning_accuracy", "forgetting", "seconds")}
    held = {"memory_bytes": sum((record.get("memory_bytes") or {}).values())}
    machine = {name: record.get(name) for name in ("device", "threads")}
    groups = index.flattened({name: record.get(name, {}) for name in ("values", "plan", "settings", "versions")})
    finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(row.finished))
    return {
        "run": row.digest,
        **names,
        "tasks": row.tasks,
        "outliers": row.outliers,
        **figures,
        **held,
        "finished": finished,
        **machine,
        **groups,
        **{f"measured.{name}": figure for name, figure in headlines(record).items()},
    }


def tasks_of(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What became of each task: its accuracy just after it was learned, where tasks came one by one, and in the end."""
    matrix = record["accuracy_matrix"]
    one_by_one = len(matrix) == len(matrix[-1])
    for number, (name, final) in enumerate(zip(record["task_names"], matrix[-1], strict=True)):
        learned = matrix[number][number] if one_by_one else None
        yield {"task": number + 1, "task_name": name, "accuracy_learned": learned, "accuracy_final": final}


def columns(table: Table) -> dict[str, list[Any]]:
    """Column by column, of one type each: where runs disagree, e.g. 3 and "all", all of it becomes text."""
    names = list(dict.fromkeys(name for row in table for name in row))
    found = {name: [row.get(name) for row in table] for name in names}
    return {name: values if _alike(values) else [_text(value) for value in values] for name, values in found.items()}


def _alike(values: Sequence[Any]) -> bool:
    kinds = {type(value) for value in values if value is not None}
    return len(kinds) <= 1 or kinds == {int, float}


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def as_csv(table: Table) -> bytes:
    names = list(dict.fromkeys(name for row in table for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue().encode()


def as_parquet(table: Table) -> bytes:
    arrow, content = _pyarrow(), io.BytesIO()
    arrow.parquet.write_table(arrow.table(columns(table)), content)
    return content.getvalue()


FORMATS = {".csv": as_csv, ".parquet": as_parquet}


def _pyarrow() -> Any:
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError:
        raise PerdureError("Parquet needs pyarrow: pip install 'perdure[parquet]'; or write --csv") from None
