"""SGP: Scaled Gradient Projection (Saha, Roy, AAAI 2023).

GPM forbids every remembered direction fully. SGP gives each an importance, by how strong old inputs are along it: a
step may still go a little along directions that mattered little, so that new tasks find more room.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Unpack

from torch import Tensor

from perdure.memory.bank import TensorBank
from perdure.methods.gpm import GPM
from perdure.methods.method import Shared
from perdure.nets.network import Network
from perdure.ops.gradients import Projection
from perdure.ops.soft_projection import importances, part_outside
from perdure.schema import Count, Share, Weight


class SGP(GPM):
    protects = ("linear", "conv")

    def __init__(
        self,
        net: Network,
        *,
        threshold: Share = 0.97,  # ε: share of each layer's input energy that is remembered
        threshold_step: Share = 0.003,  # what ε gains with each task
        samples: Count = 125,  # n: training images whose layer inputs are remembered
        scale: Weight = 10.0,  # α: the larger, the sooner a direction is fully protected
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(net, threshold=threshold, threshold_step=threshold_step, samples=samples, **shared)
        self.scale = scale
        self.importance = TensorBank()  # layer → λ (k,), of each direction of its basis

    def projections(self) -> dict[str, Projection]:
        """G − G M diag(λ) Mᵀ."""
        bases = ((layer, basis) for layer, basis in self.memory.items() if basis.shape[1])
        return self.by_weight(
            {layer: partial(part_outside, basis=basis, importance=self.importance[layer]) for layer, basis in bases}
        )

    def remember(self, representations: Mapping[str, Tensor], threshold: float) -> None:
        """Bases grow as GPM's; what the task adds to the importance of old directions is added to it."""
        super().remember(representations, threshold)
        for layer, found in representations.items():
            before = self.importance.get(layer)
            self.importance[layer] = importances(self.memory[layer], found, self.scale, before)

    def memory_bytes(self) -> dict[str, int]:
        return {"bases": self.memory.bytes() + self.importance.bytes()}

    def facts(self) -> dict[str, Any]:
        means = {layer: float(values.mean()) for layer, values in self.importance.items() if len(values)}
        return {**super().facts(), "mean_importance": means}
