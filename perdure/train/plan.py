"""How long and how fast to learn, by which optimizer, and with which augmentation."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator

from perdure import registry
from perdure.errors import UnknownName, WrongValue
from perdure.schema import Count, Limits, Positive, Weight, checked
from perdure.train.schedules import Constant, Cosine, Linear, Plateau, Schedule, Steps, Warmup

Augment = Annotated[
    str | Callable[..., Any],
    Limits(about="none, flip, crop, my.py:NAME, or several with + between"),
    BeforeValidator(lambda given: "none" if given is None else given),
]
Epochs = Annotated[int, Limits(ge=0)]

# since format 4 of specifications
ADDED = (
    *("optimizer", "weight_decay", "nesterov", "reset_momentum", "milestones", "warmup", "augment", "statistics"),
    "valid_order",
)
TRIED = {"sgd": 0.01, "adamw": 0.001}  # a rate at which most networks learn


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long and how fast to learn a lesson; the same for every method."""

    rate: Positive = 0.01  # η: learning rate at the start of each lesson, after the warmup
    epochs: Count = 200  # at most so many
    batch: Count = 64  # training images a step
    schedule: Literal["plateau", "linear", "cosine", "steps", "constant"] = "plateau"  # when to lower the rate
    factor: Positive = 2.0  # plateau, steps: what the rate is divided by
    patience: Count = 6  # plateau: epochs without improvement of the validation loss before that
    floor: Weight = 1e-5  # plateau: stop when the rate falls below
    milestones: tuple[Count, ...] = ()  # steps: after how many epochs, e.g. 5,8; none given: at 1/2 and 3/4 of them
    warmup: Epochs = 0  # epochs in which the rate climbs in even steps, before the schedule begins
    optimizer: Literal["sgd", "adamw"] = "sgd"  # what makes a step of a gradient
    momentum: Annotated[float, Limits(ge=0, lt=1)] = 0.0  # of SGD
    nesterov: bool = False  # SGD: look ahead along the momentum
    reset_momentum: bool = False  # whether the optimizer starts anew, without momentum, when the rate drops
    weight_decay: Weight = 0.0  # pull of all moving weights towards zero: in the gradient (SGD), or beside it (AdamW)
    augment: Augment = "none"  # random changes of training images, and of no others
    keep: Literal["best", "last"] = "best"  # weights kept after a lesson: lowest validation loss, or the last
    valid_order: Literal["fixed", "shuffled"] = "fixed"  # batches of validation images: always the same, or new ones
    precision: Literal["float32", "bf16"] = "float32"  # in which the network computes while it learns
    statistics: Literal["batch", "task"] = "batch"  # of batch norm in use: those of the batch, as published, or stored
    train_scores: bool = False  # score the training set after each epoch, as the papers log it, not as it is learned

    def __post_init__(self) -> None:
        for name, value in checked("the plan", Plan, vars(self)).items():
            object.__setattr__(self, name, value)
        check(self)

    def schedule_for_lesson(self) -> Schedule:
        schedule = self._after_warmup(self.epochs - self.warmup)
        return Warmup(schedule, self.warmup) if self.warmup else schedule

    def _after_warmup(self, epochs: int) -> Plateau | Constant:
        if self.schedule == "plateau":
            return Plateau(self.rate, self.factor, self.patience, self.floor)
        if self.schedule == "steps":
            milestones = tuple(m - self.warmup for m in self.milestones) or (epochs / 2, 3 * epochs / 4)
            return Steps(self.rate, epochs, milestones=milestones, factor=self.factor)
        return {"linear": Linear, "cosine": Cosine, "constant": Constant}[self.schedule](self.rate, epochs)

    def lasting(self, epochs: int) -> Self:
        """The same plan over another number of epochs; warmup and milestones keep their shares of it."""
        ratio = epochs / self.epochs
        warmup = min(round(self.warmup * ratio), epochs - 1)
        moved = {round(milestone * ratio) for milestone in self.milestones}
        milestones = tuple(sorted(m for m in moved if warmup < m < epochs))
        return replace(self, epochs=epochs, warmup=warmup, milestones=milestones)

    def augmentations(self) -> list[str]:
        """The names of what training images go through, one after another."""
        named = isinstance(self.augment, str) and self.augment != "none"
        return [part.strip() for part in str(self.augment).split("+")] if named else []

    def lower_rate(self) -> float:
        """A learning rate to try when this one was too high."""
        return min(self.rate / 5, TRIED[self.optimizer])

    def plain(self) -> dict[str, Any]:
        """As data; options that came later are left out at their defaults, so that older runs keep their names."""
        if callable(self.augment):
            raise WrongValue("augment: a run is filed under names; give it as run(…, plan={'augment': …}), or its name")
        defaults = {field.name: field.default for field in fields(self)}
        return {k: v for k, v in asdict(self).items() if k not in ADDED or v != defaults[k]}


def check(plan: Plan) -> None:
    """Refuse options that mean nothing together."""
    if plan.optimizer == "adamw" and (plan.momentum or plan.nesterov):
        raise WrongValue("the plan: momentum and nesterov are of sgd; with optimizer=adamw, set momentum=0")
    if plan.nesterov and not plan.momentum:
        raise WrongValue("the plan: nesterov=true needs momentum, e.g. momentum=0.9")
    if plan.milestones and plan.schedule != "steps":
        raise WrongValue(f"the plan: milestones are of schedule=steps, not {plan.schedule}; leave them out")
    if plan.warmup >= plan.epochs:
        raise WrongValue(f"the plan: warmup={plan.warmup} leaves nothing of {plan.epochs} epochs; make it shorter")
    if any(not plan.warmup < milestone < plan.epochs for milestone in plan.milestones):
        given = ",".join(map(str, plan.milestones))
        raise WrongValue(
            f"the plan: milestones={given} must lie after the warmup ({plan.warmup}) and before the end ({plan.epochs})"
        )
    for part in plan.augmentations():
        if part not in registry.augmentations and not registry.OWN.fullmatch(part):  # files may be run later, or never
            raise UnknownName("augmentation", part, ["none", *registry.augmentations])
