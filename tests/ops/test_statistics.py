"""Means, deviations, intervals and pairs, against figures known from elsewhere."""

import math
import statistics

import pytest

from perdure.ops.statistics import (
    Group,
    Interval,
    correlation,
    differences,
    groups,
    interval,
    labels,
    paired,
    reference,
    spread,
    t_quantile,
)

# Abramowitz and Stegun, table 26.10, and closed forms for one and two degrees of freedom.
KNOWN = [
    (0.975, 1, math.tan(math.pi * 0.475)),
    (0.975, 2, 0.95 * math.sqrt(2 / (1 - 0.95**2))),
    (0.975, 4, 2.776445105),
    (0.975, 9, 2.262157163),
    (0.95, 5, 2.015048373),
    (0.995, 10, 3.169272673),
    (0.9995, 3, 12.923978637),
    (0.975, 30, 2.042272456),
    (0.975, 10**9, 1.959963985),
]


@pytest.mark.parametrize(("share", "freedom", "known"), KNOWN)
def test_quantiles_of_student(share: float, freedom: int, known: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(known, rel=0, abs=1e-6)
    assert t_quantile(1 - share, freedom) == pytest.approx(-known, rel=0, abs=1e-6)


def test_quantiles_agree_with_scipy() -> None:
    scipy = pytest.importorskip("scipy.stats")
    for freedom in (1, 2, 3, 4, 7, 19, 99, 5000, 20_000):
        for share in (0.01, 0.3, 0.6, 0.9, 0.975, 0.999):
            assert t_quantile(share, freedom) == pytest.approx(scipy.t.ppf(share, freedom), abs=1e-9, rel=1e-9)


@pytest.mark.parametrize(("share", "freedom"), [(0, 3), (1, 3), (0.5, 0), (float("nan"), 3)])
def test_there_are_no_other_quantiles(share: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        t_quantile(share, freedom)


def test_spread_is_of_a_sample() -> None:
    values = [78.3, 77.3, 79.1, 80.0]
    found = spread(values)
    assert found is not None
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.deviation == pytest.approx(statistics.stdev(values))
    assert found.n == 4
    one = spread([5.0])
    assert one is not None
    assert (one.mean, one.deviation, one.n) == (5.0, None, 1)
    assert spread([]) is None


def test_interval_of_three() -> None:
    found = interval([1.0, 2.0, 3.0])  # 2 ± 4.302653 · 1 / √3
    assert found is not None
    assert found.low == pytest.approx(2 - 2.4841377, abs=1e-6)
    assert found.high == pytest.approx(2 + 2.4841377, abs=1e-6)
    assert interval([7.0]) == Interval(7.0, None, None, 1)
    assert interval([]) is None


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_an_interval_is_as_wide_as_its_level_of_confidence_asks(level: float) -> None:
    """Of three values, where Student's quantile has a closed form; pairs have the same, of their differences."""
    half = level * math.sqrt(2 / (1 - level**2)) / math.sqrt(3)  # times the deviation, which is 1
    pairs = paired({1: 11.0, 2: 12.0, 3: 13.0}, {1: 10.0, 2: 10.0, 3: 10.0}, level)
    for found in (interval([1.0, 2.0, 3.0], level), pairs):
        assert found is not None
        assert (found.low, found.high) == (pytest.approx(2 - half), pytest.approx(2 + half))


def test_pairs_are_of_the_same_seed() -> None:
    """Large chance that both share drops out; a seed that one of them lacks does not count."""
    found = paired({1: 50.0, 2: 91.0, 3: 72.0, 4: 1.0}, {3: 70.0, 2: 90.0, 1: 49.0, 5: 8.0})
    assert found is not None
    assert (found.mean, found.n) == (pytest.approx(4 / 3), 3)
    assert found.high is not None
    assert found.high < 3
    assert paired({1: 5.0}, {2: 5.0}) is None


ASKED = ("network", "tasks", "settings", "outliers", "judged_on", "code")


def run(method: str, benchmark: str = "six", seed: int = 1, **more: object) -> dict[str, object]:
    plan = {"epochs": more.pop("epochs", 10)}
    asked = {"network": "mlp", "tasks": None, "settings": {}, "plan": plan}
    asked |= {name: more.pop(name) for name in ASKED if name in more}
    figures = {name: more.pop(name) for name in ("acc", "bwt") if name in more}
    return {"method": method, "benchmark": benchmark, "seed": seed, **asked, "values": more, **figures}


def test_groups_are_alike_but_for_the_seed() -> None:
    runs = [
        run("rcl", seed=1, weight=0.1, range=1e-4, acc=70.0, bwt=None),
        run("gpm", seed=1, acc=60.0, bwt=-1.0),
        run("rcl", seed=1, weight=0.2, range=1e-4, acc=71.0),
        run("rcl", "five", seed=1, weight=0.1, range=1e-4),
        run("rcl", seed=2, weight=0.1, range=1e-4, acc=72.0),
        run("gpm", seed=2),
    ]
    found = groups(runs)
    assert [(group.benchmark, group.name, len(group.runs)) for group in found] == [
        ("six", "rcl (weight=0.1)", 2),
        ("six", "rcl (weight=0.2)", 1),
        ("six", "gpm", 2),
        ("five", "rcl", 1),
    ]
    assert found[0].figures("acc") == {1: 70.0, 2: 72.0}
    assert found[0].spread("bwt") is None
    assert found[2].figures("acc") == {1: 60.0}  # the other is not done
    assert reference(found, "six") is found[0]
    assert reference(found, "six", "gpm") is found[2]
    assert reference(found, "five", "gpm") is None


def test_runs_on_other_data_are_kept_apart() -> None:
    """Or a mean would be taken over two benchmarks, and one seed would hide the other's run."""
    legacy, real = {"legacy": True}, {"legacy": False}
    runs = [
        run("gpm", "five", seed=1, settings=legacy, acc=90.0),
        run("gpm", "five", seed=1, settings=real, acc=80.0),
        run("gpm", "five", seed=2, settings=legacy, acc=92.0),
        run("gpm", "five", seed=1, settings=legacy, tasks=3, acc=95.0),
        run("gpm", "five", seed=1, settings=legacy, outliers="labels:0.2", acc=60.0),
    ]
    assert [(group.label, group.figures("acc")) for group in groups(runs)] == [
        ("tasks=None, outliers=none, data legacy=true", {1: 90.0, 2: 92.0}),
        ("tasks=None, outliers=none, data legacy=false", {1: 80.0}),
        ("tasks=3, outliers=none, data legacy=true", {1: 95.0}),
        ("tasks=None, outliers=labels:0.2, data legacy=true", {1: 60.0}),
    ]
    together = groups([run("gpm", "five", seed=seed, settings=legacy, acc=90.0 + seed) for seed in (1, 2)])
    assert [(group.label, group.figures("acc")) for group in together] == [("", {1: 91.0, 2: 92.0})]


def test_runs_judged_on_other_images_or_of_other_code_are_kept_apart() -> None:
    """A search leaves runs in the store alike but for what their figures are of; one's own method is edited."""
    searched = groups([run("gpm", judged_on="valid", acc=90.0), run("gpm", judged_on="test", acc=80.0)])
    assert [(group.name, group.figures("acc")) for group in searched] == [
        ("gpm (judged_on=valid)", {1: 90.0}),
        ("gpm (judged_on=test)", {1: 80.0}),
    ]
    code = [{"method": {"where": "my.py", "checksum": checksum}} for checksum in ("12ab", "34cd")]
    edited = groups([run("my.py:Careful", code=found, acc=80.0) for found in code])
    assert [group.name for group in edited] == ["Careful (method code=12ab)", "Careful (method code=34cd)"]


def test_labels_name_networks_and_plans_too() -> None:
    assert labels([run("gpm"), run("gpm", network="alexnet"), run("gpm", epochs=5)]) == [
        "network=mlp, plan epochs=10",
        "network=alexnet, plan epochs=10",
        "network=mlp, plan epochs=5",
    ]
    assert labels([run("gpm"), run("ewc", network="alexnet")]) == ["", ""]


def test_what_a_study_has_a_name_for_does_not_set_apart_what_it_has_none_for() -> None:
    low = {"row": "gpm, low"}
    assert labels([run("gpm"), run("gpm", threshold=0.9) | low, run("gpm", seed=2)]) == ["", "", ""]
    found = groups([run("gpm"), run("gpm", threshold=0.9) | low, run("gpm", threshold=0.8) | low])
    assert [(group.name, group.label) for group in found] == [
        ("gpm", ""),
        ("gpm, low", "threshold=0.9"),
        ("gpm, low", "threshold=0.8"),
    ]


def test_every_group_is_compared_with_its_benchmarks_first_or_with_the_one_named() -> None:
    def group(method: str, benchmark: str, *acc: float) -> Group:
        return Group(method, benchmark, "", tuple({"seed": seed, "acc": one} for seed, one in enumerate(acc, 1)))

    found = [group("a", "six", 1, 2), group("b", "six", 3, 5), group("c", "six"), group("b", "five", 1)]
    (one,) = differences(found)
    assert (one.group, one.other, one.figures["bwt"]) == (found[1], found[0], None)
    assert one.figures["acc"] == interval([2.0, 3.0])
    assert [(each.group.method, each.other.method) for each in differences(found, "b")] == [("a", "b")]
    assert differences(found, "nobody") == []
    robust = [Group(method, "six", "", ({"seed": 1, "PGD-20": acc},)) for method, acc in (("a", 30.0), ("b", 66.0))]
    (one,) = differences(robust, measured=["PGD-20"])
    assert one.figures["PGD-20"] == interval([36.0])


def test_two_points_are_the_fewest_that_correlate() -> None:
    assert correlation([1.0, 2.0], [5.0, 3.0]) == pytest.approx(-1.0)
    assert correlation([1.0], [5.0]) is None
