"""What outliers do to loss and gradients, beside the images that they stand for."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from perdure.report.probes import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
            found.append(f"correlation of span and past loss over lessons: {together:+.2f}")
    else:
        found.append(_comparison(results))
    found.append(_claims(results))
    found.append("×: outliers beside the images they replace; excess: growth of the batch's loss per outlier")
    found.append("first order: ∇ₓLᵀε; span: ‖W_t − W_t−1‖; past loss: its growth on earlier tasks in the lesson")
    return found


def draw(figure: "Figure", results: Sequence[Result]) -> None:
    """Three panels over tasks, a row for each result: clean images and outliers."""
    figure.set_size_inches(9.6, 0.4 + 2.6 * len(results))
    figure.set_layout_engine("constrained")
    grid = figure.subplots(len(results), len(PANELS), squeeze=False, sharex=True, sharey="col")
    for row, result in zip(grid, results, strict=True):
        for axes, (name, label) in zip(row, PANELS.items(), strict=True):
            _panel(axes, result.figures["tasks"], name)
            axes.set_ylabel(label, fontsize=9)
        row[0].set_title(f"{result.label}; outliers: {result.figures['source']}", fontsize=9, loc="left")
    for axes in grid[-1]:  # its scale is that of the column, and known only when all is drawn
        axes.set_ylim(bottom=0)
        axes.set_xlabel("task", fontsize=9)


def _panel(axes: "Axes", tasks: Sequence[Mapping[str, Any]], name: str) -> None:
    there = [(number, task[name]) for number, task in enumerate(tasks, 1) if task[name] is not None]
    numbers = [number for number, _ in there]
    for side, style in (("outlier", "k--s"), ("clean", "k-o")):
        heights = [values[side] for _, values in there]
        filled = "black" if side == "clean" else "white"
        axes.plot(numbers, heights, style, markersize=4, linewidth=1.1, markerfacecolor=filled)
    if there:
        _name_ends(axes, numbers[-1], there[-1][1])
    else:
        axes.text(0.5, 0.5, "no past classes", transform=axes.transAxes, ha="center", fontsize=8, color="0.35")
    axes.set_xlim(0.7, len(tasks) + 0.3)
    step = -(-len(tasks) // 10)
    axes.set_xticks(range(1, len(tasks) + 1, step))
    axes.tick_params(labelsize=8, labelbottom=True, labelleft=True)
    axes.spines[["top", "right"]].set_visible(False)


def _name_ends(axes: "Axes", last: int, values: Mapping[str, float]) -> None:
    """Both lines by their ends, the upper above and the lower below, so that names of close lines stay apart."""
    upper = max(("clean", "outlier"), key=lambda side: values[side])
    for side in ("clean", "outlier"):
        shift, anchor = (5, "bottom") if side == upper else (-5, "top")
        axes.annotate(
            "outliers" if side == "outlier" else "clean",
            (last, values[side]),
            xytext=(4, shift),
            textcoords="offset points",
            va=anchor,
            ha="left",
            fontsize=8,
            annotation_clip=False,
        )


def _tasks(result: Result) -> Table:
    table = Table(title=f"{result.label}; outliers: {result.figures['source']}", title_justify="left")
    table.add_column("task", overflow="ellipsis", no_wrap=True, max_width=16)
    for name in ("n", "excess", "first order", "Σ f_p", "outlier", "×", "‖∇W‖", "outlier", "×"):
        table.add_column(name, justify="right", no_wrap=True)
    for task in result.figures["tasks"]:
        excess = task["excess"] or {"real": None, "first_order": None}
        cells = [_number(excess["real"], "+"), _number(excess["first_order"], "+")]
        cells += [*_three(task["past_gradient"]), *_three(task["weight_gradient"])]
        table.add_row(task["task"], str(task["outliers"]), *cells)
    means = result.figures["mean"]
    ratios = ["", "", _ratio(means["past_gradient_ratio"]), "", "", _ratio(means["weight_gradient_ratio"])]
    table.add_section()
    table.add_row("mean", "", _number(means["excess"], "+"), _number(means["first_order"], "+"), *ratios)
    return table


def _spans(result: Result) -> Table:
    table = Table(title="what each lesson moved", title_justify="left")
    table.add_column("lesson", overflow="ellipsis", no_wrap=True, max_width=24)
    for name in ("span", "of ‖W‖", "past loss"):
        table.add_column(name, justify="right")
    for task in result.figures["tasks"]:
        if task["span"] is not None:
            table.add_row(task["task"], *_span(task))
    means = result.figures["mean"]
    if means["span"] is None:
        table.add_row("all tasks in one lesson, or one task", "–", "–", "–")
        return table
    table.add_section()
    table.add_row("mean", *_span(means))
    return table


def _comparison(results: Sequence[Result]) -> Table:
    table = Table(title="outliers beside the images that they replace, means over tasks", title_justify="left")
    table.add_column("run")
    for name in ("excess", "first order", "Σ f_p ×", "‖∇W‖ ×", "span", "of ‖W‖", "past loss", "corr."):
        table.add_column(name, justify="right")
    for result in results:
        means = result.figures["mean"]
        cells = [_number(means["excess"], "+"), _number(means["first_order"], "+")]
        cells += [_ratio(means["past_gradient_ratio"]), _ratio(means["weight_gradient_ratio"]), *_span(means)]
        table.add_row(result.label, *cells, "–" if means["correlation"] is None else f"{means['correlation']:+.2f}")
    return table


def _claims(results: Sequence[Result]) -> Table:
    """A column for each result, numbered where there are several, in the order of the table above."""
    table = Table(title="how often what the paper says held, percent", title_justify="left")
    table.add_column("what the paper says")
    table.add_column("over")
    for place, _ in enumerate(results, 1):
        table.add_column("held" if len(results) == 1 else str(place), justify="right", no_wrap=True)
    if len(results) == 1:
        table.add_column("95 %", justify="right", no_wrap=True)
    by_text = [{claim["claim"]: claim for claim in result.figures["claims"]} for result in results]
    for text in dict.fromkeys(text for claims in by_text for text in claims):
        there = [claims.get(text) for claims in by_text]
        one = next(claim for claim in there if claim)
        cells = ["–" if claim is None else f"{claim['held']:.0f}" for claim in there]
        over = one["over"]
        if len(results) == 1:
            over = f"{one['of']} {over}"
            cells.append("{:.0f}–{:.0f}".format(*one["interval"]))
        table.add_row(text, over, *cells)
    return table


def _three(pair: Mapping[str, Any] | None) -> list[str]:
    return ["–"] * 3 if pair is None else [_number(pair["clean"]), _number(pair["outlier"]), _ratio(pair["ratio"])]


def _span(of: Mapping[str, Any]) -> list[str]:
    relative = "–" if of["relative_span"] is None else f"{100 * of['relative_span']:.1f} %"
    return [_number(of["span"]), relative, _number(of["past_loss_rise"], "+")]


def _number(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign}.3g}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"
