"""The training loop: one screen, and no method's name in it."""

import math
import time
from contextlib import nullcontext

import torch

from perdure.errors import Diverged, WrongValue
from perdure.methods.method import Method
from perdure.seeding import chance, generator, set_generator_states
from perdure.train.augment import resolve
from perdure.train.callbacks import Callback, StepContext
from perdure.train.evaluate import RunningScore, evaluate_together
from perdure.train.guard import guard
from perdure.train.optimizers import optimizer_for
from perdure.train.plan import Plan
from perdure.train.state import Epoch, FitState, changing, undone_on_failure
from perdure.types import EpochStart, Gradient, Lesson


def fit(
    method: Method,
    lesson: Lesson,
    plan: Plan,
    seed: int,
    callback: Callback | None = None,
    state: FitState | None = None,
) -> list[Epoch]:
    """Learn one lesson, or resume it from a `state`.

    Batch order depends on (seed, lesson, epoch) alone, so methods can be compared pairwise. A lesson that fails leaves
    the method as it was before.
    """
    check_lesson(method, lesson, state)
    with undone_on_failure(method) if state is None else nullcontext():
        return _fit(method, lesson, plan, seed, callback or Callback(), state)


def _fit(
    method: Method, lesson: Lesson, plan: Plan, seed: int, callback: Callback, state: FitState | None
) -> list[Epoch]:
    callback.on_task_start(lesson, plan)
    if state is None:
        method.net.begin_statistics()
        for part in lesson.parts:
            with chance(seed, "head", part.task):
                method.net.add_head(part.classes)
        with chance(seed, "begin", lesson.index):
            method.begin(lesson)
    method.net.in_bf16 = plan.precision == "bf16"
    state = state or FitState(lesson.index, plan.schedule_for_lesson(), _copy(method) if plan.keep == "best" else {})
    optimizer, augment = optimizer_for(plan, method.trainable(), state.optimizer), resolve(plan)
    while state.epoch < plan.epochs and not state.schedule.stopped:
        started = time.perf_counter() - state.seconds
        rate = state.schedule.rate
        method.train()
        if state.batches == 0:
            fallen = state.schedule.fallen(plan.rate)
            method.begin_epoch(EpochStart(state.epoch, plan.epochs, rate / plan.rate, fallen))
        with chance(seed, "train", lesson.index, state.epoch):
            if state.batches:
                set_generator_states(state.generators)
            order = generator(seed, "order", lesson.index, state.epoch)
            for batch in lesson.batches(plan.batch, order, state.batches, augment):
                method.train_rows, method.train_logits = len(batch), None
                optimizer.step(method.gradient(method.attacked(batch)), rate, method.project)
                if method.train_logits is not None:
                    state.running.add(method.train_logits, batch.y)
                state.batches, state.seconds = state.batches + 1, time.perf_counter() - started
                callback.on_step(StepContext(method, state, optimizer))
        train = state.running.score()
        if plan.train_scores:
            train = evaluate_together(method, ((p.task, p.train) for p in lesson.parts))
        shuffle = generator(seed, "valid", lesson.index, state.epoch) if plan.valid_order == "shuffled" else None
        valid = evaluate_together(method, ((p.task, p.valid) for p in lesson.parts), order=shuffle)
        judged = valid.loss + method.penalty()
        with chance(seed, "guard", lesson.index, state.epoch):
            collapse = guard(method, lesson, state.epoch)
        if collapse is not None:
            callback.on_warning(collapse)
        if not math.isfinite(judged):
            raise Diverged(
                f"the loss is no longer a number after epoch {state.epoch + 1} of task {lesson.index + 1}; "
                f"lower the learning rate, e.g. --plan rate={plan.lower_rate():g}{method.remedy()}"
            )
        # The clean loss, by which an epoch is judged, may be at its best where robustness has collapsed.
        if (best := state.schedule.see(judged if collapse is None else math.inf)) and plan.keep == "best":
            state.best_weights = _copy(method)
        if plan.reset_momentum and state.schedule.rate < rate:
            optimizer.reset()
        epoch = Epoch(lesson.index, state.epoch, rate, valid, train, best, time.perf_counter() - started)
        state.history.append(epoch)
        state.epoch, state.batches, state.seconds, state.running = state.epoch + 1, 0, 0.0, RunningScore()
        callback.on_epoch_end(epoch)
        callback.on_step(StepContext(method, state, optimizer))
    if plan.keep == "best":
        with torch.no_grad():
            for name, tensor in changing(method).items():
                tensor.copy_(state.best_weights[name])
    for part in lesson.parts:
        method.net.keep_statistics(part.task)
    with chance(seed, "end", lesson.index):
        method.end(lesson)
    return state.history


def check_lesson(method: Method, lesson: Lesson, state: FitState | None) -> None:
    """Refuse a lesson that was learned before, whose images the network cannot take, or that cannot be protected."""
    known = len(method.net.heads)
    for part in lesson.parts:
        if state is None and part.task < known:
            raise WrongValue(
                f"task {part.task + 1} has been learned already: {known} have. Give a new task the next number, "
                f"{known + 1}, or make a new method"
            )
        x, _ = part.train.take(torch.arange(2, device=part.train.y.device) % len(part.train))
        method.net.examine(x.to(next(method.net.parameters()).dtype))
    if state is None:
        method.check(lesson)


def _copy(method: Method) -> Gradient:
    return {name: tensor.detach().clone() for name, tensor in changing(method).items()}
