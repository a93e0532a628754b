"""GPM: Gradient Projection Memory (Saha, Garg, Roy, ICLR 2021).

After each task, the directions that carry most of every layer's input are remembered. A later gradient step is
projected away from them, so that the layer's answer to old inputs stays as it was.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from perdure.errors import WrongValue
from perdure.memory.budget import extend_within, protected
from perdure.memory.gradient_memory import GradientMemory
from perdure.methods.method import Method, Shared
from perdure.nets.network import Network
from perdure.ops.gradients import Projection, project, projected_grad
from perdure.ops.layers import Kind, layer_inputs, representations
from perdure.ops.subspace import extend
from perdure.schema import Bytes, Count, Share, Variant
from perdure.seeding import chance
from perdure.types import Batch, Gradient, Lesson, Weights

ROWS_BATCH = 256  # images at a time when the rows of embeddings are looked up
UNSEEN = 0.2  # largest share of other images' input energy that a layer's basis may leave out


class GPM(Method):
    state_attributes: ClassVar[tuple[str, ...]] = ("wanted", "protected")
    protects: ClassVar[tuple[Kind, ...]] = ("linear", "conv", "transposed", "embedding")

    def __init__(
        self,
        net: Network,
        *,
        threshold: Share = 0.97,  # ε: share of each layer's input energy that is protected
        threshold_step: Share = 0.003,  # what ε gains with each task
        samples: Count = 125,  # n: training images whose layer inputs are remembered
        variant: Variant = "released",  # where paper and released code differ, which to follow
        budget: Bytes | None = None,  # most bytes of bases; none sets no limit
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(net, **shared)
        self.threshold = threshold
        self.threshold_step = threshold_step
        self.samples = samples
        self.variant: str = variant
        self.budget = budget
        self.memory = GradientMemory()
        self.wanted = threshold  # with a budget: ε of the latest task, and the share that each layer's basis holds
        self.protected: dict[str, float] = {}

    def gradient(self, batch: Batch) -> Gradient:
        return self.projected_grad(self.loss(batch), self.trainable())

    def projected_grad(self, loss: Tensor, weights: Weights) -> Gradient:
        """From the second task on, weights move only where no old task looks (Eq. 15)."""
        return self.allowed(projected_grad(loss, weights, self.projections()))

    def project(self, update: Gradient) -> Gradient:
        return self.allowed(project(update, self.projections()))

    def projections(self) -> dict[str, Projection]:
        """Name of a weight → how its gradient is projected."""
        return self.by_weight(self.memory.projections())

    def by_weight(self, projections: Mapping[str, Projection]) -> dict[str, Projection]:
        names = self.net.weight_names()
        return {names[layer]: projection for layer, projection in projections.items()}

    def allowed(self, gradient: Gradient) -> Gradient:
        """From the second task on, what no basis protects stays: biases, norms, tokens, whatever else there is."""
        if not self.is_later():
            return gradient
        gradient = project(gradient, self.by_weight(self.memory.row_projections()))
        fixed = self.fixed()
        return {name: g for name, g in gradient.items() if name not in fixed}

    def is_later(self) -> bool:
        """Whether something has been learned before; where no layer can be protected, heads tell."""
        return len(self.memory) > 0 or (not self.layers() and len(self.net.heads) > 1)

    @torch.no_grad()
    def check(self, lesson: Lesson) -> None:
        """Refuse a network in which some layer's inputs differ so much from image to image that a basis of those of the
        training images does not hold those of others: projection cannot keep the answers to the latter."""
        others = torch.cat([part.valid.take(slice(0, self.samples))[0] for part in lesson.parts])
        if lesson.index > 0 or not self.net.backbone.guarded or len(others) < 2:
            return
        with chance(0, "check"):
            x = lesson.sample(self.samples).x
        seen = self.received(lambda: self.net.try_forward(x))
        left = {
            name: 1 - protected(extend(columns.new_empty(len(columns), 0), columns, self.threshold), unseen)
            for name, unseen in self.received(lambda: self.net.try_forward(others)).items()
            if (columns := seen[name]).ndim > 1
        }
        worst = max(left, key=lambda name: left[name], default="")
        if worst and left[worst] > UNSEEN:
            weight = self.layers()[worst].parameter.removeprefix("model.")
            raise WrongValue(
                f"{weight} cannot be protected: the directions of {min(len(lesson), self.samples)} training images "
                f"leave out {left[worst]:.0%} of what other images give it; raise samples=, give more images, freeze "
                f"it, or allow it to move: wrap(…, free=[{weight!r}])"
            )

    def end(self, lesson: Lesson) -> None:
        found = self.representations(lesson.sample(self.samples)) | self.used_rows(lesson)
        self.remember(found, self.threshold_after(lesson))

    def remember(self, representations: Mapping[str, Tensor], threshold: float) -> None:
        """Extend the bases by what is new in these inputs."""
        if self.variant == "paper" or self.net.backbone.guarded:  # Eq. 18 asks for ≥ ε on the first task, too
            self.memory.begin(representations)
        if self.budget is None:
            self.memory.extend(representations, threshold)
            return
        for name, basis in extend_within(self.budget, dict(self.memory.items()), representations, threshold).items():
            self.memory[name] = basis
        self.wanted = threshold
        self.protected = {name: protected(self.memory[name], found) for name, found in representations.items()}

    def threshold_after(self, lesson: Lesson) -> float:
        """ε as it stands after a lesson."""
        return min(self.threshold + self.threshold_step * lesson.index, 1.0)

    @torch.no_grad()
    def representations(self, batch: Batch) -> dict[str, Tensor]:
        """Inputs of every layer as columns (Alg. 2, lines 1–2): the whole batch goes through the network at once, then
        each layer takes patches of its first few images."""
        self.eval()
        return self.received(lambda: self.forward(batch.x, batch.task))

    def received(self, forward: Callable[[], Any]) -> dict[str, Tensor]:
        """What every layer that is protected receives in a forward."""
        backbone, layers = self.net.backbone, self.layers()
        inputs = layer_inputs(backbone, forward)
        return representations({name: x for name, x in inputs.items() if name in layers}, backbone.patch_images)

    @torch.no_grad()
    def used_rows(self, lesson: Lesson) -> dict[str, Tensor]:
        """The rows of embeddings that any image of the lesson looks up; a sample would miss the rare ones."""
        found: dict[str, Tensor] = {}
        if any(layer.kind == "embedding" for layer in self.layers().values()):
            for part in lesson.parts:
                for x, y in part.train.batches(ROWS_BATCH):
                    marks = self.representations(Batch(x, y, part.task))
                    for name, rows in ((name, rows) for name, rows in marks.items() if rows.ndim == 1):
                        found[name] = torch.maximum(found.get(name, rows), rows)
        return found

    def memory_bytes(self) -> dict[str, int]:
        return {"bases": self.memory.bytes()}

    def facts(self) -> dict[str, Any]:
        basis = {"basis": {name: list(size) for name, size in self.memory.sizes().items()}}
        return basis if self.budget is None else {**basis, "budget": self.spent(self.budget)}

    def spent(self, budget: int) -> dict[str, Any]:
        """What is held of a budget, and what it costs in protection."""
        kinds = sorted({str(basis.dtype).removeprefix("torch.") for _, basis in self.memory.items()})
        return {
            "bytes": budget,
            "held": self.memory.bytes(),
            "precision": " and ".join(kinds),
            "protected": self.protected,
            "wanted": self.wanted,
        }
