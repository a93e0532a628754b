"""`perdure probe`: what a finished run is worth under attack and corruption; how flat, how spread, how full it is."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from perdure import registry
from perdure.cli.options import AsJson, Device, Root, Store, guarded, stderr, stdout
from perdure.report.probes import Result, renderer
from perdure.report.tables import duration

if TYPE_CHECKING:
    from perdure.lab.probe_runs import ProbeReport


def join(app: typer.Typer) -> None:
    """Add this verb to the command line."""
    app.command("probe")(guarded(probe))


def probe(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|PROBE",
            help="Runs by path, by the beginning of a hash, or by method and benchmark (e.g. rcl six); then probes, "
            "see `perdure ls probes` and `perdure show PROBE`.",
        ),
    ],
    values: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="[PROBE.]NAME=VALUE", help="Set a value of the probes, e.g. strengths=2/255,8/255."
        ),
    ] = [],  # noqa: B006 — typer reads it, nobody changes it
    dry: Annotated[bool, typer.Option("--dry", help="Only say how long it will take.")] = False,
    root: Root = None,
    out: Store = Path("runs"),
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure finished runs. What was measured before is not measured again; several runs are compared."""
    from perdure.cli.progress import RunBars
    from perdure.lab import probe_runs
    from perdure.lab.spec import assignments

    probes = [word for word in words if word in registry.probes]
    runs = [word for word in words if word not in registry.probes]
    where: dict[str, Any] = {"values": assignments(values), "out": out, "root": root, "device": device}
    if dry:
        _print_forecast(probe_runs.forecast(probes, runs, **where), as_json)
        return
    with RunBars(stderr) as progress:
        reports = probe_runs.probe(probes, runs, **where, progress=progress)
    if as_json:
        _print_json(reports)
        return
    for report in reports:
        own = renderer(report.name)
        tables = own.tables(report.results) if own is not None else [_headlines(report.name, report.results)]
        for part in tables:
            stdout.print(part, markup=False, soft_wrap=isinstance(part, str))
        stdout.print()
    for report in reports:
        for picture in report.pictures:
            stdout.print(f"picture: {picture}", soft_wrap=True, markup=False)


def _print_json(reports: "Sequence[ProbeReport]") -> None:
    found = {
        report.key: [
            {"run": result.label, "values": result.values, "headline": result.headline, **result.figures}
            for result in report.results
        ]
        for report in reports
    }
    pictures = [str(picture) for report in reports for picture in report.pictures]
    print(json.dumps({"probes": found, "pictures": pictures}, ensure_ascii=False))


def _headlines(name: str, results: Sequence[Result]) -> Table:
    """Of a probe from another package, for which the report has no tables."""
    table = Table("run", *results[0].headline, title=name, title_justify="left")
    for result in results:
        table.add_row(result.label, *(f"{value:.4g}" for value in result.headline.values()))
    return table


def _print_forecast(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    seconds = sum(row["seconds"] for row in rows)
    if as_json:
        print(json.dumps({"probes": rows, "seconds": seconds}, ensure_ascii=False))
        return
    table = Table("run", "probe", "images forward", "forward and backward", "about", title_justify="left")
    for row in rows:
        counts = (f"{row['forwards']:,}", f"{row['gradients']:,}", row["note"] or duration(row["seconds"]))
        table.add_row(row["run"], row["probe"], *counts)
    stdout.print(table)
    stdout.print(f"together about {duration(seconds)} here", soft_wrap=True)
