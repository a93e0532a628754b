"""Accuracy on corrupted images: by kind and severity for one run, by kind and run for several."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from perdure.report.probes import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABREAST = 5  # runs that stand side by side in a table
STYLES = (
    ("-", "o", "0.0"),
    ("--", "s", "0.35"),
    (":", "^", "0.0"),
    ("-.", "D", "0.5"),
    ("-", "v", "0.6"),
    ("--", "x", "0.0"),
)


def tables(results: Sequence[Result]) -> Sequence[Table | str]:
    if len(results) == 1:
        return [_by_severity(results[0].figures), _summary(results[0].figures), _sources(results)]
    pieces = [results[start : start + ABREAST] for start in range(0, len(results), ABREAST)]
    kinds = _kinds(results)
    reading = "kept: corrupted in percent of clean accuracy; range: 95 % for chance of images"
    return [_runs(results), *(_by_kind(piece, kinds) for piece in pieces), reading, _sources(results)]


def draw(figure: "Figure", results: Sequence[Result]) -> None:
    if len(results) == 1:
        _draw_one(figure, results[0].figures)
    else:
        _draw_several(figure, results)


# --- tables ---


def _by_severity(figures: Mapping[str, Any]) -> Table:
    table = Table(title="accuracy on corrupted images, percent, mean over tasks", title_justify="left")
    table.add_column("severity")
    for severity in figures["severities"]:
        table.add_column(str(severity), justify="right")
    table.add_column("mean", justify="right")
    corrupted = figures["corrupted"]
    for kind, row, mean in zip(figures["kinds"], figures["acc"], corrupted["by_kind"], strict=True):
        table.add_row(kind, *_numbers([*row, mean]))
    table.add_section()
    table.add_row("all", *_numbers([*corrupted["by_severity"], corrupted["acc"]]))
    table.add_row("clean", *[""] * len(figures["severities"]), *_numbers([figures["clean"]["acc"]]))
    return table


def _runs(results: Sequence[Result]) -> Table:
    """One row per run."""
    severities = results[0].figures["severities"]
    if any(result.figures["severities"] != severities for result in results):
        severities = []  # then only their means stand side by side
    by = f"; by severity {severities[0]} to {severities[-1]}" if severities else ""
    table = Table(title=f"accuracy on corrupted images, percent, mean over tasks{by}", title_justify="left")
    table.add_column("run", overflow="fold")
    for name in ("clean", "corrupted", "range", "kept", *map(str, severities)):
        table.add_column(name, justify="right")
    for result in results:
        figures = result.figures
        corrupted = figures["corrupted"]
        low, high = corrupted["interval"]
        kept = "–" if figures["kept"] is None else f"{figures['kept']:.0f} %"
        by_severity = _numbers(corrupted["by_severity"] if severities else [])
        means = _numbers([figures["clean"]["acc"], corrupted["acc"]])
        table.add_row(result.label, *means, f"{low:.1f}–{high:.1f}", kept, *by_severity)
    return table


def _by_kind(results: Sequence[Result], kinds: Sequence[str]) -> Table:
    table = Table(title="the same by kind, mean over severities", title_justify="left")
    table.add_column("kind")
    for result in results:
        table.add_column(result.label, justify="right", overflow="fold")
    means = [dict(zip(r.figures["kinds"], r.figures["corrupted"]["by_kind"], strict=True)) for r in results]
    for kind in kinds:
        table.add_row(kind, *_numbers(mean.get(kind) for mean in means))
    return table


def _summary(figures: Mapping[str, Any]) -> str:
    corrupted = figures["corrupted"]
    low, high = corrupted["interval"]
    kept = "" if figures["kept"] is None else f", {figures['kept']:.0f} % of clean accuracy"
    return f"all: {corrupted['acc']:.1f}{kept}; 95 % range for chance of images: {low:.1f}–{high:.1f}"


def _sources(results: Sequence[Result]) -> str:
    return f"images: {'; '.join(dict.fromkeys(result.figures['source'] for result in results))}"


def _kinds(results: Sequence[Result]) -> list[str]:
    """Of all runs, in the order in which they come."""
    return list(dict.fromkeys(kind for result in results for kind in result.figures["kinds"]))


def _numbers(values: Iterable[float | None]) -> list[str]:
    return ["–" if value is None else f"{value:.1f}" for value in values]


# --- pictures ---


def _draw_one(figure: "Figure", figures: Mapping[str, Any]) -> None:
    """Every kind and severity as a shade with its figure, and the fall with severity beside it."""
    kinds, (low, high) = figures["kinds"], _limits([figures])
    figure.set_size_inches(9, 1.6 + 0.3 * max(len(kinds), 6))
    cells, lines = figure.subplots(1, 2, width_ratios=(1, 0.9))
    cells.imshow(figures["acc"], cmap="Greys", vmin=low, vmax=low + 1.25 * (high - low), aspect="auto")
    for row, accuracies in enumerate(figures["acc"]):
        for column, accuracy in enumerate(accuracies):
            color = "white" if accuracy > (low + high) / 2 + 0.1 * (high - low) else "black"
            cells.text(column, row, f"{accuracy:.0f}", ha="center", va="center", color=color, fontsize=9)
    cells.set_xticks(range(len(figures["severities"])), [str(severity) for severity in figures["severities"]])
    cells.set_yticks(range(len(kinds)), kinds)
    cells.spines[:].set_visible(False)
    cells.tick_params(length=0)
    cells.set_xlabel("severity")
    cells.set_title("accuracy (%), mean over tasks", fontsize=10)
    _falls(lines, figures)


def _falls(axes: "Axes", figures: Mapping[str, Any]) -> None:
    """All kinds as thin lines, those that are left with least and most named, and their mean."""
    clean, kinds = figures["clean"]["acc"], figures["kinds"]
    x = [0, *figures["severities"]]
    for row in figures["acc"]:
        axes.plot(x, [clean, *row], color="0.7", linewidth=0.8)
    ends = [row[-1] for row in figures["acc"]]
    mean = figures["corrupted"]["by_severity"]
    axes.plot(x, [clean, *mean], color="black", marker="o", markersize=4, linewidth=1.8)
    named = {f"mean of {len(kinds)}": mean[-1]}
    if len(kinds) > 2:
        for end in (max(ends), min(ends)):
            named[kinds[ends.index(end)]] = end
    _frame(axes, x, _limits([figures]))
    _name_ends(axes, x[-1], named)
    axes.set_ylabel("accuracy (%)")
    axes.set_title("each kind (thin) and their mean", fontsize=10)


def _draw_several(figure: "Figure", results: Sequence[Result]) -> None:
    """The mean of all kinds, large and named; beside it every kind by itself, in the same lines."""
    kinds = _kinds(results)
    columns = 4 if len(kinds) > 6 else 3 if len(kinds) > 2 else max(1, len(kinds))
    rows = -(-len(kinds) // columns)
    figure.set_size_inches(4.6 + 1.45 * columns, max(3.2, 0.7 + 1.35 * rows))
    whole, parts = figure.subfigures(1, 2, width_ratios=(4.6, 1.45 * columns), squeeze=False)[0]
    axes = whole.subplots()
    ends: dict[str, float] = {}
    for number, result in enumerate(results):
        figures = result.figures
        accuracies = [figures["clean"]["acc"], *figures["corrupted"]["by_severity"]]
        _line(axes, [0, *figures["severities"]], accuracies, number, markersize=4)
        ends[result.label] = accuracies[-1]
    ticks = sorted({0, *(severity for result in results for severity in result.figures["severities"])})
    limits = _limits([result.figures for result in results])
    _frame(axes, ticks, limits)
    _name_ends(axes, ticks[-1], ends)
    axes.set_ylabel("accuracy (%), mean over tasks")
    axes.set_title("mean of all kinds", fontsize=10)
    grid = parts.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for place, small in enumerate(grid.flat):
        if place >= len(kinds):
            small.set_visible(False)
            continue
        _one_kind(small, results, kinds[place])
        small.set_ylim(limits)
        small.set_xticks(ticks)
        small.tick_params(labelsize=7, labelbottom=place + columns >= len(kinds))
    parts.supxlabel("severity (0: clean)", fontsize=8)


def _one_kind(axes: "Axes", results: Sequence[Result], kind: str) -> None:
    for number, result in enumerate(results):
        figures = result.figures
        if kind in figures["kinds"]:
            row = figures["acc"][figures["kinds"].index(kind)]
            _line(axes, [0, *figures["severities"]], [figures["clean"]["acc"], *row], number, markersize=2)
    axes.set_title(kind, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _line(axes: "Axes", x: Sequence[float], y: Sequence[float], number: int, markersize: float) -> None:
    dash, marker, shade = STYLES[number % len(STYLES)]
    axes.plot(x, y, dash, marker=marker, color=shade, markersize=markersize, linewidth=1.2)


def _limits(several: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Whole tens around all accuracies."""
    each = [value for figures in several for row in (*figures["acc"], [figures["clean"]["acc"]]) for value in row]
    return max(0, 10 * math.floor((min(each) - 2) / 10)), min(100, 10 * math.ceil((max(each) + 2) / 10))


def _frame(axes: "Axes", ticks: Sequence[int], limits: tuple[float, float]) -> None:
    axes.set_xticks(ticks, ["clean" if tick == 0 else str(tick) for tick in ticks])
    axes.set_ylim(limits)
    axes.set_xlabel("severity")
    axes.spines[["top", "right"]].set_visible(False)


def _name_ends(axes: "Axes", x: float, ends: Mapping[str, float]) -> None:
    """Names at the ends of lines, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    place = -math.inf
    for name, end in sorted(ends.items(), key=lambda pair: pair[1]):
        place = max(end, place + 0.05 * (high - low))
        axes.annotate(name, (x, end), (x + 0.15, place), va="center", fontsize=8, annotation_clip=False)
