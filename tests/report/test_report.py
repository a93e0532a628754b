"""Tables and pictures, from a record alone."""

import itertools
from io import BytesIO, StringIO

from PIL import Image
from rich.console import Console

from perdure.ops.statistics import Group, Interval
from perdure.report.figures import accuracy_matrix, curves
from perdure.report.style import ink, shade
from perdure.report.table import Table
from perdure.report.tables import comparison, differences, duration, matrix, measured, summary

RECORD = {
    "method": "gpm",
    "benchmark": "six",
    "seed": 1,
    "acc": 81.25,
    "bwt": -2.5,
    "learning_accuracy": 82.5,
    "seconds": 12.3,
    "task_names": ["one", "two"],
    "accuracy_matrix": [[75.0], [72.5, 90.0]],
    "probes": {"fgsm": {"strengths": [1 / 255, 2 / 255], "acc": [60.0, 44.4]}},
}
JOINT = {**RECORD, "method": "mtl", "bwt": None, "learning_accuracy": None, "accuracy_matrix": [[72.5, 90.0]]}


def printed(*things: object) -> str:
    console = Console(file=StringIO(), width=120)
    for thing in things:
        console.print(thing)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_tables_say_what_the_record_says() -> None:
    text = printed(comparison([RECORD, JOINT]), matrix(RECORD))
    for figure in ("81.2", "-2.5", "82.5", "60.0", "44.4", "12", "72.5", "90.0", "FGSM 2", "–"):
        assert figure in text


def test_a_record_without_probes_has_no_attack_columns() -> None:
    plain = {name: value for name, value in RECORD.items() if name != "probes"}
    assert "FGSM 1" not in printed(comparison([plain]))


def test_the_picture_is_a_picture() -> None:
    for record in (RECORD, JOINT):
        image = Image.open(BytesIO(accuracy_matrix(record)))
        assert image.format == "PNG"
        assert min(image.size) > 200
        dark, light = image.convert("L").getextrema()
        assert dark < 100 < 200 < light


def test_tables_of_groups_say_what_is_missing() -> None:
    done = Group("gpm", "six", "", ({"seed": 1, "acc": 70.0}, {"seed": 2, "acc": 72.0}, {"seed": 3}))
    lone = Group("ewc", "six", "λ=1", ({"seed": 1, "acc": 60.0, "bwt": 1.0},))
    figures = {"acc": Interval(10.0, None, None, 1), "bwt": None}
    text = " ".join(printed(summary([done, lone], "; a note"), differences([(done, lone, figures)])).split())
    assert "(ddof 1); a note" in text
    assert "gpm │ 2 of 3 │ 71.00 ± 1.41 │ –" in text
    assert "ewc (λ=1) │ 1 │ 60.00 │ +1.00" in text
    assert "gpm − ewc (λ=1) │ 1 │ +10.00 │ –" in text


def test_matrices_of_any_size_fit_any_width() -> None:
    for tasks, width in itertools.product((2, 6, 10, 20, 99), (60, 80, 100, 200)):
        rows = [[100.0 - 7 * ((t + i) % 13) for i in range(t + 1)] for t in range(tasks)]
        names = [f"cifar100-{i}" for i in range(tasks)]
        console = Console(file=StringIO(), width=width)
        console.print(matrix({"method": "gpm", "task_names": names, "accuracy_matrix": rows}))
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        last = [f"{value:.1f}" for value in rows[-1]], [f"{value:.0f}" for value in rows[-1]]
        found = text.split()
        assert any(all(figure in found for figure in figures) for figures in last), (tasks, width)


def test_what_does_not_fit_is_numbered_then_rounded_then_summed_up() -> None:
    rows = [[90.0] * (t + 1) for t in range(20)]
    record = {"method": "gpm", "task_names": [f"cifar100-{i}" for i in range(20)], "accuracy_matrix": rows}

    def at(width: int) -> str:
        console = Console(file=StringIO(), width=width)
        console.print(matrix(record))
        return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    assert "cifar100-0  cifar100-1" in at(300)
    assert "tasks: 1\u00a0cifar100-0, 2\u00a0cifar100-1" in at(200)
    assert "90.0" in at(200)
    assert "90.0" not in at(80)
    assert "forgotten" in at(60)


def test_the_narrowest_form_has_the_first_the_last_and_what_is_gone_of_the_best() -> None:
    rows = [[70.0], [90.0, 60.0], [80.0, 50.0, 40.0]]
    found: Table | None = matrix({"method": "gpm", "task_names": ["a", "b", "c"], "accuracy_matrix": rows})
    while found is not None and found.narrower is not None:
        found = found.narrower
    assert found is not None
    assert [[cell.text for cell in row] for row in found.rows] == [
        ["1", "a", "70.0", "80.0", "10.0"],  # it was 90 in between
        ["2", "b", "60.0", "50.0", "10.0"],
        ["3", "c", "40.0", "40.0", "0.0"],
        ["", "mean", "56.7", "56.7", "6.7"],
    ]


def test_figures_have_as_many_digits_as_their_size_needs() -> None:
    values = {"a": 1000.0, "b": 999.9, "c": 10.0, "d": 9.99, "e": 1.0, "f": 0.999}
    groups = [Group("gpm", where, "", ({"seed": 1, **values},)) for where in ("six", "five")]  # which keep rows as rows
    assert [cell.text for cell in measured(groups, list(values)).rows[0]][2:] == [
        "1000",
        "999.9",
        "10.0",
        "9.99",
        "1.00",
        "0.999",
    ]


def test_what_is_measured_stands_upright_unless_figures_are_more_than_methods() -> None:
    groups = [Group(method, "six", "", ({"seed": 1, "x": 2.0, "y": 3.0},)) for method in ("gpm", "rcl", "ewc")]
    upright, turned = measured(groups, ["x", "y"]), measured(groups[:1], ["x", "y"])
    assert [column.name for column in upright.columns] == ["method", "x", "y"]
    assert [column.name for column in turned.columns] == ["figure", "gpm"]
    assert [[cell.text for cell in row] for row in turned.rows] == [["x", "2.00"], ["y", "3.00"]]


def test_robust_figures_are_better_the_higher_and_others_are_not_judged() -> None:
    figures = {"robust ACC": 50.0, "noise 4/255": 60.0, "ECE": 5.0}
    groups = [
        Group(method, "six", "", ({"seed": 1, **{name: value + more for name, value in figures.items()}},))
        for method, more in (("gpm", 0.0), ("rcl", 1.0), ("ewc", 0.5))
    ]
    found = measured(groups, list(figures))
    assert [[cell.bold for cell in row] for row in found.rows] == [[False] * 4, [False, True, True, False], [False] * 4]


def test_a_difference_is_over_as_many_seeds_as_its_longer_figure_has() -> None:
    one, other = (Group(method, "six", "", ()) for method in ("gpm", "ewc"))
    figures = {"acc": Interval(1.0, 0.5, 1.5, 3), "bwt": Interval(2.0, 1.0, 3.0, 2)}
    ((_, name, pairs, acc, bwt),) = [[cell.text for cell in row] for row in differences([(one, other, figures)]).rows]
    assert (name, pairs, acc, bwt) == ("gpm − ewc", "3", "+1.00 [+0.50, +1.50]", "+2.00 [+1.00, +3.00]")


def test_durations_change_their_unit_where_numbers_grow_long() -> None:
    seconds = (9.94, 10, 119, 120, 7199, 7200, 72 * 3600 - 1, 72 * 3600)
    assert [duration(second) for second in seconds] == [
        "9.9 s",
        "10 s",
        "119 s",
        "2 min",
        "120 min",
        "2.0 h",
        "72.0 h",
        "3.0 days",
    ]


def test_better_is_darker_and_can_be_read() -> None:
    cells = [cell for row in matrix(RECORD).rows for cell in row if cell.percent is not None]
    grounds = [sum(shade(cell.percent or 0)) for cell in sorted(cells, key=lambda cell: cell.percent or 0)]
    assert grounds == sorted(grounds, reverse=True)
    assert [ink(shade(percent)) for percent in (0, 40, 80, 100)] == ["black", "black", "white", "white"]
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system="truecolor")
    console.print(matrix(RECORD))
    red, green, blue = shade(90.0)
    assert f"48;2;{red};{green};{blue}m" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_best_is_bold_where_methods_are_compared() -> None:
    def bold(table: Table) -> list[str]:
        return [cell.text for row in table.rows for cell in row if cell.bold]

    other = {**RECORD, "method": "rcl", "acc": 83.0, "bwt": -4.0, "seconds": 1.0}
    assert bold(comparison([RECORD, other])) == ["-2.5", "60.0", "44.4", "83.0", "60.0", "44.4"]
    assert bold(comparison([RECORD])) == []
    groups = [
        Group(method, where, "", ({"seed": 1, "acc": acc, "FGSM 1/255": acc - 20, "NLL": 1.0},))
        for where in ("six", "five")
        for method, acc in (("gpm", 70.0), ("rcl", 72.0))
    ]
    assert bold(summary(groups)) == ["72.00", "72.00"]
    assert bold(measured(groups[:2], ["FGSM 1/255", "NLL"])) == ["52.0"]


def test_curves_are_drawn_however_many_tasks_there_are() -> None:
    for tasks in (2, 30):
        rows = [[50.0] * (t + 1) for t in range(tasks)]
        record = {**RECORD, "task_names": [str(t) for t in range(tasks)], "accuracy_matrix": rows}
        epochs = [{"lesson": t, "valid": {"accuracy": 50.0, "loss": 1.0}} for t in range(tasks) for _ in range(2)]
        with_epochs, without = (Image.open(BytesIO(curves(record, some))) for some in (epochs, []))
        assert with_epochs.size[0] > without.size[0] > 600
    assert Image.open(BytesIO(curves(JOINT, []))).format == "PNG"
