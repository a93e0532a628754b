"""Saves a run while it goes on, and stops it when it is told to."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from perdure.errors import CorruptFile, Interrupted, PerdureError
from perdure.lab import checkpoint
from perdure.lab.checkpoint import Saved
from perdure.lab.store import set_aside
from perdure.methods.method import Method
from perdure.train.callbacks import Callback, StepContext
from perdure.train.plan import Plan
from perdure.train.state import FitState, Learned

KEPT = 2  # checkpoints: should the latest turn out damaged, there is the one before


class Saver(Callback):
    """Writes a checkpoint after every lesson, and within one when `every` seconds have passed since the last."""

    def __init__(self, folder: Path, digest: str, learned: Learned, every: float) -> None:
        self.folder, self.digest, self.learned, self.every = folder, digest, learned, every
        self.saved_at = time.monotonic()  # a clock that never goes backwards
        self.asked_to_stop: int | None = None

    def on_step(self, now: StepContext) -> None:
        if self.asked_to_stop is not None:
            self.save(now.method, now.state())
            self.stop(f"task {now.at.lesson + 1}, epoch {now.at.epoch + 1}")
        elif time.monotonic() - self.saved_at >= self.every:
            self.save(now.method, now.state())

    def on_task_end(self, method: Method, learned: Learned) -> None:
        self.save(method, None)
        if self.asked_to_stop is not None:
            self.stop(f"the end of task {len(learned.matrix)}")

    def save(self, method: Method, standing: FitState | None) -> None:
        before = _numbered(self.folder)
        number = before[-1][0] + 1 if before else 1
        checkpoint.save(self.folder / f"{number:06d}.safetensors", self.digest, method, self.learned, standing)
        prune(self.folder)
        self.saved_at = time.monotonic()

    def stop(self, where: str) -> None:
        assert self.asked_to_stop is not None
        raise Interrupted(
            f"interrupted at {where}; completed work is saved, run the same command to resume", self.asked_to_stop
        )


def latest(folder: Path, plan: Plan, digest: str) -> tuple[Saved | None, list[str]]:
    """The newest checkpoint that is whole, and what had to be set aside to find it."""
    said: list[str] = []
    for _, path in reversed(_numbered(folder)):
        try:
            return checkpoint.load(path, plan, digest), said
        except CorruptFile as error:
            said.append(f"{error}; set aside as {set_aside(path).name}")
    return None, said


def prune(folder: Path) -> None:
    """Remove all but the newest."""
    for _, old in _numbered(folder)[:-KEPT]:
        old.unlink(missing_ok=True)


def discard(folder: Path) -> None:
    """Remove the checkpoints of a run that is finished."""
    for _, path in _numbered(folder):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # something that was set aside is left in it, or it was never made
        folder.rmdir()


@contextmanager
def stoppable(saver: Saver) -> Iterator[None]:
    """Ctrl-C and SIGTERM let the step at hand end, save and stop; a second Ctrl-C stops at once."""

    def ask(number: int, _frame: FrameType | None) -> None:
        if saver.asked_to_stop is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        saver.asked_to_stop = number

    before: dict[int, Any] = {}
    with suppress(ValueError):  # not the main thread: whoever runs it there stops it in another way
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, ask)
    try:
        yield
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints there are, oldest first."""
    try:
        found = [(int(path.stem), path) for path in folder.glob("*.safetensors") if path.stem.isdigit()]
    except OSError as error:
        raise PerdureError(f"{folder}: cannot be read ({error.strerror}); check that you may read it") from None
    return sorted(found)
