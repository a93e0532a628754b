"""What outliers do to loss and gradients, beside the images that they stand for."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from perdure.report.probes import Result
from perdure.report.probes.parts import count_up, look, name_ends, number, span, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OWN = "those of the run"  # as `probes.outliers` calls outliers that the run has learned from
PANELS = {  # figure → its axis
    "loss": "loss",
    "past_gradient": "gradient on past\nclasses' logits, Σ f_p",
    "weight_gradient": "gradient by the weights, norm",
}


def tables(results: Sequence[Result]) -> Sequence[Table | str]:
    """Task by task of a single result, one row each of several; and how often the paper's inequalities held."""
    found: list[Table | str] = []
    if len(results) == 1:
        found += [_tasks(results[0]), _spans(results[0])]
        together = results[0].figures["mean"]["correlation"]
        if together is not None:
            found.append(f"correlation of span and past loss over lessons: {number(together, '+.2f')}")
    else:
        found.append(_comparison(results))
    found.append(_claims(results))
    found.append("×: outliers beside the images they replace; excess: growth of the batch's loss per outlier")
    found.append("first order: ∇ₓLᵀε; span: ‖W_t − W_t−1‖; past loss: its growth on earlier tasks in the lesson")
    if any(result.figures["source"] == OWN for result in results):
        found.append("after the lesson: an outlier that was learned by heart has the lower loss, and an excess below 0")
    return found


def draw(figure: "Figure", results: Sequence[Result]) -> None:
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
        name_ends(axes)


def _panel(axes: "Axes", tasks: Sequence[Mapping[str, Any]], name: str) -> None:
    there = [(number, task[name]) for number, task in enumerate(tasks, 1) if task[name] is not None]
    numbers = [number for number, _ in there]
    for place, (side, label) in enumerate((("clean", "clean"), ("outlier", "outliers"))):
        axes.plot(numbers, [values[side] for _, values in there], label=label, **look(place))
    if not there:
        axes.text(0.5, 0.5, "no past classes", transform=axes.transAxes, ha="center", color="0.35")
    axes.set_xlim(0.7, len(tasks) + 0.3)
    count_up(axes, 1, len(tasks))
    axes.tick_params(labelbottom=True, labelleft=True)


def _tasks(result: Result) -> Table:
    columns = ("n", "excess", "first order", "Σ f_p", "outlier", "×", "‖∇W‖", "outlier", "×")
    found = table(f"{result.label}; outliers: {result.figures['source']}", "task", columns)
    for task in result.figures["tasks"]:
        excess = task["excess"] or {"real": None, "first_order": None}
        cells = [number(excess["real"], "+.3g"), number(excess["first_order"], "+.3g")]
        cells += [*_three(task["past_gradient"]), *_three(task["weight_gradient"])]
        found.add_row(task["task"], str(task["outliers"]), *cells)
    means = result.figures["mean"]
    ratios = ["", "", _ratio(means["past_gradient_ratio"]), "", "", _ratio(means["weight_gradient_ratio"])]
    found.add_section()
    found.add_row("mean", "", number(means["excess"], "+.3g"), number(means["first_order"], "+.3g"), *ratios)
    return found


def _spans(result: Result) -> Table:
    found = table("what each lesson moved", "lesson", ("span", "of ‖W‖", "past loss"))
    for task in result.figures["tasks"]:
        if task["span"] is not None:
            found.add_row(task["task"], *_span(task))
    means = result.figures["mean"]
    if means["span"] is None:
        found.add_row("all tasks in one lesson, or one task", "–", "–", "–")
        return found
    found.add_section()
    found.add_row("mean", *_span(means))
    return found


def _comparison(results: Sequence[Result]) -> Table:
    columns = ("excess", "first order", "Σ f_p ×", "‖∇W‖ ×", "span", "of ‖W‖", "past loss", "corr.")
    found = table("outliers beside the images that they replace, means over tasks", "run", columns)
    for result in results:
        means = result.figures["mean"]
        cells = [number(means["excess"], "+.3g"), number(means["first_order"], "+.3g")]
        cells += [_ratio(means["past_gradient_ratio"]), _ratio(means["weight_gradient_ratio"]), *_span(means)]
        found.add_row(result.label, *cells, number(means["correlation"], "+.2f"))
    return found


def _claims(results: Sequence[Result]) -> Table:
    """A column for each result, numbered where there are several, in the order of the table above."""
    columns = ["held", "95 %"] if len(results) == 1 else [str(place) for place, _ in enumerate(results, 1)]
    found = table("how often what the paper says held, percent", "what the paper says", ["over", *columns])
    by_text = [{claim["claim"]: claim for claim in result.figures["claims"]} for result in results]
    for text in dict.fromkeys(text for claims in by_text for text in claims):
        there = [claims.get(text) for claims in by_text]
        one = next(claim for claim in there if claim)
        cells = [number(claim and claim["held"], ".0f") for claim in there]
        over = one["over"]
        if len(results) == 1:
            over = f"{one['of']} {over}"
            cells.append(span(one["interval"]))
        found.add_row(text, over, *cells)
    return found


def _three(pair: Mapping[str, Any] | None) -> list[str]:
    if pair is None:
        return ["–"] * 3
    return [number(pair["clean"], ".3g"), number(pair["outlier"], ".3g"), _ratio(pair["ratio"])]


def _span(of: Mapping[str, Any]) -> list[str]:
    relative = "–" if of["relative_span"] is None else f"{100 * of['relative_span']:.1f} %"
    return [number(of["span"], ".3g"), relative, number(of["past_loss_rise"], "+.3g")]


def _ratio(value: float | None) -> str:
    return number(value, ".2f" if value is None or value < 100 else ".0f")
