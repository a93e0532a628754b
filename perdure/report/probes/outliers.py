"""What outliers do to loss and gradients, beside the images that they stand for."""

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.report import render
from perdure.report.probes import Result
from perdure.report.render import Axes, Figure, Reader, Tables, cell, number, span, table
from perdure.report.table import Table

OWN = "those of the run"  # as `probes.outliers` calls outliers that the run has learned from
PANELS = {  # figure → its axis
    "loss": "loss",
    "past_gradient": "gradient on past\nclasses' logits, Σ f_p",
    "weight_gradient": "gradient by the weights, norm",
}


def _ratio(path: str) -> Reader:
    def text(figures: Mapping[str, Any]) -> str:
        value = render.at(figures, path)
        return number(value, ".2f" if value is None or value < 100 else ".0f")

    return text


def _percent(path: str) -> Reader:
    def text(figures: Mapping[str, Any]) -> str:
        value = render.at(figures, path)
        return "–" if value is None else f"{100 * value:.1f} %"

    return text


TASKS = [
    ("n", cell("outliers", "d")),
    ("excess", cell("excess.real", "+.3g")),
    ("first order", cell("excess.first_order", "+.3g")),
    ("Σ f_p", cell("past_gradient.clean", ".3g")),
    ("outlier", cell("past_gradient.outlier", ".3g")),
    ("×", _ratio("past_gradient.ratio")),
    ("‖∇W‖", cell("weight_gradient.clean", ".3g")),
    ("outlier", cell("weight_gradient.outlier", ".3g")),
    ("×", _ratio("weight_gradient.ratio")),
]
MOVED = [
    ("span", cell("span", ".3g")),
    ("of ‖W‖", _percent("relative_span")),
    ("past loss", cell("past_loss_rise", "+.3g")),
]
RUNS = [
    ("excess", cell("mean.excess", "+.3g")),
    ("first order", cell("mean.first_order", "+.3g")),
    ("Σ f_p ×", _ratio("mean.past_gradient_ratio")),
    ("‖∇W‖ ×", _ratio("mean.weight_gradient_ratio")),
    ("span", cell("mean.span", ".3g")),
    ("of ‖W‖", _percent("mean.relative_span")),
    ("past loss", cell("mean.past_loss_rise", "+.3g")),
    ("corr.", cell("mean.correlation", "+.2f")),
]


def tables(results: Sequence[Result]) -> Tables:
    """Task by task of a single result, one row each of several; and how often the paper's inequalities held."""
    found: list[Table | str] = []
    if len(results) == 1:
        found += [_tasks(results[0]), _moved(results[0])]
        together = results[0].figures["mean"]["correlation"]
        if together is not None:
            found.append(f"correlation of span and past loss over tasks: {number(together, '+.2f')}")
    else:
        found.append(render.by_run("outliers beside the images that they replace, means over tasks", RUNS, results))
    found.append(_claims(results))
    found.append("×: outliers beside the images they replace; excess: growth of the batch's loss per outlier")
    found.append("first order: ∇ₓLᵀε; span: ‖W_t − W_t−1‖; past loss: its growth on earlier tasks meanwhile")
    if any(result.figures["source"] == OWN for result in results):
        found.append("after the task: an outlier that was learned by heart has the lower loss, and an excess below 0")
    return found


def draw(figure: Figure, results: Sequence[Result]) -> None:
    """Three panels over tasks, a row for each result: clean images and outliers."""
    figure.set_size_inches(10.4, 0.4 + 2.6 * len(results))
    grid = figure.subplots(len(results), len(PANELS), squeeze=False, sharex=True, sharey="col")
    for row, result in zip(grid, results, strict=True):
        for axes, (name, label) in zip(row, PANELS.items(), strict=True):
            _panel(axes, result.figures["tasks"], name)
            axes.set_ylabel(label)
        row[0].set_title(f"{result.label}; outliers: {result.figures['source']}")
    for axes in grid[-1]:
        axes.set_ylim(bottom=0)
        axes.set_xlabel("task")
    for axes in grid.flat:  # their scale is that of the column, and known only when all is drawn
        render.label_ends(axes)


def _panel(axes: Axes, tasks: Sequence[Mapping[str, Any]], name: str) -> None:
    there = {number: task[name] for number, task in enumerate(tasks, 1) if task[name] is not None}
    sides = (("clean", "clean"), ("outliers", "outlier"))
    render.lines(axes, [(label, list(there), [values[side] for values in there.values()]) for label, side in sides])
    if not there:
        axes.text(0.5, 0.5, "no past classes", transform=axes.transAxes, ha="center", color="0.35")
    axes.set_xlim(0.7, len(tasks) + 0.3)
    render.whole_ticks(axes, 1, len(tasks))
    axes.tick_params(labelbottom=True, labelleft=True)


def _tasks(result: Result) -> Table:
    figures, means = result.figures, result.figures["mean"]
    title = f"{result.label}; outliers: {figures['source']}"
    tasks = [[task["task"], *(text(task) for _, text in TASKS)] for task in figures["tasks"]]
    excess = [number(means[name], "+.3g") for name in ("excess", "first_order")]
    ratios = [_ratio(f"{name}_gradient_ratio")(means) for name in ("past", "weight")]
    mean = ["mean", "", *excess, "", "", ratios[0], "", "", ratios[1]]
    return table(title, "task", [name for name, _ in TASKS], tasks, [mean])


def _moved(result: Result) -> Table:
    tasks = [(task["task"], task) for task in result.figures["tasks"] if task["span"] is not None]
    mean = ("mean" if tasks else "all tasks learned together, or one task", result.figures["mean"])
    return render.declared("what each task moved", "task", MOVED, tasks, [mean])


def _claims(results: Sequence[Result]) -> Table:
    """A column for each result, numbered where there are several, in the order of the table above."""
    alone = len(results) == 1
    columns = ["held", "95 %"] if alone else [str(place) for place, _ in enumerate(results, 1)]
    by_text = [{claim["claim"]: claim for claim in result.figures["claims"]} for result in results]
    rows = []
    for text in dict.fromkeys(text for claims in by_text for text in claims):
        there = [claims.get(text) for claims in by_text]
        one = next(claim for claim in there if claim)
        held = [number(claim and claim["held"], ".0f") for claim in there]
        over = f"{one['of']} {one['over']}" if alone else one["over"]
        rows.append([text, over, *held, *([span(one["interval"])] if alone else [])])
    return table("how often what the paper says held, percent", "what the paper says", ["over", *columns], rows)
