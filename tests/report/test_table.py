"""One table, four formats, any width."""

import csv
from io import StringIO

import pytest
from rich.console import Console

from perdure.errors import UnknownName
from perdure.report.table import Cell, Column, Table, as_text, check_format, names, table, with_best

FOUND = table(
    "paired, percent",
    [*names("method"), *map(Column, ("n", "ACC", "BWT", "100 %"))],
    [["gpm_2 & more", "3", Cell("71.00 ± 1.41", bold=True), "−2.50 [−3.00, +1.00]", "–"]],
    [["=HYPERLINK(1)", "2 of 3", "60.00", "+1.00", "1,200"]],
    notes=["read | it"],
)


def at(width: int, found: Table) -> list[str]:
    console = Console(file=StringIO(), width=width)
    console.print(found)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_csv_has_plain_numbers_and_no_formulas() -> None:
    rows = list(csv.reader(StringIO(as_text([FOUND, "how to read it"], "csv"))))
    assert rows == [
        ["method", "n", "ACC", "ACC std", "BWT", "BWT low", "BWT high", "100 %"],
        ["gpm_2 & more", "3", "71.00", "1.41", "-2.50", "-3.00", "1.00", ""],
        ["'=HYPERLINK(1)", "2 of 3", "60.00", "", "1.00", "", "", "1200"],
    ]


def test_latex_is_escaped_and_has_the_rules_of_booktabs() -> None:
    text = as_text([FOUND, "50 % of it"], "latex")
    assert r"gpm\_2 \& more & 3 & \textbf{71.00 $\pm$ 1.41} & $-$2.50 [$-$3.00, +1.00] & -- \\" in text
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 2, 1]
    assert r"\begin{tabular}{lrrrr}" in text
    assert r"\caption{paired, percent}" in text
    assert "% 50 % of it" in text


def test_markdown_is_escaped_and_aligned() -> None:
    lines = as_text([FOUND, "how to read it"], "markdown").splitlines()
    assert lines[2:4] == ["| method | n | ACC | BWT | 100 % |", "| :-- | --: | --: | --: | --: |"]
    assert "| gpm_2 & more | 3 | **71.00 ± 1.41** | −2.50 [−3.00, +1.00] | – |" in lines
    assert r"read \| it" in lines
    assert lines[-1] == "how to read it"


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(UnknownName, match="did you mean latex"):
        check_format("latx")


@pytest.mark.parametrize("width", [36, 40, 60, 80, 100, 200])
def test_figures_are_whole_at_any_width(width: int) -> None:
    lines = at(width, FOUND)
    assert max(map(len, lines)) <= width
    text = " ".join(lines)
    for figure in ("71.00", "1.41", "[−3.00, +1.00]", "60.00", "1,200"):
        assert figure in text
    assert "…" not in text


def test_wide_tables_come_in_parts_that_repeat_the_names() -> None:
    wide = table("title", ["run", *(f"column{n}" for n in range(12))], [["one", *(f"{n}.123456" for n in range(12))]])
    lines = at(60, wide)
    assert sum(line.startswith("one") for line in lines) > 1
    assert [line for line in lines if line.startswith("title")] == ["title"]
    assert all(f"{n}.123456" in " ".join(lines) for n in range(12))


def test_titles_are_as_wide_as_the_page_and_markup_is_text() -> None:
    title = "a title that is much wider than what stands below it [bold]"
    lines = at(100, table(title, ["a", "b"], [["[red]x", "1"]]))
    assert lines[0] == title
    assert any("[red]x" in line for line in lines)


def test_the_highest_is_bold_ties_included() -> None:
    found = with_best(
        table("", ["run", "ACC", "s"], [["a", "70.0 ± 1.0", "9"], ["b", "70.0", "1"], ["c", "–", "1"]]), "ACC"
    )
    assert [[cell.bold for cell in row] for row in found.rows] == [[False, True, False]] * 2 + [[False] * 3]


def test_a_name_that_each_row_has_is_shown_once() -> None:
    found = table("", ["run", "n"], [["gpm", "1"], ["gpm", "2"]], merged=True)
    assert sum("gpm" in line for line in at(60, found)) == 1
    assert as_text([found], "csv") == "run,n\ngpm,1\ngpm,2\n"
