"""`perdure data`: which image files are there, fetch them, examine them. The work is done in `perdure.data`."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from perdure.cli.options import App, AsJson, Root, VerbGroup, guarded, print_error, stderr, stdout
from perdure.cli.page import Format, Page
from perdure.errors import MissingFile, PerdureError
from perdure.report.table import names, table

if TYPE_CHECKING:
    from perdure.data.validate import DataReport

P = ParamSpec("P")
app = App(cls=VerbGroup, no_args_is_help=True, help="Image files: which are there, fetch them, examine them.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="A benchmark or an image set, see `perdure data ls`.")]


def verb(action: Callable[P, None]) -> Callable[P, None]:
    return app.command()(guarded(action))


@verb
def ls(root: Root = None, form: Format = "table", as_json: AsJson = False) -> None:
    """List the image sets, the benchmarks that use them, and where they are."""
    from perdure.data.catalog import SETS, USES
    from perdure.data.locate import locate
    from perdure.data.paths import data_root

    page, where = Page(form), data_root(root)
    rows: list[dict[str, Any]] = []
    for name, published in SETS.items():
        try:
            place = locate(published, where)
            found: str | None = str(place.folder)
            source: str | None = place.layout.name
        except PerdureError as error:
            found = source = None
            if not isinstance(error, MissingFile):
                print_error(error)
        benchmarks = [benchmark for benchmark, sets in USES.items() if published in sets]
        to_fetch = sum(download.size for download in published.downloads)
        rows.append(
            {"name": name, "benchmarks": benchmarks, "found": found, "source": source}
            | {"download_bytes": to_fetch or None, "terms": published.terms}
        )
    if as_json:
        print(json.dumps({"root": str(where), "sets": rows}, ensure_ascii=False))
        return
    cells = []
    for row in rows:
        size = f"{row['download_bytes'] / 1e6:.0f} MB" if row["download_bytes"] else "by hand"
        cells.append([row["name"], ", ".join(row["benchmarks"]), row["source"] or "–", size, row["terms"]])
    columns = names("set", "benchmarks", "found", "to fetch", "terms")
    page.tables([table(f"image sets in {where}", columns, cells, framed=False)])


@verb
def fetch(name: Name, root: Root = None, as_json: AsJson = False) -> None:
    """Fetch what is missing: from several mirrors, resumed where it stopped, checked against its checksum."""
    from perdure.data.catalog import sets_of
    from perdure.data.locate import fetch_missing
    from perdure.data.paths import data_root

    where = data_root(root)
    done: list[dict[str, str]] = []
    failures: list[PerdureError] = []
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=stderr, disable=not stderr.is_terminal) as progress:
        bars: dict[str, Any] = {}

        def show(file: str, have: int, total: int) -> None:
            if file not in bars:
                bars[file] = progress.add_task(file, total=total)
            progress.update(bars[file], completed=have)

        for published in sets_of(name):
            for file, outcome in fetch_missing(published, where, show):
                if isinstance(outcome, PerdureError):
                    failures.append(outcome)
                    print_error(outcome)
                    continue
                done.append({"set": published.name, "file": file, "done": outcome})
                stderr.print(f"{file}: {outcome}", soft_wrap=True)
    if as_json:
        print(json.dumps({"root": str(where), "files": done, "failed": [str(error) for error in failures]}))
    elif not failures:
        stdout.print(
            f"{name}: everything that can be fetched is in {where}; `perdure data check {name}` examines it",
            soft_wrap=True,
        )
    if failures:
        raise typer.Exit(failures[0].exit_code)


COLORS = {"good": "green", "note": "yellow", "bad": "red"}


@verb
def check(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A benchmark, an image set, or folder:PATH for your own images.")
    ],
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Examine files, counts, labels and copies, and say whether figures may be compared with published ones."""
    from perdure.data import check as check_data

    def show(report: "DataReport") -> None:
        if report.completeness == "unreadable":
            print_error(report.verdict)
        elif not as_json:
            _print(report)

    reports = check_data(name, root, on_report=show)
    failed = [report.verdict for report in reports if report.completeness == "unreadable"]
    if as_json:
        found = [asdict(report) for report in reports if report.completeness != "unreadable"]
        print(json.dumps({"sets": found, "failed": failed}, ensure_ascii=False))
    if failed:
        raise typer.Exit(PerdureError.exit_code)


def _print(found: "DataReport") -> None:
    stdout.print(Text.assemble((found.name, "bold"), f": {found.source}, in {found.folder}"), soft_wrap=True)
    for finding in found.findings:
        stdout.print(
            Text.assemble("  ", (f"{finding.level:4}", COLORS[finding.level]), f" {finding.text}"), soft_wrap=True
        )
    stdout.print(f"  {found.verdict}", soft_wrap=True, style="bold")
