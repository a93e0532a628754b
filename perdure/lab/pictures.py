"""What there is to see: pictures beside a record and beside probe results, tables and pictures of a study.

runs/<benchmark>/<method>/<hash>/
    matrix.png          the accuracy matrix
    curves.png          accuracy of each task over time, and what each epoch came to
    probes/NAME.png     what a probe found
runs/studies/<name>/
    summary.md, summary.tex                     the tables that `perdure study` prints
    summary.csv, measured.csv, differences.csv, cost.csv, paper.csv  the same, a file for each
    comparison.png      ACC and BWT of each method
    accuracy.png        mean accuracy over tasks seen, after each task
    new-tasks.png       accuracy on each task just after it was learned
    matrices.png        the accuracy matrix of each method, of its first seed
    NAME.png, NAME.csv  a figure of the paper that the study asks for, and what is drawn in it
    report.html         all of it on one page, see `report.py`
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file

from perdure.errors import CorruptFile, PerdureError
from perdure.lab.paper import Comparison
from perdure.lab.store import read_probe, write
from perdure.ops.statistics import Difference, Group
from perdure.report import figures
from perdure.report.paper_figures import PaperFigure
from perdure.report.plot import read_epochs
from perdure.report.probes import Result, renderer, showing
from perdure.report.table import Table, as_text
from perdure.report.tables import beside_paper, cost, differences, measured, summary

Warn = Callable[[str], None]
Files = Mapping[Path, Callable[[], bytes]]
"""Where files go, and how their content is made."""


def save(files: Files, warn: Warn, *, again: bool = True) -> list[Path]:
    """Make and write files; unless `again`, only those that are not there. Returns all that are there then. Results are
    worth having without: the first that cannot be made is a warning, and those after it are left out."""
    there = []
    for path, content in files.items():
        try:
            if again or not path.exists():
                write(path, content())
        except PerdureError as error:
            warn(f"no {path.name}: {error}")
            break
        there.append(path)
    return there


# --- a run ---


def draw_run(record: Mapping[str, Any], probes: Sequence[str], warn: Warn, *, again: bool) -> list[Path]:
    """The pictures of a finished run and of these probes of it, by their keys."""
    path = Path(record["path"])
    files = {
        path / "matrix.png": lambda: figures.accuracy_matrix(record),
        path / "curves.png": lambda: figures.curves(record, read_epochs(path)),
    }
    label = f"{record['method']}, seed {record['seed']}"
    for key in probes:
        file = path / "probes" / f"{key}.json"
        files |= probe_picture(record["probes"][key]["probe"], file, partial(_alone, file, label))
    return save(files, warn, again=again)


def _alone(file: Path, label: str) -> list[Result]:
    return [read_result(file, label)]


def probe_picture(name: str, file: Path, results: Callable[[], Sequence[Result]]) -> dict[Path, Callable[[], bytes]]:
    """The picture beside a file of results, if this probe has one."""
    own = renderer(name)
    if own is None:
        return {}

    def draw() -> bytes:
        with showing(file.stem):
            return figures.png(lambda figure: own.draw(figure, results()))

    return {file.with_suffix(".png"): draw}


ABOUT = ("probe", "values", "headline", "arrays", "check")  # what is in a file of results besides figures


def read_result(file: Path, label: str) -> Result:
    """What a probe found, as its file has it."""
    try:
        content = read_probe(file)
    except CorruptFile:  # it was written a moment ago
        raise PerdureError(f"{file}: changed meanwhile; run the same command again") from None
    arrays = _read_arrays(file.with_suffix(".safetensors"), content["arrays"]) if content["arrays"] else {}
    found = {name: value for name, value in content.items() if name not in ABOUT}
    return Result(label, content["values"], found, arrays, content["headline"])


def _read_arrays(file: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The arrays of a result, if they are those that it names."""
    try:
        arrays = load_file(file)
    except (OSError, SafetensorError, ValueError, TypeError, AttributeError):  # of a type that numpy does not know, too
        arrays = {}
    if {name: list(array.shape) for name, array in arrays.items()} != dict(shapes):
        raise PerdureError(f"{file}: not the arrays that {file.stem}.json names; remove both, and measure it again")
    return arrays


# --- a study ---


def study_tables(
    groups: Sequence[Group],
    probed: Sequence[str],
    compared: Sequence[Difference],
    paper: Sequence[Comparison] = (),
    scale: float = 1.0,
) -> dict[str, list[Table]]:
    """What a study prints: its summary, what probes measured on each benchmark, paired differences, what it cost, and
    the paper's figures beside ours."""
    note = "" if scale == 1 else f"; epochs × {scale:g}: not the plan's figures"
    benchmarks = dict.fromkeys(group.benchmark for group in groups)
    parts = [[group for group in groups if group.benchmark == benchmark] for benchmark in benchmarks]
    found = {
        "summary": [summary(groups, note)],
        "measured": [measured(alike, probed) for alike in parts] if probed else [],
        "differences": [differences(compared)] if compared else [],
        "cost": [cost(done)] if (done := [group for group in groups if group.spread("seconds")]) else [],
        "paper": [beside_paper(paper)] if paper else [],
    }
    return {name: tables for name, tables in found.items() if tables}


def write_study(
    folder: Path,
    groups: Sequence[Group],
    probed: Sequence[str],
    tables: Mapping[str, Sequence[Table]],
    notes: Sequence[str],
    warn: Warn,
    *,
    page: Callable[[], bytes],
    drawn: Sequence[PaperFigure] = (),
    pictures: bool = True,
) -> list[Path]:
    """All files of a study; a CSV file holds one table, so that of several benchmarks what was measured is in one.
    The page comes with the pictures, which it shows."""
    everything: list[Table | str] = [*(table for some in tables.values() for table in some), *notes]
    texts = {"summary.md": as_text(everything, "markdown"), "summary.tex": as_text(everything, "latex")}
    sheets = {**tables, "measured": [measured(groups, probed)]} if probed else tables
    texts |= {f"{name}.csv": as_text(some, "csv") for name, some in sheets.items()}
    files: dict[Path, Callable[[], bytes]] = {folder / name: text.encode for name, text in texts.items()}
    if pictures and any(group.spread("acc") for group in groups):
        files[folder / "comparison.png"] = lambda: figures.comparison(groups)
    if pictures and any(map(figures.with_matrix, groups)):
        files[folder / "accuracy.png"] = lambda: figures.accuracy_over_tasks(groups)
        files[folder / "new-tasks.png"] = lambda: figures.new_task_accuracy(groups)
        files[folder / "matrices.png"] = lambda: figures.matrices(groups)
        for one in drawn:
            files[folder / f"{one.name}.csv"] = partial(_figure_data, one)
            files[folder / f"{one.name}.png"] = partial(_figure, one)
        files[folder / "report.html"] = page
    return save(files, warn)


def _figure(one: PaperFigure) -> bytes:
    with showing(one.name):
        return figures.png(one.draw)


def _figure_data(one: PaperFigure) -> bytes:
    with showing(one.name):
        return as_text([one.table()], "csv").encode()
