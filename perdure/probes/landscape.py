"""The loss along lines and in a plane through the weights, in directions drawn at random."""

import math
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.errors import WrongValue
from perdure.nets.one_batch import forward_as_one, uses_batch_statistics
from perdure.ops.landscape import Loss, loss_at, moved, random_direction
from perdure.probes.flatness import batch_losses
from perdure.probes.probe import BATCH, Cost, PartName, Probe, ProbeResult, TaskModel, TrainedMethod
from perdure.schema import Count, Positive
from perdure.types import Weights

MOST_POINTS = 1001
IN_MEMORY = 5000  # images that go through a network at once: those of a task of CIFAR-100 take 2 GB in AlexNet
NEAR = 0.1  # by how much the loss may have risen where one still is in the basin


def steps_of(reach: float, points: int) -> list[float]:
    """From −reach to reach, both ends and 0 included.

    >>> steps_of(0.5, 5)
    [-0.5, -0.25, 0.0, 0.25, 0.5]
    """
    if not 3 <= points <= MOST_POINTS or points % 2 == 0:
        how = f"take an odd number from 3 to {MOST_POINTS}"
        raise WrongValue(f"points={points} is not allowed: 0 has to be among them; {how}")
    half = points // 2
    return [reach * step / half for step in range(-half, half + 1)]


def losses_of(model: TaskModel, images: int | None, batch: int | None) -> Loss:
    """A task's loss as a function of its weights, in batches of that size, or of all images as one batch."""
    if batch is not None:
        return batch_losses(model, images, size=batch)
    if model.images(images) <= IN_MEMORY:
        return batch_losses(model, images, size=IN_MEMORY)

    def loss(weights: Weights) -> Tensor:
        pieces = list(model.batches(images, IN_MEMORY))
        logits = forward_as_one([x for x, _ in pieces], lambda x: model.forward(x, {**model.weights, **weights}).logits)
        return F.cross_entropy(torch.cat(logits), torch.cat([y for _, y in pieces]))

    return loss


def passes(model: TaskModel, images: int | None, batch: int | None) -> int:
    """How often an image goes through the network for one loss."""
    whole = batch is not None or model.images(images) <= IN_MEMORY
    return 1 if whole else 1 + sum(map(uses_batch_statistics, model.method.net.modules()))


class Landscape(Probe):
    """The loss along random lines through the weights, every filter moved by a share of its own length; what has one
    dimension only (biases, batch norm) stays."""

    def __init__(
        self,
        *,
        directions: Count = 10,  # lines through the weights; the same ones for all methods with one network
        reach: Positive = 0.5,  # how far to both sides, in lengths of each filter
        points: Count = 51,  # on each line, both ends included; an odd number
        at: Positive = 0.1,  # where the rise is read
        part: PartName = "train",  # of which images
        images: Count | None = 200,  # per task; none for all
        batch: Count | None = BATCH,  # images that batch norm takes its statistics from; none for all at once
        task: Count | None = None,  # of this task alone, counted from 1; none for all tasks
        after: Count | None = None,  # after which task, counted from 1; none for the last
    ) -> None:
        if at > reach:
            raise WrongValue(f"at={at:g} lies beyond reach={reach:g}; read the rise within reach")
        self.directions = directions
        self.steps = steps_of(reach, points)
        self.at = at
        self.part, self.images, self.batch = part, images, batch
        self.task, self.after = task, after
        self.needs_snapshots = after is not None  # this one does, others of its kind do not

    def cost(self, trained: TrainedMethod) -> Cost:
        forwards = sum(
            model.images(self.images) * passes(model, self.images, self.batch) for model in self._models(trained)
        )
        return Cost(forwards=forwards * self.directions * len(self.steps))

    def measure(self, trained: TrainedMethod) -> ProbeResult:
        models = self._models(trained)
        curves = torch.stack([self._curves(model) for model in models])  # (tasks, directions, points)
        rises = self._rises(curves)
        tasks, rise = [trained.tasks[model.task] for model in models], rises.mean(1).tolist()
        figures = {
            "tasks": [task.name for task in tasks],
            "chance": [math.log(len(task.classes)) for task in tasks],  # the loss of one who knows nothing
            "at": self.at,
            "loss": curves[:, :, len(self.steps) // 2].mean(1).tolist(),
            "rise": rise,
            "rise_error": (rises.std(1) / self.directions**0.5).tolist() if self.directions > 1 else None,
        }
        arrays = {"steps": torch.tensor(self.steps, dtype=torch.float64), "curves": curves}
        return ProbeResult(figures, {f"rise at {self.at:g}{self._which()}": fmean(rise)}, arrays)

    def _which(self) -> str:
        """What sets its headline apart from those of other tasks and times."""
        task = "" if self.task is None else f", task {self.task}"
        return task if self.after is None else f"{task} after {self.after}"

    def _models(self, trained: TrainedMethod) -> list[TaskModel]:
        """Of the tasks that were learned by then, or of one of them."""
        method = trained.method
        if self.after is not None:
            if self.after > len(trained.snapshots):
                raise WrongValue(
                    f"after={self.after}: the method as it was then is not there, {len(trained.snapshots)} tasks were "
                    "kept; leave `after` out for the method as it is now"
                )
            method = trained.snapshots[self.after - 1]
        learned = min(len(trained.tasks), len(method.net.heads))
        if self.task is not None and self.task > learned:
            raise WrongValue(f"task={self.task}: {learned} tasks were learned by then, counted from 1")
        wanted = range(learned) if self.task is None else [self.task - 1]
        return [trained.model(task, self.part, method=method) for task in wanted]

    def _curves(self, model: TaskModel) -> Tensor:
        """(directions, points). Lines outermost, batches innermost: one direction is in memory at a time and every
        point's weights are made once, which takes longer than to gather a batch again."""
        loss, curves = losses_of(model, self.images, self.batch), []
        for number in range(self.directions):
            direction = random_direction(model.weights, number)
            curves.append(torch.stack([loss_at(loss, moved(model.weights, direction, step)) for step in self.steps]))
        return torch.stack(curves).cpu()

    def _rises(self, curves: Tensor) -> Tensor:
        """How much the loss has grown at ±at, mean of both sides, (tasks, directions); straight between points."""
        half = len(self.steps) // 2
        place = half * self.at / self.steps[-1]
        low = min(int(place), half - 1)
        sides = (curves[:, :, half:] + curves[:, :, : half + 1].flip(2)) / 2 - curves[:, :, half : half + 1]
        return sides[:, :, low] + (place - low) * (sides[:, :, low + 1] - sides[:, :, low])


class Plane(Probe):
    """The loss of one task in the plane of the first two directions of `Landscape`."""

    def __init__(
        self,
        *,
        task: Count = 1,  # counted from 1
        reach: Positive = 0.5,  # how far to all four sides, in lengths of each filter
        points: Count = 21,  # on each side of the grid, both ends included; an odd number
        part: PartName = "train",  # of which images
        images: Count | None = 200,  # none for all
    ) -> None:
        self.task = task
        self.steps = steps_of(reach, points)
        self.part, self.images = part, images

    def cost(self, trained: TrainedMethod) -> Cost:
        return Cost(forwards=self._model(trained).images(self.images) * len(self.steps) ** 2)

    def measure(self, trained: TrainedMethod) -> ProbeResult:
        model, task = self._model(trained), trained.tasks[self.task - 1]
        loss = batch_losses(model, self.images)
        one, two = (random_direction(model.weights, number) for number in (0, 1))
        rows = []
        for step in self.steps:
            row = moved(model.weights, one, step)
            rows.append(torch.stack([loss_at(loss, moved(row, two, other)) for other in self.steps]))
        grid = torch.stack(rows).cpu()  # (points along the first, points along the second)
        here = grid[len(self.steps) // 2, len(self.steps) // 2]
        basin = 100 * float((grid <= here + NEAR).double().mean())
        figures = {
            "task": task.name,
            "chance": math.log(len(task.classes)),
            "loss": float(here),
            "lowest": float(grid.min()),
            "highest": float(grid.max()),
            "near": NEAR,
            "basin": basin,
        }
        arrays = {"steps": torch.tensor(self.steps, dtype=torch.float64), "grid": grid}
        return ProbeResult(figures, {f"basin within {NEAR:g} (%)": basin}, arrays)

    def _model(self, trained: TrainedMethod) -> TaskModel:
        if self.task > len(trained.tasks):
            raise WrongValue(f"task={self.task}: there are {len(trained.tasks)} tasks, counted from 1")
        return trained.model(self.task - 1, self.part)
