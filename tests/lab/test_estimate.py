"""What a run would take, from one epoch of it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perdure.lab import estimate
from perdure.lab.build import open_stream
from perdure.lab.estimate import estimate_run, estimate_runs
from perdure.lab.spec import RunSpec, spec
from perdure.types import Lesson, Stream, cut

CPU = torch.device("cpu")


def asked(method: str = "finetune", batch: int = 16, **more: Any) -> RunSpec:
    """Three tasks of 90 training images, eight epochs each."""
    return spec(method, "synthetic", network="mlp", plan={"epochs": 8, "batch": batch}, **more)


class Stopwatch:
    """Stands for the clock and for all that takes time, in made-up seconds."""

    start, opening, test = 5.0, 7.0, 0.5
    step, validation, rest = (1.0, 3.0), (2.0, 4.0), (10.0, 20.0)  # of the first lesson, and of later ones
    warm_up = 100.0  # what the first step of a lesson takes more than the others

    def __init__(self) -> None:
        self.now, self.opened = 0.0, 0
        self.rows: list[int] = []  # of the lessons that were timed

    def fit(self, _method: object, lesson: Lesson, plan: Any, _seed: int, timer: Any) -> None:
        assert plan.epochs == 1
        self.rows.append(len(lesson))
        kind = min(lesson.index, 1)
        self.now += self.rest[kind] + self.warm_up
        for batch, _ in enumerate(cut(len(lesson), plan.batch)):
            self.now += self.step[kind]
            timer.on_step(SimpleNamespace(at=SimpleNamespace(batches=batch + 1)))
        self.now += self.validation[kind]
        timer.on_epoch_end(None)
        timer.on_step(SimpleNamespace(at=SimpleNamespace(batches=0)))  # after the epoch

    def evaluate(self, *_: object) -> None:
        self.now += self.test

    def open_clean(self, wanted: RunSpec, root: None) -> Stream:
        self.now, self.opened = self.now + self.opening, self.opened + 1
        return open_stream(wanted, root)

    def run(self, *_: object, **__: object) -> None:
        """A process that can do a run."""
        self.now += self.start


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    watch = Stopwatch()
    monkeypatch.setattr(estimate, "time", SimpleNamespace(perf_counter=lambda: watch.now))
    monkeypatch.setattr(estimate, "subprocess", watch)
    for name in ("fit", "evaluate", "open_clean"):
        monkeypatch.setattr(estimate, name, getattr(watch, name))
    return watch


# Six steps an epoch: 6 · 1 + 2 seconds in the first task, 6 · 3 + 4 in the two later ones; eight epochs each.
LEARNING = 8 * (8 + 22 + 22)
BETWEEN = 3 * 100 + 10 + 20 + 20
TESTS = (1 + 2 + 3) * 0.5  # after each task, all so far


def test_a_run_takes_all_its_epochs_and_after_each_task_the_tests_of_all_so_far(watch: Stopwatch) -> None:
    found = estimate_run(asked(), open_stream(asked(), None), CPU, 1)
    assert found == estimate.RunEstimate(22.0, LEARNING + BETWEEN + TESTS, lessons=3, epochs=8, whole=True)
    assert watch.rows == [90, 90]  # the third is taken to be as the second


def test_joint_training_is_one_lesson_and_a_test_of_every_task(watch: Stopwatch) -> None:
    found = estimate_run(asked("mtl"), open_stream(asked(), None), CPU, 1)
    epoch = 17 * 1 + 2  # 270 images in batches of 16
    assert found == estimate.RunEstimate(epoch, 8 * epoch + 110 + 3 * 0.5, lessons=1, epochs=8, whole=True)
    assert watch.rows == [270]


def test_of_a_long_epoch_only_some_steps_are_timed_and_all_are_counted(watch: Stopwatch) -> None:
    found = estimate_run(asked(batch=3), open_stream(asked(), None), CPU, 1)
    first, later = 30 * 1 + 2, 30 * 3 + 4
    assert found == estimate.RunEstimate(later, 8 * (first + 2 * later) + BETWEEN + TESTS, 3, 8, whole=False)
    assert watch.rows == [24, 24]  # eight steps of three images


def test_start_and_opening_count_for_each_run_though_they_are_timed_once(watch: Stopwatch) -> None:
    specs = [asked(), asked("gpm"), asked(seed=2), asked("gpm", seed=2)]
    one, other = estimate_runs(specs, None, CPU, 1)
    assert [(cost.spec, cost.runs) for cost in (one, other)] == [(specs[0], 2), (specs[1], 2)]
    assert one.estimate is not None
    assert one.estimate.run == LEARNING + BETWEEN + TESTS + 5 + 7
    assert other.estimate == one.estimate
    assert watch.opened == 1


def test_a_plan_that_needs_several_epochs_is_timed_by_one() -> None:
    plan = {"epochs": 8, "warmup": 2, "schedule": "steps", "milestones": "4,6", "augment": "flip"}
    wanted = spec("finetune", "synthetic", network="mlp", tasks=2, plan=plan)
    found = estimate_run(wanted, open_stream(wanted, None), CPU, 1)
    assert found.epochs == 8
