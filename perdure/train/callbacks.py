"""What can be seen of a run while it is computed."""

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.methods.method import Method
from perdure.seeding import generator_states
from perdure.train.optimizers import Optimizer
from perdure.train.plan import Plan
from perdure.train.state import Epoch, FitState, Learned
from perdure.types import Lesson


class Callback:
    """Called while a run goes on. Override what you need."""

    def on_warning(self, text: str) -> None:
        """Something speaks against this run."""

    def on_task_start(self, lesson: Lesson, plan: Plan) -> None:
        """A lesson begins, or is resumed."""

    def on_epoch_end(self, epoch: Epoch) -> None:
        """An epoch is over."""

    def on_step(self, now: "StepContext") -> None:
        """Between two steps: the moment to save, or to stop by raising."""

    def on_task_end(self, method: Method, learned: Learned) -> None:
        """A lesson is over, and every task seen so far was tested."""


class Callbacks(Callback):
    """Lets several look on; the first comes first."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = callbacks

    def on_warning(self, text: str) -> None:
        for callback in self.callbacks:
            callback.on_warning(text)

    def on_task_start(self, lesson: Lesson, plan: Plan) -> None:
        for callback in self.callbacks:
            callback.on_task_start(lesson, plan)

    def on_epoch_end(self, epoch: Epoch) -> None:
        for callback in self.callbacks:
            callback.on_epoch_end(epoch)

    def on_step(self, now: "StepContext") -> None:
        for callback in self.callbacks:
            callback.on_step(now)

    def on_task_end(self, method: Method, learned: Learned) -> None:
        for callback in self.callbacks:
            callback.on_task_end(method, learned)


@dataclass(frozen=True)
class StepContext:
    """A lesson between two steps; `state()` gathers what is needed to resume it from here."""

    method: Method
    at: FitState
    optimizer: Optimizer

    def state(self) -> FitState:
        self.at.optimizer = self.optimizer.state
        self.at.generators = generator_states()
        return self.at
