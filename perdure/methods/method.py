"""What a method is: an answer to the question *which gradient for this batch?*"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypedDict

import torch
from torch import Tensor, nn
from torch.func import functional_call

from perdure.errors import WrongValue
from perdure.nets.network import Network, Output
from perdure.ops.attacks import Ball, PixelClassifier, training_attack
from perdure.ops.gradients import grad
from perdure.ops.layers import Kind, Layer
from perdure.ops.losses import cross_entropy
from perdure.schema import Count, Strength, checks_values, documented
from perdure.types import Batch, EpochStart, Gradient, Lesson, Part, PixelScale, Task, TaskIds, Weights

Need = Literal["task-identity", "stored-data"]
"""What a method may need in use: to be told which task an image belongs to; to keep training images of old tasks."""


class Shared(TypedDict, total=False):
    """The values that every method takes: `**shared: Unpack[Shared]`, handed on to `Method`, which explains them."""

    attack: Strength | None
    attack_steps: Count
    attack_guard: bool
    noise: Strength | None


class Method(nn.Module):
    """How a learner differs from plain SGD. Override what differs; most override two of these.

    A method's values are keyword-only arguments of its `__init__`: the signature is the schema that the command line,
    presets and docs are made from, and the trailing comment gives the paper's symbol.
    """

    protects: ClassVar[tuple[Kind, ...]] = ()  # kinds of layers whose inputs it remembers, to keep old answers
    begins_each_task: ClassVar[bool] = (
        False  # whether `begin` prepares every task; so it is taken to, where it is there
    )
    may_need: ClassVar[frozenset[Need]] = frozenset({"task-identity"})
    state_attributes: ClassVar[tuple[str, ...]] = ()  # besides tensors, what a checkpoint must hold of it

    train_logits: Tensor | None

    def __init_subclass__(cls) -> None:
        """Values are checked when a method is made, and `help()` tells what they mean."""
        super().__init_subclass__()
        if "begin" in cls.__dict__ and "begins_each_task" not in cls.__dict__:
            cls.begins_each_task = True
        if "__init__" in cls.__dict__:
            cls.__init__ = checks_values("method", cls.__init__)  # type: ignore[method-assign]
        cls.__doc__ = documented(cls)

    def __init__(
        self,
        net: Network,
        *,
        attack: Strength | None = None,  # how far each pixel of a training image may be moved against it; none: not
        attack_steps: Count = 1,  # steps of that attack, from a random start; each costs a pass forward and back
        attack_guard: bool = True,  # whether more steps are taken once these no longer show what stronger attacks do
        noise: Strength | None = None,  # standard deviation, in pixels, of Gaussian noise on training images; none: no
    ) -> None:
        super().__init__()
        if attack is not None and noise is not None:
            raise WrongValue("attack and noise cannot both be set; training takes one of them: set the other to none")
        self.net = net
        self.attack = attack
        self.attack_steps = self.attack_steps_now = attack_steps
        self.attack_guard = attack_guard
        self.noise = noise
        self.robust_best = 0.0  # of this lesson: best accuracy under the guard's attack, percent
        self.cautions: tuple[str, ...] = ()  # what happened in training that a reader of the record should know
        self.train_rows, self.train_logits = 0, None  # of a step: the first logits of a whole batch, for its score

    # ── what a method may override ──────────────────────────────────────────────────────────────────────────

    def lessons(self, stream: Iterable[Task]) -> Iterator[Lesson]:
        """What is learned at once, in order: one task after another. The stream need not have a known end."""
        for index, task in enumerate(stream):
            yield Lesson(index, (Part(index, len(task.classes), task.train, task.valid),))

    def check(self, lesson: Lesson) -> None:
        """Before anything is changed: refuse a lesson that it cannot learn as it promises to."""

    def begin(self, lesson: Lesson) -> None:
        """Before the first batch of a lesson; the heads are there."""

    def begin_epoch(self, start: EpochStart) -> None:
        """Before each epoch; `start` says which it is, how far the lesson has come and how far the rate has fallen."""

    def trainable(self) -> dict[str, nn.Parameter]:
        """What moves; frozen parameters never do."""
        return {name: found for name, found in self.net.named_parameters() if found.requires_grad}

    def gradient(self, batch: Batch) -> Gradient:
        return grad(self.loss(batch), self.trainable())

    def project(self, update: Gradient) -> Gradient:
        """An optimizer's update, as far as it is allowed; a missing name again means: do not move this one. Asked for
        where the optimizer turns gradients to where the method's own never point, as AdamW and weight decay do."""
        return update

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

    def penalty(self) -> float:
        """What its loss has besides the cross-entropy at the weights as they are: the validation loss by which the rate
        is lowered and the best epoch chosen includes it."""
        return 0.0

    def remedy(self) -> str:
        """What else to try when the loss diverges, besides a lower learning rate."""
        return ""

    # ── given ───────────────────────────────────────────────────────────────────────────────────────────────

    def forward(self, x: Tensor, task: TaskIds, weights: Weights | None = None) -> Output:
        """Logits and unit-length features, with any weights; in evaluation, with the statistics stored for the task."""
        (output,) = self.forward_each([x], task, weights)
        return output

    def forward_each(
        self, batches: Sequence[Tensor], task: TaskIds, weights: Weights | None = None, conv_dropout: bool = True
    ) -> list[Output]:
        """One output for each batch, which have batch statistics of their own; without `conv_dropout`, features are
        taken without dropout after convolutions."""
        args, statistics = (batches, task, conv_dropout), {} if self.training else self.net.statistics_of(task)
        if weights is None and type(self).weights is Method.weights and not statistics:
            outputs: list[Output] = self.net(*args)  # the weights are where they belong
        else:
            own = self.weights(task if isinstance(task, int) else None) if weights is None else weights
            outputs = functional_call(self.net, {**own, **statistics}, args)
        if self.train_logits is None and self.training and len(outputs[0].logits) >= self.train_rows:
            self.train_logits = outputs[0].logits.detach()
        return outputs

    def attacked(self, batch: Batch) -> Batch:
        """The batch with its images attacked as the network is now, in the mode it is in, or with noise; as it is where
        there is neither. The images that were given are its originals."""
        if not self.perturbs:
            return batch
        if batch.pixels is None:
            raise WrongValue("attack and noise are measured in pixels, and this batch does not tell: give Batch.pixels")
        moved = self._moved(batch, batch.pixels) if self.noise is None else self._noisy(batch, batch.pixels)
        return replace(batch, x=moved, original=batch.x if batch.original is None else batch.original)

    @property
    def perturbs(self) -> bool:
        """Whether training images are attacked, or noise is added to them."""
        return self.attack is not None or self.noise is not None

    def _moved(self, batch: Batch, scale: PixelScale) -> Tensor:
        assert self.attack is not None
        model, pixels = self.classifier(batch.task, scale), scale.pixels(batch.x)
        ball, rng, seen = Ball("linf", self.attack), torch.default_generator, self.train_logits
        with self.net.kept_statistics():
            moved = training_attack(model, pixels, batch.y, ball, steps=self.attack_steps_now, rng=rng)
        self.train_logits = seen  # what the attack's forwards answered is no score of the step's
        return scale.normalize(moved)

    def _noisy(self, batch: Batch, scale: PixelScale) -> Tensor:
        """Not clipped to images: randomized smoothing, for which one trains so, adds plain Gaussian noise."""
        assert self.noise is not None
        drawn = torch.randn(batch.x.shape)  # on the CPU: the same on every device
        return batch.x + self.noise * drawn.to(batch.x) / scale.std

    def remembered(self) -> tuple[str, ...]:
        """The names of what a checkpoint must hold besides tensors."""
        guarded = () if self.attack is None else ("attack_steps_now", "robust_best", "cautions")
        return (*self.state_attributes, *guarded)

    def classifier(self, task: TaskIds, scale: PixelScale) -> PixelClassifier:
        """Pixels of a task or of several to logits, by the weights as they are, which want no gradient."""
        own = self.weights(task if isinstance(task, int) else None)
        weights = {name: weight.detach() for name, weight in own.items()}
        return PixelClassifier(lambda x: self.forward(scale.normalize(x), task, weights).logits)

    def layers(self) -> dict[str, Layer]:
        """The layers that it protects."""
        return {name: layer for name, layer in self.net.layers().items() if layer.kind in self.protects}

    def fixed(self) -> set[str]:
        """What it cannot protect: if the method protects layers, such parameters move in the first task only."""
        protected = {layer.parameter for layer in self.layers().values()}
        free = self.net.backbone.free
        names = (name for name, _ in self.net.backbone.named_parameters())
        return {f"backbone.{name}" for name in names if name not in protected and not (free and name.startswith(free))}

    def loss(self, batch: Batch, weights: Weights | None = None) -> Tensor:
        return cross_entropy(self.forward(batch.x, batch.task, weights).logits, batch.y)


Method.__init__ = checks_values("method", Method.__init__)  # type: ignore[method-assign]
