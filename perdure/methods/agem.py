"""A-GEM: Averaged Gradient Episodic Memory (Chaudhry et al., ICLR 2019).

Some images of every past task are kept. Where a step would raise their loss, the part of the gradient that does so is
taken out.
"""

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from perdure.memory.replay_buffer import Capacity, TaskBuffer
from perdure.methods.method import Method, Need, Shared
from perdure.nets.network import Network
from perdure.ops.gradients import add, dot, is_async
from perdure.schema import Count
from perdure.types import Batch, Gradient, Lesson, Weights


class AGEM(Method):
    may_need: ClassVar[frozenset[Need]] = frozenset({"task-identity", "stored-data"})

    def __init__(
        self,
        net: Network,
        *,
        memory: Capacity = 2000,  # M: images held, the same number of each past task; 0 is plain SGD
        replay_batch: Count = 64,  # images drawn from them for each batch; the authors' code has 256
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(net, **shared)
        self.memory = TaskBuffer(memory, scaled=self.perturbs)
        self.replay_batch = replay_batch
        # steps that met the memory, and those of them that conflicted
        self.tally: Tensor
        self.register_buffer("tally", torch.zeros(2, dtype=torch.int64))

    def gradient(self, batch: Batch) -> Gradient:
        """g, or where g·r < 0 what is left of it at right angles to r, the gradient on past images."""
        gradient = super().gradient(batch)
        if not self.memory.held:
            return gradient
        old = self.attacked(self.memory.sample(self.replay_batch))
        projected, conflict = agem_project(gradient, super().gradient(old))
        self.tally += torch.stack([torch.ones_like(conflict), conflict])
        return projected

    def end(self, lesson: Lesson) -> None:
        """Keep a random sample of the lesson; the shares of older ones shrink."""
        if self.memory.capacity:
            self.memory.add(lesson.sample(self.memory.capacity))

    def needs(self) -> frozenset[Need]:
        return self.may_need if self.memory.capacity else Method.may_need

    def memory_bytes(self) -> dict[str, int]:
        return {"replay": self.memory.bytes()}

    def facts(self) -> dict[str, Any]:
        met, conflicted = self.tally.tolist()
        return {"images_held": self.memory.counts(), "conflicts": conflicted / met if met else 0.0}


def agem_project(gradient: Gradient, reference: Weights) -> tuple[Gradient, Tensor]:
    """g if g·r ≥ 0, else g − (g·r/r·r) r, so that a step no longer raises the loss r belongs to; and whether g·r < 0.

    Inner products run over all weights, a missing gradient counting as zero; the projected one has the names of both.
    """
    product = dot(gradient, reference)
    conflict = product < 0
    if not is_async(conflict):
        if not conflict:
            return gradient, conflict
        back = -float(product / dot(reference, reference))
        alone = {name: back * g for name, g in reference.items() if name not in gradient}
        return {**alone, **add(gradient, reference, back)}, conflict
    share = torch.where(conflict, product / dot(reference, reference), 0)
    steps = dict(zip(reference, torch._foreach_mul(list(reference.values()), -share), strict=True))
    return {**steps, **add(gradient, steps)}, conflict
