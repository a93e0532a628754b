"""What a probe is: a measurement of a trained method, through `look` and `weights` alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from perdure.errors import WrongValue
from perdure.methods.method import Method
from perdure.nets.network import Output
from perdure.types import Split, Task, Weights

BATCH = 64
"""Images at a time, as in `train.evaluate`: batch norm may couple them, and clean accuracy is to be the record's."""

Space = Literal["pixels", "normalized"]
"""What a perturbation is measured in: pixels of [0, 1], or the numbers that the network is given."""

PartName = Literal["train", "valid", "test"]


@dataclass(frozen=True)
class Work:
    """How many images go forward, and how many forward and back."""

    looks: int = 0
    slopes: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.looks + other.looks, self.slopes + other.slopes)

    def __mul__(self, times: int) -> "Work":
        return Work(self.looks * times, self.slopes * times)

    @property
    def units(self) -> int:
        """As many forward passes: a backward pass takes about two."""
        return self.looks + 3 * self.slopes


class Meter:
    """Counts the work that was done. Override `add` to show it."""

    def __init__(self) -> None:
        self.done = Work()

    def add(self, work: Work) -> None:
        self.done += work


class Sight:
    """One task's classifier, as a trained method has it: evaluation mode, weights held fixed, images in and logits out.

    Images are pixels in [0, 1] and are normalized inside, so that perturbations are measured in pixels; in the space
    "normalized" they are what the network is given, and have no bounds.

    Batch norm may use the statistics of the batch, so that an image's answer depends on those beside it. Whatever is
    compared must therefore be compared on batches of the same composition: take them from `batches`, in order.
    """

    def __init__(
        self, method: Method, task: int, split: Split, *, space: Space = "pixels", meter: Meter | None = None
    ) -> None:
        method.eval()
        self.method, self.task, self.split, self.space = method, task, split, space
        self.weights: Weights = {name: weight.detach() for name, weight in method.weights(task).items()}
        self.meter = meter or Meter()

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which values an image stays an image."""
        return (0.0, 1.0) if self.space == "pixels" else (-torch.inf, torch.inf)

    def images(self, limit: int | None = None) -> int:
        """How many images `batches` gives."""
        return len(self.split) if limit is None else min(limit, len(self.split))

    def batches(self, limit: int | None = None, size: int = BATCH) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels, always in the same batches; of all images, or of so many chosen once for all."""
        like = next(iter(self.weights.values()))
        for rows in self.split.pieces(size, limit):
            x = self.split.pixels(rows).to(like.dtype)
            yield x if self.space == "pixels" else self.split.normalize(x), self.split.y[rows]

    def forward(self, x: Tensor, weights: Weights | None = None) -> Output:
        """One forward: logits and unit-length features, by other weights if given; with gradients if torch follows."""
        self.meter.add(Work(slopes=len(x)) if torch.is_grad_enabled() else Work(looks=len(x)))
        given = self.split.normalize(x) if self.space == "pixels" else x
        return self.method.forward(given, self.task, self.weights if weights is None else weights)

    def logits(self, x: Tensor) -> Tensor:
        """Without gradients."""
        with torch.no_grad():
            return self.forward(x).logits

    def slope(self, x: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (n, classes), the loss of each image (n,), and the gradient of their sum by the images.

        `loss` takes logits to a loss per image.
        """
        start = x.detach().requires_grad_()
        with torch.enable_grad():
            logits = self.forward(start).logits
            each = loss(logits)
            (slope,) = torch.autograd.grad(each.sum(), start)
        return logits.detach(), each.detach(), slope


@dataclass(frozen=True)
class Subject:
    """What a probe may look at."""

    method: Method
    tasks: Sequence[Task]  # those it learned, on its device
    name: str = ""
    stages: Sequence[Method] = ()  # the method as it was after each lesson, for probes that need them
    clean: Sequence[Task] = ()  # the tasks as they were before outliers were put among their training images
    meter: Meter = field(default_factory=Meter)

    def sight(
        self, task: int, part: PartName = "test", *, space: Space = "pixels", method: Method | None = None
    ) -> Sight:
        """A task of it, on test images if not told otherwise; `method` may be one of its stages."""
        split = getattr(self.tasks[task], part)
        return Sight(method or self.method, task, split, space=space, meter=self.meter)

    def history(self) -> Sequence[Method]:
        """The method as it was after each lesson, for probes that cannot do without."""
        if not self.stages:
            raise WrongValue("this probe needs the method as it was after each lesson: give the subject its stages")
        return self.stages

    def having_learned(self, task: int) -> Method:
        """The method as it was when it had learned a task; where one lesson held several, all share what came of it."""
        return self.history()[min(task, len(self.stages) - 1)]

    def images(self, part: PartName = "test", limit: int | None = None) -> int:
        """How many images all tasks have together, at most so many from each."""
        sizes = [len(getattr(task, part)) for task in self.tasks]
        return sum(size if limit is None else min(size, limit) for size in sizes)


@dataclass(frozen=True)
class Measured:
    """What a probe found."""

    figures: dict[str, Any]  # plain numbers, texts, lists and dictionaries; no NaN, no infinity
    headline: dict[str, float]  # the few that stand in a table of many runs, under names that a reader understands
    arrays: dict[str, Tensor] = field(default_factory=dict)  # whatever is too long to read


class Probe:
    """A measurement. Its values are keyword-only arguments of `__init__`, as those of a method are."""

    needs_stages: bool = False  # the method after each lesson, too
    across: ClassVar[bool] = False  # whether it measures several subjects together, by `measure_across`

    def work(self, subject: Subject) -> Work:
        """What `measure` will take: exactly what a meter will have counted, for bar and forecast."""
        raise NotImplementedError

    def measure(self, subject: Subject) -> Measured:
        raise NotImplementedError
