"""Runs as one table, from Python. The files themselves: tests/cli/test_runs.py."""

import csv
import io
from pathlib import Path

import pytest

import perdure
from perdure.errors import UnknownName


def test_rows_and_a_file(tmp_path: Path) -> None:
    out, warnings = tmp_path / "runs", list[str]()
    for method in ("gpm", "mtl"):
        perdure.run(
            method, "synthetic", tasks=2, net="mlp", plan={"epochs": 1}, out=out, probes=["fgsm"], pictures=False
        )
    (out / "synthetic/er/aaaa000000000001/checkpoint").mkdir(parents=True)
    rows = perdure.export_runs(str(out), csv=tmp_path / "all.csv", warn=warnings.append)
    assert [row["method"] for row in rows] == ["gpm", "mtl"]
    assert rows[0]["values.threshold"] == 0.97
    assert "measured.FGSM 1/255" in rows[0]
    assert warnings == ["left out: 1 unfinished"]
    written = list(csv.DictReader(io.StringIO((tmp_path / "all.csv").read_text())))
    assert [row["acc"] for row in written] == [str(row["acc"]) for row in rows]
    tasks = perdure.export_runs(out, filters=["mtl", "finished"], per="task")
    assert [(row["task"], row["accuracy_learned"]) for row in tasks] == [(1, None), (2, None)]
    with pytest.raises(UnknownName, match="did you mean task"):
        perdure.export_runs(out, per="tsak")
