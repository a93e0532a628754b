"""Tables of records, for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from perdure.ops.statistics import CONFIDENCE, DDOF, Difference, Group, Interval, Spread

Record = Mapping[str, Any]


def comparison(records: Sequence[Record]) -> Table:
    """One row per run: what it knows, what it forgot, what it could learn, what is left under attack, what it took."""
    strengths = _attacks(records[0]).get("strengths", [])
    scale = "; FGSM strengths in pixels of 0…255" if strengths else ""
    attacks = [f"FGSM {255 * strength:g}" for strength in strengths]
    table = _table(f"percent, mean over tasks{scale}", "method", "ACC", "BWT", "new task", *attacks, "seconds")
    for record in records:
        scores = [f"{record['acc']:.1f}", _number(record["bwt"], "+"), _number(record["learning_accuracy"])]
        attacked = [f"{value:.1f}" for value in _attacks(record).get("acc", [])]
        table.add_row(record["method"], *scores, *attacked, f"{record['seconds']:.0f}")
    return table


def matrix(record: Record) -> Table:
    """The accuracy matrix; the darker a cell's ground, the less is left."""
    table = Table(
        title=f"{record['method']}: accuracy on each task after each was learned", title_justify="left", box=None
    )
    table.add_column("after")
    for name in record["task_names"]:
        table.add_column(name, justify="right")
    for t, row in enumerate(record["accuracy_matrix"]):
        table.add_row(str(t + 1), *(Text(f"{accuracy:5.1f}", style=_shade(accuracy)) for accuracy in row))
    return table


def summary(found: Sequence[Group], note: str = "") -> Table:
    """One row per group: its mean and deviation over seeds; the note goes into the title."""
    title = f"percent, mean ± standard deviation over n seeds (ddof {DDOF}){note}"
    table = _table(title, "benchmark", "method", "n", "ACC", "BWT")
    for group in found:
        have, of = len(group.figures("acc")), len(group.runs)
        count = str(have) if have == of else f"{have} of {of}"
        scores = _spread(group.spread("acc")), _spread(group.spread("bwt"), "+")
        table.add_row(group.benchmark, group.name, count, *scores)
    return table


def measured(found: Sequence[Group], names: Sequence[str]) -> Table:
    """What probes found: a row for each figure and a column for each group, or the other way round, whichever is
    narrower."""
    cells: dict[tuple[str, str], str] = {}
    for name in names:
        spreads = {group.name: group.spread(name) for group in found}
        largest = max((abs(value.mean) for value in spreads.values() if value is not None), default=0.0)
        digits = 0 if largest >= 1000 else 1 if largest >= 10 else 2 if largest >= 1 else 3
        cells |= {(group, name): _spread(value, digits=digits) for group, value in spreads.items()}
    groups = [group.name for group in found]
    upright = len(names) > len(groups)
    rows, columns = (list(names), groups) if upright else (groups, list(names))
    title = f"measured, mean ± standard deviation over n seeds (ddof {DDOF})"
    table = _table(title, "figure" if upright else "method", *columns)
    for row in rows:
        table.add_row(row, *(cells[(column, row) if upright else (row, column)] for column in columns))
    return table


def differences(compared: Sequence[Difference]) -> Table:
    """One row per pair of groups: what the first has over the second."""
    level = f"{100 * CONFIDENCE:g} %"
    title = f"paired differences over n seeds, percent points, with {level} confidence intervals (Student's t)"
    table = _table(title, "benchmark", "method", "n", "ACC", "BWT", whole=("ACC", "BWT"))
    for group, other, figures in compared:
        pairs = max(value.n for value in figures.values() if value is not None)
        cells = [_interval(figures[name]) for name in ("acc", "bwt")]
        table.add_row(group.benchmark, f"{group.name} − {other.name}", str(pairs), *cells)
    return table


def duration(seconds: float) -> str:
    """
    >>> [duration(s) for s in (0.2, 90, 400, 7200, 500_000)]
    ['0.2 s', '90 s', '7 min', '2.0 h', '5.8 days']
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 120 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 72 * 3600 else f"{seconds / 86400:.1f} days"


def _table(title: str, *columns: str, whole: Sequence[str] = ()) -> Table:
    """Names to the left, figures to the right; cells of whole columns are not wrapped."""
    table = Table(title=title, title_justify="left")
    for name in columns:
        left = name in ("benchmark", "method", "figure")
        table.add_column(name, justify="left" if left else "right", no_wrap=name in whole)
    return table


def _attacks(record: Record) -> Mapping[str, Any]:
    found: Mapping[str, Any] = record.get("probes", {}).get("fgsm", {})
    return found


def _shade(accuracy: float) -> str:
    level = int(90 + 1.3 * max(0.0, min(accuracy, 100.0)))
    return f"black on rgb({level},{level},{level})"


def _number(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign}.1f}"


def _spread(value: Spread | None, sign: str = "", digits: int = 2) -> str:
    if value is None:
        return "–"
    return f"{value.mean:{sign}.{digits}f}" + ("" if value.deviation is None else f" ± {value.deviation:.{digits}f}")


def _interval(value: Interval | None) -> str:
    if value is None:
        return "–"
    return f"{value.mean:+.2f}" + ("" if value.low is None else f" [{value.low:+.2f}, {value.high:+.2f}]")
