"""What is left of the accuracy on images that have suffered: noise, blur, other light, lossy storage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from perdure.errors import BadData, UnknownName, WrongValue
from perdure.ops.corruptions import KINDS, SEVERITIES, corrupt
from perdure.ops.metrics import wilson
from perdure.probes.probe import Measured, Probe, Sight, Subject, Work
from perdure.schema import Count
from perdure.seeding import generator
from perdure.types import Split

OURS = "corrupted by perdure, not to be compared with published figures such as mCE"


class Twins(Protocol):
    """Corrupted test images that somebody else has made."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The corruptions there are."""

    def __call__(self, kind: str, severity: int) -> Sequence[Split]:
        """For each task its test images, corrupted, in the same order."""


class Corruption(Probe):
    """Accuracy on corrupted test images, by kind, severity and task.

    Images are corrupted in pixels, in the batches in which the clean ones are judged, and with the same draws for every
    method. With `twins` set (by whoever makes the probe, where `folder` names one), theirs are judged instead.
    """

    twins: Twins | None = None

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
            self._known(KINDS)

    def work(self, subject: Subject) -> Work:
        variants = len(self._all_kinds()) * len(self.severities)
        return Work(looks=subject.images(limit=self.images) * (1 + variants))

    def measure(self, subject: Subject) -> Measured:
        kinds = self._all_kinds()
        sizes = torch.tensor([subject.sight(task).images(self.images) for task in range(len(subject.tasks))])
        clean = torch.tensor([self._plain_hits(subject.sight(task)) for task in range(len(subject.tasks))])
        hits = torch.stack(
            [torch.stack([self._hits(subject, kind, severity) for severity in self.severities]) for kind in kinds]
        )
        found = Found(kinds, self.severities, sizes, clean, hits)
        source = OURS if self.twins is None else "CIFAR-100-C"
        figures = {"source": source, "tasks": [task.name for task in subject.tasks], **found.figures()}
        return Measured(figures, {"corrupted": figures["corrupted"]["acc"]}, {"acc": found.accuracies()})

    def _all_kinds(self) -> tuple[str, ...]:
        if self.twins is not None:
            return self._known(self.twins.kinds)
        if self.folder is not None:
            raise WrongValue(
                f"the images of {self.folder} were not read: set `twins` of this probe, or leave folder out"
            )
        return self._known(KINDS)

    def _known(self, there: tuple[str, ...]) -> tuple[str, ...]:
        wanted = there if self.kinds is None else self.kinds
        for kind in wanted:
            if kind not in there:
                raise UnknownName("corruption", kind, there)
        if not wanted:
            raise WrongValue(f"kinds is empty; name some of {', '.join(there)}, or leave it out for all")
        return wanted

    def _plain_hits(self, sight: Sight) -> int:
        return sum(_right(sight, x, y) for x, y in sight.batches(self.images))

    def _hits(self, subject: Subject, kind: str, severity: int) -> Tensor:
        """Right answers for each task."""
        if self.twins is None:
            return torch.tensor([self._own_hits(subject.sight(i), kind, severity) for i in range(len(subject.tasks))])
        twins = self.twins(kind, severity)
        return torch.tensor([self._twin_hits(subject, i, twins[i]) for i in range(len(subject.tasks))])

    def _own_hits(self, sight: Sight, kind: str, severity: int) -> int:
        hits = 0
        for number, (x, y) in enumerate(sight.batches(self.images)):
            chance = generator(0, "corruption", kind, severity, sight.task, number)
            hits += _right(sight, corrupt(x, kind, severity, chance), y)
        return hits

    def _twin_hits(self, subject: Subject, task: int, twin: Split) -> int:
        clean = subject.tasks[task].test
        if len(twin) != len(clean) or not torch.equal(twin.y.to(clean.y.device), clean.y):
            raise BadData(f"corrupted images of task {subject.tasks[task].name!r} are not those of its test images")
        sight = Sight(subject.method, task, twin.to(clean.y.device), meter=subject.meter)
        return self._plain_hits(sight)


@dataclass(frozen=True)
class Found:
    """Right answers, counted."""

    kinds: tuple[str, ...]
    severities: tuple[int, ...]
    sizes: Tensor  # (tasks,), images
    clean: Tensor  # (tasks,)
    hits: Tensor  # (kinds, severities, tasks)

    def accuracies(self) -> Tensor:
        """(kinds, severities, tasks), in percent."""
        return 100 * self.hits.double() / self.sizes

    def figures(self) -> dict[str, Any]:
        """Accuracies are means over tasks; intervals are those of the images of all tasks together."""
        corrupted, clean = self.accuracies(), 100 * self.clean.double() / self.sizes
        mean = float(corrupted.mean())
        return {
            "kinds": list(self.kinds),
            "severities": list(self.severities),
            "images": int(self.sizes.sum()),
            "clean": {
                "acc": float(clean.mean()),
                "interval": self._interval(self.clean),
                "by_task": clean.tolist(),
            },
            "corrupted": {
                "acc": mean,
                "interval": self._interval(self.hits),
                "by_task": corrupted.mean((0, 1)).tolist(),
                "by_kind": corrupted.mean((1, 2)).tolist(),
                "by_severity": corrupted.mean((0, 2)).tolist(),
            },
            "kept": 100 * mean / float(clean.mean()) if float(clean.mean()) > 0 else None,  # percent of clean accuracy
            "acc": corrupted.mean(2).tolist(),
            "intervals": [[self._interval(each) for each in row] for row in self.hits],
        }

    def _interval(self, hits: Tensor) -> list[float]:
        """Of hits (…, tasks). Those of several corruptions are averaged: the same images many times over are no more
        images."""
        each = hits.double().sum(-1).mean()
        return list(wilson(round(float(each)), int(self.sizes.sum())))


def _right(sight: Sight, x: Tensor, y: Tensor) -> int:
    return int((sight.logits(x).argmax(1) == y).sum())
