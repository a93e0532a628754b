"""`perdure ls runs`, `rm` and `export-runs`, as a user runs them."""

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from finished_runs import finish_run
from typer.testing import CliRunner

from perdure.cli.main import app
from perdure.lab import store

pytestmark = pytest.mark.usefixtures("runs")
A, B, C, D = "aaaa000000000001", "aaab000000000002", "bbbb000000000003", "cccc000000000004"


def perdure(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def finished(root: Path, digest: str, method: str, **facts: Any) -> Path:
    figures = {"task_names": ["cats, dogs", "birds"], "acc": 75.0, "bwt": -10.0, "seconds": 12.3}
    matrix = {"accuracy_matrix": [[80.0], [70.0, 80.0]]}
    asked = {"values": {"radius": 0.5, "sizes": [2, 3]}, "plan": {"rate": 0.01}}
    path = store.run_directory(root, "six", method, digest)
    return finish_run(path, {"method": method, **figures, **matrix, **asked, **facts})


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with two finished runs, one learned all at once, one unfinished and one damaged."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "runs"
    finished(root, A, "gpm")
    finished(root, B, "mtl", accuracy_matrix=[[71.0, 72.0]], bwt=None, values={"radius": "all"}, seed=2)
    (root / "six/er" / C / "checkpoint").mkdir(parents=True)
    (finished(root, D, "rcl") / "record.json").write_text("{")
    return root


# --- ls runs ---


def test_ls_runs_has_a_line_for_each_and_names_the_damaged() -> None:
    done = perdure("ls", "runs")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == [
        "run",
        "benchmark",
        "method",
        "network",
        "seed",
        "tasks",
        "ACC",
        "BWT",
        "seconds",
        "state",
    ]
    by_run = {line.split()[0]: line.split() for line in lines[1:]}
    assert by_run[A][1:10] == ["six", "gpm", "mlp", "1", "2", "75.0", "-10.0", "12", "finished"]
    assert by_run[B][7] == "–"
    assert by_run[C][-1] == "unfinished"
    assert by_run[D][-1] == "damaged"
    assert f"damaged: {Path('runs/six/rcl') / D / 'record.json'}" in done.stderr
    assert len({line.index("mlp") for line in lines[1:] if "mlp" in line}) == 1  # columns


def test_ls_runs_as_data_and_filtered(runs: Path) -> None:
    found = json.loads(perdure("ls", "runs", "--out", str(runs), "--json").stdout)
    assert found["store"] == str(runs)
    assert {row["path"]: row["state"] for row in found["runs"]} == {
        f"six/gpm/{A}": "finished",
        f"six/mtl/{B}": "finished",
        f"six/er/{C}": "unfinished",
        f"six/rcl/{D}": "damaged",
    }
    (row,) = json.loads(perdure("ls", "runs", "gpm", "six", "--json").stdout)["runs"]
    assert (row["acc"], row["bwt"], row["tasks"], row["seed"]) == (75.0, -10.0, 2, 1)
    wrong = perdure("ls", "runs", "gmp")
    assert wrong.exit_code == 2
    assert "gpm" in wrong.stderr.partition("did you mean ")[2].partition("?")[0].split(" or ")
    nothing = perdure("ls", "runs", "owm")
    assert nothing.exit_code == 0
    assert nothing.stdout == ""
    assert "no owm runs in runs" in nothing.stderr


def test_ls_without_runs_lists_what_it_did() -> None:
    kinds = {"methods", "networks", "benchmarks", "probes", "augmentations", "studies"}
    assert set(json.loads(perdure("ls", "--json").stdout)) == kinds
    wrong = perdure("ls", "methods", "rcl")
    assert wrong.exit_code == 2
    assert "unknown list 'methods rcl'" in wrong.stderr


def test_listing_does_not_import_torch() -> None:
    code = "import sys; from typer.testing import CliRunner; from perdure.cli.main import app; "
    code += "print(CliRunner().invoke(app, ['ls', 'runs']).stdout, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert A in done.stdout
    assert done.stdout.split()[-1] == "False"


# --- rm ---


def test_rm_without_a_terminal_needs_yes(runs: Path) -> None:
    asked = perdure("rm", "aaaa")
    assert asked.exit_code == 2
    assert "--yes" in asked.stderr
    assert (runs / "six/gpm" / A).exists()
    done = perdure("rm", "aaaa", str(runs / "six/er" / C), "--yes", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"removed": [f"runs/six/gpm/{A}", str(runs / "six/er" / C)], "failed": []}
    assert sorted(path.name for path in runs.glob("*/*/*")) == [B, D]


def test_rm_of_one_that_is_not_known_removes_none(runs: Path) -> None:
    for name in ("ffff", "aaa"):
        done = perdure("rm", "bbbb", name, "--yes")
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1
    assert len(list(runs.glob("*/*/*"))) == 4


def test_rm_of_one_that_is_held_removes_the_others_and_fails() -> None:
    held = Path("runs/six/er") / C
    with store.lock_run(Path("runs"), held):
        done = perdure("rm", "bbbb", "aaaa", "--yes", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["removed"] == [f"runs/six/gpm/{A}"]
    assert "at work on it" in done.stderr
    assert held.exists()


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 3), ("n", 1, 4), ("", 1, 4)])
def test_rm_asks_on_a_terminal(answer: str, code: int, left: int, runs: Path) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "perdure", "rm", "aaaa"]
    with subprocess.Popen(words, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        os.write(ours, f"{answer}\n".encode())
        said, asked = running.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert running.returncode == code, asked
    assert f"Remove runs/six/gpm/{A}?" in asked
    assert said == ""
    assert len(list(runs.glob("*/*/*"))) == left


# --- export-runs ---


def test_csv_of_runs() -> None:
    done = perdure("export-runs")
    assert done.exit_code == 0, done.output
    one, two = csv.DictReader(io.StringIO(done.stdout))
    assert (one["run"], one["method"], one["acc"], one["bwt"], one["tasks"]) == (A, "gpm", "75.0", "-10.0", "2")
    assert (one["values.radius"], one["values.sizes"], one["plan.rate"]) == ("0.5", "[2, 3]", "0.01")
    assert (two["run"], two["bwt"], two["values.radius"], two["values.sizes"]) == (B, "", "all", "")
    assert one["finished"].endswith("Z")
    assert "left out: 1 unfinished" in done.stderr
    assert D in done.stderr
    assert perdure("export-runs", "--csv").stdout == done.stdout


def test_csv_of_tasks_in_a_file() -> None:
    done = perdure("export-runs", "--per", "task", "--csv", "all.csv")
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    assert "4 rows in all.csv" in done.stderr
    rows = list(csv.DictReader(io.StringIO(Path("all.csv").read_text())))
    kept = [(row["run"], row["task"], row["task_name"], row["accuracy_learned"], row["accuracy_final"]) for row in rows]
    assert kept == [
        (A, "1", "cats, dogs", "80.0", "70.0"),
        (A, "2", "birds", "80.0", "80.0"),
        (B, "1", "cats, dogs", "", "71.0"),
        (B, "2", "birds", "", "72.0"),
    ]


def test_parquet() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    done = perdure("export-runs", "--per", "task", "--parquet", "all.parquet", "--json", "gpm", "mtl")
    assert done.exit_code == 0, done.output
    table = parquet.read_table("all.parquet").to_pylist()
    rows = json.loads(done.stdout)
    assert len(rows) == len(table) == 4
    for row, data in zip(table, rows, strict=True):
        for name in row:
            expected = data.get(name)
            # One run has a number here and the other a word.
            assert row[name] == (str(expected) if name == "values.radius" else expected)
    assert rows[2]["accuracy_learned"] is None


def test_parquet_without_pyarrow_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    done = perdure("export-runs", "--parquet", "all.parquet")
    assert done.exit_code == 1
    assert "[parquet]'; or write --csv" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not Path("all.parquet").exists()


def test_a_record_that_breaks_between_listing_and_reading_is_left_out(runs: Path) -> None:
    perdure("ls", "runs")
    place = runs / "six/gpm" / A / "record.json"
    before = place.stat()
    place.write_text(place.read_text().replace("75.0", "95.0"))
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    done = perdure("export-runs")
    assert [row["run"] for row in csv.DictReader(io.StringIO(done.stdout))] == [B]
    assert "its checksum is wrong" in done.stderr


def test_both_formats_can_be_piped() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    as_csv, as_parquet = (perdure("export-runs", kind) for kind in ("--csv", "--parquet"))
    assert as_csv.exit_code == as_parquet.exit_code == 0
    found = parquet.read_table(arrow.BufferReader(as_parquet.stdout_bytes))
    assert [str(name) for name in found["run"]] == [line.split(",")[0] for line in as_csv.stdout.splitlines()[1:]]


def test_what_cannot_be_exported_is_one_line() -> None:
    for words, code, message in (
        (["--per", "tsak"], 2, "did you mean task"),
        (["--csv", "--json"], 2, "choose one"),
        (["--csv", "--parquet"], 2, "choose one"),
        (["rlc"], 2, "did you mean rcl"),
        (
            ["--csv", "/dev/null/all.csv"],
            1,
            ": File exists; name another file\n",
        ),
        (["--csv", "/dev/null/all"], 2, "name one that ends in .csv or .parquet"),
        (["--out", "nowhere"], 1, "there is no store of runs nowhere; name one with --out"),
        (["--records", "./runs"], 2, "runs is the store itself; name another folder"),
        (["--records", "/dev/null/published"], 1, "name another folder"),
    ):
        done = perdure("export-runs", *words)
        assert done.exit_code == code, done.output
        assert message in done.stderr
        assert done.stdout == ""


def test_an_empty_store_exports_an_empty_table() -> None:
    pytest.importorskip("pyarrow")
    Path("empty").mkdir()
    assert perdure("export-runs", "--out", "empty", "--json").stdout.strip() == "[]"
    done = perdure("export-runs", "--out", "empty", "--csv", "none.csv", "--parquet", "none.parquet")
    assert done.exit_code == 0, done.output
    assert Path("none.csv").read_text().strip() == ""
