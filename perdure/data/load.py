"""Published image sets as they were found: tensors, and whether figures may be compared with published ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from perdure.data.cache import Decoded, Facts, cached, fingerprint, fit_together
from perdure.data.catalog import PublishedSet
from perdure.data.locate import Completeness, Location, completeness_of, locate
from perdure.data.paths import data_root
from perdure.data.tasks import split_rows, task_count, task_of_rows
from perdure.errors import BadData
from perdure.types import Stream


@dataclass(frozen=True)
class ImageSet:
    """A set as it was found: images (n, channels, height, width) uint8 with labels (n,) int64."""

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: tuple[str, ...]
    source: str
    completeness: Completeness
    reason: str  # for that verdict
    notes: Mapping[str, str]
    fingerprint: str


def load(published: PublishedSet, root: str | Path | None = None) -> ImageSet:
    """Find the set in `root` (else $PERDURE_DATA, else the user's cache) and read it, or its decoded copy."""
    place = locate(published, data_root(root))
    files, fits = place.files + place.optional, partial(_fits, shape=published.shape)
    found = cached(published.name, place.folder, files, lambda: _decode(published, place), fits)
    train, test = ((found.tensors[f"{part}_x"], found.tensors[f"{part}_y"]) for part in ("train", "test"))
    facts = found.facts | {"classes": tuple(found.facts["classes"])}
    return ImageSet(name=published.name, train=train, test=test, source=place.layout.name, **facts)


class _Facts(Facts):
    classes: list[str]
    completeness: Completeness
    reason: str
    notes: dict[str, str]
    fingerprint: str


def _fits(copy: Decoded, shape: tuple[int, int, int]) -> bool:
    classes, tensors = len(_Facts.model_validate(copy.facts).classes), copy.tensors
    return all(fit_together(tensors[f"{p}_x"], tensors[f"{p}_y"], shape, classes) for p in ("train", "test"))


def stream_of_classes(
    published: PublishedSet,
    groups: Sequence[Sequence[int]],
    *,
    root: str | Path | None,
    tasks: int | None,
    valid_share: float,
    seed: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Stream:
    """A task for each group of classes of a set, or for the first few; a class's label is its place in its group."""
    count = task_count(tasks, len(groups))
    images = load(published, root)
    (x, y), (test_x, test_y) = images.train, images.test
    made = []
    for number, group in enumerate(groups[:count]):
        name = f"{published.name}-{number}"
        label_in_task = torch.full((len(images.classes),), -1)
        label_in_task[list(group)] = torch.arange(len(group))
        rows, test = ((label_in_task[labels] >= 0).nonzero()[:, 0] for labels in (y, test_y))
        if len(rows) == 0 or len(test) == 0:
            numbers = ", ".join(map(str, group))
            raise BadData(f"task {name!r}: {images.name} has no images of classes {numbers} here; ask for fewer tasks")
        train, valid = split_rows(len(rows), valid_share, seed)
        held = test_x.index_select(0, test), label_in_task[test_y[test]]
        classes = [images.classes[label] for label in group]
        made.append(task_of_rows(name, classes, x, label_in_task[y], (rows[train], rows[valid]), held, mean, std))
    return Stream(published.name, made, source_notes({images.name: images}, count, len(groups)), images.fingerprint)


def source_notes(sets: Mapping[str, ImageSet], count: int, available: int, **more: str) -> dict[str, str]:
    """What a stream says of the sets it was made from: their sources, and the worst verdict of all."""
    order: tuple[Completeness, ...] = ("complete", "subset", "altered")
    worst = max(sets.values(), key=lambda images: order.index(images.completeness))
    several = len(sets) > 1
    return {
        "source": "; ".join(f"{name}: {s.source}" if several else s.source for name, s in sets.items()),
        "completeness": worst.completeness,
        "reason": f"{worst.name}: {worst.reason}",
        **{f"{name}: {key}" if several else key: text for name, s in sets.items() for key, text in s.notes.items()},
        **more,
        "tasks": f"{count} of {available}",
    }


def _decode(published: PublishedSet, place: Location) -> Decoded:
    found = place.layout.read(place.folder)
    shape = found.train[0].shape[1:]
    if shape != published.shape:
        raise BadData(f"{place.folder}: images are {shape}, those of {published.title} are {published.shape}")
    completeness, reason = completeness_of(published, place, found)
    arrays = zip(("train_x", "train_y", "test_x", "test_y"), (*found.train, *found.test), strict=True)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays}
    facts = {
        "classes": found.classes or published.classes,
        "completeness": completeness,
        "reason": reason,
        "notes": dict(found.notes),
        "fingerprint": fingerprint(tensors.values()),
    }
    return Decoded(tensors, facts)
