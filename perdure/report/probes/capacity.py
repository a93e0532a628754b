"""How full the layers are, task after task, and how long they will last."""

from collections.abc import Sequence
from typing import Any

from perdure.report import render
from perdure.report.probes import Result
from perdure.report.render import Axes, Figure, Figures, Tables, cell, number, table
from perdure.report.style import line_style
from perdure.report.table import Table

TASKS = 8  # that a table shows; of more, some between the first and the last are left out
NAMED = 6  # layers that a picture names; of more, the fullest
COLUMNS = [
    ("bottleneck", lambda f: f["bottleneck"]),
    ("taken", lambda f: number(_fullest(f)["percent"][-1])),
    ("own", lambda f: _own(_fullest(f))),
    ("tasks left", lambda f: _left(f["forecast"]["tasks_left"]) if f["forecast"] else "–"),
    ("rule", lambda f: f["forecast"]["model"] if f["forecast"] else "–"),
    ("error", cell("forecast.error")),
    ("other rules", lambda f: _other_rules(f) if f["forecast"] else "–"),
]

NOTES = (
    "bottleneck: the layer with the least left; taken: percent of its input directions that tasks have used",
    "own: the same as the method itself keeps account of it; – where it keeps none",
    "tasks left: how many more fit before a layer is full, if things go on by the rule; > 100: no end in sight",
    "rule: the one that foretold the run's own tasks best; error: by how many percent points it missed, mean",
    "other rules: tasks left by those that did worse; the further apart, the less a forecast is worth",
)


def tables(results: Sequence[Result]) -> Tables:
    """Layer by task of a single result, one row each of several."""
    if len(results) > 1:
        return [
            render.by_run("input directions taken after the last task, percent", COLUMNS, results),
            *NOTES,
        ]
    figures = results[0].figures
    notes = ["◂ the bottleneck: least is free there; of: input directions that the layer has"]
    if any(layer["own"] for layer in figures["layers"].values()):
        notes.append(NOTES[1])
    if figures["forecast"]:
        notes.append(NOTES[2])
    few = [name for name, layer in figures["layers"].items() if layer["shown"] < layer["directions"]]
    if few:
        which = ", ".join(few) if len(few) < 5 else f"{len(few)} layers"
        notes.append(f"a task has shown {which} fewer inputs than directions, and can take no more than those")
    return [_layers(results[0]), *notes, *figures["text"]]


def draw(figure: Figure, results: Sequence[Result]) -> None:
    """The share taken of each layer, a panel for each result, and the forecast behind the last task."""
    across = min(len(results), 3)
    figure.set_size_inches(0.6 + (5.4 if across == 1 else 3.9) * across, 0.3 + 3.4 * -(-len(results) // across))
    panels = render.panels(figure, len(results), across)
    last = max(_panel(axes, result) for axes, result in zip(panels, results, strict=True))
    for axes in panels:  # their scale is the same, and known only when all is drawn
        render.whole_ticks(axes, 1, last)
        render.label_ends(axes)
    figure.supxlabel("after task")
    figure.supylabel("input directions taken (%)")


def _panel(axes: Axes, result: Result) -> int:
    """Returns the last task that it shows."""
    figures = result.figures
    layers, forecast = figures["layers"], figures["forecast"]
    last = tasks = len(figures["tasks"])
    named = sorted(layers, key=lambda name: layers[name]["percent"][-1])[-NAMED:]
    for place, (name, layer) in enumerate(layers.items()):
        narrow = name == figures["bottleneck"]
        style: dict[str, Any] = {"color": "black" if narrow else "0.45", "linewidth": 1.8 if narrow else 1.0}
        marker = line_style(place)["marker"] if name in named else None
        (line,) = axes.plot(range(1, tasks + 1), layer["percent"], marker=marker, **style)
        if forecast is not None:
            ahead = [layer["percent"][-1], *forecast["layers"][name]["ahead"]]
            last = tasks + len(ahead) - 1
            (line,) = axes.plot(range(tasks, last + 1), ahead, linestyle=(0, (2, 2)), **style)
        if name in named:
            line.set_label(name)
    if forecast is not None:
        axes.axvline(tasks, color="0.75", linewidth=0.8, zorder=0)
        axes.annotate(" forecast", (tasks, 2), color="0.35")
    axes.set(ylim=(0, 103), title=result.label)
    return last


def _layers(result: Result) -> Table:
    layers, forecast = result.figures["layers"], result.figures["forecast"]
    tasks = len(result.figures["tasks"])
    shown = range(tasks) if tasks <= TASKS else [round(i * (tasks - 1) / (TASKS - 1)) for i in range(TASKS)]
    own = any(layer["own"] for layer in layers.values())  # what the method itself holds
    columns = ["of", *(str(task + 1) for task in shown), *["own"] * own, *["tasks left"] * bool(forecast)]
    rows = []
    for name, layer in layers.items():
        mark = " ◂" if name == result.figures["bottleneck"] else ""
        row = [name + mark, str(layer["directions"]), *(number(layer["percent"][task]) for task in shown)]
        row += [_own(layer)] if own else []
        row += [_left(forecast["layers"][name]["tasks_left"])] if forecast else []
        rows.append(row)
    return table(f"{result.label}: percent of input directions taken after each task", "layer", columns, rows)


def _own(layer: Figures) -> str:
    return number(layer["own"][-1] if layer["own"] else None)


def _left(left: int | None) -> str:
    return "> 100" if left is None else str(left)


def _fullest(figures: Figures) -> Any:
    return figures["layers"][figures["bottleneck"]]


def _other_rules(figures: Figures) -> str:
    forecast = figures["forecast"]
    return ", ".join(_left(left) for model, left in forecast["by_model"].items() if model != forecast["model"])
