"""TRGP: Trust Region Gradient Projection (Lin, Yang, Fan, Zhang, ICLR 2022).

GPM forbids a new task every direction that old tasks use, even where they would help each other. TRGP finds, layer by
layer, the old tasks whose directions hold much of the new task's gradient, and lets the new task use their part of the
weights again, multiplied by a scale matrix of its own: nothing in the shared weights moves for it.
"""

from collections.abc import Container
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from perdure import fast
from perdure.memory.bank import TensorBank
from perdure.methods.gpm import GPM
from perdure.nets.network import Network, Output
from perdure.ops.subspace import extend
from perdure.ops.trust_region import Rescaling, joint_space, related, scaled
from perdure.ops.uphill import Factoring
from perdure.schema import Count, Reading, Share
from perdure.types import Gradient, Lesson, TaskIds, Weights


class TRGP(GPM):
    remembers: ClassVar[tuple[str, ...]] = ("learning", "linear")

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
        variant: Reading = "intended",  # follow the paper, or the slips of the released code as well
    ) -> None:
        super().__init__(net, threshold=threshold, threshold_step=threshold_step, samples=samples)
        self.related = related
        self.trust = trust
        self.trust_samples = trust_samples
        self.reading = variant
        self.spaces = TensorBank()  # "lesson/layer" → B (d, k), the lesson's own space
        self.scales = TensorBank()  # "task/lesson/layer" → S (k, k), by which a learned task scales that space
        self.live = TensorBank(trainable=True)  # "lesson/layer" → S of the lesson at hand
        self.learning: tuple[int, ...] = ()  # the tasks of the lesson at hand
        self.linear: tuple[str, ...] = ()  # layers whose weights nothing but linear layers read

    def begin(self, lesson: Lesson) -> None:
        """Choose the related lessons of every layer by the plain network's gradient; scales start as identities."""
        self.learning = tuple(part.task for part in lesson.parts)
        self.live.clear()
        if len(self.memory) == 0:
            return
        self.eval()
        plain = super().trainable()
        layers = {layer: plain[name] for layer, name in self.net.weight_names().items()}
        with Factoring(layers) as factoring:
            loss = self.loss(lesson.sample(self.trust_samples), plain)
        found = factoring.grad(loss, layers)
        self.linear, slopes = tuple(found.thin), found.whole()
        for layer, slope in ((layer, slopes[layer]) for layer in layers if layer in slopes):
            spaces = {old: self.spaces[f"{old}/{layer}"] for old in range(lesson.index)}
            for old in related(slope, spaces, self.related, self.trust):
                self.live[f"{old}/{layer}"] = slope.new_ones(spaces[old].shape[1]).diag()

    def trainable(self) -> dict[str, nn.Parameter]:
        return {**super().trainable(), **{f"live.{name}": scale for name, scale in self.live.named_parameters()}}

    def weights(self, task: int | None = None) -> Weights:
        """W + Σ W B (S − I) Bᵀ, with the scales of the task; the lesson's at hand for its own tasks."""
        weights, names = super().trainable(), self.net.weight_names()
        spaces = self.spaces_of(task)
        return {**weights, **{names[layer]: scaled(weights[names[layer]], pairs) for layer, pairs in spaces.items()}}

    def spaces_of(self, task: int | None) -> dict[str, list[tuple[Tensor, Tensor]]]:
        """Layer → the spaces that the task uses again, each with its scale (B, S)."""
        if task is None or task in self.learning:
            scales = dict(self.live.items())
        else:
            own = f"{task}/"
            scales = {key.removeprefix(own): scale for key, scale in self.scales.items() if key.startswith(own)}
        by_layer: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for key, scale in scales.items():
            by_layer.setdefault(key.partition("/")[2], []).append((self.spaces[key], scale))
        return by_layer

    def forward(self, x: Tensor, task: TaskIds, weights: Weights | None = None, quiet: bool = False) -> Output:
        """While it learns, with weights that change in every step, linear layers scale what they read instead."""
        if weights is not None or not self.training or not fast.on("scales"):
            return super().forward(x, task, weights, quiet)
        plain, names = super().trainable(), self.net.weight_names()
        own = self.spaces_of(task if isinstance(task, int) else None)
        spaces = {names[layer]: pairs for layer, pairs in own.items()}
        inputs = {names[layer]: spaces.pop(names[layer]) for layer in self.linear if names[layer] in spaces}
        with Rescaling(plain, inputs):
            others = {name: scaled(plain[name], pairs) for name, pairs in spaces.items()}
            return super().forward(x, task, {**plain, **others}, quiet)

    def project(self, gradient: Gradient, done: Container[str] = ()) -> Gradient:
        """As GPM; scales are free. The released code leaves batch norm free as well."""
        if self.reading == "released":
            return self.memory.project(gradient, self.not_yet(done))
        return super().project(gradient, done)

    def end(self, lesson: Lesson) -> None:
        """Freeze the scales; find the task's own space; add what is new in it to the memory. The released code looks at
        layer inputs without the scales, and leaves the strongest new direction out of the memory."""
        scales = {key: scale.detach() for key, scale in self.live.items()}
        if self.reading == "released":
            self.live.clear()
        inputs = self.representations(lesson.sample(self.samples))
        self.live.clear()
        self.learning = ()
        for part in lesson.parts:
            for key, scale in scales.items():
                self.scales[f"{part.task}/{key}"] = scale.clone()
        threshold = self.threshold_after(lesson)
        for layer, representation in inputs.items():
            basis = self.memory.get(layer)
            if basis is None:
                self.memory[layer] = own = extend(None, representation, threshold)
            else:
                own, new = joint_space(basis, representation, threshold)
                self.memory[layer] = torch.cat([basis, new[:, 1:] if self.reading == "released" else new], dim=1)
            self.spaces[f"{lesson.index}/{layer}"] = own.clone()

    def memory_bytes(self) -> dict[str, int]:
        return {"bases": self.memory.bytes() + self.spaces.bytes(), "scales": self.scales.bytes() + self.live.bytes()}

    def facts(self) -> dict[str, Any]:
        """Besides the basis: task → layer → the lessons it leans on."""
        leaning: dict[str, dict[str, list[int]]] = {}
        for key in self.scales:
            task, old, layer = key.split("/", 2)
            leaning.setdefault(task, {}).setdefault(layer, []).append(int(old))
        return {**super().facts(), "related": leaning}
