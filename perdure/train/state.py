"""What a run has come to, and what is needed to resume it."""

from dataclasses import dataclass, field

from torch import Tensor

from perdure.train.evaluate import RunningScore, Score
from perdure.train.schedules import Schedule
from perdure.types import Gradient, Task


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to."""

    lesson: int
    epoch: int
    rate: float
    valid: Score
    train: Score | None  # while it learned, or of the whole training set where the plan asks for it
    best: bool
    seconds: float


@dataclass
class FitState:
    """Where a lesson stands between two steps. With the method's own state, all that is needed to resume it."""

    lesson: int
    schedule: Schedule
    best_weights: Gradient  # where those are to be kept
    epoch: int = 0
    batches: int = 0  # done in this epoch
    seconds: float = 0.0  # spent in this epoch
    history: list[Epoch] = field(default_factory=list)
    optimizer: dict[str, Gradient] = field(default_factory=dict)  # what it remembers, by kind
    generators: dict[str, Tensor] = field(default_factory=dict)  # states of torch's
    running: RunningScore = field(default_factory=RunningScore)  # of this epoch

    def spent(self) -> float:
        """Seconds that the lesson took so far."""
        return sum(epoch.seconds for epoch in self.history) + self.seconds


@dataclass
class Learned:
    """What learning a stream came to, so far or in the end."""

    matrix: list[list[float]] = field(default_factory=list)  # row: after a lesson; column: task; percent
    epochs: list[Epoch] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    seconds: float = 0.0  # of training, evaluation left out
