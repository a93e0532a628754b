"""`perdure.plot`: any result as a picture."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.errors import UnknownName, WrongValue
from perdure.report.plot import Picture, plot

ROWS = [[90.0], [80.0, 70.0]]
EPOCH = {"lesson": 0, "valid": {"accuracy": 50.0, "loss": 1.0}}


@dataclass
class Learning:
    """As `learn` returns it."""

    matrix: list[list[float]] = field(default_factory=lambda: ROWS)
    epochs: list[Any] = field(
        default_factory=lambda: [SimpleNamespace(lesson=0, valid=SimpleNamespace(accuracy=50.0, loss=1.0))]
    )
    tasks: list[Any] = field(default_factory=lambda: [SimpleNamespace(name="one"), SimpleNamespace(name="two")])


def run_directory(path: Path) -> Path:
    record = {"method": "gpm", "benchmark": "six", "seed": 1, "task_names": ["a", "b"], "accuracy_matrix": ROWS}
    (path / "record.json").write_text(json.dumps(record))
    (path / "epochs.jsonl").write_text(json.dumps(EPOCH) + "\n")
    return path


@pytest.mark.parametrize("kind", ["matrix", "curves"])
def test_one_run_however_it_is_given(kind: str, tmp_path: Path) -> None:
    path = run_directory(tmp_path)
    record = {**json.loads((path / "record.json").read_text()), "path": str(path)}
    pictures = [plot(thing, kind) for thing in (record, path, str(path), Learning())]
    assert all(picture._repr_png_().startswith(b"\x89PNG") for picture in pictures)
    assert pictures[0].png == pictures[1].png == pictures[2].png
    assert pictures[0].png != pictures[3].png
    assert plot(SimpleNamespace(matrix=ROWS), kind).png


def test_several_are_compared(tmp_path: Path) -> None:
    records = [
        {"method": method, "accuracy_matrix": ROWS, "seed": seed} for method in ("gpm", "rcl") for seed in (1, 2)
    ]
    comparison, accuracy = plot(records), plot(records, "accuracy")
    assert len({comparison.png, accuracy.png, plot(records, "new-tasks").png, plot(records, "matrices").png}) == 4
    saved = plot(records, "accuracy", tmp_path / "new" / "a.png")
    assert saved.read_bytes() == accuracy.png == Picture(accuracy.png).save(tmp_path / "b.png").read_bytes()


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(UnknownName, match="did you mean curves"):
        plot(Learning(), "curve")
    with pytest.raises(WrongValue, match="no accuracy matrix yet"):
        plot({"accuracy_matrix": []})
    with pytest.raises(WrongValue, match="list is empty"):
        plot([])
    with pytest.raises(WrongValue, match="not the directory of a finished run"):
        plot("nowhere")
    with pytest.raises(WrongValue, match="cannot plot a int"):
        plot(3)
