"""The battery against masked gradients: verdicts, and accuracy against strength."""

from collections.abc import Sequence

from perdure.report import render
from perdure.report.probes import Result
from perdure.report.render import Axes, Figure, Figures, Tables, number
from perdure.report.table import Cell, Column, Table, names, table

COLORS = {"pass": "", "warn": "yellow", "fail": "red"}
ATTACKS = ("PGD", "FGSM", "Square", "noise")
HOW = (
    "attacks on the same images; points: what the rival takes in addition. fail: p ≤ 0.01 and 5 points or more, "
    "warn: p ≤ 0.05 and 2 or more (exact sign test, times the number of strengths)"
)


def tables(results: Sequence[Result]) -> Tables:
    middle = f"where attacks are compared at one strength, {render.units(results[0].figures)}"
    return [*([_one(results[0])] if len(results) == 1 else _several(results)), HOW, middle]


def draw(figure: Figure, results: Sequence[Result]) -> None:
    """Accuracy against strength for each result, its verdicts beside it."""
    figure.set_size_inches(9.2, 0.2 + 3.3 * len(results))
    panels = figure.subplots(len(results), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), result in zip(panels, results, strict=True):
        _curves(left, result)
        _verdicts(right, result)


def _one(result: Result) -> Table:
    figures = result.figures
    images = f"{figures['curve']['images']} images of all tasks"
    title = f"{result.label}: is it real? {figures['verdict']} ({images})"
    rows = [[check["name"], _colored(check["verdict"]), _found(check), check["says"]] for check in figures["checks"]]
    return table(title, [*names("check", "verdict"), Column("found"), *names("that is")], rows)


def _several(results: Sequence[Result]) -> list[Table]:
    columns = []
    for result in results:
        cells = {check["name"]: _colored(check["verdict"], f"  {_found(check)}") for check in result.figures["checks"]}
        columns.append((result.label, {**cells, "all": _colored(result.figures["verdict"])}))
    title = f"is it real? gradient masking, {render.joined(results, 'curve.images')} images of all tasks"
    return render.side_by_side(title, "check", columns)


def _colored(verdict: str, rest: str = "") -> Cell:
    return Cell(verdict + rest, bold=verdict != "pass", color=COLORS[verdict])


def _found(check: Figures) -> str:
    form = {"points": "+.1f", "%": ".1f"}.get(check["unit"], ".3g")
    return f"{number(check['value'], form)} {check['unit']}".strip()


def _curves(axes: Axes, result: Result) -> None:
    """Strengths double from one to the next; the clean accuracy stands at 0."""
    curve = result.figures["curve"]
    sizes = [0.0, *(255 * strength for strength in curve["strengths"])]
    axes.axhline(curve["chance"], color="0.7", linewidth=0.8)
    axes.text(0, curve["chance"] + 1.5, "chance", color="0.4", va="bottom")
    render.lines(axes, [(name, sizes, [curve["clean"], *curve[name]["accuracy"]]) for name in ATTACKS])
    axes.set_xscale("symlog", base=2, linthresh=sizes[1])
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.minorticks_off()
    axes.set(xlim=(-0.2 * sizes[1], 1.05 * sizes[-1]), ylim=(-3, 103))
    axes.set(xlabel="strength (pixels of 0…255)", ylabel="accuracy (%)")
    axes.set_title(f"{result.label}: {result.figures['verdict']}")
    render.label_ends(axes)


def _verdicts(axes: Axes, result: Result) -> None:
    axes.set_axis_off()
    checks = result.figures["checks"]
    for place, check in enumerate(checks):
        height = 1 - (place + 0.5) / len(checks)
        weight = "normal" if check["verdict"] == "pass" else "bold"
        for x, text in ((0.0, check["verdict"]), (0.13, check["name"]), (0.72, _found(check))):
            axes.text(x, height, text, fontweight=weight, va="center", transform=axes.transAxes)
