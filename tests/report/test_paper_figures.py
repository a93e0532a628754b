"""What the figures of the paper show: every line and point where it belongs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from perdure.report.paper_figures import SPANS, PaperFigure, Runs
from perdure.report.probes import Result


def drawn(name: str, runs: Runs) -> list[Any]:
    figure = Figure(layout="constrained")
    PaperFigure(name, runs).draw(figure)
    figure.draw_without_rendering()
    return list(figure.axes)


def lines(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    found = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in found}


def rows(name: str, runs: Runs) -> list[list[str]]:
    return [[cell.text for cell in row] for row in PaperFigure(name, runs).table().rows]


# --- landscapes and spans ---


def landscape(label: str, *curves: list[float], task: int | None = 2, after: int | None = None) -> tuple[str, Result]:
    """A direction for each curve."""
    arrays = {"steps": np.linspace(-0.4, 0.4, 5), "curves": np.array([curves])}
    values = {"task": task, "after": after}
    return "landscape", Result(label, values, {"tasks": ["cats"], "chance": [2.0]}, arrays)


LANDSCAPES: Runs = [
    (
        "gpm, seed 1",
        [landscape("gpm, seed 1", [5, 3, 0, 3, 5], [2, 2, 0, 2, 2]), landscape("", [5, 3, 1, 3, 5], task=5, after=5)],
    ),
    ("gpm, seed 2", [landscape("gpm, seed 2", [1, 1, 1, 1, 1])]),
    ("rcl, seed 1", [landscape("rcl, seed 1", [0.5, 0.2, 0.1, 0.4, 0.7])]),
]
STEPS = pytest.approx([-0.4, -0.2, 0, 0.2, 0.4])


def test_landscapes_are_means_over_directions_and_seeds_with_a_panel_for_each_task() -> None:
    first, second = drawn("landscapes", LANDSCAPES)
    assert lines(first)["gpm"] == (STEPS, [2.25, 1.75, 0.5, 1.75, 2.25])
    assert lines(first)["rcl"] == (STEPS, [0.5, 0.2, 0.1, 0.4, 0.7])
    assert lines(second)["gpm"] == (STEPS, [5, 3, 1, 3, 5])
    assert first.get_title() == "(a) task 2 (cats), after all tasks"
    assert second.get_title() == "(b) task 5 (cats), after task 5"
    assert second.get_ylim()[1] == pytest.approx(1.05 * 1.5 * 2)  # cut above the loss of one who knows nothing
    assert rows("landscapes", LANDSCAPES)[1] == ["task 2 (cats), after all tasks", "gpm", "-0.2", "1.75"]


def test_spans_are_means_of_both_sides_of_the_last_weights() -> None:
    (axes,) = drawn("span", [(label, found[::-1]) for label, found in LANDSCAPES])
    assert lines(axes)["rcl"] == (pytest.approx([0, 0.2]), pytest.approx([0.1, 0.3]))  # as far as is shown
    marked = [list(line.get_ydata()) for line in axes.lines if list(line.get_xdata()) == list(SPANS)]
    assert marked == [pytest.approx([1.125, 1.75]), pytest.approx([0.2, 0.3])]
    assert {"ΔW₁ = 0.1", "ΔW₂ = 0.2", "+0.625", "+1.25", "+0.100", "+0.200"} <= {t.get_text() for t in axes.texts}
    assert rows("span", LANDSCAPES) == [["gpm", "0.5", "1.125", "1.75"], ["rcl", "0.1", "0.2", "0.3"]]


def test_a_span_that_was_not_measured_is_not_marked() -> None:
    name, found = landscape("gpm, seed 1", [3, 2, 1, 2, 3])
    near = replace(found, arrays={**found.arrays, "steps": np.linspace(-0.16, 0.16, 5)})
    assert rows("span", [("gpm, seed 1", [(name, near)])]) == [["gpm", "1", "2.25"]]
    (axes,) = drawn("span", [("gpm, seed 1", [(name, near)])])
    assert "ΔW₂ = 0.2" not in {text.get_text() for text in axes.texts}


# --- clean against robust accuracy ---


def attacked(label: str, clean: float, robust: float) -> tuple[str, list[tuple[str, Result]]]:
    figures = {"labels": ["2/255", "4/255"], "acc": [robust + 10, robust], "clean": {"acc": clean}}
    return label, [("pgd", Result(label, {}, figures, {}))]


def test_tradeoffs_are_a_point_for_each_method_under_the_strongest_attack() -> None:
    runs = [
        attacked("gpm, seed 1", 78, 30), attacked("gpm, seed 2", 80, 40), attacked("pat (attack=4/255), seed 1", 77, 66)
    ]  # fmt: skip
    assert rows("tradeoff", runs) == [["pat (attack=4/255)", "77", "66", "66", "66"], ["gpm", "79", "35", "30", "40"]]
    (axes,) = drawn("tradeoff", runs)
    assert axes.get_ylabel() == "ACC under PGD, 4/255 (%)"
    handles, labels = axes.get_legend_handles_labels()
    at = {
        name: (list(h.lines[0].get_xdata()), list(h.lines[0].get_ydata()))
        for h, name in zip(handles, labels, strict=True)
    }
    assert at == {"pat (attack=4/255)": ([77], [66]), "gpm": ([79], [35])}


# --- flatness ---


def scattered(label: str, flatness: float, loss: float) -> tuple[str, list[tuple[str, Result]]]:
    flat = Result(label, {}, {"flatness": [0.5 * flatness, 1.5 * flatness], "radius": 0.01}, {})
    attacked = Result(label, {}, {"loss": [loss, 99.0], "labels": ["0.001 norm.", "0.01 norm."]}, {})
    return label, [("flatness", flat), ("fgsm", attacked)]


SCATTER: Runs = [
    scattered("gpm (threshold=0.9), seed 1", 0.1, 1.0),
    scattered("gpm (threshold=0.97), seed 1", 0.2, 4.0),
    scattered("rcl, seed 1", 0.3, 9.0),
    ("ewc, seed 1", scattered("ewc, seed 1", 7.0, 7.0)[1][:1]),  # not attacked yet
]


def test_each_run_is_a_point_in_its_methods_look_and_the_title_has_the_correlations() -> None:
    (axes,) = drawn("flatness", SCATTER)
    assert lines(axes) == {
        "gpm": (pytest.approx([0.1, 0.2]), [1.0, 4.0]),
        "rcl": (pytest.approx([0.3]), [9.0]),
    }
    assert axes.get_title() == "3 runs: Pearson’s r = 0.99, Spearman’s ρ = 1.00"
    assert axes.get_ylabel() == "robust loss, FGSM 0.001 norm. (nats)"
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")
    assert rows("flatness", SCATTER)[1] == ["gpm (threshold=0.97), seed 1", "0.2", "4"]


def test_what_spans_decades_is_logarithmic() -> None:
    (axes,) = drawn("flatness", [*SCATTER[:3], scattered("er, seed 1", 30.0, 2.0)])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")


# --- robust region ---


def over_time(label: str, strength: float, clean: list[list[float]], robust: list[list[float]]) -> tuple[str, Result]:
    figures = {"attack": f"FGSM {strength:g}", "clean": {"matrix": clean}, "robust": {"matrix": robust}}
    return "over-time", Result(label, {"strength": strength}, figures, {})


CLEAN = [[90.0], [80.0, 60.0]]
REGION: Runs = [
    (
        "gpm, seed 1",
        [
            over_time("gpm, seed 1", 2, CLEAN, [[30.0], [20.0, 10.0]]),
            over_time("gpm, seed 1", 1, CLEAN, [[70.0], [50.0, 40.0]]),
        ],
    ),
    ("gpm, seed 2", [over_time("gpm, seed 2", 1, CLEAN, [[50.0], [30.0, 20.0]])]),
    ("mtl, seed 1", [over_time("mtl, seed 1", 1, [[70.0, 90.0]], [[60.0, 80.0]])]),
]


def test_robust_accuracy_is_drawn_by_strength_of_the_first_task_and_of_those_seen() -> None:
    axes = drawn("region", REGION)
    assert [one.get_title() for one in axes[:3]] == ["clean", "FGSM 1", "FGSM 2"]
    first, seen = axes[:3], axes[3:6]
    assert lines(first[0]) == {"gpm": ([1, 2], [90, 80]), "mtl": ([1, 2], [70, 70])}
    assert lines(first[1]) == {"gpm": ([1, 2], [60, 40]), "mtl": ([1, 2], [60, 60])}
    assert lines(first[2]) == {"gpm": ([1, 2], [30, 20])}
    assert lines(seen[1]) == {"gpm": ([1, 2], [60, 35]), "mtl": ([1, 2], [70, 70])}
    assert rows("region", REGION)[4] == ["FGSM 1", "gpm", "2", "40", "35"]


# --- features on the circle ---


def test_the_circle_has_a_row_for_the_first_seed_of_each_method() -> None:
    angles = np.linspace(0, 2, 6)
    arrays = {
        "features2d": np.stack([np.cos(angles), np.sin(angles)], axis=1),
        "task": np.zeros(6, dtype=int),
        "label": np.array([0, 0, 0, 1, 1, 1]),
    }
    circle = {"head": "pca", "uniformity": -1.25, "alignment": 0.5, "resultant": 0.75}
    figures = {"tasks": [{"name": "one", "classes": ["a", "b"]}], "circle": circle}
    runs: Runs = [
        (label, [("geometry", Result(label, {}, figures, arrays))])
        for label in ("dfgp, seed 1", "dfgp, seed 2", "rcl, seed 1")
    ]
    labels = [axes.get_ylabel() for axes in drawn("circle", runs)]
    assert [label for label in labels if "seed" in label] == ["dfgp, seed 1", "rcl, seed 1"]
    assert rows("circle", runs)[0] == ["dfgp, seed 1", "pca", "-1.25", "0.5", "0.75"]


def test_a_figure_is_there_when_a_run_has_all_that_it_shows() -> None:
    assert PaperFigure("flatness", SCATTER).there()
    assert not PaperFigure("flatness", SCATTER[3:]).there()
    assert not PaperFigure("region", SCATTER).there()
