"""The progress of a study on a terminal, and elsewhere."""

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

EPOCHS = spec("rcl", "six").plan.epochs
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


def test_a_bar_for_each_run_that_is_running() -> None:
    with begun(console(terminal=True), ("gpm", 1), ("rcl", 1)) as progress:
        happens(progress, 1, "started")
        happens(progress, 1, "epoch", **EPOCH)
        every, gpm, rcl = progress.bars.tasks
        assert (every.total, every.completed, gpm.visible, rcl.visible) == (2, 0, False, True)
        assert (rcl.description, rcl.total, rcl.completed) == ("rcl on six, seed 1", 6 * EPOCHS, 10 + 4)
        assert rcl.fields["note"] == "task 2, epoch 4: loss 0.500, 81.2 % on validation data"
        happens(progress, 1, "probe", name="pgd", seconds=90.0)
        assert rcl.fields["note"] == "measures pgd, about 90 s"
        happens(progress, 1, "lost", error="gone")
        assert (every.completed, rcl.visible) == (0, False)
        happens(progress, 1, "started")
        assert (rcl.visible, rcl.completed) == (True, 0)
        happens(progress, 1, "done", record={"acc": 70.0, "bwt": None})
        happens(progress, 0, "failed", error="too bad")
        assert (every.completed, rcl.visible, gpm.visible) == (2, False, False)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_is_a_line_at_its_start_only_where_there_is_no_terminal(terminal: bool) -> None:
    page = console(terminal)
    with begun(page, ("gpm", 1), ("ewc", 2)) as progress:
        happens(progress, 0, "started")
        happens(progress, 0, "epoch", **EPOCH)
        happens(progress, 0, "warning", text="mind [this]")
        happens(progress, 0, "lost", error="its process was ended by SIGKILL")
        happens(progress, 0, "done", record={"acc": 70.0, "bwt": -1.0})
        happens(progress, 1, "failed", error="too bad")
    lines = printed(page)
    assert "study smoke: 2 runs, 0 done already, 2 to do; 1 at a time, 1 thread each" in lines
    assert ("gpm on six, seed 1: started\n" in lines) == (not terminal)
    assert terminal or "epoch 4" not in lines  # a line per epoch would bury the others
    assert "gpm on six, seed 1: warning: mind [this]" in lines
    assert "SIGKILL; tried again from its last checkpoint" in lines
    assert "gpm on six, seed 1: done, ACC 70.0, BWT -1.0" in lines
    assert "ewc on six, seed 2: failed: too bad" in lines
