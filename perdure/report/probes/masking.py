"""The battery against masked gradients: verdicts, and accuracy against strength."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from perdure.report.probes import Result
from perdure.report.probes.over_time import apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = {"pass": "", "warn": "bold yellow", "fail": "bold red"}
LINES = {
    "PGD": ("-", "o", "black"),
    "FGSM": ("--", "s", "0.35"),
    "Square": ("-.", "^", "0.35"),
    "noise": (":", "D", "0.5"),
}
HOW = (
    "attacks on the same images; points: what the rival takes in addition. fail: p ≤ 0.01 and 5 points or more, "
    "warn: p ≤ 0.05 and 2 or more (exact sign test, times the number of strengths)"
)


def tables(results: Sequence[Result]) -> Sequence[Table | str]:
    return [_one(results[0]) if len(results) == 1 else _several(results), HOW]


def draw(figure: "Figure", results: Sequence[Result]) -> None:
    """Accuracy against strength for each result, its verdicts beside it."""
    figure.set_size_inches(9.2, 0.2 + 3.3 * len(results))
    figure.set_layout_engine("constrained")
    panels = figure.subplots(len(results), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), result in zip(panels, results, strict=True):
        _curves(left, result)
        _verdicts(right, result)


def _one(result: Result) -> Table:
    table = Table(title=_title(result), title_justify="left")
    for name in ("check", "verdict", "found", "that is"):
        table.add_column(name, justify="right" if name == "found" else "left")
    for check in result.figures["checks"]:
        table.add_row(check["name"], _colored(check["verdict"]), _found(check), check["says"])
    return table


def _several(results: Sequence[Result]) -> Table:
    images = " and ".join(dict.fromkeys(str(result.figures["curve"]["images"]) for result in results))
    table = Table(title=f"is it real? gradient masking, {images} images of all tasks", title_justify="left")
    table.add_column("check")
    for result in results:
        table.add_column(result.label, overflow="fold")
    for row in zip(*(result.figures["checks"] for result in results), strict=True):
        table.add_row(row[0]["name"], *(_colored(check["verdict"], f"  {_found(check)}") for check in row))
    table.add_section()
    table.add_row("all", *(_colored(result.figures["verdict"]) for result in results))
    return table


def _title(result: Result) -> str:
    figures = result.figures
    return f"{result.label}: is it real? {figures['verdict']} ({figures['curve']['images']} images of all tasks)"


def _colored(verdict: str, rest: str = "") -> Text:
    return Text.assemble((verdict, STYLES[verdict]), rest)


def _found(check: Mapping[str, Any]) -> str:
    sign = "+" if check["unit"] == "points" else ""
    number = f"{check['value']:{sign}.1f}" if check["unit"] in ("points", "%") else f"{check['value']:.3g}"
    return f"{number} {check['unit']}".strip()


def _curves(axes: "Axes", result: Result) -> None:
    """Strengths double from one to the next; the clean accuracy stands at 0."""
    curve = result.figures["curve"]
    sizes = [0.0, *(255 * strength for strength in curve["strengths"])]
    axes.axhline(curve["chance"], color="0.7", linewidth=0.8)
    axes.text(0, curve["chance"] + 1.5, "chance", color="0.4", fontsize=7, va="bottom")
    ends = []
    for name, (dash, marker, shade) in LINES.items():
        accuracies = [curve["clean"], *curve[name]["accuracy"]]
        axes.plot(sizes, accuracies, dash, marker=marker, color=shade, markersize=3.5, linewidth=1.2)
        ends.append(accuracies[-1])
    axes.set_xscale("symlog", base=2, linthresh=sizes[1])
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlim(-0.2 * sizes[1], 1.05 * sizes[-1])
    axes.set_ylim(-3, 103)
    for name, height in zip(LINES, apart(ends, 7.0), strict=True):
        axes.annotate(f" {name}", (1.1 * sizes[-1], height), va="center", fontsize=8, annotation_clip=False)
    axes.set_xlabel("strength (pixels of 0…255)", fontsize=8)
    axes.set_ylabel("accuracy (%)", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{result.label}: {result.figures['verdict']}", fontsize=9, loc="left")


def _verdicts(axes: "Axes", result: Result) -> None:
    axes.set_axis_off()
    checks = result.figures["checks"]
    for place, check in enumerate(checks):
        height = 1 - (place + 0.5) / len(checks)
        weight = "normal" if check["verdict"] == "pass" else "bold"
        for x, text in ((0.0, check["verdict"]), (0.13, check["name"]), (0.72, _found(check))):
            axes.text(x, height, text, fontsize=8, fontweight=weight, va="center", transform=axes.transAxes)
