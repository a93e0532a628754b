"""Accuracy under attack: tables, and accuracy against strength."""

from collections.abc import Sequence

from perdure.report import render
from perdure.report.probes import Result
from perdure.report.render import Axes, Figure, Figures, Tables, number, span, table
from perdure.report.style import line_styles
from perdure.report.table import Cell, Table

NORMS = {"linf": "L∞", "l2": "L2"}
TOP = 102  # so that a marker at 100 % is whole
FITTING = 3  # strengths whose intervals fit into 100 columns


def tables(results: Sequence[Result]) -> Tables:
    """Clean first, then strength by strength; of a single run each task as well."""
    title = f"Accuracy under attack ({render.joined(results, 'attack')}), percent, mean over tasks"
    columns = ("strength", "in pixels", "normalized", "accuracy", "95 % interval", "loss")
    return [
        table(title, "run", columns, *_with_best(list(map(_rows, results))), merged=True),
        *([_by_task(results[0].figures)] if len(results) == 1 else []),
        "strength: how far each image may move; in pixels of 0 … 1, and in the network's normalized input",
        "95 % interval: Wilson's, of all images together; loss: mean cross-entropy",
        *(f"{result.label}: {note}" for result in results for note in result.figures["notes"]),
    ]


def draw(figure: Figure, results: Sequence[Result]) -> None:
    """Accuracy against strength, clean at 0, with intervals; side by side what is not measured by the same norm."""
    kinds = list(dict.fromkeys((result.figures["norm"], result.figures["space"]) for result in results))
    figure.set_size_inches(6.4 * len(kinds), 4.0)
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        alike = [result for result in results if (result.figures["norm"], result.figures["space"]) == kind]
        _draw_one(figure, axes, alike)


def _rows(result: Result) -> list[list[str]]:
    figures, clean = result.figures, result.figures["clean"]
    units = zip(figures["labels"], figures["in_pixels"], figures["in_normalized"], strict=True)
    found = zip(figures["acc"], figures["intervals"]["pooled"], figures["loss"], strict=True)
    strengths = [
        ["clean", "0", "0"],
        *([label, span(one, ".3g"), span(other, ".3g")] for label, one, other in units),
    ]
    levels = [(clean["acc"], clean["interval"], clean["loss"]), *found]
    return [
        [
            result.label,
            *strength,
            number(acc),
            span(interval),
            number(loss, ".3f"),
        ]
        for strength, (acc, interval, loss) in zip(strengths, levels, strict=True)
    ]


def _with_best(groups: Sequence[Sequence[Sequence[str]]]) -> list[list[list[str | Cell]]]:
    """The highest accuracy at each strength in bold, where there are several runs."""
    highest: dict[str, float] = {}
    for _, strength, *_, accuracy, _, _ in [row for rows in groups for row in rows]:
        highest[strength] = max(highest.get(strength, 0.0), float(accuracy))
    several = len(groups) > 1
    return [
        [[*row[:4], Cell(row[4], bold=several and float(row[4]) == highest[row[1]]), *row[5:]] for row in rows]
        for rows in groups
    ]


def _by_task(figures: Figures) -> Table:
    """With intervals where there is room for them."""
    fits = len(figures["labels"]) <= FITTING
    levels = [figures["clean"]["by_task"], *figures["by_task"]]
    intervals = [figures["clean"]["intervals"], *figures["intervals"]["by_task"]]
    rows = []
    for task, name in enumerate(figures["tasks"]):
        pairs = [(level[task], interval[task]) for level, interval in zip(levels, intervals, strict=True)]
        cells = [f"{number(acc)} ({span(interval)})" if fits else number(acc) for acc, interval in pairs]
        rows.append([name, str(figures["images"][task]), *cells])
    title = "by task, percent, with 95 % intervals" if fits else "by task, percent"
    return table(title, "task", ("images", "clean", *figures["labels"]), rows)


def _draw_one(figure: Figure, axes: Axes, results: Sequence[Result]) -> None:
    from matplotlib.transforms import ScaledTranslation

    beside = min(4, 18 / len(results)) / 72  # inches, so that intervals do not hide each other
    styles = line_styles([result.label for result in results])
    for index, (result, style) in enumerate(zip(results, styles, strict=True)):
        strengths, acc, low, high = _curve(result.figures)
        shifted = axes.transData + ScaledTranslation(
            beside * (index - (len(results) - 1) / 2), 0, figure.dpi_scale_trans
        )
        axes.vlines(strengths, low, high, colors=style["color"], linewidth=1, transform=shifted, clip_on=False)
        axes.plot(strengths, acc, transform=shifted, clip_on=False, label=result.label, **style)
    _scale(axes, results)
    axes.set(ylim=(0, TOP), ylabel="accuracy (%), mean over tasks")
    axes.set_title(f"{render.joined(results, 'attack')}, with 95 % intervals")
    render.label_ends(axes)


def _curve(figures: Figures) -> tuple[list[float], list[float], list[float], list[float]]:
    """Strengths in order, accuracies, and the bounds of their intervals; clean at 0."""
    points = {0.0: (figures["clean"]["acc"], *figures["clean"]["interval"])}
    for strength, acc, interval in zip(
        figures["strengths"], figures["acc"], figures["intervals"]["pooled"], strict=True
    ):
        points[strength] = (acc, *interval)
    strengths = sorted(points)
    acc, low, high = ([points[strength][part] for strength in strengths] for part in range(3))
    return strengths, acc, low, high


def _scale(axes: Axes, results: Sequence[Result]) -> None:
    """Strengths as the probe was given them, what the last is in the other unit below; logarithmic where they span more
    than a decade."""
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
    names = ("in pixels of 0 … 1", "in normalized units")
    own, other, unit = (*names, "in_normalized") if _in_pixels(figures) else (*names[::-1], "in_pixels")
    last = _strength(figures["strengths"][-1], figures)
    axes.set_xticks(ticks, ["clean", *(_strength(strength, figures) for strength in ticks[1:])])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(f"strength ({NORMS[figures['norm']]}) {own}\n{last} is {span(figures[unit][-1], '.3g')} {other}")


def _in_pixels(figures: Figures) -> bool:
    return str(figures["space"]).startswith("pixels")


def _strength(strength: float, figures: Figures) -> str:
    """In 255ths where it is a change of a pixel that has so many levels."""
    whole = abs(255 * strength - round(255 * strength)) < 1e-6
    levels = whole and _in_pixels(figures) and figures["norm"] == "linf"
    return f"{round(255 * strength)}/255" if levels else f"{strength:g}"
