"""A whole stream, lesson after lesson, and the accuracy matrix it leaves."""

import time
from collections.abc import Iterable, Iterator
from typing import Literal

import torch

from perdure.methods.method import Method
from perdure.train.callbacks import Callback
from perdure.train.evaluate import evaluate
from perdure.train.fit import fit
from perdure.train.plan import Plan
from perdure.train.state import FitState, Learned
from perdure.types import Task


def learn(
    method: Method,
    stream: Iterable[Task],
    plan: Plan,
    seed: int = 1,
    callback: Callback | None = None,
    *,
    judged_on: Literal["test", "valid"] = "test",
    learned: Learned | None = None,
    state: FitState | None = None,
) -> Learned:
    """Learn task after task; after each lesson, test every task seen so far, or validate, where values are chosen.

    An interrupted run is resumed: `learned` is what it had come to, `state` that of the lesson at hand.
    """
    learned = Learned() if learned is None else learned
    callback = callback or Callback()
    device = next(method.parameters()).device

    def arriving() -> Iterator[Task]:
        for task in stream:
            learned.tasks.append(task.to(device))
            yield learned.tasks[-1]

    for lesson in method.lessons(arriving()):
        if lesson.index < len(learned.matrix):
            continue
        started = time.perf_counter() - (state.spent() if state else 0.0)
        learned.epochs += fit(method, lesson, plan, seed, callback, state)
        state = None
        _settle(device)
        learned.seconds += time.perf_counter() - started
        judges = [getattr(task, judged_on) for task in learned.tasks]
        learned.matrix.append([evaluate(method, split, i).accuracy for i, split in enumerate(judges)])
        callback.on_task_end(method, learned)
    return learned


def _settle(device: torch.device) -> None:
    """Wait for a GPU's queue, so that its work is in the time measured."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
