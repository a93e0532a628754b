"""A whole stream, lesson after lesson, and the accuracy matrix it leaves."""

import time
from collections.abc import Iterable, Iterator
from typing import Literal

import torch

from perdure.errors import WrongValue
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
    seed: int | None = None,
    callback: Callback | None = None,
    *,
    judged_on: Literal["test", "valid"] = "test",
    learned: Learned | None = None,
    state: FitState | None = None,
) -> Learned:
    """Learn task after task; after each lesson, test every task seen so far, or validate, where values are chosen.

    - `seed` decides everything that depends on chance; left out, it is that of the network's first weights.
    - To go on with further tasks, give `learned`, what the earlier call returned: they become the next tasks, and the
      result is the same as if all had been learned in one call.
    - An interrupted run is resumed from what it had come to, without tasks in `learned`, and the `state` of the lesson
      at hand; the stream is then the whole one.

    >>> from perdure.data.benchmarks.synthetic import synthetic
    >>> from perdure.methods.gpm import GPM
    >>> from perdure.nets.mlp import MLP
    >>> from perdure.nets.network import Network
    >>> first, second = synthetic(seed=1, tasks=2)
    >>> method, plan = GPM(Network(MLP((3, 32, 32)))), Plan(epochs=1, batch=16)
    >>> learned = learn(method, [first], plan)
    >>> len(learn(method, [second], plan, learned=learned).matrix)
    2
    """
    seed = _one_seed(method, seed)
    learned, stream = _continued(method, learned, stream)
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
        started = time.perf_counter()
        judges = [getattr(task, judged_on) for task in learned.tasks]
        learned.matrix.append([evaluate(method, split, i).accuracy for i, split in enumerate(judges)])
        learned.evaluation_seconds += time.perf_counter() - started
        for part in lesson.parts:
            learned.tasks[part.task] = learned.tasks[part.task].judged(judged_on)
        callback.on_task_end(method, learned)
    if not learned.tasks:
        raise WrongValue("no task to learn; give at least one")
    if len(learned.tasks) > len(method.net.heads):
        raise WrongValue(
            f"{type(method).__name__} learns all tasks at once and has learned {len(method.net.heads)} already; "
            "make a new one and give it all tasks together"
        )
    return learned


def _one_seed(method: Method, seed: int | None) -> int:
    """The seed of everything: the one that is given, which must be that of the first weights, if they had one."""
    first = method.net.seed
    if seed is None:
        return 1 if first is None else first
    if first not in (None, seed) and not len(method.net.heads):
        raise WrongValue(
            f"seed={seed}, but the network's first weights were drawn with seed={first}; one seed decides both: make "
            f"the network with seed={seed}, as in MLP(shape, seed={seed}), or leave it out here"
        )
    return seed


def _continued(method: Method, learned: Learned | None, stream: Iterable[Task]) -> tuple[Learned, Iterable[Task]]:
    """What was learned before, and all tasks from the first on: new ones follow those that are known."""
    known = len(method.net.heads)
    if learned is None:
        if known:
            raise WrongValue(
                f"this method has learned {known} task{'s' if known > 1 else ''} already; to go on with further ones, "
                "give learned=, what the earlier call of learn returned; to begin anew, make a new method"
            )
        return Learned(), stream
    if not learned.tasks:  # a run that is resumed
        return learned, stream
    if len(learned.tasks) != known:
        raise WrongValue(
            f"learned= is of {len(learned.tasks)} tasks and the method knows {known}: give what was returned for it"
        )
    old, learned.tasks = learned.tasks, []

    def one_after_another() -> Iterator[Task]:
        yield from old
        names = {task.name for task in old}
        for task in stream:
            if task.name in names:
                raise WrongValue(f"task {task.name!r} was learned already; leave it out, or give new data another name")
            names.add(task.name)
            yield task

    return learned, one_after_another()


def _settle(device: torch.device) -> None:
    """Wait for a GPU's queue, so that its work is in the time measured."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
