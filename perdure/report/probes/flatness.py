"""How far the loss rises around the weights, and how it is bent there: task by task, run by run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.table import Table

from perdure.report.probes import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", "--", "-.", ":")
MARKERS = "os^Dv"
SHADES = ("black", "0.45", "0.25")
SIDE = 5  # runs beside one another in a table of 100 columns

FLATNESS = {"loss": "loss", "one_step": "one step", "flatness": "worst case", "sharpness": "SAM"}
CURVATURE = {"loss": "loss", "gradient_norm": "gradient", "top_eigenvalue": "top eigenvalue", "trace": "trace"}


def tables(results: Sequence[Result]) -> Sequence[Table | str]:
    """Of one result all figures by task; of several their means, and by task what the probe is there for."""
    bent = _bent(results)
    names = CURVATURE if bent else FLATNESS
    found: list[Table | str] = [_by_task(results[0], names)] if len(results) == 1 else [means(results, names)]
    if len(results) > 1:
        for name in ("top_eigenvalue", "trace") if bent else ("flatness",):
            found += side_by_side(results, name, names[name])
    return [*found, *(_reading_curvature() if bent else _reading_flatness(results[0].figures))]


def draw(figure: "Figure", results: Sequence[Result]) -> None:
    """Task by task: of one result the rises in all three senses, of several the worst; or eigenvalue and trace."""
    bent = _bent(results)
    tasks = max(len(result.figures["tasks"]) for result in results)
    figure.set_size_inches(max(5.6, 3.2 + 0.4 * tasks), 5.8 if bent else 3.6)
    figure.set_layout_engine("constrained")
    if bent:
        top, below = figure.subplots(2, sharex=True)
        _lines(top, results, "top_eigenvalue", "residual")
        _lines(below, results, "trace", "trace_error")
        top.set_ylabel("largest eigenvalue\nof the Hessian")
        below.set_ylabel("trace of the Hessian")
        panels = [top, below]
    else:
        panels = [figure.subplots()]
        if len(results) == 1:
            _rises(panels[0], results[0])
        else:
            _lines(panels[0], results, "flatness")
        panels[0].set_ylabel("rise of the loss (nats)")
    longest = max((result.figures["tasks"] for result in results), key=len)
    panels[-1].set_xticks(range(tasks), longest, rotation=30, ha="right", rotation_mode="anchor")
    panels[0].set_title(_title(results, bent), fontsize=10, loc="left")


# --- tables and lines, for other rooms too ---


def means(results: Sequence[Result], names: Mapping[str, str]) -> Table:
    found = table("mean over tasks", "run", names.values())
    for result in results:
        found.add_row(result.label, *(number(fmean(result.figures[name])) for name in names))
    return found


def side_by_side(results: Sequence[Result], name: str, title: str) -> list[Table]:
    """One figure, tasks below and runs beside one another, in as many tables as it takes to fit."""
    found = []
    for start in range(0, len(results), SIDE):
        part = results[start : start + SIDE]
        found.append(table(f"{title}, by task", "task", [result.label for result in part]))
        rows = [result.figures[name] for result in part]
        longest = max((result.figures["tasks"] for result in part), key=len)
        for place, task in enumerate(longest):
            found[-1].add_row(task, *(number(row[place]) if place < len(row) else "–" for row in rows))
    return found


def table(title: str, first: str, others: Iterable[str]) -> Table:
    found = Table(title=title, title_justify="left")
    found.add_column(first, overflow="fold")
    for name in others:
        found.add_column(name, justify="right", overflow="fold")
    return found


def number(value: float) -> str:
    """Three digits that count, as far as six decimals go.

    >>> number(0.012), number(1866.69), number(37.0), number(-0.5)
    ('0.0120', '1867', '37.0', '-0.500')
    """
    return f"{value:.{decimals(value)}f}"


def decimals(value: float) -> int:
    return min(6, max(0, 2 - math.floor(math.log10(abs(value))))) if value else 0


def style(place: int) -> dict[str, Any]:
    """The look of the line of that place among several, told apart in grey by dash, marker and shade."""
    return {
        "color": SHADES[place % len(SHADES)],
        "linestyle": DASHES[place % len(DASHES)],
        "marker": MARKERS[place % len(MARKERS)],
        "markersize": 4,
        "linewidth": 1.2,
    }


def label_ends(axes: "Axes", ends: Sequence[tuple[float, str]], gap: float = 0.05) -> None:
    """The name of each line at the right edge, at the height where the line ends; call when the limits are final."""
    to_share = axes.transScale + axes.transLimits
    shares = [float(to_share.transform((axes.get_xlim()[1], height))[1]) for height, _ in ends]
    for (_, label), share in zip(ends, apart(shares, gap), strict=True):
        axes.annotate(label, (1.015, share), xycoords="axes fraction", va="center", fontsize=8, annotation_clip=False)


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights within 0 and 1, moved as little as it takes for none to be nearer to the next than the gap.

    >>> [round(height, 2) for height in apart([0.5, 0.1, 0.12, 1.3], 0.1)]
    [0.5, 0.1, 0.2, 1.0]
    >>> [round(height, 2) for height in apart([0.98, 0.97], 0.1)]
    [1.0, 0.9]
    """
    order = sorted(range(len(heights)), key=lambda place: heights[place])
    placed, floor, ceiling = list(heights), 0.0, 1.0
    for place in order:
        placed[place] = floor = max(placed[place], floor)
        floor += gap
    for place in reversed(order):
        placed[place] = ceiling = min(placed[place], ceiling)
        ceiling -= gap
    return placed


def plain(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


# --- parts ---


def _bent(results: Sequence[Result]) -> bool:
    return "top_eigenvalue" in results[0].figures


def _title(results: Sequence[Result], bent: bool) -> str:
    first = results[0]
    if len(results) == 1:
        return first.label
    return "curvature of the loss" if bent else f"worst-case flatness, ξ = {first.figures['radius']:g}"


def _lines(axes: "Axes", results: Sequence[Result], name: str, error: str = "") -> None:
    for place, result in enumerate(results):
        values = result.figures[name]
        spread = result.figures[error] if error else None
        axes.errorbar(range(len(values)), values, spread, capsize=2, elinewidth=0.8, **style(place))
    _finish(axes, [(result.figures[name][-1], result.label) for result in results] if len(results) > 1 else [])


def _rises(axes: "Axes", result: Result) -> None:
    figures = result.figures
    names = {
        "flatness": f"worst case, {figures['steps']} steps, ξ = {figures['radius']:g}",
        "one_step": "worst case, one step",
        "sharpness": f"SAM, ρ = {figures['sam_radius']:g}",
    }
    for place, name in enumerate(names):
        axes.plot(figures[name], **style(place))
    _finish(axes, [(figures[name][-1], label) for name, label in names.items()])


def _finish(axes: "Axes", ends: Sequence[tuple[float, str]]) -> None:
    if axes.get_ylim()[0] > 0:
        axes.set_ylim(bottom=0)
    label_ends(axes, ends)
    plain(axes)


def _by_task(result: Result, names: Mapping[str, str]) -> Table:
    figures, found = result.figures, table(result.label, "task", names.values())
    errors = {"top_eigenvalue": "residual", "trace": "trace_error"}
    for place, task in enumerate(figures["tasks"]):
        cells = []
        for name in names:
            value, error = figures[name][place], figures.get(errors.get(name, ""))
            cells.append(number(value) if error is None else f"{number(value)} ± {error[place]:.{decimals(value)}f}")
        found.add_row(task, *cells)
    found.add_section()
    found.add_row("mean", *(number(fmean(figures[name])) for name in names))
    return found


def _reading_flatness(figures: Mapping[str, Any]) -> list[str]:
    return [
        f"worst case: how much the loss rises when each layer is moved by {figures['radius']:g} of its length, "
        f"{figures['steps']} steps uphill",
        f"SAM: when all weights together are moved by {figures['sam_radius']:g} along the gradient. Less is flatter",
    ]


def _reading_curvature() -> list[str]:
    return [
        "top eigenvalue ± residual: how sharply the loss is bent, at most",
        "trace ± standard error: the same, summed over all directions. Less is flatter",
        "gradient: its length; far from 0 the weights are not at a minimum",
    ]
