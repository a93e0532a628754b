"""How full a layer's input space will be: a forecast from the tasks learned so far, and how far off such ones were.

A layer has d directions, of which some are taken after each task. All shares are of d, after tasks 1 … t. There are
three trends of what one more task takes; which of them is used is left to the tasks that were learned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from perdure.errors import WrongValue

Trend = Literal["share", "count", "fading"]
TRENDS: dict[Trend, str] = {  # of equals the first is taken: it can neither take more than there is nor stop short
    "share": "each new task takes the same share of what is still free",
    "count": "each new task takes the same number of directions",
    "fading": "each new task takes the same fraction of what the one before took",
}
FAR = 100  # tasks; no forecast from a few tasks is worth more
NEEDS_TWO = "a forecast needs two tasks: one alone does not show how much the next adds"
ROUNDING = 1e-9  # of shares that are meant to be equal


@dataclass(frozen=True)
class PastForecast:
    """A forecast that could have been made after some tasks, and what came."""

    layer: str
    after: int  # tasks known to it
    at: int  # tasks learned when it is compared
    said: float  # share taken
    was: float


@dataclass(frozen=True)
class Forecast:
    trend: Trend
    rates: dict[str, float]  # by layer
    left: dict[Trend, dict[str, int | None]]  # by trend and layer: tasks that still fit; None: more than `FAR`
    checks: list[PastForecast]  # of the trend that was chosen
    errors: dict[str, float]  # mean absolute error by trend, and of "unchanged"; empty where nothing can be checked


def rate(taken: Sequence[float], trend: Trend) -> float:
    """The share, number (as a share of d) or fraction that the trend speaks of.

    "share" is all that was taken over all that could have been: if a new task takes each free direction with one
    probability, its maximum-likelihood estimate. Like "count" it leaves the first task out, which finds everything free
    and takes what all images have in common. "fading" begins there, and never grows.

    >>> rate([0.5, 0.75, 0.875], "share"), rate([0.5, 0.625, 0.75], "count"), rate([0.5, 0.625], "fading")
    (0.5, 0.125, 0.25)
    """
    if len(taken) < 2:
        raise WrongValue(NEEDS_TWO)
    gained = taken[-1] - taken[0]
    if trend == "count":
        return gained / (len(taken) - 1)
    if trend == "fading":
        return min(gained / taken[-2], 1.0) if taken[-2] > 0 else 1.0
    could = sum(1 - share for share in taken[:-1])
    return gained / could if could > 0 else 0.0


def taken_after(taken: Sequence[float], trend: Trend, tasks: int) -> float:
    """The share that is taken when so many more tasks have been learned."""
    each, now = rate(taken, trend), taken[-1]
    if trend == "share":
        return 1 - (1 - now) * (1 - each) ** tasks
    if trend == "count":
        return min(now + each * tasks, 1.0)
    return min(now + (now - taken[-2]) * sum(each**step for step in range(1, tasks + 1)), 1.0)


def tasks_left(taken: Sequence[float], trend: Trend, free: float) -> int | None:
    """How many more tasks leave a share `free` of the layer free; None if more than `FAR` do.

    >>> tasks_left([0.4, 0.5], "count", 0.05), tasks_left([0.9, 0.97], "count", 0.05), tasks_left([0.5] * 2, "share", 0)
    (4, 0, None)
    """
    full = (tasks for tasks in range(FAR + 1) if 1 - taken_after(taken, trend, tasks + 1) < free - ROUNDING)
    return next(full, None)


def first_full(left: Mapping[str, int | None]) -> tuple[str | None, int | None]:
    """The layer that ends it, and after how many tasks; None and None where no layer does.

    >>> first_full({"a": None, "b": 7, "c": 9}), first_full({"a": None})
    (('b', 7), (None, None))
    """
    ends = [(tasks, layer) for layer, tasks in left.items() if tasks is not None]
    tasks, layer = min(ends, default=(None, None))
    return layer, tasks


def past_forecasts(layers: Mapping[str, Sequence[float]], trend: Trend) -> list[PastForecast]:
    """Every forecast that could have been made on the way, for every later task."""
    return [
        PastForecast(layer, after, at, taken_after(taken[:after], trend, at - after), taken[at - 1])
        for layer, taken in layers.items()
        for after in range(2, len(taken))
        for at in range(after + 1, len(taken) + 1)
    ]


def forecast(layers: Mapping[str, Sequence[float]], free: float) -> Forecast:
    """By the trend that would have erred least on the way, over all layers; "share" where two tasks leave no check."""
    tried = {trend: past_forecasts(layers, trend) for trend in TRENDS}
    errors: dict[str, float] = {}
    trend: Trend = "share"
    if tried[trend]:
        errors = {name: fmean(abs(past.said - past.was) for past in found) for name, found in tried.items()}
        trend = min(TRENDS, key=lambda name: errors[name])
        errors["unchanged"] = fmean(abs(layers[past.layer][past.after - 1] - past.was) for past in tried[trend])
    rates = {layer: rate(taken, trend) for layer, taken in layers.items()}
    left = {name: {layer: tasks_left(taken, name, free) for layer, taken in layers.items()} for name in TRENDS}
    return Forecast(trend, rates, left, tried[trend], errors)
