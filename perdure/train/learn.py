"""A whole stream, lesson after lesson, and the accuracy matrix it leaves."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from perdure.methods.method import Method
from perdure.train.evaluate import evaluate
from perdure.train.fit import Epoch, Plan, Watch, fit
from perdure.types import Task


@dataclass
class Learned:
    """What learning a stream came to."""

    matrix: list[list[float]] = field(default_factory=list)  # row: after a lesson; column: task; percent
    epochs: list[Epoch] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    seconds: float = 0.0  # of training, evaluation left out


def learn(method: Method, stream: Iterable[Task], plan: Plan, seed: int = 1, watch: Watch | None = None) -> Learned:
    """Learn task after task; after each lesson, test every task seen so far."""
    learned = Learned()
    device = next(method.parameters()).device

    def arriving() -> Iterator[Task]:
        for task in stream:
            learned.tasks.append(task.to(device))
            yield learned.tasks[-1]

    for lesson in method.lessons(arriving()):
        started = time.perf_counter()
        learned.epochs += fit(method, lesson, plan, seed, watch)
        _settle(device)
        learned.seconds += time.perf_counter() - started
        learned.matrix.append([evaluate(method, task.test, i).accuracy for i, task in enumerate(learned.tasks)])
    return learned


def _settle(device: torch.device) -> None:
    """Wait for a GPU's queue, so that its work is in the time measured."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
