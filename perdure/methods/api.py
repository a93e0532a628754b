"""API: Adaptive Plasticity Improvement (Liang and Li, CVPR 2023).

Project gradients away from what old tasks use, as GPM does. Before each new task, measure how much of its gradient is
left; a layer with too little gets new inputs, learned mixtures of those it has, whose weights no old task knows.
"""

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from perdure.memory.bank import TensorBank
from perdure.memory.gradient_memory import DualMemory
from perdure.methods.gpm import GPM
from perdure.methods.method import Shared
from perdure.nets.network import Network
from perdure.ops.expansion import effective, expansion, fresh_columns, patch_norms, retain_ratio, transform, transformed
from perdure.ops.gradients import Projection, grad
from perdure.ops.layers import Layer
from perdure.schema import Count, Reading, Share, Weight
from perdure.types import Batch, Gradient, Lesson, Weights

BATCH = 64  # images at a time when the retain ratio is measured: the papers' batch


class API(GPM):
    state_attributes: ClassVar[tuple[str, ...]] = ("now",)
    protects = ("linear", "conv")
    memory: DualMemory

    def __init__(
        self,
        net: Network,
        *,
        threshold: Share = 0.97,  # ε: share of each layer's input energy that is protected
        threshold_step: Share = 0.003,  # what ε gains with each task
        samples: Count = 125,  # n: training images whose layer inputs are remembered
        floor: Share = 0.5,  # ρ: a layer grows if the projection leaves less than this share of its gradient's length
        growth: Weight = 10.0,  # K: new inputs of a layer for each unit that its share falls short of ρ
        variant: Reading = "released",  # intended: what no sample of the first task showed stays free, too
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(net, threshold=threshold, threshold_step=threshold_step, samples=samples, **shared)
        self.variant = variant
        self.memory = DualMemory(thin=variant == "released")
        self.floor = floor
        self.growth = growth
        self.grown, self.transforms = (
            TensorBank(trainable=True),
            TensorBank(trainable=True),
        )  # E and Φ, by layer and task
        self.ratios = TensorBank()  # layer → share of its gradient that the latest task was left with
        self.now = 0

    # ── before a later task: how much can it learn, and growth where that is too little ─────────────────────

    def begin(self, lesson: Lesson) -> None:
        self.now = min(part.task for part in lesson.parts)
        if len(self.memory) == 0:
            return
        self.measure(lesson)
        layers = self.layers()
        sizes = {name: size for name, layer in layers.items() if (size := self.shortage(name, layer))}
        if sizes:
            found = super().representations(lesson.sample(self.samples))
            for name, size in sizes.items():
                self.grow(name, layers[name], size, found[name])

    def measure(self, lesson: Lesson) -> None:
        """Mean retain ratio of each layer, over one pass through the data without a step."""
        self.train()
        ratios: dict[str, list[Tensor]] = {layer: [] for layer in self.memory.duals()}
        with self.net.kept_statistics():
            for batch in lesson.batches(BATCH, torch.default_generator):
                raw = grad(self.loss(batch), self.trainable())
                left = self.project(raw)
                for layer, found in ratios.items():
                    found.append(retain_ratio(self.side_by_side(raw, layer), self.side_by_side(left, layer)))
        for layer, found in ratios.items():
            self.ratios[layer] = torch.stack(found).mean()

    def shortage(self, name: str, layer: Layer) -> int:
        if layer.groups > 1:  # a mixture of channels would cross the groups
            return 0
        return expansion(float(self.ratios[name]), self.floor, self.growth, layer.weight.shape[1])

    def grow(self, name: str, layer: Layer, size: int, representation: Tensor) -> None:
        """New columns E, a first guess at their inputs Φ, and room for both in the memory."""
        kernel = layer.weight.shape[2:]
        before = sum(self.transforms[old].shape[1] for old in self.growths(name))
        self.grown[name, self.now] = fresh_columns(layer, size, before)
        self.transforms[name, self.now] = transform(patch_norms(representation, kernel), size)
        self.memory.widen(name, size * kernel.numel())

    def growths(self, layer: str, task: int | None = None) -> list[str]:
        """Names of the growths of a layer that a task uses, oldest first: its own and those before it."""
        tasks = sorted(int(of) for (name, of), _ in self.grown.by_parts() if name == layer)
        return [f"{layer}/{of}" for of in tasks if task is None or of <= task]

    # ── the weights, and which way they may move ────────────────────────────────────────────────────────────

    def weights(self, task: int | None = None) -> Weights:
        """W + Σ E Φᵀ over the growths that the task knows; with no task, over all."""
        own = dict(super().weights(task))
        for layer, weight in self.net.weight_names().items():
            names = self.growths(layer, task)
            own[weight] = effective(own[weight], [(self.grown[name], self.transforms[name]) for name in names])
        return own

    def trainable(self) -> dict[str, nn.Parameter]:
        """The network, all new columns, and the transforms of the task at hand; older ones stay."""
        added = {f"grown.{name}": columns for name, columns in self.grown.items()}
        added |= {f"transforms.{name}": phi for name, phi in self.transforms.items() if name.endswith(f"/{self.now}")}
        return super().trainable() | {name: part for name, part in added.items() if isinstance(part, nn.Parameter)}

    def projected_grad(self, loss: Tensor, weights: Weights) -> Gradient:
        return self.project_grown(super().projected_grad(loss, weights))

    def project(self, update: Gradient) -> Gradient:
        return self.project_grown(super().project(update))

    def projections(self) -> dict[str, Projection]:
        """As GPM, but for grown layers, whose columns are projected together."""
        grown = {self.net.weight_names()[layer] for layer in self.memory.duals() if self.growths(layer)}
        return {name: projection for name, projection in super().projections().items() if name not in grown}

    def project_grown(self, gradient: Gradient) -> Gradient:
        """The columns of W and of every E side by side; new ones are free. Transforms are free too."""
        moving = dict(gradient)
        for layer, projection in self.memory.projections().items():
            if self.growths(layer):
                names = self.columns(layer)
                kept = projection(self.side_by_side(moving, layer))
                pieces = torch.split(kept, [moving[n][0].numel() for n in names], dim=1)
                moving |= {name: piece.view_as(moving[name]) for name, piece in zip(names, pieces, strict=True)}
        return moving

    def columns(self, layer: str) -> list[str]:
        """The parameters that make up a grown layer's columns, in the order of the memory's rows."""
        return [self.net.weight_names()[layer], *(f"grown.{name}" for name in self.growths(layer))]

    def side_by_side(self, gradient: Gradient, layer: str) -> Tensor:
        return torch.cat([gradient[name].flatten(1) for name in self.columns(layer)], dim=1)

    # ── after a task: its widened inputs are protected ──────────────────────────────────────────────────────

    @torch.no_grad()
    def representations(self, batch: Batch) -> dict[str, Tensor]:
        """Inputs of every layer as columns: its channels, then their mixtures by each transform."""
        found = super().representations(batch)
        return {
            layer: torch.cat([r, *(transformed(r, self.transforms[name]) for name in self.growths(layer))])
            for layer, r in found.items()
        }

    def memory_bytes(self) -> dict[str, int]:
        return {**super().memory_bytes(), "grown": self.grown.bytes() + self.transforms.bytes()}

    def facts(self) -> dict[str, Any]:
        layers = self.memory.duals()
        grown = {layer: [self.transforms[name].shape[1] for name in self.growths(layer)] for layer in layers}
        ratios = {layer: float(ratio) for layer, ratio in self.ratios.items()}
        return {**super().facts(), "grown": grown, "retain_ratio": ratios}
