"""Certified accuracy by randomized smoothing: no attack within a radius, whichever it is, changes the answer.

What is certified is not the network but the smoothed classifier, which answers with the class that the network gives
most often under noise. A certificate holds for an image alone, so the network's answer may depend on nothing else:
batch norms that use the statistics of the batch are given fixed ones, of the task's training images with such noise.
"""

from collections.abc import Sequence
from copy import deepcopy
from math import isfinite
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from perdure.errors import WrongValue
from perdure.methods.method import Method
from perdure.nets.one_batch import uses_batch_statistics
from perdure.ops.smoothing import noisy, radius
from perdure.probes.over_time import known, padded, scores
from perdure.probes.probe import (
    Cost,
    Probe,
    ProbeResult,
    TaskModel,
    TrainedMethod,
    accuracy,
    at_most,
    interval,
)
from perdure.schema import Count, Limits, Strength
from perdure.seeding import generator

Risk = Annotated[float, Limits(gt=0, le=0.5)]
"""The chance that a certificate is wrong."""

COPIES = 250  # of an image that go through the network at once; draws depend on it
FOR_STATISTICS = 640  # training images of a task at most, from which statistics are taken: ten batches
ABSTAINED = -1.0  # as the radius of an image, since NaN would not equal itself


class Certificates(NamedTuple):
    """Of one task, by one network."""

    clean: Tensor  # (all test images,) bool: right without noise, with fixed statistics
    right: Tensor  # (n,) bool: whether the smoothed class is right
    radius: Tensor  # (n,) within which it cannot change; below 0 where it abstains

    def hits(self, at: float) -> Tensor:
        """Right, however an image is moved by up to so much."""
        return self.right & (self.radius >= at)


class Smoothing(Probe):
    """Certified accuracy of each task against the radius, and how often no class is frequent enough (abstention)."""

    def __init__(
        self,
        *,
        sigma: Strength = 0.12,  # σ: standard deviation of the noise, in pixels
        samples: Count = 1000,  # n: noisy copies of an image by which its class is counted
        selection: Count = 100,  # and copies before these, by which the class is chosen
        alpha: Risk = 0.001,  # α: chance that the certificate of an image is wrong
        radii: tuple[float, ...] | None = None,  # L2, in pixels, that are told; none: 0, σ/2, σ and 2σ
        images: Count | None = 50,  # test images of each task; none: all
        over_time: bool = False,  # whether every lesson is measured, not the last alone; needs snapshots
    ) -> None:
        self.sigma, self.samples, self.selection, self.alpha, self.images = sigma, samples, selection, alpha, images
        self.radii = (0.0, sigma / 2, sigma, 2 * sigma) if radii is None else tuple(radii)
        self.over_time = self.needs_snapshots = over_time
        if not self.radii or not all(at >= 0 and isfinite(at) for at in self.radii):
            raise WrongValue("smoothing: such radii are not allowed; give numbers ≥ 0, or none for the usual ones")

    def cost(self, trained: TrainedMethod) -> Cost:
        forwards = 0
        for method, tasks in self._lessons(trained):
            fixing = needs_fixing(method)
            for task in trained.tasks[:tasks]:
                copies = self.selection + self.samples
                forwards += 1 + len(task.test) + copies * at_most(len(task.test), self.images)
                forwards += at_most(len(task.train), FOR_STATISTICS) if fixing else 0
        return Cost(forwards=forwards)

    def measure(self, trained: TrainedMethod) -> ProbeResult:
        lessons = [
            [self._certificates(trained, method, task) for task in range(tasks)]
            for method, tasks in self._lessons(trained)
        ]
        last = lessons[-1]
        sizes = [len(found.right) for found in last]
        certified = [_summary([found.hits(at) for found in last]) for at in self.radii]
        over_time = [self._scores(lessons, sizes, at) for at in self.radii] if self.over_time else None
        figures: dict[str, Any] = {
            "sigma": self.sigma,
            "samples": self.samples,
            "alpha": self.alpha,
            "radii": list(self.radii),
            "largest": radius(self.samples, self.samples, self.sigma, self.alpha),
            "fixed": needs_fixing(trained.method),
            "tasks": trained.task_names[: len(sizes)],
            "images": sizes,
            "clean": _summary([found.clean for found in last]),
            "certified": certified,
            "abstained": _summary([found.radius < 0 for found in last]),
            "mean_radius": [float((found.radius * found.hits(0)).mean()) for found in last],
            "over_time": over_time,
        }
        names = [f"{at:g}{'' if self.sigma == Smoothing().sigma else f', σ {self.sigma:g}'}" for at in self.radii]
        headline = {f"certified ACC {name}": one["acc"] for name, one in zip(names, certified, strict=True)}
        for name, one in zip(names, over_time or [], strict=False):
            headline |= {} if one["bwt"] is None else {f"certified BWT {name}": one["bwt"]}
        arrays = {f"radius_{task}": found.radius for task, found in enumerate(last)}
        arrays |= {f"right_{task}": found.right.to(torch.uint8) for task, found in enumerate(last)}
        arrays |= {f"over_time_{place}": padded(one["matrix"]) for place, one in enumerate(over_time or [])}
        return ProbeResult(figures, headline, arrays)

    def _lessons(self, trained: TrainedMethod) -> list[tuple[Method, int]]:
        """What is measured: a method, and of how many tasks."""
        if not self.over_time:
            return [(trained.method, len(trained.tasks))]
        return [(snapshot, known(snapshot)) for snapshot in trained.history()]

    def _scores(self, lessons: Sequence[Sequence[Certificates]], sizes: list[int], at: float) -> dict[str, Any]:
        return scores([[int(found.hits(at).sum()) for found in row] for row in lessons], sizes)

    def _certificates(self, trained: TrainedMethod, method: Method, task: int) -> Certificates:
        model = trained.model(task, method=with_fixed_statistics(trained, method, task, self.sigma))
        clean = answers(model, trained.tasks[task].name)
        images = [(x, int(y)) for batch in model.batches(self.images) for x, y in zip(*batch, strict=True)]
        right, radii = [], []
        for number, (x, label) in enumerate(images):
            rng = generator(0, "smoothing", task, number)  # the same for every network
            chosen = int(self._votes(model, x, self.selection, rng).argmax())
            hits = int(self._votes(model, x, self.samples, rng)[chosen])
            found = radius(hits, self.samples, self.sigma, self.alpha)
            right.append(chosen == label)
            radii.append(ABSTAINED if found is None else found)
        return Certificates(clean, torch.tensor(right), torch.tensor(radii, dtype=torch.float64))

    def _votes(self, model: TaskModel, x: Tensor, copies: int, rng: torch.Generator) -> Tensor:
        """How many noisy copies are given each class."""
        sizes = [min(COPIES, copies - start) for start in range(0, copies, COPIES)]
        logits = [model.logits(noisy(x, size, self.sigma, rng)) for size in sizes]
        return torch.bincount(torch.cat(logits).argmax(1), minlength=logits[0].shape[1])


def needs_fixing(method: Method) -> bool:
    """Whether an answer depends on the other images of a batch."""
    return any(map(uses_batch_statistics, method.net.modules()))


def with_fixed_statistics(trained: TrainedMethod, method: Method, task: int, sigma: float) -> Method:
    """A copy whose batch norms have fixed statistics, of the task's training images with noise; the method itself where
    none uses those of the batch."""
    if not needs_fixing(method):
        return method
    model = trained.model(task, "train", method=deepcopy(method))
    rng = generator(0, "smoothing", "statistics", task)

    def forward() -> None:
        for x, _ in model.batches(FOR_STATISTICS):
            model.logits(x + sigma * torch.randn(x.shape, generator=rng).to(x))

    model.method.net.fix_statistics(forward)
    return model.method


def answers(model: TaskModel, name: str) -> Tensor:
    """Which test images are answered right without noise (n,). Refused where the first has another answer alone than in
    its batch: something besides batch norm makes images depend on each other then."""
    right = []
    for number, (x, y) in enumerate(model.batches()):
        logits = model.logits(x)
        if number == 0 and not torch.allclose(model.logits(x[:1]), logits[:1], rtol=1e-3, atol=1e-3):
            raise WrongValue(
                f"task {name!r}: this network answers an image alone otherwise than among others, so that nothing can "
                "be certified; take one whose answers depend on the image alone"
            )
        right.append(logits.argmax(1) == y)
    return torch.cat(right).cpu()


def _summary(by_task: Sequence[Tensor]) -> dict[str, Any]:
    """Percent of what is true (n,) of the images of each task, and the mean over tasks."""
    found = [accuracy(one) for one in by_task]
    return {
        "acc": sum(found) / len(found),
        "by_task": found,
        "interval": interval(torch.cat(list(by_task))),
        "intervals": [interval(one) for one in by_task],
    }
