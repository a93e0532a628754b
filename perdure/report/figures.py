"""Pictures of records (needs the extra `report`)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from statistics import fmean
from typing import Any

from perdure.errors import PerdureError, install_hint
from perdure.ops.statistics import Group, without_file
from perdure.report.render import (
    Axes,
    Figure,
    heat_map,
    label_ends,
    lines,
    matrix_ticks,
    scores,
    slanted_ticks,
    whole_ticks,
)
from perdure.report.style import line_styles

Record = Mapping[str, Any]
Draw = Callable[[Figure], None]
Output = Callable[[Draw], bytes]
"""What makes a file of what is drawn on an empty figure: `png` here, or `svg.inline_svg` for a page."""
STYLE: dict[Any, Any] = {  # of all pictures
    "font.size": 8,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.labelsize": 9,
    "figure.titlesize": 10,
    "legend.frameon": False,
    "legend.handlelength": 3.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
}
NAMED = 10  # tasks that have a line of their own; of more, the mean of those seen
WITH_FIGURES = 24  # tasks whose cells have room for a figure, and whose epochs have room beside one another
MATRICES = 60  # methods whose accuracy matrices stand in one picture
MARKED = 60  # points of a line that have room for markers


def png(draw: Draw) -> bytes:
    """What is drawn on an empty figure, as a PNG."""
    return saved(draw, {}, format="png", dpi=150)


def saved(draw: Draw, style: dict[Any, Any], **options: Any) -> bytes:
    """What is drawn on an empty figure, as matplotlib saves it; `style` is added to that of all pictures."""
    try:
        from matplotlib import figure as pictures
        from matplotlib import rc_context
    except ImportError:
        raise PerdureError(f"pictures need matplotlib: {install_hint('report')}") from None
    buffer = BytesIO()
    with rc_context({**STYLE, **style}):
        figure = pictures.Figure(layout="constrained")
        draw(figure)
        figure.savefig(buffer, **options)
    return buffer.getvalue()


# --- one run ---


def accuracy_matrix(record: Record, output: Output = png) -> bytes:
    """The accuracy matrix: row after task t, column task i, each cell with its figure where there is room."""
    return output(lambda figure: _draw_matrix(figure, record))


def _draw_matrix(figure: Figure, record: Record) -> None:
    rows, names = record["accuracy_matrix"], record["task_names"]
    wide, tall, form = (0.6, 0.4, ".1f") if len(names) <= NAMED else (0.34, 0.28, ".0f")
    if len(names) > WITH_FIGURES:
        wide, tall, form = 7 / len(names), 5.5 / len(names), ""
    figure.set_size_inches(max(4.6, 2.3 + wide * len(names)), max(2.2, 1.6 + tall * len(rows)))
    axes = figure.subplots()
    heat_map(axes, rows, form)
    matrix_ticks(axes, len(names), len(rows))
    if len(names) <= NAMED:
        slanted_ticks(axes, names)
    figure.suptitle(_title(record))


def _title(record: Record) -> str:
    """Who learned what, as far as it is known, and what it came to."""
    about = (
        [f"{without_file(record['method'])} on {without_file(record['benchmark'])}, seed {record['seed']}"]
        if "benchmark" in record
        else []
    )
    return ": ".join([*about, scores(record)])


def curves(record: Record, epochs: Sequence[Record], output: Output = png) -> bytes:
    """Left the accuracy of each task after each lesson, or the mean of those seen where tasks are many; right the
    validation accuracy and loss over all epochs, where they are known."""
    return output(lambda figure: _draw_curves(figure, record, epochs))


def _draw_curves(figure: Figure, record: Record, epochs: Sequence[Record]) -> None:
    figure.set_size_inches(10.6 if epochs else 5.4, 3.6)
    panels = figure.subplots(1, 2 if epochs else 1, squeeze=False)[0]
    _draw_tasks(panels[0], record)
    if epochs:
        _draw_epochs(panels[1], epochs)
    figure.suptitle(_title(record))


def _draw_tasks(axes: Axes, record: Record) -> None:
    rows, names = record["accuracy_matrix"], record["task_names"]
    if len(rows) == 1:  # all tasks learned together: nothing happens over time
        axes.bar(range(1, len(names) + 1), rows[0], color=line_styles(["gpm"])[0]["color"], width=0.6)
        axes.set(ylim=(0, 102), xlabel="task", ylabel="accuracy (%)", title="all tasks learned together")
        whole_ticks(axes, 1, len(names))
        return
    if len(names) <= NAMED:
        known = [[(t, row[place]) for t, row in enumerate(rows, 1) if place < len(row)] for place in range(len(names))]
        named = zip(names, known, strict=True)
        lines(axes, [(name, *zip(*points, strict=True)) for name, points in named])
        axes.set_title("each task, after each that was learned")
    else:
        after, mean = _seen(rows)
        both = [("tasks seen, mean", after, mean), ("the newest task", after, [row[-1] for row in rows])]
        lines(axes, both, **({} if len(rows) <= MARKED else {"marker": ""}))
        axes.set_title("after each task that was learned")
    axes.set(ylim=(0, 102), xlabel="after learning task", ylabel="accuracy (%)")
    whole_ticks(axes, 1, len(rows))
    label_ends(axes)


def _seen(rows: Sequence[Sequence[float]]) -> tuple[list[int], list[float]]:
    """After each lesson, the mean accuracy over the tasks seen by then."""
    return list(range(1, len(rows) + 1)), [fmean(row) for row in rows]


def _draw_epochs(axes: Axes, epochs: Sequence[Record]) -> None:
    """A line for each lesson, with a rule between lessons; where they are many, the last epoch of each."""
    lessons: dict[int, list[Record]] = {}
    for epoch in epochs:
        lessons.setdefault(epoch["lesson"], []).append(epoch["valid"])
    parts, unit, title = list(lessons.values()), "epoch, over all tasks", "while it learned; grey: a new task begins"
    if len(parts) > WITH_FIGURES:
        parts, unit, title = [[own[-1] for own in parts]], "task", "in the last epoch of each task"
    right = axes.twinx()
    right.spines["right"].set_visible(True)
    count = sum(map(len, parts))
    marks: dict[str, Any] = {"markersize": 3, "linewidth": 1} | ({} if count <= MARKED else {"marker": ""})
    accuracy, loss = (line_styles([name])[0] | marks for name in ("gpm", "rcl"))  # blue and red: far apart for all
    first = 0
    for own in parts:
        x = range(first + 1, first + len(own) + 1)
        axes.plot(x, [one["accuracy"] for one in own], **accuracy | {"linestyle": "-"})
        right.plot(x, [one["loss"] for one in own], **loss | {"linestyle": "--"})
        if first:
            axes.axvline(first + 0.5, color="0.8", linewidth=0.8, zorder=0)
        first += len(own)
    whole_ticks(axes, 1, count)
    axes.set(xlim=(0.5, count + 0.5), ylim=(0, 102), xlabel=unit, title=title)
    axes.set_ylabel("validation accuracy (%), solid", color=accuracy["color"])
    right.set_ylim(bottom=0)
    right.set_ylabel("validation loss, dashed", color=loss["color"])


# --- methods compared ---

SCORES = {
    "acc": "ACC: accuracy on all tasks in the end (%)",
    "bwt": "BWT: what old tasks lost (−) or gained (+), points",
}
COSTS = {
    "seconds": "training (seconds)",
    "megabytes": "memory besides the network (MB)",
}


def comparison(groups: Sequence[Group], output: Output = png) -> bytes:
    """ACC and BWT of each method: mean and deviation over seeds, and each seed as a point; a row per benchmark."""
    return output(lambda figure: _draw_spread_pairs(figure, groups, SCORES))


def costs(groups: Sequence[Group], output: Output = png) -> bytes:
    """Seconds of training and memory of each method, drawn as `comparison` is."""
    return output(lambda figure: _draw_spread_pairs(figure, [_with_megabytes(group) for group in groups], COSTS))


def _with_megabytes(group: Group) -> Group:
    done = [
        {**run, "megabytes": sum(run["memory_bytes"].values()) / 1e6} if "memory_bytes" in run else run
        for run in group.runs
    ]
    return replace(group, runs=tuple(done))


def _draw_spread_pairs(figure: Figure, groups: Sequence[Group], columns: Mapping[str, str]) -> None:
    """Two figures of each method side by side; `columns` maps their names to what stands below."""
    parts = _by_benchmark(groups)
    figure.set_size_inches(9.4, 0.5 + sum(0.8 + 0.3 * len(alike) for alike in parts.values()))
    heights = [0.8 + 0.3 * len(alike) for alike in parts.values()]
    grid = figure.subplots(len(parts), 2, squeeze=False, height_ratios=heights, sharex="col")
    for row, (benchmark, alike) in zip(grid, parts.items(), strict=True):
        for axes, name in zip(row, columns, strict=True):
            _draw_spreads(axes, alike, name)
        row[0].set_yticks(range(len(alike)), [group.name for group in alike])
        row[1].set_yticks(range(len(alike)), [""] * len(alike))
        row[0].set_title(benchmark)
    for axes, about in zip(grid[-1], columns.values(), strict=True):
        axes.set_xlabel(about)
    if any(len(group.runs) > 1 for group in groups):
        figure.suptitle("mean ± standard deviation over seeds; small: each seed")


def _draw_spreads(axes: Axes, groups: Sequence[Group], name: str) -> None:
    for place, (group, style) in enumerate(zip(groups, line_styles([group.name for group in groups]), strict=True)):
        found, values = group.spread(name), list(group.figures(name).values())
        if found is None:
            continue
        axes.errorbar(found.mean, place, xerr=found.deviation, capsize=3, **style | {"linestyle": "", "markersize": 6})
        if len(values) > 1:
            beside = [place + 0.24] * len(values)
            axes.plot(values, beside, linestyle="", color=style["color"], marker=style["marker"], markersize=2.5)
    axes.set_ylim(len(groups) - 0.5, -0.6)
    axes.grid(axis="x", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    if name == "bwt":
        axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)


def accuracy_over_tasks(groups: Sequence[Group], output: Output = png) -> bytes:
    """Mean accuracy over the tasks seen, after each task: a line per method, the mean over its seeds."""
    about = "accuracy (%), mean over tasks seen"
    return output(lambda figure: _draw_over_tasks(figure, groups, lambda rows: _seen(rows)[1], about))


def new_task_accuracy(groups: Sequence[Group], output: Output = png) -> bytes:
    """Accuracy on each task just after it was learned: a line per method, the mean over its seeds."""
    about, below = "accuracy (%), just after it was learned", "task"
    return output(lambda figure: _draw_over_tasks(figure, groups, _when_learned, about, below))


def _when_learned(rows: Sequence[Sequence[float]]) -> list[float]:
    """Each task's accuracy after the lesson that brought it: the diagonal, where a lesson is a task; where all were
    learned together, all of them, a line to measure the others by.

    >>> _when_learned([[90.0], [80.0, 70.0]]), _when_learned([[90.0, 80.0]])
    ([90.0, 70.0], [90.0, 80.0])
    """
    return [accuracy for before, row in pairwise([[], *rows]) for accuracy in row[len(before) :]]


def _draw_over_tasks(
    figure: Figure,
    groups: Sequence[Group],
    read: Callable[[Sequence[Sequence[float]]], list[float]],
    about: str,
    below: str = "after learning task",
) -> None:
    parts = _by_benchmark([group for group in groups if with_matrix(group)])
    across = min(len(parts), 2)
    down = -(-len(parts) // across)
    figure.set_size_inches(6.2 * across, 4.0 * down)
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in grid[len(parts) :]:
        axes.remove()
    for axes, (benchmark, alike) in zip(grid, parts.items(), strict=False):
        last = max(len(read(run["accuracy_matrix"])) for group in alike for run in with_matrix(group))
        for group, style in zip(alike, line_styles([group.name for group in alike]), strict=True):
            seeds = [read(run["accuracy_matrix"]) for run in with_matrix(group)]
            mean = [fmean(values) for values in zip(*seeds, strict=False)]
            if len(mean) == 1 < last:  # all tasks learned together: a level to measure the others by
                axes.plot((1, last), mean * 2, label=group.name, **style | {"marker": ""})
            else:
                axes.plot(range(1, len(mean) + 1), mean, label=group.name, **style)
        whole_ticks(axes, 1, last)
        axes.set(xlabel=below, ylabel=about, title=benchmark)
        axes.grid(axis="y", color="0.92", linewidth=0.6)
        label_ends(axes)


def matrices(groups: Sequence[Group], output: Output = png) -> bytes:
    """The accuracy matrix of each method, of the first seed that is done, side by side."""
    return output(lambda figure: _draw_matrices(figure, [group for group in groups if with_matrix(group)]))


def _draw_matrices(figure: Figure, groups: Sequence[Group]) -> None:
    shown, several = groups[:MATRICES], len({group.benchmark for group in groups}) > 1
    runs = [with_matrix(group)[0] for group in shown]
    tasks, lessons = (max(map(size, runs)) for size in (_tasks, _lessons))
    cell, form = (0.42, ".1f") if tasks <= NAMED else (0.3, ".0f")
    if tasks > WITH_FIGURES:
        cell, form = 7 / tasks, ""
    across = min(len(shown), 3)
    down = -(-len(shown) // across)
    width, height = max(2.9, 0.7 + cell * tasks), max(1.5, 0.8 + 0.7 * cell * lessons)
    figure.set_size_inches(0.6 + width * across, 0.3 + height * down)
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in grid[len(shown) :]:
        axes.remove()
    for place, (axes, group, run) in enumerate(zip(grid, shown, runs, strict=False)):
        heat_map(axes, run["accuracy_matrix"], form, bar=place == across - 1)  # one for all
        matrix_ticks(axes, _tasks(run), _lessons(run))
        if _lessons(run) == 1 < _tasks(run):
            axes.set(yticks=[], ylabel="all learned together")
        name = f"{group.name} on {without_file(group.benchmark)}" if several else group.name
        axes.set_title(f"{name}, seed {run['seed']}\n{scores(run)}")
    if len(shown) < len(groups):
        figure.suptitle(f"the first {len(shown)} of {len(groups)}")


def _tasks(record: Record) -> int:
    return len(record["accuracy_matrix"][-1])


def _lessons(record: Record) -> int:
    return len(record["accuracy_matrix"])


def with_matrix(group: Group) -> list[Mapping[str, Any]]:
    """The runs of a group that have an accuracy matrix: those that are done."""
    return [run for run in group.runs if run.get("accuracy_matrix")]


def _by_benchmark(groups: Iterable[Group]) -> dict[str, list[Group]]:
    parts: dict[str, list[Group]] = {}
    for group in groups:
        parts.setdefault(without_file(group.benchmark), []).append(group)
    return parts
