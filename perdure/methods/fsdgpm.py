"""FS-DGPM: Flattening Sharpness for Dynamic Gradient Projection Memory (Deng, Chen, Hao, Wang, Huang, NeurIPS 2021).

Ascend to worse weights inside the remembered directions and take the gradient of new and replayed images there, so that
old tasks end in flat places; the same gradient teaches each direction how important it is. Then project the step away
from the directions, from each as much as it is important.
"""

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from perdure.memory.bank import TensorBank
from perdure.memory.replay_buffer import Capacity, ReservoirBuffer, join
from perdure.methods.gpm import GPM
from perdure.methods.method import Need, Shared
from perdure.nets.network import Network
from perdure.ops.gradients import ascent_grad, clip, grad
from perdure.ops.soft_projection import parts_inside
from perdure.ops.subspace import extend
from perdure.schema import Count, Positive, Reading, Share, Weight
from perdure.types import Batch, EpochStart, Gradient, Lesson, Weights


class FSDGPM(GPM):
    may_need: ClassVar[frozenset[Need]] = frozenset({"task-identity", "stored-data"})
    state_attributes: ClassVar[tuple[str, ...]] = ("lr_scale", "filling", "attached")
    protects = ("linear", "conv")

    def __init__(
        self,
        net: Network,
        *,
        threshold: Share = 0.97,  # ε: share of each layer's input energy that is protected
        threshold_step: Share = 0.003,  # what ε gains with each task
        samples: Count = 125,  # n: replayed images whose layer inputs are remembered
        memory: Capacity = 1000,  # m: past images held for replay, over all tasks
        look_ahead: Weight = 0.001,  # η₁: size of a step uphill
        soft_rate: Weight = 0.01,  # η₂: learning rate of the importance λ of each direction
        soft_momentum: Share = 0.9,  # momentum of λ
        sharpness: Positive = 10.0,  # after each of its steps, λ becomes sigmoid(sharpness · λ)
        limit: Positive = 2.0,  # bound of each entry of a step uphill, and of the norms of both gradients
        pieces: Count = 2,  # steps uphill, each on its own piece of the batch
        second_order: bool = True,  # whether the gradient knows how the steps uphill depend on the weights
        learn_norms: bool = False,  # whether biases and batch norms learn on after the first task, as released
        variant: Reading = "released",  # λ loses its optimizer after one step and stays at 1; intended: it does not
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(net, threshold=threshold, threshold_step=threshold_step, samples=samples, **shared)
        self.look_ahead = look_ahead
        self.soft_rate, self.soft_momentum = soft_rate, soft_momentum
        self.sharpness = sharpness
        self.limit = limit
        self.pieces = pieces
        self.second_order, self.learn_norms = second_order, learn_norms
        self.variant = variant
        self.replay = ReservoirBuffer(memory, scaled=self.perturbs)
        self.importance, self.velocity = TensorBank(), TensorBank()  # λ and its momentum, by layer
        self.lr_scale, self.filling, self.attached = 1.0, False, True

    def begin(self, lesson: Lesson) -> None:  # noqa: ARG002
        self.velocity.clear()
        self.importance.clear()
        for layer, basis in self.memory.items():
            self.importance[layer] = basis.new_ones(basis.shape[1])
        self.lr_scale, self.attached = 1.0, True

    def begin_epoch(self, start: EpochStart) -> None:
        """Both rates follow that of the weights. The released code makes new optimizers when they drop."""
        if start.lr_scale < self.lr_scale and self.variant == "released":
            self.velocity.clear()
            self.attached = True
        self.lr_scale, self.filling = start.lr_scale, start.epoch == 0

    def gradient(self, batch: Batch) -> Gradient:
        weights = self.trainable()
        importance = {layer: values.detach().requires_grad_() for layer, values in self.importance.items()}
        joint = join(batch, self.attacked(self.replay.sample(len(batch)))) if self.replay.held else batch
        loss = torch.stack(self.losses_uphill(batch, joint, importance)).mean()
        gradient = grad(loss, {**weights, **{f"λ {layer}": values for layer, values in importance.items()}})
        importance_grad = {layer: gradient.pop(f"λ {layer}") for layer in importance}
        gradient = clip(gradient, self.limit)
        self.learn_importance(importance_grad)
        if self.filling:  # each image passes by the reservoir once
            self.replay.add(batch)
        return self.project(gradient)

    def losses_uphill(self, batch: Batch, joint: Batch, importance: Weights) -> list[Tensor]:
        """Up the loss of one piece of the batch after another; after each step, the loss of all images there."""
        weights: Weights = self.trainable()
        losses = []
        for piece in split(batch, self.pieces):
            uphill = ascent_grad(self.loss(piece, weights), weights, self.second_order)
            weights = self.ascend(weights, uphill, importance)
            losses.append(self.loss(joint, weights))
        return losses

    def ascend(self, weights: Weights, gradient: Gradient, importance: Weights) -> Weights:
        """A step uphill, no entry longer than the limit; on later tasks only inside the remembered directions, along
        each as much as it is important."""
        inside = self.inside(gradient, importance)
        steps = {name: inside.get(name, g).clamp(-self.limit, self.limit) for name, g in gradient.items()}
        rate = self.look_ahead * self.lr_scale
        return {**weights, **{name: weights[name] + rate * step for name, step in steps.items()}}

    def inside(self, gradient: Gradient, importance: Weights) -> Gradient:
        return parts_inside(gradient, dict(self.memory.items()), importance, self.net.weight_names())

    def learn_importance(self, gradient: Gradient) -> None:
        """A step of SGD with momentum, down the same loss, then through a sigmoid."""
        gradient = clip(gradient, self.limit)
        for layer, values in list(self.importance.items()):
            if self.attached:
                past = self.soft_momentum * self.velocity[layer] if layer in self.velocity else 0.0
                self.velocity[layer] = past + gradient[layer]
                values = values - self.soft_rate * self.lr_scale * self.velocity[layer]
            self.importance[layer] = torch.sigmoid(self.sharpness * values)
        self.attached = self.attached and self.variant == "intended"

    def project(self, update: Gradient) -> Gradient:
        """Away from the remembered directions, from each as much as it is important."""
        moving = update if self.learn_norms else self.allowed(update)
        inside = self.inside(moving, dict(self.importance.items()))
        return {**moving, **{name: moving[name] - part for name, part in inside.items()}}

    def end(self, lesson: Lesson) -> None:
        """All bases anew, from images of all tasks: the fewest directions that reach the threshold."""
        threshold = self.threshold_after(lesson)
        kept = self.replay if self.replay.held > 1 else lesson  # one image has no statistics
        for layer, found in self.representations(kept.sample(self.samples)).items():
            self.memory[layer] = extend(found.new_empty(len(found), 0), found, threshold)

    def needs(self) -> frozenset[Need]:
        return self.may_need if self.replay.capacity else GPM.may_need

    def memory_bytes(self) -> dict[str, int]:
        bases = self.memory.bytes() + self.importance.bytes() + self.velocity.bytes()
        return {"bases": bases, "replay": self.replay.bytes()}

    def facts(self) -> dict[str, Any]:
        means = {layer: float(values.mean()) for layer, values in self.importance.items() if len(values)}
        return {**super().facts(), "images_held": self.replay.counts(), "mean_importance": means}


def split(batch: Batch, count: int) -> list[Batch]:
    """A batch cut evenly, in order; into fewer pieces where some would have one image, which has no statistics."""
    rows = torch.arange(len(batch)).tensor_split(max(min(count, len(batch) // 2), 1))
    task = batch.task
    return [Batch(batch.x[at], batch.y[at], task if isinstance(task, int) else task[at]) for at in rows]
