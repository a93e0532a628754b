"""How far the loss rises when the weights are moved against the network, and how the loss is bent where they are."""

from collections.abc import Iterator
from statistics import fmean
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from perdure.ops import landscape
from perdure.ops.gradients import norm
from perdure.probes.probe import Measured, PartName, Probe, Sight, Subject, Work
from perdure.schema import Count, Positive
from perdure.seeding import generator
from perdure.types import Weights

PRODUCT = 6
"""As many slopes a product with the Hessian takes. In theory two; on a CPU, where convolutions are slow to derive
twice, 5 to 8 were measured (AlexNet, ResNet18)."""


def batch_losses(sight: Sight, images: int | None, worth: int = 1) -> landscape.Loss:
    """A task's mean cross-entropy as a function of its weights, in terms of one batch each. Weights not given are as
    the method has them. With gradients, `worth` says how many slopes each is to be counted for."""
    count = sight.images(images)

    def terms(weights: Weights) -> Iterator[Tensor]:
        for x, y in sight.batches(images):
            logits = sight.forward(x, {**sight.weights, **weights}).logits
            sight.meter.add(Work(slopes=(worth - 1) * len(x)))
            yield F.cross_entropy(logits, y, reduction="sum") / count

    return terms


class Flatness(Probe):
    """Worst-case flatness (Eq. 5), with the gradient alone and with more steps, and the rise that SAM looks at."""

    def __init__(
        self,
        *,
        radius: Positive = 0.01,  # ξ: how far each layer is moved, in lengths of its weights
        steps: Count = 5,  # steps uphill in search of the worst direction
        sam_radius: Positive = 0.05,  # ρ: how far all weights together are moved for SAM's sharpness
        part: PartName = "train",  # of which images
        images: Count | None = 500,  # per task; none for all
    ) -> None:
        self.radius = radius
        self.steps = steps
        self.sam_radius = sam_radius
        self.part = part
        self.images = images

    def work(self, subject: Subject) -> Work:
        return Work(looks=2, slopes=self.steps + 1) * subject.images(self.part, self.images)

    def measure(self, subject: Subject) -> Measured:
        found: dict[str, list[float]] = {"loss": [], "one_step": [], "flatness": [], "sharpness": []}
        climbs = []
        for task in range(len(subject.tasks)):
            sight = subject.sight(task, self.part)
            loss = batch_losses(sight, self.images)
            heights = landscape.climb(loss, sight.weights, self.radius, self.steps)
            climbs.append(heights.cpu())
            rises = heights[1:] - heights[0]
            found["loss"].append(float(heights[0]))
            found["one_step"].append(float(rises[0]))
            found["flatness"].append(float(rises.max()))
            found["sharpness"].append(float(landscape.sharpness(loss, sight.weights, self.sam_radius)))
        moved = {"radius": self.radius, "steps": self.steps, "sam_radius": self.sam_radius}
        figures = {"tasks": [task.name for task in subject.tasks], **found, **moved}
        return Measured(figures, {"flatness": fmean(found["flatness"])}, {"climbs": torch.stack(climbs)})


class Curvature(Probe):
    """The Hessian of the loss by all weights that the task uses: its largest eigenvalue and the sum of all."""

    def __init__(
        self,
        *,
        steps: Count = 20,  # of Lanczos, for the largest eigenvalue
        draws: Annotated[int, Field(ge=2)] = 10,  # of random signs, for the trace
        part: PartName = "train",  # of which images
        images: Count | None = 128,  # per task; none for all
    ) -> None:
        self.steps = steps
        self.draws = draws
        self.part = part
        self.images = images

    def work(self, subject: Subject) -> Work:
        products = self.steps + self.draws
        return Work(slopes=1 + PRODUCT * products) * subject.images(self.part, self.images)

    def measure(self, subject: Subject) -> Measured:
        names = ("loss", "gradient_norm", "top_eigenvalue", "residual", "trace", "trace_error")
        rows = [self._of(subject.sight(task, self.part)) for task in range(len(subject.tasks))]
        found = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        headline = {"top eigenvalue": fmean(found["top_eigenvalue"]), "Hessian trace": fmean(found["trace"])}
        arrays = {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}
        return Measured({"tasks": [task.name for task in subject.tasks], **found}, headline, arrays)

    def _of(self, sight: Sight) -> tuple[float, ...]:
        before, gradient = landscape.slope(batch_losses(sight, self.images), sight.weights)
        used = {name: weight for name, weight in sight.weights.items() if name in gradient}  # no other task's head
        loss = batch_losses(sight, self.images, worth=PRODUCT)
        top = landscape.top_eigenvalue(loss, used, self.steps, generator(0, "curvature", "top", sight.task))
        trace = landscape.trace(loss, used, self.draws, generator(0, "curvature", "trace", sight.task))
        return float(before), float(norm(gradient)), *top, *trace
