"""How much of a method's accuracy is left under attack."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.errors import WrongValue
from perdure.ops.attacks import (
    AttackLoss,
    Ball,
    Norm,
    apgd,
    apgd_takes,
    fgsm,
    fgsm_takes,
    noise,
    pgd,
    pgd_takes,
    square,
    square_takes,
)
from perdure.ops.metrics import wilson
from perdure.probes.probe import Measured, Probe, Sight, Space, Subject, Work
from perdure.schema import Count, Positive
from perdure.seeding import generator
from perdure.types import Task

PIXEL_STRENGTHS: dict[Norm, tuple[float, ...]] = {"linf": (1 / 255, 2 / 255, 4 / 255), "l2": (0.1, 0.25, 0.5)}
NORMALIZED_STRENGTHS = (1e-4, 1e-3, 1e-2)  # the μ of the RCL paper

SPACES: dict[Space, str] = {"pixels": "pixels in [0, 1], clipped", "normalized": "normalized images, not clipped"}


@dataclass(frozen=True)
class Target:
    """One batch, and how it is to be attacked."""

    sight: Sight
    x: Tensor
    y: Tensor
    ball: Ball
    loss: AttackLoss
    chance: torch.Generator


@dataclass(frozen=True)
class Answers:
    """To the images of one task at one strength."""

    right: Tensor  # (n,) bool
    loss: float  # mean cross-entropy

    @property
    def accuracy(self) -> float:
        return 100 * int(self.right.sum()) / len(self.right)

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(int(self.right.sum()), len(self.right))


class Attacked(Probe):
    """Accuracy and loss on attacked test images, task by task and strength by strength.

    The attacked batches have the composition of the clean ones, since batch norm may couple their images.
    """

    name: ClassVar[str]
    title: str  # as it stands in tables
    takes: Work  # to attack one image once

    def __init__(self, strengths: Sequence[float] | None, norm: Norm, space: Space, images: int | None) -> None:
        usual = PIXEL_STRENGTHS[norm] if space == "pixels" else NORMALIZED_STRENGTHS
        self.strengths = usual if strengths is None else tuple(strengths)
        self.norm: Norm = norm
        self.space: Space = space
        self.images = images
        if not self.strengths:
            raise WrongValue(f"{self.name}: give at least one strength, or none for the usual ones")
        self.balls = [Ball(norm, strength) for strength in self.strengths]

    def attack(self, on: Target) -> Tensor:
        """Its images, attacked."""
        raise NotImplementedError

    def losses(self, task: Task) -> list[AttackLoss]:  # noqa: ARG002
        """By which losses each batch of a task is attacked, one after the other."""
        return ["ce"]

    def notes(self, tasks: Sequence[Task]) -> list[str]:  # noqa: ARG002
        """What a reader should know of these figures."""
        return []

    def work(self, subject: Subject) -> Work:
        total = Work()
        for task in subject.tasks:
            ways = len(self.losses(task))
            once = (self.takes + Work(looks=1)) * ways + Work(looks=int(ways > 1))
            images = len(task.test) if self.images is None else min(self.images, len(task.test))
            total += (once * len(self.strengths) + Work(looks=1)) * images
        return total

    def measure(self, subject: Subject) -> Measured:
        clean = [self._clean(subject, task) for task in range(len(subject.tasks))]
        found = [
            [self._under(subject, task, level) for task in range(len(subject.tasks))]
            for level in range(len(self.strengths))
        ]
        labels = [label(strength, self.norm, self.space) for strength in self.strengths]
        figures: dict[str, Any] = {
            "attack": self.title,
            "space": SPACES[self.space],
            "norm": self.norm,
            "strengths": list(self.strengths),
            "labels": labels,
            **both_units(self.strengths, self.space, subject.tasks),
            "tasks": [task.name for task in subject.tasks],
            "images": [len(answers.right) for answers in clean],
            "clean": {
                "acc": _mean([answers.accuracy for answers in clean]),
                "by_task": [answers.accuracy for answers in clean],
                "interval": _pooled(clean),
                "intervals": [list(answers.interval) for answers in clean],
                "loss": _mean([answers.loss for answers in clean]),
            },
            "acc": [_mean([answers.accuracy for answers in row]) for row in found],
            "by_task": [[answers.accuracy for answers in row] for row in found],
            "intervals": {
                "pooled": [_pooled(row) for row in found],
                "by_task": [[list(answers.interval) for answers in row] for row in found],
            },
            "loss": [_mean([answers.loss for answers in row]) for row in found],
            "notes": self.notes(subject.tasks),
        }
        arrays = {f"clean_{task}": answers.right.to("cpu", torch.uint8) for task, answers in enumerate(clean)}
        for task in range(len(subject.tasks)):
            arrays[f"right_{task}"] = torch.stack([row[task].right for row in found]).to("cpu", torch.uint8)
        headline = {f"{self.title} {name}": acc for name, acc in zip(labels, figures["acc"], strict=True)}
        return Measured(figures, headline, arrays)

    def _clean(self, subject: Subject, task: int) -> Answers:
        sight = subject.sight(task, space=self.space)
        return _answers([(sight.logits(x), y) for x, y in sight.batches(self.images)])

    def _under(self, subject: Subject, task: int, level: int) -> Answers:
        sight = subject.sight(task, space=self.space)
        answered = []
        for index, (x, y) in enumerate(sight.batches(self.images)):
            chance = generator(0, "attack", self.name, task, level, index)
            losses = self.losses(subject.tasks[task])
            tried = [self.attack(Target(sight, x, y, self.balls[level], loss, chance)) for loss in losses]
            answered.append((_worst(sight, tried, y), y))
        return _answers(answered)


class FGSM(Attacked):
    """One step of full strength along the gradient."""

    name = "fgsm"
    title = "FGSM"
    takes = Work(*fgsm_takes())

    def __init__(
        self,
        *,
        strengths: tuple[float, ...] | None = None,  # how far an image moves; none: three usual ones
        norm: Norm = "linf",  # what that is measured by: the largest change of a pixel, or the length of all changes
        space: Space = "pixels",  # and in: pixels of 0 … 1, or the normalized numbers that the network is given
        images: Count | None = None,  # of each task at most so many; none: all
    ) -> None:
        super().__init__(strengths, norm, space, images)

    def attack(self, on: Target) -> Tensor:
        return fgsm(on.sight, on.x, on.y, on.ball)


class PGD(Attacked):
    """Many small steps along the gradient, from random starts."""

    name = "pgd"

    def __init__(
        self,
        *,
        strengths: tuple[float, ...] | None = None,  # how far an image may move; none: three usual ones
        norm: Norm = "linf",  # what that is measured by: the largest change of a pixel, or the length of all changes
        space: Space = "pixels",  # and in: pixels of 0 … 1, or the normalized numbers that the network is given
        images: Count | None = None,  # of each task at most so many; none: all
        steps: Count = 20,  # from each start
        restarts: Count = 1,  # random starts; the worst counts
        rate: Positive | None = None,  # length of a step; none: 2.5 · strength / steps
    ) -> None:
        super().__init__(strengths, norm, space, images)
        self.steps = steps
        self.restarts = restarts
        self.rate = rate
        self.title = f"PGD-{steps}"
        self.takes = Work(*pgd_takes(steps, restarts))

    def attack(self, on: Target) -> Tensor:
        values = {"steps": self.steps, "restarts": self.restarts}
        return pgd(on.sight, on.x, on.y, on.ball, **values, rate=self.rate, chance=on.chance)


class APGD(Attacked):
    """Auto-PGD, by cross-entropy and by the difference of logits ratio: what AutoAttack is made of, for the most part.

    What counts is the batch with the fewest right answers: of the two, and of the one that takes from the second the
    images which the first left right.
    """

    name = "apgd"
    title = "APGD"

    def __init__(
        self,
        *,
        strengths: tuple[float, ...] | None = None,  # how far an image may move; none: three usual ones
        norm: Norm = "linf",  # what that is measured by: the largest change of a pixel, or the length of all changes
        space: Space = "pixels",  # and in: pixels of 0 … 1, or the normalized numbers that the network is given
        images: Count | None = 100,  # of each task at most so many; none: all
        steps: Count = 50,  # from each start
        restarts: Count = 1,  # random starts for each of the two losses; the worst counts
    ) -> None:
        super().__init__(strengths, norm, space, images)
        self.steps = steps
        self.restarts = restarts
        self.takes = Work(*apgd_takes(steps, restarts))

    def attack(self, on: Target) -> Tensor:
        values = {"steps": self.steps, "restarts": self.restarts}
        return apgd(on.sight, on.x, on.y, on.ball, **values, loss=on.loss, chance=on.chance)

    def losses(self, task: Task) -> list[AttackLoss]:
        return ["ce", "dlr"] if len(task.classes) > 2 else ["ce"]

    def notes(self, tasks: Sequence[Task]) -> list[str]:
        few = [task.name for task in tasks if "dlr" not in self.losses(task)]
        return [f"by cross-entropy alone, since DLR needs three classes: {', '.join(few)}"] if few else []


class Square(Attacked):
    """Random squares, kept if they hurt: needs no gradient, so that hiding it does not help."""

    name = "square"
    title = "Square"

    def __init__(
        self,
        *,
        strengths: tuple[float, ...] | None = None,  # how far an image may move; none: three usual ones
        norm: Norm = "linf",  # what that is measured by: the largest change of a pixel, or the length of all changes
        space: Space = "pixels",  # and in: pixels of 0 … 1, or the normalized numbers that the network is given
        images: Count | None = 100,  # of each task at most so many; none: all
        queries: Count = 500,  # how often the network is asked
    ) -> None:
        super().__init__(strengths, norm, space, images)
        self.queries = queries
        self.takes = Work(*square_takes(queries))

    def attack(self, on: Target) -> Tensor:
        return square(on.sight, on.x, on.y, on.ball, queries=self.queries, chance=on.chance)


class Noise(Attacked):
    """Chance alone, of the same size: what is lost under it is no attack's merit."""

    name = "noise"
    title = "noise"
    takes = Work()

    def __init__(
        self,
        *,
        strengths: tuple[float, ...] | None = None,  # how far an image moves; none: three usual ones
        norm: Norm = "linf",  # what that is measured by: the largest change of a pixel, or the length of all changes
        space: Space = "pixels",  # and in: pixels of 0 … 1, or the normalized numbers that the network is given
        images: Count | None = None,  # of each task at most so many; none: all
    ) -> None:
        super().__init__(strengths, norm, space, images)

    def attack(self, on: Target) -> Tensor:
        return noise(on.x, on.ball, on.sight.bounds, on.chance)


def label(strength: float, norm: Norm, space: Space) -> str:
    """A strength as it stands in tables.

    >>> label(2 / 255, "linf", "pixels"), label(0.25, "l2", "pixels"), label(1e-3, "linf", "normalized")
    ('2/255', 'L2 0.25', '0.001 norm.')
    """
    levels = round(255 * strength, 1)
    even = norm == "linf" and space == "pixels" and abs(levels - 255 * strength) < 1e-6
    size = f"{levels:g}/255" if even else f"{strength:g}"
    return f"{'L2 ' if norm == 'l2' else ''}{size}{' norm.' if space == 'normalized' else ''}"


def both_units(strengths: Sequence[float], space: Space, tasks: Sequence[Task]) -> dict[str, list[list[float]]]:
    """The strengths in pixels and in normalized units: [lowest, highest] over channels and tasks."""
    spread = [std for task in tasks for std in task.test.std]
    same = [[strength, strength] for strength in strengths]
    if space == "pixels":
        there = [[strength / max(spread), strength / min(spread)] for strength in strengths]
        return {"in_pixels": same, "in_normalized": there}
    there = [[strength * min(spread), strength * max(spread)] for strength in strengths]
    return {"in_pixels": there, "in_normalized": same}


def _worst(sight: Sight, tried: Sequence[Tensor], y: Tensor) -> Tensor:
    """The logits of the batch with the fewest right answers, then the highest loss; of two, also of both together."""
    seen = [sight.logits(x) for x in tried]
    if len(tried) == 2:
        right = (seen[0].argmax(1) == y).view(-1, 1, 1, 1)
        seen.append(sight.logits(torch.where(right, tried[1], tried[0])))
    return min(seen, key=lambda logits: (int((logits.argmax(1) == y).sum()), -float(F.cross_entropy(logits, y))))


def _answers(batches: Sequence[tuple[Tensor, Tensor]]) -> Answers:
    logits, y = torch.cat([logits for logits, _ in batches]), torch.cat([y for _, y in batches])
    return Answers(logits.argmax(1) == y, float(F.cross_entropy(logits.double(), y)))


def _pooled(row: Sequence[Answers]) -> list[float]:
    return list(wilson(sum(int(answers.right.sum()) for answers in row), sum(len(answers.right) for answers in row)))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
