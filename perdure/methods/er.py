"""ER: Experience Replay (Chaudhry et al., "On tiny episodic memories in continual learning", 2019).

A memory holds a uniform sample of all images seen. Each batch is joined by as many drawn from the memory, and both go
through the network at once.
"""

from typing import Any, ClassVar, Literal, Unpack

from torch import Tensor

from perdure.memory.replay_buffer import Capacity, ReservoirBuffer, join
from perdure.methods.method import Method, Need, Shared
from perdure.nets.network import Network
from perdure.ops.gradients import clip, grad
from perdure.schema import Count, Positive
from perdure.types import Batch, EpochStart, Gradient


class ER(Method):
    may_need: ClassVar[frozenset[Need]] = frozenset({"task-identity", "stored-data"})
    state_attributes: ClassVar[tuple[str, ...]] = ("filling",)

    def __init__(
        self,
        net: Network,
        *,
        memory: Capacity = 2000,  # M: images held, of all tasks together; 0 is plain SGD
        replay_batch: Count = 64,  # images drawn from them for each batch
        batches: Literal["mixed", "apart"] = "mixed",  # old images with the new ones, or a batch of one past task
        clip: Positive | None = None,  # longest gradient; none leaves it as it is
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(net, **shared)
        self.memory = ReservoirBuffer(memory, scaled=self.perturbs)
        self.replay_batch = replay_batch
        self.batches = batches
        self.clip = clip
        self.filling = False

    def begin_epoch(self, start: EpochStart) -> None:
        """Each image passes the memory once, in the first epoch."""
        self.filling = start.epoch == 0

    def gradient(self, batch: Batch) -> Gradient:
        """Of the mean loss over new and old images, each with its own head; then the new ones may be kept."""
        gradient = grad(self.replay_loss(batch), self.trainable())
        if self.filling:
            self.memory.add(batch)
        return gradient if self.clip is None else clip(gradient, self.clip)

    def replay_loss(self, batch: Batch) -> Tensor:
        """Batch norm sees the tasks together, as released, or each apart, as in use."""
        if not self.memory.held:
            return self.loss(batch)
        if self.batches == "mixed":
            return self.loss(join(batch, self.attacked(self.memory.sample(self.replay_batch))))
        old = self.attacked(self.memory.sample_of_one_task(self.replay_batch))
        return (len(batch) * self.loss(batch) + len(old) * self.loss(old)) / (len(batch) + len(old))

    def needs(self) -> frozenset[Need]:
        return self.may_need if self.memory.capacity else Method.may_need

    def memory_bytes(self) -> dict[str, int]:
        return {"replay": self.memory.bytes()}

    def facts(self) -> dict[str, Any]:
        return {"images_held": self.memory.counts()}
