"""Runs as one table, from Python. The files themselves: tests/cli/test_runs.py."""

import csv
import io
from pathlib import Path
from typing import Any

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


def test_a_store_without_models_gives_the_same_report(tmp_path: Path) -> None:
    """Of a probe with arrays, too; a run that is asked for there is computed, since its model is gone."""
    whole, published = tmp_path / "runs", tmp_path / "published"
    asked: dict[str, Any] = {"tasks": 2, "net": "mlp", "plan": {"epochs": 1}, "pictures": False}
    record = perdure.run(
        "gpm", "synthetic", out=whole, probes=["fgsm", "landscape(directions=1 points=3 images=8)"], **asked
    )
    perdure.export_runs(whole, records=published)
    (run,) = (path.parent for path in published.rglob("record.json"))
    names = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    assert {"spec.toml", "epochs.jsonl", "record.json"} < names
    assert {name for name in names if "fgsm" in name} == {"probes/fgsm.json", "probes/fgsm.safetensors"}
    assert len([name for name in names if name.startswith("probes/landscape-")]) == 2
    assert not any("model" in name or name.endswith(".png") for name in names)
    for name in names:
        assert (run / name).read_bytes() == Path(record["path"], name).read_bytes()
    assert perdure.export_runs(published) == perdure.export_runs(whole)
    pages = [
        perdure.write_report(None, tmp_path / f"{one.name}.md", one, format="markdown") for one in (whole, published)
    ]
    texts = [page.read_text().replace(str(published), str(whole)) for page in pages]
    assert texts[0] == texts[1]
    assert "FGSM" in texts[0]
    again = perdure.run("gpm", "synthetic", out=published, **asked)
    assert (run / "model.safetensors").exists()
    assert again["accuracy_matrix"] == record["accuracy_matrix"]
