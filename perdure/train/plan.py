"""How long and how fast to learn."""

from dataclasses import dataclass
from typing import Literal

from perdure.schema import Count, Positive, Weight, checked
from perdure.train.plateau import Linear, Plateau, Schedule


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long and how fast to learn a lesson; the same for every method."""

    rate: Positive = 0.01  # η: learning rate at the start of each lesson
    epochs: Count = 200  # at most so many
    batch: Count = 64  # training images a step
    schedule: Literal["plateau", "linear"] = "plateau"  # lower the rate when validation stalls, or evenly to zero
    factor: Positive = 2.0  # plateau: what the rate is divided by
    patience: Count = 6  # plateau: epochs without improvement before that
    floor: Weight = 1e-5  # plateau: stop when the rate falls below
    momentum: Weight = 0.0  # of SGD
    keep: Literal["best", "last"] = "best"  # weights kept after a lesson: lowest validation loss, or the last
    precision: Literal["float32", "bf16"] = "float32"  # in which the network computes while it learns
    train_scores: bool = False  # score the training set after each epoch, as the papers log it, not as it is learned

    def __post_init__(self) -> None:
        for name, value in checked("the plan", Plan, vars(self)).items():
            object.__setattr__(self, name, value)

    def schedule_for_lesson(self) -> Schedule:
        if self.schedule == "linear":
            return Linear(self.rate, self.epochs)
        return Plateau(self.rate, self.factor, self.patience, self.floor)
