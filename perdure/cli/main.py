"""`perdure`: the verbs. Exit codes: 0 done, 1 failed, 2 asked wrongly, 130 and 143 stopped by Ctrl-C and SIGTERM."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer

from perdure.cli import bench, data, probe, runs, search, study
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
    Trackers,
    guarded,
    stderr,
    stdout,
)
from perdure.errors import PerdureError, UnknownName, WrongValue

P = ParamSpec("P")
app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Robust continual learning.", pretty_exceptions_enable=False
)
app.add_typer(data.app, name="data")
runs.join(app)
study.join(app)
search.join(app)
probe.join(app)
bench.join(app)

Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]


def verb(action: Callable[P, None]) -> Callable[P, None]:
    return app.command()(guarded(action))


@verb
def ls(
    what: Annotated[
        str, typer.Argument(help="methods, networks, benchmarks, probes, studies or runs; all but runs when left out.")
    ] = "",
    only: runs.Filters = [],  # noqa: B006
    out: runs.Out = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List what there is."""
    from perdure.cli.show import listing, shelves

    if what == "runs":
        runs.listing(out, only, as_json)
        return
    known = shelves()
    if only or (what and what not in known):
        raise UnknownName("list", " ".join([what, *only]), [*known, "runs"])
    wanted = {what: known[what]} if what else known
    if as_json:
        print(json.dumps(wanted, ensure_ascii=False))
        return
    for name, entries in wanted.items():
        stdout.print(listing(name, entries))
        stdout.print()


@verb
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="METHOD|BENCHMARK|PROBE|RUN", help="A method, a benchmark, a probe, or a run by path or hash."
        ),
    ],
    out: runs.Out = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Show a method (values, symbols, presets), a benchmark or a probe (what can be set), or a run (its figures)."""
    from perdure.cli.show import described

    content, headline, parts = described(name, out)
    if as_json:
        print(json.dumps(content, ensure_ascii=False))
        return
    stdout.print(f"[bold]{name}[/]: {headline}\n", soft_wrap=True)
    for part in parts:
        stdout.print(part)
        stdout.print()


@verb
def run(
    method: MethodName,
    benchmark: BenchmarkName,
    seed: Seed = 1,
    wishes: Annotated[
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
    probe: Annotated[
        list[str], typer.Option(help="Also measure, e.g. fgsm or 'pgd(steps=50)'; see `perdure ls probes`.")
    ] = [],  # noqa: B006
    stages: Annotated[bool, typer.Option("--stages", help="Keep the model as it was after each task.")] = False,
    outliers: Annotated[
        str,
        typer.Option(
            metavar="KIND:RATE[@TASKS]",
            help="Spoil training images, e.g. labels:0.2 or foreign:0.1@2-4; labels, corrupted, adversarial, foreign.",
        ),
    ] = "",
    without: Annotated[
        list[str],
        typer.Option(help="What will not be there in use: stored-data, task-identity; warns if it is needed."),
    ] = [],  # noqa: B006
    track: Trackers = [],  # noqa: B006
    root: Root = None,
    out: Out = Path("runs"),
    every: Annotated[float, typer.Option("--checkpoint", min=0, help="Seconds between two checkpoints.")] = 60.0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Learn a benchmark's tasks one after another with a method. Interrupted, the same command goes on from there."""
    from perdure.cli.show import run_tables
    from perdure.lab.spec import assignments, spec

    values = assignments(wishes)
    if memory_budget is not None:
        if "budget" in values:
            raise WrongValue("the budget is given twice, by --memory-budget and by --set; give it once")
        values["budget"] = memory_budget
    wanted = spec(
        method,
        benchmark,
        seed=seed,
        network=network,
        tasks=tasks,
        values=values,
        plan=assignments(plan),
        settings=assignments(settings),
        outliers=outliers,
    )
    places = {"out": out, "root": root, "device": device}
    record = _watched(wanted, **places, probes=probe, stages=stages, without=without, trackers=track, every=every)
    if as_json:
        print(json.dumps(record, ensure_ascii=False))
        return
    for table in run_tables(record):
        stdout.print(table)
    stdout.print(f"record: {record['path']}", soft_wrap=True)


DEMO_METHODS = ("finetune", "gpm", "rcl")


@verb
def demo(
    seed: Seed = 1,
    tasks: Tasks = None,
    plan: PlanWishes = [],  # noqa: B006
    out: Annotated[Path, typer.Option(help="Where records and pictures go.")] = Path("demo"),
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """The main job on the data shipped in the package: three methods learn six tasks and are compared."""
    from perdure.lab.spec import assignments, spec
    from perdure.lab.store import write
    from perdure.report.figures import accuracy_matrix
    from perdure.report.tables import comparison, matrix

    stderr.print("Three methods learn the same tasks one after another; none may look back at old data.")
    records = []
    for method in DEMO_METHODS:
        wanted = spec(method, "six", seed=seed, tasks=tasks, plan=assignments(plan))
        records.append(_watched(wanted, out=out, device=device, probes=["fgsm"]))
    pictures = []
    try:
        for record in records:
            pictures.append(out / f"{record['method']}.png")
            write(pictures[-1], accuracy_matrix(record))
    except PerdureError as error:  # the figures below are worth showing without pictures
        pictures = []
        stderr.print(f"no pictures: {error}", soft_wrap=True, markup=False)
    if as_json:
        print(json.dumps({"runs": records, "pictures": [str(p) for p in pictures]}, ensure_ascii=False))
        return
    for record in records:
        stdout.print(matrix(record))
        stdout.print()
    stdout.print(comparison(records))
    stdout.print(
        "ACC: accuracy on all tasks at the end. BWT: what old tasks lost (−) or gained (+) since they were learned.\n"
        "New task: accuracy just after learning a task. FGSM: ACC when every pixel may move by so many steps of 255."
    )
    for picture in pictures:
        stdout.print(f"picture: {picture}", soft_wrap=True)


def _watched(wanted: Any, **places: Any) -> dict[str, Any]:
    """A run with its progress on standard error."""
    from perdure.lab.build import open_stream
    from perdure.lab.progress import Bar, Dial
    from perdure.lab.run import run
    from perdure.lab.study import count_lessons

    stream = open_stream(wanted, places.get("root"))
    with Bar(wanted.method, count_lessons(wanted, stream), stderr) as bar:
        record = run(wanted, stream=stream, callback=bar, gauge=Dial(bar.progress), **places)
    if record.pop("already_done"):
        stderr.print(f"{wanted.method}: done before, so nothing was computed ({record['path']})", soft_wrap=True)
    return record


def main() -> None:
    app()


if __name__ == "__main__":
    main()
