"""Robust accuracy over time: the clean and the attacked accuracy matrix side by side."""

from collections.abc import Sequence
from statistics import fmean

from perdure.report import render
from perdure.report.probes import Result
from perdure.report.render import Axes, Figure, Reader, Tables, cell
from perdure.report.style import line_styles
from perdure.report.table import Table, with_best
from perdure.report.tables import matrix


def _robust_and_clean(name: str, form: str = ".1f") -> Reader:
    robust, clean = cell(f"robust.{name}", form), cell(f"clean.{name}", form)
    return lambda figures: f"{robust(figures)} ({clean(figures)})"


COLUMNS = [
    ("ACC", _robust_and_clean("acc")),
    ("BWT", _robust_and_clean("bwt", "+.1f")),
    ("new task", _robust_and_clean("learning_accuracy")),
    ("forgetting", _robust_and_clean("forgetting")),
    ("kept", cell("kept", "+.1f")),
]


def tables(results: Sequence[Result]) -> Tables:
    """The summary of all results, and of a single one its robust matrix too."""
    title = f"percent, mean over tasks, under {render.joined(results, 'attack')}; clean in brackets"
    return [
        *([_matrix(results[0])] if len(results) == 1 else []),
        with_best(render.by_run(title, COLUMNS, results), "ACC", "BWT"),
        "kept: robust BWT − clean BWT; below 0 a task loses robustness faster than it loses accuracy",
        render.units(results[0].figures),
    ]


def _matrix(result: Result) -> Table:
    figures = result.figures
    name = f"{result.label}, under {figures['attack']}"
    return matrix({"method": name, "task_names": figures["tasks"], "accuracy_matrix": figures["robust"]["matrix"]})


def draw(figure: Figure, results: Sequence[Result]) -> None:
    """Two matrices for each result; where there are several, also how robust old tasks stay as more are learned."""
    matrices = [result.figures["robust"]["matrix"] for result in results]
    tall = [0.9 + 0.34 * len(rows) for rows in matrices] + ([3.0] if len(results) > 1 else [])
    figure.set_size_inches(max(6.4, 2.4 + 1.1 * max(len(rows[-1]) for rows in matrices)), 0.4 + sum(tall))
    grid = figure.add_gridspec(len(tall), 2, height_ratios=tall)
    for place, result in enumerate(results):
        figures = result.figures
        sides = (("clean", f"{result.label}\nclean"), ("robust", figures["attack"]))
        for side, (kind, name) in enumerate(sides):
            axes = figure.add_subplot(grid[place, side])
            render.heat_map(axes, figures[kind]["matrix"], bar=side == 1)
            render.matrix_ticks(axes, len(figures["tasks"]), len(matrices[place]))
            axes.set_title(f"{name}: {render.scores(figures[kind])}")
    if len(results) > 1:
        _old_tasks(figure.add_subplot(grid[len(results), :]), results)


def _old_tasks(axes: Axes, results: Sequence[Result]) -> None:
    """Mean robust accuracy, after each task, of the tasks that were there before it. Where all were learned
    together none is ever old: their mean is a level to measure the others by."""
    matrices = [result.figures["robust"]["matrix"] for result in results]
    last = max(2, *map(len, matrices))
    styles = line_styles([result.label for result in results])
    for result, rows, style in zip(results, matrices, styles, strict=True):
        if len(rows) > 1:
            axes.plot(range(2, len(rows) + 1), [fmean(row[:-1]) for row in rows[1:]], label=result.label, **style)
        else:
            axes.plot((2, last), [fmean(rows[0])] * 2, label=result.label, **style | {"marker": ""})
    render.whole_ticks(axes, 2, last)
    axes.set(ylim=(0, 100), xlabel="after task", ylabel="robust accuracy of\nearlier tasks, mean (%)")
    render.label_ends(axes)
