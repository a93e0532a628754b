"""Tables of records."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from perdure.ops.statistics import CONFIDENCE, DDOF, Difference, Group, Interval, Spread, spread, without_file
from perdure.report.table import Cell, Column, Table, names, table, with_best

Record = Mapping[str, Any]
ATTACKS = (
    "FGSM",
    "PGD",
    "APGD",
    "FAB",
    "Square",
    "noise",
    "robust",
    "certified",
)  # how figures begin of which more is better


def comparison(records: Sequence[Record]) -> Table:
    """One row per run: what it knows, what it forgot, what it could learn, what is left under attack, what it took."""
    strengths, _ = _attacks(records[0])
    scale = "; FGSM strengths in pixels of 0…255" if strengths else ""
    attacks = [f"FGSM {255 * strength:g}" for strength in strengths]
    columns = ["method", "ACC", "BWT", "new task", *attacks, "seconds"]
    rows = []
    for record in records:
        scores = [f"{record['acc']:.1f}", _number(record["bwt"], "+"), _number(record["learning_accuracy"])]
        own, accuracies = _attacks(record)
        attacked = [f"{value:.1f}" for value in accuracies] if own == strengths else ["–"] * len(attacks)
        rows.append([without_file(record["method"]), *scores, *attacked, f"{record['seconds']:.0f}"])
    return with_best(table(f"percent, mean over tasks{scale}", columns, rows), "ACC", "BWT", *attacks)


def matrix(record: Record) -> Table:
    """The accuracy matrix; the better, the darker a cell's ground. Where it is too wide, tasks go by numbers, then
    figures without decimals, then each task with its first and last figure alone."""
    tasks, rows = record["task_names"], record["accuracy_matrix"]
    numbers = [str(place) for place, _ in enumerate(tasks, 1)]
    legend = [_legend(tasks)]
    title = f"{without_file(record['method'])}: accuracy on each task after each was learned"
    forms = [
        _matrix(title, tasks, rows, ".1f"),
        replace(_matrix(title, numbers, rows, ".1f"), notes=legend),
        replace(_matrix(title, numbers, rows, ".0f"), notes=legend),
    ]
    found = _first_and_last(record)
    for form in reversed(forms):
        found = replace(form, narrower=found)
    return found


def _legend(tasks: Sequence[str]) -> str:
    named = [f"{number}\u00a0{name}" for number, name in enumerate(tasks, 1)]  # not torn apart
    return f"tasks: {', '.join(named)}"


def numbered_matrix(record: Record) -> Table:
    """The same with tasks by numbers from the start, for many side by side; without decimals where tasks are many."""
    tasks, rows = record["task_names"], record["accuracy_matrix"]
    numbers = [str(place) for place, _ in enumerate(tasks, 1)]
    found = _matrix("", numbers, rows, ".1f" if len(tasks) <= 10 else ".0f")
    return replace(found, notes=[_legend(tasks)])


def _matrix(title: str, columns: Sequence[str], rows: Sequence[Sequence[float]], form: str) -> Table:
    cells = [[Cell(f"{value:{form}}", percent=value) for value in row] for row in rows]
    missing = [[Cell("")] * (len(columns) - len(row)) for row in rows]
    filled = [[Cell(str(t)), *row, *gap] for t, (row, gap) in enumerate(zip(cells, missing, strict=True), 1)]
    return table(title, ["after", *map(Column, columns)], filled, framed=False)


def _first_and_last(record: Record) -> Table:
    """Of each task how well it was known when it was learned and in the end, and how much of the best is gone."""
    rows = record["accuracy_matrix"]
    over_time = [[row[place] for row in rows if place < len(row)] for place, _ in enumerate(record["task_names"])]
    figures = [(known[0], known[-1], max(known) - known[-1]) for known in over_time]
    cells: list[list[str | Cell]] = [
        [str(place), name, *_shaded(known)]
        for place, (name, known) in enumerate(zip(record["task_names"], figures, strict=True), 1)
    ]
    mean: list[str | Cell] = ["", "mean", *_shaded([fmean(column) for column in zip(*figures, strict=True)])]
    title = f"{without_file(record['method'])}: accuracy on each task when it was learned and in the end"
    columns = [Column("task"), *names("name"), *map(Column, ("first", "last", "forgotten"))]
    return table(title, columns, cells, [mean], framed=False)


def _shaded(known: Sequence[float]) -> list[Cell]:
    first, last, forgotten = known
    return [*(Cell(f"{value:.1f}", percent=value) for value in (first, last)), Cell(f"{forgotten:.1f}")]


SCORES = {"acc": "", "bwt": "+", "learning_accuracy": ""}  # and whether their signs are shown


def summary(found: Sequence[Group], note: str = "") -> Table:
    """One row per group: its mean and deviation over seeds; the note goes into the title."""
    title = f"percent, mean ± standard deviation over n seeds (ddof {DDOF}){note}"
    parts: list[Any] = []
    columns = [*names("benchmark", "method"), *map(Column, ("n", "ACC", "BWT", "new task"))]
    for benchmark in dict.fromkeys(group.benchmark for group in found):
        rows = []
        for group in found:
            if group.benchmark == benchmark:
                have, of = len(group.figures("acc")), len(group.runs)
                count = str(have) if have == of else f"{have} of {of}"
                scores = [_spread(group.spread(name), sign) for name, sign in SCORES.items()]
                rows.append([without_file(group.benchmark), group.name, count, *scores])
        parts += with_best(table(title, columns, rows), "ACC", "BWT").groups  # the best of each benchmark
    return Table(title, columns, parts)


def measured(found: Sequence[Group], figures: Sequence[str]) -> Table:
    """What probes found: a row for each group and a column for each figure, or the other way round where that is
    narrower and all are of one benchmark."""
    title = f"measured, mean ± standard deviation over n seeds (ddof {DDOF})"
    several = len({group.benchmark for group in found}) > 1
    cells = [[without_file(group.benchmark), group.name] if several else [group.name] for group in found]
    for name in figures:
        spreads = [group.spread(name) for group in found]
        largest = max((abs(value.mean) for value in spreads if value is not None), default=0.0)
        digits = 0 if largest >= 1000 else 1 if largest >= 10 else 2 if largest >= 1 else 3
        for row, value in zip(cells, spreads, strict=True):
            row.append(_spread(value, digits=digits))
    better = [] if several else [name for name in figures if name.startswith(ATTACKS)]
    first = names("benchmark", "method") if several else names("method")
    upright = with_best(table(title, [*first, *map(Column, figures)], cells), *better)
    return _turned(upright, "figure") if len(figures) > len(found) and not several else upright


def _turned(found: Table, first: str) -> Table:
    """Rows as columns."""
    labels, *columns = zip(*found.rows, strict=True)
    rows = [[column.name, *cells] for column, cells in zip(found.columns[1:], columns, strict=True)]
    return table(found.title, [first, *(label.text for label in labels)], rows)


def cost(found: Sequence[Group]) -> Table:
    """What each group took to train, and what its method holds between tasks besides the network."""
    title = f"cost, mean ± standard deviation over n seeds (ddof {DDOF})"
    rows = []
    for group in found:
        held = spread(
            [sum(run["memory_bytes"].values()) / 1e6 for run in group.runs if run.get("memory_bytes") is not None]
        )
        cells = [_spread(group.spread("seconds"), digits=1), _spread(held)]
        rows.append([without_file(group.benchmark), group.name, *cells])
    return table(title, [*names("benchmark", "method"), Column("seconds"), Column("MB held")], rows)


def differences(compared: Sequence[Difference]) -> Table:
    """One row per pair of groups: what the first has over the second."""
    level = f"{100 * CONFIDENCE:g} %"
    title = f"paired differences over n seeds, percent points, with {level} confidence intervals (Student's t)"
    attacked = list(dict.fromkeys(name for _, _, figures in compared for name in figures if name.startswith(ATTACKS)))
    rows = []
    for group, other, figures in compared:
        pairs = max(value.n for value in figures.values() if value is not None)
        cells = [_interval(figures.get(name)) for name in ("acc", "bwt", *attacked)]
        rows.append([without_file(group.benchmark), f"{group.name} − {other.name}", str(pairs), *cells])
    return table(title, [*names("benchmark", "method"), *map(Column, ("n", "ACC", "BWT", *attacked))], rows)


FIGURES = {"acc": "ACC", "bwt": "BWT", "minutes": "minutes"}


def beside_paper(compared: Sequence[Any]) -> Table:
    """One row per figure that the paper prints (`lab.paper.Comparison`): ours, the paper's, the authors' own runs, and
    whether they agree. Reasons and remarks stand below, under letters."""
    title = "ours beside the paper's, mean ± standard deviation over n seeds (ddof 0)"
    remarks: dict[str, str] = {}

    def letter(text: str) -> str:
        return remarks.setdefault(text, f"({_letters(len(remarks))})") if text else ""

    parts = []
    for benchmark in dict.fromkeys(one.benchmark for one in compared):
        rows = []
        for one in compared:
            if one.benchmark == benchmark:
                sign = "+" if one.figure == "bwt" else ""
                logged = ", ".join(_number(value, sign, 2) for value in one.logged) or "–"
                marks = letter(one.why) + letter(one.note)
                figures = [_spread(one.ours, sign), _spread(one.printed, sign), logged]
                told = [FIGURES.get(one.figure, one.figure), str(one.ours.n if one.ours else 0), *figures]
                rows.append([without_file(benchmark), one.row, *told, f"{one.verdict} {marks}".strip()])
        parts.append(rows)
    columns = [
        *names("benchmark", "method", "figure"),
        *map(Column, ("n", "ours", "paper", "authors' runs")),
        *names("verdict"),
    ]
    return table(title, columns, *parts, notes=[f"{mark} {text}" for text, mark in remarks.items()])


def _letters(number: int) -> str:
    """
    >>> [_letters(number) for number in (0, 25, 26)]
    ['a', 'z', 'aa']
    """
    return (_letters(number // 26 - 1) if number >= 26 else "") + chr(ord("a") + number % 26)


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


def _attacks(record: Record) -> tuple[list[float], list[float]]:
    """Strengths of FGSM, and what is left under each; none if it was not measured, or the file says no figures."""
    found = record.get("probes", {}).get("fgsm", {})
    strengths, accuracies = found.get("strengths"), found.get("acc")
    if not isinstance(strengths, list) or not isinstance(accuracies, list) or len(strengths) != len(accuracies):
        return [], []
    return (strengths, accuracies) if all(isinstance(one, int | float) for one in strengths + accuracies) else ([], [])


def _number(value: float | None, sign: str = "", digits: int = 1) -> str:
    """
    >>> _number(-2.04, "+"), _number(-0.04, "+"), _number(None)
    ('-2.0', '+0.0', '–')
    """
    if value is None:
        return "–"
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"  # − 0 is 0


def _spread(value: Spread | None, sign: str = "", digits: int = 2) -> str:
    if value is None:
        return "–"
    return _number(value.mean, sign, digits) + ("" if value.deviation is None else f" ± {value.deviation:.{digits}f}")


def _interval(value: Interval | None) -> str:
    if value is None:
        return "–"
    bounds = "" if value.low is None else f" [{_number(value.low, '+', 2)}, {_number(value.high, '+', 2)}]"
    return _number(value.mean, "+", 2) + bounds
