"""Whether runs are as often right as they say: a table of figures, and the reliability diagram."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from perdure.report.probes import Result
from perdure.report.probes.parts import look, number, span, together

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = ("ECE %", "by mass %", "NLL", "Brier", "right %", "sure %", "too sure by")
NOTES = (
    "ECE: how far confidence is from accuracy, mean over images in bins of equal width of confidence",
    "by mass: the same in bins of equally many images; both come out larger where images are few",
    "Brier: summed over classes, 0 … 2; right: accuracy (95 % interval); sure: mean confidence",
    "too sure by: confidence − accuracy, in points; below 0 the answers are better than it thinks",
)
FEW = 0.15  # of an even share of the images: bins that have less say nothing and are not drawn


def tables(results: Sequence[Result]) -> Sequence[Table | str]:
    return [together(results, f"test images, {results[0].figures['bins']} bins", COLUMNS, _cells), *NOTES]


def _cells(found: Mapping[str, Any]) -> list[str]:
    return [
        f"{found['ece']:.1f}",
        f"{found['ece_equal_mass']:.1f}",
        f"{found['nll']:.3f}",
        f"{found['brier']:.3f}",
        f"{found['accuracy']:.1f} ({span(found['accuracy_interval'])})",
        f"{found['confidence']:.1f}",
        number(found["overconfidence"], "+.1f"),
    ]


def draw(figure: "Figure", results: Sequence[Result]) -> None:
    """Accuracy over confidence, and below how many images are so sure; on all tasks' images together."""
    figure.set_size_inches(5, 6.2 + 0.17 * len(results))
    above, below = figure.subplots(2, 1, height_ratios=[3, 1], sharex=True)
    for place, result in enumerate(results):
        _reliability(above, result, look(place), alone=len(results) == 1)
        _histogram(below, result, look(place), alone=len(results) == 1)
    above.plot([0, 100], [0, 100], color="0.7", linewidth=0.8, zorder=0)
    above.annotate("as sure as right", (2, 4), rotation=45, rotation_mode="anchor", color="0.4")
    above.set_xlim(0, 101)
    above.set_ylim(0, 101)
    above.set_ylabel("accuracy (%), bins with few images left out")
    below.set_ylabel("images (%)")
    below.set_xlabel("confidence (%)")
    above.legend(loc="lower left", bbox_to_anchor=(0, 1))  # above: curves may go anywhere


def _reliability(axes: "Axes", result: Result, style: Mapping[str, Any], alone: bool) -> None:
    """A point for each bin, the larger the more images it has; with its interval where one run stands alone."""
    count, confidence, accuracy, interval = (
        result.arrays[name][-1] for name in ("count", "confidence", "accuracy", "interval")
    )
    share = count / count.sum()
    some = share * len(count) >= FEW
    x, y = confidence[some], accuracy[some]
    label = f"{result.label}: ECE {result.figures['together']['ece']:.1f} %"
    axes.plot(x, y, label=label, **style)
    axes.scatter(x, y, s=500 * share[some], marker=style["marker"], color=style["color"], linewidths=0, zorder=3)
    if alone:
        axes.vlines(x, *interval[some].T, color="0.5", linewidth=0.9)


def _histogram(axes: "Axes", result: Result, style: Mapping[str, Any], alone: bool) -> None:
    import numpy as np

    count = result.arrays["count"][-1]
    edges = np.linspace(0, 100, len(count) + 1)
    color = "0.6" if alone else style["color"]
    axes.stairs(100 * count / count.sum(), edges, fill=alone, color=color, linestyle=style["linestyle"])
