"""Outliers among training data: rows whose label or image is not what it should be."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from perdure.errors import UnknownName, WrongValue
from perdure.ops.corruptions import KINDS, SEVERITIES, corrupt
from perdure.types import Split

OutlierKind = Literal["labels", "corrupted", "adversarial", "foreign"]
Adversary = Callable[[Tensor, Tensor], Tensor]
"""Pixels in [0, 1] and labels to moved pixels."""

BATCH = 64  # rows that are changed together
VISIBLE = tuple(kind for kind in KINDS if kind != "saturation")  # which leaves grey images as they are: no outliers


def contaminate(
    split: Split,
    kind: OutlierKind,
    rate: float,
    *,
    classes: int,
    rng: torch.Generator,
    foreign: Tensor | None = None,  # images, uint8 or in [0, 1], for the kind of that name
    adversary: Adversary | None = None,
) -> Split:
    """The split with round(rate · n) rows made outliers; the split that was given stays as it is.

    - labels: a wrong label, each of the others as likely
    - corrupted: the image corrupted at random, as severely as it gets
    - adversarial: the image as the adversary moves it
    - foreign: a random foreign image in its place

    Of one state of `rng`, the rows of a lower rate are among those of a higher one, and the same happens to them, so
    that rates compare. An adversary is therefore asked once, for the chosen rows in the order in which they were drawn
    and enough rows after them to fill the last batch of 64; it has to go by such batches.
    """
    _check(kind, rate, classes, split, foreign, adversary)
    count = round(rate * len(split))
    if count == 0:
        return split
    order = torch.randperm(len(split), generator=rng)
    rows = order[:count].to(split.y.device)
    if kind == "labels":
        further, y = torch.randint(1, classes, (len(split),), generator=rng)[:count].to(split.y.device), split.y.clone()
        y[rows] = (y[rows] + further) % classes
        return replace(split, y=y)
    if kind == "foreign":
        assert foreign is not None
        strange = foreign[torch.randint(len(foreign), (len(split),), generator=rng)[:count].to(foreign.device)]
    elif kind == "adversarial":
        assert adversary is not None
        strange = _moved(split, order, count, adversary)
    else:
        strange = _corrupted(split, order, count, rng)
    x = split.x.clone()
    x[rows] = _stored(strange, x)
    return replace(split, x=x)


def outlier_rows(clean: Split, dirty: Split) -> Tensor:
    """The rows (k,) in which two splits differ, by image or label."""
    if clean.x.shape != dirty.x.shape:
        raise WrongValue(f"splits of {tuple(clean.x.shape)} and {tuple(dirty.x.shape)} have no rows to compare")
    return ((clean.x != dirty.x).flatten(1).any(1) | (clean.y != dirty.y)).nonzero()[:, 0]


def _moved(split: Split, order: Tensor, count: int, adversary: Adversary) -> Tensor:
    rows = order[: -(-count // BATCH) * BATCH].to(split.y.device)
    moved = adversary(split.pixels(rows), split.y[rows])
    if moved.shape != (len(rows), *split.x.shape[1:]):
        raise WrongValue(
            f"the adversary gave images of {tuple(moved.shape)} for {len(rows)} of {tuple(split.x.shape[1:])}; "
            "it must keep their shape"
        )
    return moved.detach()[:count]


def _corrupted(split: Split, order: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Batch by batch, the last one whole, so that the draws for a row do not depend on how many rows are wanted."""
    done = []
    for start in range(0, count, BATCH):
        x = split.pixels(order[start : start + BATCH].to(split.x.device))  # a copy, of chosen rows
        drawn = torch.randint(len(VISIBLE), (len(x),), generator=rng)
        for number in sorted(set(drawn.tolist())):
            alike = (drawn == number).nonzero()[:, 0].to(x.device)
            x[alike] = corrupt(x[alike], VISIBLE[number], SEVERITIES[-1], rng)
        done.append(x)
    return torch.cat(done)[:count]


def _stored(strange: Tensor, like: Tensor) -> Tensor:
    """Images in the form in which a split keeps its own."""
    if strange.dtype == torch.uint8:
        return strange.to(like.device) if like.dtype == torch.uint8 else strange.to(like) / 255
    if float(strange.min()) < 0 or float(strange.max()) > 1:
        reach = f"from {float(strange.min()):.4g} to {float(strange.max()):.4g}"
        raise WrongValue(f"outliers must be pixels in [0, 1], these reach {reach}; give them unnormalized")
    return (255 * strange).round().to(like) if like.dtype == torch.uint8 else strange.to(like)


def _check(
    kind: str, rate: float, classes: int, split: Split, foreign: Tensor | None, adversary: Adversary | None
) -> None:
    if kind not in get_args(OutlierKind):
        raise UnknownName("kind of outliers", kind, get_args(OutlierKind))
    if not 0 <= rate <= 1:
        raise WrongValue(f"rate={rate} is not allowed; use a share of the images, from 0 to 1")
    if kind == "labels" and classes < 2:
        raise WrongValue("wrong labels need two classes or more; this task has one")
    if kind == "adversarial" and adversary is None:
        raise WrongValue("adversarial outliers need an adversary; give a function of pixels and labels")
    if kind == "foreign":
        shape = tuple(split.x.shape[1:])
        if foreign is None or len(foreign) == 0:
            raise WrongValue(f"foreign outliers need foreign images; give some of the shape {shape}")
        if tuple(foreign.shape[1:]) != shape:
            raise WrongValue(f"foreign images are {tuple(foreign.shape[1:])}; they must be {shape} like the others")
