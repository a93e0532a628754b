"""Accuracy on corrupted images: by kind and severity for one run, by kind and run for several."""

import math
from collections.abc import Sequence
from typing import Any

from perdure.report import render
from perdure.report.probes import Result
from perdure.report.render import Axes, Columns, Figure, Figures, Tables, cell, number, span, table
from perdure.report.style import line_styles
from perdure.report.table import Table, with_best

TITLE = "accuracy on corrupted images, percent, mean over tasks"


def tables(results: Sequence[Result]) -> Tables:
    source = f"images: {render.joined(results, 'source', '; ')}"
    if len(results) == 1:
        return [*_one(results[0].figures), source]
    by_kind = [
        (
            result.label,
            dict(zip(result.figures["kinds"], map(number, result.figures["corrupted"]["by_kind"]), strict=True)),
        )
        for result in results
    ]
    reading = "kept: corrupted in percent of clean accuracy; range: 95 % for chance of images"
    details = render.side_by_side("the same by kind, mean over severities", "kind", by_kind)
    return [_runs(results), *details, reading, source]


def draw(figure: Figure, results: Sequence[Result]) -> None:
    if len(results) == 1:
        _draw_one(figure, results[0].figures)
    else:
        _draw_several(figure, results)


def _one(figures: Figures) -> list[Table | str]:
    corrupted, kept = figures["corrupted"], figures["kept"]
    kinds = zip(figures["kinds"], figures["acc"], corrupted["by_kind"], strict=True)
    by_kind = [[kind, *map(number, [*row, mean])] for kind, row, mean in kinds]
    everything = [
        ["all", *map(number, [*corrupted["by_severity"], corrupted["acc"]])],
        ["clean", *[""] * len(figures["severities"]), number(figures["clean"]["acc"])],
    ]
    share = "" if kept is None else f", {kept:.0f} % of clean accuracy"
    interval = span(corrupted["interval"], ".1f")
    return [
        table(TITLE, "severity", [*map(str, figures["severities"]), "mean"], by_kind, everything),
        f"all: {corrupted['acc']:.1f}{share}; 95 % range for chance of images: {interval}",
    ]


def _runs(results: Sequence[Result]) -> Table:
    """One row per run."""
    severities = results[0].figures["severities"]
    if any(result.figures["severities"] != severities for result in results):
        severities = []  # then only their means stand side by side
    by = f"; by severity {severities[0]} to {severities[-1]}" if severities else ""

    def severity(place: int) -> Any:
        return lambda figures: number(figures["corrupted"]["by_severity"][place])

    columns: Columns = [
        ("clean", cell("clean.acc")),
        ("corrupted", cell("corrupted.acc")),
        ("range", lambda figures: span(figures["corrupted"]["interval"], ".1f")),
        ("kept %", cell("kept", ".0f")),
        *((str(name), severity(place)) for place, name in enumerate(severities)),
    ]
    return with_best(render.by_run(TITLE + by, columns, results), "clean", "corrupted")


def _draw_one(figure: Figure, figures: Figures) -> None:
    """Every kind and severity as a shade with its figure; beside it the fall with severity, all kinds as thin lines,
    those that are left with least and most named, and their mean."""
    kinds, acc = figures["kinds"], figures["acc"]
    figure.set_size_inches(9, 1.6 + 0.3 * max(len(kinds), 6))
    cells, axes = figure.subplots(1, 2, width_ratios=(1, 0.9))
    render.heat_map(cells, acc)
    cells.set_xticks(range(len(figures["severities"])), [str(severity) for severity in figures["severities"]])
    cells.set_yticks(range(len(kinds)), kinds)
    cells.set(xlabel="severity", title="accuracy (%), mean over tasks")
    ends = [row[-1] for row in acc]
    outermost = (ends.index(max(ends)), ends.index(min(ends))) if len(kinds) > 2 else ()
    for place, row in enumerate(acc):
        label = kinds[place] if place in outermost else None
        axes.plot(*_fall(figures, row), color="0.6", linewidth=0.8, label=label)
    render.lines(axes, [(f"mean of {len(kinds)}", *_fall(figures))], linewidth=1.8)
    _finish(axes, [0, *figures["severities"]], _limits([figures]))
    axes.set(ylabel="accuracy (%)", title="each kind (thin) and their mean")


def _draw_several(figure: Figure, results: Sequence[Result]) -> None:
    """The mean of all kinds, large and named; beside it every kind by itself, in the same lines."""
    kinds = list(dict.fromkeys(kind for result in results for kind in result.figures["kinds"]))
    columns = 4 if len(kinds) > 6 else 3 if len(kinds) > 2 else max(1, len(kinds))
    figure.set_size_inches(4.6 + 1.45 * columns, max(3.2, 0.7 + 1.35 * -(-len(kinds) // columns)))
    whole, parts = figure.subfigures(1, 2, width_ratios=(4.6, 1.45 * columns), squeeze=False)[0]
    axes = whole.subplots()
    render.lines(axes, [(result.label, *_fall(result.figures)) for result in results])
    ticks = sorted({0, *(severity for result in results for severity in result.figures["severities"])})
    limits = _limits([result.figures for result in results])
    _finish(axes, ticks, limits)
    axes.set(ylabel="accuracy (%), mean over tasks", title="mean of all kinds")
    styles = line_styles([result.label for result in results])
    for small, kind in zip(render.panels(parts, len(kinds), columns), kinds, strict=True):
        for result, style in zip(results, styles, strict=True):
            if kind in result.figures["kinds"]:
                row = result.figures["acc"][result.figures["kinds"].index(kind)]
                small.plot(*_fall(result.figures, row), markersize=2, **style)
        small.set(title=kind, ylim=limits, xticks=ticks)
    parts.supxlabel("severity (0: clean)")


def _fall(figures: Figures, row: Sequence[float] | None = None) -> tuple[list[float], list[float]]:
    """Severities and accuracies, clean at 0; those of a kind, or their mean."""
    mean = figures["corrupted"]["by_severity"]
    return [0, *figures["severities"]], [figures["clean"]["acc"], *(mean if row is None else row)]


def _limits(several: Sequence[Figures]) -> tuple[float, float]:
    """Whole tens around all accuracies."""
    each = [value for figures in several for row in (*figures["acc"], [figures["clean"]["acc"]]) for value in row]
    return max(0, 10 * math.floor((min(each) - 2) / 10)), min(100, 10 * math.ceil((max(each) + 2) / 10))


def _finish(axes: Axes, ticks: Sequence[int], limits: tuple[float, float]) -> None:
    axes.set_xticks(ticks, ["clean" if tick == 0 else str(tick) for tick in ticks])
    axes.set(ylim=limits, xlabel="severity")
    render.label_ends(axes)
