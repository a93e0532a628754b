"""How long the runs of a study take at most, from a timed first epoch on this machine."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from perdure.errors import PerdureError
from perdure.lab.build import build, open_clean
from perdure.lab.spec import RunSpec
from perdure.lab.threads import with_threads
from perdure.methods.method import Method
from perdure.processes import python, python_environment
from perdure.train.callbacks import Callback, StepContext
from perdure.train.evaluate import evaluate
from perdure.train.fit import fit
from perdure.train.state import Epoch
from perdure.types import Lesson, Stream, cut

WHOLE = 24  # an epoch of up to so many steps is timed whole
SOME = 8  # of a longer one, so many steps


@dataclass(frozen=True)
class RunEstimate:
    """Seconds of an epoch and of a whole run, tests included, if every task takes all its epochs."""

    epoch: float  # the longest
    run: float
    lessons: int
    epochs: int  # of each lesson, at most
    whole: bool  # whether a whole epoch was timed


class RunCost(NamedTuple):
    """What runs cost that are alike but for their seed."""

    spec: RunSpec  # of the first
    runs: int
    estimate: RunEstimate | None
    error: str = ""  # why there is no estimate

    def plain(self) -> dict[str, Any]:
        names = {name: getattr(self.spec, name) for name in ("method", "benchmark", "network", "values")}
        return {**names, "runs": self.runs, **(asdict(self.estimate) if self.estimate else {"error": self.error})}


def estimate_runs(
    specs: Sequence[RunSpec],
    root: Path | None,
    device: torch.device,
    threads: int,
    on_timed: Callable[[RunSpec], None] = lambda _spec: None,
) -> list[RunCost]:
    """Time the first of all runs that are alike but for their seed; start and opening of data included."""
    alike: dict[str, list[RunSpec]] = {}
    for spec in specs:
        alike.setdefault(json.dumps({**spec.plain(), "seed": None}, sort_keys=True), []).append(spec)
    opened: tuple[str, Stream] | None = None
    costs, opening, start = [], 0.0, _start_seconds() if specs else 0.0
    for same in alike.values():
        spec = same[0]
        try:
            if opened is None or opened[0] != spec.data_key:
                opened = None  # so that there are never two in memory
                started = time.perf_counter()
                opened = (spec.data_key, open_clean(spec, root))
                opening = time.perf_counter() - started
            found = estimate_run(spec, opened[1], device, threads)
            costs.append(RunCost(spec, len(same), replace(found, run=found.run + start + opening)))
        except PerdureError as error:
            costs.append(RunCost(spec, len(same), None, str(error)))
        on_timed(spec)
    return costs


def parallel_seconds(seconds: Sequence[float], jobs: int) -> float:
    """How long runs of so many seconds take at most with so many jobs, in any order (Graham's bound).

    >>> parallel_seconds([1.0, 1.0, 2.0], 2)  # 1 and 1 side by side, then 2
    3.0
    """
    longest = max(seconds, default=0.0)
    return longest if len(seconds) <= jobs else sum(seconds) / jobs + (1 - 1 / jobs) * longest


def _start_seconds() -> float:
    """What it takes to start a process that can do a run."""
    started = time.perf_counter()
    words = python("-c", "import perdure.lab.execute.job")
    subprocess.run(words, env=python_environment(), check=False, capture_output=True)
    return time.perf_counter() - started


# --- one run ---


@dataclass(frozen=True)
class LessonTimes:
    """Seconds of a lesson's parts."""

    step: float
    validation: float
    rest: float  # before the first step and after the last epoch


class StepTimer(Callback):
    """Notes when steps and epochs end."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.epoch_ended = 0.0

    def on_step(self, now: StepContext) -> None:
        if now.at.batches:  # not after an epoch's evaluation
            self.steps.append(time.perf_counter())

    def on_epoch_end(self, epoch: Epoch) -> None:  # noqa: ARG002
        self.epoch_ended = time.perf_counter()


def estimate_run(spec: RunSpec, stream: Stream, device: torch.device, threads: int) -> RunEstimate:
    """Learn an epoch of the first lesson and one of the second, since many methods do all they do only then."""
    with with_threads(threads):
        method = build(spec, stream).to(device)
        lessons = list(method.lessons(stream))
        timed = [_time_lesson(method, lesson, spec, device) for lesson in lessons[:2]]
        started = time.perf_counter()
        evaluate(method, stream.tasks[0].to(device).test, 0)
        test = time.perf_counter() - started
    times = [timed[min(row, len(timed) - 1)] for row in range(len(lessons))]
    steps = [len(cut(len(lesson), spec.plan.batch)) for lesson in lessons]
    epochs = [count * lesson.step + lesson.validation for count, lesson in zip(steps, times, strict=True)]
    # After each lesson the tasks so far are tested; all of them after the only one of joint training.
    tests = sum(min(row + 1, len(stream)) for row in range(len(lessons))) if len(lessons) > 1 else len(stream)
    total = spec.plan.epochs * sum(epochs) + sum(lesson.rest for lesson in times) + tests * test
    whole = all(count <= WHOLE for count in steps[:2])
    return RunEstimate(max(epochs), total, len(lessons), spec.plan.epochs, whole)


def _time_lesson(method: Method, lesson: Lesson, spec: RunSpec, device: torch.device) -> LessonTimes:
    timer, batch = StepTimer(), spec.plan.batch
    rows = len(lesson)  # of each part: all, or so many as make a few steps
    if len(cut(rows, batch)) > WHOLE:
        rows = max(1, SOME * batch // len(lesson.parts))
    parts = tuple(
        replace(
            part,
            train=replace(part.train, x=part.train.x[:rows], y=part.train.y[:rows]).to(device),
            valid=part.valid.to(device),
        )
        for part in lesson.parts
    )
    started = time.perf_counter()
    fit(method, replace(lesson, parts=parts), spec.plan.lasting(1), spec.seed, timer)
    total = time.perf_counter() - started
    # The first step is left out where there are others: it warms up what the later ones find warm.
    taken = timer.steps[-1] - timer.steps[0] if len(timer.steps) > 1 else timer.steps[0] - started
    step = taken / max(1, len(timer.steps) - 1)
    validation = timer.epoch_ended - timer.steps[-1]
    return LessonTimes(step, validation, max(0.0, total - len(timer.steps) * step - validation))
