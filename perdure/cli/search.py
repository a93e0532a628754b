"""`perdure search`: which values do well on validation data."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    Where,
    guarded,
    numbers,
    stderr,
)
from perdure.cli.page import Format, Page
from perdure.processes import MOST_THREADS
from perdure.report.table import Column, Table, table

if TYPE_CHECKING:
    from perdure.lab.execute.job import Event
    from perdure.lab.search import SearchResult, Trial

SHOWN = 10  # trials in the table
DEFAULTS: dict[str, Any] = {"--seed": 1, "--out": Path("runs"), "--device": "cpu"}  # of `perdure run`


def join(app: typer.Typer) -> None:
    """Add this verb to the command line."""
    app.command("search")(guarded(search))


def search(
    method: MethodName,
    benchmark: BenchmarkName,
    space: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=RANGE", help="What may vary: lambda=0.01..1:log, samples=50..200, plan.lr=0.01,0.1."
        ),
    ],
    trials: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many choices to try in all, earlier ones included.")
    ] = 20,
    seeds: Annotated[str, typer.Option(metavar="N,N,…", help="Seeds of each choice; the score is their mean.")] = "1",
    values: Annotated[
        list[str], typer.Option("--set", metavar="NAME=VALUE", help="Set a value that does not vary.")
    ] = [],  # noqa: B006 — typer reads it, nobody changes it
    plan: PlanWishes = [],  # noqa: B006
    settings: Settings = [],  # noqa: B006
    tasks: Tasks = None,
    network: NetworkName = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many runs at a time.", show_default="1")
    ] = None,
    on: Where = "local",
    threads: Annotated[int, typer.Option(min=1, max=MOST_THREADS, metavar="N", help="Threads of each run.")] = 1,
    at_once: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Proposals a round.", show_default="jobs, on Ray 8")
    ] = None,
    root: Root = None,
    out: Out = Path("runs"),
    device: Device = "cpu",
    form: Format = "table",
    as_json: AsJson = False,
) -> None:
    """Try values proposed by Optuna, scored on validation data only; run the same command to resume."""
    from perdure.lab import search as lab
    from perdure.lab.spec import assignments

    page = Page(form)
    result = lab.search(
        method,
        benchmark,
        space,
        trials=trials,
        seeds=numbers("--seeds", seeds),
        values=assignments(values),
        plan=assignments(plan),
        settings=assignments(settings),
        net=network,
        tasks=tasks,
        out=out,
        root=root,
        jobs=jobs,
        on=on,
        threads=threads,
        at_once=at_once,
        device=device,
        callback=_print_news,
    )
    if as_json:
        print(json.dumps(result.plain(), ensure_ascii=False))
        return
    page.tables([_table(result)])
    if result.best is not None:
        seed, fixed = result.search.seeds[0], result.search.fixed
        plan_given = {f"plan.{name}": value for name, value in fixed["plan"].items()}
        chosen = {**fixed["values"], **plan_given, **result.best.values}
        given = {"--seed": seed, "--net": network, "--tasks": tasks, "--data": settings}
        command = _command(method, benchmark, chosen, {**given, "--root": root, "--out": out, "--device": device})
        page.say(f"best: {command}")


def _print_news(news: "Trial | Event") -> None:
    from perdure.lab.search import Trial

    if isinstance(news, Trial):
        values = ", ".join(f"{name}={_shown(value)}" for name, value in news.values.items())
        outcome = f"failed: {news.error}" if news.score is None else f"{news.score:.2f} % on validation data"
        stderr.print(f"trial {news.number + 1}: {values}: {outcome}", soft_wrap=True)
    elif news.kind in ("warning", "lost"):
        stderr.print(f"warning: {news.facts.get('text') or news.facts['error']}", soft_wrap=True)


def _table(result: "SearchResult") -> Table:
    names, seeds = [r.name for r in result.search.ranges], len(result.search.seeds)
    over = f"mean over {seeds} seed{'s' if seeds > 1 else ''}"
    title = f"{len(result.trials)} trials, the best first; ACC on validation data, {over}"
    rows = []
    for trial in result.trials[:SHOWN]:
        score = "failed" if trial.score is None else f"{trial.score:.2f}"
        rows.append([str(trial.number + 1), *(_shown(trial.values.get(name)) for name in names), score])
    return table(title, [Column(name) for name in ("trial", *names, "ACC")], rows)


def _command(method: str, benchmark: str, values: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """What to type for the run with these values of the method and the plan."""
    words = ["perdure", "run", method, benchmark]
    for name, value in given.items():
        for one in value if isinstance(value, list) else [value]:
            if one not in (None, DEFAULTS.get(name)):
                words += [name, str(one)]
    for name, value in values.items():
        words += ["--plan" if name.startswith("plan.") else "--set", f"{name.removeprefix('plan.')}={value}"]
    return shlex.join(words)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
