"""The paper's figures that put probes of several runs into one picture; a study asks for them by name (`figures`).

Each is a function from runs to its data, which are also written as CSV, and one that draws them. Seeds of a method are
averaged, unless every run is a point.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from perdure.ops.statistics import correlation, ranks
from perdure.report import render
from perdure.report.probes import Result, geometry
from perdure.report.render import Axes, Figure
from perdure.report.style import line_styles
from perdure.report.table import Table, table

Runs = Sequence[tuple[str, Sequence[tuple[str, Result]]]]
"""Labels such as "gpm, seed 1", each with the names of probes and what they found of this run."""
Points = Sequence[tuple[float, float]]
CUT = 1.5  # times the loss of one who knows nothing: the paper, too, cuts its landscapes
LEGEND_ROWS = 18  # that fit beside a figure
SPANS = (0.1, 0.2)  # ΔW₁ and ΔW₂, in lengths of each filter


@dataclass(frozen=True)
class Kind:
    """A figure of the paper."""

    probes: tuple[str, ...]  # whose results it shows
    caption: str
    data: Callable[[Runs], Table]
    draw: Callable[[Figure, Runs], None]


@dataclass(frozen=True)
class PaperFigure:
    """A figure of a study."""

    name: str
    runs: Runs

    @property
    def kind(self) -> Kind:
        return FIGURES[self.name]

    def there(self) -> bool:
        """Whether some run has all that it shows."""
        return any(set(self.kind.probes) <= {name for name, _ in found} for _, found in self.runs)

    def table(self) -> Table:
        """What is drawn, in numbers."""
        return self.kind.data(self.runs)

    def draw(self, figure: Figure) -> None:
        self.kind.draw(figure, self.runs)


def method_of(label: str) -> str:
    """
    >>> method_of("gpm (threshold=0.9), seed 3, 1f2e3d")
    'gpm (threshold=0.9)'
    """
    return re.sub(r", seed \d+.*", "", label)


def panels_of(runs: Runs, probe: str) -> list[dict[str, list[Result]]]:
    """What a probe found with each set of its values: method → a result per seed."""
    found: dict[str, dict[str, list[Result]]] = {}
    for label, probes in runs:
        for name, result in probes:
            if name == probe:
                key = json.dumps(dict(result.values), sort_keys=True, default=str)
                found.setdefault(key, {}).setdefault(method_of(label), []).append(result)
    return list(found.values())


def _any(panel: Mapping[str, Sequence[Result]]) -> Result:
    return next(iter(panel.values()))[0]


# --- loss landscapes (Fig. 5 a, b) and weight spans (Fig. 2 a) ---


def _mean_curve(results: Sequence[Result]) -> Points:
    """Step and loss: the mean over tasks, directions and seeds."""
    steps = results[0].arrays["steps"].tolist()
    curve = np.mean([result.arrays["curves"].mean((0, 1)) for result in results], axis=0)
    return list(zip(steps, curve.tolist(), strict=True))


def _landscape_title(result: Result) -> str:
    values, tasks = result.values, result.figures["tasks"]
    what = f"task {values['task']} ({tasks[0]})" if values.get("task") else f"mean of {len(tasks)} tasks"
    return f"{what}, after task {values['after']}" if values.get("after") else f"{what}, after all tasks"


def landscape_curves(runs: Runs) -> list[tuple[str, float, dict[str, Points]]]:
    """Of each panel its title, the loss of one who knows nothing, and the curve of each method."""
    found = []
    for panel in panels_of(runs, "landscape"):
        one = _any(panel)
        curves = {method: _mean_curve(results) for method, results in panel.items()}
        found.append((_landscape_title(one), fmean(one.figures["chance"]), curves))
    return found


def _landscape_data(runs: Runs) -> Table:
    rows = [
        [title, method, f"{step:g}", f"{loss:.6g}"]
        for title, _, curves in landscape_curves(runs)
        for method, points in curves.items()
        for step, loss in points
    ]
    return table("loss along random directions", ["panel", "method", "step", "loss"], rows)


def _draw_landscapes(figure: Figure, runs: Runs) -> None:
    panels = landscape_curves(runs)
    figure.set_size_inches(1.2 + 3.9 * len(panels), 3.4)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for place, (axes, (title, chance, curves)) in enumerate(zip(grid, panels, strict=True)):
        _draw_curves(axes, curves, chance)
        axes.set(title=f"({chr(ord('a') + place)}) {title}" if len(panels) > 1 else title)
        axes.set(xlabel="step along a random direction (lengths of each filter)")
        axes.set_ylabel("training loss (nats)")
        render.label_ends(axes)


def _draw_curves(axes: Axes, curves: Mapping[str, Points], chance: float) -> None:
    """Markers are few and at other places on each line, so that lines that coincide can be told apart."""
    for place, ((method, points), style) in enumerate(zip(curves.items(), line_styles(list(curves)), strict=True)):
        every = (2 * place % max(1, len(points) // 5), max(1, len(points) // 5))
        axes.plot(*zip(*points, strict=True), label=method, **style | {"markevery": every})
    highest = max(loss for points in curves.values() for _, loss in points)
    axes.set_ylim(0, 1.05 * min(highest, CUT * chance))
    if highest > chance:
        axes.axhline(chance, color="0.6", linewidth=0.7, dashes=(1, 3), label="chance")


def span_curves(runs: Runs) -> tuple[str, dict[str, Points]]:
    """Of the landscape of the last weights: its title, and of each method the loss at each distance, both sides'
    mean."""
    panels = [panel for panel in panels_of(runs, "landscape") if not _any(panel).values.get("after")]
    panel = panels[0] if panels else panels_of(runs, "landscape")[0]
    found: dict[str, Points] = {}
    for method, results in panel.items():
        points = _mean_curve(results)
        half = len(points) // 2
        sides = zip(points[half:], points[half::-1], strict=True)
        found[method] = [(step, (loss + other) / 2) for (step, loss), (_, other) in sides]
    return _landscape_title(_any(panel)), found


def loss_at(points: Points, span: float) -> float:
    """Straight between points.

    >>> loss_at([(0.0, 1.0), (0.1, 2.0), (0.2, 4.0)], 0.15)
    3.0
    """
    steps, losses = zip(*points, strict=True)
    return float(np.interp(span, steps, losses))


def _within(curves: Mapping[str, Points]) -> list[float]:
    """The spans that were measured."""
    return [span for span in SPANS if span <= min(points[-1][0] for points in curves.values())]


def _span_data(runs: Runs) -> Table:
    _, curves = span_curves(runs)
    spans = _within(curves)
    rows = [[method, *(f"{loss_at(points, span):.6g}" for span in (0.0, *spans))] for method, points in curves.items()]
    return table("loss at each span", ["method", "loss at W", *(f"loss at {span:g}" for span in spans)], rows)


def _draw_span(figure: Figure, runs: Runs) -> None:
    title, curves = span_curves(runs)
    figure.set_size_inches(5.4, 3.6)
    axes = figure.subplots()
    spans, reach = _within(curves), 1.5 * SPANS[-1]
    shown = {method: [point for point in points if point[0] <= reach] for method, points in curves.items()}
    for (method, points), style in zip(shown.items(), line_styles(list(shown)), strict=True):
        axes.plot(*zip(*points, strict=True), label=method, **style | {"marker": ""})
        marks = [(span, loss_at(curves[method], span)) for span in spans]
        axes.plot(spans, [loss for _, loss in marks], **style | {"linestyle": "", "markersize": 5})
        for span, loss in marks if len(curves) <= 2 else ():  # the upper above its line, the lower below
            above = loss == max(loss_at(other, span) for other in curves.values())
            place, side = ((-4, 3), "right") if above else ((4, -9), "left")
            rise = f"+{render.digits(loss - points[0][1])}".replace("+−", "−")
            axes.annotate(rise, (span, loss), place, textcoords="offset points", ha=side, fontsize=7)
    for number, span in zip("₁₂", spans, strict=False):
        axes.axvline(span, color="0.6", linewidth=0.8, linestyle="--", zorder=0)
        axes.annotate(
            f"ΔW{number} = {span:g}", (span, 1), (3, -2), ("data", "axes fraction"), "offset points", va="top"
        )
    highest = max(loss for points in shown.values() for _, loss in points)
    axes.set(xlim=(0, reach), ylim=(0, 1.2 * highest), title=title)
    axes.set(xlabel="weight span (lengths of each filter)", ylabel="training loss (nats)")
    render.label_ends(axes)


# --- worst-case flatness against robust loss (Fig. 2 b) ---


@dataclass(frozen=True)
class Scattered:
    """A run: how flat it is, and its loss under attack."""

    label: str
    flatness: float
    robust_loss: float


def scatter_points(runs: Runs) -> list[Scattered]:
    """Means over tasks; the attack is of the first strength that was measured."""
    found = []
    for label, probes in runs:
        known = {name: result.figures for name, result in reversed(probes)}
        if {"flatness", "fgsm"} <= known.keys():
            found.append(Scattered(label, fmean(known["flatness"]["flatness"]), known["fgsm"]["loss"][0]))
    return found


def _scatter_data(runs: Runs) -> Table:
    rows = [[one.label, f"{one.flatness:.6g}", f"{one.robust_loss:.6g}"] for one in scatter_points(runs)]
    return table("flatness and robust loss", ["run", "flatness", "robust loss"], rows)


def _draw_scatter(figure: Figure, runs: Runs) -> None:
    points = scatter_points(runs)
    figure.set_size_inches(6.0, 4.0)
    axes = figure.subplots()
    methods: dict[str, list[Scattered]] = {}
    for one in points:
        methods.setdefault(method_of(one.label).partition(" (")[0], []).append(one)
    for (method, own), style in zip(methods.items(), line_styles(list(methods)), strict=True):
        look = style | {"linestyle": "", "markersize": 6, "alpha": 0.85}
        axes.plot([one.flatness for one in own], [one.robust_loss for one in own], label=method, **look)
    x, y = [one.flatness for one in points], [one.robust_loss for one in points]
    for values, scale in ((x, axes.set_xscale), (y, axes.set_yscale)):
        if min(values) > 0 and max(values) > 20 * min(values):
            scale("log")
    attack = next(result for _, probes in runs for name, result in probes if name == "fgsm")
    radius = next(result for _, probes in runs for name, result in probes if name == "flatness").figures["radius"]
    axes.set_xlabel(f"worst-case flatness, ξ = {radius:g}: rise of the loss (nats); less is flatter")
    axes.set_ylabel(f"robust loss, FGSM {attack.figures['labels'][0]} (nats)")
    axes.set_title(f"{len(points)} runs: {correlations(x, y)}")
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=1)


# --- clean against robust accuracy, which is no figure of the paper ---


@dataclass(frozen=True)
class Tradeoff:
    """A method: means over seeds, percent."""

    method: str
    clean: float
    robust: float
    low: float  # of the seeds, under attack
    high: float


def tradeoffs(runs: Runs) -> tuple[str, list[Tradeoff]]:
    """The strongest attack of PGD, and what it leaves of each method, the most robust first."""
    panel = panels_of(runs, "pgd")[0]
    found = []
    for method, results in panel.items():
        robust = [result.figures["acc"][-1] for result in results]
        clean = fmean(result.figures["clean"]["acc"] for result in results)
        found.append(Tradeoff(method, clean, fmean(robust), min(robust), max(robust)))
    return _any(panel).figures["labels"][-1], sorted(found, key=lambda one: -one.robust)


def _tradeoff_data(runs: Runs) -> Table:
    label, found = tradeoffs(runs)
    rows = [[one.method, *(f"{value:.4g}" for value in (one.clean, one.robust, one.low, one.high))] for one in found]
    return table(f"clean and robust accuracy, PGD {label}", ["method", "clean", "robust", "lowest", "highest"], rows)


def _draw_tradeoff(figure: Figure, runs: Runs) -> None:
    label, found = tradeoffs(runs)
    columns = 1 + (len(found) - 1) // LEGEND_ROWS
    figure.set_size_inches(4.6 + 1.8 * columns, 4.2)
    axes = figure.subplots()
    for one, style in zip(found, line_styles([one.method for one in found]), strict=True):
        spread = [[one.robust - one.low], [one.high - one.robust]]
        look = style | {"linestyle": "", "markersize": 7}
        axes.errorbar([one.clean], [one.robust], yerr=spread, label=one.method, elinewidth=1, **look)
    axes.set_xlabel("clean ACC (%)")
    axes.set_ylabel(f"ACC under PGD, {label} (%)")
    axes.set_title("one point a method, mean over seeds; bars from the lowest to the highest seed")
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=1, ncols=columns)


def correlations(x: Sequence[float], y: Sequence[float]) -> str:
    """
    >>> correlations([1.0, 2.0, 3.0], [1.0, 4.0, 9.0])
    'Pearson’s r = 0.99, Spearman’s ρ = 1.00'
    """
    names = {"Pearson’s r": correlation(x, y), "Spearman’s ρ": correlation(ranks(x), ranks(y))}
    return ", ".join(f"{name} = {render.number(value, '.2f')}" for name, value in names.items())


# --- robust region over tasks (Fig. 1, right) ---


def region_lines(runs: Runs) -> list[tuple[str, dict[str, list[float]], dict[str, list[float]]]]:
    """Of each attack, clean first, then by strength: its name, and by method the accuracy after each task of the first
    task, and of all tasks seen by then. Where all tasks were learned together, there is one value each."""
    panels = sorted(panels_of(runs, "over-time"), key=lambda panel: float(_any(panel).values["strength"]))
    found = []
    for side, panel in (("clean", panels[0]), *(("robust", panel) for panel in panels)):
        matrices = {name: [one.figures[side]["matrix"] for one in results] for name, results in panel.items()}
        first = {name: _mean([[row[0] for row in rows] for rows in seeds]) for name, seeds in matrices.items()}
        seen = {name: _mean([[fmean(row) for row in rows] for rows in seeds]) for name, seeds in matrices.items()}
        found.append((side if side == "clean" else str(_any(panel).figures["attack"]), first, seen))
    return found


def _mean(seeds: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(values) for values in zip(*seeds, strict=True)]


def _region_data(runs: Runs) -> Table:
    rows = [
        [attack, method, str(after), f"{first[method][after - 1]:.4g}", f"{seen[method][after - 1]:.4g}"]
        for attack, first, seen in region_lines(runs)
        for method in first
        for after in range(1, len(first[method]) + 1)
    ]
    columns = ["attack", "method", "after task", "first task", "tasks seen, mean"]
    return table("robust accuracy after each task, percent", columns, rows)


def _draw_region(figure: Figure, runs: Runs) -> None:
    panels = region_lines(runs)
    figure.set_size_inches(1.4 + 2.2 * len(panels), 4.6)
    grid = figure.subplots(2, len(panels), squeeze=False, sharex=True, sharey=True)
    last = max(len(values) for _, first, _ in panels for values in first.values())
    for column, (attack, *rows) in enumerate(panels):
        for axes, lines in zip(grid[:, column], rows, strict=True):
            for (method, values), style in zip(lines.items(), line_styles(list(lines)), strict=True):
                if len(values) == 1 < last:  # all tasks learned together: a level to measure the others by
                    axes.plot((1, last), values * 2, label=method, **style | {"marker": ""})
                else:
                    axes.plot(range(1, len(values) + 1), values, label=method, **style)
            axes.set_ylim(0, 102)
            axes.grid(axis="y", color="0.92", linewidth=0.6)
        grid[0, column].set_title(attack)
        render.whole_ticks(grid[1, column], 1, last)
    for axes, name in zip(grid[:, 0], ("first task", "tasks seen, mean"), strict=True):
        axes.set_ylabel(f"accuracy (%)\n{name}")
    for axes in grid[:, -1]:
        render.label_ends(axes)
    figure.supxlabel("after learning task")


# --- features on the circle (Fig. 6) ---


def _first_seeds(runs: Runs) -> list[Result]:
    return [results[0] for results in panels_of(runs, "geometry")[0].values()]


def _circle_data(runs: Runs) -> Table:
    names = ("uniformity", "alignment", "resultant")
    rows = [
        [result.label, circle["head"], *(f"{circle[name]:.4g}" for name in names)]
        for result in _first_seeds(runs)
        for circle in [result.figures["circle"]]
    ]
    return table("features on the circle", ["run", "plane", *names], rows)


FIGURES = {
    "landscapes": Kind(
        ("landscape",),
        "Training loss along random directions, every filter moved by a share of its own length, mean over directions",
        _landscape_data,
        _draw_landscapes,
    ),
    "span": Kind(
        ("landscape",),
        "Loss of a past task against how far the weights move, and how much it has risen at two spans",
        _span_data,
        _draw_span,
    ),
    "flatness": Kind(
        ("flatness", "fgsm"),
        "Worst-case flatness against robust loss, a point for each run, means over tasks",
        _scatter_data,
        _draw_scatter,
    ),
    "tradeoff": Kind(
        ("pgd",),
        "Clean accuracy against accuracy under attack, a point for each method",
        _tradeoff_data,
        _draw_tradeoff,
    ),
    "region": Kind(
        ("over-time",),
        "Accuracy after each task that was learned, clean and under attacks of growing strength; above of the first "
        "task, below the mean of all tasks seen",
        _region_data,
        _draw_region,
    ),
    "circle": Kind(
        ("geometry",),
        "Features on the circle and their density over the angle: all images, then single classes",
        _circle_data,
        lambda figure, runs: geometry.draw(figure, _first_seeds(runs)),
    ),
}
