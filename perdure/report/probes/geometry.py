"""How features lie on the sphere: a table of figures, and the circle."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from perdure.report.probes import Result
from perdure.report.probes.parts import number, span, together

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Array = np.ndarray[Any, Any]

COLUMNS = ("images", "uniformity", "alignment", "eff. rank", "overlap %", "near %")
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


def tables(results: Sequence[Result]) -> Sequence[Table | str]:
    return [together(results, f"features of {results[0].figures['part']} images", COLUMNS, _cells), *NOTES]


def _cells(position: Mapping[str, Any]) -> list[str]:
    return [
        str(position["images"]),
        number(position["uniformity"], ".2f"),
        f"{position['alignment']:.2f}",
        f"{position['effective_rank']:.1f}",
        f"{position['class_overlap']:.1f} ({span(position['class_overlap_interval'])})",
        f"{position['neighbor_overlap']:.1f}",
    ]


@dataclass(frozen=True)
class Panel:
    """Points of one circle, and what is written above and within it."""

    points: "Array"  # (n, 2)
    title: str
    inside: str


def draw(figure: "Figure", results: Sequence[Result]) -> None:
    """A row per result: all images, then the first class of the first, the middle and the last task; above the density
    in the plane, below over the angle. All that stands in the first column has one scale, all the rest another."""
    rows = [list(_panels(result)) for result in results]
    columns = max(map(len, rows))
    figure.set_size_inches(0.6 + 2.3 * columns, 0.4 + 2.95 * len(rows))
    grid = figure.subplots(2 * len(rows), columns, height_ratios=[3, 1] * len(rows), squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)  # a run of fewer tasks has fewer panels
    for numbers in ([0], range(1, columns)):
        places = [(row, n) for row in range(len(rows)) for n in numbers if n < len(rows[row])]
        _circles([(grid[2 * row, n], rows[row][n]) for row, n in places])
        _angles([(grid[2 * row + 1, n], rows[row][n]) for row, n in places])
    grid[1, len(rows[0]) - 1].annotate(" even", (180, EVEN), va="center", annotation_clip=False)
    for row, result in enumerate(results):
        grid[2 * row, 0].set_ylabel(result.label)
        grid[2 * row + 1, 0].set_ylabel("density\nper radian")
    heads = dict.fromkeys(result.figures["circle"]["head"] for result in results)
    figure.suptitle("\n".join(HEADS[head] for head in heads))


def _panels(result: Result) -> Iterator[Panel]:
    points, task, label = (result.arrays[name] for name in ("features2d", "task", "label"))
    tasks, uniformity = result.figures["tasks"], result.figures["circle"]["uniformity"]
    everything = "the only task" if len(tasks) == 1 else f"all {len(tasks)} tasks"
    inside = f"uniformity\non the circle\n{number(uniformity, '.2f')}"
    yield Panel(points, f"{everything}, {len(points)} images", inside)
    for place in sorted({0, (len(tasks) - 1) // 2, len(tasks) - 1}):
        first = int(label[task == place].min())
        chosen = points[(task == place) & (label == first)]
        name = tasks[place]["classes"][first]
        yield Panel(chosen, f"task {place + 1}: “{name}”", f"{len(chosen)}\nimages")


def _circles(panels: "Sequence[tuple[Axes, Panel]]") -> None:
    from matplotlib.patches import Circle

    densities = [_plane_density(panel.points) for _, panel in panels]
    for (axes, panel), density in zip(panels, densities, strict=True):
        axes.set_visible(True)
        extent = (-EDGE, EDGE, -EDGE, EDGE)
        axes.imshow(density, cmap="Greys", vmin=0, vmax=max(map(_peak, densities)), extent=extent, origin="lower")
        axes.add_patch(Circle((0, 0), 1, fill=False, color="0.6", linewidth=0.6))
        axes.text(0, 0, panel.inside, ha="center", va="center")
        axes.set_title(panel.title)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)


def _angles(panels: "Sequence[tuple[Axes, Panel]]") -> None:
    """Over the angle, with the height that an even spread would have."""
    import numpy as np

    turn = np.linspace(-np.pi, np.pi, 361)
    densities = [_angle_density(panel.points, turn) for _, panel in panels]
    for (axes, _), density in zip(panels, densities, strict=True):
        axes.set_visible(True)
        axes.fill_between(np.degrees(turn), density, color="0.8", linewidth=0)
        axes.plot(np.degrees(turn), density, color="black", linewidth=0.9)
        axes.axhline(EVEN, color="black", linewidth=0.7, linestyle="--")
        axes.set_xlim(-180, 180)
        axes.set_ylim(0, 1.05 * max(map(_peak, densities)))
        axes.set_xticks([-180, -90, 0, 90, 180], ["−180°", "", "0°", "", "180°"])


def _peak(density: "Array") -> float:
    return float(density.max())


def _plane_density(points: "Array", cells: int = 160) -> "Array":
    """Gaussian kernels on a square grid, row y and column x. The kernel is a product, so the sum over points is too."""
    import numpy as np

    line = np.linspace(-EDGE, EDGE, cells)
    across, up = (np.exp(-(((line[:, None] - points[:, i]) / WIDTH) ** 2) / 2) for i in (0, 1))
    density: Array = up @ across.T / (len(points) * 2 * np.pi * WIDTH**2)
    return density


def _angle_density(points: "Array", turn: "Array") -> "Array":
    """Von Mises kernels of the same width, which go round the circle: −180° and 180° are one place."""
    import numpy as np

    sharpness = 1 / WIDTH**2
    angles = np.arctan2(points[:, 1], points[:, 0])
    kernels = np.exp(sharpness * np.cos(turn[:, None] - angles)) / (2 * np.pi * np.i0(sharpness))
    density: Array = kernels.mean(axis=1)
    return density
