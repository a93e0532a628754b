"""The loss along random lines through the weights, and in a plane."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from perdure.report.probes import Result
from perdure.report.probes.flatness import decimals, label_ends, means, number, plain, side_by_side, style, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3
CUT = 1.5  # times the loss of one who knows nothing: how much worse the network gets beyond is of no interest


def tables(results: Sequence[Result]) -> Sequence[Table | str]:
    """Of one result the rise by task, of several their means and the rises side by side; of planes a row each."""
    first = results[0].figures
    if _is_plane(results):
        near = f"{first['near']:g}"
        return [_planes(results), f"basin: share of the plane where the loss is at most {near} above that at W"]
    rise = f"rise at {first['at']:g}"
    reading = [
        f"rise: how much the loss grows when every filter is moved by {first['at']:g} of its length at random,",
        "mean of all directions and both signs, ± standard error. Less is flatter;",
        "but what was never learned or was forgotten is flat, too: see the loss",
    ]
    if len(results) == 1:
        return [_by_task(results[0], rise), *reading]
    return [means(results, {"loss": "loss", "rise": rise}), *side_by_side(results, "rise", rise), *reading]


def draw(figure: "Figure", results: Sequence[Result]) -> None:
    """A panel for each task, with the curves of all runs; of planes a panel for each run."""
    figure.set_layout_engine("constrained")
    if _is_plane(results):
        _draw_planes(figure, results)
    else:
        _draw_lines(figure, results)


# --- lines ---


def _draw_lines(figure: "Figure", results: Sequence[Result]) -> None:
    names = max((result.figures["tasks"] for result in results), key=len)
    panels = _panels(figure, len(names), 2.3, 1.9)
    top = max(_highest(result) for result in results)
    for task, (axes, name) in enumerate(zip(panels, names, strict=True)):
        axes.set_ylim(0, 1.05 * top)
        shown = [result for result in results if task < len(result.figures["tasks"])]
        ends = [(_curve(axes, result, task, results), result.label) for result in shown]
        chance = shown[0].figures["chance"][task]
        axes.axhline(chance, color="0.6", linewidth=0.7, dashes=(1, 3))
        axes.set_title(name, fontsize=9, loc="left")
        plain(axes)
        axes.set_xlim(shown[0].arrays["steps"][0], shown[0].arrays["steps"][-1])
        if task % COLUMNS == COLUMNS - 1 or task == len(names) - 1:
            known = ends if len(results) > 1 else []
            label_ends(axes, [*known, (chance, "chance")], gap=0.085)
    if len(results) == 1:
        figure.suptitle(f"{results[0].label}: mean ± deviation over random directions", fontsize=10)
    figure.supxlabel("step along a random direction (lengths of each filter)", fontsize=9)
    figure.supylabel("cross-entropy (nats)", fontsize=9)


def _curve(axes: "Axes", result: Result, task: int, results: Sequence[Result]) -> float:
    """The mean over directions, of a single run with its deviation; gives the height where it ends."""
    steps, curves = result.arrays["steps"], result.arrays["curves"][task]
    middle = curves.mean(0)
    place = next(place for place, other in enumerate(results) if other is result)
    look = style(place) | {"markevery": (place * 2, max(1, len(steps) // 5))}
    axes.plot(steps, middle, **look | ({"marker": ""} if len(results) == 1 else {}))
    if len(results) == 1 and len(curves) > 1:
        deviation = curves.std(0, ddof=1)
        axes.fill_between(steps, middle - deviation, middle + deviation, color="0.85", linewidth=0)
    return float(middle[-1])


def _highest(result: Result) -> float:
    """How high the mean curves go, cut; not below the loss of one who knows nothing, which is drawn too."""
    nothing = max(result.figures["chance"])
    return float(min(max(result.arrays["curves"].mean(1).max(), nothing), CUT * nothing))


def _by_task(result: Result, rise: str) -> Table:
    figures, found = result.figures, table(result.label, "task", ["loss", rise])
    for place, task in enumerate(figures["tasks"]):
        value, errors = figures["rise"][place], figures["rise_error"]
        error = "" if errors is None else f" ± {errors[place]:.{decimals(value)}f}"
        found.add_row(task, number(figures["loss"][place]), number(value) + error)
    return found


# --- planes ---


def _is_plane(results: Sequence[Result]) -> bool:
    return "basin" in results[0].figures


def _planes(results: Sequence[Result]) -> Table:
    found = table("loss in a plane through W", "run", ["task", "at W", "lowest", "highest", "basin (%)"])
    for result in results:
        figures = result.figures
        losses = [number(figures[name]) for name in ("loss", "lowest", "highest")]
        found.add_row(result.label, figures["task"], *losses, f"{figures['basin']:.1f}")
    return found


def _draw_planes(figure: "Figure", results: Sequence[Result]) -> None:
    """Lines of equal loss, at the same heights for all runs."""
    from matplotlib.ticker import MaxNLocator

    low = min(result.figures["lowest"] for result in results)
    high = max(min(result.figures["highest"], CUT * result.figures["chance"]) for result in results)
    levels = MaxNLocator(10).tick_values(low, high)
    for axes, result in zip(_panels(figure, len(results), 3.2, 3.2), results, strict=True):
        steps = result.arrays["steps"]
        grid = np.ma.masked_invalid(result.arrays["grid"].T)  # the first direction goes to the right
        lines = axes.contour(steps, steps, grid, levels, colors="0.35", linewidths=0.9)
        for text in axes.clabel(lines, fontsize=7, colors="black", inline=False):
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
            if max(map(abs, text.get_position())) > 0.9 * steps[-1]:  # would be cut by the frame
                text.remove()
        axes.plot(0, 0, "+", color="black", markersize=8)
        axes.set_aspect("equal")
        axes.set_title(f"{result.label}: {result.figures['task']}", fontsize=9, loc="left")
        axes.tick_params(labelsize=8)
    figure.supxlabel("first direction (lengths of each filter)", fontsize=9)
    figure.supylabel("second direction", fontsize=9)


def _panels(figure: "Figure", count: int, width: float, height: float) -> "list[Axes]":
    """So many panels of that size, in rows of three."""
    columns = min(count, COLUMNS)
    rows = -(-count // COLUMNS)
    figure.set_size_inches(1.6 + width * columns, 0.9 + height * rows)
    found: list[Axes] = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for axes in found[count:]:
        axes.remove()
    return found[:count]
