"""What the tables and pictures of probes show, from figures that are all different: each where it belongs."""

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from perdure.report import render
from perdure.report.probes import (
    Result,
    calibration,
    capacity,
    corruption,
    flatness,
    geometry,
    landscape,
    masking,
    outliers,
    over_time,
    robustness,
    smoothing,
    transfer,
)
from perdure.report.table import Table


def rows(page: Any) -> list[list[str]]:
    """The cells of a table."""
    assert isinstance(page, Table)
    return [[cell.text for cell in row] for row in page.rows]


def heads(page: Any) -> list[str]:
    assert isinstance(page, Table)
    return [column.name for column in page.columns]


def data(line: Any) -> tuple[list[float], list[float]]:
    return list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))


def lines(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): data(line) for line in axes.lines if not str(line.get_label()).startswith("_")}


def drawn(page: Any, *results: Result) -> list[Any]:
    figure = Figure(layout="constrained")
    page.draw(figure, list(results))
    figure.draw_without_rendering()
    return list(figure.axes)


# --- parts ---


def test_the_last_strength_is_told_in_both_units() -> None:
    told = render.units({"in_pixels": [[0.1, 0.1], [0.2, 0.2]], "in_normalized": [[0.3, 0.4], [0.5, 0.6]]})
    assert told == "strength: 0.2 in pixels of 0 … 1, 0.5–0.6 in the network's normalized input"


def test_scores_are_acc_and_bwt() -> None:
    assert render.scores({"acc": 61.68, "bwt": -12.52}) == "ACC 61.7, BWT −12.5 (%)"
    assert render.scores({"acc": 61.68, "bwt": None}) == "ACC 61.7 (%)"


def test_shades_go_from_0_to_100_percent() -> None:
    axes = Figure().subplots()
    render.heat_map(axes, [[1.0]])
    assert axes.images[0].get_clim() == (0, 100)


def test_ticks_are_whole_numbers_from_one_to_the_last() -> None:
    axes = Figure().subplots()
    render.matrix_ticks(axes, 3, 2)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "3"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2"]
    render.matrix_ticks(axes, 45, 2)
    assert [label.get_text() for label in axes.get_xticklabels()] == [str(n) for n in range(1, 46, 3)]
    render.whole_ticks(axes, 1, 5)
    assert axes.get_xticks().tolist() == [1, 2, 3, 4, 5]
    render.whole_ticks(axes, 1, 21)
    assert axes.get_xticks().tolist() == list(range(1, 22, 3))


def test_panels_have_labels_below_where_nothing_follows() -> None:
    panels = render.panels(Figure(), 5, 3)
    assert len(panels) == 5
    shown = [axes.xaxis.get_tick_params()["labelbottom"] for axes in panels]
    assert shown == [False, False, True, True, True]  # the third has no panel below it


def test_of_several_runs_means_over_tasks_come_first() -> None:
    several = [Result(label, {}, {"tasks": ["a", "b"], "x": [1.0, 3.0], "y": [5.0, 6.0]}, {}) for label in ("p", "q")]
    whole, by_task = render.by_task(several, {"x": "X", "y": "Y"}, {"y": ""})
    assert rows(whole) == [["p", "2.00", "5.50"], ["q", "2.00", "5.50"]]
    assert (by_task.title, rows(by_task)) == ("Y, by task", [["a", "5.00", "5.00"], ["b", "6.00", "6.00"]])


# --- calibration ---


def calibrated(**change: Any) -> Result:
    together = {
        "ece": 1.11,
        "ece_equal_mass": 2.22,
        "nll": 3.333,
        "brier": 0.444,
        "accuracy": 55.55,
        "accuracy_interval": [50.0, 60.0],
        "confidence": 66.66,
        "overconfidence": 11.11,
    }
    arrays = {
        "count": np.array([[0, 0, 0, 0], [1, 10, 0, 89]]),
        "confidence": np.array([[0.0] * 4, [20.0, 40.0, 0.0, 90.0]]),
        "accuracy": np.array([[0.0] * 4, [10.0, 50.0, 0.0, 80.0]]),
        "interval": np.array([[[0.0, 0.0]] * 4, [[1.0, 40.0], [30.0, 70.0], [0.0, 0.0], [70.0, 88.0]]]),
    }
    return Result("run", {}, {"bins": 4, "tasks": [], "together": {**together, **change}}, arrays)


def test_calibration() -> None:
    page = calibration.tables([calibrated(), calibrated(ece=9.99)])[0]
    assert rows(page)[0] == ["run", "1.1", "2.2", "3.333", "0.444", "55.5 (50–60)", "66.7", "+11.1"]
    above, below = drawn(calibration, calibrated())
    assert lines(above) == {"run: ECE 1.1 %": ([40, 90], [50, 80])}  # one image of a hundred says nothing
    assert [segment[:, 1].tolist() for segment in above.collections[1].get_segments()] == [[30, 70], [70, 88]]
    assert below.patches[0].get_data().values.tolist() == [1, 10, 0, 89]


# --- capacity ---


def filled() -> Result:
    layers = {
        "conv": {"directions": 50, "shown": 900, "percent": [10.0, 20.0], "own": [11.0, 22.0]},
        "fc": {"directions": 100, "shown": 40, "percent": [30.0, 60.0], "own": [33.0, 66.0]},
    }
    forecast = {
        "model": "share",
        "tasks_left": 4,
        "error": 1.23,
        "by_model": {"share": 4, "count": 7, "fading": None},
        "layers": {"conv": {"tasks_left": None, "ahead": [30.0, 40.0]}, "fc": {"tasks_left": 4, "ahead": [70.0, 80.0]}},
    }
    told = {"tasks": ["a", "b"], "layers": layers, "bottleneck": "fc", "forecast": forecast, "text": ["in words"]}
    return Result("run", {}, told, {})


def test_capacity() -> None:
    page, *notes = capacity.tables([filled()])
    assert heads(page) == ["layer", "of", "1", "2", "own", "tasks left"]
    assert rows(page) == [["conv", "50", "10.0", "20.0", "22.0", "> 100"], ["fc ◂", "100", "30.0", "60.0", "66.0", "4"]]
    assert any("shown fc fewer inputs than directions" in str(note) for note in notes)
    assert notes[-1] == "in words"
    compared = capacity.tables([filled(), filled()])[0]
    assert rows(compared)[0] == ["run", "fc", "60.0", "66.0", "4", "share", "1.2", "7, > 100"]
    (axes,) = drawn(capacity, filled())
    curves = [data(line) for line in axes.lines[:4]]
    assert curves == [
        ([1, 2], [10, 20]),
        ([2, 3, 4], [20, 30, 40]),  # from where the last task left it
        ([1, 2], [30, 60]),
        ([2, 3, 4], [60, 70, 80]),
    ]


# --- corruption ---


def corrupted(label: str = "run", clean: float = 88.0) -> Result:
    told = {
        "kinds": ["fog", "jpeg", "contrast"],
        "severities": [1, 5],
        "acc": [[70.0, 41.0], [60.0, 50.0], [66.0, 55.0]],
        "source": "ours",
        "kept": 64.8,
        "clean": {"acc": clean},
        "corrupted": {
            "acc": 57.0,
            "interval": [51.0, 63.0],
            "by_kind": [55.5, 55.0, 60.5],
            "by_severity": [65.3, 48.7],
        },
    }
    return Result(label, {}, told, {})


def test_corruption() -> None:
    page, told, _ = corruption.tables([corrupted()])
    assert rows(page) == [
        ["fog", "70.0", "41.0", "55.5"],
        ["jpeg", "60.0", "50.0", "55.0"],
        ["contrast", "66.0", "55.0", "60.5"],
        ["all", "65.3", "48.7", "57.0"],
        ["clean", "", "", "88.0"],
    ]
    assert told == "all: 57.0, 65 % of clean accuracy; 95 % range for chance of images: 51.0–63.0"
    compared = corruption.tables([corrupted("a"), corrupted("b", 77.0)])[0]
    assert rows(compared)[1] == ["b", "77.0", "57.0", "51.0–63.0", "65", "65.3", "48.7"]
    axes = drawn(corruption, corrupted())[1]
    assert lines(axes) == {
        "contrast": ([0, 1, 5], [88, 66, 55]),  # what is left with most
        "fog": ([0, 1, 5], [88, 70, 41]),  # and with least
        "mean of 3": ([0, 1, 5], [88, 65.3, 48.7]),
    }
    assert axes.get_ylim() == (30, 90)  # whole tens around 41 and 88, not too near


# --- flatness and curvature ---


def test_curvature_has_its_own_errors() -> None:
    told = {
        "tasks": ["a", "b"],
        "loss": [1.0, 2.0],
        "gradient_norm": [3.0, 5.0],
        "top_eigenvalue": [10.0, 20.0],
        "residual": [0.1, 0.2],
        "trace": [100.0, 300.0],
        "trace_error": [7.0, 8.0],
    }
    page = flatness.tables([Result("run", {}, told, {})])[0]
    assert rows(page) == [
        ["a", "1.00", "3.00", "10.0 ± 0.1", "100 ± 7"],
        ["b", "2.00", "5.00", "20.0 ± 0.2", "300 ± 8"],
        ["mean", "1.50", "4.00", "15.0", "200"],
    ]
    top, bottom = drawn(flatness, Result("run", {}, told, {}))
    assert [data(axes.containers[0][0]) for axes in (top, bottom)] == [([0, 1], [10, 20]), ([0, 1], [100, 300])]
    bars = bottom.containers[0][2][0].get_segments()
    assert [segment[:, 1].tolist() for segment in bars] == [[93, 107], [292, 308]]


# --- landscape ---


def test_lines_of_a_landscape_have_the_deviation_of_a_sample() -> None:
    curves = np.array([[[3.0, 1.0, 3.0], [5.0, 1.0, 7.0]]])  # one task, two directions
    told = {"tasks": ["a"], "chance": [np.log(3)], "at": 0.1, "loss": [1.0], "rise": [0.5], "rise_error": [0.1]}
    result = Result("run", {}, told, {"steps": np.array([-1.0, 0.0, 1.0]), "curves": curves})
    (axes,) = drawn(landscape, result)
    assert data(axes.lines[0]) == ([-1, 0, 1], [4, 1, 5])
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((1.0, 5 + 8**0.5))  # √8 with n − 1, 2 with n
    assert axes.get_ylim()[1] == pytest.approx(1.05 * 1.5 * np.log(3))  # cut at one and a half times chance
    low = Result("run", {}, told, {"steps": np.array([-1.0, 0.0, 1.0]), "curves": 0.1 * curves})
    assert drawn(landscape, low)[0].get_ylim()[1] == pytest.approx(1.05 * np.log(3))  # chance is always seen


def test_the_first_direction_of_a_plane_goes_to_the_right() -> None:
    steps = np.linspace(-1, 1, 5)
    grid = np.broadcast_to(steps[:, None] + 1, (5, 5))  # which alone raises the loss
    told = {"task": "a", "chance": 10.0, "loss": 1.0, "lowest": 0.0, "highest": 2.0, "near": 0.1, "basin": 60.0}
    (axes,) = drawn(landscape, Result("run", {}, told, {"steps": steps, "grid": grid}))
    (contours,) = axes.collections
    paths = [path.vertices for path in contours.get_paths() if len(path.vertices)]
    inner = [vertices for vertices in paths if abs(vertices[:, 0].mean()) < 0.9]
    assert inner
    assert all(np.ptp(vertices[:, 0]) < 1e-9 < 1 < np.ptp(vertices[:, 1]) for vertices in inner)  # upright lines


# --- masking ---


def judged() -> Result:
    checks = [
        {"name": "one", "verdict": "pass", "value": 1.0, "unit": "points", "says": "fine"},
        {"name": "two", "verdict": "warn", "value": -2.04, "unit": "points", "says": "odd"},
        {"name": "three", "verdict": "fail", "value": 33.3, "unit": "%", "says": "bad"},
    ]
    names = ("PGD", "FGSM", "Square", "noise")
    curve = {name: {"accuracy": [60.0 + place, 10.0 + place]} for place, name in enumerate(names)}
    told = {
        "verdict": "fail",
        "checks": checks,
        "in_pixels": [[0.1, 0.1]],
        "in_normalized": [[0.4, 0.4]],
        "curve": {"strengths": [1 / 255, 0.5], "images": 64, "chance": 33.0, "clean": 90.0, **curve},
    }
    return Result("run", {}, told, {})


def test_masking() -> None:
    page = masking.tables([judged()])[0]
    assert rows(page) == [
        ["one", "pass", "+1.0 points", "fine"],
        ["two", "warn", "−2.0 points", "odd"],
        ["three", "fail", "33.3 %", "bad"],
    ]
    assert [[cell.bold for cell in row][1] for row in page.rows] == [False, True, True]
    left, right = drawn(masking, judged())
    assert lines(left) == {
        name: ([0, 1, 127.5], [90, 60 + place, 10 + place])
        for place, name in enumerate(("PGD", "FGSM", "Square", "noise"))
    }
    weights = {text.get_text(): text.get_fontweight() for text in right.texts}
    assert (weights["one"], weights["two"], weights["three"]) == ("normal", "bold", "bold")


# --- outliers ---


def contaminated() -> Result:
    def task(name: str, base: float) -> dict[str, Any]:
        sides = {"clean": base, "outlier": base + 1, "ratio": base + 2}
        return {
            "task": name,
            "outliers": 7,
            "loss": sides,
            "excess": {"real": base / 10, "first_order": base / 20},
            "past_gradient": {key: value / 100 for key, value in sides.items()} if base > 5 else None,
            "weight_gradient": {key: 10 * value for key, value in sides.items()},
            "span": base if base > 5 else None,
            "relative_span": base / 100 if base > 5 else None,
            "past_loss_rise": base / 5 if base > 5 else None,
        }

    mean = {
        "excess": 0.5,
        "first_order": 0.25,
        "past_gradient_ratio": 1.5,
        "weight_gradient_ratio": 123.4,
        "span": 8.0,
        "relative_span": 0.08,
        "past_loss_rise": 1.6,
        "correlation": 0.77,
    }
    claims = [{"claim": "it rises", "over": "images", "held": 66.7, "of": 30, "interval": [50.0, 80.0]}]
    tasks = [task("a", 4.0), task("b", 8.0)]
    return Result("run", {}, {"source": "noise", "tasks": tasks, "mean": mean, "claims": claims}, {})


def test_outliers() -> None:
    by_task, moved, together, held, *_ = outliers.tables([contaminated()])
    assert rows(by_task) == [
        ["a", "7", "+0.4", "+0.2", "–", "–", "–", "40", "50", "60.00"],
        ["b", "7", "+0.8", "+0.4", "0.08", "0.09", "0.10", "80", "90", "100"],
        ["mean", "", "+0.5", "+0.25", "", "", "1.50", "", "", "123"],
    ]
    assert rows(moved) == [["b", "8", "8.0 %", "+1.6"], ["mean", "8", "8.0 %", "+1.6"]]
    assert together == "correlation of span and past loss over tasks: +0.77"
    assert rows(held) == [["it rises", "30 images", "67", "50–80"]]
    compared, claims, *_ = outliers.tables([contaminated(), contaminated()])
    assert rows(compared)[0] == ["run", "+0.5", "+0.25", "1.50", "123", "8", "8.0 %", "+1.6", "+0.77"]
    assert rows(claims) == [["it rises", "images", "67", "67"]]
    loss, past, weights = drawn(outliers, contaminated())
    assert lines(loss) == {"clean": ([1, 2], [4, 8]), "outliers": ([1, 2], [5, 9])}
    assert lines(past) == {"clean": ([2], [0.08]), "outliers": ([2], [0.09])}
    assert lines(weights) == {"clean": ([1, 2], [40, 80]), "outliers": ([1, 2], [50, 90])}


# --- robust accuracy over time ---


def remembered(label: str, robust: list[list[float]]) -> Result:
    clean = {"matrix": [[99.0]], "acc": 90.0, "bwt": -1.0, "learning_accuracy": 91.0, "forgetting": 2.0}
    attacked = {"matrix": robust, "acc": 40.0, "bwt": -11.0, "learning_accuracy": 51.0, "forgetting": 12.0}
    units = {"in_pixels": [[0.1, 0.1]], "in_normalized": [[0.4, 0.4]]}
    told = {"attack": "PGD", "tasks": ["a", "b", "c"], "kept": -10.0, "clean": clean, "robust": attacked, **units}
    return Result(label, {}, told, {})


def test_over_time() -> None:
    one = remembered("one", [[80.0], [60.0, 70.0], [30.0, 50.0, 65.0]])
    joint = remembered("joint", [[50.0, 60.0, 70.0]])
    summary = over_time.tables([one, joint])[0]
    assert rows(summary)[0] == ["one", "40.0 (90.0)", "−11.0 (−1.0)", "51.0 (91.0)", "12.0 (2.0)", "−10.0"]
    old = drawn(over_time, one, joint)[-1]
    assert lines(old) == {"one": ([2, 3], [60, 40]), "joint": ([2, 3], [60, 60])}


# --- certified accuracy ---


def smoothed(label: str, bwt: float | None = -3.0, largest: float | None = 0.3) -> Result:
    def summary(first: float) -> dict[str, Any]:
        intervals = [[first - 5, first + 5], [first - 6, first + 6]]
        return {"acc": first + 0.5, "by_task": [first, first + 1], "interval": [1.0, 2.0], "intervals": intervals}

    over_time = [
        {"matrix": matrix, "acc": acc, "bwt": bwt, "learning_accuracy": acc + 1, "forgetting": acc + 2}
        for acc, matrix in ((70.0, [[1.0], [2.0, 3.0]]), (40.0, [[55.0], [45.0, 35.0]]))
    ]
    told = {
        "sigma": 0.12,
        "samples": 1000,
        "alpha": 0.001,
        "radii": [0.0, 0.2],
        "largest": largest,
        "fixed": True,
        "tasks": ["a", "b"],
        "images": [4, 5],
        "clean": summary(80),
        "certified": [summary(70), summary(40)],
        "abstained": summary(10),
        "mean_radius": [0.1, 0.2],
        "over_time": None if bwt is None else over_time,
    }
    arrays = {
        "radius_0": np.array([0.3, 0.1, -1.0, 0.2]),
        "right_0": np.array([1, 1, 0, 0], np.uint8),
        "radius_1": np.array([0.3, 0.3, 0.05, 0.3]),
        "right_1": np.array([1, 1, 1, 1], np.uint8),
    }
    return Result(label, {}, told, arrays)


def test_smoothing() -> None:
    summary, by_task, over_time, matrix, *notes = smoothing.tables([smoothed("gpm")])
    assert heads(summary) == ["run", "clean", "≥ 0", "≥ 0.2", "abstained", "mean r"]
    assert rows(summary) == [["gpm", "80.5", "70.5", "40.5", "10.5", "0.150"]]
    assert rows(by_task) == [
        ["a", "4", "80.0", "70.0 (65–75)", "40.0 (35–45)", "10.0"],
        ["b", "5", "81.0", "71.0 (64–76)", "41.0 (34–46)", "11.0"],
    ]
    assert rows(over_time) == [
        ["gpm", "≥ 0", "70.0", "−3.0", "71.0", "72.0"],
        ["gpm", "≥ 0.2", "40.0", "−3.0", "41.0", "42.0"],
    ]
    assert [row[1:] for row in rows(matrix)] == [["55.0", ""], ["45.0", "35.0"]]
    assert smoothing.FIXED in notes
    assert notes[-1].endswith("chance of at most 0.001; 1000 noisy copies can certify 0.3 at most")
    assert smoothing.tables([smoothed("gpm", largest=None)])[-1].endswith("can certify nothing")


def test_smoothing_compared_and_drawn() -> None:
    one, other = smoothed("gpm"), smoothed("pat", bwt=None)
    summary, over_time, *notes = smoothing.tables([one, other])
    assert [row[0] for row in rows(summary)] == ["gpm", "pat"]
    assert [row[0] for row in rows(over_time)] == ["gpm", "gpm"]
    assert all(isinstance(note, str) for note in notes)
    (curves,) = drawn(smoothing, other)
    radii, mean = lines(curves)["mean"]
    assert radii[0] == 0
    assert radii[-1] == 0.3
    assert (mean[0], mean[-1]) == (75.0, 50.0)  # of 2 of 4 and 4 of 4, 1 and 3; a wrong answer does not count
    assert lines(curves)["a"][1][0] == 50
    at = min(range(len(radii)), key=lambda place: abs(radii[place] - 0.15))
    assert (lines(curves)["a"][1][at], lines(curves)["b"][1][at]) == (25, 75)
    both, old = drawn(smoothing, one, other)
    assert set(lines(both)) == {"gpm", "pat"}
    assert lines(both)["pat"][1] == mean
    assert lines(old) == {"gpm": ([2], [45])}


# --- accuracy under attack ---


def attacked(label: str = "run") -> Result:
    told = {
        "attack": "FGSM",
        "norm": "linf",
        "space": "pixels in [0, 1], clipped",
        "strengths": [2 / 255, 1 / 255],
        "labels": ["2/255", "1/255"],
        "in_pixels": [[0.008, 0.008], [0.004, 0.004]],
        "in_normalized": [[0.03, 0.04], [0.01, 0.02]],
        "tasks": ["a", "b"],
        "images": [30, 50],
        "acc": [40.0, 60.0],
        "loss": [2.5, 1.5],
        "by_task": [[41.0, 39.0], [61.0, 59.0]],
        "intervals": {
            "pooled": [[35.0, 45.0], [55.0, 65.0]],
            "by_task": [[[31.0, 51.0], [29.0, 49.0]], [[52.0, 71.0], [48.0, 69.0]]],
        },
        "clean": {
            "acc": 80.0,
            "interval": [75.0, 85.0],
            "loss": 0.5,
            "by_task": [81.0, 79.0],
            "intervals": [[72.0, 91.0], [68.0, 89.0]],
        },
        "notes": ["take care"],
    }
    return Result(label, {}, told, {})


def test_robustness() -> None:
    page, by_task, *notes = robustness.tables([attacked()])
    assert rows(page) == [
        ["run", "clean", "0", "0", "80.0", "75–85", "0.500"],
        ["run", "2/255", "0.008", "0.03–0.04", "40.0", "35–45", "2.500"],
        ["run", "1/255", "0.004", "0.01–0.02", "60.0", "55–65", "1.500"],
    ]
    assert rows(by_task) == [
        ["a", "30", "81.0 (72–91)", "41.0 (31–51)", "61.0 (52–71)"],
        ["b", "50", "79.0 (68–89)", "39.0 (29–49)", "59.0 (48–69)"],
    ]
    assert notes[-1] == "run: take care"
    (axes,) = drawn(robustness, attacked())
    assert lines(axes) == {"run": ([0, pytest.approx(1 / 255), pytest.approx(2 / 255)], [80, 60, 40])}  # by strength
    bars = [segment[:, 1].tolist() for segment in axes.collections[0].get_segments()]
    assert bars == [[75, 85], [55, 65], [35, 45]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["clean", "1/255", "2/255"]


# --- transfer ---


def test_transfer() -> None:
    told = {
        "names": ["x", "y"],
        "images": 100,
        "attack": "PGD",
        "clean": [90.0, 80.0],
        "clean_intervals": [[84.0, 94.0], [70.0, 90.0]],
        "matrix": [[10.0, 30.0], [50.0, 40.0]],
        "intervals": [[[5.0, 15.0], [22.0, 38.0]], [[40.0, 60.0], [30.0, 51.0]]],
        "flags": [{"from": "x", "on": "y", "verdict": "fail", "points": 10.0, "p": 0.001}],
        "in_pixels": [[0.1, 0.1]],
        "in_normalized": [[0.4, 0.4]],
    }
    page, _, warning = transfer.tables([Result("x | y", {}, told, {})])
    assert rows(page) == [["  (clean)", "90.0", "80.0"], ["1 x", "10.0", "30.0"], ["2 y", "50.0", "40.0"]]
    assert "± 10.5 at most" in page.title  # half of the widest, 30 … 51
    assert warning.startswith("fail: what is crafted on x takes 10.0 points more from y than its own gradients do")
    axes = drawn(transfer, Result("x | y", {}, told, {}))[0]
    cells = {tuple(map(int, text.get_position())): (text.get_text(), text.get_fontweight()) for text in axes.texts}
    assert cells == {
        (0, 0): ("90.0", "normal"),
        (1, 0): ("80.0", "normal"),
        (0, 1): ("10.0", "bold"),
        (1, 1): ("30.0*", "bold"),  # crafted on x, tried on y
        (0, 2): ("50.0", "normal"),
        (1, 2): ("40.0", "bold"),
    }


# --- geometry ---


def test_geometry() -> None:
    told = {
        "images": 30,
        "uniformity": -1.234,
        "alignment": 0.567,
        "effective_rank": 8.91,
        "class_overlap": 22.2,
        "class_overlap_interval": [12.0, 33.0],
        "neighbor_overlap": 44.4,
    }
    tasks = [{"name": name, "classes": ["p", "q"], **told} for name in ("a", "b", "c")]
    points = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [0.6, 0.8], [0.8, 0.6], [0.8, -0.6]])
    arrays = {"features2d": points, "task": np.array([0, 0, 0, 1, 2, 2, 2]), "label": np.array([0, 0, 1, 1, 0, 0, 1])}
    figures = {"part": "test", "tasks": tasks, "together": told, "circle": {"head": "pca", "uniformity": -0.5}}
    result = Result("run", {}, figures, arrays)
    page = geometry.tables([result])[0]
    assert rows(page)[0] == ["a", "30", "−1.23", "0.57", "8.9", "22.2 (12–33)", "44.4"]
    everything, *classes = geometry._circles(result)
    assert everything.points.tolist() == points.tolist()
    assert everything.title == "all 3 tasks, 7 images"
    assert [(one.title, len(one.points)) for one in classes] == [
        ("task 1: “p”", 2),
        ("task 2: “q”", 1),  # it has no image of the first class
        ("task 3: “p”", 2),
    ]
