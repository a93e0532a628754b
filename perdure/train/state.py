"""What a run has come to, and what is needed to resume it."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from perdure.methods.method import Method
from perdure.ops.metrics import average_accuracy, backward_transfer, learning_accuracy
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


def changing(method: Method) -> dict[str, Tensor]:
    """What a lesson changes: the weights it trains, and the running statistics, which are right for these alone."""
    buffers = {f"backbone.{name}": buffer for name, buffer in method.net.backbone.named_buffers()}
    return {**method.trainable(), **buffers}


@contextmanager
def undone_on_failure(method: Method) -> Iterator[None]:
    """If the lesson inside fails, the method is as it was before it: weights, heads, memories."""
    heads = len(method.net.heads)
    tensors = {name: tensor.detach().clone() for name, tensor in method.state_dict().items()}
    plain = {name: deepcopy(getattr(method, name)) for name in method.remembered()}
    try:
        yield
    except BaseException:
        del method.net.heads[heads:]
        method.load_state_dict(tensors)
        for name, value in plain.items():
            setattr(method, name, value)
        raise


@dataclass
class FitState:
    """Where a lesson stands between two steps. With the method's own state, all that is needed to resume it."""

    lesson: int
    schedule: Schedule
    best_weights: Gradient  # where those are to be kept; with their running statistics
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


@dataclass(repr=False)
class Learned:
    """What learning a stream came to, so far or in the end."""

    matrix: list[list[float]] = field(default_factory=list)  # row: after a lesson; column: task; percent
    epochs: list[Epoch] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)  # of those that were learned, only what they are judged on
    seconds: float = 0.0  # of training, evaluation left out
    evaluation_seconds: float = 0.0  # of what fills the matrix

    @property
    def acc(self) -> float:
        """Accuracy on all tasks in the end, percent."""
        return average_accuracy(self.matrix)

    @property
    def bwt(self) -> float | None:
        """What old tasks gained, or lost if negative, since they were learned, percent points; None for one task."""
        return backward_transfer(self.matrix)

    @property
    def learning_accuracy(self) -> float | None:
        """Accuracy on each task just after it was learned, mean, percent."""
        return learning_accuracy(self.matrix)

    def plot(self, kind: str = "matrix", path: str | Path | None = None) -> Any:
        """The accuracy "matrix" or learning "curves" as a picture that a notebook shows, or in a file."""
        import perdure

        return perdure.plot(self, kind, path)

    def __repr__(self) -> str:
        if not self.matrix:
            return "Learned(nothing yet)"
        count = len(self.matrix[-1])
        bwt = "" if self.bwt is None else f", BWT {self.bwt:+.1f}"
        return f"Learned({count} task{'s' if count > 1 else ''}: ACC {self.acc:.1f}{bwt}; {self.seconds:.0f} s)"
