"""Accuracy under attack: tables, and accuracy against strength."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from perdure.report.probes import Result
from perdure.report.probes.parts import look, name_ends, span, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Affine2DBase

NORMS = {"linf": "L∞", "l2": "L2"}
TOP = 102  # so that a marker at 100 % is whole
ROOM = 3  # strengths whose intervals fit into 100 columns


def tables(results: Sequence[Result]) -> Sequence[Table | str]:
    """Clean first, then strength by strength; of a single run each task as well."""
    title = f"Accuracy under attack ({_attacks(results)}), percent, mean over tasks"
    found = table(title, "run", ("strength", "in pixels", "normalized", "accuracy", "95 % interval", "loss"))
    for result in results:
        for index, row in enumerate(_rows(result.figures)):
            found.add_row(result.label if index == 0 else "", *row, end_section=index == len(result.figures["acc"]))
    notes = [f"{result.label}: {note}" for result in results for note in result.figures["notes"]]
    reading = [
        "strength: how far each image may move; in pixels of 0 … 1, and in the network's normalized input",
        "95 % interval: Wilson's, of all images together; loss: mean cross-entropy",
    ]
    return [found, *([_by_task(results[0].figures)] if len(results) == 1 else []), *reading, *notes]


def draw(figure: "Figure", results: Sequence[Result]) -> None:
    """Accuracy against strength, clean at 0, with intervals; side by side what is not measured by the same norm."""
    kinds = list(dict.fromkeys((result.figures["norm"], result.figures["space"]) for result in results))
    figure.set_size_inches(6.4 * len(kinds), 4.0)
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        alike = [result for result in results if (result.figures["norm"], result.figures["space"]) == kind]
        _draw_one(axes, alike, figure.dpi_scale_trans)


def _rows(figures: Mapping[str, Any]) -> list[list[str]]:
    clean = figures["clean"]
    rows = [["clean", "0", "0", f"{clean['acc']:.1f}", span(clean["interval"]), f"{clean['loss']:.3f}"]]
    for level, acc in enumerate(figures["acc"]):
        rows.append(
            [
                figures["labels"][level],
                span(figures["in_pixels"][level], ".3g"),
                span(figures["in_normalized"][level], ".3g"),
                f"{acc:.1f}",
                span(figures["intervals"]["pooled"][level]),
                f"{figures['loss'][level]:.3f}",
            ]
        )
    return rows


def _by_task(figures: Mapping[str, Any]) -> Table:
    """With intervals where there is room for them."""
    room = len(figures["labels"]) <= ROOM
    title = "by task, percent, with 95 % intervals" if room else "by task, percent"
    found = table(title, "task", ("images", "clean", *figures["labels"]))
    levels = [figures["clean"]["by_task"], *figures["by_task"]]
    intervals = [figures["clean"]["intervals"], *figures["intervals"]["by_task"]]
    for task, name in enumerate(figures["tasks"]):
        cells = [
            f"{level[task]:.1f} ({span(interval[task])})" if room else f"{level[task]:.1f}"
            for level, interval in zip(levels, intervals, strict=True)
        ]
        found.add_row(name, str(figures["images"][task]), *cells)
    return found


def _attacks(results: Sequence[Result]) -> str:
    return " and ".join(dict.fromkeys(str(result.figures["attack"]) for result in results))


def _draw_one(axes: "Axes", results: Sequence[Result], inch: "Affine2DBase") -> None:
    from matplotlib.transforms import ScaledTranslation

    for index, result in enumerate(results):
        strengths, acc, low, high = _curve(result.figures)
        beside = min(4, 18 / len(results)) / 72  # inches, so that intervals do not hide each other
        aside = beside * (index - (len(results) - 1) / 2)
        shifted = axes.transData + ScaledTranslation(aside, 0, inch)
        style = look(index)
        axes.vlines(strengths, low, high, colors=style["color"], linewidth=1, transform=shifted, clip_on=False)
        axes.plot(strengths, acc, transform=shifted, clip_on=False, label=result.label, **style)
    _scale(axes, results)
    axes.set_ylim(0, TOP)
    axes.set_ylabel("accuracy (%), mean over tasks")
    axes.set_title(f"{_attacks(results)}, with 95 % intervals")
    name_ends(axes)


def _curve(figures: Mapping[str, Any]) -> tuple[list[float], list[float], list[float], list[float]]:
    """Strengths in order, accuracies, and the bounds of their intervals; clean at 0."""
    points = {0.0: (figures["clean"]["acc"], *figures["clean"]["interval"])}
    for strength, acc, interval in zip(
        figures["strengths"], figures["acc"], figures["intervals"]["pooled"], strict=True
    ):
        points[strength] = (acc, *interval)
    strengths = sorted(points)
    acc, low, high = ([points[strength][part] for strength in strengths] for part in range(3))
    return strengths, acc, low, high


def _scale(axes: "Axes", results: Sequence[Result]) -> None:
    """Strengths as the probe was given them, the other unit below; logarithmic where they span more than a decade."""
    strengths = sorted({strength for result in results for strength in _curve(result.figures)[0]})
    least = strengths[min(1, len(strengths) - 1)]
    if strengths[-1] > 10 * least:
        axes.set_xscale("symlog", linthresh=least)
        axes.set_xlim(-0.2 * least, 1.3 * strengths[-1])
    else:
        axes.set_xlim(-0.04 * strengths[-1], 1.04 * strengths[-1] or 1)
    places = {strength: float(axes.transScale.transform((strength, 0))[0]) for strength in strengths}
    ticks = [0.0]
    for strength in strengths[1:]:
        if places[strength] - places[ticks[-1]] > 0.06 * places[strengths[-1]]:  # as many as can be read
            ticks.append(strength)
    figures = results[0].figures
    axes.set_xticks(ticks, ["clean", *(_strength(strength, figures) for strength in ticks[1:])])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(_units(figures))


def _units(figures: Mapping[str, Any]) -> str:
    """What the strengths are measured in, and what the last of them is in the other unit."""
    names = ("in pixels of 0 … 1", "in normalized units")
    own, other = names if _in_pixels(figures) else names[::-1]
    there = figures["in_normalized" if _in_pixels(figures) else "in_pixels"][-1]
    here = _strength(figures["strengths"][-1], figures)
    return f"strength ({NORMS[figures['norm']]}) {own}\n{here} is {span(there, '.3g')} {other}"


def _in_pixels(figures: Mapping[str, Any]) -> bool:
    return str(figures["space"]).startswith("pixels")


def _strength(strength: float, figures: Mapping[str, Any]) -> str:
    """In 255ths where it is a change of a pixel that has so many levels."""
    whole = abs(255 * strength - round(255 * strength)) < 1e-6
    levels = whole and _in_pixels(figures) and figures["norm"] == "linf"
    return f"{round(255 * strength)}/255" if levels else f"{strength:g}"
