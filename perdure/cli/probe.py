"""`perdure probe`: what a finished run is worth under attack and corruption; how flat, how spread, how full it is."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure import registry
from perdure.cli.options import AsJson, Code, Device, Root, Store, guarded, stderr
from perdure.cli.page import Format, Page
from perdure.report.probes import Result, renderer, showing
from perdure.report.table import Column, Table, names, table
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
    code: Code = [],  # noqa: B006
    form: Format = "table",
    as_json: AsJson = False,
) -> None:
    """Measure finished runs. What was measured before is not measured again; several runs are compared."""
    from perdure.cli.progress import RunBars
    from perdure.lab import probe_runs
    from perdure.lab.spec import assignments

    page = Page(form)
    probes = [word for word in words if _is_probe(word)]
    runs = [word for word in words if word not in probes]
    where: dict[str, Any] = {"values": assignments(values), "out": out, "root": root, "device": device, "code": code}
    if dry:
        _print_forecast(probe_runs.forecast(probes, runs, **where), page, as_json)
        return
    with RunBars(stderr) as progress:
        reports = probe_runs.probe(probes, runs, **where, progress=progress)
    if as_json:
        _print_json(reports)
        return
    for report in reports:
        own = renderer(report.name)
        with showing(report.key):
            tables = own.tables(report.results) if own is not None else [_headlines(report.name, report.results)]
        page.tables(tables)
        page.gap()
    for report in reports:
        for picture in report.pictures:
            page.say(f"picture: {picture}")


def _is_probe(word: str) -> bool:
    return word in registry.probes or registry.own_kind(word) is registry.probes


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
    rows = [[result.label, *(f"{value:.4g}" for value in result.headline.values())] for result in results]
    return table(name, ["run", *results[0].headline], rows)


def _print_forecast(rows: Sequence[dict[str, Any]], page: Page, as_json: bool) -> None:
    seconds = sum(row["seconds"] for row in rows)
    if as_json:
        print(json.dumps({"probes": rows, "seconds": seconds}, ensure_ascii=False))
        return
    cells = []
    for row in rows:
        counts = (f"{row['forwards']:,}", f"{row['gradients']:,}", row["note"] or duration(row["seconds"]))
        cells.append([row["run"], row["probe"], *counts])
    figures = [Column(name) for name in ("images forward", "forward and backward", "about")]
    page.tables([table("what it takes", [*names("run", "probe"), *figures], cells)])
    page.say(f"together about {duration(seconds)} here")
