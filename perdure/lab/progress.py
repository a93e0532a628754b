"""Progress of a run: a bar on a terminal, plain lines elsewhere; always on standard error."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from perdure.train.plan import Plan
from perdure.train.watch import Epoch, Watch
from perdure.types import Lesson


class Bar(Watch):
    """One bar per run, which moves with every epoch."""

    def __init__(self, label: str, lessons: int, console: Console) -> None:
        self.label, self.lessons, self.console = label, lessons, console
        self.now, self.epochs = 0, 1
        columns = [
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        ]
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self.bar = self.progress.add_task(label, total=None, note="")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def caution(self, text: str) -> None:
        self.console.print(f"caution: {text}", markup=False, soft_wrap=True)

    def lesson(self, lesson: Lesson, plan: Plan) -> None:
        self.now, self.epochs = lesson.index, plan.epochs
        lessons = max(self.lessons, self.now + 1)
        self.progress.update(self.bar, total=lessons * plan.epochs, completed=self.now * plan.epochs)

    def epoch(self, epoch: Epoch) -> None:
        valid = epoch.valid
        said = f"task {epoch.lesson + 1}, epoch {epoch.epoch + 1}: loss {valid.loss:.3f}, {valid.accuracy:.1f} %"
        trained = (
            "" if epoch.train is None else f"; training set: loss {epoch.train.loss:.3f}, {epoch.train.accuracy:.1f} %"
        )
        self.progress.update(self.bar, completed=self.now * self.epochs + epoch.epoch + 1, note=said)
        if not self.console.is_terminal:
            self.console.print(
                f"{self.label}: {said} on validation data{trained}, {epoch.seconds:.1f} s", soft_wrap=True
            )
