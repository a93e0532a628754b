"""Robust accuracy over lessons: the clean and the attacked accuracy matrix side by side."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich.table import Table

from perdure.report.probes import Result
from perdure.report.tables import matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", "--", ":", "-.")
MARKERS = "os^Dv"
Rows = Sequence[Sequence[float]]


def tables(results: Sequence[Result]) -> Sequence[Table | str]:
    """The summary of all results, and of a single one its robust matrix too."""
    found: list[Table | str] = [_matrix(results[0])] if len(results) == 1 else []
    found.append(_summary(results))
    found.append("kept: robust BWT − clean BWT; below 0 a task loses robustness faster than it loses accuracy")
    return found


def draw(figure: "Figure", results: Sequence[Result]) -> None:
    """Two matrices for each result; where there are several, also how robust old tasks stay as lessons go by."""
    matrices = [result.figures["robust"]["matrix"] for result in results]
    tall = [0.9 + 0.34 * len(rows) for rows in matrices] + ([3.0] if len(results) > 1 else [])
    figure.set_size_inches(max(6.4, 2.4 + 1.1 * max(len(rows[-1]) for rows in matrices)), 0.4 + sum(tall))
    figure.set_layout_engine("constrained")
    grid = figure.add_gridspec(len(tall), 2, height_ratios=tall)
    for place, result in enumerate(results):
        names = result.figures["tasks"]
        for side, kind in enumerate(("clean", "robust")):
            axes = figure.add_subplot(grid[place, side])
            _heat(axes, result.figures[kind]["matrix"], names)
            axes.set_title(f"{result.label}: {_headline(result, kind)}", fontsize=9)
    if len(results) > 1:
        _old_tasks(figure.add_subplot(grid[len(results), :]), results)


def _headline(result: Result, kind: str) -> str:
    scores = result.figures[kind]
    name = "clean" if kind == "clean" else result.figures["attack"]
    bwt = "" if scores["bwt"] is None else f", BWT {scores['bwt']:+.1f}"
    return f"{name}\nACC {scores['acc']:.1f}{bwt} (%)"


def _heat(axes: "Axes", accuracies: Rows, names: Sequence[str]) -> None:
    """Row after lesson t, column task i, each cell with its figure; the darkest keeps it legible."""
    padded = [[*row, *[float("nan")] * (len(names) - len(row))] for row in accuracies]
    axes.imshow(padded, cmap="Greys", vmin=0, vmax=125, aspect="auto")
    for t, row in enumerate(accuracies):
        for i, accuracy in enumerate(row):
            color = "white" if accuracy > 62 else "black"
            axes.text(i, t, f"{accuracy:.0f}", ha="center", va="center", color=color, fontsize=8)
    axes.set_xticks(range(len(names)), [str(i + 1) for i in range(len(names))], fontsize=8)
    axes.set_yticks(range(len(accuracies)), [str(t + 1) for t in range(len(accuracies))], fontsize=8)
    axes.set_xlabel("accuracy on task (%)", fontsize=8)
    axes.set_ylabel("after lesson", fontsize=8)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _old_tasks(axes: "Axes", results: Sequence[Result]) -> None:
    """Mean robust accuracy, after each lesson, of the tasks that were there before it. Where all were learned in one
    lesson none is ever old: their mean is a level to measure the others by."""
    matrices = [result.figures["robust"]["matrix"] for result in results]
    last = max(2, *map(len, matrices))
    ends = []
    for place, rows in enumerate(matrices):
        style: dict[str, Any] = {"linestyle": DASHES[place % 4], "color": "black" if place % 2 == 0 else "0.45"}
        means = [sum(row[:-1]) / (len(row) - 1) for row in rows[1:]]
        if means:
            axes.plot(range(2, len(rows) + 1), means, marker=MARKERS[place % 5], markersize=4, **style)
        else:
            means = [sum(rows[0]) / len(rows[0])]
            axes.plot((2, last), means * 2, **style)
        ends.append(means[-1])
    axes.set_ylim(0, 100)
    axes.set_xticks(range(2, last + 1))
    for result, rows, height in zip(results, matrices, apart(ends, 7.0), strict=True):
        x = last if len(rows) == 1 else len(rows)
        axes.annotate(f"   {result.label}", (x, height), va="center", fontsize=8, annotation_clip=False)
    axes.set_xlabel("after lesson", fontsize=8)
    axes.set_ylabel("robust accuracy of\nearlier tasks, mean (%)", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights of labels moved up until none stands on another.

    >>> apart([50.0, 10.0, 11.0], 5.0)
    [50.0, 10.0, 15.0]
    """
    placed = list(heights)
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    return placed


def _matrix(result: Result) -> Table:
    figures = result.figures
    name = f"{result.label}, under {figures['attack']}"
    return matrix({"method": name, "task_names": figures["tasks"], "accuracy_matrix": figures["robust"]["matrix"]})


def _summary(results: Sequence[Result]) -> Table:
    attacks = list(dict.fromkeys(result.figures["attack"] for result in results))
    table = Table(title=f"percent, mean over tasks, under {' and '.join(attacks)}; clean in brackets")
    table.title_justify = "left"
    table.add_column("run")
    for name in ("ACC", "BWT", "new task", "forgetting", "kept"):
        table.add_column(name, justify="right")
    for result in results:
        clean, robust = result.figures["clean"], result.figures["robust"]
        pairs = [_pair(robust, clean, name) for name in ("acc", "bwt", "learning_accuracy", "forgetting")]
        table.add_row(result.label, *pairs, _number(result.figures["kept"], "+"))
    return table


def _pair(robust: Mapping[str, Any], clean: Mapping[str, Any], name: str) -> str:
    sign = "+" if name == "bwt" else ""
    return f"{_number(robust[name], sign)} ({_number(clean[name], sign)})"


def _number(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign}.1f}"
