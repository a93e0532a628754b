"""How features lie on the unit sphere: spread out, class by class together, over how many directions."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.errors import WrongValue
from perdure.ops.geometry import (
    astray,
    circle_uniformity,
    class_alignment,
    effective_rank,
    foreign_neighbors,
    principal_plane,
    resultant,
    trained_plane,
)
from perdure.ops.losses import uniformity
from perdure.ops.metrics import wilson
from perdure.probes.probe import Measured, PartName, Probe, Subject, Work
from perdure.schema import Count

Cloud = tuple[Tensor, Tensor, Tensor]
"""Features (n, d), and task and label of each (n,); double precision, on the CPU."""


class Geometry(Probe):
    """Uniformity and alignment (Wang & Isola, ICML 2020), effective rank and class overlap, by task and together; and
    the features in two dimensions, on the circle.

    Together means that the images of all tasks are points of one sphere and that no two tasks share a class, although
    each task's images are seen with the weights that the method has for it. A positive pair is any two images of one
    class. Rank and overlap depend on the number of images: compare runs that were measured on equally many.
    """

    def __init__(
        self,
        *,
        images: Count = 200,  # of each task; the pairs that uniformity visits grow with its square
        head: Literal["pca", "trained"] = "pca",  # circle: the plane of most squared length, or a layer that learns one
        part: PartName = "test",  # which images; a trained head learns from training images whatever is shown
    ) -> None:
        self.images = images
        self.head = head
        self.part = part

    def work(self, subject: Subject) -> Work:
        shown = subject.images(self.part, self.images)
        learned_from = subject.images("train", self.images) if self.head == "trained" else 0
        return Work(looks=shown + learned_from)

    def measure(self, subject: Subject) -> Measured:
        features, task, label = cloud = self._cloud(subject, self.part)
        group = _group(cloud)
        each = [task == t for t in range(len(subject.tasks))]
        for known, rows in zip(subject.tasks, each, strict=True):
            _check(known.name, group[rows])
        together = _position(features, group)
        flat = features @ self._plane(subject, cloud)
        circle = F.normalize(flat, dim=1)
        figures: dict[str, Any] = {
            "part": self.part,
            "tasks": [
                {"name": known.name, "classes": list(known.classes), **_position(features[rows], group[rows])}
                for known, rows in zip(subject.tasks, each, strict=True)
            ],
            "together": together,
            "circle": {
                "head": self.head,
                "uniformity": float(circle_uniformity(circle)),
                "alignment": float(class_alignment(circle, group)),
                "resultant": float(resultant(circle)),
            },
        }
        if self.head == "pca":
            figures["circle"]["squared_length"] = 100 * float(flat.square().sum() / features.square().sum())
        headline = {
            "uniformity": together["uniformity"],
            "effective rank": together["effective_rank"],
            "class overlap": together["class_overlap"],
        }
        return Measured(figures, headline, {"features2d": circle.float(), "task": task, "label": label})

    @torch.no_grad()
    def _cloud(self, subject: Subject, part: PartName) -> Cloud:
        features, tasks, labels = [], [], []
        for task in range(len(subject.tasks)):
            sight = subject.sight(task, part)
            for x, y in sight.batches(self.images):
                features.append(sight.forward(x).features.cpu())
                labels.append(y.cpu())
                tasks.append(torch.full_like(labels[-1], task))
        return torch.cat(features).double(), torch.cat(tasks), torch.cat(labels)

    def _plane(self, subject: Subject, shown: Cloud) -> Tensor:
        """A trained head learns from training images: with as many features as images it could place those it has
        learned from wherever it likes."""
        if self.head == "pca":
            return principal_plane(shown[0])
        cloud = self._cloud(subject, "train")
        return trained_plane(cloud[0], _group(cloud))


def _group(cloud: Cloud) -> Tensor:
    """One number for each class of each task."""
    _, task, label = cloud
    return task * (int(label.max()) + 1) + label


def _position(z: Tensor, group: Tensor) -> dict[str, Any]:
    wrong = astray(z, group)
    return {
        "images": len(z),
        "uniformity": float(uniformity(z)),
        "alignment": float(class_alignment(z, group)),
        "effective_rank": float(effective_rank(z)),
        "class_overlap": 100 * float(wrong.double().mean()),
        "class_overlap_interval": list(wilson(int(wrong.sum()), len(wrong))),
        "neighbor_overlap": 100 * float(foreign_neighbors(z, group).mean()),
    }


def _check(name: str, group: Tensor) -> None:
    if int(group.bincount().max()) < 2:
        raise WrongValue(f"geometry: {name} shows no two images of one class among {len(group)}; ask for more images")
