"""The loss along random lines through the weights, and in a plane."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from perdure.report import render
from perdure.report.probes import Result
from perdure.report.render import Axes, Figure, Tables, cell, digits
from perdure.report.style import line_styles

ACROSS = 3
CUT = 1.5  # times the loss of one who knows nothing: how much worse the network gets beyond is of no interest
PLANE = [
    ("task", lambda figures: figures["task"]),
    ("at W", lambda figures: digits(figures["loss"])),
    ("lowest", lambda figures: digits(figures["lowest"])),
    ("highest", lambda figures: digits(figures["highest"])),
    ("basin (%)", cell("basin")),
]


def tables(results: Sequence[Result]) -> Tables:
    """Of one result the rise by task, of several their means and the rises side by side; of planes a row each."""
    first = results[0].figures
    if _is_plane(results):
        near = f"basin: share of the plane where the loss is at most {first['near']:g} above that at W"
        return [render.by_run("loss in a plane through W", PLANE, results), near]
    return [
        *render.by_task(results, {"loss": "loss", "rise": f"rise at {first['at']:g}"}, {"rise": "rise_error"}),
        f"rise: how much the loss grows when every filter is moved by {first['at']:g} of its length at random,",
        "mean of all directions and both signs, ± standard error. Less is flatter;",
        "but what was never learned or was forgotten is flat, too: see the loss",
    ]


def draw(figure: Figure, results: Sequence[Result]) -> None:
    """A panel for each task, with the curves of all runs; of planes a panel for each run."""
    if _is_plane(results):
        _draw_planes(figure, results)
    else:
        _draw_lines(figure, results)


def _is_plane(results: Sequence[Result]) -> bool:
    return "basin" in results[0].figures


def _draw_lines(figure: Figure, results: Sequence[Result]) -> None:
    names = max((result.figures["tasks"] for result in results), key=len)
    top = max(_highest(result) for result in results)
    styles = line_styles([result.label for result in results])
    for task, (axes, name) in enumerate(zip(_sized(figure, len(names), 2.3, 1.9), names, strict=True)):
        axes.set_ylim(0, 1.05 * top)
        for place, (result, style) in enumerate(zip(results, styles, strict=True)):
            if task < len(result.figures["tasks"]):
                every = (2 * place, max(1, len(result.arrays["steps"]) // 5))
                _curve(axes, result, task, None if len(results) == 1 else style | {"markevery": every})
                chance, steps = result.figures["chance"][task], result.arrays["steps"]
        axes.axhline(chance, color="0.6", linewidth=0.7, dashes=(1, 3), label="chance")
        axes.set(title=name, xlim=(1.05 * steps[0], 1.05 * steps[-1]))
        if task % ACROSS == min(ACROSS, len(names)) - 1:
            render.label_ends(axes)
    if len(results) == 1:
        figure.suptitle(f"{results[0].label}: mean ± deviation over random directions")
    figure.supxlabel("step along a random direction (lengths of each filter)")
    figure.supylabel("cross-entropy (nats)")


def _curve(axes: Axes, result: Result, task: int, style: dict[str, Any] | None) -> None:
    """The mean over directions, in its style among several runs; of a single one with its deviation."""
    steps, curves = result.arrays["steps"], result.arrays["curves"][task]
    middle = curves.mean(0)
    if style is not None:
        axes.plot(steps, middle, label=result.label, **style)
        return
    axes.plot(steps, middle, color="black")
    if len(curves) > 1:
        deviation = curves.std(0, ddof=1)
        axes.fill_between(steps, middle - deviation, middle + deviation, color="0.85", linewidth=0)


def _highest(result: Result) -> float:
    """How high the mean curves go, cut; not below the loss of one who knows nothing, which is drawn too."""
    nothing = max(result.figures["chance"])
    return float(min(max(result.arrays["curves"].mean(1).max(), nothing), CUT * nothing))


def _draw_planes(figure: Figure, results: Sequence[Result]) -> None:
    """Lines of equal loss, at the same heights for all runs."""
    from matplotlib.ticker import MaxNLocator

    low = min(result.figures["lowest"] for result in results)
    high = max(min(result.figures["highest"], CUT * result.figures["chance"]) for result in results)
    levels = MaxNLocator(10).tick_values(low, high)
    for axes, result in zip(_sized(figure, len(results), 3.2, 3.2), results, strict=True):
        steps = result.arrays["steps"]
        grid = np.ma.masked_invalid(result.arrays["grid"].T)  # the first direction goes to the right
        contours = axes.contour(steps, steps, grid, levels, colors="0.35", linewidths=0.9)
        for text in axes.clabel(contours, fontsize=7, colors="black", inline=False):
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
            if max(map(abs, text.get_position())) > 0.9 * steps[-1]:  # would be cut by the frame
                text.remove()
        axes.plot(0, 0, "+", color="black", markersize=8)
        axes.set(aspect="equal", title=f"{result.label}: {result.figures['task']}")
        axes.spines[:].set_visible(True)
    figure.supxlabel("first direction (lengths of each filter)")
    figure.supylabel("second direction")


def _sized(figure: Figure, count: int, width: float, height: float) -> list[Axes]:
    """So many panels of that size."""
    columns = min(count, ACROSS)
    figure.set_size_inches(1.6 + width * columns, 0.9 + height * -(-count // columns))
    return render.panels(figure, count, columns)
