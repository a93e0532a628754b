"""FS-DGPM: Flattening Sharpness for Dynamic Gradient Projection Memory (Deng, Chen, Hao, Wang, Huang, NeurIPS 2021).

Climb to worse weights inside the remembered directions and take the gradient of new and replayed images there, so that
old tasks end in flat places; the same gradient teaches each direction how important it is. Then project the step away
from the directions, from each as much as it is important.
"""

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from perdure.memory.bank import TensorBank
from perdure.memory.replay_buffer import Capacity, ReservoirBuffer, join
from perdure.methods.gpm import GPM
from perdure.methods.method import Need
from perdure.nets.network import Network
from perdure.ops.algebra import clip, waits
from perdure.ops.soft import soft_part
from perdure.ops.subspace import extend
from perdure.ops.uphill import Nearby, Thin, Thinning, Uphill, total
from perdure.schema import Count, Positive, Reading, Share, Weight
from perdure.types import Batch, Gradient, Lesson, Weights


@dataclass(frozen=True)
class Climb:
    """Points met on the way up, one per piece of the batch."""

    points: list[Nearby]  # fast weights
    losses: list[Tensor]  # of new and replayed images there


class FSDGPM(GPM):
    may_need: ClassVar[frozenset[Need]] = frozenset({"task-identity", "stored-data"})
    remembers: ClassVar[tuple[str, ...]] = ("slowing", "filling", "attached")

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
        variant: Reading = "intended",  # released: λ loses its optimizer after its first step, and stays at 1
    ) -> None:
        super().__init__(net, threshold=threshold, threshold_step=threshold_step, samples=samples)
        self.look_ahead = look_ahead
        self.soft_rate = soft_rate
        self.soft_momentum = soft_momentum
        self.sharpness = sharpness
        self.limit = limit
        self.pieces = pieces
        self.second_order = second_order
        self.learn_norms = learn_norms
        self.reading = variant
        self.replay = ReservoirBuffer(memory)
        self.importance, self.speed = TensorBank(), TensorBank()  # λ and its momentum, by layer
        self.slowing, self.filling, self.attached = 1.0, False, True

    def begin(self, lesson: Lesson) -> None:  # noqa: ARG002
        self.speed.clear()
        self.importance.clear()
        for layer, basis in self.memory.items():
            self.importance[layer] = basis.new_ones(basis.shape[1])
        self.slowing, self.attached = 1.0, True

    def epoch(self, epoch: int, of: int, slowing: float) -> None:  # noqa: ARG002
        """Both rates follow that of the weights. The released code makes new optimizers when they drop."""
        if slowing < self.slowing and self.reading == "released":
            self.speed.clear()
            self.attached = True
        self.slowing, self.filling = slowing, epoch == 0

    def gradient(self, batch: Batch) -> Gradient:
        weights = self.trainable()
        importance = {layer: values.detach().requires_grad_() for layer, values in self.importance.items()}
        joint = join(batch, self.replay.sample(len(batch))) if self.replay.held else batch
        thinning = Thinning(weights)
        loss = torch.stack(self.climb(batch, joint, thinning, importance).losses).mean()
        wanted = {**weights, **{f"λ {layer}": values for layer, values in importance.items()}}
        slopes = thinning.grad(loss, wanted).whole()
        gradient = clip({name: slope for name, slope in slopes.items() if name in weights}, self.limit)
        self.learn_importance({layer: slopes[f"λ {layer}"] for layer in importance})
        if self.filling:  # each image passes by the reservoir once
            self.replay.add(batch)
        return self.project(gradient)

    def climb(self, batch: Batch, joint: Batch, thinning: Thinning, importance: Weights) -> Climb:
        """Up the loss of one piece of the batch after another."""
        point, climb = Nearby(self.trainable(), {}), Climb([], [])
        for piece in pieces(batch, self.pieces):
            with thinning, point.moved():
                loss = self.loss(piece, point.weights)
            point = self.above(point, thinning.grad(loss, point.weights, self.second_order), importance)
            thinning.watch({name: point.weights[name] for name in point.thin})  # the others depend on the way here
            climb.points.append(point)
            with point.moved():
                climb.losses.append(self.loss(joint, point.weights))
        return climb

    def above(self, point: Nearby, uphill: Uphill, importance: Weights) -> Nearby:
        """A step uphill, no entry longer than the limit; on later tasks only inside the remembered directions, along
        each as much as it is important. Of δᵀa it is enough to have a inside."""
        bases, names, rate = dict(self.memory.items()), self.net.weight_names(), self.look_ahead * self.slowing
        full = uphill.full | soft_part(uphill.full, bases, importance, names)
        inputs = {name: product.inputs for name, product in uphill.thin.items()}
        inputs |= soft_part(inputs, bases, importance, names)
        weights, thin = dict(point.weights), dict(point.thin)
        for name, product in uphill.thin.items():
            step = Thin(product.slopes, inputs[name])
            bound = step.bound()
            if waits(bound) or bound > self.limit:  # some entry may have to be cut
                full[name] = step.whole()
                continue
            thin[name] = total([thin[name], step.times(rate)] if name in thin else [step.times(rate)])
            weights[name] = weights[name].view_as(weights[name])  # a gradient here ends here
        for name, slope in full.items():
            if name in thin:
                weights[name] = weights[name] + thin.pop(name).whole()
            weights[name] = weights[name] + rate * slope.clamp(-self.limit, self.limit)
        return Nearby(weights, thin)

    def learn_importance(self, slopes: Gradient) -> None:
        """A step of SGD with momentum, down the same loss, then through a sigmoid."""
        slopes = clip(slopes, self.limit)
        for layer, values in list(self.importance.items()):
            if self.attached:
                past = self.soft_momentum * self.speed[layer] if layer in self.speed else 0.0
                self.speed[layer] = past + slopes[layer]
                values = values - self.soft_rate * self.slowing * self.speed[layer]
            self.importance[layer] = torch.sigmoid(self.sharpness * values)
        self.attached = self.attached and self.reading == "intended"

    def project(self, gradient: Gradient, done: Container[str] = ()) -> Gradient:  # noqa: ARG002 — nothing is done before
        """Away from the remembered directions, from each as much as it is important."""
        if len(self.memory) == 0:
            return gradient
        moving = gradient if self.learn_norms else {name: s for name, s in gradient.items() if s.ndim > 1}
        inside = soft_part(moving, dict(self.memory.items()), dict(self.importance.items()), self.net.weight_names())
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
        bases = self.memory.bytes() + self.importance.bytes() + self.speed.bytes()
        return {"bases": bases, "replay": self.replay.bytes()}

    def facts(self) -> dict[str, Any]:
        means = {layer: float(values.mean()) for layer, values in self.importance.items() if len(values)}
        return {**super().facts(), "images_held": self.replay.counts(), "mean_importance": means}


def pieces(batch: Batch, count: int) -> list[Batch]:
    """A batch cut evenly, in order; into fewer pieces where some would have one image, which has no statistics."""
    spans = torch.arange(len(batch)).tensor_split(max(min(count, len(batch) // 2), 1))
    whose = batch.task
    return [Batch(batch.x[at], batch.y[at], whose if isinstance(whose, int) else whose[at]) for at in spans]
