"""A network for many tasks: one backbone, one bias-free linear head per task, added when the task arrives."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Literal, Self, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from perdure import fast
from perdure.errors import TooFewSamples, WrongValue
from perdure.fast.function_mode import LearningMode
from perdure.fast.joint_batches import ForwardMode, forward_mode
from perdure.memory.bank import TensorBank
from perdure.nets.coverage import Coverage, examine, is_frozen, norms_of, set_training
from perdure.ops.layers import Layer, layers_of
from perdure.seeding import chance
from perdure.types import TaskIds

Statistics = Literal["batch", "task"]
"""What batch norm uses outside of training: the statistics of the batch at hand, or those stored for its task."""

_seed: ContextVar[int | None] = ContextVar("seed", default=None)  # of the first weights that are being drawn


@dataclass(frozen=True)
class Output:
    """What one forward gives."""

    logits: Tensor  # (n, classes)
    features: Tensor  # (n, d), unit length


@contextmanager
def first_weights(seed: int, *purpose: str | int) -> Iterator[None]:
    """Inside, the first weights of networks are drawn by this seed (and purpose) and nothing else."""
    before = _seed.set(seed)
    try:
        with chance(seed, *(purpose or ("network",))):
            yield
    finally:
        _seed.reset(before)


def _seeded(init: Callable[..., None]) -> Callable[..., None]:
    """An `__init__` that takes a `seed`, too, by which the first weights are drawn; one that has it anyway gets it."""
    own = signature(init)

    @wraps(init)
    def seeded_init(self: Any, *args: Any, seed: int | None = None, **given: Any) -> None:
        outer = _seed.get()
        if seed is not None and "seed" in own.parameters:
            given["seed"] = seed
        if outer is not None and (seed is None or type(self).__init__ is not seeded_init):
            init(self, *args, **given)  # part of a network whose weights are being drawn
            self.seed = outer
            return
        self.__dict__["seed"] = 1 if seed is None else seed
        with first_weights(self.seed):
            init(self, *args, **given)

    extra = Parameter("seed", Parameter.KEYWORD_ONLY, default=1, annotation=int)
    if not any(p.kind is p.VAR_KEYWORD or p.name == "seed" for p in own.parameters.values()):
        seeded_init.__signature__ = own.replace(parameters=[*own.parameters.values(), extra])  # type: ignore[attr-defined]
    return seeded_init


class Backbone(nn.Module):
    """Images to features. What else methods ask of a network stands here, with answers for any network.

    The first weights depend on a seed alone: every backbone takes one besides its own arguments, as in
    `MLP(shape, seed=2)`; without, it is 1.
    """

    seed: int | None = None
    """By which the first weights were drawn."""

    width: int
    """How many features the heads read."""

    patch_images: dict[str, int] = {}  # noqa: RUF012 — read-only; each network that needs one sets its own
    """Layer → how many images its inputs are sampled from. Layers not named: see `ops.subspace.representations`."""

    auxiliary: tuple[str, ...] = ()
    """Layers beside the main path: the stem and the shortcuts of a residual network."""

    independent: bool = False
    """Whether nothing but batch norm makes the answer to one image depend on another."""

    channels_last: bool = False
    """Whether its convolutions may be laid out with the channels last in memory, which is faster."""

    shared_statistics: bool = False
    """Whether running statistics are those of the latest task for all tasks, as published networks may have them."""

    free: tuple[str, ...] = ()
    """Beginnings of the names of parameters that projection methods let move in later tasks although nothing protects
    them."""

    guarded: bool = False
    """Whether protection is promised, not a paper's: bases then hold their share of energy from the first task on, and
    a layer that no basis can protect is refused before anything is trained."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in cls.__dict__:
            cls.__init__ = _seeded(cls.__init__)  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the heads read (n, width), and the features that are compared on the unit sphere (n, d)."""
        raise NotImplementedError

    def layers(self) -> dict[str, Layer]:
        """The layers of torch's modules; `Network.layers` knows those that a forward uses."""
        return layers_of(self)

    def first_head(self) -> nn.Linear | None:
        """The head that the first task begins with, where the network brings one."""
        return None

    def old_head(self) -> tuple[str, ...]:
        """Names of parameters that a forward reads and whose output is thrown away."""
        return ()


class Network(nn.Module):
    """A backbone and a head for each task.

    With `statistics="task"`, batch norms keep running statistics; those of a task are stored when it has been learned
    and used whenever it is asked about: the answer to an image does not depend on others then. "batch" leaves norms
    as the backbone has them.
    """

    def __init__(self, backbone: Backbone, statistics: Statistics = "batch") -> None:
        super().__init__()
        if not isinstance(backbone, Backbone):
            raise WrongValue(
                f"Network takes a Backbone, not {type(backbone).__name__}; "
                "for any other module: perdure.wrap(model, (channels, height, width))"
            )
        if backbone.channels_last and fast.on("channels_last") and _wide(backbone):
            # A step is a quarter to a third faster with the channels last, on CPUs too; the numbers are the same.
            backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.backbone = backbone
        self.heads = nn.ModuleList()
        self.statistics = TensorBank()  # task, buffer of the backbone → as it was when the task had been learned
        self.coverage: Coverage | None = None  # what is protected and how, once `examine` has looked
        self.in_bf16 = False  # whether training forwards compute in bfloat16; weights, losses and gradients never are
        if statistics == "task":
            for norm in norms_of(backbone):
                _track(norm)

    @property
    def seed(self) -> int | None:
        """By which the first weights were drawn, where that is known."""
        return self.backbone.seed

    def add_head(self, classes: int, bias: bool = False) -> None:
        like = next(self.backbone.parameters())
        head = nn.Linear(self.backbone.width, classes, bias, device=like.device, dtype=like.dtype)
        if not len(self.heads) and (first := self.backbone.first_head()) is not None:
            if classes != first.out_features:
                raise WrongValue(
                    f"the head that was kept has {first.out_features} classes and the first task {classes}; give a "
                    "first task with the same classes, or wrap the model without keep_head"
                )
            head = deepcopy(first).requires_grad_()
        self.heads.append(head)

    # ── what is protected, and statistics of tasks ──────────────────────────────────────────────────────────

    def examine(self, x: Tensor) -> Coverage:
        """See by one forward in each mode, which change nothing, how the parameters and buffers are used. Images that
        the backbone cannot take are refused in a line."""
        own = self.backbone
        found = examine(own, x, own.free, unused=own.old_head(), shared_statistics=own.shared_statistics)
        self.coverage = self.coverage or found
        return self.coverage

    def layers(self) -> dict[str, Layer]:
        """The layers whose inputs are remembered and whose gradients are projected."""
        return self.backbone.layers() if self.coverage is None else self.coverage.layers

    def keep_statistics(self, task: int) -> None:
        """Store what training has changed besides the weights; the task is asked about with it from now on."""
        buffers = dict(self.backbone.named_buffers())
        for name in self.coverage.per_task if self.coverage else ():
            self.statistics[task, name] = buffers[name].clone()

    def statistics_of(self, task: TaskIds) -> dict[str, Tensor]:
        """Buffer → as it is stored for a task; nothing for tasks that have none."""
        if not isinstance(task, int) or not len(self.statistics):
            return {}
        return {f"backbone.{name}": kept for (of, name), kept in self.statistics.by_parts() if of == str(task)}

    def try_forward(self, x: Tensor) -> None:
        """Through the backbone before anything is learned, without dropout and with the statistics of these images,
        since those that a new network brings are nobody's. Nothing is changed."""
        modes = {part: part.training for part in self.modules()}
        self.eval()
        for norm in norms_of(self.backbone):
            norm.train(not is_frozen(norm))
        copies = {name: buffer.clone() for name, buffer in self.backbone.named_buffers()}
        functional_call(self.backbone, copies, (x,))
        for part, training in modes.items():
            part.training = training

    def begin_statistics(self) -> None:
        """Statistics that are a mean over all batches begin anew with each lesson."""
        for norm in norms_of(self.backbone):
            if norm.momentum is None and norm.track_running_stats and not is_frozen(norm):
                norm.reset_running_stats()

    def train(self, mode: bool = True) -> Self:
        """Norms whose parameters are frozen keep their running statistics."""
        super().train(mode)
        if mode:
            set_training(self.backbone)
        return self

    @overload
    def forward(self, x: Tensor, task: TaskIds, conv_dropout: bool = True) -> Output: ...
    @overload
    def forward(self, x: Sequence[Tensor], task: TaskIds, conv_dropout: bool = True) -> list[Output]: ...
    def forward(self, x: Tensor | Sequence[Tensor], task: TaskIds, conv_dropout: bool = True) -> Output | list[Output]:
        """Logits of the task's own head, and features. With one task per sample, rows of logits are padded with −∞ up
        to the largest head. Without `conv_dropout`, features, not logits, have no dropout after convolutions.

        Several batches have batch statistics of their own and an output each.
        """
        batches = [x] if isinstance(x, Tensor) else list(x)
        if min(map(len, batches)) < 2 and self._needs_batch_statistics():
            raise TooFewSamples(
                "this network normalizes with the statistics of the batch, which one image does not have; "
                "give it two images or more at a time"
            )
        clean = self.training and not conv_dropout
        with LearningMode() if self.training or len(batches) > 1 else nullcontext():
            if (clean or len(batches) > 1) and self._may_join(batches):
                outputs = self._joint(batches, task, clean)
            else:
                outputs = [self._single(batch, task, clean) for batch in batches]
        return outputs[0] if isinstance(x, Tensor) else outputs

    def _single(self, x: Tensor, task: TaskIds, clean: bool) -> Output:
        hidden, features = self._backbone(x)
        logits = self._logits(hidden, task)
        if clean:
            with forward_mode(ForwardMode(conv_dropout="off")):
                _, features = self._backbone(x)
        return Output(logits.to(x.dtype), F.normalize(features.to(x.dtype), dim=1))

    def _may_join(self, batches: Sequence[Tensor]) -> bool:
        if next(self.backbone.buffers(), None) is not None:
            return False  # running statistics may be a mean over all batches, which a norm counts by its forwards
        return fast.on("joint_batches") and self.backbone.independent and len(set(map(len, batches))) == 1

    def _joint(self, batches: Sequence[Tensor], task: TaskIds, clean: bool) -> list[Output]:
        """All at once. Rows that were doubled for features without dropout stand in the second half."""
        x, rows = torch.cat(list(batches)), len(batches[0])
        with forward_mode(ForwardMode(rows, "fork" if clean else "on")):
            hidden, features = self._backbone(x)
        logits = self._logits(hidden[: len(x)], task if isinstance(task, int) else task.repeat(len(batches)))
        unit = F.normalize(features[-len(x) :].to(x.dtype), dim=1)
        return [Output(*of) for of in zip(torch.split(logits.to(x.dtype), rows), torch.split(unit, rows), strict=True)]

    def _backbone(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.in_bf16 and self.training):
            found: tuple[Tensor, Tensor] = self.backbone(x)
            return found

    def _logits(self, hidden: Tensor, task: TaskIds) -> Tensor:
        with torch.autocast(hidden.device.type, torch.bfloat16, enabled=self.in_bf16 and self.training):
            if isinstance(task, int):
                logits: Tensor = self.heads[task](hidden)
                return logits
            present = sorted(set(task.tolist()))
            widest = max(self._classes(t) for t in present)
            logits = hidden.new_full((len(hidden), widest), -torch.inf)
            for t in present:
                rows = (task == t).nonzero().squeeze(1).to(hidden.device)
                logits[rows, : self._classes(t)] = self.heads[t](hidden[rows])
            return logits

    def _classes(self, task: int) -> int:
        head = self.heads[task]
        assert isinstance(head, nn.Linear)
        return head.out_features

    def _needs_batch_statistics(self) -> bool:
        return any(not norm.track_running_stats for norm in norms_of(self.backbone))

    def fix_statistics(self, forward: Callable[[], None]) -> None:
        """Norms that use the statistics of the batch get some of their own, in evaluation: the mean over the batches
        that `forward` sends through. From then on, the answer to an image does not depend on others."""
        norms = [norm for norm in norms_of(self.backbone) if not norm.track_running_stats]
        for norm in norms:
            _track(norm)
            norm.momentum = None  # the mean over all batches
            norm.train()
        forward()
        for norm in norms:
            norm.eval()

    @contextmanager
    def kept_statistics(self) -> Iterator[None]:
        """Forwards inside leave running statistics as they are: for those in training mode that are followed by no
        step."""
        before = [buffer.clone() for buffer in self.backbone.buffers()]
        yield
        for buffer, value in zip(self.backbone.buffers(), before, strict=True):
            buffer.copy_(value)

    def weight_names(self) -> dict[str, str]:
        """Remembered layer → its weight's name among the parameters."""
        return {name: f"backbone.{layer.parameter}" for name, layer in self.layers().items()}

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Grow the heads that the saved state has and this network has not yet."""
        while (saved := state_dict.get(f"{prefix}heads.{len(self.heads)}.weight")) is not None:
            self.add_head(len(saved), f"{prefix}heads.{len(self.heads)}.bias" in state_dict)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _track(norm: _BatchNorm) -> None:
    """Give a norm running statistics, if it has none."""
    if not norm.track_running_stats:
        like = next(norm.parameters(), torch.empty(0))
        fresh = _BatchNorm(norm.num_features, affine=False).to(like.device, like.dtype)
        for name, buffer in fresh.named_buffers():
            norm.register_buffer(name, buffer)
        norm.track_running_stats = True


def _wide(module: nn.Module) -> bool:
    """Whether channels may come last: torch 2.13 corrupts memory in such networks on CPUs when a convolution has fewer
    than eight filters (docs/decisions/004)."""
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    return all(conv.out_channels >= 8 and conv.groups == 1 for conv in convolutions)
