"""Robust accuracy over lessons: the clean and the attacked accuracy matrix side by side."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from perdure.report.probes import Result
from perdure.report.probes.parts import count_up, look, name_ends, number, scores, shades, table, units
from perdure.report.tables import matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def tables(results: Sequence[Result]) -> Sequence[Table | str]:
    """The summary of all results, and of a single one its robust matrix too."""
    found: list[Table | str] = [_matrix(results[0])] if len(results) == 1 else []
    found.append(_summary(results))
    found.append("kept: robust BWT − clean BWT; below 0 a task loses robustness faster than it loses accuracy")
    found.append(units(results[0].figures))
    return found


def draw(figure: "Figure", results: Sequence[Result]) -> None:
    """Two matrices for each result; where there are several, also how robust old tasks stay as lessons go by."""
    matrices = [result.figures["robust"]["matrix"] for result in results]
    tall = [0.9 + 0.34 * len(rows) for rows in matrices] + ([3.0] if len(results) > 1 else [])
    figure.set_size_inches(max(6.4, 2.4 + 1.1 * max(len(rows[-1]) for rows in matrices)), 0.4 + sum(tall))
    grid = figure.add_gridspec(len(tall), 2, height_ratios=tall)
    for place, result in enumerate(results):
        figures = result.figures
        sides = (("clean", f"{result.label}\nclean"), ("robust", figures["attack"]))
        for side, (kind, name) in enumerate(sides):
            axes = figure.add_subplot(grid[place, side])
            shades(axes, figures[kind]["matrix"])
            axes.set_title(f"{name}: {scores(figures[kind])}")
            axes.set_xticks(range(len(figures["tasks"])), [str(i + 1) for i in range(len(figures["tasks"]))])
            axes.set_yticks(range(len(matrices[place])), [str(t + 1) for t in range(len(matrices[place]))])
            axes.set_xlabel("accuracy on task (%)")
            axes.set_ylabel("after lesson")
    if len(results) > 1:
        _old_tasks(figure.add_subplot(grid[len(results), :]), results)


def _old_tasks(axes: "Axes", results: Sequence[Result]) -> None:
    """Mean robust accuracy, after each lesson, of the tasks that were there before it. Where all were learned in one
    lesson none is ever old: their mean is a level to measure the others by."""
    matrices = [result.figures["robust"]["matrix"] for result in results]
    last = max(2, *map(len, matrices))
    for place, (result, rows) in enumerate(zip(results, matrices, strict=True)):
        means = [sum(row[:-1]) / (len(row) - 1) for row in rows[1:]]
        if means:
            axes.plot(range(2, len(rows) + 1), means, label=result.label, **look(place))
        else:
            level = sum(rows[0]) / len(rows[0])
            axes.plot((2, last), (level, level), label=result.label, **look(place) | {"marker": ""})
    axes.set_ylim(0, 100)
    count_up(axes, 2, last)
    axes.set_xlabel("after lesson")
    axes.set_ylabel("robust accuracy of\nearlier tasks, mean (%)")
    name_ends(axes)


def _matrix(result: Result) -> Table:
    figures = result.figures
    name = f"{result.label}, under {figures['attack']}"
    return matrix({"method": name, "task_names": figures["tasks"], "accuracy_matrix": figures["robust"]["matrix"]})


def _summary(results: Sequence[Result]) -> Table:
    attacks = list(dict.fromkeys(result.figures["attack"] for result in results))
    title = f"percent, mean over tasks, under {' and '.join(attacks)}; clean in brackets"
    found = table(title, "run", ("ACC", "BWT", "new task", "forgetting", "kept"))
    for result in results:
        clean, robust = result.figures["clean"], result.figures["robust"]
        pairs = [_pair(robust, clean, name) for name in ("acc", "bwt", "learning_accuracy", "forgetting")]
        found.add_row(result.label, *pairs, number(result.figures["kept"], "+.1f"))
    return found


def _pair(robust: Mapping[str, Any], clean: Mapping[str, Any], name: str) -> str:
    form = "+.1f" if name == "bwt" else ".1f"
    return f"{number(robust[name], form)} ({number(clean[name], form)})"
