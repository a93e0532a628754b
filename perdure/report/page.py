"""The page of a report: what was gathered from records, rendered by the templates beside (needs the extra `report`).

Text in records is anybody's, so the templates escape everything; nothing here writes HTML. The same records give the
same bytes: the page does not say when it was made.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import count
from statistics import fmean
from typing import Any

from perdure.errors import PerdureError, install_hint
from perdure.ops.statistics import Group, without_file
from perdure.report import figures
from perdure.report.differing import differing_tables
from perdure.report.paper_figures import PaperFigure
from perdure.report.probes import Result, renderer
from perdure.report.style import LOOKS, ink, on_dark, shade
from perdure.report.svg import inline_svg
from perdure.report.table import Table, as_text, leading_number
from perdure.report.tables import duration, matrix, numbered_matrix

Record = Mapping[str, Any]
DARK_PAGE = (22, 24, 28)
TOGETHER = 12  # runs that one picture can tell apart
LABEL = 39  # letters that have room beside a picture
OPEN = 3  # runs whose sections are open from the beginning
DARK_SPAN = 0.75  # of the shades, so that what is good does not glare on a dark page


@dataclass(frozen=True)
class FoundByProbe:
    """What a probe found of a run, or of several together."""

    name: str  # of the probe
    key: str  # of its files
    result: Result
    command: str


@dataclass(frozen=True)
class ReportedRun:
    """A finished run."""

    label: str
    record: Record  # with its path
    command: str
    epochs: Sequence[Record] = ()
    probes: Sequence[FoundByProbe] = ()

    @property
    def digest(self) -> str:
        return str(self.record.get("path", "")).rpartition("/")[2]


@dataclass(frozen=True)
class Report:
    """All that a report shows, gathered from records; made into text by `html` and `text`."""

    title: str
    command: str  # that makes what all runs are compared by
    about: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    tables: Mapping[str, Sequence[Table]] = field(default_factory=dict)
    groups: Sequence[Group] = ()
    runs: Sequence[ReportedRun] = ()
    together: Sequence[FoundByProbe] = ()  # by probes that measure several runs at once
    figures: Sequence[PaperFigure] = ()  # that the study asks for
    probe_command: Callable[[FoundByProbe, Sequence[str]], str] = lambda found, _: found.command
    made_by: str = ""  # the version of what makes it

    def text(self, form: str) -> str:
        """Its tables as Markdown, LaTeX or CSV."""
        parts: list[Table | str] = [table for some in self.tables.values() for table in some]
        parts += [] if form == "csv" else self.notes
        parts += [table for table in differing_tables(self.runs_by_label()) if table is not None]
        for run in self.runs:
            parts.append(_titled(run))
            parts += [part for found in run.probes for part in _probe_tables(found.name, [found.result])]
        return as_text(parts, form)

    def html(self, before: bytes = b"") -> bytes:
        """The page. Drawing takes time: where the page as it was `before` shows the same, it is returned."""
        made_of = self._fingerprint()
        return before if made_of.encode() in before[:1000] else _render(self, made_of)

    def _fingerprint(self) -> str:
        """Of everything that it shows."""
        about = [self.title, self.command, self.about, self.made_by, dict(self.facts), self.warnings]
        runs = [[run.label, run.command, dict(run.record)] for run in self.runs]
        shared = [[found.key, dict(found.result.figures)] for found in self.together]
        drawn = [figure.name for figure in self.figures]
        content = json.dumps([about, runs, shared, drawn, self.text("markdown")], sort_keys=True)
        return sha256(content.encode()).hexdigest()

    def runs_by_label(self) -> dict[str, list[Record]]:
        """What stands side by side: runs where they are few, else groups of runs alike but for their seed."""
        if len(self.runs) <= 4:
            return {run.label: [run.record] for run in self.runs}
        several = len({group.benchmark for group in self.groups}) > 1
        return {
            f"{group.name} on {without_file(group.benchmark)}" if several else group.name: done
            for group in self.groups
            if (done := figures.with_matrix(group))
        }


# --- what the templates get ---


@dataclass(frozen=True)
class ShownPicture:
    """A figure with its caption, and the command that makes it."""

    caption: str
    command: str
    svg: str = ""
    png: str = ""  # as a data URL, where an SVG would be too large

    @property
    def card(self) -> bool:
        """Whether it needs a white ground: images in it do not follow the page."""
        return bool(self.png) or "<image" in self.svg

    @property
    def wide(self) -> bool:
        """Whether it stands alone in its row."""
        return bool(self.png) or 'class="wide"' in self.svg[:500]


@dataclass(frozen=True)
class ShownTable:
    """A table with what the reader may copy."""

    table: Table
    sortable: bool = True
    csv: str = ""
    latex: str = ""


@dataclass(frozen=True)
class ShownProbe:
    name: str
    tables: Sequence[ShownTable]
    notes: Sequence[str]
    picture: ShownPicture | None
    command: str


@dataclass(frozen=True)
class ShownRun:
    anchor: str
    run: ReportedRun
    heading: str
    facts: Mapping[str, str]
    specification: ShownTable
    matrix: ShownTable
    pictures: Sequence[ShownPicture]
    probes: Sequence[ShownProbe]


def _render(report: Report, made_of: str) -> bytes:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise PerdureError(f"a report needs jinja2: {install_hint('report')}") from None
    blocks: dict[str, Any] = {
        "trim_blocks": True,
        "lstrip_blocks": True,
    }  # lines with nothing but a tag leave no empty line
    templates = PackageLoader("perdure.report")
    environment = Environment(loader=templates, autoescape=True, undefined=StrictUndefined, **blocks)
    environment.filters |= {"level": _level, "sort_value": _sort_value, "typeset": _typeset}
    style = environment.get_template("report.css").render(colors=_colors(), shades=_shades())
    script = environment.get_template("report.js").render()
    draw, matrices = _Drawing(), _mean_matrices(report)
    context = {
        "report": report,
        "made_of": made_of,
        "style": Markup(style),
        "script": Markup(script),
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "tables": {name: [_shown(table) for table in some] for name, some in report.tables.items()},
        "matrices": matrices,
        "legends": list(dict.fromkeys(note for shown in matrices for note in shown.table.notes)),
        "pictures": list(_compared(report, draw)),
        "probes": list(_probes_together(report, draw)),
        "differing": [
            table and ShownTable(table, sortable=False) for table in differing_tables(report.runs_by_label())
        ],
        "runs": [_shown_run(run, place, report, draw) for place, run in enumerate(report.runs)],
        "opened": len(report.runs) <= OPEN,
        "markup": Markup,
    }
    return environment.get_template("report.html").render(context).encode()


def _hash(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode()


def _colors() -> list[tuple[str, str, str]]:
    """The colors of methods, and as they are on the dark page."""
    return [(name, color, on_dark(color, DARK_PAGE)) for name, (color, _, _) in LOOKS.items()]


def _shades() -> list[tuple[int, str, str, str, str]]:
    """For each percent: ground and ink on the light page, and on the dark one, where more is brighter."""
    found = []
    for percent in range(101):
        light, dark = shade(percent), shade(100 - DARK_SPAN * percent)
        found.append((percent, _css(light), ink(light), _css(dark), ink(dark)))
    return found


def _css(color: tuple[int, int, int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in color)


def _level(percent: float) -> int:
    """The shade of a cell."""
    return round(max(0.0, min(percent, 100.0)))


def _sort_value(text: str) -> str:
    """What a cell is sorted by, where it is a number."""
    value = leading_number(text)
    return "" if value is None else f"{value:g}"


def _typeset(text: str) -> str:
    """With true minus signs.

    >>> _typeset("-0.56 ± 1.92 [-1.00, +2.0], mini-batch 2-4")
    '−0.56 ± 1.92 [−1.00, +2.0], mini-batch 2-4'
    """
    return re.sub(r"(?<![\w.])-(?=\d)", "−", text)


class _Drawing:
    """Draws pictures; each has ids of its own."""

    def __init__(self) -> None:
        self.numbers = count(1)

    def __call__(self, make: Callable[[figures.Output], bytes], caption: str, command: str) -> ShownPicture:
        drawn = make(partial(inline_svg, prefix=f"f{next(self.numbers)}-", title=caption))
        if drawn.startswith(b"<svg"):
            return ShownPicture(caption, command, svg=drawn.decode())
        return ShownPicture(caption, command, png=f"data:image/png;base64,{b64encode(drawn).decode()}")


# --- all runs ---


def _compared(report: Report, draw: _Drawing) -> Iterator[ShownPicture]:
    """Methods side by side."""
    done = [group for group in report.groups if figures.with_matrix(group)]
    labels = _fitting([group.label for group in done])
    done = [replace(group, label=label) for group, label in zip(done, labels, strict=True)]
    if len(report.runs) < 2:
        return
    seeds = "mean over seeds" if any(len(figures.with_matrix(group)) > 1 for group in done) else "one seed each"
    kinds: list[tuple[Callable[..., bytes], str]] = [
        (figures.comparison, f"ACC and BWT of each method, {seeds}; small marks are single seeds."),
        (figures.accuracy_over_tasks, f"Mean accuracy over the tasks seen, after each task that was learned, {seeds}."),
        (figures.new_task_accuracy, f"Accuracy on each task just after it was learned, {seeds}."),
        (figures.costs, f"Time of training and memory that a method keeps besides the network, {seeds}."),
    ]
    for make, caption in kinds:
        yield draw(partial(make, done), caption, report.command)
    for shown in report.figures:
        yield draw(partial(_paper_figure, shown), f"{shown.kind.caption}.", report.command)


def _paper_figure(shown: PaperFigure, output: figures.Output) -> bytes:
    return output(shown.draw)


def _mean_matrices(report: Report) -> list[ShownTable]:
    """The accuracy matrix of each method, mean over its seeds; none where a run's own says the same."""
    found = []
    for group in report.groups:
        runs = figures.with_matrix(group)
        shapes = {tuple(map(len, run["accuracy_matrix"])) for run in runs}
        if len(report.runs) < 2 or len(shapes) != 1:
            continue
        matrices = [run["accuracy_matrix"] for run in runs]
        mean = [[fmean(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]
        seeds = f"mean of {len(runs)} seeds" if len(runs) > 1 else f"seed {runs[0]['seed']}"
        name = f"{group.name} on {without_file(group.benchmark)}, {seeds}"
        table = numbered_matrix({**runs[0], "accuracy_matrix": mean})
        found.append(ShownTable(replace(table, title=name), sortable=False))
    return found


def _probes_together(report: Report, draw: _Drawing) -> Iterator[ShownProbe]:
    """What was measured of two or more runs, side by side; of very many, the first seed of each method."""
    by_key: dict[str, list[FoundByProbe]] = {}
    for run in report.runs:
        for found in run.probes:
            by_key.setdefault(found.key, []).append(found)
    digests = {id(found): run.digest for run in report.runs for found in run.probes}
    for alike in by_key.values():
        if len(alike) < 2:
            continue
        shown, left_out = _few(alike), ""
        if len(shown) < len(alike):
            left_out = f" Of {len(alike)} runs, {len(shown)} are shown: the first of each method."
        command = report.probe_command(shown[0], [digests[id(one)] for one in shown])
        yield _shown_probe(alike[0].name, [one.result for one in shown], command, left_out, draw)
    for found in report.together:
        yield _shown_probe(found.name, [found.result], found.command, "", draw)


def _few(alike: Sequence[FoundByProbe]) -> list[FoundByProbe]:
    """No more than a picture can tell apart."""
    if len(alike) <= TOGETHER:
        return list(alike)
    first: dict[str, FoundByProbe] = {}
    for one in alike:
        first.setdefault(re.sub(r", seed \d+.*", "", one.result.label), one)
    return list(first.values())[:TOGETHER]


def _shown_probe(name: str, results: Sequence[Result], command: str, more: str, draw: _Drawing) -> ShownProbe:
    parts = _probe_tables(name, results)
    own = renderer(name)
    picture = None
    if own is not None:
        of = results[0].label if len(results) == 1 else f"{len(results)} runs"
        about = PROBES.get(name, f"What the probe {without_file(name)} found")
        labels = _fitting([result.label for result in results])
        drawn = [replace(result, label=label) for result, label in zip(results, labels, strict=True)]
        picture = draw(lambda output: output(lambda figure: own.draw(figure, drawn)), f"{about}: {of}.{more}", command)
    show = _shown if len(results) > 1 else ShownTable  # those of all runs are what is copied
    tables = [show(part) for part in parts if isinstance(part, Table)]
    return ShownProbe(without_file(name), tables, [part for part in parts if isinstance(part, str)], picture, command)


def _fitting(labels: Sequence[str]) -> list[str]:
    """Labels that leave room for the picture beside them: runs may differ in many values.

    >>> _fitting(["gpm", "gpm (" + 20 * "a=1, " + ")", "gpm (" + 20 * "a=1, " + "b=2)"])
    ['gpm', 'gpm (a=1, a=1, a=1, a=1, a=1, a=1, a… 2', 'gpm (a=1, a=1, a=1, a=1, a=1, a=1, a… 3']
    """
    return [label if len(label) <= LABEL else f"{label[: LABEL - 3]}… {place}" for place, label in enumerate(labels, 1)]


PROBES = {
    **{name: f"Accuracy against the strength of {attack}" for name, attack in {
        "fgsm": "FGSM", "pgd": "PGD", "apgd": "APGD", "apgd-t": "targeted APGD", "fab": "FAB",
        "square": "the Square attack", "noise": "random noise"}.items()},
    "flatness": "How far the loss rises around the weights, task by task",
    "curvature": "How the loss is bent around the weights, task by task",
    "landscape": "Loss along random lines through the weights, task by task",
    "plane": "Loss in a plane through the weights",
    "masking": "Accuracy against strength, and the checks for masked gradients",
    "transfer": "Accuracy under attacks carried over from one run to another",
    "corruption": "Accuracy on corrupted images",
    "outliers": "Loss and gradients of outliers, beside the images that they stand for",
    "geometry": "Features on the circle, and their density over the angle",
    "capacity": "Input directions that each layer has used, task after task",
    "calibration": "Accuracy against confidence",
    "over-time": "The accuracy matrix, clean and under attack",
    "smoothing": "Certified accuracy against the radius",
}  # fmt: skip
"""What the picture of a probe shows."""


def _probe_tables(name: str, results: Sequence[Result]) -> Sequence[Table | str]:
    own = renderer(name)
    if own is not None:
        return own.tables(results)
    from perdure.report.render import table

    rows = [[result.label, *(f"{value:.4g}" for value in result.headline.values())] for result in results]
    return [table(without_file(name), "run", results[0].headline, rows)]


def _shown(table: Table) -> ShownTable:
    return ShownTable(table, csv=as_text([table], "csv"), latex=as_text([table], "latex"))


# --- one run ---


def _titled(run: ReportedRun) -> Table:
    record = run.record
    name = f"{run.label}, on {without_file(record['benchmark'])}: accuracy on each task after each was learned"
    return replace(matrix(record), title=name)


def _shown_run(run: ReportedRun, place: int, report: Report, draw: _Drawing) -> ShownRun:
    from perdure.report.differing import specification

    record = run.record
    memory = sum(record["memory_bytes"].values()) / 1e6
    facts = {
        "ACC": f"{record['acc']:.1f} %",
        "BWT": "–" if record["bwt"] is None else f"{record['bwt']:+.1f} points".replace("-", "−"),
        "training": duration(record["seconds"]),
        "memory": f"{memory:,.2f} MB besides the network" if memory else "nothing besides the network",
        "finished": str(record.get("finished") or "not said"),
        "record": str(record.get("path", "")),
        "hash": run.digest,
    }
    alone = len({one.record["benchmark"] for one in report.runs}) == 1
    heading = run.label if alone else f"{run.label}, on {without_file(record['benchmark'])}"
    caption = "Left, accuracy of each task after each that was learned"
    caption += "; right, validation accuracy and loss over epochs." if run.epochs else "."
    return ShownRun(
        anchor=f"run-{place + 1}",
        run=run,
        heading=heading,
        facts=facts,
        specification=ShownTable(specification(record), sortable=False),
        matrix=ShownTable(_titled(run), sortable=False),
        pictures=[draw(partial(figures.curves, record, run.epochs), caption, run.command)],
        probes=[_shown_probe(found.name, [found.result], found.command, "", draw) for found in run.probes],
    )
