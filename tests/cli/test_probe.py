"""`perdure probe`, as a user runs it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perdure.cli.main import app

WORDS = ("--tasks", "2", "--plan", "epochs=1")


def perdure(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "110"})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two finished runs."""
    out = tmp_path_factory.mktemp("runs")
    for method in ("finetune", "gpm"):
        done = perdure("run", method, "synthetic", *WORDS, "--out", str(out))
        assert done.exit_code == 0, done.output
    return out


def path_of(store: Path, method: str) -> Path:
    return next((store / "synthetic" / method).iterdir())


def test_a_run_by_path_its_table_and_its_picture(store: Path) -> None:
    path = path_of(store, "gpm")
    done = perdure("probe", str(path), "fgsm", "calibration", "--out", str(store))
    assert done.exit_code == 0, done.output
    for word in ("FGSM", "1/255", "ECE", "picture"):
        assert word in done.stdout
    for name in ("fgsm", "calibration"):
        assert (path / "probes" / f"{name}.json").exists()
        assert (path / "probes" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_several_runs_by_method_and_benchmark_are_compared(store: Path) -> None:
    done = perdure("probe", "synthetic", "gpm", "finetune", "geometry", "--out", str(store), "--json")
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert [result["run"] for result in content["probes"]["geometry"]] == ["finetune, seed 1", "gpm, seed 1"]
    assert any("compared" in place for place in content["pictures"])
    assert len(perdure("ls", "runs", "--out", str(store), "--json").stdout) > 0
    assert len(json.loads(perdure("ls", "runs", "--out", str(store), "--json").stdout)["runs"]) == 2


def test_transfer_wants_two_runs_and_is_kept(store: Path) -> None:
    words = ["synthetic", "transfer", "--set", "images=16", "--set", "steps=2", "--out", str(store)]
    first = perdure("probe", *words, "--json")
    assert first.exit_code == 0, first.output
    again = perdure("probe", *words, "--json")
    assert json.loads(again.stdout) == json.loads(first.stdout)
    assert "finetune" in perdure("probe", *words).stdout
    alone = perdure("probe", str(path_of(store, "gpm")), "transfer", "--out", str(store))
    assert alone.exit_code == 2
    assert "name two or more" in alone.output


def test_values_for_one_probe_or_all(store: Path) -> None:
    path = path_of(store, "finetune")
    words = ["--set", "strengths=8/255", "--set", "pgd.steps=2", "--set", "images=16", "--json"]
    done = perdure("probe", str(path), "fgsm", "pgd", *words, "--out", str(store))
    assert done.exit_code == 0, done.output
    found = {key.split("-")[0]: results[0] for key, results in json.loads(done.stdout)["probes"].items()}
    assert found["fgsm"]["values"]["strengths"] == found["pgd"]["values"]["strengths"] == [8 / 255]
    assert found["pgd"]["values"]["steps"] == 2
    assert "PGD-2 8/255" in found["pgd"]["headline"]


def test_how_long_it_will_take(store: Path) -> None:
    words = ["synthetic", "pgd", "over-time", "--out", str(store), "--dry"]
    content = json.loads(perdure("probe", *words, "--json").stdout)
    assert [(row["run"], row["probe"]) for row in content["probes"]] == [
        (run, probe) for run in ("finetune, seed 1", "gpm, seed 1") for probe in ("pgd", "over-time")
    ]
    assert content["seconds"] > 0
    assert content["seconds"] == pytest.approx(sum(row["seconds"] for row in content["probes"]))
    assert not (path_of(store, "gpm") / "probes" / "pgd.json").exists()
    assert "together about" in perdure("probe", *words).stdout
    both = json.loads(perdure("probe", "synthetic", "transfer", "--out", str(store), "--dry", "--json").stdout)
    assert [row["run"] for row in both["probes"]] == ["all together"]
    assert both["seconds"] > 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["gpm"], "name at least one probe"),
        (["fgsm"], "name at least one run"),
        (["gpm", "fgms"], "did you mean fgsm"),
        (["rcl", "fgsm"], "no finished run of rcl"),
        (["ffff", "fgsm"], "no run 'ffff'"),
        (["gpm", "fgsm", "--set", "step=3"], "unknown value of fgsm 'step'"),
        (["gpm", "fgsm", "--set", "pgd.steps=3"], "unknown probe among those named 'pgd'"),
        (["gpm", "fgsm", "--set", "norm=l1"], "norm takes linf or l2"),
        (["gpm", "fgsm", "--device", "tpu7"], "no device"),
    ],
)
def test_asked_wrongly_is_one_line(store: Path, words: list[str], says: str) -> None:
    done = perdure("probe", *words, "--out", str(store))
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_run_that_is_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "synthetic" / "gpm" / ("a" * 16)
    path.mkdir(parents=True)
    (path / "spec.toml").write_text('method = "gpm"\n')
    done = perdure("probe", str(path), "fgsm")
    assert done.exit_code == 1
    assert "not finished yet" in done.stderr


def test_show_tells_what_can_be_set() -> None:
    done = perdure("show", "pgd")
    for word in ("strengths", "steps", "restarts", "space", "meaning"):
        assert word in done.stdout


@pytest.mark.parametrize("option", ["--snapshots", "--stages"])  # the second is its former name
def test_run_with_outliers_and_snapshots(option: str, tmp_path: Path) -> None:
    words = ["--tasks", "2", "--plan", "epochs=1", "--outliers", "labels:0.3@2", option, "--json"]
    done = perdure("run", "gpm", "synthetic", *words, "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["outliers"] == "labels:0.3@2"
    assert len(list((Path(record["path"]) / "snapshots").iterdir())) == 2
    wrong = perdure("run", "gpm", "synthetic", "--outliers", "label:0.3", "--out", str(tmp_path))
    assert wrong.exit_code == 2
    assert "did you mean labels" in wrong.stderr


def test_tables_in_other_formats_leave_standard_output_to_them(store: Path) -> None:
    path = str(path_of(store, "gpm"))
    shown = perdure("show", path, "--format", "csv")
    assert shown.stdout.splitlines()[0] == "after,synthetic-0,synthetic-1"
    run = perdure("run", "gpm", "synthetic", *WORDS, "--out", str(store), "--format", "latex")
    assert run.exit_code == 0, run.output
    assert r"\toprule" in run.stdout
    assert "picture: " not in run.stdout
    assert f"picture: {path}/matrix.png" in run.stderr
    plain = perdure("run", "gpm", "synthetic", *WORDS, "--out", str(store))
    assert f"picture: {path}/curves.png" in plain.stdout
    listed = perdure("ls", "runs", "--out", str(store), "--format", "csv").stdout.splitlines()
    assert listed[0].startswith("run,benchmark,method,network,seed")
    assert len(listed) == 3
    probed = perdure("probe", path, "fgsm", "--out", str(store), "--format", "markdown").stdout
    assert "| gpm, seed 1 | 1/255 |" in probed
    wrong = perdure("run", "gpm", "synthetic", "--seed", "9", "--out", str(store), "--format", "cvs")
    assert wrong.exit_code == 2
    assert "did you mean csv" in wrong.stderr
    assert len(list((store / "synthetic/gpm").iterdir())) == 1  # nothing was computed for it
