"""`perdure report`: one page of runs or of a study."""

from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.options import Store, guarded, stdout
from perdure.errors import UnknownName

FORMATS = ("html", "markdown", "latex", "csv")


def join(app: typer.Typer) -> None:
    """Add this verb to the command line."""
    app.command("report")(guarded(report))


def report(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...|STUDY",
            help="Runs by path, by the beginning of a hash, or by method and benchmark (e.g. rcl six), or a study by "
            "its name or TOML file; all finished runs when left out.",
        ),
    ] = [],  # noqa: B006 — typer reads it, nobody changes it
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where it goes.", show_default="beside what it shows")
    ] = None,
    out: Store = Path("runs"),
    scale: Annotated[float, typer.Option(metavar="X", help="Of a study: the one it was done with.")] = 1.0,
    form: Annotated[
        str,
        typer.Option("--format", metavar="|".join(FORMATS), help="A page, or its tables alone; these are printed."),
    ] = "html",
) -> None:
    """Write one page of runs or of a study, with all tables and figures, that opens without a network."""
    from perdure.lab import report as lab

    if form not in FORMATS:
        raise UnknownName("format of a report", form, FORMATS)
    if form == "html" or file is not None:
        stdout.print(f"report: {lab.write_report(words or None, file, out, scale=scale, format=form)}", soft_wrap=True)
        return
    stdout.file.write(lab.gather(words or None, out, scale=scale)[0].text(form))
