"""A table as such, and the ways to show it: on the terminal, in Markdown, LaTeX and CSV."""

import csv
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import StringIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from perdure.errors import UnknownName
from perdure.report.style import ink, shade

FORMATS = ("table", "markdown", "latex", "csv")
LONG = 16  # characters of a name that is not broken


@dataclass(frozen=True)
class Cell:
    """What stands in a table."""

    text: str
    bold: bool = False
    percent: float | None = None  # gives it a ground: the better, the darker
    color: str = ""  # of the text, on the terminal


@dataclass(frozen=True)
class Column:
    """What stands above cells, and on which side they stand."""

    name: str
    right: bool = True  # figures to the right, names to the left


@dataclass(frozen=True)
class Table:
    """Rows of cells in groups, with a rule between groups. Prints itself on a rich console, whatever its width: what is
    too wide is shown in its narrower form, or in parts. A figure is never cut."""

    title: str
    columns: Sequence[Column]
    groups: Sequence[Sequence[Sequence[Cell]]]
    framed: bool = True
    merged: bool = False  # the first column shows a name once, though each row has it
    narrower: "Table | None" = None
    notes: Sequence[str] = ()  # below

    @property
    def rows(self) -> list[Sequence[Cell]]:
        return [row for rows in self.groups for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _fitted(self, options.max_width)


def table(
    title: str,
    columns: Iterable[str | Column],
    *groups: Iterable[Iterable[str | Cell]],
    framed: bool = True,
    merged: bool = False,
    notes: Sequence[str] = (),
) -> Table:
    """A table whose first column, if not told otherwise, has names and the others figures."""
    found = [Column(one, right=place > 0) if isinstance(one, str) else one for place, one in enumerate(columns)]
    rows = [[[Cell(one) if isinstance(one, str) else one for one in row] for row in rows] for rows in groups]
    return Table(title, found, rows, framed, merged, notes=notes)


def names(*columns: str) -> list[Column]:
    """Columns of names."""
    return [Column(name, right=False) for name in columns]


def with_best(found: Table, *columns: str) -> Table:
    """The same with the highest figure of each of these columns in bold, wherever there are two or more to compare."""
    highest: dict[int, float] = {}
    for place, column in enumerate(found.columns):
        values = [value for row in found.rows if (value := leading_number(row[place].text)) is not None]
        if column.name in columns and len(values) > 1:
            highest[place] = max(values)

    def marked(row: Sequence[Cell]) -> list[Cell]:
        best = [leading_number(cell.text) == highest.get(place, math.nan) for place, cell in enumerate(row)]
        return [replace(cell, bold=cell.bold or one) for cell, one in zip(row, best, strict=True)]

    return replace(found, groups=[[marked(row) for row in rows] for rows in found.groups])


def leading_number(text: str) -> float | None:
    """
    >>> leading_number("−2.5 ± 0.1"), leading_number("–")
    (-2.5, None)
    """
    found = re.match(r"[+−-]?\d+(\.\d+)?", text)
    return float(found[0].replace("−", "-")) if found else None


# --- all ways ---


def as_text(parts: Iterable[Table | str], form: str) -> str:
    """Tables, and lines that say how to read them, as Markdown, LaTeX or CSV, which has tables only."""
    shown = [WRITERS[form](one) if isinstance(one, Table) else _reading(one, form) for one in parts]
    return "\n".join(text for text in shown if text)


def _reading(line: str, form: str) -> str:
    """A line that says how to read a table; CSV has no place for it."""
    return {"markdown": f"{_markdown_text(line)}\n", "latex": f"% {line}\n", "csv": ""}[form]


def check_format(form: str) -> str:
    """The name of a format, if it is one."""
    if form not in FORMATS:
        raise UnknownName("format", form, FORMATS)
    return form


# --- the terminal ---


def _fitted(found: Table, width: int) -> Iterator[RichTable | Text]:
    """The widest form that fits."""
    form: Table | None = found
    while form is not None:
        for frame, broken in _forms(form):
            if (widths := _widths(form, width, frame, broken)) is not None:
                yield from _printed(form, widths, frame, broken)
                yield from _notes(form, width)
                return
        last, form = form, form.narrower
    yield from _in_parts(last, width)


def _forms(found: Table) -> list[tuple[int, bool]]:
    """What is between columns (0: a frame, else so many blanks), and whether figures may go on two lines."""
    whole, broken = [(2, False), (1, False)], [(2, True), (1, True)]
    if found.narrower is not None:
        broken = []
    return [(0, False), *whole, *broken] if found.framed else [*whole, *broken]


def _widths(found: Table, width: int, frame: int, broken: bool) -> list[int] | None:
    """Of each column; None where it does not fit. Figures need what they need, names share what is left."""
    columns = list(zip(*([Cell(one.name) for one in found.columns], *found.rows), strict=True))
    least, most = [], []
    for column, (head, *cells) in zip(found.columns, columns, strict=True):
        lines = [line for cell in cells for line in _lines(cell.text, broken and column.right)]
        longest = max(map(cell_len, lines), default=0)
        texts = [head.text] if column.right else [head.text, *lines]
        words = [cell_len(word) for text in texts for word in text.split()]
        if column.right:
            least.append(max([longest, *words]))
            most.append(max(longest, cell_len(head.text)))
        else:
            least.append(min(max(words, default=0), LONG))
            most.append(max(longest, cell_len(head.text)))
    between = 3 * len(least) + 1 if frame == 0 else frame * (len(least) - 1)
    free = width - between - sum(least)
    if free < 0:
        return None
    while free and (growing := [place for place in range(len(least)) if least[place] < most[place]]):
        least[min(growing, key=lambda place: (not found.columns[place].right, least[place]))] += 1
        free -= 1
    return least


def _lines(text: str, broken: bool) -> list[str]:
    """A figure, and on another line what is known of its error."""
    return re.sub(r" (?=[\[(±])", "\n", text).split("\n") if broken else text.split("\n")


def _printed(found: Table, widths: Sequence[int], frame: int, broken: bool) -> Iterator[RichTable | Text]:
    if found.title:
        yield Text(found.title, "table.title")
    head = any(column.name for column in found.columns)
    shown = RichTable(show_header=head)
    if frame:
        shown.box, shown.pad_edge, shown.padding = None, False, (0, frame, 0, 0)
    for column, wide in zip(found.columns, widths, strict=True):
        side = "right" if column.right else "left"
        shown.add_column(Text(column.name), justify=side, width=wide, overflow="fold")  # type: ignore[arg-type]
    for rows in found.groups:
        before = ""
        for row in rows:
            cells = [
                Text("\n".join(_lines(cell.text, broken and column.right)), _look(cell))
                for cell, column in zip(row, found.columns, strict=True)
            ]
            if found.merged and row[0].text == before:
                cells[0] = Text()
            before = row[0].text
            shown.add_row(*cells)
        shown.add_section()
    yield shown


def _notes(found: Table, width: int) -> Iterator[Text]:
    """Wrapped at blanks, but not at those that hold together what belongs together (U+00A0)."""
    for note in found.notes:
        yield Text("\n".join(textwrap.wrap(note, width, break_on_hyphens=False)))


def _look(cell: Cell) -> str:
    words = ["bold"] * cell.bold + [cell.color] * bool(cell.color)
    if cell.percent is not None:
        ground = shade(cell.percent)
        words.append(f"{ink(ground)} on rgb({ground[0]},{ground[1]},{ground[2]})")
    return " ".join(words)


def _in_parts(found: Table, width: int) -> Iterator[RichTable | Text]:
    """As many columns at a time as fit beside the names."""
    first = next((place for place, column in enumerate(found.columns) if column.right), len(found.columns))
    key = list(range(max(1, min(first, len(found.columns) - 1))))
    rest = list(range(len(key), len(found.columns)))
    title = found.title
    while rest:
        count = len(rest)
        while count > 1 and _widths(_some(found, key + rest[:count]), width, 1, True) is None:
            count -= 1
        part = _some(found, key + rest[:count])
        rest = rest[count:]
        widths = _widths(part, width, 1, True) or _widths(part, 10**6, 1, True)
        assert widths is not None
        yield from _printed(replace(part, title=title), widths, 1, True)
        title = ""
    yield from _notes(found, width)


def _some(found: Table, places: Sequence[int]) -> Table:
    """Some columns."""
    groups = [[[row[place] for place in places] for row in rows] for rows in found.groups]
    return replace(found, columns=[found.columns[place] for place in places], groups=groups, narrower=None)


# --- Markdown ---


def _markdown(found: Table) -> str:
    rule = ["--:" if column.right else ":--" for column in found.columns]
    head = [_markdown_text(column.name) for column in found.columns]
    rows = [[_strong(_markdown_text(cell.text), cell.bold) for cell in row] for row in found.rows]
    body = "".join(f"| {' | '.join(row)} |\n" for row in [head, rule, *rows])
    title = f"{_markdown_text(found.title)}\n\n" if found.title else ""
    return title + body + "".join(f"\n{_markdown_text(note)}\n" for note in found.notes)


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\|*<`])", r"\\\1", text).replace("\n", " ")


def _strong(text: str, bold: bool) -> str:
    return f"**{text}**" if bold and text else text


# --- LaTeX ---

SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "<": "$<$",
    ">": "$>$",
    "→": r"$\to$",
    "↓": r"$\downarrow$",
    "∞": r"$\infty$",
    "‖": r"$\|$",
    "∇": r"$\nabla$",
    "Σ": r"$\Sigma$",
    "λ": r"$\lambda$",
    "κ": r"$\kappa$",
    "φ": r"$\varphi$",
    "ε": r"$\varepsilon$",
    "ξ": r"$\xi$",
    "ρ": r"$\rho$",
    "◂": r"$\triangleleft$",
    "–": "--",
    "…": r"\dots{}",
    "\n": " ",
}


def _latex(found: Table) -> str:
    """With the rules of booktabs."""
    columns = "".join("r" if column.right else "l" for column in found.columns)
    head = " & ".join(_latex_text(column.name) for column in found.columns)
    groups = [[_latex_row(row) for row in rows] for rows in found.groups if rows]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_latex_text(found.title)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            *([rf"{head} \\", r"\midrule"] if any(column.name for column in found.columns) else []),
            "\n\\midrule\n".join("\n".join(rows) for rows in groups),
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\footnotesize {_latex_text(note)}" for note in found.notes),
            r"\end{table}",
            "",
        ]
    )


def _latex_row(row: Sequence[Cell]) -> str:
    cells = [(_latex_text(cell.text), cell.bold) for cell in row]
    line = " & ".join(rf"\textbf{{{text}}}" if bold and text else text for text, bold in cells) + r" \\"
    return f"{{}}{line}" if line.startswith("[") else line  # after the row above, LaTeX would take it for a length


def _latex_text(text: str) -> str:
    """
    >>> print(_latex_text("-2.5 ± 0.1 %, [-1.0, +1.0], mix_weight"))
    $-$2.5 $\\pm$ 0.1 \\%, [$-$1.0, +1.0], mix\\_weight
    """
    minus = re.sub(r"(?<![\w.])-(?=\d)", "−", text)
    return "".join(SIGNS.get(sign, sign) for sign in minus)


# --- CSV ---

FIGURE = r"([+−-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)(?: [%s])?"
PARTS = {  # how the figures in a cell are told apart, and what their columns are called
    re.compile(rf"{FIGURE} ± {FIGURE}"): ("", " std"),
    re.compile(rf"{FIGURE} \[{FIGURE}, {FIGURE}\]"): ("", " low", " high"),
    re.compile(rf"{FIGURE} \({FIGURE}–{FIGURE}\)"): ("", " low", " high"),
}


def _csv(found: Table) -> str:
    """Plain numbers; a figure and its error are columns of their own."""
    columns: list[list[str]] = []
    for place, column in enumerate(found.columns):
        texts = [row[place].text for row in found.rows]
        split = next((parts for parts in PARTS.items() if any(parts[0].fullmatch(text) for text in texts)), None)
        if split is None or not column.right:
            columns.append([safe_cell(column.name), *map(_csv_text if column.right else _csv_name, texts)])
            continue
        cells = [_split(text, *split) for text in texts]
        for part, name in enumerate(split[1]):
            columns.append([safe_cell(column.name + name), *(cell[part] for cell in cells)])
    buffer = StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(zip(*columns, strict=True))
    return buffer.getvalue()


def _split(text: str, pattern: re.Pattern[str], parts: Sequence[str]) -> list[str]:
    found = pattern.fullmatch(text)
    figures = list(found.groups()) if found else [text]
    return [*map(_csv_text, figures), *[""] * (len(parts) - len(figures))]


def _csv_text(text: str) -> str:
    """
    >>> [_csv_text(text) for text in ("−2.5", "+1.0", "1,200", "–", "97.0 %", "=1+1", "gpm − ewc")]
    ['-2.5', '1.0', '1200', '', '97.0', "'=1+1", 'gpm − ewc']
    """
    if text == "–":
        return ""
    if found := re.fullmatch(FIGURE, text):
        return found[1].replace("−", "-").replace(",", "").removeprefix("+")
    return safe_cell(text)


def _csv_name(text: str) -> str:
    """A cell of names: -1 is a task's name and no figure."""
    return safe_cell(text) if safe_cell(text) != text else _csv_text(text)


def safe_cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula.

    >>> safe_cell("=1+1"), safe_cell("gpm")
    ("'=1+1", 'gpm')
    """
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


WRITERS: dict[str, Callable[[Table], str]] = {"markdown": _markdown, "latex": _latex, "csv": _csv}
