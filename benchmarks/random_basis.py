"""A control for PAT: the same method with bases that hold as many directions, drawn at random.

    perdure run benchmarks/random_basis.py:RandomBasis six

It tells what comes from *which* directions are protected and what from how many: gradients lose as much room, but it is
not what old tasks use. Values are those of PAT on `six`.
"""

import torch

from perdure.memory.gradient_memory import GradientMemory
from perdure.methods.pat import PAT
from perdure.nets.network import Network
from perdure.schema import Count, Share, Strength
from perdure.types import Lesson


class RandomBasis(PAT):
    def __init__(
        self,
        net: Network,
        *,
        attack: Strength | None = 4 / 255,  # how far each pixel of a training image may be moved against it
        threshold: Share = 0.95,  # ε: share of each layer's input energy that PAT's bases would hold
        samples: Count = 125,  # n: training images whose layer inputs are looked at
    ) -> None:
        super().__init__(net, attack=attack, threshold=threshold, threshold_step=0.0, samples=samples)
        self.real = GradientMemory()  # what PAT would have held; never projected by

    def end(self, lesson: Lesson) -> None:
        """Extend PAT's own bases, to know their sizes, and the random ones by as many directions."""
        found = self.representations(lesson.sample(self.samples))
        self.real.extend(found, self.threshold_after(lesson))
        for layer, basis in self.real.items():
            drawn = torch.randn(basis.shape, dtype=basis.dtype, device=basis.device)
            if (old := self.memory.get(layer)) is not None:
                drawn[:, : old.shape[1]] = old
            self.memory[layer] = torch.linalg.qr(drawn).Q
