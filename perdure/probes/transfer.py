"""What is crafted on one method, tried on another.

Attacks carry over between networks that learned the same. Where examples from elsewhere do more than those made with a
method's own gradients, these gradients mislead: its robustness is masked in part (Athalye et al., ICML 2018).
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from perdure.errors import WrongValue
from perdure.ops.attacks import Ball, Norm, pgd, pgd_takes
from perdure.ops.metrics import wilson
from perdure.probes.probe import Measured, Probe, Sight, Subject, Work
from perdure.probes.robustness import both_units, label
from perdure.probes.verdicts import edge, verdict_of
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
        self.ball = Ball(norm, strength)
        self.steps = steps
        self.images = images

    def work_across(self, subjects: Sequence[Subject]) -> Work:
        """Of all subjects together; each one's meter counts its own part, the same for all."""
        tasks = _shared(subjects)
        count = sum(len(task.test) if self.images is None else min(self.images, len(task.test)) for task in tasks)
        tried = Work(looks=len(subjects) + 1)
        return (Work(*pgd_takes(self.steps, 1)) + tried) * count * len(subjects)

    def measure_across(self, subjects: Sequence[Subject]) -> Measured:
        tasks = _shared(subjects)
        parts = [self._right([subject.sight(task) for subject in subjects]) for task in range(len(tasks))]
        right = torch.cat(parts, dim=2)
        clean, matrix = right[0], right[1:]
        names = [subject.name for subject in subjects]
        others = [(a, b) for a in range(len(names)) for b in range(len(names)) if a != b]
        figures: dict[str, Any] = {
            "names": names,
            "tasks": [task.name for task in tasks],
            "images": right.shape[2],
            "attack": self.name(),
            **both_units([self.ball.radius], "pixels", tasks),
            "clean": [_accuracy(row) for row in clean],
            "clean_intervals": [_interval(row) for row in clean],
            "matrix": [[_accuracy(cell) for cell in row] for row in matrix],
            "intervals": [[_interval(cell) for cell in row] for row in matrix],
            "by_task": [[[_accuracy(cell) for cell in row] for row in part[1:]] for part in parts],
            "flags": _flags(matrix, others, names),
        }
        white = [figures["matrix"][b][b] for b in range(len(names))]
        transferred = [figures["matrix"][a][b] for a, b in others]
        headline = {
            "white box": sum(white) / len(white),
            "transferred": sum(transferred) / len(transferred),
            "masked": float(len({flag["on"] for flag in figures["flags"]})),
        }
        return Measured(figures, headline, {"right": right.to(torch.uint8).contiguous()})

    def name(self) -> str:
        """Such as PGD-20 4/255."""
        return f"PGD-{self.steps} {label(self.ball.radius, self.ball.norm, 'pixels')}"

    def _right(self, sights: Sequence[Sight]) -> Tensor:
        """Whether each image of a task is answered right (crafts, sights, n): first clean, then as crafted on each
        sight. All have the same batches and, to craft, the same draws."""
        chances = [generator(0, "transfer", sights[0].task) for _ in sights]
        found = []
        for batches in zip(*(sight.batches(self.images) for sight in sights), strict=True):
            crafted = [
                pgd(sight, x, y, self.ball, steps=self.steps, chance=chance)
                for sight, (x, y), chance in zip(sights, batches, chances, strict=True)
            ]
            rows = [_tried(sights, batches, moved) for moved in (batches[0][0], *crafted)]
            found.append(torch.stack(rows))
        return torch.cat(found, dim=2)


def _tried(sights: Sequence[Sight], batches: Sequence[tuple[Tensor, Tensor]], moved: Tensor) -> Tensor:
    """Whether each sight answers each of these images right (sights, n)."""
    pairs = zip(sights, batches, strict=True)
    return torch.stack([(sight.logits(moved.to(x)).argmax(1) == y).cpu() for sight, (x, y) in pairs])


def _shared(subjects: Sequence[Subject]) -> Sequence[Task]:
    """The tasks that all have learned, which must be of the same images."""
    if len(subjects) < 2:
        raise WrongValue("transfer goes from one method to another: give it two runs or more")
    tasks = subjects[0].tasks[: min(len(subject.tasks) for subject in subjects)]
    for subject in subjects[1:]:
        for own, other in zip(tasks, subject.tasks, strict=False):
            if not _same(own, other):
                raise WrongValue(
                    f"{subjects[0].name} and {subject.name} did not learn the same: {_about(own)} here, "
                    f"{_about(other)} there; give runs of one benchmark, with the same data settings"
                )
    return tasks


def _same(one: Task, other: Task) -> bool:
    """By names, sizes and labels."""
    return _about(one) == _about(other) and torch.equal(one.test.y.cpu(), other.test.y.cpu())


def _about(task: Task) -> str:
    shape = "×".join(map(str, task.test.x.shape))
    return f"task {task.name!r} with {len(task.classes)} classes and test images {shape}"


def _flags(matrix: Tensor, others: Sequence[tuple[int, int]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Where what was crafted elsewhere is stronger than a method's own attack, beyond noise."""
    found = []
    for a, b in others:
        here = edge(matrix[b][b], matrix[a][b])
        verdict = verdict_of(here, len(others))
        if verdict != "pass":
            found.append({"from": names[a], "on": names[b], "verdict": verdict, "points": here.points, "p": here.p})
    return found


def _accuracy(right: Tensor) -> float:
    return 100 * int(right.sum()) / len(right)


def _interval(right: Tensor) -> list[float]:
    return list(wilson(int(right.sum()), len(right)))
