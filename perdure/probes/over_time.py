"""Whether robustness is forgotten, too: the accuracy matrix of a run, under attack.

A task's robust accuracy may fall while its clean accuracy stays. So the matrix is measured twice on the same batches,
once as it is and once attacked, and both are read with the same figures of merit.
"""

from typing import Any, Literal

import torch

from perdure.methods.method import Method
from perdure.ops.attacks import Ball, Norm, fgsm, fgsm_takes, pgd, pgd_takes
from perdure.ops.metrics import average_accuracy, backward_transfer, forgetting, learning_accuracy, wilson
from perdure.probes.probe import Measured, Probe, Sight, Space, Subject, Work
from perdure.probes.robustness import both_units, label
from perdure.schema import Count, Weight
from perdure.seeding import generator


class OverTime(Probe):
    needs_stages = True

    def __init__(
        self,
        *,
        attack: Literal["fgsm", "pgd"] = "pgd",  # one step, or many
        strength: Weight = 2 / 255,  # how far an image may move
        norm: Norm = "linf",  # by which that is measured
        space: Space = "pixels",  # in pixels of [0, 1], or in the numbers that the network is given
        steps: Count = 10,  # of pgd
        images: Count | None = None,  # test images of each task; none means all
    ) -> None:
        self.attack: Literal["fgsm", "pgd"] = attack
        self.ball = Ball(norm, strength)
        self.space: Space = space
        self.steps = steps
        self.images = images

    def work(self, subject: Subject) -> Work:
        looks, slopes = fgsm_takes() if self.attack == "fgsm" else pgd_takes(self.steps, 1)
        each = Work(looks + 2, slopes)  # the clean answers, and those under attack
        cells = [task for stage in subject.history() for task in range(known(stage))]
        tests = [len(subject.tasks[task].test) for task in cells]
        return each * sum(size if self.images is None else min(size, self.images) for size in tests)

    def measure(self, subject: Subject) -> Measured:
        clean: list[list[int]] = []
        robust: list[list[int]] = []
        for stage in subject.history():
            sights = [subject.sight(task, space=self.space, method=stage) for task in range(known(stage))]
            pairs = [self._hits(sight) for sight in sights]
            clean.append([unharmed for unharmed, _ in pairs])
            robust.append([left for _, left in pairs])
        sizes = [subject.sight(task).images(self.images) for task in range(len(robust[-1]))]
        figures: dict[str, Any] = {
            "attack": self.name(),
            **both_units([self.ball.radius], self.space, subject.tasks),
            "tasks": [task.name for task in subject.tasks[: len(sizes)]],
            "images": sizes,
            "clean": _scores(clean, sizes),
            "robust": _scores(robust, sizes),
        }
        bwt = figures["robust"]["bwt"]
        figures["kept"] = None if bwt is None else bwt - figures["clean"]["bwt"]
        headline = {"robust ACC": figures["robust"]["acc"]} | ({} if bwt is None else {"robust BWT": bwt})
        arrays = {kind: _padded(figures[kind]["matrix"]) for kind in ("clean", "robust")}
        return Measured(figures, headline, arrays)

    def name(self) -> str:
        """Such as PGD-10 2/255."""
        attack = "FGSM" if self.attack == "fgsm" else f"PGD-{self.steps}"
        return f"{attack} {label(self.ball.radius, self.ball.norm, self.space)}"

    def _hits(self, sight: Sight) -> tuple[int, int]:
        """Right answers without attack and under it. The same draws for every stage, so that a row differs from the
        one before by what was learned alone."""
        chance = generator(0, "over-time", sight.task)
        clean = robust = 0
        for x, y in sight.batches(self.images):
            if self.attack == "fgsm":
                moved = fgsm(sight, x, y, self.ball)
            else:
                moved = pgd(sight, x, y, self.ball, steps=self.steps, chance=chance)
            clean += int((sight.logits(x).argmax(1) == y).sum())
            robust += int((sight.logits(moved).argmax(1) == y).sum())
        return clean, robust


def known(stage: Method) -> int:
    """How many tasks it had learned; several after its first lesson, where it learned them together."""
    return len(stage.net.heads)


def _scores(hits: list[list[int]], sizes: list[int]) -> dict[str, Any]:
    matrix = [[100 * right / n for right, n in zip(row, sizes, strict=False)] for row in hits]
    return {
        "matrix": matrix,
        "intervals": [[list(wilson(right, n)) for right, n in zip(row, sizes, strict=False)] for row in hits],
        "acc": average_accuracy(matrix),
        "bwt": backward_transfer(matrix),
        "learning_accuracy": learning_accuracy(matrix),
        "forgetting": forgetting(matrix),
    }


def _padded(matrix: list[list[float]]) -> torch.Tensor:
    """Lessons by tasks; −1 where a task was still to come: unlike NaN it equals itself."""
    widest = len(matrix[-1])
    return torch.tensor([[*row, *[-1.0] * (widest - len(row))] for row in matrix], dtype=torch.float64)
