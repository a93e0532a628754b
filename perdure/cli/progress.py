"""Progress of runs, probes and studies: bars on a terminal, plain lines elsewhere; always on standard error."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from perdure.lab.execute.job import Event
from perdure.lab.execute.local import cores
from perdure.lab.probe_run import RunProgress
from perdure.lab.spec import RunSpec
from perdure.lab.study import StudyCallback, StudyPlan, StudyRun
from perdure.ops.statistics import labels
from perdure.probes.probe import Cost
from perdure.report.tables import duration
from perdure.train.callbacks import Callback
from perdure.train.plan import Plan
from perdure.train.state import Epoch, Learned
from perdure.types import Lesson

WORTH_SAYING = 5.0  # seconds


class Bars:
    """Bars with a name and a note, on a terminal; lines of text anywhere."""

    def __init__(self, console: Console, transient: bool = False) -> None:
        super().__init__()
        self.console = console
        columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        name, note = (TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[note]"))
        quiet = not console.is_terminal
        self.bars = Progress(name, *columns, note, console=console, transient=transient, disable=quiet)

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def print(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)


class RunBars(Bars, RunProgress):
    """A bar per training, which moves with every epoch, and one per probe, which moves with every batch."""

    bar: TaskID | None = None  # of the probe at work

    def warn(self, text: str) -> None:
        self.print(f"warning: {text}")

    def training(self, run: str, tasks: int) -> Callback:
        return TrainingBar(self, run, tasks)

    def begin(self, name: str, work: Cost, seconds: float) -> None:
        expected = f"about {seconds:.0f} s expected"
        self.bar = self.bars.add_task(name, total=work.units, note=expected)
        if not self.console.is_terminal and seconds >= WORTH_SAYING:
            self.print(f"{name}: {expected}")

    def add(self, work: Cost) -> None:
        super().add(work)
        if self.bar is not None:
            self.bars.advance(self.bar, work.units)

    def end(self, name: str, seconds: float) -> None:  # noqa: ARG002
        if self.bar is not None:
            self.bars.update(self.bar, note=f"{seconds:.1f} s")
        self.bar = None


class TrainingBar(Callback):
    """Shows the training of one run: a bar that moves with every epoch, or a line per task."""

    def __init__(self, shown: RunBars, run: str, tasks: int) -> None:
        self.shown, self.run, self.tasks = shown, run, tasks
        self.epochs_before, self.bar = 0, shown.bars.add_task(run, total=None, note="", visible=False)

    def on_warning(self, text: str) -> None:
        self.shown.warn(text)

    def on_task_start(self, lesson: Lesson, plan: Plan) -> None:
        self.keep, self.epochs_before = plan.keep, lesson.index * plan.epochs
        total = self.tasks * plan.epochs
        self.shown.bars.update(self.bar, total=total, completed=self.epochs_before, visible=True)

    def on_epoch_end(self, epoch: Epoch) -> None:
        valid = epoch.valid
        scores = f"task {epoch.lesson + 1}, epoch {epoch.epoch + 1}: loss {valid.loss:.3f}, {valid.accuracy:.1f} %"
        self.shown.bars.update(self.bar, completed=self.epochs_before + epoch.epoch + 1, note=scores)

    def on_task_end(self, method: object, learned: Learned) -> None:  # noqa: ARG002
        if self.shown.console.is_terminal:
            return
        lesson = len(learned.matrix)
        epochs = [epoch for epoch in learned.epochs if epoch.lesson == lesson - 1]
        kept = [epoch for epoch in epochs if epoch.best or self.keep == "last"][-1]
        took = f"{len(epochs)} epoch{'s' if len(epochs) > 1 else ''}, {sum(e.seconds for e in epochs):.1f} s"
        score = f"{kept.valid.accuracy:.1f} % on validation data"
        self.shown.print(f"{self.run}: task {lesson} of {self.tasks}: {score} after {took}")


class StudyProgress(Bars, StudyCallback):
    """A bar for all runs, and below it one for each that is running, which moves with every epoch; elsewhere a line
    when a run starts and one when it ends."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, transient=True)

    def on_start(self, plan: StudyPlan) -> None:
        for line in (*error_lines([run for run in plan.runs if run.state == "failed"]), *_announcement(plan)):
            self.print(line)
        apart = labels([{**run.spec.plain(), "row": run.row} for run in plan.runs])
        names = {id(run): _name(run.spec, label, run.row) for run, label in zip(plan.runs, apart, strict=True)}
        self.names = [names[id(run)] for run in plan.to_do]
        self.all = self.bars.add_task("runs", total=len(self.names), note="")
        self.running = [
            self.bars.add_task(name, total=run.lessons * run.spec.plan.epochs, note="", visible=False)
            for run, name in zip(plan.to_do, self.names, strict=True)
        ]

    def on_event(self, event: Event) -> None:
        name, bar, kind, facts = self.names[event.job], self.running[event.job], event.kind, event.facts
        line = ""
        if kind == "started":
            self.bars.reset(bar, visible=True, note="")
            line = "" if self.console.is_terminal else "started"
        elif kind == "epoch":
            scores = f"loss {facts['loss']:.3f}, {facts['accuracy']:.1f} % on validation data"
            note = f"task {facts['lesson'] + 1}, epoch {facts['epoch'] + 1}: {scores}"
            self.bars.update(bar, completed=facts["lesson"] * facts["epochs"] + facts["epoch"] + 1, note=note)
        elif kind == "probe":
            self.bars.update(bar, note=f"measures {facts['name']}, about {duration(facts['seconds'])}")
        elif kind == "warning":
            line = f"warning: {facts['text']}"
        else:
            self.bars.update(bar, visible=False)
            self.bars.advance(self.all, kind != "lost")
            if kind == "lost":
                line = f"{facts['error']}; tried again from its last checkpoint"
            elif kind == "done":
                bwt = facts["record"]["bwt"]
                line = f"done, ACC {facts['record']['acc']:.1f}" + ("" if bwt is None else f", BWT {bwt:+.1f}")
            else:
                line = f"{kind}: {facts['error']}"
        if line:
            self.print(f"{name}: {line}")

    def on_timed(self, spec: RunSpec) -> None:
        if self.console.is_terminal:
            self.print(f"timed {spec.method} on {spec.benchmark}")


def _name(spec: RunSpec, label: str = "", row: str = "") -> str:
    return f"{row or spec.method} on {spec.benchmark}{f' ({label})' if label else ''}, seed {spec.seed}"


def error_lines(runs: Sequence[StudyRun]) -> Iterator[str]:
    """A line for each error, however many runs have it."""
    by_error: dict[str, list[StudyRun]] = {}
    for run in runs:
        by_error.setdefault(run.error or "stopped", []).append(run)
    for error, alike in by_error.items():
        others = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        yield f"{_name(alike[0].spec, row=alike[0].row)}{others}: {error}"


def _announcement(plan: StudyPlan) -> Iterator[str]:
    """What is to do, and whether the cores are put to good use."""
    runs, done, to_do = len(plan.runs), plan.done, len(plan.to_do)
    if not to_do:
        waiting = any(run.state == "waiting" for run in plan.runs)
        left = "none of those asked for is left" if waiting else "none that can be done"
        what = "all of them done already" if done == runs else f"{done} done already, {left}"
        yield f"study {plan.study.name}: {runs} runs, {what}; nothing to compute"
        return
    where = f"on {plan.on}" if plan.jobs is None else f"{plan.jobs} at a time"
    threads = f"{plan.threads} thread{'s' if plan.threads > 1 else ''} each"
    now = "" if all(run.wanted for run in plan.runs) else " now"
    yield f"study {plan.study.name}: {runs} runs, {done} done already, {to_do} to do{now}; {where}, {threads}"
    if plan.jobs is None or plan.device != "cpu":
        return
    best = cores() // plan.threads
    if plan.jobs * plan.threads > cores():
        yield f"warning: that is more than the {cores()} cores there are, and slower than --jobs {max(1, best)}"
    elif min(best, to_do) > plan.jobs:
        yield f"{cores()} cores: --jobs {min(best, to_do)} is quicker, with the same records"
