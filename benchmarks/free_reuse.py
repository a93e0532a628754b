"""A trial of free adversarial training: PAT whose attack costs no pass of its own.

    perdure run benchmarks/free_reuse.py:FreeReuse six

The backward pass that gives the gradient of the weights gives that of the images, too. Each image keeps its
perturbation from one epoch to the next, moved by one step of the attack with that gradient (Shafahi et al., NeurIPS
2019, who repeat each batch; Zheng et al., CVPR 2020, who keep what an epoch found). So a step has one pass, as GPM's,
where PAT's has two, and the perturbation is of an older network. Values are those of PAT on `six`. Checkpoints do not
hold the perturbations: a run that is resumed draws them anew.
"""

from dataclasses import replace

import torch
from torch import Tensor

from perdure.methods.pat import PAT
from perdure.nets.network import Network
from perdure.ops.attacks import Ball
from perdure.schema import Count, Share, Strength
from perdure.types import Batch, Gradient, Lesson

STEP = 1.25  # of the strength, as in PAT


class FreeReuse(PAT):
    def __init__(
        self,
        net: Network,
        *,
        attack: Strength | None = 4 / 255,  # how far each pixel of a training image may be moved against it
        threshold: Share = 0.95,  # ε: share of each layer's input energy that is protected
        samples: Count = 125,  # n: training images whose layer inputs are remembered
    ) -> None:
        super().__init__(net, attack=attack, threshold=threshold, threshold_step=0.0, samples=samples)
        self.moved: dict[bytes, Tensor] = {}  # image → its pixels as the next epoch takes them

    def begin(self, lesson: Lesson) -> None:
        super().begin(lesson)
        self.moved = {}

    def attacked(self, batch: Batch) -> Batch:
        """As the last epoch left them; at first, a random point of the ball."""
        assert batch.pixels is not None
        assert self.attack is not None
        pixels = batch.pixels.pixels(batch.x)
        start = Ball("linf", self.attack).uniform(pixels, (0, 1), torch.default_generator)
        known = [self.moved.get(key, start[row]) for row, key in enumerate(keys(batch.x))]
        return replace(batch, x=batch.pixels.normalize(torch.stack(known)), original=batch.x)

    def gradient(self, batch: Batch) -> Gradient:
        assert batch.pixels is not None
        assert batch.original is not None
        assert self.attack is not None
        x = batch.x.requires_grad_()
        found = self.projected_grad(self.loss(replace(batch, x=x)), {**self.trainable(), "images": x})
        ball, pixels = Ball("linf", self.attack), batch.pixels.pixels(batch.original)
        moved = batch.pixels.pixels(x.detach()) + STEP * self.attack * ball.steepest(found.pop("images"))
        moved = ball.project(moved, pixels, (0, 1))
        self.moved.update(zip(keys(batch.original), moved, strict=True))
        return found


def keys(x: Tensor) -> list[bytes]:
    """What tells images apart."""
    return [image.numpy().tobytes() for image in x.detach().cpu()]
