"""How the learning rate runs through a lesson, and when to stop."""

import math
from dataclasses import dataclass, is_dataclass
from typing import Any, Protocol


class Schedule(Protocol):
    @property
    def rate(self) -> float: ...

    @property
    def stopped(self) -> bool: ...

    def see(self, loss: float) -> bool:
        """Take in the validation loss of an epoch; True if it is the best so far."""

    def fallen(self, first: float) -> float:
        """Which share of its drops before the last, after which it stops, the rate has made since it was `first`."""


@dataclass
class Plateau:
    """Divide the rate when the validation loss has not improved for `patience` epochs; stop below `floor`.

    The papers' rule: only a strictly lower loss counts, and after a drop training goes on from the current weights,
    not from the best ones.
    """

    rate: float
    factor: float
    patience: int
    floor: float
    best: float = math.inf
    waited: int = 0
    stopped: bool = False

    def see(self, loss: float) -> bool:
        if loss < self.best:
            self.best, self.waited = loss, 0
            return True
        self.waited += 1
        if self.waited == self.patience:
            self.rate, self.waited = self.rate / self.factor, 0
            self.stopped = self.rate < self.floor
        return False

    def fallen(self, first: float) -> float:
        if self.factor <= 1 or not 0 < self.floor <= first:
            return 0.0
        drops, last = (round(math.log(first / rate, self.factor), 6) for rate in (self.rate, self.floor))
        return min(drops / math.floor(last), 1.0) if last >= 1 else 0.0


@dataclass
class Constant:
    """Leave the rate as it is; never stop early. Others differ in the share of it that is left after some epochs."""

    first: float
    epochs: int
    best: float = math.inf
    seen: int = 0
    stopped: bool = False

    @property
    def rate(self) -> float:
        return self.first * self.share()

    def share(self) -> float:
        return 1.0

    def see(self, loss: float) -> bool:
        self.seen += 1
        better = loss < self.best
        self.best = min(self.best, loss)
        return better

    def fallen(self, first: float) -> float:  # noqa: ARG002 — it never stops
        return 0.0


@dataclass
class Linear(Constant):
    """Let the rate fall linearly from its first value towards zero over the epochs; never stop early."""

    def share(self) -> float:
        return 1 - self.seen / self.epochs


@dataclass
class Cosine(Constant):
    """The same along half a wave: slowly at first and at the end (Loshchilov and Hutter, ICLR 2017)."""

    def share(self) -> float:
        return (1 + math.cos(math.pi * self.seen / self.epochs)) / 2


@dataclass
class Steps(Constant):
    """Divide the rate by `factor` at each of the milestones, which are numbers of epochs; never stop early."""

    milestones: tuple[float, ...] = ()
    factor: float = 2.0

    def share(self) -> float:
        return self.factor ** -sum(self.seen >= milestone for milestone in self.milestones)


@dataclass
class Warmup:
    """Let the rate climb in even steps over some epochs; the schedule that follows begins after them."""

    then: Plateau | Constant
    epochs: int
    seen: int = 0

    @property
    def rate(self) -> float:
        return self.then.rate * min((self.seen + 1) / (self.epochs + 1), 1)

    @property
    def stopped(self) -> bool:
        return self.then.stopped

    def see(self, loss: float) -> bool:
        self.seen += 1
        if self.seen > self.epochs:
            return self.then.see(loss)
        better = loss < self.then.best
        self.then.best = min(self.then.best, loss)
        return better

    def fallen(self, first: float) -> float:
        return self.then.fallen(first)


def set_state(schedule: Schedule, state: dict[str, Any]) -> None:
    """Put a schedule to where another of its kind stood, of which `asdict` made the state."""
    for name, value in state.items():
        inner = getattr(schedule, name)
        if is_dataclass(inner):
            set_state(inner, value)  # type: ignore[arg-type]
        else:
            setattr(schedule, name, value)
