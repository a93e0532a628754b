"""The parts that tables and pictures are made of."""

from io import StringIO

from matplotlib.figure import Figure
from rich.console import Console

from perdure.report import render
from perdure.report.probes import RENDERERS, Result, renderer

ONE = Result("one", {}, {"attack": "PGD", "clean": {"acc": 80.04, "interval": [70.0, 90.0]}, "kept": None}, {})
OTHER = Result("other", {}, {"attack": "FGSM", "clean": {"acc": 60.0, "interval": [50.0, 50.0]}, "kept": -2.0}, {})
COLUMNS = [("clean", render.cell("clean.acc", interval="clean.interval")), ("kept", render.cell("kept", "+.2f"))]


def printed(*things: object) -> list[list[str]]:
    """The cells of tables, row by row; rules are one cell."""
    console = Console(file=StringIO(), width=100)
    console.print(*things)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return [[cell.strip() for cell in line.strip("│┃ ").replace("┃", "│").split("│")] for line in lines]


def test_columns_are_read_off_the_figures_of_a_row() -> None:
    rows = printed(render.by_run("title", COLUMNS, [ONE, OTHER]))
    assert ["run", "clean", "kept"] in rows
    assert ["one", "80.0 (70–90)", "–"] in rows
    assert ["other", "60.0 (50)", "−2.00"] in rows


def test_groups_of_rows_have_a_rule_between() -> None:
    rows = printed(render.table("title", "a", ["b"], [["1", "2"], ["3", "4"]], [["5", "6"]]))
    place = rows.index(["3", "4"])
    assert rows[place + 1][0].startswith("├")
    assert rows[place + 2] == ["5", "6"]
    assert not rows[place - 1][0].startswith("├")


def test_one_result_is_shown_by_task_and_several_together() -> None:
    tasks = [{"name": "first", "ece": 1.0}, {"name": "second", "ece": 3.0}]
    result = Result("one", {}, {"tasks": tasks, "together": {"ece": 2.0}}, {})
    columns = [("ECE", render.cell("ece"))]
    alone = printed(render.tasks_and_all([result], "bins", columns))
    assert [row for row in alone if len(row) == 2][1:] == [["first", "1.0"], ["second", "3.0"], ["all together", "2.0"]]
    both = printed(render.tasks_and_all([result, result], "bins", columns))
    assert both.count(["one", "2.0"]) == 2


def test_runs_that_do_not_fit_go_to_another_table() -> None:
    columns = [(f"run {n}", {"row": str(n), f"only {n}": "x"}) for n in range(render.SIDE_BY_SIDE + 1)]
    first, second = render.side_by_side("title", "name", columns)
    assert ["row", *"01234"] in printed(first)
    assert ["row", "5"] in printed(second)
    assert ["only 0", "–"] in printed(second)


def test_values_are_joined_once_each() -> None:
    assert render.joined([ONE, OTHER, ONE], "attack") == "PGD and FGSM"
    assert render.joined([ONE, OTHER], "clean.acc", "; ") == "80.04; 60.0"


def test_lines_differ_in_grey_and_are_named_at_their_ends() -> None:
    axes = Figure().subplots()
    render.lines(axes, [("up", [0, 1], [0, 1]), ("down", [0, 1], [1, 0.98])], linewidth=2)
    render.label_ends(axes)
    assert {text.get_text() for text in axes.texts} == {"up", "down"}
    heights = sorted(text.get_position()[1] for text in axes.texts)
    assert heights[1] - heights[0] > 0.02  # moved apart, though both end at the top
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.lines}) == 2
    assert {line.get_linewidth() for line in axes.lines} == {2}


def test_a_heat_map_writes_its_figures_and_leaves_missing_cells_empty() -> None:
    cells = render.heat_map(Figure().subplots(), [[90.0], [50.0, 10.0]])
    assert [[cell.get_text() for cell in row] for row in cells] == [["90.0"], ["50.0", "10.0"]]
    assert cells[0][0].get_color() == "white"
    assert cells[1][1].get_color() == "black"


def test_every_renderer_is_there_and_foreign_probes_have_none() -> None:
    assert all(hasattr(renderer(name), "tables") and hasattr(renderer(name), "draw") for name in RENDERERS)
    assert renderer("of another package") is None
