"""What is left of the accuracy on images that have suffered: noise, blur, other light, lossy storage."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from perdure.errors import BadData, UnknownName, WrongValue
from perdure.ops.corruptions import KINDS, SEVERITIES, corrupt
from perdure.ops.metrics import wilson
from perdure.probes.probe import Cost, Probe, ProbeResult, TaskModel, TrainedMethod
from perdure.schema import Count
from perdure.seeding import generator
from perdure.types import Split

OURS = "corrupted by perdure, not to be compared with published figures such as mCE"


class PublishedCorruptions(Protocol):
    """Corrupted test images that somebody else has made."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The corruptions there are."""

    def __call__(self, kind: str, severity: int) -> Sequence[Split]:
        """For each task its test images, corrupted, in the same order."""


class Corruption(Probe):
    """Accuracy on corrupted test images, by kind, severity and task.

    Images are corrupted in pixels, in the batches in which the clean ones are judged, and with the same draws for every
    method. With `published` set (by whoever makes the probe, where `folder` names one), theirs are judged instead.
    """

    published: PublishedCorruptions | None = None

    def __init__(
        self,
        *,
        kinds: tuple[str, ...] | None = None,  # corruptions, with commas between; all of them when left out
        severities: tuple[int, ...] = SEVERITIES,  # from 1 to 5
        images: Count | None = None,  # test images of each task; all of them when left out
        folder: str | None = None,  # of CIFAR-100-C, whose images are then taken instead of ours
    ) -> None:
        self.kinds, self.images, self.folder = kinds, images, folder
        self.severities = tuple(sorted({*severities}))
        if not severities or not {*severities} <= {*SEVERITIES}:
            raise WrongValue(f"severities={','.join(map(str, severities))} is not allowed; use some of 1,2,3,4,5")
        if folder is None:
            self._all_kinds()

    def cost(self, trained: TrainedMethod) -> Cost:
        variants = len(self._all_kinds()) * len(self.severities)
        return Cost(forwards=trained.images(limit=self.images) * (1 + variants))

    def measure(self, trained: TrainedMethod) -> ProbeResult:
        kinds, models = self._all_kinds(), trained.models()
        sizes = torch.tensor([model.images(self.images) for model in models])
        clean = torch.tensor([self._hits(model) for model in models])
        corrupted = torch.tensor(
            [[self._corrupted_hits(trained, models, kind, severity) for severity in self.severities] for kind in kinds]
        )
        source = OURS if self.published is None else "CIFAR-100-C"
        about = {"source": source, "tasks": trained.task_names, "kinds": list(kinds)}
        figures = {**about, "severities": list(self.severities), **_figures(clean, corrupted, sizes)}
        return ProbeResult(figures, {"corrupted": figures["corrupted"]["acc"]}, {"acc": _percent(corrupted, sizes)})

    def _all_kinds(self) -> tuple[str, ...]:
        if self.folder is not None and self.published is None:
            raise WrongValue(
                f"the images of {self.folder} were not read: set `published` of this probe, or leave folder out"
            )
        there = KINDS if self.published is None else self.published.kinds
        wanted = there if self.kinds is None else self.kinds
        for kind in wanted:
            if kind not in there:
                raise UnknownName("corruption", kind, there)
        if not wanted:
            raise WrongValue(f"kinds is empty; name some of {', '.join(there)}, or leave it out for all")
        return wanted

    def _corrupted_hits(
        self, trained: TrainedMethod, models: Sequence[TaskModel], kind: str, severity: int
    ) -> list[int]:
        """Right answers for each task."""
        if self.published is None:
            return [self._hits(model, kind, severity) for model in models]
        found = []
        for task, (own, split) in enumerate(zip(trained.tasks, self.published(kind, severity), strict=False)):
            device = own.test.y.device
            if len(split) != len(own.test) or not torch.equal(split.y.to(device), own.test.y):
                raise BadData(f"corrupted images of task {own.name!r} are not those of its test images")
            model = TaskModel(trained.method, task, split.to(device), progress=trained.progress)
            found.append(self._hits(model))
        return found

    def _hits(self, model: TaskModel, kind: str | None = None, severity: int = 0) -> int:
        """Right answers to the images as they are, or corrupted by us."""
        hits = 0
        for number, (x, y) in enumerate(model.batches(self.images)):
            if kind is not None:
                x = corrupt(x, kind, severity, generator(0, "corruption", kind, severity, model.task, number))
            hits += int(model.right(x, y).sum())
        return hits


def _percent(hits: Tensor, sizes: Tensor) -> Tensor:
    return 100 * hits.double() / sizes


def _figures(clean: Tensor, corrupted: Tensor, sizes: Tensor) -> dict[str, Any]:
    """From right answers (tasks,) and (kinds, severities, tasks): accuracies are means over tasks, intervals are those
    of the images of all tasks together. Those of several corruptions are averaged: the same images many times over are
    no more images."""

    def interval(hits: Tensor) -> list[float]:
        return list(wilson(round(float(hits.double().sum(-1).mean())), int(sizes.sum())))

    plain, acc = _percent(clean, sizes), _percent(corrupted, sizes)
    mean, plain_mean = float(acc.mean()), float(plain.mean())
    return {
        "images": int(sizes.sum()),
        "clean": {"acc": plain_mean, "interval": interval(clean), "by_task": plain.tolist()},
        "corrupted": {
            "acc": mean,
            "interval": interval(corrupted),
            "by_task": acc.mean((0, 1)).tolist(),
            "by_kind": acc.mean((1, 2)).tolist(),
            "by_severity": acc.mean((0, 2)).tolist(),
        },
        "kept": 100 * mean / plain_mean if plain_mean > 0 else None,  # percent of clean accuracy
        "acc": acc.mean(2).tolist(),
        "intervals": [[interval(each) for each in row] for row in corrupted],
    }
