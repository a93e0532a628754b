"""Progress of runs and probes: bars on a terminal, plain lines elsewhere; always on standard error."""

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

from perdure.lab.probe_run import RunProgress
from perdure.probes.probe import Work
from perdure.train.callbacks import Callback
from perdure.train.plan import Plan
from perdure.train.state import Epoch
from perdure.types import Lesson

WORTH_SAYING = 5.0  # seconds


class RunBars(RunProgress):
    """A bar per training, which moves with every epoch, and one per probe, which moves with every batch."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.bar: TaskID | None = None  # of the probe at work

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def print(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.print(f"warning: {text}")

    def training(self, run: str, tasks: int) -> Callback:
        return TrainingBar(self, run, tasks)

    def begin(self, name: str, work: Work, seconds: float) -> None:
        expected = f"about {seconds:.0f} s expected"
        self.bar = self.bars.add_task(name, total=work.units, note=expected)
        if not self.console.is_terminal and seconds >= WORTH_SAYING:
            self.print(f"{name}: {expected}")

    def add(self, work: Work) -> None:
        super().add(work)
        if self.bar is not None:
            self.bars.advance(self.bar, work.units)

    def end(self, name: str, seconds: float) -> None:  # noqa: ARG002
        if self.bar is not None:
            self.bars.update(self.bar, note=f"{seconds:.1f} s")
        self.bar = None


class TrainingBar(Callback):
    """Shows the training of one run."""

    def __init__(self, shown: RunBars, run: str, tasks: int) -> None:
        self.shown, self.run, self.tasks = shown, run, tasks
        self.epochs_before, self.bar = 0, shown.bars.add_task(run, total=None, note="", visible=False)

    def on_warning(self, text: str) -> None:
        self.shown.warn(text)

    def on_task_start(self, lesson: Lesson, plan: Plan) -> None:
        self.epochs_before = lesson.index * plan.epochs
        total = self.tasks * plan.epochs
        self.shown.bars.update(self.bar, total=total, completed=self.epochs_before, visible=True)

    def on_epoch_end(self, epoch: Epoch) -> None:
        valid, train = epoch.valid, epoch.train
        scores = f"task {epoch.lesson + 1}, epoch {epoch.epoch + 1}: loss {valid.loss:.3f}, {valid.accuracy:.1f} %"
        self.shown.bars.update(self.bar, completed=self.epochs_before + epoch.epoch + 1, note=scores)
        if not self.shown.console.is_terminal:
            trained = "" if train is None else f" ({train.loss:.3f}, {train.accuracy:.1f} % on training data)"
            self.shown.print(f"{self.run}: {scores} on validation data{trained}, {epoch.seconds:.1f} s")
