"""The first hour works as its file and its page say."""

import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perdure import registry
from perdure.cli.main import app

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "first_hour.py"
PAGE = (ROOT / "docs" / "first-hour.md").read_text("utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a copy of the example and nothing else."""
    (tmp_path / "first_hour.py").write_bytes(EXAMPLE.read_bytes())
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield tmp_path
    for kind in registry.KINDS:
        kind._own.clear()
    registry._allowed.clear()
    sys.path[:] = path


@pytest.mark.usefixtures("jobs_here")
def test_the_file_does_all_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run as a program, but in this process; tests/test_own_things.py has one in its own."""
    monkeypatch.setattr(sys, "argv", ["first_hour.py", "--quick"])
    runpy.run_path("first_hour.py", run_name="__main__")
    printed = capsys.readouterr().out
    for words in (
        "| everyday | Anchored | 1 |",
        "loaded: LoadedRun(gpm on first_hour.py:everyday",
        "animals are named right",
    ):
        assert words in printed
    for name, old in (("animals", r"\d+\.\d"), ("clothes", r"\d+\.\d"), ("vehicles", "new")):
        assert re.search(rf"^{name} +{old} +→ +\d+\.\d$", printed, re.MULTILINE)
    (study,) = (folder / "runs/studies").iterdir()
    assert {"summary.tex", "comparison.png", "accuracy.png"} <= {file.name for file in study.iterdir()}
    assert str(study.relative_to(folder) / "summary.tex") in printed
    assert (folder / "runs/four-tasks.png").stat().st_size > 1000
    records = [json.loads(path.read_text()) for path in folder.glob("runs/everyday/*/*/record.json")]
    assert sorted(record["method"] for record in records) == ["finetune", "first_hour.py:Anchored", "gpm"]
    anchored = next(record for record in records if record["method"] == "first_hour.py:Anchored")
    assert anchored["memory_bytes"]["anchor"] > 0


@pytest.mark.thorough
@pytest.mark.usefixtures("folder", "jobs_here")
def test_the_commands_of_the_page_run() -> None:
    """Those that train, with one seed and one epoch of two tasks of few images."""
    blocks = re.findall(r"^```\n(perdure .*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    commands = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    assert {command.split()[1] for command in commands} == {"show", "run", "compare", "probe"}
    small = ["--plan", "epochs=1", "--tasks", "2", "--data", "images=10"]
    for command in commands:
        words = shlex.split(command.replace("--seeds 1,2,3", "--seeds 1"))[1:]
        found = CliRunner().invoke(app, [*words, *(small if words[0] in ("run", "compare") else [])])
        assert found.exit_code == 0, f"{command}\n{found.output}"


def test_the_page_shows_the_file() -> None:
    example = EXAMPLE.read_text("utf-8")
    first = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    for line in first.splitlines():
        assert line.strip() in example


@pytest.mark.filterwarnings("ignore")  # of the trainers
@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
def test_a_trainer_keeps_old_answers(trainer: str) -> None:
    """Where it is installed."""
    pytest.importorskip(trainer, reason=f"{trainer} is not installed")
    own_loop = runpy.run_path(str(ROOT / "examples" / f"own_loop_{trainer}.py"))
    assert own_loop["moved"](protected=True) < own_loop["moved"](protected=False) / 20


def test_a_training_loop_of_ones_own_keeps_old_answers() -> None:
    own_loop = runpy.run_path(str(ROOT / "examples" / "own_loop.py"))
    assert own_loop["moved"](protected=True) < own_loop["moved"](protected=False) / 10


@pytest.mark.thorough
def test_four_months_of_a_deployed_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["four_months.py", "--quick"])
    runpy.run_path(str(ROOT / "examples" / "four_months.py"), run_name="__main__")
    printed = capsys.readouterr().out
    months = re.findall(r"^  2026-(0[789]|10)  (.*)$", printed, re.MULTILINE)
    lost = [float(row.split(" → ")[0]) - float(row.split(" → ")[-1]) for _, row in months]
    forgotten, kept = sum(lost[:4]), sum(lost[4:])
    assert kept < forgotten / 2
    assert "BROKEN" in printed
    assert "in use: revision 5, 2026-07, 2026-08, 2026-09, 2026-10" in printed


def test_a_residual_network_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two months of few images, and the bad one."""
    example = runpy.run_path(str(ROOT / "examples" / "four_months.py"))
    for name in ("2026-09", "2026-10"):
        monkeypatch.delitem(example["MONTHS"], name)
    learner, history = example["live"](tmp_path, example["resnet18"](), "gpm", epochs=1, images=100)
    first, last = history["2026-07"][0], history["2026-07"][-1]
    assert abs(first - last) <= 10
    assert example["bad_month"](learner, images=100).exit_code == 1
    assert [task.name for task in learner.tasks] == ["2026-07", "2026-08"]
