"""Pictures of records (needs `pip install perdure[report]`)."""

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from perdure.errors import PerdureError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def png(draw: "Callable[[Figure], None]") -> bytes:
    """What is drawn on an empty figure, as a PNG."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PerdureError("pictures need matplotlib: pip install 'perdure[report]'") from None
    figure = Figure(layout="constrained")
    draw(figure)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def accuracy_matrix(record: Mapping[str, Any]) -> bytes:
    """The accuracy matrix: row after lesson t, column task i, each cell with its figure."""
    return png(lambda figure: _draw_matrix(figure, record))


def _draw_matrix(figure: "Figure", record: Mapping[str, Any]) -> None:
    rows, names = record["accuracy_matrix"], record["task_names"]
    figure.set_size_inches(1.5 + 0.75 * len(names), 1.4 + 0.55 * len(rows))
    axes = figure.subplots()
    square = [[*row, *[float("nan")] * (len(names) - len(row))] for row in rows]
    image = axes.imshow(
        square, cmap="Greys", vmin=0, vmax=125, aspect="auto"
    )  # the darkest cell keeps its figure legible
    for t, row in enumerate(rows):
        for i, accuracy in enumerate(row):
            axes.text(
                i,
                t,
                f"{accuracy:.1f}",
                ha="center",
                va="center",
                color="white" if accuracy > 62 else "black",
                fontsize=9,
            )
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(rows)), [f"after {t + 1}" for t in range(len(rows))])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.suptitle(_headline(record), fontsize=10)
    image.set_rasterized(True)


def _headline(record: Mapping[str, Any]) -> str:
    bwt = "" if record["bwt"] is None else f", BWT {record['bwt']:+.1f}"
    return f"{record['method']} on {record['benchmark']}, seed {record['seed']}: ACC {record['acc']:.1f}{bwt} (%)"
