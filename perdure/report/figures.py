"""Pictures of records (needs the extra `report`)."""

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

from perdure.errors import PerdureError, install_hint
from perdure.report.render import Figure, heat_map, scores, slanted_ticks

STYLE: dict[Any, Any] = {  # of all pictures
    "font.size": 8,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.labelsize": 9,
    "figure.titlesize": 10,
    "legend.frameon": False,
    "legend.handlelength": 3.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
}


def png(draw: Callable[[Figure], None]) -> bytes:
    """What is drawn on an empty figure, as a PNG."""
    try:
        from matplotlib import figure as pictures
        from matplotlib import rc_context
    except ImportError:
        raise PerdureError(f"pictures need matplotlib: {install_hint('report')}") from None
    buffer = BytesIO()
    with rc_context(STYLE):
        figure = pictures.Figure(layout="constrained")
        draw(figure)
        figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def accuracy_matrix(record: Mapping[str, Any]) -> bytes:
    """The accuracy matrix: row after task t, column task i, each cell with its figure."""
    return png(lambda figure: _draw_matrix(figure, record))


def _draw_matrix(figure: Figure, record: Mapping[str, Any]) -> None:
    rows, names = record["accuracy_matrix"], record["task_names"]
    figure.set_size_inches(1.5 + 0.75 * len(names), 1.4 + 0.55 * len(rows))
    axes = figure.subplots()
    heat_map(axes, rows)
    slanted_ticks(axes, names)
    axes.set_yticks(range(len(rows)), [f"after {t + 1}" for t in range(len(rows))])
    figure.suptitle(f"{record['method']} on {record['benchmark']}, seed {record['seed']}: {scores(record)}")
