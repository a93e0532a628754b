"""What a method is: an answer to the question *which gradient for this batch?*"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from torch.func import functional_call

from perdure.nets.network import Network, Output
from perdure.ops.algebra import grad
from perdure.ops.losses import cross_entropy
from perdure.ops.tally import Running
from perdure.types import Batch, Gradient, Lesson, Part, Task, TaskIds, Weights

Need = Literal["task-identity", "stored-data"]
"""What a method may need in use: to be told which task an image belongs to; to keep training images of old tasks."""


class Method(nn.Module):
    """How a learner differs from plain SGD. Override what differs; most override two of these.

    A method's values are keyword-only arguments of its `__init__`: the signature is the schema that the command line,
    presets and docs are made from, and the trailing comment gives the paper's symbol.
    """

    may_need: ClassVar[frozenset[Need]] = frozenset({"task-identity"})
    remembers: ClassVar[tuple[str, ...]] = ()  # plain attributes, besides tensors, that a lesson at hand depends on

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net
        self.running = Running()  # loss and hits on the batches being learned; the loop looks at it after each epoch

    # ── what a method may override ──────────────────────────────────────────────────────────────────────────

    def lessons(self, stream: Iterable[Task]) -> Iterator[Lesson]:
        """What is learned at once, in order: one task after another. The stream need not have a known end."""
        for index, task in enumerate(stream):
            yield Lesson(index, (Part(index, len(task.classes), task.train, task.valid),))

    def begin(self, lesson: Lesson) -> None:
        """Before the first batch of a lesson; the heads are there."""

    def epoch(self, epoch: int, of: int, slowing: float) -> None:
        """Before each epoch, counted from 0: at most `of` come, and the rate is `slowing` times its first value."""

    def trainable(self) -> dict[str, nn.Parameter]:
        return dict(self.net.named_parameters())

    def gradient(self, batch: Batch) -> Gradient:
        return grad(self.loss(batch), self.trainable())

    def end(self, lesson: Lesson) -> None:
        """After the last batch, with the weights that are kept."""

    def weights(self, task: int | None = None) -> Weights:  # noqa: ARG002 — for methods with weights per task
        """The network's weights as this task uses them."""
        return dict(self.net.named_parameters())

    def needs(self) -> frozenset[Need]:
        """What these values make it need, among what the method may."""
        return self.may_need

    def memory_bytes(self) -> dict[str, int]:
        """What the method holds besides the network, by kind: bases, replay, fisher, scales, grown."""
        return {}

    def facts(self) -> dict[str, Any]:
        """What the method has to say of itself, for the record; plain numbers, lists and dictionaries."""
        return {}

    def remedy(self) -> str:
        """What else to try when the loss diverges, besides a lower rate."""
        return ""

    # ── given ───────────────────────────────────────────────────────────────────────────────────────────────

    def forward(self, x: Tensor, task: TaskIds, weights: Weights | None = None, quiet: bool = False) -> Output:
        """One forward, with any weights: logits and unit-length features."""
        if weights is None and type(self).weights is Method.weights:
            found: Output = self.net(x, task, quiet)  # they are where they belong
            return found
        own = self.weights(task if isinstance(task, int) else None) if weights is None else weights
        look: Output = functional_call(self.net, dict(own), (x, task, quiet))
        return look

    def loss(self, batch: Batch, weights: Weights | None = None) -> Tensor:
        logits = self.forward(batch.x, batch.task, weights).logits
        self.running.see(batch, logits)
        return cross_entropy(logits, batch.y)
