"""How features lie on the sphere: a table of figures, and the circle."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from perdure.report import render
from perdure.report.probes import Result
from perdure.report.render import Axes, Figure, Tables, cell, number

Array = np.ndarray[Any, Any]

COLUMNS = [
    ("images", cell("images", "d")),
    ("uniformity", cell("uniformity", ".2f")),
    ("alignment", cell("alignment", ".2f")),
    ("eff. rank", cell("effective_rank")),
    ("overlap %", cell("class_overlap", interval="class_overlap_interval")),
    ("near %", cell("neighbor_overlap")),
]
NOTES = (
    "uniformity: 0 with all images at one point of the sphere, −4 evenly spread over many dimensions",
    "alignment: mean squared distance of two images of one class, 0 … 4",
    "effective rank: over how many directions the images spread; grows with their number",
    "overlap: images nearer to another class's mean than to their own, themselves left out of it",
    "near: of an image's ten nearest neighbors, how many are of another class",
)
HEADS = {
    "pca": "Features in the plane through the origin that holds most of their squared length (PCA), put on the circle",
    "trained": "Features through a two-unit layer trained for uniformity and alignment of classes, put on the circle",
}
WIDTH = 0.15  # radians, of the kernel; the same everywhere, so that densities of runs and classes compare
EVEN = 1 / (2 * math.pi)  # density per radian of an even spread
EDGE = 1.4  # of the plane that is shown


def tables(results: Sequence[Result]) -> Tables:
    return [render.tasks_and_all(results, f"features of {results[0].figures['part']} images", COLUMNS), *NOTES]


class Circle(NamedTuple):
    """Points of one circle, and what is written above and within it."""

    points: Array  # (n, 2)
    title: str
    inside: str


def draw(figure: Figure, results: Sequence[Result]) -> None:
    """A row per result: all images, then the first class of the first, the middle and the last task; above the density
    in the plane, below over the angle. All that stands in the first column has one scale, all the rest another."""
    rows = [list(_circles(result)) for result in results]
    columns = max(map(len, rows))
    figure.set_size_inches(0.6 + 2.3 * columns, 0.4 + 2.95 * len(rows))
    grid = figure.subplots(2 * len(rows), columns, height_ratios=[3, 1] * len(rows), squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)  # a run of fewer tasks has fewer panels
    for numbers in ([0], range(1, columns)):
        places = [(row, n) for row in range(len(rows)) for n in numbers if n < len(rows[row])]
        _draw_planes([(grid[2 * row, n], rows[row][n]) for row, n in places])
        _draw_angles([(grid[2 * row + 1, n], rows[row][n]) for row, n in places])
    grid[1, len(rows[0]) - 1].annotate(" even", (180, EVEN), va="center", annotation_clip=False)
    for row, result in enumerate(results):
        grid[2 * row, 0].set_ylabel(result.label)
        grid[2 * row + 1, 0].set_ylabel("density\nper radian")
    heads = dict.fromkeys(result.figures["circle"]["head"] for result in results)
    figure.suptitle("\n".join(HEADS[head] for head in heads))


def _circles(result: Result) -> Iterator[Circle]:
    points, task, label = (result.arrays[name] for name in ("features2d", "task", "label"))
    tasks, uniformity = result.figures["tasks"], result.figures["circle"]["uniformity"]
    everything = "the only task" if len(tasks) == 1 else f"all {len(tasks)} tasks"
    inside = f"uniformity\non the circle\n{number(uniformity, '.2f')}"
    yield Circle(points, f"{everything}, {len(points)} images", inside)
    for place in sorted({0, (len(tasks) - 1) // 2, len(tasks) - 1}):
        first = int(label[task == place].min())
        chosen = points[(task == place) & (label == first)]
        yield Circle(chosen, f"task {place + 1}: “{tasks[place]['classes'][first]}”", f"{len(chosen)}\nimages")


def _draw_planes(panels: Sequence[tuple[Axes, Circle]]) -> None:
    from matplotlib import patches

    densities = [_plane_density(circle.points) for _, circle in panels]
    peak = max((float(density.max()) for density in densities), default=0.0)
    extent = (-EDGE, EDGE, -EDGE, EDGE)
    for (axes, circle), density in zip(panels, densities, strict=True):
        axes.set_visible(True)
        axes.imshow(density, cmap="Greys", vmin=0, vmax=peak, extent=extent, origin="lower")
        axes.add_patch(patches.Circle((0, 0), 1, fill=False, color="0.6", linewidth=0.6))
        axes.text(0, 0, circle.inside, ha="center", va="center")
        axes.set(title=circle.title, xticks=[], yticks=[])
        axes.spines[:].set_visible(False)


def _draw_angles(panels: Sequence[tuple[Axes, Circle]]) -> None:
    """Over the angle, with the height that an even spread would have."""
    turn = np.linspace(-np.pi, np.pi, 361)
    densities = [_angle_density(circle.points, turn) for _, circle in panels]
    peak = max((float(density.max()) for density in densities), default=0.0)
    for (axes, _), density in zip(panels, densities, strict=True):
        axes.set_visible(True)
        axes.fill_between(np.degrees(turn), density, color="0.8", linewidth=0)
        axes.plot(np.degrees(turn), density, color="black", linewidth=0.9)
        axes.axhline(EVEN, color="black", linewidth=0.7, linestyle="--")
        axes.set(xlim=(-180, 180), ylim=(0, 1.05 * peak))
        axes.set_xticks([-180, -90, 0, 90, 180], ["−180°", "", "0°", "", "180°"])


def _plane_density(points: Array, cells: int = 160) -> Array:
    """Gaussian kernels on a square grid, row y and column x. The kernel is a product, so the sum over points is too."""
    line = np.linspace(-EDGE, EDGE, cells)
    across, up = (np.exp(-(((line[:, None] - points[:, i]) / WIDTH) ** 2) / 2) for i in (0, 1))
    density: Array = up @ across.T / (len(points) * 2 * np.pi * WIDTH**2)
    return density


def _angle_density(points: Array, turn: Array) -> Array:
    """Von Mises kernels of the same width, which go round the circle: −180° and 180° are one place."""
    sharpness = 1 / WIDTH**2
    angles = np.arctan2(points[:, 1], points[:, 0])
    kernels = np.exp(sharpness * np.cos(turn[:, None] - angles)) / (2 * np.pi * np.i0(sharpness))
    density: Array = kernels.mean(axis=1)
    return density
