"""What can be seen of a run while it goes on, and what is needed to take it up again."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from perdure.methods.method import Method
from perdure.ops.tally import Running
from perdure.seeding import generator_states
from perdure.train.evaluate import Score
from perdure.train.plan import Plan
from perdure.train.plateau import Schedule
from perdure.train.sgd import SGD
from perdure.types import Gradient, Lesson, Task


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
class Standing:
    """Where a lesson stands between two steps. With the method's own state, all that is needed to go on from there."""

    lesson: int
    schedule: Schedule
    kept: Gradient  # the weights to keep, where those are the best so far
    epoch: int = 0
    batches: int = 0  # done in this epoch
    seconds: float = 0.0  # spent in this epoch
    history: list[Epoch] = field(default_factory=list)
    momentum: Gradient = field(default_factory=dict)
    chance: dict[str, Tensor] = field(default_factory=dict)  # states of torch's generators
    running: Running = field(default_factory=Running)  # of this epoch

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


class Watch:
    """Looks on. Override what you want to see."""

    def caution(self, text: str) -> None:
        """Something speaks against this run."""

    def lesson(self, lesson: Lesson, plan: Plan) -> None:
        """A lesson begins, or goes on."""

    def epoch(self, epoch: Epoch) -> None:
        """An epoch is over."""

    def pause(self, now: "Now") -> None:
        """Between two steps: the moment to save, or to stop by raising."""

    def lesson_over(self, method: Method, learned: Learned) -> None:
        """A lesson is over, and every task seen so far was tested."""


class Several(Watch):
    """Lets several look on; the first comes first."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self.watches = watches

    def caution(self, text: str) -> None:
        for watch in self.watches:
            watch.caution(text)

    def lesson(self, lesson: Lesson, plan: Plan) -> None:
        for watch in self.watches:
            watch.lesson(lesson, plan)

    def epoch(self, epoch: Epoch) -> None:
        for watch in self.watches:
            watch.epoch(epoch)

    def pause(self, now: "Now") -> None:
        for watch in self.watches:
            watch.pause(now)

    def lesson_over(self, method: Method, learned: Learned) -> None:
        for watch in self.watches:
            watch.lesson_over(method, learned)


@dataclass(frozen=True)
class Now:
    """A lesson between two steps, to look at; `standing()` gathers what is needed to go on from here."""

    method: Method
    at: Standing
    sgd: SGD

    def standing(self) -> Standing:
        self.at.momentum = self.sgd.velocity
        self.at.chance = generator_states()
        return self.at
