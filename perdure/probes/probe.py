"""What a probe is: a measurement of a trained method, through `forward` and `weights` alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from perdure.errors import WrongValue
from perdure.methods.method import Method
from perdure.nets.network import Output
from perdure.ops.attacks import input_gradient
from perdure.ops.metrics import wilson
from perdure.types import Split, Task, Weights

BATCH = 64
"""Images at a time, as in `train.evaluate`: batch norm may couple them, and clean accuracy is to be the record's."""

Space = Literal["pixels", "normalized"]
"""What a perturbation is measured in: pixels of [0, 1], or the numbers that the network is given."""

PartName = Literal["train", "valid", "test"]


@dataclass(frozen=True)
class Cost:
    """How many images go forward only, and how many forward and backward."""

    forwards: int = 0
    gradients: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.forwards + other.forwards, self.gradients + other.gradients)

    def __mul__(self, times: int) -> "Cost":
        return Cost(self.forwards * times, self.gradients * times)

    @property
    def units(self) -> int:
        """As many forward passes: a backward pass takes about two."""
        return self.forwards + 3 * self.gradients


class ProbeProgress:
    """Counts what was done. Override `add` to show it."""

    def __init__(self) -> None:
        self.done = Cost()

    def add(self, cost: Cost) -> None:
        self.done += cost


class TaskModel:
    """One task's classifier of a trained method: evaluation mode, weights held fixed, images in and logits out.

    Images are pixels in [0, 1] and are normalized inside, so that perturbations are measured in pixels; in the space
    "normalized" they are what the network is given, and have no bounds.

    Batch norm may use the statistics of the batch, so that an image's answer depends on those beside it. Whatever is
    compared must therefore be compared on batches of the same composition: take them from `batches`, in order.
    """

    def __init__(
        self,
        method: Method,
        task: int,
        split: Split,
        *,
        space: Space = "pixels",
        progress: ProbeProgress | None = None,
    ) -> None:
        method.eval()
        self.method, self.task, self.split, self.space = method, task, split, space
        self.weights: Weights = {name: weight.detach() for name, weight in method.weights(task).items()}
        self.progress = progress or ProbeProgress()

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which values an image stays an image."""
        return (0.0, 1.0) if self.space == "pixels" else (-torch.inf, torch.inf)

    def images(self, limit: int | None = None) -> int:
        """How many images `batches` gives."""
        return at_most(len(self.split), limit)

    def batches(self, limit: int | None = None, size: int = BATCH) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels, always in the same batches; of all images, or of so many chosen once for all."""
        for rows in self.split.pieces(size, limit):
            x = self.pixels(self.split, rows)
            yield x if self.space == "pixels" else self.split.normalize(x), self.split.y[rows]

    def pixels(self, split: Split, rows: Tensor) -> Tensor:
        """Images of a split as floats of the network's precision."""
        return split.pixels(rows).to(next(iter(self.weights.values())).dtype)

    def forward(self, x: Tensor, weights: Weights | None = None) -> Output:
        """Logits and unit-length features, by other weights if given; with gradients if torch follows."""
        self.progress.add(Cost(gradients=len(x)) if torch.is_grad_enabled() else Cost(forwards=len(x)))
        given = self.split.normalize(x) if self.space == "pixels" else x
        return self.method.forward(given, self.task, self.weights if weights is None else weights)

    def logits(self, x: Tensor) -> Tensor:
        """Without gradients."""
        with torch.no_grad():
            return self.forward(x).logits

    def right(self, x: Tensor, y: Tensor) -> Tensor:
        """Whether each image is answered right (n,)."""
        return self.logits(x).argmax(1) == y

    def input_gradient(self, x: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (n, classes), the loss of each image (n,), and the gradient of their sum by the images.

        `loss` takes logits to a loss per image.
        """
        return input_gradient(lambda images: self.forward(images).logits, x, loss)


@dataclass(frozen=True)
class TrainedMethod:
    """A method with the tasks it learned: what a probe measures."""

    method: Method
    tasks: Sequence[Task]  # those it learned, on its device
    name: str = ""
    snapshots: Sequence[Method] = ()  # the method as it was after each task, for probes that need them
    clean: Sequence[Task] = ()  # the tasks as they were before outliers were put among their training images
    progress: ProbeProgress = field(default_factory=ProbeProgress)

    @property
    def task_names(self) -> list[str]:
        return [task.name for task in self.tasks]

    def model(
        self, task: int, part: PartName = "test", *, space: Space = "pixels", method: Method | None = None
    ) -> TaskModel:
        """Its classifier of a task, with test images if no other part is named; `method` may be a snapshot."""
        if part not in self.tasks[task].held:
            raise WrongValue(
                f"the {part} images of task {self.tasks[task].name!r} are not held any more: give the tasks, "
                "not those that `learn` returned"
            )
        split = getattr(self.tasks[task], part)
        return TaskModel(method or self.method, task, split, space=space, progress=self.progress)

    def models(self, part: PartName = "test", *, space: Space = "pixels") -> list[TaskModel]:
        """Its classifiers of all tasks."""
        return [self.model(task, part, space=space) for task in range(len(self.tasks))]

    def history(self) -> Sequence[Method]:
        """The method as it was after each task, for probes that cannot do without."""
        if not self.snapshots:
            raise WrongValue("this probe needs the method as it was after each task: give its snapshots")
        return self.snapshots

    def having_learned(self, task: int) -> Method:
        """The method as it was when it had learned a task; where one lesson held several, all share what came of it."""
        return self.history()[min(task, len(self.snapshots) - 1)]

    def images(self, part: PartName = "test", limit: int | None = None) -> int:
        """How many images all tasks have together, at most so many from each."""
        return sum(at_most(len(getattr(task, part)), limit) for task in self.tasks)


@dataclass(frozen=True)
class ProbeResult:
    """What a probe found."""

    figures: dict[str, Any]  # plain numbers, texts, lists and dictionaries; no NaN, no infinity
    headline: dict[str, float]  # the few that stand in a table of many runs, under names that a reader understands
    arrays: dict[str, Tensor] = field(default_factory=dict)  # whatever is too long to read


class Probe:
    """A measurement. Its values are keyword-only arguments of `__init__`, as those of a method are."""

    needs_snapshots: bool = False  # the method after each task, too
    across: ClassVar[bool] = False  # whether it measures several methods together, by `measure_across`
    added: ClassVar[tuple[str, ...]] = ()  # values that came later: at their defaults, older results keep their names

    def cost(self, trained: TrainedMethod) -> Cost:
        """What `measure` will take: exactly what its progress will have counted, for bar and forecast."""
        raise NotImplementedError

    def measure(self, trained: TrainedMethod) -> ProbeResult:
        raise NotImplementedError


# --- what many probes need ---


def at_most(count: int, limit: int | None) -> int:
    return count if limit is None else min(count, limit)


def accuracy(right: Tensor) -> float:
    """Percent of right answers (n,)."""
    return 100 * int(right.sum()) / len(right)


def interval(right: Tensor) -> list[float]:
    """Wilson's interval of that percentage."""
    return list(wilson(int(right.sum()), len(right)))
