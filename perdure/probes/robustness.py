"""How much of a method's accuracy is left under attack."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.errors import WrongValue
from perdure.ops.attacks import (
    AttackLoss,
    Ball,
    Classifier,
    MeanOverPasses,
    Norm,
    apgd,
    apgd_targeted,
    apgd_targeted_cost,
    fgsm,
    noise,
    pgd,
    pgd_cost,
)
from perdure.ops.fab import fab, fab_cost
from perdure.ops.square import square, square_cost
from perdure.probes.probe import (
    Cost,
    Probe,
    ProbeResult,
    Space,
    TaskModel,
    TrainedMethod,
    accuracy,
    at_most,
    interval,
)
from perdure.schema import Count, Positive
from perdure.seeding import generator
from perdure.types import Task

PIXEL_STRENGTHS: dict[Norm, tuple[float, ...]] = {"linf": (1 / 255, 2 / 255, 4 / 255), "l2": (0.1, 0.25, 0.5)}
NORMALIZED_STRENGTHS = (1e-4, 1e-3, 1e-2)  # the μ of the RCL paper
FARTHEST = 10_000  # in any norm and space: how far one image can be from another

SPACES: dict[Space, str] = {"pixels": "pixels in [0, 1], clipped", "normalized": "normalized images, not clipped"}


class AttackBatch(NamedTuple):
    """One batch, and how it is to be attacked."""

    model: Classifier
    x: Tensor
    y: Tensor
    ball: Ball
    loss: AttackLoss
    rng: torch.Generator


class TaskAnswers(NamedTuple):
    """To the images of one task at one strength."""

    right: Tensor  # (n,) bool
    loss: float  # mean cross-entropy


class AttackProbe(Probe):
    """Accuracy and loss on attacked test images, task by task and strength by strength.

    The attacked batches have the composition of the clean ones, since batch norm may couple their images.
    """

    name: ClassVar[str]
    title: str  # as it stands in tables
    attack_cost: Cost  # to attack one image once
    samples: int = 1  # passes that the attack sees the mean of

    def __init__(self, strengths: Sequence[float] | None, norm: Norm, space: Space, images: int | None) -> None:
        usual = PIXEL_STRENGTHS[norm] if space == "pixels" else NORMALIZED_STRENGTHS
        self.strengths = usual if strengths is None else tuple(strengths)
        self.norm: Norm = norm
        self.space: Space = space
        self.images = images
        if not self.strengths:
            raise WrongValue(f"{self.name}: give at least one strength, or none for the usual ones")
        self.balls = [ball(norm, strength, space) for strength in self.strengths]

    def attack(self, batch: AttackBatch) -> Tensor:
        """Its images, attacked."""
        raise NotImplementedError

    def losses(self, task: Task) -> list[AttackLoss]:  # noqa: ARG002
        """By which losses each batch of a task is attacked, one after the other."""
        return ["ce"]

    def cost_of_one(self, task: Task) -> Cost:  # noqa: ARG002
        """To attack one image of a task once."""
        return self.attack_cost * self.samples

    def notes(self, tasks: Sequence[Task]) -> list[str]:  # noqa: ARG002
        """What a reader should know of these figures."""
        return []

    def cost(self, trained: TrainedMethod) -> Cost:
        total = Cost()
        for task in trained.tasks:
            losses = len(self.losses(task))
            once = (self.cost_of_one(task) + Cost(forwards=1)) * losses + Cost(forwards=int(losses > 1))
            total += (once * len(self.strengths) + Cost(forwards=1)) * at_most(len(task.test), self.images)
        return total

    def measure(self, trained: TrainedMethod) -> ProbeResult:
        models = trained.models(space=self.space)
        clean = [_answers([(model.logits(x), y) for x, y in model.batches(self.images)]) for model in models]
        levels = range(len(self.strengths))
        attacked = [
            [self._attacked(model, level, task) for model, task in zip(models, trained.tasks, strict=True)]
            for level in levels
        ]
        labels = [label(strength, self.norm, self.space) for strength in self.strengths]
        by_level = [_summary(row) for row in attacked]
        figures: dict[str, Any] = {
            "attack": self.title,
            "space": SPACES[self.space],
            "norm": self.norm,
            "strengths": list(self.strengths),
            "labels": labels,
            **both_units(self.strengths, self.space, trained.tasks),
            "tasks": trained.task_names,
            "images": [len(answers.right) for answers in clean],
            "clean": _summary(clean),
            "acc": [row["acc"] for row in by_level],
            "by_task": [row["by_task"] for row in by_level],
            "intervals": {
                "pooled": [row["interval"] for row in by_level],
                "by_task": [row["intervals"] for row in by_level],
            },
            "loss": [row["loss"] for row in by_level],
            "notes": self.notes(trained.tasks),
        }
        arrays = {f"clean_{task}": answers.right.to("cpu", torch.uint8) for task, answers in enumerate(clean)}
        for task in range(len(trained.tasks)):
            arrays[f"right_{task}"] = torch.stack([row[task].right for row in attacked]).to("cpu", torch.uint8)
        headline = {f"{self.title} {name}": acc for name, acc in zip(labels, figures["acc"], strict=True)}
        return ProbeResult(figures, headline, arrays)

    def _attacked(self, model: TaskModel, level: int, task: Task) -> TaskAnswers:
        answered = []
        seen = model if self.samples == 1 else MeanOverPasses(model, self.samples)
        for index, (x, y) in enumerate(model.batches(self.images)):
            rng = generator(0, "attack", self.name, model.task, level, index)
            batches = [AttackBatch(seen, x, y, self.balls[level], loss, rng) for loss in self.losses(task)]
            answered.append((_worst(model, [self.attack(batch) for batch in batches], y), y))
        return _answers(answered)


class FGSM(AttackProbe):
    """One step of full strength along the gradient."""

    name = "fgsm"
    title = "FGSM"
    attack_cost = Cost(gradients=1)

    def __init__(
        self,
        *,
        strengths: tuple[float, ...] | None = None,  # how far an image moves; none: three usual ones
        norm: Norm = "linf",  # what that is measured by: the largest change of a pixel, or the length of all changes
        space: Space = "pixels",  # and in: pixels of 0 … 1, or the normalized numbers that the network is given
        images: Count | None = None,  # of each task at most so many; none: all
    ) -> None:
        super().__init__(strengths, norm, space, images)

    def attack(self, batch: AttackBatch) -> Tensor:
        return fgsm(batch.model, batch.x, batch.y, batch.ball)


class PGD(AttackProbe):
    """Many small steps along the gradient, from random starts."""

    name = "pgd"
    added = ("samples",)

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
        samples: Count = 1,  # passes that gradients are averaged over, for networks whose answers depend on chance
    ) -> None:
        super().__init__(strengths, norm, space, images)
        self.steps, self.restarts, self.rate, self.samples = steps, restarts, rate, samples
        self.title = f"PGD-{steps}"
        self.attack_cost = Cost(*pgd_cost(steps, restarts))

    def attack(self, batch: AttackBatch) -> Tensor:
        model, x, y, ball, _, rng = batch
        return pgd(model, x, y, ball, steps=self.steps, restarts=self.restarts, rate=self.rate, rng=rng)


class APGD(AttackProbe):
    """Auto-PGD, by cross-entropy and by the difference of logits ratio: what AutoAttack is made of, for the most part.

    What counts is the batch with the fewest right answers: of the two, and of the one that takes from the second the
    images which the first left right.
    """

    name = "apgd"
    added = ("samples",)
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
        samples: Count = 1,  # passes that gradients are averaged over, for networks whose answers depend on chance
    ) -> None:
        super().__init__(strengths, norm, space, images)
        self.steps, self.restarts, self.samples = steps, restarts, samples
        self.attack_cost = Cost(*pgd_cost(steps, restarts))

    def attack(self, batch: AttackBatch) -> Tensor:
        model, x, y, ball, loss, rng = batch
        return apgd(model, x, y, ball, steps=self.steps, restarts=self.restarts, loss=loss, rng=rng)

    def losses(self, task: Task) -> list[AttackLoss]:
        return ["ce", "dlr"] if len(task.classes) > 2 else ["ce"]

    def notes(self, tasks: Sequence[Task]) -> list[str]:
        few = [task.name for task in tasks if "dlr" not in self.losses(task)]
        return [f"by cross-entropy alone, since DLR needs three classes: {', '.join(few)}"] if few else []


class APGDTargeted(AttackProbe):
    """Auto-PGD towards one wrong class after another, by the targeted difference of logits ratio: as in AutoAttack."""

    name = "apgd-t"
    title = "APGD-T"

    def __init__(
        self,
        *,
        strengths: tuple[float, ...] | None = None,  # how far an image may move; none: three usual ones
        norm: Norm = "linf",  # what that is measured by: the largest change of a pixel, or the length of all changes
        space: Space = "pixels",  # and in: pixels of 0 … 1, or the normalized numbers that the network is given
        images: Count | None = 100,  # of each task at most so many; none: all
        steps: Count = 50,  # from each start
        restarts: Count = 1,  # random starts for each target; the worst counts
        targets: Count = 9,  # wrong classes, the most likely of each image; as many as there are, if fewer
        samples: Count = 1,  # passes that gradients are averaged over, for networks whose answers depend on chance
    ) -> None:
        super().__init__(strengths, norm, space, images)
        self.steps, self.restarts, self.targets, self.samples = steps, restarts, targets, samples

    def attack(self, batch: AttackBatch) -> Tensor:
        model, x, y, ball, _, rng = batch
        how = {"steps": self.steps, "restarts": self.restarts, "targets": self.targets}
        return apgd_targeted(model, x, y, ball, **how, rng=rng)

    def cost_of_one(self, task: Task) -> Cost:
        return Cost(*apgd_targeted_cost(self.steps, self.restarts, _targets(self.targets, task))) * self.samples

    def notes(self, tasks: Sequence[Task]) -> list[str]:
        few = [task.name for task in tasks if len(task.classes) < 4]
        return [f"by the difference of logits, since targeted DLR needs four classes: {', '.join(few)}"] if few else []


class FAB(AttackProbe):
    """The nearest wrong answer, towards one wrong class after another, as in AutoAttack. An image stays right if none
    is found within the strength. Uses no chance."""

    name = "fab"
    title = "FAB"

    def __init__(
        self,
        *,
        strengths: tuple[float, ...] | None = None,  # how far an image may move; none: three usual ones
        norm: Norm = "linf",  # what that is measured by: the largest change of a pixel, or the length of all changes
        space: Space = "pixels",  # and in: pixels of 0 … 1, or the normalized numbers that the network is given
        images: Count | None = 100,  # of each task at most so many; none: all
        steps: Count = 50,  # towards each target
        targets: Count = 9,  # wrong classes, the most likely of each image; as many as there are, if fewer
    ) -> None:
        super().__init__(strengths, norm, space, images)
        self.steps, self.targets = steps, targets

    def attack(self, batch: AttackBatch) -> Tensor:
        return fab(batch.model, batch.x, batch.y, batch.ball, steps=self.steps, targets=self.targets)

    def cost_of_one(self, task: Task) -> Cost:
        return Cost(*fab_cost(self.steps, _targets(self.targets, task)))


class Square(AttackProbe):
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
        self.attack_cost = Cost(*square_cost(queries))

    def attack(self, batch: AttackBatch) -> Tensor:
        return square(batch.model, batch.x, batch.y, batch.ball, queries=self.queries, rng=batch.rng)


class Noise(AttackProbe):
    """Chance alone, of the same size: what is lost under it is no attack's merit."""

    name = "noise"
    title = "noise"
    attack_cost = Cost()

    def __init__(
        self,
        *,
        strengths: tuple[float, ...] | None = None,  # how far an image moves; none: three usual ones
        norm: Norm = "linf",  # what that is measured by: the largest change of a pixel, or the length of all changes
        space: Space = "pixels",  # and in: pixels of 0 … 1, or the normalized numbers that the network is given
        images: Count | None = None,  # of each task at most so many; none: all
    ) -> None:
        super().__init__(strengths, norm, space, images)

    def attack(self, batch: AttackBatch) -> Tensor:
        return noise(batch.x, batch.ball, batch.model.bounds, batch.rng)


def ball(norm: Norm, strength: float, space: Space = "pixels") -> Ball:
    """How far images may move; no pixel of 0 … 1 can move by more than 1. Other norms and spaces have no such bound."""
    if norm == "linf" and space == "pixels" and strength > 1:
        raise WrongValue(f"strength {strength:g} is not allowed; pixels are 0 … 1, give at most 1, such as 4/255")
    if strength > FARTHEST:
        raise WrongValue(f"strength {strength:g} is not allowed; no image is that far from another, give less")
    return Ball(norm, strength)


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
    stds = [std for task in tasks for std in task.test.std]
    same = [[strength, strength] for strength in strengths]
    if space == "pixels":
        return {"in_pixels": same, "in_normalized": [[s / max(stds), s / min(stds)] for s in strengths]}
    return {"in_pixels": [[s * min(stds), s * max(stds)] for s in strengths], "in_normalized": same}


def _targets(most: int, task: Task) -> int:
    """How many wrong classes a task has to aim at, no more than are wanted."""
    return min(most, len(task.classes) - 1)


def _worst(model: TaskModel, attacked: Sequence[Tensor], y: Tensor) -> Tensor:
    """The logits of the batch with the fewest right answers, then the highest loss; of two, also of both together."""
    seen = [model.logits(x) for x in attacked]
    if len(attacked) == 2:
        right = (seen[0].argmax(1) == y).view(-1, 1, 1, 1)
        seen.append(model.logits(torch.where(right, attacked[1], attacked[0])))
    return min(seen, key=lambda logits: (int((logits.argmax(1) == y).sum()), -float(F.cross_entropy(logits, y))))


def _answers(batches: Sequence[tuple[Tensor, Tensor]]) -> TaskAnswers:
    logits, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return TaskAnswers(logits.argmax(1) == y, float(F.cross_entropy(logits.double(), y)))


def _summary(row: Sequence[TaskAnswers]) -> dict[str, Any]:
    """Of all tasks at one strength."""
    by_task = [accuracy(answers.right) for answers in row]
    return {
        "acc": sum(by_task) / len(row),
        "by_task": by_task,
        "interval": interval(torch.cat([answers.right for answers in row])),
        "intervals": [interval(answers.right) for answers in row],
        "loss": sum(answers.loss for answers in row) / len(row),
    }
