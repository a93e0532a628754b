"""When to lower the learning rate, and when to stop."""

import math
from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    stopped: bool

    @property
    def rate(self) -> float: ...

    def see(self, loss: float) -> bool:
        """Take in the validation loss of an epoch; True if it is the best so far."""


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


@dataclass
class Linear:
    """Let the rate fall linearly from its first value towards zero over the epochs; never stop early."""

    first: float
    epochs: int
    best: float = math.inf
    seen: int = 0
    stopped: bool = False

    @property
    def rate(self) -> float:
        return self.first * (1 - self.seen / self.epochs)

    def see(self, loss: float) -> bool:
        self.seen += 1
        better = loss < self.best
        self.best = min(self.best, loss)
        return better
