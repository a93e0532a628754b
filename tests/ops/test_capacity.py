"""Forecasts of how full a layer will be: sequences made by a trend are forecast exactly, and recognized."""

import pytest

from perdure.errors import WrongValue
from perdure.ops.capacity import FAR, TRENDS, Trend, forecast, past_forecasts, rate, taken_after, tasks_left


def made(trend: Trend, tasks: int, first: float = 0.3, pace: float = 0.2) -> list[float]:
    """What is taken after each task, step by step and not in the closed form of the forecast."""
    taken, gain = [first], first
    while len(taken) < tasks:
        gain = {"share": pace * (1 - taken[-1]), "count": pace / 4, "fading": pace * gain}[trend]
        taken.append(taken[-1] + gain)
    return taken


@pytest.mark.parametrize("trend", TRENDS)
def test_a_sequence_made_by_a_model_is_forecast_exactly(trend: Trend) -> None:
    taken = made(trend, 9)
    assert rate(taken[:4], trend) == pytest.approx(0.05 if trend == "count" else 0.2)
    assert [taken_after(taken[:4], trend, n) for n in range(1, 6)] == pytest.approx(taken[4:])
    found = past_forecasts({"layer": taken}, trend)
    assert [past.said for past in found] == pytest.approx([past.was for past in found], abs=1e-12)


@pytest.mark.parametrize("trend", TRENDS)
def test_the_model_that_erred_least_is_chosen(trend: Trend) -> None:
    found = forecast({"one": made(trend, 6), "other": made(trend, 6, first=0.2, pace=0.3)}, free=0.05)
    assert found.trend == trend
    assert found.errors[trend] == pytest.approx(0, abs=1e-12)
    assert all(found.errors[other] > 1e-3 for other in (*TRENDS, "unchanged") if other != trend)


def test_forecasts_on_the_way_know_nothing_of_what_comes() -> None:
    """Two tasks that add 0.1, then one that adds nothing: after two, a constant count says 0.3 and is off by 0.1."""
    found = past_forecasts({"layer": [0.1, 0.2, 0.2]}, "count")
    assert [(check.after, check.at) for check in found] == [(2, 3)]
    assert (found[0].said, found[0].was) == pytest.approx((0.3, 0.2))
    pairs = [(check.after, check.at) for check in past_forecasts({"layer": [0.1, 0.2, 0.3, 0.4, 0.5]}, "count")]
    assert pairs == [(2, 3), (2, 4), (2, 5), (3, 4), (3, 5), (4, 5)]


def test_tasks_left_in_closed_form() -> None:
    assert tasks_left([0.5, 0.6], "count", free=0.05) == 3  # 0.7, 0.8, 0.9, and 1.0 would be too much
    assert tasks_left([0.59, 0.68], "count", free=0.05) == 3  # 0.95 leaves exactly as much as is asked for
    assert tasks_left([0.0, 0.5], "share", free=0.1) == 2  # 1/2, 1/4, 1/8 free, and 1/16 is too little
    assert tasks_left([0.4, 0.6], "fading", free=0.05) is None  # 0.6 + 0.2 (1/2 + 1/4 + …) ends at 0.8
    assert tasks_left([0.4, 0.6], "fading", free=0.25) == 2  # 0.7, 0.75, and 0.775 is too much
    assert tasks_left([0.9, 0.99], "share", free=0.05) == 0


def test_a_hundred_tasks_are_counted_and_more_are_not() -> None:
    """A thousandth each: from 0.85 to 0.95 a hundred fit, from 0.849 one more."""
    assert tasks_left([0.849, 0.85], "count", free=0.05) == FAR == 100
    assert tasks_left([0.848, 0.849], "count", free=0.05) is None


def test_saying_as_it_is_errs_by_all_that_came() -> None:
    """After two tasks 0.3 are taken: 0.1 short of what three take, and 0.2 of what four do; after three 0.1."""
    found = forecast({"layer": [0.1, 0.3, 0.4, 0.5]}, free=0.05)
    assert found.errors["unchanged"] == pytest.approx((0.1 + 0.2 + 0.1) / 3)


def test_a_layer_that_is_full_or_takes_nothing_more() -> None:
    for trend in TRENDS:
        assert tasks_left([1.0, 1.0, 1.0], trend, free=0.05) == 0
        assert taken_after([1.0, 1.0], trend, 5) == 1
        assert taken_after([0.0, 0.0], trend, 5) == 0
        assert tasks_left([0.5, 0.5, 0.5], trend, free=0.05) is None
        assert taken_after([0.2, 0.9], trend, FAR) <= 1


def test_gains_that_grow_are_not_thought_to_grow_for_ever() -> None:
    assert rate([0.01, 0.02, 0.1], "fading") == 1.0


@pytest.mark.parametrize("taken", [[0.0, 0.5], [0.2, 0.9], [0.4, 0.8]])
def test_what_fades_is_never_thought_to_grow(taken: list[float]) -> None:
    assert rate(taken, "fading") == 1.0


def test_one_task_is_too_few_and_two_cannot_be_checked() -> None:
    with pytest.raises(WrongValue, match="needs two tasks"):
        forecast({"layer": [0.5]}, free=0.05)
    found = forecast({"layer": [0.5, 0.75]}, free=0.05)
    assert (found.trend, found.errors, found.checks) == ("share", {}, [])
    assert found.left["share"] == {"layer": 2}  # 0.875, 0.9375, and 0.96875 is too much
