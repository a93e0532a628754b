"""What is crafted on one method, tried on another.

Attacks carry over between networks that learned the same. Where examples from elsewhere do more than those made with a
method's own gradients, these gradients mislead: its robustness is masked in part (Athalye et al., ICML 2018).
"""

from collections.abc import Sequence
from itertools import permutations
from typing import Any, ClassVar

import torch
from torch import Tensor

from perdure.errors import WrongValue
from perdure.ops.attacks import Norm, pgd, pgd_cost
from perdure.probes.probe import (
    Cost,
    Probe,
    ProbeResult,
    TaskModel,
    TrainedMethod,
    accuracy,
    at_most,
    interval,
)
from perdure.probes.robustness import ball, both_units, label
from perdure.probes.verdicts import sign_test
from perdure.schema import Count, Weight
from perdure.seeding import generator
from perdure.types import Task


class Transfer(Probe):
    """A probe of several methods at a time, all of which learned the same tasks; of tasks that only some have learned,
    nothing is said."""

    across: ClassVar[bool] = True

    def __init__(
        self,
        *,
        strength: Weight = 4 / 255,  # how far an image may move, in pixels of [0, 1]
        norm: Norm = "linf",  # by which that is measured
        steps: Count = 20,  # of PGD
        images: Count | None = 256,  # test images of each task; none means all
    ) -> None:
        self.ball = ball(norm, strength)
        self.steps, self.images = steps, images

    def cost_across(self, several: Sequence[TrainedMethod]) -> Cost:
        """Of all methods together; each one's progress counts its own part, the same for all."""
        images = sum(at_most(len(task.test), self.images) for task in _shared(several))
        return (Cost(*pgd_cost(self.steps, 1)) + Cost(forwards=len(several) + 1)) * images * len(several)

    def measure_across(self, several: Sequence[TrainedMethod]) -> ProbeResult:
        tasks = _shared(several)
        parts = [self._right([trained.model(task) for trained in several]) for task in range(len(tasks))]
        right = torch.cat(parts, dim=2)
        clean, matrix = right[0], right[1:]
        names = [trained.name for trained in several]
        pairs = list(permutations(range(len(names)), 2))
        figures: dict[str, Any] = {
            "names": names,
            "tasks": [task.name for task in tasks],
            "images": right.shape[2],
            "attack": f"PGD-{self.steps} {label(self.ball.radius, self.ball.norm, 'pixels')}",
            **both_units([self.ball.radius], "pixels", tasks),
            "clean": [accuracy(row) for row in clean],
            "clean_intervals": [interval(row) for row in clean],
            "matrix": [[accuracy(cell) for cell in row] for row in matrix],
            "intervals": [[interval(cell) for cell in row] for row in matrix],
            "by_task": [[[accuracy(cell) for cell in row] for row in part[1:]] for part in parts],
            "flags": _flags(matrix, pairs, names),
        }
        headline = {
            "white box": sum(figures["matrix"][b][b] for b in range(len(names))) / len(names),
            "transferred": sum(figures["matrix"][a][b] for a, b in pairs) / len(pairs),
            "masked": float(len({flag["on"] for flag in figures["flags"]})),
        }
        return ProbeResult(figures, headline, {"right": right.to(torch.uint8).contiguous()})

    def _right(self, models: Sequence[TaskModel]) -> Tensor:
        """Whether each image of a task is answered right (crafted, models, n): first clean, then as crafted on each
        model. All have the same batches and, to craft, the same draws."""
        rngs = [generator(0, "transfer", models[0].task) for _ in models]
        found = []
        for batches in zip(*(model.batches(self.images) for model in models), strict=True):
            crafted = [
                pgd(model, x, y, self.ball, steps=self.steps, rng=rng)
                for model, (x, y), rng in zip(models, batches, rngs, strict=True)
            ]
            tried_on = list(zip(models, batches, strict=True))
            rows = [
                torch.stack([model.right(images.to(x), y).cpu() for model, (x, y) in tried_on])
                for images in (batches[0][0], *crafted)
            ]
            found.append(torch.stack(rows))
        return torch.cat(found, dim=2)


def _shared(several: Sequence[TrainedMethod]) -> Sequence[Task]:
    """The tasks that all have learned, which must be of the same images."""
    if len(several) < 2:
        raise WrongValue("transfer goes from one method to another: give it two runs or more")
    tasks = several[0].tasks[: min(len(trained.tasks) for trained in several)]
    for trained in several[1:]:
        for own, other in zip(tasks, trained.tasks, strict=False):
            if _about(own) != _about(other) or not torch.equal(own.test.y.cpu(), other.test.y.cpu()):
                raise WrongValue(
                    f"{several[0].name} and {trained.name} did not learn the same: {_about(own)} here, "
                    f"{_about(other)} there; give runs of one benchmark, with the same data settings"
                )
    return tasks


def _about(task: Task) -> str:
    shape = "×".join(map(str, task.test.x.shape))
    return f"task {task.name!r} with {len(task.classes)} classes and test images {shape}"


def _flags(matrix: Tensor, pairs: Sequence[tuple[int, int]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Where what was crafted elsewhere is stronger than a method's own attack, beyond noise."""
    tests = [(a, b, sign_test(matrix[b][b], matrix[a][b])) for a, b in pairs]
    return [
        {"from": names[a], "on": names[b], "verdict": verdict, "points": test.points, "p": test.p}
        for a, b, test in tests
        if (verdict := test.verdict(len(pairs))) != "pass"
    ]
