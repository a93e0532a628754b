"""Certified accuracy: tables, and accuracy against the radius."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from perdure.report import render
from perdure.report.probes import Result
from perdure.report.render import Axes, Figure, Figures, Tables, number, span, table
from perdure.report.style import line_styles
from perdure.report.table import Table, with_best
from perdure.report.tables import matrix

NAMES = ("ACC", "BWT", "new task", "forgetting")
SCORES = {"acc": ".1f", "bwt": "+.1f", "learning_accuracy": ".1f", "forgetting": ".1f"}
FITTING = 4  # radii whose intervals fit into 100 columns
NOTES = (
    "≥ r: right, and no change of the image shorter than r in L2, in pixels of 0 … 1, can make it wrong",
    "clean: all test images without noise, answered one by one; abstained: no class is frequent enough",
    "mean r: radius of right answers, 0 for all others",
)
FIXED = "batch norms have fixed statistics, of training images with noise: clean may differ from the record's accuracy"


def tables(results: Sequence[Result]) -> Tables:
    """All runs; of a single one each task as well, and the certified matrix where there is one."""
    figures = results[0].figures
    title = f"Certified accuracy (σ {render.joined(results, 'sigma')}), percent, mean over tasks"
    labels = _labels(results)
    summary = table(title, "run", ("clean", *labels, "abstained", "mean r"), [_row(one, labels) for one in results])
    return [
        with_best(summary, *labels),
        *([_by_task(figures)] if len(results) == 1 else []),
        *_over_time(results),
        *NOTES,
        *([FIXED] if any(result.figures["fixed"] for result in results) else []),
        f"each certificate is wrong with a chance of at most {render.joined(results, 'alpha')}; "
        f"{render.joined(results, 'samples')} noisy copies can certify {_largest(figures)}",
    ]


def draw(figure: Figure, results: Sequence[Result]) -> None:
    """Certified accuracy against the radius, as far as so many copies reach: of one run each task and the mean, of
    several their means. Below, where it is known, how much of it old tasks keep as more are learned."""
    later = [result for result in results if result.figures["over_time"] and len(_matrix_at(result)) > 1]
    figure.set_size_inches(6.4, 7.0 if later else 4.0)
    axes = figure.subplots(1 + bool(later), 1, squeeze=False)[:, 0]
    _curves(axes[0], results)
    if later:
        _old_tasks(axes[1], later)


def _row(result: Result, labels: Sequence[str]) -> list[str]:
    figures = result.figures
    known = {_label(at): one["acc"] for at, one in zip(figures["radii"], figures["certified"], strict=True)}
    return [
        result.label,
        number(figures["clean"]["acc"]),
        *(number(known.get(label)) for label in labels),
        number(figures["abstained"]["acc"]),
        number(fmean(figures["mean_radius"]), ".3f"),
    ]


def _by_task(figures: Figures) -> Table:
    """With intervals where there is room for them."""
    fits = len(figures["radii"]) <= FITTING
    rows = []
    for task, name in enumerate(figures["tasks"]):
        pairs = [(one["by_task"][task], one["intervals"][task]) for one in figures["certified"]]
        cells = [f"{number(share)} ({span(interval)})" if fits else number(share) for share, interval in pairs]
        clean, abstained = (number(figures[kind]["by_task"][task]) for kind in ("clean", "abstained"))
        rows.append([name, str(figures["images"][task]), clean, *cells, abstained])
    title = "by task, percent, with 95 % intervals" if fits else "by task, percent"
    return table(title, "task", ("images", "clean", *map(_label, figures["radii"]), "abstained"), rows)


def _over_time(results: Sequence[Result]) -> list[Table]:
    """ACC and BWT at every radius; of a single run also its matrix at one."""
    known = [result for result in results if result.figures["over_time"]]
    if not known:
        return []
    rows = [[_scores(result, at, one) for at, one in _each(result)] for result in known]
    found = [table("certified accuracy over time", "run", ("radius", *NAMES), *rows, merged=True)]
    if len(results) > 1:
        return found
    name = f"{known[0].label}, certified {_label(_radius(known[0].figures))}"
    record = {"method": name, "task_names": known[0].figures["tasks"], "accuracy_matrix": _matrix_at(known[0])}
    return [*found, matrix(record)]


def _scores(result: Result, at: float, figures: Figures) -> list[str]:
    return [result.label, _label(at), *(number(figures[name], form) for name, form in SCORES.items())]


def _each(result: Result) -> list[tuple[float, Figures]]:
    return list(zip(result.figures["radii"], result.figures["over_time"], strict=True))


def _radius(figures: Figures) -> float:
    """The one that a matrix is shown for: the first that asks for something."""
    return next((float(at) for at in figures["radii"] if at > 0), float(figures["radii"][0]))


def _matrix_at(result: Result) -> Sequence[Sequence[float]]:
    place = result.figures["radii"].index(_radius(result.figures))
    found: Sequence[Sequence[float]] = result.figures["over_time"][place]["matrix"]
    return found


def _labels(results: Sequence[Result]) -> list[str]:
    return [_label(at) for at in sorted({at for result in results for at in result.figures["radii"]})]


def _label(at: float) -> str:
    return f"≥ {at:g}"


def _largest(figures: Figures) -> str:
    return "nothing" if figures["largest"] is None else f"{figures['largest']:.3g} at most"


def _curves(axes: Axes, results: Sequence[Result]) -> None:
    if len(results) == 1:
        names = results[0].figures["tasks"]
        radii, found = _shares(results[0])
        for name, share, style in zip(names, found, line_styles(names), strict=True):
            axes.plot(radii, share, label=name, **_thin(style))
        axes.plot(radii, np.mean(found, 0), label="mean", color="black", linewidth=2.2)
    else:
        for result, style in zip(results, line_styles([one.label for one in results]), strict=True):
            radii, found = _shares(result)
            axes.plot(radii, np.mean(found, 0), label=result.label, **style | {"markevery": 25})
    sigma = render.joined(results, "sigma")
    title = f"{results[0].label}: smoothed" if len(results) == 1 else "smoothed"
    axes.set_title(f"{title} with σ {sigma}")
    axes.set(xlim=(0, None), ylim=(0, 102))
    copies = render.joined(results, "samples")
    axes.set_xlabel(f"radius (L2) in pixels of 0 … 1\n{copies} noisy copies can certify {_largest(results[0].figures)}")
    axes.set_ylabel("certified accuracy (%)" if len(results) == 1 else "certified accuracy (%), mean over tasks")
    render.label_ends(axes)


def _thin(style: dict[str, Any]) -> dict[str, Any]:
    return style | {"markevery": 25, "linewidth": 1.0, "markersize": 3.5}


def _shares(result: Result) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """Radii, and tasks by radii: percent of the images that are right, and certified so far."""
    tasks = range(len(result.figures["tasks"]))
    radii = np.linspace(0, result.figures["largest"] or result.figures["sigma"], 201)
    reached = [np.where(result.arrays[f"right_{task}"], result.arrays[f"radius_{task}"], -1.0) for task in tasks]
    return radii, np.stack([100 * (of[:, None] >= radii).mean(0) for of in reached])


def _old_tasks(axes: Axes, results: Sequence[Result]) -> None:
    """Mean over the tasks that were there before, after each task."""
    for result, style in zip(results, line_styles([result.label for result in results]), strict=True):
        rows = _matrix_at(result)
        axes.plot(range(2, len(rows) + 1), [fmean(row[:-1]) for row in rows[1:]], label=result.label, **style)
    render.whole_ticks(axes, 2, max(len(_matrix_at(result)) for result in results))
    at = _label(_radius(results[0].figures))
    axes.set(ylim=(0, 102), xlabel="after task", ylabel=f"accuracy certified {at} of\nearlier tasks, mean (%)")
    render.label_ends(axes)
