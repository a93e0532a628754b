"""The live table of a study."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from perdure.cli.progress import StudyProgress
from perdure.lab.execute.job import Event, Kind
from perdure.lab.executors import make_executor
from perdure.lab.spec import spec
from perdure.lab.study import StudyPlan, StudyRun
from perdure.lab.study_file import read

EPOCH = {"lesson": 1, "epoch": 3, "epochs": 10, "loss": 0.5, "accuracy": 81.25, "seconds": 2.0}


def console(terminal: bool, height: int = 20) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, height=height, color_system=None)


def printed(page: Console) -> str:
    return page.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def begun(page: Console, *runs: tuple[str, int]) -> StudyProgress:
    """A study with these methods and seeds to do."""
    todo = [StudyRun(spec(method, "six", seed=seed), lessons=6) for method, seed in runs]
    executor, jobs = make_executor()
    progress = StudyProgress(page)
    progress.on_start(StudyPlan(read("smoke"), todo, 1.0, Path("runs"), None, "cpu", "local", executor, jobs, 1))
    return progress


def happens(progress: StudyProgress, number: int, kind: Kind, **facts: Any) -> None:
    progress.on_event(Event(number, kind, facts))


def drawn(progress: StudyProgress) -> list[str]:
    page = console(terminal=False)
    page.print(progress.table())
    return printed(page).splitlines()


def test_a_row_has_task_epoch_loss_accuracy_and_time_left() -> None:
    with begun(console(terminal=True), ("gpm", 1), ("rcl", 1)) as progress:
        happens(progress, 1, "started")
        happens(progress, 1, "epoch", **EPOCH)
        happens(progress, 1, "epoch", **{**EPOCH, "epoch": 4, "seconds": 4.0})
        assert progress.rows[1].seconds_left == (4 * 10 + 5) * 3.0
        rows = drawn(progress)
    assert rows[0].startswith("1 running, 1 waiting")
    assert " ".join(rows[2].split()) == "rcl on six, seed 1 running 2/6 5/10 0.500 81.2 % ≤ 2 min"
    assert " ".join(rows[3].split()) == "gpm on six, seed 1 waiting"


def test_what_is_measured_of_a_run_is_shown() -> None:
    page = console(terminal=False)
    with begun(page, ("gpm", 1)) as progress:
        happens(progress, 0, "started")
        happens(progress, 0, "probe", name="pgd", seconds=90.0)
    assert "measures pgd, about 90 s" in "".join(drawn(progress))
    assert "measures pgd" in printed(page)


def test_what_does_not_fit_is_counted_and_running_ones_come_first() -> None:
    with begun(console(terminal=True, height=10), *(("gpm", seed) for seed in range(30))) as progress:
        happens(progress, 25, "started")
        happens(progress, 3, "failed", error="too bad")
        happens(progress, 4, "done", record={"acc": 70.0, "bwt": None})
        rows = drawn(progress)
    assert [row.split()[4] for row in rows[2:5]] == ["25", "3", "4"]
    assert "too bad" in rows[3]
    assert "ACC 70.0" in rows[4]
    assert rows[-1].split() == ["and", "24", "more"]


@pytest.mark.parametrize("terminal", [True, False])
def test_epochs_are_lines_only_where_there_is_no_terminal(terminal: bool) -> None:
    page = console(terminal)
    with begun(page, ("gpm", 1)) as progress:
        happens(progress, 0, "started")
        happens(progress, 0, "epoch", **EPOCH)
        happens(progress, 0, "lost", error="its process was ended by SIGKILL")
        assert progress.rows[0].state == "waiting"
        happens(progress, 0, "done", record={"acc": 70.0, "bwt": -1.0})
    text = printed(page)
    assert "study smoke: 1 runs, 0 done already, 1 to do; 1 at a time, 1 thread each" in text
    assert ("gpm on six, seed 1: task 2, epoch 4: loss 0.500, 81.2 % on validation data" in text) == (not terminal)
    assert "SIGKILL; tried again from its last checkpoint" in text
    assert "gpm on six, seed 1: done, ACC 70.0, BWT -1.0" in text
