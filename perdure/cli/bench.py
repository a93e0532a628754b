"""`perdure bench`: how fast it is here, as ratios."""

import json
import signal
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from perdure.cli.options import AsJson, guarded, note, stdout
from perdure.errors import Interrupted, WrongValue
from perdure.processes import MOST_THREADS

ABOUT = {  # how each kind of ratio reads; the key's ending tells the kind
    "_over_bare": "step ÷ the bare forward and backward passes it needs",
    "_projected_over_plain": "projected ÷ unprojected step",
    "_epoch_speedup": "the textbook's epoch ÷ ours",
    "basis_update_speedup": "the textbook's update of the memory ÷ ours",
}


def join(app: typer.Typer) -> None:
    app.command("bench")(guarded(bench_verb))


def bench_verb(
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Turns of each comparison; more are steadier.")] = 15,
    threads: Annotated[int, typer.Option(min=1, max=MOST_THREADS, metavar="N", help="Threads of torch.")] = 2,
    only: Annotated[
        list[str], typer.Option(metavar="METHOD", help="Steps of this method only, e.g. gpm or 'rcl shared'.")
    ] = [],  # noqa: B006
    scaling: Annotated[bool, typer.Option("--scaling", help="How cost grows instead.")] = False,
    paths: Annotated[bool, typer.Option("--paths", help="What each fast path brings instead.")] = False,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What to measure.", show_default="benchmarks/ of a clone")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure speed on this machine, as ratios; docs in benchmarks/README.md."""
    from perdure.lab.bench import bench

    if scaling and paths:
        raise WrongValue("--scaling and --paths are two measurements; ask for one at a time")

    try:
        what: Literal["ratios", "scaling", "paths"] = "scaling" if scaling else "paths" if paths else "ratios"
        data = bench(
            what,
            rounds=rounds,
            threads=threads,
            only=only,
            folder=folder,
            report=lambda line: note(f"perdure bench: {line}"),
        )
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted; times only mean something together, so nothing was kept", signal.SIGINT
        ) from None
    if as_json:
        print(json.dumps(data))
    else:
        stdout.print(_scaling(data) if scaling else _gains(data) if paths else _ratios(data))


def _ratios(result: dict[str, Any]) -> Table:
    table = Table(
        "ratio", "", "what it is", title=f"AlexNet, batches of {result['batch']}, {result['threads']} threads"
    )
    for ending, about in ABOUT.items():
        for name, value in result["ratios"].items():
            if name.endswith(ending):
                table.add_row(name, f"{value:.2f}", about)
    return table


def _gains(found: dict[str, dict[str, float]]) -> Table:
    table = Table("without", *found, title="How many times as long it takes without a fast path")
    for path in dict.fromkeys(path for of in found.values() for path in of):
        table.add_row(path, *(f"{of[path]:.2f}" if path in of else "" for of in found.values()))
    return table


def _scaling(found: list[dict[str, Any]]) -> Table:
    table = Table("method", "against", "sizes", "what it takes", "slope", title="How cost grows")
    for row in found:
        sizes = ", ".join(f"{size:g}" for size in row["sizes"])
        table.add_row(row["method"], row["what"], sizes, row["summary"], f"{row['slope']:.2f}")
    return table
