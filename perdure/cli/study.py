"""`perdure study`, `compare` and `demo`: a grid of runs, what it would cost, how it gets on, and what it came to."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure import registry
from perdure.cli.options import (
    AsJson,
    Device,
    Dry,
    Jobs,
    NetworkName,
    Out,
    Outliers,
    PlanWishes,
    Probes,
    Root,
    Settings,
    StudyThreads,
    Tasks,
    Trackers,
    Where,
    guarded,
    numbers,
    stderr,
)
from perdure.cli.page import Format, Page
from perdure.errors import UnknownName, WrongValue
from perdure.ops.statistics import labels
from perdure.report.table import Cell, Column, names, table
from perdure.report.tables import duration

MORE_CORES = (8, 32)  # what people have besides this machine; `--dry` says how long it would take there

if TYPE_CHECKING:
    from perdure.lab.study import StudyResult

KINDS = {".png": "picture", ".html": "report"}  # of files, by how their names end; all others are tables


def join(app: typer.Typer) -> None:
    """Add this verb to the command line."""
    app.command("demo")(guarded(demo))
    app.command("compare")(guarded(compare))
    app.command("study")(guarded(study))


DEMO: dict[str, Any] = {
    "about": "four methods on the six tasks shipped in the package, clean and under attack",
    "benchmarks": ["six"],
    "block": [
        {"methods": ["rcl"]},
        {"methods": ["pat", "gpm", "finetune"]},
    ],  # the longest first: no core waits in the end
    "plan": {"epochs": 5},  # of the preset's ten, so that it takes less than three minutes on two cores
    "against": "finetune",
    "probes": ["pgd(strengths=4/255 images=50)"],
}
DEMO_READING = (
    "ACC: accuracy on all tasks at the end. BWT: what old tasks lost (−) or gained (+) since they were learned.",
    "PGD-20: ACC when an attack of 20 steps may move every pixel by so much, on 50 images of each task.",
)


def demo(
    seeds: Annotated[str, typer.Option(metavar="N,N,…", help="Seeds, with commas between.")] = "1,2,3",
    tasks: Tasks = None,
    plan: PlanWishes = [],  # noqa: B006 — typer reads it, nobody changes it
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many runs at a time.", show_default="one per core")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where records and pictures go.")] = Path("demo"),
    device: Device = "cpu",
    form: Format = "table",
    as_json: AsJson = False,
) -> None:
    """Four methods learn the six tasks shipped in the package, over three seeds, and are compared."""
    from perdure.cli.progress import StudyProgress
    from perdure.lab import study as lab
    from perdure.lab.execute.local import cores
    from perdure.lab.spec import assignments
    from perdure.lab.study_file import in_memory
    from perdure.report.tables import matrix

    page, chosen = Page(form), numbers("--seeds", seeds)
    stderr.print("Four methods learn the same tasks one after another; none may look back at old data.")
    asked = in_memory("demo", {**DEMO, "seeds": chosen, "tasks": tasks, "plan": DEMO["plan"] | assignments(plan)})
    with StudyProgress(stderr) as progress:
        result = lab.study(replace(asked, name="demo"), out=out, jobs=jobs or cores(), device=device, callback=progress)
    if not as_json:
        for run in result.runs:
            if run.spec.seed == chosen[0] and run.record is not None:
                page.tables([matrix(run.record)])
                page.gap()
    _print(result, page, dry=False, as_json=as_json, reading=DEMO_READING)


def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD... BENCHMARK...",
            help="Methods, the first is what the others are compared with, then benchmarks; my.py:NAME for yours.",
        ),
    ],
    seeds: Annotated[str, typer.Option(metavar="N,N,…", help="Seeds, with commas between.")] = "1,2,3",
    values: Annotated[
        list[str],
        typer.Option("--set", metavar="METHOD.NAME=VALUE", help="Set a value of a method, e.g. gpm.threshold=0.9."),
    ] = [],  # noqa: B006 — typer reads it, nobody changes it
    plan: PlanWishes = [],  # noqa: B006
    settings: Settings = [],  # noqa: B006
    tasks: Tasks = None,
    network: NetworkName = None,
    probe: Probes = [],  # noqa: B006
    outliers: Outliers = "",
    jobs: Jobs = None,
    dry: Dry = False,
    threads: StudyThreads = None,
    root: Root = None,
    out: Out = Path("runs"),
    device: Device = "cpu",
    form: Format = "table",
    as_json: AsJson = False,
) -> None:
    """Compare methods over several seeds: a study without a file."""
    from perdure.cli.progress import StudyProgress
    from perdure.lab import study as lab
    from perdure.lab.spec import assignments

    page = Page(form)
    methods, benchmarks = _sorted_words(words)
    with StudyProgress(stderr) as progress:
        result = lab.compare(
            methods,
            benchmarks,
            seeds=numbers("--seeds", seeds),
            values=_by_method(assignments(values), methods),
            plan=assignments(plan),
            settings=assignments(settings),
            net=network,
            tasks=tasks,
            probes=probe,
            outliers=outliers,
            out=out,
            root=root,
            jobs=jobs,
            threads=threads,
            device=device,
            dry=dry,
            callback=progress,
        )
    _print(result, page, dry, as_json)


def _sorted_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Methods and benchmarks, told apart by their names."""
    found: dict[str, list[str]] = {"method": [], "benchmark": []}
    for word in words:
        own = registry.own_kind(word)
        if word in registry.methods or own is registry.methods:
            kind = "method"
        elif word.partition(":")[0] in registry.benchmarks or own is registry.benchmarks:
            kind = "benchmark"
        else:
            raise UnknownName("method or benchmark", word, [*registry.methods, *registry.benchmarks])
        found[kind].append(word)
    for kind, named in found.items():
        if not named:
            raise WrongValue(f"no {kind} among {' '.join(words)}; name methods and benchmarks, e.g. finetune gpm six")
    return found["method"], found["benchmark"]


def _by_method(given: dict[str, str], methods: list[str]) -> dict[str, dict[str, str]]:
    """{"gpm.threshold": "0.9"} → {"gpm": {"threshold": "0.9"}}; the part before the last dot names the method."""
    found: dict[str, dict[str, str]] = {}
    for key, value in given.items():
        method, dot, name = key.rpartition(".")
        if not dot or method not in methods:
            raise WrongValue(f"--set {key}: say of which method, as METHOD.NAME=VALUE with one of {', '.join(methods)}")
        found.setdefault(method, {})[name] = value
    return found


def study(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="See `perdure ls studies`, or a TOML file.")],
    only: Annotated[
        list[str], typer.Option(metavar="ROW", help="Compute this row of its table alone, or this method; repeatable.")
    ] = [],  # noqa: B006 — typer reads it, nobody changes it
    seeds: Annotated[
        str, typer.Option(metavar="N,N,…", help="Compute these seeds of it alone.", show_default="all")
    ] = "",
    jobs: Jobs = None,
    on: Where = "local",
    dry: Dry = False,
    scale: Annotated[float, typer.Option(metavar="X", help="Multiply the epochs of every plan, e.g. 0.1.")] = 1.0,
    threads: StudyThreads = None,
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
    form: Format = "table",
    as_json: AsJson = False,
) -> None:
    """Do all runs of a study that are not done, several at a time, and compare methods over seeds."""
    from perdure.cli.progress import StudyProgress
    from perdure.lab import study as lab

    page = Page(form)
    with StudyProgress(stderr) as progress:
        result = lab.study(
            name,
            only=only,
            seeds=numbers("--seeds", seeds) if seeds else (),
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
    _print(result, page, dry, as_json)


def _print(result: "StudyResult", page: Page, dry: bool, as_json: bool, reading: Sequence[str] = ()) -> None:
    if as_json:
        print(json.dumps(result.plain(), ensure_ascii=False))
    elif dry:
        _print_costs(result, page)
    else:
        _print_result(result, page, reading)
    if result.failed and not dry:
        raise typer.Exit(1)


def _print_costs(result: "StudyResult", page: Page) -> None:
    plan, costs = result.plan, result.costs or []
    scaled = "" if plan.scale == 1 else f"; epochs × {plan.scale:g}: not the plan's figures"
    figures = [Column(name) for name in ("runs", "tasks × epochs", "an epoch", "a run", "all")]
    rows: list[list[str | Cell]] = []
    reasons = []
    for cost, label in zip(costs, labels([cost.spec.plain() for cost in costs]), strict=True):
        spec, found = cost.spec, cost.estimate
        cells = [spec.benchmark, f"{spec.method} ({label})" if label else spec.method, spec.network, str(cost.runs)]
        if found is None:
            rows.append([*cells, *["–"] * 4])
            reasons.append(f"{spec.method} on {spec.benchmark}: {cost.error}")
            continue
        epoch = duration(found.epoch) + ("" if found.whole else " *")
        times = [f"{found.lessons} × {found.epochs}", epoch, duration(found.run), duration(cost.runs * found.run)]
        rows.append([*cells, *times])
    title = f"{plan.study.name}: what is to be done{scaled}"
    if costs:
        page.tables([table(title, [*names("benchmark", "method", "network"), *figures], rows, framed=False)])
    for reason in dict.fromkeys(reasons):
        page.say(reason)
    if any(cost.estimate and not cost.estimate.whole for cost in costs):
        page.tables(["* from its first steps"])
    for error in dict.fromkeys(run.error for run in result.failed):
        page.say(f"cannot be done: {error}")
    page.say(f"{len(plan.runs)} runs, {plan.done} done already, {len(plan.to_do)} to do")
    if costs:
        parallel = result.seconds_in_parallel
        with_jobs = "" if parallel is None or plan.jobs == 1 else f", {duration(parallel)} with --jobs {plan.jobs}"
        threads = f"{plan.threads} thread{'s' if plan.threads > 1 else ''}"
        page.say(
            f"up to about {duration(result.seconds)} one after another{with_jobs}: timed here with {threads} a run, "
            "probes left out. The number of epochs is an upper bound: where a plan stops at a plateau, runs are "
            "shorter."
        )
        elsewhere = [f"{duration(result.seconds_with(jobs))} on {jobs} cores" for jobs in MORE_CORES]
        page.say(f"as fast as one run alone is here: {elsewhere[0]}, {elsewhere[1]} (a Ray cluster, --on ray)")


def _print_result(result: "StudyResult", page: Page, reading: Sequence[str]) -> None:
    from perdure.cli.progress import error_lines

    for place, shown in enumerate(found for some in result.tables().values() for found in some):
        if place:
            page.gap()
        page.tables([shown])
    lines = [*reading, *result.notes]
    if result.failed:
        lines.append(
            f"{len(result.failed)} of {len(result.runs)} runs are not done; the same command tries them again:"
        )
        lines += [f"  {line}" for line in error_lines(result.failed)]
    lines += [f"{KINDS.get(file.suffix, 'summary')}: {file}" for file in result.files]
    for line in lines:
        page.say(line)
