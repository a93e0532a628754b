"""Progress of a study: a live table on a terminal, plain lines elsewhere; always on standard error."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from perdure.lab.execute.job import Event
from perdure.lab.execute.local import cores
from perdure.lab.spec import RunSpec
from perdure.lab.study import StudyCallback, StudyPlan, StudyRun
from perdure.ops.statistics import labels
from perdure.report.tables import duration

STATES = {"running": "bold", "failed": "red", "done": "green", "stopped": "yellow", "waiting": "dim"}  # from the top
RECENT = 10  # epochs from which the remaining time is estimated


@dataclass
class RunRow:
    """A run in the table."""

    name: str
    lessons: int
    state: str = "waiting"
    epoch: dict[str, Any] | None = None  # facts of the latest
    note: str = ""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))  # of the latest epochs

    @property
    def seconds_left(self) -> float | None:
        """If every task takes all its epochs."""
        if self.state != "running" or self.epoch is None or not self.seconds:
            return None
        epochs: int = (self.lessons - self.epoch["lesson"]) * self.epoch["epochs"] - self.epoch["epoch"] - 1
        return max(0, epochs) * sum(self.seconds) / len(self.seconds)

    def cells(self) -> list[Text]:
        told = [""] * 4
        if self.state == "running" and (now := self.epoch):
            told = [f"{now['lesson'] + 1}/{self.lessons}", f"{now['epoch'] + 1}/{now['epochs']}"]
            told += [f"{now['loss']:.3f}", f"{now['accuracy']:.1f} %"]
        left = "" if self.seconds_left is None else f"≤ {duration(self.seconds_left)}"
        return [Text(self.name), Text(self.state, STATES[self.state]), *map(Text, (*told, left, self.note))]


class StudyProgress(StudyCallback):
    """One row per run that is to be done."""

    def __init__(self, console: Console) -> None:
        self.console, self.rows = console, list[RunRow]()
        self.live = Live(console=console, get_renderable=self.table, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def print(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def on_start(self, plan: StudyPlan) -> None:
        for line in error_lines([run for run in plan.runs if run.state == "failed"]):
            self.print(line)
        for line in _announcement(plan):
            self.print(line)
        specs = [run.spec.plain() for run in plan.runs]
        for run, label in zip(plan.runs, labels(specs), strict=True):
            if run.state == "waiting":
                name = (
                    f"{run.spec.method} on {run.spec.benchmark}{f' ({label})' if label else ''}, seed {run.spec.seed}"
                )
                self.rows.append(RunRow(name, run.lessons))
        if self.rows and self.console.is_terminal:
            self.live.start()

    def on_event(self, event: Event) -> None:
        row, kind, facts = self.rows[event.job], event.kind, event.facts
        detail = ""  # what the table shows by itself
        if kind == "started":
            row.state, row.note, row.epoch = "running", "", None
            row.seconds.clear()
        elif kind == "epoch":
            row.epoch = facts
            row.seconds.append(facts["seconds"])
            detail = (
                f"task {facts['lesson'] + 1}, epoch {facts['epoch'] + 1}: loss {facts['loss']:.3f}, "
                f"{facts['accuracy']:.1f} % on validation data, {facts['seconds']:.1f} s"
            )
        elif kind == "probe":
            row.note = detail = f"measures {facts['name']}, about {duration(facts['seconds'])}"
        elif kind == "warning":
            self.print(f"{row.name}: warning: {facts['text']}")
        elif kind == "lost":
            row.state, row.note = "waiting", "lost, to be tried again"
            self.print(f"{row.name}: {facts['error']}; tried again from its last checkpoint")
        elif kind == "done":
            record = facts["record"]
            bwt = "" if record["bwt"] is None else f", BWT {record['bwt']:+.1f}"
            row.state, row.note = "done", f"ACC {record['acc']:.1f}{bwt}"
            self.print(f"{row.name}: done, {row.note}")
        else:
            row.state, row.note = kind, facts["error"]
            self.print(f"{row.name}: {kind}: {row.note}")
        if detail and not self.console.is_terminal:
            self.print(f"{row.name}: {detail}")

    def on_timed(self, spec: RunSpec) -> None:
        if self.console.is_terminal:
            self.print(f"timed {spec.method} on {spec.benchmark}")

    def table(self) -> Table:
        """Running ones come first; what does not fit is counted."""
        order = list(STATES)
        rows = sorted(self.rows, key=lambda row: order.index(row.state))
        counts = {state: sum(row.state == state for row in rows) for state in order}
        title = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for name in ("run", "", "task", "epoch", "loss", "accuracy", "time left", ""):
            table.add_column(name, justify="left" if name in ("", "run") else "right", no_wrap=True)
        fit = max(1, self.console.height - 4)
        for row in rows[:fit]:
            table.add_row(*row.cells(), style="dim" if row.state == "waiting" else "")
        if len(rows) > fit:
            table.add_row(f"and {len(rows) - fit} more")
        return table


def error_lines(runs: Sequence[StudyRun]) -> Iterator[str]:
    """A line for each error, however many runs have it."""
    by_error: dict[str, list[StudyRun]] = {}
    for run in runs:
        by_error.setdefault(run.error or "stopped", []).append(run)
    for error, alike in by_error.items():
        spec, others = alike[0].spec, f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        yield f"{spec.method} on {spec.benchmark}, seed {spec.seed}{others}: {error}"


def _announcement(plan: StudyPlan) -> Iterator[str]:
    """What is to do, and whether the cores are put to good use."""
    runs, done, to_do = len(plan.runs), plan.done, len(plan.to_do)
    if not to_do:
        what = "all of them done already" if done == runs else f"{done} done already, none that can be done"
        yield f"study {plan.study.name}: {runs} runs, {what}; nothing to compute"
        return
    where = f"on {plan.on}" if plan.jobs is None else f"{plan.jobs} at a time"
    threads = f"{plan.threads} thread{'s' if plan.threads > 1 else ''} each"
    yield f"study {plan.study.name}: {runs} runs, {done} done already, {to_do} to do; {where}, {threads}"
    if plan.jobs is None or plan.device != "cpu":
        return
    best = cores() // plan.threads
    if plan.jobs * plan.threads > cores():
        yield f"warning: that is more than the {cores()} cores there are, and slower than --jobs {max(1, best)}"
    elif min(best, to_do) > plan.jobs:
        yield f"{cores()} cores: --jobs {min(best, to_do)} is quicker, with the same records"
