"""`perdure`: the verbs. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not verified, 130 and 143 interrupted by Ctrl-C
and SIGTERM."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer
from rich.text import Text

import perdure
from perdure.cli import bench, data, learner, probe, report, runs, search, study
from perdure.cli.options import (
    App,
    AsJson,
    BenchmarkName,
    Device,
    MethodName,
    NetworkName,
    Out,
    Outliers,
    PlanWishes,
    Probes,
    Root,
    RunThreads,
    Settings,
    Store,
    Tasks,
    Trackers,
    VerbGroup,
    guarded,
    note,
    one_line_errors,
    stderr,
    stdout,
    use_threads,
)
from perdure.cli.page import Format, Page
from perdure.errors import UnknownName, WrongValue

P = ParamSpec("P")
VERBS = (
    "demo",
    "run",
    "compare",
    "study",
    "search",
    "probe",
    "report",
    "show",
    "ls",
    "export-runs",
    "rm",
    "data",
    "bench",
    "create",
    "learn",
    "predict",
    "tasks",
    "check",
    "rollback",
    "forget",
    "held",
    "card",
    "export",
    "serve",
)


class Verbs(VerbGroup):
    """Listed in the order in which people use them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda verb: (*VERBS, verb).index(verb))


app = App(cls=Verbs, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(data.app, name="data")
for module in (runs, study, search, probe, report, bench, learner):
    module.join(app)

Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Seed of everything random.")]


def verb(action: Callable[P, None]) -> Callable[P, None]:
    return app.command()(guarded(action))


def _print_version(asked: bool) -> None:
    if asked:
        print(f"perdure {perdure.__version__}")
        raise typer.Exit


@app.callback()
def front(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Robust continual learning."""


@verb
def ls(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="methods, networks, benchmarks, probes, studies or runs; all but runs when left out."
        ),
    ] = "",
    only: runs.Filters = [],  # noqa: B006
    out: Store = Path("runs"),
    form: Format = "table",
    as_json: AsJson = False,
) -> None:
    """List what there is."""
    from perdure.cli.show import listing
    from perdure.lab.catalog import catalog

    page = Page(form)
    if what == "runs":
        runs.list_runs(out, only, as_json, page)
        return
    known = catalog()
    if only or (what and what not in known):
        raise UnknownName("list", " ".join([what, *only]), [*known, "runs"])
    wanted = {what: known[what]} if what else known
    if as_json:
        print(json.dumps(wanted, ensure_ascii=False))
        return
    for name, entries in wanted.items():
        page.tables([listing(name, entries)])
        page.gap()


@verb
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|RUN", help="A method, benchmark, network, probe or study, or a run by path or hash."
        ),
    ],
    on: Annotated[
        str | None, typer.Option(metavar="BENCHMARK", help="Of a method: all values and the plan on this benchmark.")
    ] = None,
    out: Store = Path("runs"),
    form: Format = "table",
    as_json: AsJson = False,
) -> None:
    """Show a method (values, symbols, presets), a benchmark, network, probe or study, or a run (its figures)."""
    from perdure.cli.show import describe

    page = Page(form)
    content, headline, parts = describe(name, out, on)
    if as_json:
        print(json.dumps(content, ensure_ascii=False))
        return
    if form == "table":
        stdout.print(Text.assemble((name, "bold"), f": {headline}\n"), soft_wrap=True)
    for part in parts:
        page.tables([part])
        page.gap()


@verb
def run(
    method: MethodName,
    benchmark: BenchmarkName,
    seed: Seed = 1,
    values: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Set a value of the method, e.g. mix_weight=0.2 or lambda=0.2."
        ),
    ] = [],  # noqa: B006 — typer reads it, nobody changes it
    memory_budget: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Most bytes of remembered bases, e.g. 64MB; the same as --set budget=64MB."),
    ] = None,
    plan: PlanWishes = [],  # noqa: B006
    settings: Settings = [],  # noqa: B006
    tasks: Tasks = None,
    network: NetworkName = None,
    probe: Probes = [],  # noqa: B006
    snapshots: Annotated[bool, typer.Option("--snapshots", help="Keep the model as it was after each task.")] = False,
    stages: Annotated[bool, typer.Option("--stages", hidden=True)] = False,  # the former name
    outliers: Outliers = "",
    without: Annotated[
        list[str],
        typer.Option(
            metavar="NAME", help="What will not be there in use: stored-data, task-identity; warns if it is needed."
        ),
    ] = [],  # noqa: B006
    track: Trackers = [],  # noqa: B006
    root: Root = None,
    out: Out = Path("runs"),
    every: Annotated[
        float, typer.Option("--checkpoint", min=0, metavar="SECONDS", help="Time between two checkpoints.")
    ] = 60.0,
    device: Device = "cpu",
    threads: RunThreads = None,
    form: Format = "table",
    as_json: AsJson = False,
) -> None:
    """Train a method on a benchmark's tasks, one after another. Interrupted, the same command resumes."""
    use_threads(threads)
    from perdure.cli.show import run_tables
    from perdure.lab.spec import assignments

    page, given = Page(form), assignments(values)
    if memory_budget is not None:
        if "budget" in given:
            raise WrongValue("the budget is given twice, by --memory-budget and by --set; give it once")
        given["budget"] = memory_budget
    record = _run_with_bars(
        method,
        benchmark,
        seed=seed,
        values=given,
        plan=assignments(plan),
        net=network,
        tasks=tasks,
        settings=assignments(settings),
        outliers=outliers,
        probes=probe,
        snapshots=snapshots or stages,
        without=without,
        trackers=track,
        out=out,
        root=root,
        device=device,
        threads=threads,
        checkpoint_every=every,
    )
    if as_json:
        print(json.dumps(record, ensure_ascii=False))
        return
    page.tables(run_tables(record))
    page.say(f"record: {record['path']}")
    for picture in record["pictures"]:
        page.say(f"picture: {picture}")


def _run_with_bars(method: str, benchmark: str, **options: Any) -> dict[str, Any]:
    """A run with its progress on standard error."""
    from perdure.cli.progress import RunBars
    from perdure.lab.run import run

    with RunBars(stderr) as progress:
        record = run(method, benchmark, **options, progress=progress)
    if record.pop("already_done"):
        note(f"{method}: done before, so nothing was computed ({record['path']})")
    return record


def main() -> None:
    with one_line_errors():
        code = app(standalone_mode=False, prog_name="perdure")
    sys.exit(code)
