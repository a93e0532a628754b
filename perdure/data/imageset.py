"""Image sets as they were found: tensors, with a verdict on what they are worth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from perdure.data.cache import Decoded, cached, fingerprint
from perdure.data.paths import data_root
from perdure.data.published import Completeness, Place, Published, judge, locate
from perdure.data.stream import split_rows
from perdure.errors import BadData
from perdure.types import Split, Task


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


def load(published: Published, root: Path | None = None) -> ImageSet:
    """Find the set in `root` (else $PERDURE_DATA, else the user's cache) and read it, or its decoded copy."""
    place = locate(published, data_root(root))
    found = cached(published.name, place.folder, place.files + place.also, lambda: _decode(published, place))
    tensors, facts = found.tensors, found.facts
    return ImageSet(
        name=published.name,
        train=(tensors["train_x"], tensors["train_y"]),
        test=(tensors["test_x"], tensors["test_y"]),
        classes=tuple(facts["classes"]),
        source=place.layout.name,
        completeness=facts["completeness"],
        reason=facts["reason"],
        notes=facts["notes"],
        fingerprint=facts["fingerprint"],
    )


def task_of_classes(
    name: str,
    images: ImageSet,
    labels: Sequence[int],
    *,
    valid_share: float,
    seed: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Task:
    """A task of some classes of a set; the label of a class within it is its place in `labels`."""
    place = torch.full((len(images.classes),), -1)
    place[list(labels)] = torch.arange(len(labels))
    rows, test = ((place[y] >= 0).nonzero()[:, 0] for _, y in (images.train, images.test))
    if len(rows) == 0 or len(test) == 0:
        numbers = ", ".join(map(str, labels))
        raise BadData(f"task {name!r}: {images.name} has no images of classes {numbers} here; ask for fewer tasks")
    train, valid = (rows[part] for part in split_rows(len(rows), valid_share, seed))

    def split(x: Tensor, y: Tensor, rows: Tensor) -> Split:
        return Split(x.index_select(0, rows), place[y[rows]], mean, std)

    return Task(
        name=name,
        classes=tuple(images.classes[label] for label in labels),
        train=split(*images.train, train),
        valid=split(*images.train, valid),
        test=split(*images.test, test),
    )


def source_notes(sets: Mapping[str, ImageSet]) -> dict[str, str]:
    """What a stream says of the sets it was made from: their sources, and the worst verdict of all."""
    order: tuple[Completeness, ...] = ("complete", "subset", "altered")
    worst = max(sets.values(), key=lambda images: order.index(images.completeness))
    several = len(sets) > 1
    return {
        "source": "; ".join(f"{name}: {s.source}" if several else s.source for name, s in sets.items()),
        "completeness": worst.completeness,
        "reason": f"{worst.name}: {worst.reason}",
        **{f"{name}: {key}" if several else key: text for name, s in sets.items() for key, text in s.notes.items()},
    }


def _decode(published: Published, place: Place) -> Decoded:
    raw = place.layout.read(place.folder)
    if tuple(raw.train[0].shape[1:]) != published.shape:
        raise BadData(
            f"{place.folder}: images are {raw.train[0].shape[1:]}, those of {published.title} are {published.shape}"
        )
    completeness, reason = judge(published, place, raw)
    tensors = {}
    for part, (x, y) in (("train", raw.train), ("test", raw.test)):
        tensors[f"{part}_x"] = torch.from_numpy(np.ascontiguousarray(x))
        tensors[f"{part}_y"] = torch.from_numpy(np.ascontiguousarray(y))
    facts = {
        "classes": raw.classes or published.classes,
        "completeness": completeness,
        "reason": reason,
        "notes": dict(raw.notes),
        "fingerprint": fingerprint(tensors.values()),
    }
    return Decoded(tensors, facts)
