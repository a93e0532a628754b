"""The training loop: one screen, and no method's name in it."""

import math
import time

import torch

from perdure.errors import Diverged
from perdure.methods.method import Method
from perdure.ops.tally import Running
from perdure.seeding import chance, generator, set_generator_states
from perdure.train.callbacks import Callback, StepContext
from perdure.train.evaluate import evaluate_together, score
from perdure.train.plan import Plan
from perdure.train.sgd import SGD
from perdure.train.state import Epoch, FitState
from perdure.types import Gradient, Lesson


def fit(
    method: Method,
    lesson: Lesson,
    plan: Plan,
    seed: int,
    callback: Callback | None = None,
    since: FitState | None = None,
) -> list[Epoch]:
    """Learn one lesson, or go on with it `since` it was interrupted.

    Batch order depends on (seed, lesson, epoch) alone, so methods can be compared pairwise.
    """
    callback = callback or Callback()
    callback.on_task_start(lesson, plan)
    if since is None:
        for part in lesson.parts:
            with chance(seed, "head", part.task):
                method.net.add_head(part.classes)
        with chance(seed, "begin", lesson.index):
            method.begin(lesson)
    method.net.in_bf16 = plan.precision == "bf16"
    weights = method.trainable()
    at = since or FitState(lesson.index, plan.schedule_for_lesson(), _copy(weights) if plan.keep == "best" else {})
    sgd = SGD(weights, plan.momentum, at.momentum)
    while at.epoch < plan.epochs and not at.schedule.stopped:
        started = time.perf_counter() - at.seconds
        rate = at.schedule.rate
        method.train()
        method.running = at.running
        if at.batches == 0:
            method.epoch(at.epoch, plan.epochs, rate / plan.rate)
        with chance(seed, "train", lesson.index, at.epoch):
            if at.batches:
                set_generator_states(at.chance)
            for batch in lesson.batches(plan.batch, generator(seed, "order", lesson.index, at.epoch), at.batches):
                at.running.expect(batch)
                sgd.step(method.gradient(batch), rate)
                at.batches, at.seconds = at.batches + 1, time.perf_counter() - started
                callback.on_step(StepContext(method, at, sgd))
        train = score(at.running) if at.running.samples else None
        if plan.train_scores:
            train = evaluate_together(method, ((p.task, p.train) for p in lesson.parts))
        valid = evaluate_together(method, ((p.task, p.valid) for p in lesson.parts))
        if not math.isfinite(valid.loss):
            raise Diverged(
                f"the loss is no longer a number after epoch {at.epoch + 1} of lesson {lesson.index + 1}; "
                f"lower the learning rate, e.g. --plan rate={plan.rate / 5:g}{method.remedy()}"
            )
        if (best := at.schedule.see(valid.loss)) and plan.keep == "best":
            at.kept = _copy(weights)
        at.history.append(Epoch(lesson.index, at.epoch, rate, valid, train, best, time.perf_counter() - started))
        at.epoch, at.batches, at.seconds, at.running = at.epoch + 1, 0, 0.0, Running()
        callback.on_epoch_end(at.history[-1])
        callback.on_step(StepContext(method, at, sgd))
    if plan.keep == "best":
        with torch.no_grad():
            torch._foreach_copy_(list(weights.values()), [at.kept[name] for name in weights])
    with chance(seed, "end", lesson.index):
        method.end(lesson)
    return at.history


def _copy(weights: dict[str, torch.nn.Parameter]) -> Gradient:
    return {name: weight.detach().clone() for name, weight in weights.items()}
