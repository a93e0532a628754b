"""The scripts that print the tables of docs/results, on records made up here."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perdure.lab.study_file import read


def script(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "benchmarks" / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def record(method: str, seed: int, **probes: Any) -> dict[str, Any]:
    figures = {
        "acc": 70.0 + seed + len(method),
        "bwt": -1.0,
        "learning_accuracy": 75.0,
        "memory_bytes": {"bases": 10**6},
    }
    return {"method": method, "seed": seed, "probes": probes, **figures}


def test_a_method_is_compared_with_gpm_seed_by_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = script("six_table")
    done = {
        (method, seed): record(method, seed, fgsm={"acc": [60.0, 50.0, 40.0 + seed * len(method)]})
        for method in ("gpm", "dfgp")
        for seed in (1, 2, 3)
    }
    monkeypatch.setattr(table, "one", lambda method, seed, _out: done[method, seed])
    monkeypatch.setattr("sys.argv", ["six_table.py", "--methods", "gpm,dfgp"])
    table.main()
    printed = capsys.readouterr().out
    assert "| gpm | 75.0 (74.0 … 76.0) | -1.0 (-1.0 … -1.0) |" in printed
    assert "| dfgp | +1.0 [+1.0, +1.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +2.0 [-0.5, +4.5] |" in printed


def test_the_table_of_six_has_the_methods_of_its_study(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = script("six_table")
    monkeypatch.setattr(table, "one", lambda method, seed, _out: record(method, seed, fgsm={"acc": [60.0, 50.0, 40.0]}))
    monkeypatch.setattr("sys.argv", ["six_table.py", "--seeds", "1"])
    table.main()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == list(read("six").grids[0].methods)


def test_a_figure_that_some_runs_lack_is_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = script("robustness_tables")
    pgd = {"headline": {"PGD-20 1/255": 60.0}}
    apgd = {"headline": {"APGD 2/255": 50.0}, "clean": {"acc": 71.0}}
    runs = [record(method, seed, pgd=pgd) for method in table.METHODS for seed in (1, 2)]
    runs[0]["probes"]["apgd-x"] = apgd
    monkeypatch.setattr(table, "records_of", lambda study, _out, _seeds: runs if study == "robustness" else [])
    monkeypatch.setattr("sys.argv", ["robustness_tables.py"])
    table.main()
    printed = capsys.readouterr().out
    assert "| PGD-20 1/255 | 60 [60, 60] |" in printed
    assert "| APGD" not in printed
    left_out = next(line for line in printed.splitlines() if line.startswith("not measured on every run: "))
    assert {"APGD 2/255", "robust new task", "flatness"} <= set(left_out.partition(": ")[2].split(", "))
    assert "PGD-20 1/255" not in left_out.replace("APGD", "")
