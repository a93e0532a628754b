"""Attacks carried over from one method to another, as a matrix."""

from collections.abc import Sequence

from perdure.report import render
from perdure.report.probes import Result
from perdure.report.render import Figure, Tables, number, table


def tables(results: Sequence[Result]) -> Tables:
    """One result: the matrix, and what is suspicious in it."""
    figures = results[0].figures
    pairs = [pair for row in (figures["clean_intervals"], *figures["intervals"]) for pair in row]
    widest = max(high - low for low, high in pairs) / 2
    title = f"percent right of {figures['images']} images, {figures['attack']}; ± {widest:.1f} at most (95 %)"
    labels = ("  (clean)", *(f"{n} {name}" for n, name in enumerate(figures["names"], 1)))
    accuracies = (figures["clean"], *figures["matrix"])
    rows = [[label, *map(number, row)] for label, row in zip(labels, accuracies, strict=True)]
    columns = [str(n) for n in range(1, len(labels))]
    warnings = [
        f"{flag['verdict']}: what is crafted on {flag['from']} takes {flag['points']:.1f} points more from "
        f"{flag['on']} than its own gradients do (p = {flag['p']:.2g}): a sign of masking"
        for flag in figures["flags"]
    ]
    fine = "the diagonal is each one's own attack; no other is stronger beyond noise, so no sign of masking"
    return [
        table(title, "crafted on ↓, tried on →", columns, rows),
        render.units(figures),
        *(warnings or [fine]),
    ]


def draw(figure: Figure, results: Sequence[Result]) -> None:
    figures = results[0].figures
    names, matrix = figures["names"], [figures["clean"], *figures["matrix"]]
    longest = max(map(len, names))
    figure.set_size_inches(2.2 + 0.07 * longest + 0.95 * len(names), 2.0 + 0.04 * longest + 0.5 * len(matrix))
    axes = figure.subplots()
    cells = render.heat_map(axes, matrix)
    flagged = [(names.index(flag["from"]) + 1, names.index(flag["on"])) for flag in figures["flags"]]
    for row, column in flagged:
        cells[row][column].set_text(f"{cells[row][column].get_text()}*")
    for row, column in (*flagged, *((place + 1, place) for place in range(len(names)))):
        cells[row][column].set_fontweight("bold")
    axes.axhline(0.5, color="white", linewidth=4)
    render.slanted_ticks(axes, names)
    axes.set_yticks(range(len(matrix)), ["clean", *names])
    axes.set(xlabel="tried on", ylabel="crafted on")
    star = "; * stronger than its own" if flagged else ""
    figure.suptitle(f"accuracy (%), {figures['attack']}\nbold: own gradients{star}")
