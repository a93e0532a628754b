"""How the runs of a study get on: a table on a terminal, plain lines elsewhere; always on standard error."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

STATES = ("running", "failed", "done", "stopped", "waiting")  # as they stand in the table, from the top
COLORS = {"running": "bold", "failed": "red", "done": "green", "stopped": "yellow", "waiting": "dim"}
RECENT = 10  # epochs from which the time left is told


@dataclass
class Line:
    """A run as it stands."""

    name: str
    lessons: int
    state: str = "waiting"
    task: int = 0
    epoch: int = 0
    epochs: int = 1
    loss: float | None = None
    accuracy: float | None = None
    note: str = ""
    seconds: list[float] = field(default_factory=list)  # of the latest epochs

    def advance(self, facts: dict[str, Any]) -> None:
        self.task, self.epoch, self.epochs = facts["lesson"] + 1, facts["epoch"] + 1, facts["epochs"]
        self.loss, self.accuracy = facts["loss"], facts["accuracy"]
        self.seconds = [*self.seconds, facts["seconds"]][-RECENT:]

    @property
    def left(self) -> float | None:
        """Seconds to go if every lesson takes all its epochs."""
        if self.state != "running" or not self.seconds:
            return None
        epochs = (self.lessons - self.task) * self.epochs + self.epochs - self.epoch
        return max(0, epochs) * sum(self.seconds) / len(self.seconds)


class Board:
    """One line per run."""

    def __init__(self, lines: Sequence[Line], console: Console) -> None:
        self.lines, self.console = lines, console
        self.live = Live(console=console, get_renderable=self.table, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def see(self, number: int, kind: str, facts: dict[str, Any]) -> None:
        """Something happened to a run."""
        line = self.lines[number]
        if kind == "started":
            line.state, line.note, line.seconds = "running", "", []
        elif kind == "epoch":
            line.advance(facts)
            if not self.console.is_terminal:
                self.say(
                    f"{line.name}: task {line.task}, epoch {line.epoch}: loss {line.loss:.3f}, {line.accuracy:.1f} % "
                    f"on validation data, {facts['seconds']:.1f} s"
                )
        elif kind == "probe":
            line.note = f"measures {facts['name']}, about {lasting(facts['seconds'])}"
            if not self.console.is_terminal:
                self.say(f"{line.name}: {line.note}")
        elif kind == "warning":
            self.say(f"{line.name}: warning: {facts['text']}")
        elif kind == "lost":
            line.state, line.note = "waiting", "lost, to be tried again"
            self.say(f"{line.name}: {facts['error']}; tried again from its last checkpoint")
        elif kind == "done":
            line.state, line.note = "done", _scores(facts["record"])
            self.say(f"{line.name}: done, {line.note}")
        else:
            line.state, line.note = kind, facts["error"]
            self.say(f"{line.name}: {kind}: {facts['error']}")

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def table(self) -> Table:
        """What goes on comes first; what does not fit is counted."""
        count = {state: sum(line.state == state for line in self.lines) for state in STATES}
        title = ", ".join(f"{count[state]} {state}" for state in STATES if count[state])
        table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for name in ("run", "", "task", "epoch", "loss", "accuracy", "time left", ""):
            table.add_column(name, justify="left" if name in ("", "run") else "right", no_wrap=True)
        room = max(1, self.console.height - 4)
        ordered = sorted(self.lines, key=lambda line: STATES.index(line.state))
        for line in ordered[:room]:
            table.add_row(*_cells(line), style="dim" if line.state == "waiting" else "")
        if len(ordered) > room:
            table.add_row(f"and {len(ordered) - room} more")
        return table


def _cells(line: Line) -> list[Text]:
    running = line.state == "running" and line.task > 0
    return [
        Text(line.name),
        Text(line.state, style=COLORS[line.state]),
        Text(f"{line.task}/{line.lessons}" if running else ""),
        Text(f"{line.epoch}/{line.epochs}" if running else ""),
        Text(f"{line.loss:.3f}" if running else ""),
        Text(f"{line.accuracy:.1f} %" if running else ""),
        Text("" if line.left is None else f"≤ {lasting(line.left)}"),
        Text(line.note),
    ]


def _scores(record: dict[str, Any]) -> str:
    bwt = "" if record["bwt"] is None else f", BWT {record['bwt']:+.1f}"
    return f"ACC {record['acc']:.1f}{bwt}"


def lasting(seconds: float) -> str:
    """
    >>> [lasting(s) for s in (0.2, 90, 400, 7200, 500_000)]
    ['0.2 s', '90 s', '7 min', '2.0 h', '5.8 days']
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 120 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 72 * 3600 else f"{seconds / 86400:.1f} days"
