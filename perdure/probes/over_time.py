"""Whether robustness is forgotten, too: the accuracy matrix of a run, under attack.

A task's robust accuracy may fall while its clean accuracy stays. So the matrix is measured twice on the same batches,
once as it is and once attacked, and both are read with the same figures of merit.
"""

from typing import Any, Literal

import torch

from perdure.methods.method import Method
from perdure.ops.attacks import Norm, fgsm, pgd, pgd_cost
from perdure.ops.metrics import average_accuracy, backward_transfer, forgetting, learning_accuracy, wilson
from perdure.probes.probe import Cost, Probe, ProbeResult, Space, TaskModel, TrainedMethod, at_most
from perdure.probes.robustness import ball, both_units, label
from perdure.schema import Count, Weight
from perdure.seeding import generator


class OverTime(Probe):
    needs_snapshots = True

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
        self.one_step = attack == "fgsm"
        self.ball = ball(norm, strength, space)
        self.space: Space = space
        self.steps, self.images = steps, images

    def cost(self, trained: TrainedMethod) -> Cost:
        attack = Cost(gradients=1) if self.one_step else Cost(*pgd_cost(self.steps, 1))
        cells = [task for snapshot in trained.history() for task in range(known(snapshot))]
        images = sum(at_most(len(trained.tasks[task].test), self.images) for task in cells)
        return (attack + Cost(forwards=2)) * images  # the clean answers, and those under attack

    def measure(self, trained: TrainedMethod) -> ProbeResult:
        clean: list[list[int]] = []
        robust: list[list[int]] = []
        for snapshot in trained.history():
            models = [trained.model(task, space=self.space, method=snapshot) for task in range(known(snapshot))]
            hits = [self._hits(model) for model in models]
            clean.append([one for one, _ in hits])
            robust.append([other for _, other in hits])
        sizes = [trained.model(task).images(self.images) for task in range(len(robust[-1]))]
        figures: dict[str, Any] = {
            "attack": self.name(),
            **both_units([self.ball.radius], self.space, trained.tasks),
            "tasks": trained.task_names[: len(sizes)],
            "images": sizes,
            "clean": scores(clean, sizes),
            "robust": scores(robust, sizes),
        }
        bwt = figures["robust"]["bwt"]
        figures["kept"] = None if bwt is None else bwt - figures["clean"]["bwt"]
        attack = "" if self.name() == OverTime().name() else f", {self.name()}"  # several may stand in one table
        headline = {f"robust ACC{attack}": figures["robust"]["acc"]}
        headline |= {} if bwt is None else {f"robust BWT{attack}": bwt}
        return ProbeResult(figures, headline, {side: padded(figures[side]["matrix"]) for side in ("clean", "robust")})

    def name(self) -> str:
        """Such as PGD-10 2/255."""
        attack = "FGSM" if self.one_step else f"PGD-{self.steps}"
        return f"{attack} {label(self.ball.radius, self.ball.norm, self.space)}"

    def _hits(self, model: TaskModel) -> tuple[int, int]:
        """Right answers without attack and under it. The same draws for every snapshot, so that a row differs from the
        one before by what was learned alone."""
        rng = generator(0, "over-time", model.task)
        clean = robust = 0
        for x, y in model.batches(self.images):
            if self.one_step:
                attacked = fgsm(model, x, y, self.ball)
            else:
                attacked = pgd(model, x, y, self.ball, steps=self.steps, rng=rng)
            clean += int(model.right(x, y).sum())
            robust += int(model.right(attacked, y).sum())
        return clean, robust


def known(snapshot: Method) -> int:
    """How many tasks it had learned; several after its first lesson, where it learned them together."""
    return len(snapshot.net.heads)


def scores(hits: list[list[int]], sizes: list[int]) -> dict[str, Any]:
    pairs = [list(zip(row, sizes, strict=False)) for row in hits]
    matrix = [[100 * right / n for right, n in row] for row in pairs]
    return {
        "matrix": matrix,
        "intervals": [[list(wilson(right, n)) for right, n in row] for row in pairs],
        "acc": average_accuracy(matrix),
        "bwt": backward_transfer(matrix),
        "learning_accuracy": learning_accuracy(matrix),
        "forgetting": forgetting(matrix),
    }


def padded(matrix: list[list[float]]) -> torch.Tensor:
    """Lessons by tasks; −1 where a task was still to come: unlike NaN it equals itself."""
    widest = len(matrix[-1])
    return torch.tensor([[*row, *[-1.0] * (widest - len(row))] for row in matrix], dtype=torch.float64)
