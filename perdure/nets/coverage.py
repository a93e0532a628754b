"""What becomes of each parameter and buffer of a network under a method that protects old tasks by projection."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from perdure.errors import WrongValue
from perdure.ops.layers import Layer, watch
from perdure.seeding import chance

Role = Literal["projected", "fixed", "per task", "frozen", "unprotected"]

MEANING: dict[Role, str] = {
    "projected": "moves only where no old task's inputs are",
    "fixed": "learned with the first task and fixed from then on",
    "per task": "each task has its own",
    "frozen": "never moves",
    "unprotected": "moves with every task, and old answers with it",
}


@dataclass(frozen=True)
class Covered:
    """One parameter or buffer."""

    name: str
    shape: tuple[int, ...]
    role: Role
    why: str = ""
    parameter: bool = True  # or a buffer

    @property
    def numbers(self) -> int:
        return int(torch.Size(self.shape).numel())


@dataclass(frozen=True)
class Coverage:
    """Every parameter and buffer of a backbone, and what becomes of it."""

    parts: tuple[Covered, ...]
    layers: dict[str, Layer] = field(repr=False)  # those whose weights are projected

    @property
    def per_task(self) -> list[str]:
        """The buffers that training changes."""
        return [part.name for part in self.parts if part.role == "per task" and not part.parameter]

    def of(self, role: Role) -> list[Covered]:
        return [part for part in self.parts if part.role == role]

    def shares(self) -> dict[Role, float]:
        """Role → percent of all numbers."""
        counts = Counter[Role]()
        for part in self.parts:
            counts[part.role] += part.numbers
        return {role: 100 * counts[role] / max(counts.total(), 1) for role in MEANING if counts[role]}

    def plain(self) -> dict[str, object]:
        """As data."""
        parts = [{"name": p.name, "shape": list(p.shape), "role": p.role, "why": p.why} for p in self.parts]
        return {"shares": self.shares(), "parts": parts}

    def __str__(self) -> str:
        lines = [f"{role:<12}{share:6.1f} %  {MEANING[role]}" for role, share in self.shares().items()]
        width = max((len(part.name) for part in self.parts), default=0)
        for part in self.parts:
            why = f"  ({part.why})" if part.why else ""
            lines.append(f"  {part.name:<{width}}  {'×'.join(map(str, part.shape)) or '1':<14}{part.role}{why}")
        return "\n".join(lines)


def examine(
    backbone: nn.Module,
    x: Tensor,
    free: Sequence[str] = (),
    heads: Sequence[str] = (),
    unused: Sequence[str] = (),
    shared_statistics: bool = False,
) -> Coverage:
    """See by one forward in evaluation and, if there are buffers, one in training mode, which change nothing.

    Names begin with those in `free` if they may move although nothing protects them, in `heads` if they are each task's
    own, in `unused` if their output is thrown away.
    """
    modes = {part: part.training for part in backbone.modules()}
    try:
        with torch.no_grad(), chance(0, "examine"):
            backbone.eval()
            uses = watch(backbone, lambda: backbone(x))
            set_training(backbone)
            changed = _changed_buffers(backbone, x)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise WrongValue(f"the network cannot take images of shape {tuple(x.shape[1:])}: {reason}") from error
    finally:
        for part, training in modes.items():
            part.training = training
    parameters, excepted = dict(backbone.named_parameters()), (*free, *heads, *unused)
    layers = {
        name: replace(found.layer, weight=parameters[found.layer.parameter])  # the whole of it, where a part was read
        for name, found in uses.inputs.items()
        if found.layer.parameter not in uses.other
        and parameters[found.layer.parameter].requires_grad
        and not found.layer.parameter.startswith(excepted)
    }
    projected = {layer.parameter for layer in layers.values()}
    used = projected | uses.other.keys() | {found.layer.parameter for found in uses.inputs.values()}
    roles = _Roles(projected, used, uses.other, tuple(free), tuple(heads), tuple(unused))
    parts = [Covered(name, tuple(found.shape), *roles.of(name, found)) for name, found in parameters.items()]
    for name, buffer in backbone.named_buffers():
        moves: Role = "unprotected" if shared_statistics else "per task"
        role = moves if name in changed else "frozen"
        parts.append(Covered(name, tuple(buffer.shape), role, "a buffer", parameter=False))
    return Coverage(tuple(parts), layers)


@dataclass(frozen=True)
class _Roles:
    projected: set[str]
    used: set[str]
    other: Mapping[str, str]
    free: tuple[str, ...]
    heads: tuple[str, ...]
    unused: tuple[str, ...]

    def of(self, name: str, parameter: nn.Parameter) -> tuple[Role, str]:
        if name.startswith(self.unused):
            return "frozen", "the head that was there"
        if not parameter.requires_grad:
            return "frozen", ""
        if name.startswith(self.heads):
            return "per task", "a head"
        if name.startswith(self.free):
            return "unprotected", "as you allowed"
        if name in self.projected:
            return "projected", ""
        if name in self.other:
            return "fixed", f"read by {self.other[name]}, which no basis covers"
        return "fixed", "" if name in self.used else "not used in a forward"


def _changed_buffers(backbone: nn.Module, x: Tensor) -> set[str]:
    """The buffers that a forward in training changes, found out with copies."""
    before = dict(backbone.named_buffers())
    if not before:
        return set()
    copies = {name: buffer.clone() for name, buffer in before.items()}
    functional_call(backbone, copies, (x,))
    return {name for name, buffer in before.items() if not torch.equal(buffer, copies[name])}


def set_training(backbone: nn.Module) -> None:
    """Training mode, but for norms whose parameters are frozen: these keep their running statistics."""
    backbone.train()
    for norm in norms_of(backbone):
        if norm.track_running_stats and is_frozen(norm):
            norm.eval()


def norms_of(backbone: nn.Module) -> list[_BatchNorm]:
    """Its batch norms."""
    return [part for part in backbone.modules() if isinstance(part, _BatchNorm)]


def is_frozen(norm: _BatchNorm) -> bool:
    parameters = list(norm.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)
