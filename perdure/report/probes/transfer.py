"""Attacks carried over from one method to another, as a matrix."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from perdure.report.probes import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(results: Sequence[Result]) -> Sequence[Table | str]:
    """One result: the matrix, and what is suspicious in it."""
    figures = results[0].figures
    pairs = [pair for row in (figures["clean_intervals"], *figures["intervals"]) for pair in row]
    widest = max(high - low for low, high in pairs) / 2
    title = f"percent right of {figures['images']} images, {figures['attack']}; ± {widest:.1f} at most (95 %)"
    table = Table(title=title, title_justify="left")
    table.add_column("crafted on ↓, tried on →", overflow="fold")
    numbered = [f"{n} {name}" for n, name in enumerate(figures["names"], 1)]
    for n, _ in enumerate(numbered, 1):
        table.add_column(str(n), justify="right", no_wrap=True)
    for name, cells in zip(("  (clean)", *numbered), (figures["clean"], *figures["matrix"]), strict=True):
        table.add_row(name, *(f"{accuracy:.1f}" for accuracy in cells))
    return [table, *_warnings(results[0])]


def draw(figure: "Figure", results: Sequence[Result]) -> None:
    figures = results[0].figures
    names, matrix = figures["names"], [figures["clean"], *figures["matrix"]]
    longest = max(map(len, names))
    figure.set_size_inches(2.2 + 0.07 * longest + 0.95 * len(names), 2.0 + 0.04 * longest + 0.5 * len(matrix))
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    axes.imshow(matrix, cmap="Greys", vmin=0, vmax=125, aspect="auto")  # the darkest cell keeps its figure legible
    flagged = {(flag["from"], flag["on"]) for flag in figures["flags"]}
    for row, values in enumerate(matrix):
        for column, accuracy in enumerate(values):
            own = row == column + 1
            mark = "*" if row and (names[row - 1], names[column]) in flagged else ""
            axes.text(
                column,
                row,
                f"{accuracy:.1f}{mark}",
                ha="center",
                va="center",
                fontsize=9,
                fontweight="bold" if own or mark else "normal",
                color="white" if accuracy > 62 else "black",
            )
    axes.axhline(0.5, color="white", linewidth=4)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(matrix)), ["clean", *names])
    axes.set_xlabel("tried on")
    axes.set_ylabel("crafted on")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    star = "; * stronger than its own" if flagged else ""
    figure.suptitle(f"accuracy (%), {figures['attack']}\nbold: own gradients{star}", fontsize=10)


def _warnings(result: Result) -> list[str]:
    """What is stronger from elsewhere; one line each."""
    flags = result.figures["flags"]
    if not flags:
        return ["the diagonal is each one's own attack; no other is stronger beyond noise, so no sign of masking"]
    return [
        f"{flag['verdict']}: what is crafted on {flag['from']} takes {flag['points']:.1f} points more from "
        f"{flag['on']} than its own gradients do (p = {flag['p']:.2g}): a sign of masking"
        for flag in flags
    ]
