"""Augmentation: training images are changed at random, and no others.

An augmentation takes a batch of images (n, channels, height, width) with pixels in [0, 1], before they are normalized,
and returns one of the same shape. It draws from torch's global generators, which the loop runs on a stream of their
own, so that runs repeat and resume bit for bit. Evaluation, attacks, the images that bases and Fisher information are
taken from, and those that replay buffers keep never see it.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure import registry
from perdure.errors import WrongValue
from perdure.train.plan import Plan

Augmentation = Callable[[Tensor], Tensor]
MARGIN = 4  # pixels by which a crop may be off, as is usual for images of 32


def flip(pixels: Tensor) -> Tensor:
    """Each image mirrored left to right, or not."""
    mirrored = torch.rand(len(pixels), device=pixels.device) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), pixels.flip(3), pixels)


def crop(pixels: Tensor) -> Tensor:
    """Each image moved by up to four pixels in both directions; what comes in from outside is black."""
    n, channels, height, width = pixels.shape
    padded = F.pad(pixels, (MARGIN,) * 4)
    top, left = torch.randint(2 * MARGIN + 1, (2, n, 1), device=pixels.device)
    rows, columns = (start + torch.arange(size, device=pixels.device) for start, size in ((top, height), (left, width)))
    image, channel = torch.arange(n, device=pixels.device), torch.arange(channels, device=pixels.device)
    return padded[image.view(-1, 1, 1, 1), channel.view(1, -1, 1, 1), rows[:, None, :, None], columns[:, None, None]]


def resolve(plan: Plan) -> Augmentation | None:
    """What a plan's `augment` stands for: names, or a function of one's own, whose results are checked."""
    if not isinstance(plan.augment, str):
        return partial(_checked, plan.augment)
    chosen = [partial(_checked, registry.augmentations.load(name)) for name in plan.augmentations()]
    return partial(_in_turn, chosen) if chosen else None


def _in_turn(augmentations: Sequence[Augmentation], pixels: Tensor) -> Tensor:
    for augment in augmentations:
        pixels = augment(pixels)
    return pixels


def _checked(augment: Augmentation, pixels: Tensor) -> Tensor:
    changed = augment(pixels)
    if not isinstance(changed, Tensor) or (changed.shape, changed.dtype) != (pixels.shape, pixels.dtype):
        found = f"{changed.dtype} {tuple(changed.shape)}" if isinstance(changed, Tensor) else type(changed).__name__
        raise WrongValue(
            f"the augmentation made {found} of images {pixels.dtype} {tuple(pixels.shape)}; "
            "it has to keep their shape and type"
        )
    return changed
