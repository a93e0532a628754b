"""`perdure search`: which values do well on validation data."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from perdure.cli.executors import Places, at_a_time, executor_for, stoppable
from perdure.cli.options import (
    AsJson,
    BenchmarkName,
    Device,
    MethodName,
    NetworkName,
    Out,
    PlanWishes,
    Root,
    Settings,
    Tasks,
    guarded,
    stderr,
    stdout,
)
from perdure.errors import Interrupted, WrongValue

if TYPE_CHECKING:
    from perdure.lab.execute.job import Event, Job
    from perdure.lab.search import Trial
    from perdure.lab.spec import RunSpec

SHOWN = 10  # trials in the table
ON_RAY = 8  # proposals a round where nobody knows how many runs there is room for
USUAL: dict[str, Any] = {"--seed": 1, "--out": Path("runs"), "--device": "cpu"}  # what `perdure run` does untold


def join(app: typer.Typer) -> None:
    """Add this verb to the command line."""
    app.command("search")(guarded(search))


def search(
    method: MethodName,
    benchmark: BenchmarkName,
    space: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=RANGE", help="What may vary: lambda=0.01..1:log, samples=50..200, plan.rate=0.01,0.1."
        ),
    ],
    trials: Annotated[int, typer.Option(min=1, help="How many choices to try in all, earlier ones included.")] = 20,
    seeds: Annotated[str, typer.Option(help="Seeds of each choice, with commas; the score is their mean.")] = "1",
    wishes: Annotated[
        list[str], typer.Option("--set", metavar="NAME=VALUE", help="Set a value that does not vary.")
    ] = [],  # noqa: B006 — typer reads it, nobody changes it
    plan: PlanWishes = [],  # noqa: B006
    settings: Settings = [],  # noqa: B006
    tasks: Tasks = None,
    network: NetworkName = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="How many runs at a time.", show_default="1")] = None,
    on: Annotated[str, typer.Option(metavar="local|ray|auto|ray://HOST:PORT", help="Where.")] = "local",
    threads: Annotated[int, typer.Option(min=1, help="Threads of each run.")] = 1,
    at_once: Annotated[
        int | None, typer.Option(min=1, help="Proposals a round.", show_default=f"jobs, on Ray {ON_RAY}")
    ] = None,
    root: Root = None,
    out: Out = Path("runs"),
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Try values proposed by Optuna, scored on validation data only; the same command goes on where it stopped."""
    from perdure.lab.execute.job import Job
    from perdure.lab.search import go, make, results
    from perdure.lab.spec import assignments

    wanted = make(
        method,
        benchmark,
        space,
        _numbers(seeds),
        network=network,
        tasks=tasks,
        values=assignments(wishes),
        plan=assignments(plan),
        settings=assignments(settings),
    )
    executor = executor_for(Places(out, root, device, on, jobs, threads))

    def job(one: "RunSpec") -> "Job":
        return Job(one, str(out), None if root is None else str(root), device)

    def heard(event: "Event") -> None:
        if event.kind in ("warning", "lost"):
            stderr.print(
                f"warning: {event.facts.get('text') or event.facts.get('error')}", markup=False, soft_wrap=True
            )

    width = at_once or at_a_time(executor) or ON_RAY
    with stoppable(executor) as signals:
        try:
            for trial in go(wanted, executor, out=out, trials=trials, at_once=width, job=job, heard=heard):
                stderr.print(_line(trial), markup=False, soft_wrap=True)
        finally:
            if signals:
                raise Interrupted("interrupted; completed work is saved, run the same command to resume", signals[0])
    found = results(wanted, out)
    if as_json:
        print(json.dumps({"search": wanted.digest(), "trials": [asdict(trial) for trial in found]}, ensure_ascii=False))
        return
    stdout.print(_table(found, [r.name for r in wanted.ranges], len(wanted.seeds)))
    if found and found[0].score is not None:
        own = {"--net": network, "--tasks": tasks, "--set": wishes, "--plan": plan, "--data": settings}
        where = {"--root": root, "--out": out, "--device": device}
        command = _command(method, benchmark, found[0].values, {"--seed": wanted.seeds[0], **own, **where})
        stdout.print(f"best: {command}", markup=False, soft_wrap=True)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise WrongValue(
            f"--seeds {text} is not allowed; write whole numbers with commas between, e.g. 1,2,3"
        ) from None


def _line(trial: "Trial") -> str:
    values = ", ".join(f"{name}={_shown(value)}" for name, value in trial.values.items())
    outcome = f"failed: {trial.error}" if trial.score is None else f"{trial.score:.2f} % on validation data"
    return f"trial {trial.number + 1}: {values}: {outcome}"


def _table(found: "list[Trial]", names: list[str], seeds: int) -> Table:
    title = (
        f"{len(found)} trials, the best first; ACC on validation data, mean over {seeds} seed{'s' if seeds > 1 else ''}"
    )
    table = Table(title=title, title_justify="left")
    for name in ("trial", *names, "ACC"):
        table.add_column(name, justify="right")
    for trial in found[:SHOWN]:
        score = "failed" if trial.score is None else f"{trial.score:.2f}"
        table.add_row(str(trial.number + 1), *(_shown(trial.values.get(name)) for name in names), score)
    return table


def _command(method: str, benchmark: str, found: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """What to type for the run with the values found; they stand last, where they outdo those given."""
    words = ["perdure", "run", method, benchmark]
    for name, value in given.items():
        for one in value if isinstance(value, list) else [value]:
            if one not in (None, USUAL.get(name)):
                words += [name, str(one)]
    for name, value in found.items():
        words += ["--plan" if name.startswith("plan.") else "--set", f"{name.removeprefix('plan.')}={value}"]
    return shlex.join(words)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
