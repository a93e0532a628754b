"""How far the loss rises when the weights are moved against the network, and how the loss is bent where they are."""

from collections.abc import Iterator
from statistics import fmean
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.ops import landscape
from perdure.ops.gradients import norm
from perdure.probes.probe import BATCH, Cost, PartName, Probe, ProbeResult, TaskModel, TrainedMethod
from perdure.schema import Count, Limits, Positive
from perdure.seeding import generator
from perdure.types import Weights

PRODUCT = 6
"""As many gradients a product with the Hessian takes. In theory two; on a CPU, where convolutions are slow to derive
twice, 5 to 8 were measured (AlexNet, ResNet18)."""


def batch_losses(model: TaskModel, images: int | None, gradients: int = 1, size: int = BATCH) -> landscape.Loss:
    """A task's mean cross-entropy as a function of its weights, in terms of one batch each. Weights not given are as
    the method has them. Where torch follows, each image counts as so many gradients."""
    count = model.images(images)

    def terms(weights: Weights) -> Iterator[Tensor]:
        for x, y in model.batches(images, size):
            logits = model.forward(x, {**model.weights, **weights}).logits
            model.progress.add(Cost(gradients=(gradients - 1) * len(x)))
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
        self.radius, self.steps, self.sam_radius = radius, steps, sam_radius
        self.part, self.images = part, images

    def cost(self, trained: TrainedMethod) -> Cost:
        return Cost(forwards=2, gradients=self.steps + 1) * trained.images(self.part, self.images)

    def measure(self, trained: TrainedMethod) -> ProbeResult:
        found: dict[str, list[float]] = {"loss": [], "one_step": [], "flatness": [], "sharpness": []}
        climbs = []
        for model in trained.models(self.part):
            loss = batch_losses(model, self.images)
            losses = landscape.climb(loss, model.weights, self.radius, self.steps)
            climbs.append(losses.cpu())
            found["loss"].append(float(losses[0]))
            found["one_step"].append(float(losses[1] - losses[0]))
            found["flatness"].append(float(landscape.worst_case_flatness(losses)))
            found["sharpness"].append(float(landscape.sharpness(loss, model.weights, self.sam_radius)))
        values = {"radius": self.radius, "steps": self.steps, "sam_radius": self.sam_radius}
        figures = {"tasks": trained.task_names, **found, **values}
        return ProbeResult(figures, {"flatness": fmean(found["flatness"])}, {"climbs": torch.stack(climbs)})


class Curvature(Probe):
    """The Hessian of the loss by all weights that the task uses: its largest eigenvalue and the sum of all."""

    def __init__(
        self,
        *,
        steps: Count = 20,  # of Lanczos, for the largest eigenvalue
        draws: Annotated[int, Limits(ge=2)] = 10,  # of random signs, for the trace
        part: PartName = "train",  # of which images
        images: Count | None = 128,  # per task; none for all
    ) -> None:
        self.steps, self.draws = steps, draws
        self.part, self.images = part, images

    def cost(self, trained: TrainedMethod) -> Cost:
        products = self.steps + self.draws
        return Cost(gradients=1 + PRODUCT * products) * trained.images(self.part, self.images)

    def measure(self, trained: TrainedMethod) -> ProbeResult:
        names = ("loss", "gradient_norm", "top_eigenvalue", "residual", "trace", "trace_error")
        rows = [self._curvature(model) for model in trained.models(self.part)]
        found = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        headline = {"top eigenvalue": fmean(found["top_eigenvalue"]), "Hessian trace": fmean(found["trace"])}
        arrays = {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}
        return ProbeResult({"tasks": trained.task_names, **found}, headline, arrays)

    def _curvature(self, model: TaskModel) -> tuple[float, ...]:
        before, gradient = landscape.loss_and_grad(batch_losses(model, self.images), model.weights)
        used = {name: weight for name, weight in model.weights.items() if name in gradient}  # no other task's head
        loss = batch_losses(model, self.images, PRODUCT)
        top = landscape.top_eigenvalue(loss, used, self.steps, generator(0, "curvature", "top", model.task))
        trace = landscape.trace(loss, used, self.draws, generator(0, "curvature", "trace", model.task))
        return float(before), float(norm(gradient)), *top, *trace
