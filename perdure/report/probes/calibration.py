"""Whether runs are as often right as they say: a table of figures, and the reliability diagram."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from perdure.report.probes import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = ("ECE %", "by mass %", "NLL", "Brier", "right %", "sure %", "too sure by")
NOTES = (
    "ECE: how far confidence is from accuracy, mean over images in bins of equal width of confidence",
    "by mass: the same in bins of equally many images; both come out larger where images are few",
    "Brier: summed over classes, 0 … 2; right: accuracy [95 %]; sure: mean confidence",
    "too sure by: confidence − accuracy, in points; below 0 the answers are better than it thinks",
)
FEW = 0.15  # of an even share of the images: bins that have less say nothing and are not drawn
DASHES = ("-", "--", ":", "-.")
MARKERS = "os^Dv"


def tables(results: Sequence[Result]) -> Sequence[Table | str]:
    """Of one result every task and all together; of several, all tasks together."""
    several = len(results) > 1
    title = "test images of all tasks together" if several else f"{results[0].label}: test images"
    table = Table(title=f"{title}, {results[0].figures['bins']} bins", title_justify="left")
    table.add_column("run" if several else "task")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    if several:
        for result in results:
            table.add_row(result.label, *_cells(result.figures["together"]))
    else:
        for task in results[0].figures["tasks"]:
            table.add_row(task["name"], *_cells(task))
        table.add_section()
        table.add_row("all together", *_cells(results[0].figures["together"]))
    return [table, *NOTES]


def _cells(found: Mapping[str, Any]) -> list[str]:
    low, high = found["accuracy_interval"]
    return [
        f"{found['ece']:.1f}",
        f"{found['ece_equal_mass']:.1f}",
        f"{found['nll']:.3f}",
        f"{found['brier']:.3f}",
        f"{found['accuracy']:.1f} [{low:.0f}, {high:.0f}]",
        f"{found['confidence']:.1f}",
        f"{found['overconfidence']:+.1f}".replace("-", "−"),
    ]


def draw(figure: "Figure", results: Sequence[Result]) -> None:
    """Accuracy over confidence, and below how many images are so sure; on all tasks' images together."""
    figure.set_size_inches(5, 6.4)
    figure.set_layout_engine("constrained")
    above, below = figure.subplots(2, 1, height_ratios=[3, 1], sharex=True)
    for place, result in enumerate(results):
        look = {"color": "black" if place % 2 == 0 else "0.5", "linestyle": DASHES[place % 4], "linewidth": 1.1}
        _reliability(above, result, look, MARKERS[place % 5], alone=len(results) == 1)
        _histogram(below, result, look, alone=len(results) == 1)
    above.plot([0, 100], [0, 100], color="0.7", linewidth=0.8, zorder=0)
    above.annotate("as sure as right", (2, 4), rotation=45, rotation_mode="anchor", fontsize=8, color="0.4")
    above.set_xlim(0, 101)
    above.set_ylim(0, 101)
    above.set_ylabel("accuracy (%), bins with few images left out")
    below.set_ylabel("images (%)")
    below.set_xlabel("confidence (%)")
    above.legend(loc="upper left", fontsize=8, frameon=False, handlelength=3.5)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)


def _reliability(axes: "Axes", result: Result, look: Mapping[str, Any], marker: str, alone: bool) -> None:
    """A point for each bin, the larger the more images it has; with its interval where one run stands alone."""
    count, confidence, accuracy, interval = (
        result.arrays[name][-1] for name in ("count", "confidence", "accuracy", "interval")
    )
    share = count / count.sum()
    some = share * len(count) >= FEW
    x, y = confidence[some], accuracy[some]
    label = f"{result.label}: ECE {result.figures['together']['ece']:.1f} %"
    axes.plot(x, y, marker=marker, markersize=3, label=label, **look)
    axes.scatter(x, y, s=500 * share[some], marker=marker, color=look["color"], linewidths=0, zorder=3)
    if alone:
        axes.vlines(x, *interval[some].T, color="0.5", linewidth=0.9)


def _histogram(axes: "Axes", result: Result, look: Mapping[str, Any], alone: bool) -> None:
    import numpy as np

    count = result.arrays["count"][-1]
    edges = np.linspace(0, 100, len(count) + 1)
    axes.stairs(100 * count / count.sum(), edges, fill=alone, **({"color": "0.6"} if alone else look))
