"""Tables of records, for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

Record = Mapping[str, Any]


def comparison(records: Sequence[Record]) -> Table:
    """One row per run: what it knows, what it forgot, what it could learn, what is left under attack, what it took."""
    strengths = records[0].get("fgsm", {}).get("strengths", [])
    scale = "; FGSM strengths in pixels of 0…255" if strengths else ""
    table = Table(title=f"percent, mean over tasks{scale}", title_justify="left")
    for name in ("method", "ACC", "BWT", "new task", *(f"FGSM {255 * s:g}" for s in strengths), "seconds"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for record in records:
        attacked = [f"{value:.1f}" for value in record.get("fgsm", {}).get("acc", [])]
        scores = [f"{record['acc']:.1f}", _signed(record["bwt"]), _plain(record["learning_accuracy"])]
        table.add_row(record["method"], *scores, *attacked, f"{record['seconds']:.0f}")
    return table


def matrix(record: Record) -> Table:
    """The accuracy matrix; the darker a cell's ground, the less is left."""
    table = Table(title=f"{record['method']}: accuracy on each task after each lesson", title_justify="left", box=None)
    table.add_column("after")
    for name in record["task_names"]:
        table.add_column(name, justify="right")
    for t, row in enumerate(record["accuracy_matrix"]):
        table.add_row(str(t + 1), *(Text(f"{accuracy:5.1f}", style=_shade(accuracy)) for accuracy in row))
    return table


def _shade(accuracy: float) -> str:
    level = int(90 + 1.3 * max(0.0, min(accuracy, 100.0)))
    return f"black on rgb({level},{level},{level})"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f}"
