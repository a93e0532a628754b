"""`perdure study`: a grid of runs, what it would cost, how it gets on, and what it came to."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from perdure.cli.options import AsJson, Device, Out, Root, Trackers, Where, guarded, stderr, stdout
from perdure.ops.statistics import labels
from perdure.report.tables import differences, duration, measured, summary

if TYPE_CHECKING:
    from perdure.lab.study import StudyResult


def join(app: typer.Typer) -> None:
    """Add this verb to the command line."""
    app.command("study")(guarded(study))


def study(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="See `perdure ls studies`, or a TOML file.")],
    jobs: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="How many runs at a time.", show_default="1, or one per GPU"),
    ] = None,
    on: Where = "local",
    dry: Annotated[bool, typer.Option("--dry", help="Only say what is done already and what the rest costs.")] = False,
    scale: Annotated[float, typer.Option(metavar="X", help="Multiply the epochs of every plan, e.g. 0.1.")] = 1.0,
    threads: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Threads of each run.", show_default="the study's, else 1"),
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(min=0, metavar="X", help="On Ray: CPUs of each run.", show_default="threads")
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(min=0, metavar="X", help="On Ray: GPUs of each run.", show_default="1 on cuda, else 0"),
    ] = None,
    track: Trackers = [],  # noqa: B006 — typer reads it, nobody changes it
    root: Root = None,
    out: Out = Path("runs"),
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Do all runs of a study that are not done, several at a time, and compare methods over seeds."""
    from perdure.cli.progress import StudyProgress
    from perdure.lab import study as lab

    with StudyProgress(stderr) as progress:
        result = lab.study(
            name,
            out=out,
            root=root,
            jobs=jobs,
            on=on,
            scale=scale,
            threads=threads,
            cpus=cpus,
            gpus=gpus,
            device=device,
            trackers=track,
            dry=dry,
            callback=progress,
        )
    if as_json:
        print(json.dumps(result.plain(), ensure_ascii=False))
    elif dry:
        _print_costs(result)
    else:
        _print_result(result)
    if result.failed and not dry:
        raise typer.Exit(1)


def _print_costs(result: "StudyResult") -> None:
    plan, costs = result.plan, result.costs or []
    names = ("benchmark", "method", "network")
    table = Table(title=f"{plan.study.name}: what is to be done{_scaled(plan.scale)}", title_justify="left", box=None)
    for name in (*names, "runs", "tasks × epochs", "an epoch", "a run", "all"):
        table.add_column(name, justify="left" if name in names else "right")
    for cost, label in zip(costs, labels([cost.spec.plain() for cost in costs]), strict=True):
        spec, found = cost.spec, cost.estimate
        cells = [spec.benchmark, f"{spec.method} ({label})" if label else spec.method, spec.network, str(cost.runs)]
        if found is None:
            table.add_row(*cells, cost.error)
            continue
        epoch = duration(found.epoch) + ("" if found.whole else " *")
        times = [f"{found.lessons} × {found.epochs}", epoch, duration(found.run), duration(cost.runs * found.run)]
        table.add_row(*cells, *times)
    if costs:
        stdout.print(table)
    if any(cost.estimate and not cost.estimate.whole for cost in costs):
        stdout.print("* from its first steps")
    for error in dict.fromkeys(run.error for run in result.failed):
        stdout.print(f"cannot be done: {error}", markup=False, soft_wrap=True)
    stdout.print(f"{len(plan.runs)} runs, {plan.done} done already, {len(plan.to_do)} to do", soft_wrap=True)
    if costs:
        parallel = result.seconds_in_parallel
        with_jobs = "" if parallel is None or plan.jobs == 1 else f", {duration(parallel)} with --jobs {plan.jobs}"
        threads = f"{plan.threads} thread{'s' if plan.threads > 1 else ''}"
        stdout.print(
            f"up to about {duration(result.seconds)} one after another{with_jobs}: timed here with {threads} a run, "
            "probes left out. The number of epochs is an upper bound: where a plan stops at a plateau, runs are "
            "shorter.",
            soft_wrap=True,
        )


def _print_result(result: "StudyResult") -> None:
    from perdure.cli.progress import error_lines

    stdout.print(summary(result.groups, _scaled(result.plan.scale)))
    if result.measured:
        for benchmark in dict.fromkeys(group.benchmark for group in result.groups):
            stdout.print()
            stdout.print(measured([group for group in result.groups if group.benchmark == benchmark], result.measured))
    if result.differences:
        stdout.print()
        stdout.print(differences(result.differences))
    lines = list(result.notes)
    if result.failed:
        lines.append(
            f"{len(result.failed)} of {len(result.runs)} runs are not done; the same command tries them again:"
        )
        lines += [f"  {line}" for line in error_lines(result.failed)]
    for line in lines:
        stdout.print(line, markup=False, soft_wrap=True)


def _scaled(scale: float) -> str:
    return "" if scale == 1 else f"; epochs × {scale:g}: not the plan's figures"
