"""TRGP: Trust Region Gradient Projection (Lin, Yang, Fan, Zhang, ICLR 2022).

GPM forbids a new task every direction that old tasks use, even where they would help each other. TRGP finds, layer by
layer, the old tasks whose directions hold much of the new task's gradient, and lets the new task use their part of the
weights again, multiplied by a scale matrix of its own: nothing in the shared weights moves for it.
"""

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from perdure.memory.bank import TensorBank
from perdure.methods.gpm import GPM
from perdure.methods.method import Shared
from perdure.nets.network import Network
from perdure.ops.gradients import grad
from perdure.ops.subspace import extend
from perdure.ops.trust_region import joint_space, related, scaled, scaled_by_inputs
from perdure.schema import Count, Reading, Share
from perdure.types import Gradient, Lesson, Weights


class TRGP(GPM):
    state_attributes: ClassVar[tuple[str, ...]] = ("learning",)
    protects = ("linear", "conv")

    def __init__(
        self,
        net: Network,
        *,
        threshold: Share = 0.97,  # ε: share of each layer's input energy that is protected
        threshold_step: Share = 0.003,  # what ε gains with each task
        samples: Count = 125,  # n: training images whose layer inputs are remembered
        related: Count = 2,  # K: old tasks, at most, that a layer may use again
        trust: Share = 0.5,  # share of the gradient's length an old task must hold; the paper calls it ε, too
        trust_samples: Count = 125,  # training images whose gradient is measured for that
        learn_norms: bool = False,  # whether biases and batch norms learn on after the first task, as on CIFAR-100
        variant: Reading = "released",  # intended: without the slips of the released code
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(net, threshold=threshold, threshold_step=threshold_step, samples=samples, **shared)
        self.related = related
        self.trust = trust
        self.trust_samples = trust_samples
        self.learn_norms = learn_norms
        self.variant = variant
        self.spaces = TensorBank()  # lesson, layer → B (d, k), the lesson's own space
        self.scales = TensorBank()  # task, lesson, layer → S (k, k), by which a learned task scales that space
        self.live = TensorBank(trainable=True)  # lesson, layer → S of the lesson at hand
        self.learning: tuple[int, ...] = ()  # the tasks of the lesson at hand

    def begin(self, lesson: Lesson) -> None:
        """Choose the related lessons of every layer by the plain network's gradient; scales start as identities."""
        self.learning = tuple(part.task for part in lesson.parts)
        self.live.clear()
        if len(self.memory) == 0:
            return
        self.eval()
        plain = super().trainable()
        gradient = grad(self.loss(lesson.sample(self.trust_samples), plain), plain)
        for layer, name in self.net.weight_names().items():
            if (g := gradient.get(name)) is None:  # a layer that these images did not pass
                continue
            spaces = {old: self.spaces[old, layer] for old in range(lesson.index) if (old, layer) in self.spaces}
            for old in related(g, spaces, self.related, self.trust):
                self.live[old, layer] = g.new_ones(spaces[old].shape[1]).diag()

    def trainable(self) -> dict[str, nn.Parameter]:
        return {**super().trainable(), **{f"live.{name}": scale for name, scale in self.live.named_parameters()}}

    def weights(self, task: int | None = None) -> Weights:
        """W + Σ W B (S − I) Bᵀ, with the scales of the task; the lesson's at hand for its own tasks."""
        weights, names = dict(super().weights(task)), self.net.weight_names()
        scale = scaled_by_inputs if self.training else scaled
        changed = {names[layer]: scale(weights[names[layer]], pairs) for layer, pairs in self.spaces_of(task).items()}
        return {**weights, **changed}

    def spaces_of(self, task: int | None) -> dict[str, list[tuple[Tensor, Tensor]]]:
        """Layer → the spaces that the task uses again, each with its scale (B, S)."""
        if task is None or task in self.learning:
            scales = dict(self.live.by_parts())
        else:
            scales = {key[1:]: scale for key, scale in self.scales.by_parts() if key[0] == str(task)}
        by_layer: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for (old, layer), scale in scales.items():
            by_layer.setdefault(layer, []).append((self.spaces[old, layer], scale))
        return by_layer

    def allowed(self, gradient: Gradient) -> Gradient:
        """As GPM, unless norms are to learn on: the released script of CIFAR-100 leaves batch norm free."""
        return gradient if self.learn_norms else super().allowed(gradient)

    def end(self, lesson: Lesson) -> None:
        """Freeze the scales; find the task's own space; add what is new in it to the memory. The released code looks at
        layer inputs without the scales, and leaves the strongest new direction out of the memory."""
        scales = {key: scale.detach() for key, scale in self.live.by_parts()}
        if self.variant == "released":
            self.live.clear()
        inputs = self.representations(lesson.sample(self.samples))
        self.live.clear()
        self.learning = ()
        for part in lesson.parts:
            for key, scale in scales.items():
                self.scales[part.task, *key] = scale.clone()
        threshold = self.threshold_after(lesson)
        for layer, representation in inputs.items():
            basis = self.memory.get(layer)
            if basis is None:
                self.memory[layer] = own = extend(None, representation, threshold)
            else:
                own, new = joint_space(basis, representation, threshold)
                self.memory[layer] = torch.cat([basis, new[:, 1:] if self.variant == "released" else new], dim=1)
            self.spaces[lesson.index, layer] = own.clone()

    def memory_bytes(self) -> dict[str, int]:
        return {"bases": self.memory.bytes() + self.spaces.bytes(), "scales": self.scales.bytes() + self.live.bytes()}

    def facts(self) -> dict[str, Any]:
        """Besides the basis: task → layer → the lessons it leans on."""
        leaning: dict[str, dict[str, list[int]]] = {}
        for (task, old, layer), _ in self.scales.by_parts():
            leaning.setdefault(task, {}).setdefault(layer, []).append(int(old))
        return {**super().facts(), "related": leaning}
