"""How full the layers are, task after task, and how long they will last."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from perdure.report.probes import Result
from perdure.report.probes.parts import count_up, look, name_ends, number, panels, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 8  # tasks that a table shows; of more, some between the first and the last are left out
NAMED = 6  # layers that a picture names; of more, the fullest


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
    figure.set_size_inches(0.6 + (5.4 if across == 1 else 3.9) * across, 0.3 + 3.4 * -(-len(results) // across))
    for axes, result in zip(panels(figure, len(results), across), results, strict=True):
        _panel(axes, result)
    figure.supxlabel("after task")
    figure.supylabel("input directions taken (%)")


def _panel(axes: "Axes", result: Result) -> None:
    figures = result.figures
    layers, told = figures["layers"], figures["forecast"]
    last = tasks = len(figures["tasks"])
    named = sorted(layers, key=lambda name: layers[name]["percent"][-1])[-NAMED:]
    for place, (name, layer) in enumerate(layers.items()):
        narrow = name == figures["bottleneck"]
        style: dict[str, Any] = {"color": "black" if narrow else "0.45", "linewidth": 1.8 if narrow else 1.0}
        marker = look(place)["marker"] if name in named else None
        (line,) = axes.plot(range(1, tasks + 1), layer["percent"], marker=marker, **style)
        if told is not None:
            ahead = [layer["percent"][-1], *told["layers"][name]["ahead"]]
            (line,) = axes.plot(range(tasks, tasks + len(ahead)), ahead, linestyle=(0, (2, 2)), **style)
            last = tasks + len(ahead) - 1
        if name in named:
            line.set_label(name)
    if told is not None:
        axes.axvline(tasks, color="0.75", linewidth=0.8, zorder=0)
        axes.annotate(" forecast", (tasks, 2), color="0.35")
    axes.set_ylim(0, 103)
    count_up(axes, 1, last)
    axes.set_title(result.label)
    name_ends(axes)


def _layers(result: Result) -> Table:
    figures = result.figures
    layers: Mapping[str, Any] = figures["layers"]
    tasks = len(figures["tasks"])
    shown = range(tasks) if tasks <= COLUMNS else [round(i * (tasks - 1) / (COLUMNS - 1)) for i in range(COLUMNS)]
    own = any(layer["own"] for layer in layers.values())  # what the method itself holds
    columns = ["of", *(str(task + 1) for task in shown), *["own"] * own, *["tasks left"] * bool(figures["forecast"])]
    found = table(f"{result.label}: percent of input directions taken after each task", "layer", columns)
    for name, layer in layers.items():
        cells = [f"{layer['percent'][task]:.1f}" for task in shown]
        if own:
            cells.append(_own(layer))
        if figures["forecast"]:
            cells.append(_left(figures["forecast"]["layers"][name]["tasks_left"]))
        mark = " ◂" if name == figures["bottleneck"] else ""
        found.add_row(name + mark, str(layer["directions"]), *cells)
    return found


def _own(layer: Mapping[str, Any]) -> str:
    return number(layer["own"][-1] if layer["own"] else None)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 5 else f"{len(names)} layers"


def _comparison(results: Sequence[Result]) -> Table:
    columns = ("bottleneck", "taken", "own", "tasks left", "rule", "error", "other rules")
    found = table("input directions taken after the last task, percent", "run", columns)
    for result in results:
        figures = result.figures
        told, layer = figures["forecast"], figures["layers"][figures["bottleneck"]]
        found.add_row(result.label, figures["bottleneck"], number(layer["percent"][-1]), _own(layer), *_told(told))
    return found


def _told(forecast: Mapping[str, Any] | None) -> list[str]:
    if forecast is None:
        return ["–"] * 4
    others = [_left(left) for model, left in forecast["by_model"].items() if model != forecast["model"]]
    return [_left(forecast["tasks_left"]), forecast["model"], number(forecast["error"]), ", ".join(others)]


def _left(left: int | None) -> str:
    return "> 100" if left is None else str(left)
