"""How full the layers are, task after task, and how long they will last."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.table import Table

from perdure.report.probes import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 8  # tasks that a table shows; of more, some between the first and the last are left out
NAMED = 6  # layers that a picture names; of more, the fullest
MARKERS = "os^Dv"


def tables(results: Sequence[Result]) -> Sequence[Table | str]:
    """Layer by task of a single result, one row each of several."""
    if len(results) > 1:
        return [
            _comparison(results),
            "bottleneck: least is free there; error: of earlier forecasts by the rule, mean, percent points",
        ]
    figures = results[0].figures
    notes = ["◂ the bottleneck: least is free there"]
    few = [name for name, layer in figures["layers"].items() if layer["shown"] < layer["directions"]]
    if few:
        notes.append(f"a task has shown {_few(few)} fewer inputs than directions, and can take no more than those")
    return [_layers(results[0]), *notes, *figures["text"]]


def draw(figure: "Figure", results: Sequence[Result]) -> None:
    """The share taken of each layer, a panel for each result, and the forecast behind the last task."""
    across = min(len(results), 3)
    down = -(-len(results) // across)
    figure.set_size_inches(0.6 + (5.4 if across == 1 else 3.9) * across, 0.3 + 3.4 * down)
    figure.set_layout_engine("constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    for place, axes in enumerate(grid.flat):
        if place < len(results):
            _panel(axes, results[place], place % across == 0)
        else:
            axes.set_visible(False)


def _panel(axes: "Axes", result: Result, leftmost: bool) -> None:
    figures = result.figures
    layers, told = figures["layers"], figures["forecast"]
    tasks = len(figures["tasks"])
    named = sorted(layers, key=lambda name: layers[name]["percent"][-1])[-NAMED:]
    ends = {}
    for place, (name, layer) in enumerate(layers.items()):
        color = "black" if name == figures["bottleneck"] else "0.45"
        style: dict[str, Any] = {"color": color, "linewidth": 1.8 if name == figures["bottleneck"] else 1.0}
        marker = MARKERS[place % len(MARKERS)] if name in named else None
        axes.plot(range(1, tasks + 1), layer["percent"], marker=marker, markersize=3.5, **style)
        ends[name] = layer["percent"][-1]
        if told is not None:
            ahead = [layer["percent"][-1], *told["layers"][name]["ahead"]]
            axes.plot(range(tasks, tasks + len(ahead)), ahead, linestyle=(0, (2, 2)), **style)
            ends[name] = ahead[-1]
    last = tasks + (0 if told is None else len(told["layers"][figures["bottleneck"]]["ahead"]))
    named.sort(key=lambda name: ends[name])
    for name, height in zip(named, _apart([ends[name] for name in named], 4.6), strict=True):
        weight = "bold" if name == figures["bottleneck"] else "normal"
        axes.annotate(f" {name}", (last, height), va="center", fontsize=8, weight=weight, annotation_clip=False)
    if told is not None:
        axes.axvline(tasks, color="0.75", linewidth=0.8, zorder=0)
        axes.annotate(" forecast", (tasks, 2), fontsize=8, color="0.35")
    axes.set_ylim(0, 103)
    step = -(-last // 10)
    axes.set_xticks(range(1, last + 1, step))
    axes.set_xlabel("after task", fontsize=9)
    if leftmost:
        axes.set_ylabel("input directions taken (%)", fontsize=9)
    axes.set_title(result.label, fontsize=9, loc="left")
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights of labels, lowest first, moved as little as possible until none stands on another: those that are too
    close spread around their middle.

    >>> _apart([10.0, 12.0, 40.0, 40.0], 6.0)
    [8.0, 14.0, 37.0, 43.0]
    """
    groups: list[list[float]] = []  # of what heights would be without the gaps; each becomes its mean
    for place, height in enumerate(heights):
        groups.append([height - place * gap])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    means = [fmean(group) for group in groups for _ in group]
    return [mean + place * gap for place, mean in enumerate(means)]


def _layers(result: Result) -> Table:
    figures = result.figures
    layers: Mapping[str, Any] = figures["layers"]
    tasks = len(figures["tasks"])
    shown = range(tasks) if tasks <= COLUMNS else [round(i * (tasks - 1) / (COLUMNS - 1)) for i in range(COLUMNS)]
    own = any(layer["own"] for layer in layers.values())
    table = Table(title=f"{result.label}: percent of input directions taken after each task", title_justify="left")
    table.add_column("layer", no_wrap=True)
    table.add_column("of", justify="right")
    for task in shown:
        table.add_column(str(task + 1), justify="right", no_wrap=True)
    if own:
        table.add_column("own", justify="right")  # what the method itself holds
    if figures["forecast"]:
        table.add_column("tasks left", justify="right", no_wrap=True)
    for name, layer in layers.items():
        cells = [f"{layer['percent'][task]:.1f}" for task in shown]
        if own:
            cells.append(f"{layer['own'][-1]:.1f}" if layer["own"] else "–")
        if figures["forecast"]:
            cells.append(_number(figures["forecast"]["layers"][name]["tasks_left"]))
        mark = " ◂" if name == figures["bottleneck"] else ""
        table.add_row(name + mark, str(layer["directions"]), *cells)
    return table


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 5 else f"{len(names)} layers"


def _comparison(results: Sequence[Result]) -> Table:
    table = Table(title="input directions taken after the last task, percent", title_justify="left")
    for name in ("run", "bottleneck", "taken", "own", "tasks left", "rule", "error", "other rules"):
        table.add_column(name, justify="left" if name in ("run", "bottleneck", "rule") else "right")
    for result in results:
        figures = result.figures
        told, layer = figures["forecast"], figures["layers"][figures["bottleneck"]]
        own = f"{layer['own'][-1]:.1f}" if layer["own"] else "–"
        table.add_row(result.label, figures["bottleneck"], f"{layer['percent'][-1]:.1f}", own, *_told(told))
    return table


def _told(forecast: Mapping[str, Any] | None) -> list[str]:
    if forecast is None:
        return ["–"] * 4
    others = [_number(left) for model, left in forecast["by_model"].items() if model != forecast["model"]]
    error = "–" if forecast["error"] is None else f"{forecast['error']:.1f}"
    return [_number(forecast["tasks_left"]), forecast["model"], error, ", ".join(others)]


def _number(left: int | None) -> str:
    return "> 100" if left is None else str(left)
