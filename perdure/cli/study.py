"""`perdure study`: a grid of runs, what it would cost, how it gets on, and what it came to."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from perdure.cli.board import Board, Line, lasting
from perdure.cli.executors import Places, at_a_time, executor_for, stoppable
from perdure.cli.options import AsJson, Device, Out, Root, Trackers, guarded, stderr, stdout
from perdure.errors import Interrupted, PerdureError, WrongValue
from perdure.report.stats import CONFIDENCE, DDOF, Group, groups, headlines, labels, paired, reference
from perdure.report.tables import Difference, differences, measured, summary

if TYPE_CHECKING:
    from perdure.lab.estimate import Estimate
    from perdure.lab.execute.job import Job
    from perdure.lab.execute.local import Stoppable
    from perdure.lab.spec import RunSpec
    from perdure.lab.study_file import Study
    from perdure.lab.survey import Planned


def join(app: typer.Typer) -> None:
    """Add this verb to the command line."""
    app.command("study")(guarded(study))


@dataclass
class Outcome:
    """How a run of a study ended."""

    planned: "Planned"
    state: str  # done, failed, stopped
    record: dict[str, Any] | None = None
    error: str = ""

    @property
    def computed(self) -> bool:
        """StepContext, not before."""
        return self.state == "done" and self.planned.record is None


def study(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="See `perdure ls studies`, or a TOML file.")],
    jobs: Annotated[
        int | None, typer.Option(min=1, help="How many runs at a time.", show_default="1, or one per GPU")
    ] = None,
    on: Annotated[
        str, typer.Option(metavar="local|ray|auto|ray://HOST:PORT", help="Where: here, or on a Ray cluster.")
    ] = "local",
    dry: Annotated[bool, typer.Option("--dry", help="Only say what is done already and what the rest costs.")] = False,
    scale: Annotated[float, typer.Option(help="Multiply the epochs of every plan, e.g. 0.1.")] = 1.0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each run.", show_default="the study's, else 1")
    ] = None,
    cpus: Annotated[float | None, typer.Option(min=0, help="On Ray: CPUs of each run.", show_default="threads")] = None,
    gpus: Annotated[
        float | None, typer.Option(min=0, help="On Ray: GPUs of each run.", show_default="1 on cuda, else 0")
    ] = None,
    track: Trackers = [],  # noqa: B006 — typer reads it, nobody changes it
    root: Root = None,
    out: Out = Path("runs"),
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Do all runs of a study that are not done, several at a time, and compare methods over seeds."""
    from perdure.lab import study_file

    asked = study_file.read(name)
    wanted = study_file.specs(asked, scale)
    places = Places(out, root, device, on, jobs, threads or asked.threads, cpus, gpus, tuple(track))
    executor = executor_for(places)
    planned = _surveyed(asked, wanted, places)
    if dry:
        _dry(asked, planned, places, at_a_time(executor), scale, as_json)
        return
    outcomes, asked_to_stop = _do(asked, planned, places, executor)
    done = sum(outcome.state == "done" for outcome in outcomes)
    if asked_to_stop is not None and done < len(outcomes):
        raise Interrupted(
            f"interrupted; {done} of {len(outcomes)} runs are done, the rest is saved, run the same command to resume",
            asked_to_stop,
        )
    _report(asked, outcomes, places, scale, as_json)
    if done < len(outcomes):
        raise typer.Exit(1)


# --- what there is to do ---


def _surveyed(asked: "Study", wanted: "Sequence[RunSpec]", places: Places) -> "list[Planned]":
    from perdure.lab.survey import survey

    try:
        return survey(wanted, out=places.out, root=places.root, probes=asked.probes)
    except WrongValue as error:  # such as more tasks than there are
        raise WrongValue(f"{asked.where}: {error}") from None


# --- doing it ---


def _do(
    asked: "Study", planned: "Sequence[Planned]", places: Places, executor: "Stoppable"
) -> tuple[list[Outcome], int | None]:
    """Every run's outcome, and the signal that stopped the study, if one did."""
    from perdure.lab.survey import forget_error, keep_error

    outcomes = [_before(one) for one in planned]
    to_do = [number for number, outcome in enumerate(outcomes) if outcome.state == "stopped"]
    names = _names(planned)
    for line in _errors([outcome for outcome in outcomes if outcome.state == "failed"]):
        stderr.print(line, markup=False, soft_wrap=True)
    for outcome in outcomes:
        if outcome.state == "done":  # perhaps by `perdure run`, after it had failed here
            forget_error(outcome.planned)
    _announce(asked, outcomes, to_do, places, executor)
    if not to_do:
        return outcomes, None
    lines = [Line(names[number], planned[number].lessons) for number in to_do]
    with Board(lines, stderr) as board, stoppable(executor) as signals:
        for event in executor.do([_job(asked, planned[number], places) for number in to_do]):
            board.see(event.job, event.kind, event.facts)
            outcome = outcomes[to_do[event.job]]
            if event.kind == "done":
                outcome.state = "done"
                outcome.record = {"path": str(outcome.planned.path), **event.facts["record"]}
                forget_error(outcome.planned)
            elif event.kind in ("failed", "stopped"):
                outcome.state, outcome.error = event.kind, event.facts["error"]
            if event.kind == "failed":
                try:
                    keep_error(outcome.planned, outcome.error)
                except PerdureError as error:  # a full disk may be why it failed
                    board.say(f"warning: {error}")
    return outcomes, signals[0] if signals else None


def _before(one: "Planned") -> Outcome:
    """The outcome of a run that nothing is done about; until it is done, a run is as one that was stopped."""
    state = "failed" if one.error else "done" if one.record is not None else "stopped"
    return Outcome(one, state, record=one.record, error=one.error)


def _job(asked: "Study", one: "Planned", places: Places) -> "Job":
    from perdure.lab.execute.job import Job

    root = None if places.root is None else str(places.root)
    return Job(one.spec, str(places.out), root, places.device, asked.probes, trackers=places.trackers)


def _names(planned: "Sequence[Planned]") -> list[str]:
    runs = [one.spec.plain() for one in planned]
    return [
        f"{run['method']} on {run['benchmark']}{f' ({label})' if label else ''}, seed {run['seed']}"
        for run, label in zip(runs, labels(runs), strict=True)
    ]


def _announce(
    asked: "Study", outcomes: Sequence[Outcome], to_do: Sequence[int], places: Places, executor: "Stoppable"
) -> None:
    from perdure.lab.execute.local import cores

    done = sum(outcome.state == "done" for outcome in outcomes)
    if not to_do:
        what = "all of them done already" if done == len(outcomes) else f"{done} done already, none that can be done"
        stderr.print(f"study {asked.name}: {len(outcomes)} runs, {what}; nothing to compute", soft_wrap=True)
        return
    jobs = at_a_time(executor)
    where = f"on {places.on}" if jobs is None else f"{jobs} at a time"
    threads = f"{places.threads} thread{'s' if places.threads > 1 else ''} each"
    stderr.print(
        f"study {asked.name}: {len(outcomes)} runs, {done} done already, {len(to_do)} to do; {where}, {threads}",
        soft_wrap=True,
    )
    if jobs is None or places.device != "cpu":
        return
    free = cores() // places.threads
    if jobs * places.threads > cores():
        stderr.print(f"warning: that is more than the {cores()} cores there are, and slower than --jobs {max(1, free)}")
    elif min(free, len(to_do)) > jobs:
        stderr.print(f"{cores()} cores: --jobs {min(free, len(to_do))} is quicker, with the same records")


# --- what it would cost ---


def _dry(
    asked: "Study", planned: "Sequence[Planned]", places: Places, jobs: int | None, scale: float, as_json: bool
) -> None:
    import torch

    from perdure.lab.estimate import estimates

    to_do = [one.spec for one in planned if one.record is None and not one.error]
    done = sum(one.record is not None for one in planned)
    device = torch.device(places.device if places.on == "local" else "cpu")
    rows: list[tuple[RunSpec, int, Estimate | str]] = []
    for spec, count, found in estimates(to_do, places.root, device, places.threads):
        rows.append((spec, count, found))
        if stderr.is_terminal:
            stderr.print(f"timed {spec.method} on {spec.benchmark}", markup=False, soft_wrap=True)
    known = [(count, found) for _, count, found in rows if not isinstance(found, str)]
    total = sum(count * found.run for count, found in known)
    wall = None if jobs is None else _at_most([(count, found.run) for count, found in known], jobs)
    impossible = [one.error for one in planned if one.error]
    if as_json:
        content = {
            "study": asked.name,
            "about": asked.about,
            "scale": scale,
            "runs": len(planned),
            "done": done,
            "to_do": len(to_do),
            "impossible": impossible,
            "jobs": jobs,
            "threads": places.threads,
            "seconds_at_most": total,
            "seconds_at_most_with_these_jobs": wall,
            "estimates": [_priced(spec, count, found) for spec, count, found in rows],
        }
        print(json.dumps(content, ensure_ascii=False))
        return
    _print_costs(asked, rows, scale)
    for error in dict.fromkeys(impossible):
        stdout.print(f"cannot be done: {error}", markup=False, soft_wrap=True)
    stdout.print(f"{len(planned)} runs, {done} done already, {len(to_do)} to do", soft_wrap=True)
    if to_do:
        with_jobs = "" if wall is None or jobs == 1 else f", {lasting(wall)} with --jobs {jobs}"
        threads = f"{places.threads} thread{'s' if places.threads > 1 else ''}"
        stdout.print(
            f"up to about {lasting(total)} one after another{with_jobs}: timed here with {threads} a run, probes left "
            "out. The number of epochs is an upper bound: where a plan stops at a plateau, runs are shorter.",
            soft_wrap=True,
        )


def _at_most(runs: Sequence[tuple[int, float]], jobs: int) -> float:
    """How long so many runs of so many seconds take at most, so many at a time, in whichever order (Graham's bound).

    >>> _at_most([(2, 1.0), (1, 2.0)], 2)  # 1 and 1 side by side, then 2
    3.0
    """
    longest = max((seconds for _, seconds in runs), default=0.0)
    if sum(count for count, _ in runs) <= jobs:  # none has to wait
        return longest
    return sum(count * seconds for count, seconds in runs) / jobs + (1 - 1 / jobs) * longest


def _priced(spec: "RunSpec", count: int, found: "Estimate | str") -> dict[str, Any]:
    names = {"method": spec.method, "benchmark": spec.benchmark, "network": spec.network, "values": spec.values}
    told = {"error": found} if isinstance(found, str) else asdict(found)
    return {**names, "runs": count, **told}


def _print_costs(asked: "Study", rows: "Sequence[tuple[RunSpec, int, Estimate | str]]", scale: float) -> None:
    if not rows:
        return
    told = labels([spec.plain() for spec, _, _ in rows])
    table = Table(title=f"{asked.name}: what is to be done{_scaled(scale)}", title_justify="left", box=None)
    for name in ("benchmark", "method", "network", "runs", "lessons × epochs", "an epoch", "a run", "all"):
        table.add_column(name, justify="left" if name in ("benchmark", "method", "network") else "right")
    partly = False
    for (spec, count, found), label in zip(rows, told, strict=True):
        names = (spec.benchmark, f"{spec.method} ({label})" if label else spec.method, spec.network, str(count))
        if isinstance(found, str):
            table.add_row(*names, found)
            continue
        partly = partly or not found.whole
        epoch = lasting(found.epoch) + ("" if found.whole else " *")
        size = f"{found.lessons} × {found.epochs}"
        table.add_row(*names, size, epoch, lasting(found.run), lasting(count * found.run))
    stdout.print(table)
    if partly:
        stdout.print("* from its first steps")


# --- what it came to ---


def _report(asked: "Study", outcomes: Sequence[Outcome], places: Places, scale: float, as_json: bool) -> None:
    # Runs that are not done have a place in the grid, too, and no figures.
    runs = [
        {**headlines(outcome.record or {}), **(outcome.record or {}), **outcome.planned.spec.plain()}
        for outcome in outcomes
    ]
    found = groups(runs)
    figures = _figures(asked, [outcome.record for outcome in outcomes if outcome.record])
    compared = _compared(found, asked.against)
    records = [outcome.record for outcome in outcomes if outcome.record]
    remarks = [*_data(records), *_mixed(records)]
    computed = sum(outcome.computed for outcome in outcomes)
    if as_json:
        content = {
            "study": asked.name,
            "about": asked.about,
            "scale": scale,
            "threads": places.threads,
            "computed": computed,
            "runs": [_plain(outcome) for outcome in outcomes],
            "ddof": DDOF,
            "groups": [_summed(group, figures) for group in found],
            "confidence": CONFIDENCE,
            "differences": [
                {"benchmark": group.benchmark, "method": group.method, "label": group.label, "against": other.name}
                | {name: None if value is None else asdict(value) for name, value in figures.items()}
                for group, other, figures in compared
            ],
            "notes": remarks,
        }
        print(json.dumps(content, ensure_ascii=False))
        return
    stdout.print(summary(found, _scaled(scale)))
    if figures:
        for benchmark in dict.fromkeys(group.benchmark for group in found):
            stdout.print()
            stdout.print(measured([group for group in found if group.benchmark == benchmark], figures))
    if compared:
        stdout.print()
        stdout.print(differences(compared))
    for text in remarks:
        stdout.print(text, markup=False, soft_wrap=True)
    failed = [outcome for outcome in outcomes if outcome.state != "done"]
    if failed:
        text = f"{len(failed)} of {len(outcomes)} runs are not done; the same command tries them again:"
        stdout.print(text, soft_wrap=True)
    for line in _errors(failed):
        stdout.print(f"  {line}", markup=False, soft_wrap=True)


def _figures(asked: "Study", records: Sequence[dict[str, Any]]) -> list[str]:
    """What was measured, in the order in which the study asks for it; then what was measured besides."""
    from perdure.lab.probe_run import probe_spec as probe

    keys = [probe(text).key for text in asked.probes]
    measured = [found["headline"] for key in keys for record in records if (found := record["probes"].get(key))]
    return list(dict.fromkeys(name for headline in [*measured, *map(headlines, records)] for name in headline))


def _errors(failed: Sequence[Outcome]) -> Iterator[str]:
    """A line for each error, however many runs have it."""
    by_error: dict[str, list[Outcome]] = {}
    for outcome in failed:
        by_error.setdefault(outcome.error or "stopped", []).append(outcome)
    for error, outcomes in by_error.items():
        spec = outcomes[0].planned.spec
        others = f" and {len(outcomes) - 1} more" if len(outcomes) > 1 else ""
        yield f"{spec.method} on {spec.benchmark}, seed {spec.seed}{others}: {error}"


def _compared(found: Sequence[Group], against: str | None) -> list[Difference]:
    """Every group but the one it is compared with, wherever they share a seed."""
    compared = []
    for group in found:
        other = reference(found, group.benchmark, against)
        if other is None or group is other:
            continue
        figures = {name: paired(group.figures(name), other.figures(name)) for name in ("acc", "bwt")}
        if any(value is not None for value in figures.values()):
            compared.append((group, other, figures))
    return compared


def _scaled(scale: float) -> str:
    return "" if scale == 1 else f"; epochs × {scale:g}: not the plan's figures"


def _data(records: Sequence[dict[str, Any]]) -> list[str]:
    """What was learned from, in a line for each benchmark, or more where its runs did not all see the same."""
    told = []
    for record in records:
        notes = {name: text for name, text in record["data"].items() if name not in ("fingerprint", "source", "tasks")}
        whole = notes.pop("completeness", "")
        said = [text for text in (whole, *(f"{name}: {text}" for name, text in notes.items())) if text]
        told.append(f"data of {record['benchmark']}: {'; '.join(said)}")
    return list(dict.fromkeys(told))


def _mixed(records: Sequence[dict[str, Any]]) -> list[str]:
    """What besides method, values and seed was not the same for all runs, and may show in the last digits."""
    facts = {
        "threads": [str(record["threads"]) for record in records],
        "devices": [record["device"] for record in records],
        "versions of torch": [record["versions"]["torch"] for record in records],
        "versions of perdure": [record["versions"]["perdure"] for record in records],
    }
    return [
        f"warning: these runs differ in {name} ({', '.join(sorted(set(seen)))})"
        for name, seen in facts.items()
        if len(set(seen)) > 1
    ]


def _plain(outcome: Outcome) -> dict[str, Any]:
    spec, record = outcome.planned.spec, outcome.record or {}
    asked = {"method": spec.method, "benchmark": spec.benchmark, "network": spec.network, "seed": spec.seed}
    figures = {name: record.get(name) for name in ("acc", "bwt", "learning_accuracy", "forgetting", "seconds", "path")}
    ended = {"state": outcome.state, "computed": outcome.computed, "error": outcome.error or None}
    return {**asked, "values": spec.values, **ended, **figures}


def _summed(group: Group, measured: Sequence[str]) -> dict[str, Any]:
    figures = {name: group.spread(name) for name in ("acc", "bwt", "learning_accuracy", "forgetting", "seconds")}
    named = {"benchmark": group.benchmark, "method": group.method, "label": group.label, "runs": len(group.runs)}
    told = {name: None if value is None else asdict(value) for name, value in figures.items()}
    probed = {name: asdict(value) for name in measured if (value := group.spread(name)) is not None}
    return {**named, **told, "measured": probed}
