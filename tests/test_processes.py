"""No process that perdure starts runs what lies in the working directory."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from perdure.lab.estimate import _start_seconds
from perdure.lab.execute.job import Job
from perdure.lab.execute.local import LocalExecutor
from perdure.lab.spec import spec
from perdure.processes import openmp_settings, python, python_environment

ROOT = Path(perdure.__file__).parent.parent


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files named as packages that perdure imports; the path of packages leads there, too."""
    for name in ("tomli_w", "filelock", "scipy", "numpy", "torch"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f":{os.environ.get('PYTHONPATH', '')}:")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    return tmp_path


def test_python_elsewhere_has_our_packages_and_none_of_the_working_directory(trap: Path) -> None:
    code = "import tomli_w, filelock, numpy, perdure; print(tomli_w.__file__, perdure.__file__)"
    done = subprocess.run(
        python("-c", code), env=python_environment(), capture_output=True, text=True, check=True, cwd=trap
    )
    assert str(trap) not in done.stdout
    assert str(ROOT) in done.stdout
    assert not (trap / "was_run").exists()


@pytest.mark.thorough
def test_timing_the_start_of_a_process_runs_nothing_of_the_working_directory(trap: Path) -> None:
    _start_seconds()
    assert not (trap / "was_run").exists()


def test_jobs_run_nothing_of_the_working_directory(trap: Path) -> None:
    job = Job(spec("finetune", "synthetic", tasks=1, network="mlp", plan={"epochs": 1}), str(trap / "runs"))
    events = list(LocalExecutor().do([job]))
    assert events[-1].kind == "done", events[-1].facts
    assert events[-1].facts["record"]["openmp"]  # it says how its threads wait
    assert not (trap / "was_run").exists()


def test_there_is_one_way_to_start_python() -> None:
    """Everything else would have to think of the working directory, too."""
    starting = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "perdure").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "executable"
    }
    assert starting == {"perdure/processes.py"}
    for path in (ROOT / "benchmarks").rglob("*.py"):
        text = path.read_text("utf-8")
        assert text.count("[sys.executable, ") == text.count('[sys.executable, "-P", '), path


def test_threads_spin_for_a_bounded_time_unless_the_user_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    assert python_environment()["GOMP_SPINCOUNT"] == "10000"
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert "GOMP_SPINCOUNT" not in python_environment()
    assert openmp_settings(os.environ) == {"OMP_WAIT_POLICY": "PASSIVE"}


def test_the_command_says_how_its_threads_wait(tmp_path: Path) -> None:
    words = (
        "run",
        "finetune",
        "synthetic",
        "--tasks",
        "1",
        "--plan",
        "epochs=1",
        "--net",
        "mlp",
        "--threads",
        "1",
        "--json",
    )
    clean = {name: value for name, value in os.environ.items() if "OMP" not in name}
    done = subprocess.run(python("-m", "perdure", *words), env=clean, capture_output=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout)["openmp"] == {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}
