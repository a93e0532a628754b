"""How features lie on the unit sphere: spread out, class by class together, over how many directions."""

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.errors import WrongValue
from perdure.ops.geometry import (
    circle_uniformity,
    class_alignment,
    closer_to_another_class,
    effective_rank,
    foreign_neighbors,
    principal_plane,
    resultant,
    trained_plane,
)
from perdure.ops.losses import uniformity
from perdure.probes.probe import Cost, PartName, Probe, ProbeResult, TrainedMethod, interval
from perdure.schema import Count


class Features(NamedTuple):
    """Of the images of all tasks; double precision, on the CPU."""

    z: Tensor  # (n, d)
    task: Tensor  # (n,)
    label: Tensor  # (n,)

    @property
    def group(self) -> Tensor:
        """One number for each class of each task."""
        return self.task * (int(self.label.max()) + 1) + self.label


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
        self.images, self.head, self.part = images, head, part

    def cost(self, trained: TrainedMethod) -> Cost:
        shown = trained.images(self.part, self.images)
        learned_from = trained.images("train", self.images) if self.head == "trained" else 0
        return Cost(forwards=shown + learned_from)

    def measure(self, trained: TrainedMethod) -> ProbeResult:
        features = self._features(trained, self.part)
        z, group = features.z, features.group
        tasks = []
        for number, task in enumerate(trained.tasks):
            rows = features.task == number
            if int(group[rows].bincount().max()) < 2:
                raise WrongValue(
                    f"geometry: {task.name} shows no two images of one class among {int(rows.sum())}; "
                    "ask for more images"
                )
            tasks.append({"name": task.name, "classes": list(task.classes), **_geometry(z[rows], group[rows])})
        together = _geometry(z, group)
        flat = z @ self._plane(trained, z)
        circle = F.normalize(flat, dim=1)
        figures: dict[str, Any] = {
            "part": self.part,
            "tasks": tasks,
            "together": together,
            "circle": {
                "head": self.head,
                "uniformity": float(circle_uniformity(circle)),
                "alignment": float(class_alignment(circle, group)),
                "resultant": float(resultant(circle)),
            },
        }
        if self.head == "pca":
            figures["circle"]["squared_length"] = 100 * float(flat.square().sum() / z.square().sum())
        names = ("uniformity", "effective_rank", "class_overlap")
        headline = {name.replace("_", " "): together[name] for name in names}
        arrays = {"features2d": circle.float(), "task": features.task, "label": features.label}
        return ProbeResult(figures, headline, arrays)

    @torch.no_grad()
    def _features(self, trained: TrainedMethod, part: PartName) -> Features:
        found = [
            (model.forward(x).features.cpu(), torch.full_like(y.cpu(), model.task), y.cpu())
            for model in trained.models(part)
            for x, y in model.batches(self.images)
        ]
        z, task, label = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Features(z.double(), task, label)

    def _plane(self, trained: TrainedMethod, z: Tensor) -> Tensor:
        """A trained head learns from training images: with as many features as images it could place those it has
        learned from wherever it likes."""
        if self.head == "pca":
            return principal_plane(z)
        learned_from = self._features(trained, "train")
        return trained_plane(learned_from.z, learned_from.group)


def _geometry(z: Tensor, group: Tensor) -> dict[str, Any]:
    wrong = closer_to_another_class(z, group)
    return {
        "images": len(z),
        "uniformity": float(uniformity(z)),
        "alignment": float(class_alignment(z, group)),
        "effective_rank": float(effective_rank(z)),
        "class_overlap": 100 * float(wrong.double().mean()),
        "class_overlap_interval": interval(wrong),
        "neighbor_overlap": 100 * float(foreign_neighbors(z, group).mean()),
    }
