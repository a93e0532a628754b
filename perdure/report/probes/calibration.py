"""Whether runs are as often right as they say: a table of figures, and the reliability diagram."""

from collections.abc import Sequence

import numpy as np

from perdure.report import render
from perdure.report.probes import Result
from perdure.report.render import Figure, Tables, cell
from perdure.report.style import line_styles

COLUMNS = [
    ("ECE %", cell("ece")),
    ("by mass %", cell("ece_equal_mass")),
    ("NLL", cell("nll", ".3f")),
    ("Brier", cell("brier", ".3f")),
    ("right %", cell("accuracy", interval="accuracy_interval")),
    ("sure %", cell("confidence")),
    ("too sure by", cell("overconfidence", "+.1f")),
]
NOTES = (
    "ECE: how far confidence is from accuracy, mean over images in bins of equal width of confidence",
    "by mass: the same in bins of equally many images; both come out larger where images are few",
    "Brier: summed over classes, 0 … 2; right: accuracy (95 % interval); sure: mean confidence",
    "too sure by: confidence − accuracy, in points; below 0 the answers are better than it thinks",
)
FEW = 0.15  # of an even share of the images: bins that have less say nothing and are not drawn


def tables(results: Sequence[Result]) -> Tables:
    return [render.tasks_and_all(results, f"test images, {results[0].figures['bins']} bins", COLUMNS), *NOTES]


def draw(figure: Figure, results: Sequence[Result]) -> None:
    """On all tasks' images together: above accuracy over confidence, a point for each bin, the larger the more images
    it has, with its interval where one run stands alone; below how many images are so sure."""
    alone = len(results) == 1
    figure.set_size_inches(5, 6.2 + 0.17 * len(results))
    above, below = figure.subplots(2, 1, height_ratios=[3, 1], sharex=True)
    for result, style in zip(results, line_styles([result.label for result in results]), strict=True):
        count, x, y, interval = (result.arrays[name][-1] for name in ("count", "confidence", "accuracy", "interval"))
        share = count / count.sum()
        some = share * len(count) >= FEW
        x, y = x[some], y[some]
        above.plot(x, y, label=f"{result.label}: ECE {result.figures['together']['ece']:.1f} %", **style)
        inside = style.get("markerfacecolor", style["color"])
        points = {"marker": style["marker"], "edgecolors": style["color"], "facecolors": inside, "zorder": 3}
        above.scatter(x, y, s=500 * share[some], linewidths=0.8, **points)
        if alone:
            above.vlines(x, *interval[some].T, color="0.5", linewidth=0.9)
        color = "0.6" if alone else style["color"]
        edges = np.linspace(0, 100, len(count) + 1)
        below.stairs(100 * count / count.sum(), edges, fill=alone, color=color, linestyle=style["linestyle"])
    above.plot([0, 100], [0, 100], color="0.7", linewidth=0.8, zorder=0)
    above.annotate("as sure as right", (2, 4), rotation=45, rotation_mode="anchor", color="0.4")
    above.set(xlim=(0, 101), ylim=(0, 101), ylabel="accuracy (%), bins with few images left out")
    below.set(xlabel="confidence (%)", ylabel="images (%)")
    above.legend(loc="lower left", bbox_to_anchor=(0, 1))  # above: curves may go anywhere
