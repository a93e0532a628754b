"""How long a run will take at most, from a timed first epoch on this machine."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from perdure.errors import PerdureError
from perdure.lab.build import build, open_clean, with_threads
from perdure.lab.spec import RunSpec
from perdure.lab.survey import data_key
from perdure.methods.method import Method
from perdure.train.callbacks import Callback, StepContext
from perdure.train.evaluate import evaluate
from perdure.train.fit import fit
from perdure.train.state import Epoch
from perdure.types import Lesson, Split, Stream, cut

WHOLE = 24  # an epoch of up to so many steps is timed whole
SOME = 8  # of a longer one, so many steps


@dataclass(frozen=True)
class Estimate:
    """Seconds of an epoch, and of a whole run, start and tests included, if every lesson takes all its epochs."""

    epoch: float  # the longest
    run: float
    lessons: int
    epochs: int  # of each lesson, at most
    whole: bool  # whether a whole epoch was timed


class Clock(Callback):
    """Notes when steps and epochs end."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.epoch_ended = 0.0

    def on_step(self, now: StepContext) -> None:
        if now.at.batches:  # not after an epoch's evaluation
            self.steps.append(time.perf_counter())

    def on_epoch_end(self, epoch: Epoch) -> None:  # noqa: ARG002
        self.epoch_ended = time.perf_counter()


@dataclass(frozen=True)
class Pace:
    """Seconds of a lesson's parts."""

    step: float
    validation: float
    around: float  # what begins and ends the lesson


def estimates(
    specs: Sequence[RunSpec], root: Path | None, device: torch.device, threads: int
) -> Iterator[tuple[RunSpec, int, Estimate | str]]:
    """For runs alike but for their seed: the first of them, how many they are, and its estimate or why there is none.

    Each is timed when the next is asked for.
    """
    alike: dict[str, list[RunSpec]] = {}
    for spec in specs:
        alike.setdefault(json.dumps({**spec.plain(), "seed": None}, sort_keys=True), []).append(spec)
    opened: tuple[str, Stream] | None = None
    opening, start = 0.0, _start_seconds() if specs else 0.0
    for same in alike.values():
        spec = same[0]
        key = data_key(spec)
        found: Estimate | str
        try:
            if opened is None or opened[0] != key:
                opened = None  # so that there are never two in memory
                started = time.perf_counter()
                opened = (key, open_clean(spec, root))
                opening = time.perf_counter() - started
            found = estimate(spec, opened[1], device, threads)
            found = replace(found, run=found.run + start + opening)
        except PerdureError as error:
            found = str(error)
        yield spec, len(same), found


def estimate(spec: RunSpec, stream: Stream, device: torch.device, threads: int) -> Estimate:
    """Learn an epoch of the first lesson and one of the second, since many methods do all they do only then."""
    with with_threads(threads):
        method = build(spec, stream).to(device)
        lessons = list(method.lessons(stream))
        steps = [len(cut(len(lesson), spec.plan.batch)) for lesson in lessons]
        paces = [_pace(method, lesson, spec, device) for lesson in lessons[:2]]
        started = time.perf_counter()
        evaluate(method, stream.tasks[0].to(device).test, 0)
        test = time.perf_counter() - started
    tests = sum(min(row + 1, len(stream)) for row in range(len(lessons))) if len(lessons) > 1 else len(stream)
    every = [paces[min(row, 1, len(paces) - 1)] for row in range(len(lessons))]
    epochs = [count * pace.step + pace.validation for count, pace in zip(steps, every, strict=True)]
    around = sum(pace.around for pace in every) + tests * test
    whole = all(count <= WHOLE for count in steps[:2])
    return Estimate(max(epochs), spec.plan.epochs * sum(epochs) + around, len(lessons), spec.plan.epochs, whole)


def _start_seconds() -> float:
    """What it takes to start a process that can do a run."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import perdure.lab.execute.job"], check=False, capture_output=True)
    return time.perf_counter() - started


def _pace(method: Method, lesson: Lesson, spec: RunSpec, device: torch.device) -> Pace:
    clock, plan = Clock(), replace(spec.plan, epochs=1)
    lesson = _on(_shortened(lesson, plan.batch), device)
    started = time.perf_counter()
    fit(method, lesson, plan, spec.seed, clock)
    total = time.perf_counter() - started
    # The first step is left out where there are others: it warms up what the later ones find warm.
    taken = clock.steps[-1] - clock.steps[0] if len(clock.steps) > 1 else clock.steps[0] - started
    step = taken / max(1, len(clock.steps) - 1)
    validation = clock.epoch_ended - clock.steps[-1]
    return Pace(step, validation, max(0.0, total - len(clock.steps) * step - validation))


def _shortened(lesson: Lesson, batch: int) -> Lesson:
    """The lesson, or so much of it as makes a few steps."""
    steps = len(cut(len(lesson), batch))
    if steps <= WHOLE:
        return lesson
    rows = max(1, SOME * batch // len(lesson.parts))
    return replace(lesson, parts=tuple(replace(part, train=_first(part.train, rows)) for part in lesson.parts))


def _first(split: Split, rows: int) -> Split:
    return replace(split, x=split.x[:rows], y=split.y[:rows])


def _on(lesson: Lesson, device: torch.device) -> Lesson:
    parts = (replace(part, train=part.train.to(device), valid=part.valid.to(device)) for part in lesson.parts)
    return replace(lesson, parts=tuple(parts))
