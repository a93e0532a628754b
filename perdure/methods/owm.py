"""OWM: Orthogonal Weights Modification (Zeng, Chen, Cui, Yu, Nature Machine Intelligence 2019).

Every layer keeps a projector that starts as the identity and, batch after batch, shrinks along the inputs that the
layer receives. Gradients are multiplied by it, so that a step moves the weights where past inputs have not been.
"""

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from perdure.memory.bank import TensorBank
from perdure.methods.method import Method, Shared
from perdure.nets.network import Network
from perdure.ops.gradients import Projection, clip, project, projected_grad
from perdure.ops.layers import Layer, LayerInput, columns, layer_inputs
from perdure.ops.rls import update
from perdure.schema import Count, Positive
from perdure.types import Batch, EpochStart, Gradient, Lesson


class OWM(Method):
    protects = ("linear", "conv")
    state_attributes: ClassVar[tuple[str, ...]] = ("first", "images", "epochs", "of", "fallen", "seen")

    def __init__(
        self,
        net: Network,
        *,
        regularizer: Positive = 1.0,  # α: resistance of a projector to its inputs at the start of each lesson
        conv_decay: Positive = 1e-5,  # what α is multiplied by in the course of a lesson, for convolutions
        first_linear_decay: Positive = 1e-4,  # the same for the first linear layer
        linear_decay: Positive = 1e-2,  # the same for later linear layers
        patch_stride: Count | None = None,  # of the patches a convolution's projector sees; none: the layer's own
        clip: Positive = 10.0,  # largest norm of the projected gradient
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(net, **shared)
        self.regularizer = regularizer
        self.conv_decay = conv_decay
        self.first_linear_decay = first_linear_decay
        self.linear_decay = linear_decay
        self.patch_stride = patch_stride
        self.clip = clip
        self.projectors = TensorBank()  # layer → P (d, d), never reset
        self.first, self.images = True, 1  # of the lesson at hand: is it the first, and how many images has it
        self.epochs, self.of, self.fallen = 0, 1, 0.0  # epochs done, of how many, and of the drops of the rate
        self.seen = 0  # images, in this epoch

    def begin(self, lesson: Lesson) -> None:
        self.first, self.images = lesson.index == 0, len(lesson)
        self.begin_epoch(EpochStart(0, 1))

    def begin_epoch(self, start: EpochStart) -> None:
        self.epochs, self.of, self.fallen, self.seen = start.epoch, start.epochs, start.fallen, 0

    def gradient(self, batch: Batch) -> Gradient:
        loss, inputs = self.loss_and_inputs(batch)
        self.update_projectors(inputs)
        self.seen += len(batch)
        gradient = projected_grad(loss, self.trainable(), self.projections())
        return clip(self.allowed(gradient), self.clip)

    def project(self, update: Gradient) -> Gradient:
        return self.allowed(project(update, self.projections()))

    def loss_and_inputs(self, batch: Batch) -> tuple[Tensor, dict[str, LayerInput]]:
        """The loss and the inputs of every layer, from one forward."""
        losses: list[Tensor] = []
        inputs = layer_inputs(self.net.backbone, lambda: losses.append(self.loss(batch)))
        return losses[0], inputs

    def projections(self) -> dict[str, Projection]:
        """G ← G P. Heads are free."""
        names = self.net.weight_names()
        return {names[layer]: partial(_times, projector=projector) for layer, projector in self.projectors.items()}

    def allowed(self, gradient: Gradient) -> Gradient:
        """Biases, norms and whatever else no projector protects move in lesson one only."""
        fixed = set[str]() if self.first else self.fixed()
        return {name: g for name, g in gradient.items() if name not in fixed}

    def update_projectors(self, inputs: dict[str, LayerInput]) -> None:
        """Shrink every projector along the mean input of the batch; α falls from α₀ to α₀ c in the course of a lesson,
        so that early batches, met by weights that still change, count for little."""
        done = EpochStart(self.epochs, self.of, fallen=self.fallen).progress(self.seen / self.images)  # τ
        decays = self.decays()
        for name in self.layers():
            if name not in inputs:  # a layer that this batch did not pass
                continue
            found = inputs[name]
            r = self.patches(torch.cat(found.x).mean(0, keepdim=True), found.layer)
            old = self.projectors.get(name)
            old = torch.eye(len(r), dtype=torch.float64, device=r.device) if old is None else old
            self.projectors[name] = update(old, r, self.regularizer * decays[name] ** done, out=old)

    def decays(self) -> dict[str, float]:
        """Layer → c."""
        found: dict[str, float] = {}
        linear = self.first_linear_decay
        for name, layer in self.layers().items():
            if layer.kind == "linear":
                found[name], linear = linear, self.linear_decay
            else:
                found[name] = self.conv_decay
        return found

    def patches(self, x: Tensor, layer: Layer) -> Tensor:
        """What the layer's weight rows meet in an input, as columns (d, positions)."""
        if self.patch_stride is not None and layer.kind == "conv":
            layer = replace(layer, stride=(self.patch_stride,) * len(layer.stride))
        return columns(x, layer)

    def memory_bytes(self) -> dict[str, int]:
        return {"bases": self.projectors.bytes()}

    def facts(self) -> dict[str, Any]:
        """Layer → mean eigenvalue of its projector: the share of its directions that is still free."""
        return {"free": {name: float(p.diagonal().mean()) for name, p in self.projectors.items()}}


def _times(gradient: Tensor, projector: Tensor) -> Tensor:
    return (gradient.flatten(1) @ projector.to(gradient)).view_as(gradient)
