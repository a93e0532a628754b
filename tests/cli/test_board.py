"""The live table of a study."""

import io

import pytest
from rich.console import Console

from perdure.cli.board import Board, Line

EPOCH = {"lesson": 1, "epoch": 3, "epochs": 10, "loss": 0.5, "accuracy": 81.25, "seconds": 2.0}


def console(terminal: bool, height: int = 20) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, height=height, color_system=None)


def drawn(board: Board) -> str:
    page = console(terminal=False)
    page.print(board.table())
    return page.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_a_line_has_task_epoch_loss_accuracy_and_time_left() -> None:
    board = Board(
        [Line("gpm on six, seed 1", lessons=6), Line("rcl on six, seed 1", lessons=6)], console(terminal=True)
    )
    board.see(1, "started", {})
    board.see(1, "epoch", EPOCH)
    board.see(1, "epoch", {**EPOCH, "epoch": 4, "seconds": 4.0})
    assert board.lines[1].left == (4 * 10 + 5) * 3.0
    rows = drawn(board).splitlines()
    assert rows[0].startswith("1 running, 1 waiting")
    assert " ".join(rows[2].split()) == "rcl on six, seed 1 running 2/6 5/10 0.500 81.2 % ≤ 2 min"
    assert " ".join(rows[3].split()) == "gpm on six, seed 1 waiting"


def test_what_is_measured_of_a_run_is_told() -> None:
    board = Board([Line("gpm on six, seed 1", lessons=6)], console(terminal=False))
    board.see(0, "started", {})
    board.see(0, "probe", {"name": "pgd", "seconds": 90.0})
    assert "measures pgd, about 90 s" in drawn(board)
    assert "measures pgd" in board.console.file.getvalue()  # type: ignore[attr-defined]


def test_what_does_not_fit_is_counted_and_what_goes_on_comes_first() -> None:
    board = Board([Line(f"run {n}", lessons=2) for n in range(30)], console(terminal=True, height=10))
    board.see(25, "started", {})
    board.see(3, "failed", {"error": "too bad"})
    board.see(4, "done", {"record": {"acc": 70.0, "bwt": None}})
    rows = drawn(board).splitlines()
    assert [row.split()[1] for row in rows[2:5]] == ["25", "3", "4"]
    assert "too bad" in rows[3]
    assert "ACC 70.0" in rows[4]
    assert rows[-1].split() == ["and", "24", "more"]


@pytest.mark.parametrize("terminal", [True, False])
def test_epochs_are_lines_only_where_there_is_no_terminal(terminal: bool) -> None:
    page = console(terminal)
    with Board([Line("gpm on six, seed 1", lessons=6)], page) as board:
        board.see(0, "started", {})
        board.see(0, "epoch", EPOCH)
        board.see(0, "lost", {"error": "its process was ended by SIGKILL"})
        assert board.lines[0].state == "waiting"
        board.see(0, "done", {"record": {"acc": 70.0, "bwt": -1.0}})
    said = page.file.getvalue()  # type: ignore[attr-defined]
    assert ("gpm on six, seed 1: task 2, epoch 4: loss 0.500, 81.2 % on validation data" in said) == (not terminal)
    assert "SIGKILL; tried again from its last checkpoint" in said
    assert "gpm on six, seed 1: done, ACC 70.0, BWT -1.0" in said
