"""How far the loss rises around the weights, and how it is bent there: task by task, run by run."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from perdure.report.probes import Result
from perdure.report.probes.parts import by_task, look, name_ends, slant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLATNESS = {"loss": "loss", "one_step": "one step", "flatness": "worst case", "sharpness": "SAM"}
CURVATURE = {"loss": "loss", "gradient_norm": "gradient", "top_eigenvalue": "top eigenvalue", "trace": "trace"}
ERRORS = {"top_eigenvalue": "residual", "trace": "trace_error"}


def tables(results: Sequence[Result]) -> Sequence[Table | str]:
    bent = _bent(results)
    names = CURVATURE if bent else FLATNESS
    found = by_task(results, names, ERRORS if bent else {"flatness": ""})
    return [*found, *(_reading_curvature() if bent else _reading_flatness(results[0].figures))]


def draw(figure: "Figure", results: Sequence[Result]) -> None:
    """Task by task: of one result the rises in all three senses, of several the worst; or eigenvalue and trace."""
    bent = _bent(results)
    tasks = max((result.figures["tasks"] for result in results), key=len)
    figure.set_size_inches(max(5.6, 3.2 + 0.4 * len(tasks)), 5.8 if bent else 3.6)
    if bent:
        top, below = figure.subplots(2, sharex=True)
        _lines(top, results, "top_eigenvalue")
        _lines(below, results, "trace")
        top.set_ylabel("largest eigenvalue\nof the Hessian")
        below.set_ylabel("trace of the Hessian")
        panels = [top, below]
    else:
        panels = [figure.subplots()]
        if len(results) == 1:
            _rises(panels[0], results[0])
        else:
            _lines(panels[0], results, "flatness")
        panels[0].set_ylabel("rise of the loss (nats)")
    slant(panels[-1], tasks)
    panels[0].set_title(_title(results, bent))


# --- parts ---


def _bent(results: Sequence[Result]) -> bool:
    return "top_eigenvalue" in results[0].figures


def _title(results: Sequence[Result], bent: bool) -> str:
    first = results[0]
    if len(results) == 1:
        return first.label
    return "curvature of the loss" if bent else f"worst-case flatness, ξ = {first.figures['radius']:g}"


def _lines(axes: "Axes", results: Sequence[Result], name: str) -> None:
    for place, result in enumerate(results):
        values, errors = result.figures[name], result.figures.get(ERRORS.get(name, ""))
        axes.errorbar(range(len(values)), values, errors, capsize=2, elinewidth=0.8, label=result.label, **look(place))
    _finish(axes, named=len(results) > 1)


def _rises(axes: "Axes", result: Result) -> None:
    figures = result.figures
    names = {
        "flatness": f"worst case, {figures['steps']} steps, ξ = {figures['radius']:g}",
        "one_step": "worst case, one step",
        "sharpness": f"SAM, ρ = {figures['sam_radius']:g}",
    }
    for place, (name, label) in enumerate(names.items()):
        axes.plot(figures[name], label=label, **look(place))
    _finish(axes, named=True)


def _finish(axes: "Axes", named: bool) -> None:
    if axes.dataLim.y0 >= 0:
        axes.set_ylim(bottom=0)
    if named:
        name_ends(axes)


def _reading_flatness(figures: Mapping[str, Any]) -> list[str]:
    return [
        f"worst case: how much the loss rises when each layer is moved by {figures['radius']:g} of its length, "
        f"{figures['steps']} steps uphill",
        f"SAM: when all weights together are moved by {figures['sam_radius']:g} along the gradient. Less is flatter",
    ]


def _reading_curvature() -> list[str]:
    return [
        "top eigenvalue ± residual: how sharply the loss is bent, at most",
        "trace ± standard error: the same, summed over all directions. Less is flatter",
        "gradient: its length; far from 0 the weights are not at a minimum",
    ]
