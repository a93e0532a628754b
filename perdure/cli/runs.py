"""`perdure ls runs`, `rm` and `export-runs`: the runs of a store, listed, removed, and as one table for other tools."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import AsJson, Store, guarded, note, print_error
from perdure.cli.page import Page
from perdure.errors import PerdureError, UsageError, WrongValue
from perdure.report.table import Column, table

if TYPE_CHECKING:
    from perdure.lab.index import RunSummary

Filters = Annotated[
    list[str],
    typer.Argument(metavar="METHOD|BENCHMARK|STATE", help="Only these, e.g. rcl six; all when left out."),
]


def join(app: typer.Typer) -> None:
    """Add these verbs to the command line."""
    app.command("rm")(guarded(rm))
    app.command("export-runs")(guarded(export_runs))


# --- ls runs ---


def list_runs(out: Path, filters: Sequence[str], as_json: bool, page: Page) -> None:
    """Print a line per run, or a table in another format; problems go to standard error."""
    from perdure.lab.index import runs

    rows = runs(out, filters)
    if as_json:
        print(json.dumps({"store": str(out), "runs": [row._asdict() for row in rows]}, ensure_ascii=False))
        return
    if rows and page.form != "table":
        heads, *cells = zip(*([name, *column] for name, column in _columns(rows).items()), strict=True)
        columns = [Column(name[1:], right=name[0] == ">") for name in heads]
        page.tables([table(f"runs in {out}", columns, cells)])
    elif rows:
        print("\n".join(_lines(rows)))
    else:
        note(f"no {' '.join([*filters, 'runs'])} in {out}")
    for row in rows:
        if row.problem:
            note(f"{row.state}: {row.problem}")


def _lines(rows: "Sequence[RunSummary]") -> Iterator[str]:
    """Columns of even width. By hand: rich takes seconds for ten thousand rows."""
    padded = []
    for name, cells in _columns(rows).items():
        width = max(map(len, [name[1:], *cells]))
        padded.append([f"{cell:{name[0]}{width}}" for cell in [name[1:], *cells]])
    for line in zip(*padded, strict=True):
        yield "  ".join(line).rstrip()


def _columns(rows: "Sequence[RunSummary]") -> dict[str, list[str]]:
    """Cells by the name of their column, before which stands whether they go to its left or right."""
    columns = {
        "<run": [row.digest for row in rows],
        "<benchmark": [row.benchmark or "–" for row in rows],
        "<method": [row.method or "–" for row in rows],
        "<network": [row.network or "–" for row in rows],
        ">seed": [_figure(row.seed) for row in rows],
        ">tasks": [_figure(row.tasks) for row in rows],
        "<outliers": [row.outliers or "–" for row in rows],
        ">ACC": [_figure(row.acc, ".1f") for row in rows],
        ">BWT": [_figure(row.bwt, "+.1f") for row in rows],
        ">seconds": [_figure(row.seconds, ".0f") for row in rows],
        "<state": [f"{row.state} {_when(row.finished)}" for row in rows],
    }
    if not any(row.outliers for row in rows):
        del columns["<outliers"]
    return columns


def _figure(value: float | None, form: str = "") -> str:
    return "–" if value is None else format(value, form)


def _when(finished: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(finished)) if finished else ""


# --- rm ---


def rm(
    names: Annotated[list[str], typer.Argument(metavar="RUN", help="Paths, or unique beginnings of hashes.")],
    out: Store = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove runs, finished or not, with everything in their directories."""
    from perdure.lab.index import find_run, remove_run

    paths = list(dict.fromkeys(find_run(out, name) for name in names))
    if not yes:
        _confirm(paths)
    removed, failures = [], []
    for path in paths:
        try:
            remove_run(out, path)
        except PerdureError as error:
            failures.append(error)
            print_error(error)
        else:
            removed.append(str(path))
            note(f"removed {path}")
    if as_json:
        print(json.dumps({"removed": removed, "failed": [str(error) for error in failures]}, ensure_ascii=False))
    if failures:
        raise typer.Exit(max(error.exit_code for error in failures))


def _confirm(paths: Sequence[Path]) -> None:
    what = str(paths[0]) if len(paths) == 1 else f"{len(paths)} runs ({', '.join(str(path) for path in paths)})"
    if not sys.stdin.isatty():
        raise UsageError(f"would remove {what}; say --yes if you mean it")
    note(f"Remove {what}? [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise PerdureError("nothing was removed")


# --- export-runs ---


def export_runs(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD|BENCHMARK|STATE|FILE",
            help="Only these runs, e.g. rcl six, all when left out; and where to: FILE.csv, FILE.parquet.",
        ),
    ] = [],  # noqa: B006 — typer reads it, nobody changes it
    out: Store = Path("runs"),
    per: Annotated[
        str, typer.Option(metavar="run|task", help="A row for every run, or for each of its tasks.")
    ] = "run",
    to_csv: Annotated[bool, typer.Option("--csv", help="CSV, on standard output if no FILE.csv is named.")] = False,
    to_parquet: Annotated[
        bool, typer.Option("--parquet", help="Parquet, on standard output if no FILE.parquet is named.")
    ] = False,
    records: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A store of these runs without their models, to be published.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write all finished runs as one table: names, every value, plan, figures. CSV on standard output by default."""
    from perdure.lab import export

    if not out.is_dir():
        raise PerdureError(f"there is no store of runs {out}; name one with --out")
    named = [Path(word) for word in words if Path(word).suffix in export.SUFFIXES]
    filters = [word for word in words if Path(word).suffix not in export.SUFFIXES]
    if misnamed := [word for word in filters if "/" in word and ":" not in word]:
        raise WrongValue(f"{misnamed[0]}: not a file to write; name one that ends in {' or '.join(export.SUFFIXES)}")
    files = {file.suffix: file for file in named}
    if len(files) < len(named):
        raise WrongValue("two files of one kind would hold the same table; name one")
    piped = [kind for kind, given in ((".csv", to_csv), (".parquet", to_parquet)) if given and kind not in files]
    if records is not None and records.resolve() == out.resolve():
        raise WrongValue(f"{records} is the store itself; name another folder")
    if not (files or piped or as_json or records):
        piped = [".csv"]
    if len(piped) + as_json > 1:
        raise WrongValue("several tables would go to standard output; choose one, or name files, e.g. runs.csv")
    if piped == [".parquet"]:
        if sys.stdout.isatty():
            raise WrongValue("Parquet is not for the terminal; name a file, e.g. --parquet runs.parquet")
        export.import_pyarrow()
    csv, parquet = files.get(".csv"), files.get(".parquet")
    table = export.export_runs(out, filters=filters, per=per, csv=csv, parquet=parquet, records=records, warn=note)
    if as_json:
        print(json.dumps(table, ensure_ascii=False))
    elif piped:
        sys.stdout.buffer.write(export.to_csv(table) if piped == [".csv"] else export.to_parquet(table))
    for file in files.values():
        note(f"{len(table)} rows in {file}")
    if records is not None:
        note(f"{len({row['run'] for row in table})} runs in {records}; `perdure report --out {records}` shows them")
