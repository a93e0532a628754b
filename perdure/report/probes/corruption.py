"""Accuracy on corrupted images: by kind and severity for one run, by kind and run for several."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from perdure.report.probes import Result
from perdure.report.probes.parts import abreast, look, name_ends, number, panels, shades, span, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def tables(results: Sequence[Result]) -> Sequence[Table | str]:
    if len(results) == 1:
        return [_by_severity(results[0].figures), _summary(results[0].figures), _sources(results)]
    by_kind = abreast("the same by kind, mean over severities", "kind", [_by_kind(result) for result in results])
    reading = "kept: corrupted in percent of clean accuracy; range: 95 % for chance of images"
    return [_runs(results), *by_kind, reading, _sources(results)]


def draw(figure: "Figure", results: Sequence[Result]) -> None:
    if len(results) == 1:
        _draw_one(figure, results[0].figures)
    else:
        _draw_several(figure, results)


# --- tables ---


def _by_severity(figures: Mapping[str, Any]) -> Table:
    columns = [*map(str, figures["severities"]), "mean"]
    found = table("accuracy on corrupted images, percent, mean over tasks", "severity", columns)
    corrupted = figures["corrupted"]
    for kind, row, mean in zip(figures["kinds"], figures["acc"], corrupted["by_kind"], strict=True):
        found.add_row(kind, *map(number, [*row, mean]))
    found.add_section()
    found.add_row("all", *map(number, [*corrupted["by_severity"], corrupted["acc"]]))
    found.add_row("clean", *[""] * len(figures["severities"]), number(figures["clean"]["acc"]))
    return found


def _runs(results: Sequence[Result]) -> Table:
    """One row per run."""
    severities = results[0].figures["severities"]
    if any(result.figures["severities"] != severities for result in results):
        severities = []  # then only their means stand side by side
    by = f"; by severity {severities[0]} to {severities[-1]}" if severities else ""
    columns = ("clean", "corrupted", "range", "kept %", *map(str, severities))
    found = table(f"accuracy on corrupted images, percent, mean over tasks{by}", "run", columns)
    for result in results:
        figures = result.figures
        corrupted = figures["corrupted"]
        means = [number(figures["clean"]["acc"]), number(corrupted["acc"]), span(corrupted["interval"], ".1f")]
        by_severity = map(number, corrupted["by_severity"] if severities else [])
        found.add_row(result.label, *means, number(figures["kept"], ".0f"), *by_severity)
    return found


def _by_kind(result: Result) -> tuple[str, dict[str, str]]:
    means = map(number, result.figures["corrupted"]["by_kind"])
    return result.label, dict(zip(result.figures["kinds"], means, strict=True))


def _summary(figures: Mapping[str, Any]) -> str:
    corrupted = figures["corrupted"]
    kept = "" if figures["kept"] is None else f", {figures['kept']:.0f} % of clean accuracy"
    return f"all: {corrupted['acc']:.1f}{kept}; 95 % range for chance of images: {span(corrupted['interval'], '.1f')}"


def _sources(results: Sequence[Result]) -> str:
    return f"images: {'; '.join(dict.fromkeys(result.figures['source'] for result in results))}"


# --- pictures ---


def _draw_one(figure: "Figure", figures: Mapping[str, Any]) -> None:
    """Every kind and severity as a shade with its figure, and the fall with severity beside it."""
    kinds = figures["kinds"]
    figure.set_size_inches(9, 1.6 + 0.3 * max(len(kinds), 6))
    cells, lines = figure.subplots(1, 2, width_ratios=(1, 0.9))
    shades(cells, figures["acc"])
    cells.set_xticks(range(len(figures["severities"])), [str(severity) for severity in figures["severities"]])
    cells.set_yticks(range(len(kinds)), kinds)
    cells.set_xlabel("severity")
    cells.set_title("accuracy (%), mean over tasks")
    _falls(lines, figures)


def _falls(axes: "Axes", figures: Mapping[str, Any]) -> None:
    """All kinds as thin lines, those that are left with least and most named, and their mean."""
    clean, kinds = figures["clean"]["acc"], figures["kinds"]
    x = [0, *figures["severities"]]
    ends = [row[-1] for row in figures["acc"]]
    outermost = (ends.index(max(ends)), ends.index(min(ends))) if len(kinds) > 2 else ()
    for place, row in enumerate(figures["acc"]):
        label = kinds[place] if place in outermost else None
        axes.plot(x, [clean, *row], color="0.6", linewidth=0.8, label=label)
    mean = figures["corrupted"]["by_severity"]
    axes.plot(x, [clean, *mean], label=f"mean of {len(kinds)}", **look(0) | {"linewidth": 1.8})
    _frame(axes, x, _limits([figures]))
    name_ends(axes)
    axes.set_ylabel("accuracy (%)")
    axes.set_title("each kind (thin) and their mean")


def _draw_several(figure: "Figure", results: Sequence[Result]) -> None:
    """The mean of all kinds, large and named; beside it every kind by itself, in the same lines."""
    kinds = list(dict.fromkeys(kind for result in results for kind in result.figures["kinds"]))
    columns = 4 if len(kinds) > 6 else 3 if len(kinds) > 2 else max(1, len(kinds))
    rows = -(-len(kinds) // columns)
    figure.set_size_inches(4.6 + 1.45 * columns, max(3.2, 0.7 + 1.35 * rows))
    whole, parts = figure.subfigures(1, 2, width_ratios=(4.6, 1.45 * columns), squeeze=False)[0]
    axes = whole.subplots()
    for place, result in enumerate(results):
        figures = result.figures
        accuracies = [figures["clean"]["acc"], *figures["corrupted"]["by_severity"]]
        axes.plot([0, *figures["severities"]], accuracies, label=result.label, **look(place))
    ticks = sorted({0, *(severity for result in results for severity in result.figures["severities"])})
    limits = _limits([result.figures for result in results])
    _frame(axes, ticks, limits)
    name_ends(axes)
    axes.set_ylabel("accuracy (%), mean over tasks")
    axes.set_title("mean of all kinds")
    for small, kind in zip(panels(parts, len(kinds), columns), kinds, strict=True):
        _one_kind(small, results, kind)
        small.set_ylim(limits)
        small.set_xticks(ticks)
    parts.supxlabel("severity (0: clean)")


def _one_kind(axes: "Axes", results: Sequence[Result], kind: str) -> None:
    for place, result in enumerate(results):
        figures = result.figures
        if kind in figures["kinds"]:
            row = figures["acc"][figures["kinds"].index(kind)]
            axes.plot([0, *figures["severities"]], [figures["clean"]["acc"], *row], markersize=2, **look(place))
    axes.set_title(kind)


def _limits(several: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Whole tens around all accuracies."""
    each = [value for figures in several for row in (*figures["acc"], [figures["clean"]["acc"]]) for value in row]
    return max(0, 10 * math.floor((min(each) - 2) / 10)), min(100, 10 * math.ceil((max(each) + 2) / 10))


def _frame(axes: "Axes", ticks: Sequence[int], limits: tuple[float, float]) -> None:
    axes.set_xticks(ticks, ["clean" if tick == 0 else str(tick) for tick in ticks])
    axes.set_ylim(limits)
    axes.set_xlabel("severity")
