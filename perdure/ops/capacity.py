"""How full a layer's input space will be: a forecast from the tasks learned so far, and how far off such ones were.

A layer has d directions, of which some are taken after each task. All shares are of d, after tasks 1 … t. Three models
of what one more task takes; which of them is used is left to the tasks that were learned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from perdure.errors import WrongValue

Model = Literal["share", "count", "fading"]
MODELS: dict[Model, str] = {  # of equals the first is taken: it can neither take more than there is nor stop short
    "share": "each new task takes the same share of what is still free",
    "count": "each new task takes the same number of directions",
    "fading": "each new task takes the same fraction of what the one before took",
}
FAR = 100  # tasks; no forecast from a few tasks is worth more
NEEDS_TWO = "a forecast needs two tasks: one alone does not show how much the next adds"
ROUNDING = 1e-9  # of shares that are meant to be equal


@dataclass(frozen=True)
class Check:
    """A forecast that could have been made after some tasks, and what came."""

    layer: str
    after: int  # tasks known to it
    at: int  # tasks learned when it is compared
    said: float  # share taken
    was: float


@dataclass(frozen=True)
class Forecast:
    model: Model
    rates: dict[str, float]  # by layer
    left: dict[Model, dict[str, int | None]]  # by model and layer: tasks that still fit; None: more than `FAR`
    checks: list[Check]  # of the model that was chosen
    errors: dict[str, float]  # mean absolute error by model, and of "unchanged"; empty where nothing can be checked


def rate(taken: Sequence[float], model: Model) -> float:
    """The share, number (as a share of d) or fraction that the model speaks of.

    "share" is all that was taken over all that could have been: if a new task takes each free direction with one
    probability, its maximum-likelihood estimate. Like "count" it leaves the first task out, which finds everything free
    and takes what all images have in common. "fading" begins there, and never grows.

    >>> rate([0.5, 0.75, 0.875], "share"), rate([0.5, 0.625, 0.75], "count"), rate([0.5, 0.625], "fading")
    (0.5, 0.125, 0.25)
    """
    if len(taken) < 2:
        raise WrongValue(NEEDS_TWO)
    gained = taken[-1] - taken[0]
    if model == "count":
        return gained / (len(taken) - 1)
    if model == "fading":
        return min(gained / taken[-2], 1.0) if taken[-2] > 0 else 1.0
    could = sum(1 - share for share in taken[:-1])
    return gained / could if could > 0 else 0.0


def taken_after(taken: Sequence[float], model: Model, tasks: int) -> float:
    """The share that is taken when so many more tasks have been learned."""
    pace, now = rate(taken, model), taken[-1]
    if model == "share":
        return 1 - (1 - now) * (1 - pace) ** tasks
    if model == "count":
        return min(now + pace * tasks, 1.0)
    return min(now + (now - taken[-2]) * sum(pace**step for step in range(1, tasks + 1)), 1.0)


def tasks_left(taken: Sequence[float], model: Model, free: float) -> int | None:
    """How many more tasks leave a share `free` of the layer free; None if more than `FAR` do.

    >>> tasks_left([0.4, 0.5], "count", 0.05), tasks_left([0.9, 0.97], "count", 0.05), tasks_left([0.5] * 2, "share", 0)
    (4, 0, None)
    """
    for tasks in range(FAR + 1):
        if 1 - taken_after(taken, model, tasks + 1) < free - ROUNDING:
            return tasks
    return None


def first_full(left: Mapping[str, int | None]) -> tuple[str | None, int | None]:
    """The layer that ends it, and after how many tasks; None and None where no layer does.

    >>> first_full({"a": None, "b": 7, "c": 9}), first_full({"a": None})
    (('b', 7), (None, None))
    """
    ends = [(tasks, layer) for layer, tasks in left.items() if tasks is not None]
    if not ends:
        return None, None
    tasks, layer = min(ends)
    return layer, tasks


def checks(layers: Mapping[str, Sequence[float]], model: Model) -> list[Check]:
    """Every forecast that could have been made on the way, for every later task."""
    return [
        Check(layer, after, at, taken_after(taken[:after], model, at - after), taken[at - 1])
        for layer, taken in layers.items()
        for after in range(2, len(taken))
        for at in range(after + 1, len(taken) + 1)
    ]


def error(found: Sequence[Check]) -> float:
    """Mean absolute error."""
    return fmean(abs(check.said - check.was) for check in found)


def forecast(layers: Mapping[str, Sequence[float]], free: float) -> Forecast:
    """By the model that would have erred least on the way, over all layers; "share" where two tasks leave no check."""
    tried = {model: checks(layers, model) for model in MODELS}
    model: Model = "share"
    errors: dict[str, float] = {}
    if tried[model]:
        model = min(MODELS, key=lambda name: error(tried[name]))
        errors = {name: error(found) for name, found in tried.items()}
        errors["unchanged"] = fmean(abs(layers[check.layer][check.after - 1] - check.was) for check in tried[model])
    rates = {layer: rate(taken, model) for layer, taken in layers.items()}
    left = {name: {layer: tasks_left(taken, name, free) for layer, taken in layers.items()} for name in MODELS}
    return Forecast(model, rates, left, tried[model], errors)
