"""What tables and pictures are made of: numbers as text, tables from declared columns, panels of lines and cells."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from statistics import fmean
from typing import TYPE_CHECKING, Any

from perdure.report.probes import Result
from perdure.report.style import SHADES, ink, line_styles, shade
from perdure.report.table import Cell, Table
from perdure.report.table import table as make_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
    from matplotlib.figure import SubFigure
    from matplotlib.text import Text
else:  # matplotlib is optional
    Axes = Figure = SubFigure = Text = Any

Tables = Sequence[Table | str]
"""Tables, and single lines that say how to read them."""

Figures = Mapping[str, Any]
Reader = Callable[[Figures], str | Cell]
Columns = Sequence[tuple[str, Reader]]
"""Names, and how the cells below them are read off the figures of a row."""

SIDE_BY_SIDE = 5  # runs beside one another in a table of 100 columns
LABEL_HEIGHT = 0.15  # inches from one label to the next


# --- numbers ---


def number(value: float | None, form: str = ".1f") -> str:
    """With a true minus sign; a dash where there is none.

    >>> number(-2.04), number(2.0, "+.2f"), number(None)
    ('−2.0', '+2.00', '–')
    """
    return "–" if value is None else f"{value:{form}}".replace("-", "−")


def digits(value: float, error: float | None = None) -> str:
    """Three digits that count, as far as six decimals go; the error with as many decimals.

    >>> digits(0.012), digits(1866.69), digits(-0.5), digits(37.0, 1.26)
    ('0.0120', '1867', '−0.500', '37.0 ± 1.3')
    """
    decimals = min(6, max(0, 2 - math.floor(math.log10(abs(value))))) if value else 0
    return number(value, f".{decimals}f") + ("" if error is None else f" ± {error:.{decimals}f}")


def span(bounds: Sequence[float], form: str = ".0f") -> str:
    """One number where both are the same.

    >>> span([38.2, 44.0]), span([0.01, 0.01], ".3g")
    ('38–44', '0.01')
    """
    low, high = (number(bound, form) for bound in bounds)
    return low if low == high else f"{low}–{high}"


def units(figures: Figures) -> str:
    """The last strength of an attack in both its units."""
    pixels, normalized = (span(figures[name][-1], ".3g") for name in ("in_pixels", "in_normalized"))
    return f"strength: {pixels} in pixels of 0 … 1, {normalized} in the network's normalized input"


def scores(of: Figures) -> str:
    bwt = "" if of["bwt"] is None else f", BWT {number(of['bwt'], '+.1f')}"
    return f"ACC {of['acc']:.1f}{bwt} (%)"


def joined(results: Sequence[Result], name: str, by: str = " and ") -> str:
    """A figure of all results, each value once."""
    return by.join(dict.fromkeys(str(at(result.figures, name)) for result in results))


# --- tables ---


def at(figures: Figures, path: str) -> Any:
    """A figure by its path; None where the path ends early.

    >>> at({"clean": {"acc": 80.0}, "robust": None}, "clean.acc"), at({"robust": None}, "robust.acc")
    (80.0, None)
    """
    found: Any = figures
    for name in path.split("."):
        found = None if found is None else found[name]
    return found


def cell(path: str, form: str = ".1f", interval: str = "") -> Reader:
    """A figure as text, with its interval in brackets."""

    def text(figures: Figures) -> str:
        found = number(at(figures, path), form)
        return f"{found} ({span(at(figures, interval))})" if interval else found

    return text


def table(
    title: str,
    first: str,
    columns: Iterable[str],
    *groups: Iterable[Sequence[str | Cell]],
    merged: bool = False,
) -> Table:
    """Rows in groups with a rule between: names in the first column, figures in the others."""
    return make_table(title, [first, *columns], *groups, merged=merged)


def declared(title: str, first: str, columns: Columns, *groups: Iterable[tuple[str, Figures]]) -> Table:
    """A row for each label and its figures, cells as the columns declare."""
    rows = [[[label, *(text(figures) for _, text in columns)] for label, figures in group] for group in groups]
    return table(title, first, [name for name, _ in columns], *rows)


def by_run(title: str, columns: Columns, results: Sequence[Result]) -> Table:
    """A row for each result."""
    return declared(title, "run", columns, [(result.label, result.figures) for result in results])


def tasks_and_all(results: Sequence[Result], about: str, columns: Columns) -> Table:
    """Of one result every task and all together; of several, all tasks together."""
    everything = [(result.label, result.figures["together"]) for result in results]
    if len(results) > 1:
        return declared(f"all tasks together: {about}", "run", columns, everything)
    ((label, together),) = everything
    tasks = [(task["name"], task) for task in results[0].figures["tasks"]]
    return declared(f"{label}: {about}", "task", columns, tasks, [("all together", together)])


def by_task(results: Sequence[Result], names: Mapping[str, str], main: Mapping[str, str]) -> list[Table]:
    """Of one result all figures by task; of several their means, and by task the main ones. Those have errors, by the
    names that they map to."""
    means = [[digits(fmean(result.figures[name])) for name in names] for result in results]
    if len(results) > 1:
        rows = [[result.label, *row] for result, row in zip(results, means, strict=True)]
        by_run = {name: [(result.label, _cells(result, name, "")) for result in results] for name in main}
        details = [one for name in main for one in side_by_side(f"{names[name]}, by task", "task", by_run[name])]
        return [table("mean over tasks", "run", names.values(), rows), *details]
    columns = [_cells(results[0], name, main.get(name, "")) for name in names]
    rows = [[task, *(cells[task] for cells in columns)] for task in results[0].figures["tasks"]]
    return [table(results[0].label, "task", names.values(), rows, [["mean", *means[0]]])]


def _cells(result: Result, name: str, error: str) -> dict[str, str]:
    """By task; with the errors of that name, if there are any."""
    figures = result.figures
    errors = figures.get(error) or repeat(None)
    return dict(zip(figures["tasks"], map(digits, figures[name], errors), strict=True))


def side_by_side(title: str, first: str, columns: Sequence[tuple[str, Mapping[str, str | Cell]]]) -> list[Table]:
    """A column for each run, its cells by the names of the rows; in as many tables as it takes to fit."""
    names = list(dict.fromkeys(name for _, cells in columns for name in cells))
    parts = [columns[start : start + SIDE_BY_SIDE] for start in range(0, len(columns), SIDE_BY_SIDE)]
    return [
        table(
            title,
            first,
            [label for label, _ in part],
            [[name, *(cells.get(name, "–") for _, cells in part)] for name in names],
        )
        for part in parts
    ]


# --- pictures ---


def lines(axes: Axes, series: Sequence[tuple[str, Sequence[float], Sequence[float]]], **style: Any) -> None:
    """A line for each label, x and y, each in its own style."""
    for (label, x, y), own in zip(series, line_styles([label for label, _, _ in series]), strict=True):
        axes.plot(x, y, label=label, **own | style)


def label_ends(axes: Axes) -> None:
    """The labels of lines to the right of where they end, spread out; call when limits and size are final."""
    handles, names = axes.get_legend_handles_labels()
    axes.get_xlim(), axes.get_ylim()  # brings limits up to date
    ends = []
    for handle in handles:
        line: Any = getattr(handle, "lines", (handle,))[0]  # those with error bars are several
        x, y = (line.get_transform() - axes.transAxes).transform(line.get_xydata()[-1])
        ends.append((float(x), min(max(float(y), 0.0), 1.0), line.get_color()))
    gap = LABEL_HEIGHT * axes.figure.dpi / axes.bbox.height
    leader: dict[str, Any] = {
        "arrowstyle": "-",
        "linewidth": 0.6,
        "alpha": 0.5,
        "relpos": (0, 0.5),
        "shrinkA": 1,
        "shrinkB": 4,
    }
    place: dict[str, Any] = {"textcoords": "axes fraction", "va": "center", "annotation_clip": False}
    for name, (x, y, color), height in zip(names, ends, spread_out([y for _, y, _ in ends], gap), strict=True):
        axes.annotate(name, (x, y), (1.03, height), "axes fraction", arrowprops=leader | {"color": color}, **place)


def spread_out(heights: Sequence[float], gap: float) -> list[float]:
    """Heights between 0 and 1, moved as little as possible until none is nearer to the next than the gap: those that
    are too close spread around their middle.

    >>> [round(height, 2) for height in spread_out([0.5, 0.10, 0.12, 0.97], 0.1)]
    [0.5, 0.06, 0.16, 0.97]
    >>> [round(height, 2) for height in spread_out([0.98, 0.97], 0.1)]
    [1.0, 0.9]
    """
    order = sorted(range(len(heights)), key=lambda place: heights[place])
    groups: list[list[float]] = []  # of what heights would be without the gaps; each becomes its mean
    for steps, place in enumerate(order):
        groups.append([heights[place] - steps * gap])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    highest = 1 - gap * (len(heights) - 1)
    means = [min(max(fmean(group), 0.0), highest) for group in groups for _ in group]
    found = {place: mean + steps * gap for steps, (place, mean) in enumerate(zip(order, means, strict=True))}
    return [found[place] for place in range(len(heights))]


def heat_map(axes: Axes, rows: Sequence[Sequence[float]], form: str = ".1f", bar: bool = True) -> list[list[Text]]:
    """Accuracies in percent as cells, the better the darker, each with its figure unless the form is empty, and beside
    them a bar of colors; rows may be of unequal length."""
    from matplotlib.colors import LinearSegmentedColormap

    width = max(map(len, rows))
    square = [[*row, *[math.nan] * (width - len(row))] for row in rows]
    colors = LinearSegmentedColormap.from_list("percent", [tuple(part / 255 for part in one) for one in SHADES])
    image = axes.imshow(square, cmap=colors, vmin=0, vmax=100, aspect="auto")
    if bar:
        beside = axes.inset_axes((1.02, 0, 0.03, 1))
        axes.figure.colorbar(image, cax=beside, label="accuracy (%)").outline.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return [
        [
            axes.text(x, y, f"{value:{form}}" if form else "", ha="center", va="center", color=ink(shade(value)))
            for x, value in enumerate(row)
        ]
        for y, row in enumerate(rows)
    ]


def matrix_ticks(axes: Axes, tasks: int, lessons: int) -> None:
    """Tasks by their numbers, as many as can be read."""
    for axis, count in ((axes.xaxis, tasks), (axes.yaxis, lessons)):
        places = range(0, count, 1 + (count - 1) // 20)
        axis.set_ticks(places, [str(place + 1) for place in places])
    axes.set(xlabel="task", ylabel="after learning task")


def panels(figure: Figure | SubFigure, count: int, columns: int) -> list[Axes]:
    """So many panels of one scale, row by row."""
    found: list[Axes] = list(
        figure.subplots(-(-count // columns), columns, sharex=True, sharey=True, squeeze=False).flat
    )
    for place, axes in enumerate(found):
        axes.tick_params(labelbottom=place + columns >= count)
        if place >= count:
            axes.remove()
    return found[:count]


def slanted_ticks(axes: Axes, names: Sequence[str]) -> None:
    """Names below, however long."""
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")


def whole_ticks(axes: Axes, first: int, last: int) -> None:
    """Ticks at whole numbers, as many as can be read."""
    axes.set_xticks(range(first, last + 1, 1 + (last - first) // 10))
