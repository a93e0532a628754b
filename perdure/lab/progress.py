"""Progress of runs and probes: a bar on a terminal, plain lines elsewhere; always on standard error."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from perdure.lab.probe_run import Gauge
from perdure.probes.probe import Cost
from perdure.train.callbacks import Callback
from perdure.train.plan import Plan
from perdure.train.state import Epoch
from perdure.types import Lesson

WORTH_SAYING = 5.0  # seconds


def bars(console: Console, count: ProgressColumn) -> Progress:
    """Where bars are shown, one below the other; nowhere if this is not a terminal."""
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    columns = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        count,
        *times,
        TextColumn("{task.fields[note]}"),
    ]
    return Progress(*columns, console=console, disable=not console.is_terminal)


class Bar(Callback):
    """One bar per run, which moves with every epoch."""

    def __init__(self, label: str, lessons: int, console: Console) -> None:
        self.label, self.lessons, self.console = label, lessons, console
        self.now, self.epochs = 0, 1
        self.progress = bars(console, MofNCompleteColumn())
        self.bar = self.progress.add_task(label, total=None, note="", visible=False)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def on_warning(self, text: str) -> None:
        self.console.print(f"warning: {text}", markup=False, soft_wrap=True)

    def on_task_start(self, lesson: Lesson, plan: Plan) -> None:
        self.now, self.epochs = lesson.index, plan.epochs
        lessons = max(self.lessons, self.now + 1)
        self.progress.update(self.bar, total=lessons * plan.epochs, completed=self.now * plan.epochs, visible=True)

    def on_epoch_end(self, epoch: Epoch) -> None:
        valid = epoch.valid
        said = f"task {epoch.lesson + 1}, epoch {epoch.epoch + 1}: loss {valid.loss:.3f}, {valid.accuracy:.1f} %"
        train = epoch.train
        trained = "" if train is None else f" ({train.loss:.3f}, {train.accuracy:.1f} % on training data)"
        self.progress.update(self.bar, completed=self.now * self.epochs + epoch.epoch + 1, note=said)
        if not self.console.is_terminal:
            self.console.print(
                f"{self.label}: {said} on validation data{trained}, {epoch.seconds:.1f} s", soft_wrap=True
            )


class Dial(Gauge):
    """One bar per probe, which moves with every batch; elsewhere a line with the time it will take, if that is long."""

    def __init__(self, progress: Progress, prefix: str = "") -> None:
        super().__init__()
        self.progress, self.prefix = progress, prefix
        self.bar: TaskID | None = None

    def begin(self, name: str, work: Cost, seconds: float) -> None:
        self.bar = self.progress.add_task(
            f"{self.prefix}{name}", total=work.units, note=f"about {seconds:.0f} s expected"
        )
        if not self.progress.console.is_terminal and seconds >= WORTH_SAYING:
            self.progress.console.print(
                f"{self.prefix}{name}: about {seconds:.0f} s expected", markup=False, soft_wrap=True
            )

    def add(self, work: Cost) -> None:
        super().add(work)
        if self.bar is not None:
            self.progress.advance(self.bar, work.units)

    def end(self, name: str, seconds: float) -> None:  # noqa: ARG002
        if self.bar is not None:
            self.progress.update(self.bar, note=f"{seconds:.1f} s")
        self.bar = None
