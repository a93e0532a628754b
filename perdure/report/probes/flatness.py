"""How far the loss rises around the weights, and how it is bent there: task by task, run by run."""

from collections.abc import Sequence

from perdure.report import render
from perdure.report.probes import Result
from perdure.report.render import Axes, Figure, Tables
from perdure.report.style import line_styles

FLATNESS = {"loss": "loss", "one_step": "one step", "flatness": "worst case", "sharpness": "SAM"}
CURVATURE = {"loss": "loss", "gradient_norm": "gradient", "top_eigenvalue": "top eigenvalue", "trace": "trace"}
RISE = "rise of the loss (nats)"
ERRORS = {"top_eigenvalue": "residual", "trace": "trace_error"}


def tables(results: Sequence[Result]) -> Tables:
    if _is_curvature(results):
        return [
            *render.by_task(results, CURVATURE, ERRORS),
            "top eigenvalue ± residual: how sharply the loss is bent, at most",
            "trace ± standard error: the same, summed over all directions. Less is flatter",
            "gradient: its length; far from 0 the weights are not at a minimum",
        ]
    figures = results[0].figures
    return [
        *render.by_task(results, FLATNESS, {"flatness": ""}),
        f"worst case: how much the loss rises when each layer is moved by {figures['radius']:g} of its length, "
        f"{figures['steps']} steps uphill",
        f"SAM: when all weights together are moved by {figures['sam_radius']:g} along the gradient. Less is flatter",
    ]


def draw(figure: Figure, results: Sequence[Result]) -> None:
    """Task by task: of one result the rises in all three senses, of several the worst; or eigenvalue and trace."""
    first, curved = results[0], _is_curvature(results)
    tasks = max((result.figures["tasks"] for result in results), key=len)
    figure.set_size_inches(max(5.6, 3.2 + 0.4 * len(tasks)), 5.8 if curved else 3.6)
    if curved:
        top, bottom = figure.subplots(2, sharex=True)
        _runs(top, results, "top_eigenvalue", "largest eigenvalue\nof the Hessian")
        _runs(bottom, results, "trace", "trace of the Hessian")
        title = "curvature of the loss"
    else:
        top = bottom = figure.subplots()
        title = f"worst-case flatness, ξ = {first.figures['radius']:g}"
        if len(results) == 1:
            _rises(top, first)
        else:
            _runs(top, results, "flatness", RISE)
    render.slanted_ticks(bottom, tasks)
    top.set_title(title if len(results) > 1 else first.label)


def _is_curvature(results: Sequence[Result]) -> bool:
    return "top_eigenvalue" in results[0].figures


def _runs(axes: Axes, results: Sequence[Result], name: str, label: str) -> None:
    for result, own in zip(results, line_styles([result.label for result in results]), strict=True):
        values, errors = result.figures[name], result.figures.get(ERRORS.get(name, ""))
        style = {"capsize": 2, "elinewidth": 0.8, **own}
        axes.errorbar(range(len(values)), values, errors, label=result.label, **style)
    _finish(axes, label, named=len(results) > 1)


def _rises(axes: Axes, result: Result) -> None:
    figures = result.figures
    names = {
        "flatness": f"worst case, {figures['steps']} steps, ξ = {figures['radius']:g}",
        "one_step": "worst case, one step",
        "sharpness": f"SAM, ρ = {figures['sam_radius']:g}",
    }
    render.lines(axes, [(label, range(len(figures[name])), figures[name]) for name, label in names.items()])
    _finish(axes, RISE, named=True)


def _finish(axes: Axes, label: str, named: bool) -> None:
    if axes.dataLim.y0 >= 0:
        axes.set_ylim(bottom=0)
    if named:
        render.label_ends(axes)
    axes.set_ylabel(label)
