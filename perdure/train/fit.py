"""The loop. It asks the method for a gradient, takes the step, watches the validation loss, and keeps the best."""

import math
import time
from dataclasses import dataclass
from typing import Literal

import torch

from perdure.errors import Diverged
from perdure.methods.method import Method
from perdure.schema import Count, Positive, Weight
from perdure.seeding import chance, generator
from perdure.train.evaluate import Score, evaluate_together
from perdure.train.plateau import Linear, Plateau, Schedule
from perdure.types import Gradient, Lesson


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long and how fast to learn a lesson; the same for every method."""

    rate: Positive = 0.01  # η: learning rate at the start of each lesson
    epochs: Count = 200  # at most so many
    batch: Count = 64  # training images a step
    schedule: Literal["plateau", "linear"] = "plateau"  # lower the rate when validation stalls, or evenly to zero
    factor: Positive = 2.0  # plateau: what the rate is divided by
    patience: Count = 6  # plateau: epochs without improvement before that
    floor: Weight = 1e-5  # plateau: stop when the rate falls below
    momentum: Weight = 0.0  # of SGD
    keep: Literal["best", "last"] = "best"  # weights kept after a lesson: lowest validation loss, or the last
    train_scores: bool = False  # also score the training set after each epoch, as the papers log it

    def schedule_for_lesson(self) -> Schedule:
        if self.schedule == "linear":
            return Linear(self.rate, self.epochs)
        return Plateau(self.rate, self.factor, self.patience, self.floor)


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to."""

    lesson: int
    epoch: int
    rate: float
    valid: Score
    train: Score | None
    best: bool
    seconds: float


class Watch:
    """Looks on. Override what you want to see."""

    def caution(self, text: str) -> None:
        """Something speaks against this run."""

    def lesson(self, lesson: Lesson, plan: Plan) -> None:
        """A lesson begins."""

    def batch(self, done: int, of: int) -> None:
        """A step was taken; `of` is how many samples the epoch has."""

    def epoch(self, epoch: Epoch) -> None:
        """An epoch is over."""


def fit(method: Method, lesson: Lesson, plan: Plan, seed: int, watch: Watch | None = None) -> list[Epoch]:
    """Learn one lesson. Batch order depends on (seed, lesson, epoch) alone, so methods can be compared pairwise."""
    watch = watch or Watch()
    watch.lesson(lesson, plan)
    for part in lesson.parts:
        with chance(seed, "head", part.task):
            method.net.add_head(part.classes)
    with chance(seed, "begin", lesson.index):
        method.begin(lesson)
    weights = method.trainable()
    optimizer = torch.optim.SGD(weights.values(), lr=plan.rate, momentum=plan.momentum)
    schedule, kept, history = plan.schedule_for_lesson(), _copy(weights), []
    for epoch in range(plan.epochs):
        started, done = time.perf_counter(), 0
        optimizer.param_groups[0]["lr"] = rate = schedule.rate
        method.train()
        method.epoch(epoch, plan.epochs, rate / plan.rate)
        with chance(seed, "train", lesson.index, epoch):
            for batch in lesson.batches(plan.batch, generator(seed, "order", lesson.index, epoch)):
                gradient = method.gradient(batch)
                for name, weight in weights.items():
                    weight.grad = gradient.get(name)
                optimizer.step()
                watch.batch(done := done + len(batch), len(lesson))
        train = evaluate_together(method, ((p.task, p.train) for p in lesson.parts)) if plan.train_scores else None
        valid = evaluate_together(method, ((p.task, p.valid) for p in lesson.parts))
        if not math.isfinite(valid.loss):
            raise Diverged(
                f"the loss is no longer a number after epoch {epoch + 1} of lesson {lesson.index + 1}; "
                f"lower the learning rate, e.g. --plan rate={plan.rate / 5:g}{method.remedy()}"
            )
        if (best := schedule.see(valid.loss)) and plan.keep == "best":
            kept = _copy(weights)
        history.append(Epoch(lesson.index, epoch, rate, valid, train, best, time.perf_counter() - started))
        watch.epoch(history[-1])
        if schedule.stopped:
            break
    optimizer.zero_grad()
    if plan.keep == "best":
        with torch.no_grad():
            torch._foreach_copy_(list(weights.values()), list(kept.values()))
    with chance(seed, "end", lesson.index):
        method.end(lesson)
    return history


def _copy(weights: dict[str, torch.nn.Parameter]) -> Gradient:
    return {name: weight.detach().clone() for name, weight in weights.items()}
