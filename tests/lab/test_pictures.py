"""What there is to see after a run and after a study."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from finished_runs import finish_run

import perdure
from perdure.errors import install_hint
from perdure.lab.probe_run import RunProgress
from perdure.lab.store import run_directory
from perdure.lab.study import StudyResult
from perdure.lab.study_file import read, specs

WISHES: dict[str, Any] = {"tasks": 2, "net": "mlp", "plan": {"epochs": 1}}
GRID = 'methods = ["finetune", "gpm"]\nbenchmarks = ["synthetic"]\nseeds = [1, 2]\ntasks = 2\n'


class Log(RunProgress):
    """What a user is warned of."""

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def run(out: Path, **more: Any) -> dict[str, Any]:
    return perdure.run("gpm", "synthetic", out=out, **WISHES | more)


def is_picture(path: str | Path) -> bool:
    return Path(path).read_bytes().startswith(b"\x89PNG")


def test_a_run_and_its_probes_are_drawn_and_only_what_is_missing_is_drawn_again(tmp_path: Path) -> None:
    record = run(tmp_path, probes=["fgsm"])
    path = Path(record["path"])
    drawn = [path / "matrix.png", path / "curves.png", path / "probes/fgsm.png"]
    assert record["pictures"] == [str(file) for file in drawn]
    assert all(map(is_picture, drawn))
    assert "pictures" not in json.loads((path / "record.json").read_text())
    drawn[0].unlink()
    drawn[1].write_bytes(b"kept")
    again = run(tmp_path, probes=["fgsm"])
    assert again["already_done"]
    assert again["pictures"] == record["pictures"]
    assert is_picture(drawn[0])
    assert drawn[1].read_bytes() == b"kept"


def test_pictures_can_be_left_out(tmp_path: Path) -> None:
    record = run(tmp_path, pictures=False)
    assert record["pictures"] == []
    assert not list(tmp_path.rglob("*.png"))


def test_without_matplotlib_there_is_one_warning_and_all_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    log = Log()
    record = run(tmp_path, probes=["fgsm"], progress=log)
    assert log.warnings == [f"no matrix.png: pictures need matplotlib: {install_hint('report')}"]
    assert record["pictures"] == []
    assert record["probes"]["fgsm"]["headline"]
    study = pretended(tmp_path / "other")
    assert [file.suffix for file in study.files] == [".md", ".tex", ".csv", ".csv", ".csv"]
    assert [note for note in study.notes if "matplotlib" in note] == [
        f"warning: no comparison.png: pictures need matplotlib: {install_hint('report')}"
    ]


def pretended(out: Path, **more: Any) -> StudyResult:
    """A study of runs that nobody did."""
    out.mkdir(exist_ok=True)
    file = out / "mine.toml"
    file.write_text(GRID)
    for one in specs(read(file), more.get("scale", 1.0)):
        acc = {"finetune": 60.0, "gpm": 70.0}[one.method] + one.seed
        record = {**one.plain(), "acc": acc, "bwt": -1.0, "threads": 1, "device": "cpu", "seconds": 7.0 + one.seed}
        record |= {"memory_bytes": {"bases": 2_000_000, "replay": 500_000}}
        record |= {"versions": {"torch": "2", "perdure": "0"}, "data": {"completeness": "complete"}}
        record |= {"accuracy_matrix": [[acc], [acc, acc]], "learning_accuracy": acc + 3}
        finish_run(run_directory(out, one.benchmark_dir, one.method, one.digest()), record)
    return perdure.study(file, out=out, **more)


def test_a_study_leaves_its_tables_and_pictures(tmp_path: Path) -> None:
    found = pretended(tmp_path)
    folder = tmp_path / "studies/mine"
    assert {file.name for file in found.files} == {
        *("summary.md", "summary.tex", "summary.csv", "differences.csv", "cost.csv"),
        *("comparison.png", "accuracy.png", "new-tasks.png", "matrices.png", "report.html"),
    }
    assert set(found.files) == set(folder.iterdir())
    assert found.plain()["files"] == [str(file) for file in found.files]
    with (folder / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["ACC"], row["ACC std"]) for row in rows] == [
        ("finetune", "61.50", "0.71"),
        ("gpm", "71.50", "0.71"),
    ]
    assert "**71.50 ± 0.71**" in (folder / "summary.md").read_text()
    assert r"\textbf{71.50 $\pm$ 0.71}" in (folder / "summary.tex").read_text()
    assert [row["new task"] for row in rows] == ["64.50", "74.50"]
    with (folder / "cost.csv").open() as file:
        costs = list(csv.DictReader(file))
    assert [(row["method"], row["seconds"], row["MB held"]) for row in costs] == [
        ("finetune", "8.5", "2.50"),
        ("gpm", "8.5", "2.50"),
    ]
    assert all(is_picture(file) for file in folder.glob("*.png"))


def test_a_scaled_study_does_not_overwrite_the_full_one(tmp_path: Path) -> None:
    found = pretended(tmp_path, scale=0.5, pictures=False)
    assert {file.parent.name for file in found.files} == {"mine-scale-0.5"}
    assert not list(tmp_path.rglob("*.png"))
    assert "not the plan's figures" in found.files[0].read_text()
