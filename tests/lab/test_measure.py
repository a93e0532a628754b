"""Stages and probes of finished runs: kept, not made twice, and told apart by their values."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from perdure.errors import UnknownName, WrongValue
from perdure.lab.build import reopen, resolve_device
from perdure.lab.probe_run import Gauge, Opened, asked, measure, open_run
from perdure.lab.run import run
from perdure.lab.snapshots import Stages, stage_file, stages
from perdure.lab.spec import RunSpec, spec
from perdure.lab.store import read_probes, read_record
from perdure.probes.probe import Cost
from perdure.train.callbacks import Callback, StepContext
from perdure.train.evaluate import evaluate


class Seen(Gauge):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, Cost]] = []

    def begin(self, name: str, work: Cost, seconds: float) -> None:
        assert seconds > 0
        self.told.append((name, work))


class Cautious(Callback):
    def __init__(self) -> None:
        self.said: list[str] = []

    def on_warning(self, text: str) -> None:
        self.said.append(text)


def finished(out: Path, **wishes: Any) -> tuple[Path, dict[str, Any]]:
    path = Path(run(spec("gpm", "synthetic", tasks=2), out=out, **wishes)["path"])
    record = read_record(path)
    assert record is not None
    return path, record


def opened(path: Path, record: dict[str, Any], gauge: Gauge | None = None) -> Opened:
    return open_run(path, record, None, resolve_device("cpu"), gauge or Gauge())


def stages_of(path: Path, record: dict[str, Any], callback: Callback | None = None) -> Stages:
    it = opened(path, record)
    return stages(path, it.spec, it.stream, record, torch.device("cpu"), callback or Callback())


def test_stages_are_the_method_after_each_lesson(tmp_path: Path) -> None:
    path, record = finished(tmp_path, stages=True)
    kept, tasks = stages_of(path, record), opened(path, record).subject.tasks
    assert len(kept) == 2
    for t, row in enumerate(record["accuracy_matrix"]):
        assert [evaluate(kept[t], tasks[i].test, i).accuracy for i in range(t + 1)] == row
    assert len(kept[:]) == 2
    assert len(kept[-1].net.heads) == 2
    with pytest.raises(IndexError):
        kept[2]


def test_stages_of_a_run_that_kept_none_are_the_same(tmp_path: Path) -> None:
    path, _ = finished(tmp_path / "kept", stages=True)
    other, record = finished(tmp_path / "not kept")
    assert not (other / "stages").exists()
    callback = Cautious()
    stages_of(other, record, callback)
    for lesson in range(2):
        assert stage_file(path, lesson).read_bytes() == stage_file(other, lesson).read_bytes()
    assert callback.said == []


class Stopping(Callback):
    """Ends the process's work once the second lesson is under way."""

    def on_step(self, now: StepContext) -> None:
        if now.at.lesson == 1:
            raise KeyboardInterrupt


def test_an_interrupted_run_has_the_stages_of_one_left_alone(tmp_path: Path) -> None:
    path, _ = finished(tmp_path / "left alone", stages=True)
    with pytest.raises(KeyboardInterrupt):
        finished(tmp_path / "interrupted", stages=True, callback=Stopping(), every=0.0)
    other, _ = finished(tmp_path / "interrupted", stages=True)
    for lesson in range(2):
        assert stage_file(path, lesson).read_bytes() == stage_file(other, lesson).read_bytes()


def test_asking_a_finished_run_for_stages_makes_them(tmp_path: Path) -> None:
    path, _ = finished(tmp_path)
    finished(tmp_path, stages=True)
    assert stage_file(path, 1).exists()


def test_a_damaged_stage_is_made_again_and_a_second_learning_that_differs_is_told(tmp_path: Path) -> None:
    path, record = finished(tmp_path, stages=True)
    whole = stage_file(path, 0).read_bytes()
    stage_file(path, 0).write_bytes(whole[:-8] + b"\0" * 8)
    callback = Cautious()
    stages_of(path, record, callback)
    assert stage_file(path, 0).read_bytes() == whole
    assert callback.said == []
    it = RunSpec.from_plain(record)
    other = Path(run(spec("gpm", "synthetic", tasks=2, plan={"rate": 0.03}), out=tmp_path / "other")["path"])
    method, _ = reopen(other, it, opened(path, record).stream, torch.device("cpu"))
    from perdure.lab import checkpoint
    from perdure.train.state import Learned

    checkpoint.save(path / "model.safetensors", path.name, method, Learned())
    stage_file(path, 0).unlink()
    stages_of(path, record, callback)
    assert "differ by up to" in callback.said[0]


def test_figures_arrays_and_what_it_took_are_kept(tmp_path: Path) -> None:
    path, record = finished(tmp_path)
    gauge = Seen()
    measure(opened(path, record, gauge), [asked("fgsm"), asked("landscape", {"images": 16, "directions": 1})])
    kept = read_probes(path, record)
    name = next(key for key in kept if key.startswith("landscape-"))
    assert set(kept) == {"fgsm", name}
    assert kept["fgsm"]["values"]["space"] == "pixels"
    assert kept[name]["values"]["directions"] == 1
    assert gauge.done == sum((work for _, work in gauge.told), Cost())
    arrays = safetensors.torch.load_file(path / "probes" / f"{name}.safetensors")
    assert {key: list(array.shape) for key, array in arrays.items()} == kept[name]["arrays"]


def test_nothing_is_measured_twice_but_what_is_damaged_or_of_another_model(tmp_path: Path) -> None:
    path, record = finished(tmp_path, probes=["fgsm", "calibration"])
    gauge = Seen()
    wanted = [asked("fgsm"), asked("calibration")]
    measure(opened(path, record, gauge), wanted)
    assert gauge.told == []
    (path / "probes" / "fgsm.json").write_text("{")
    file = path / "probes" / "calibration.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "models": ["00000000"]}))
    measure(opened(path, record, gauge), wanted)
    assert [name for name, _ in gauge.told] == ["fgsm", "calibration"]
    arrays = path / "probes" / "fgsm.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:20])
    measure(opened(path, record, gauge), wanted)
    assert [name for name, _ in gauge.told] == ["fgsm", "calibration", "fgsm"]


def test_a_probe_that_looks_back_makes_a_run_keep_its_stages(tmp_path: Path) -> None:
    path, record = finished(tmp_path, probes=["over-time"])
    assert stage_file(path, 1).exists()
    assert read_probes(path, record)["over-time"]["headline"]


def test_the_clean_images_of_a_spoiled_run_are_there_for_probes(tmp_path: Path) -> None:
    wanted = spec("gpm", "synthetic", tasks=2, outliers="labels:0.4@2")
    record = run(wanted, out=tmp_path, probes=["outliers"])
    measured = record["probes"]["outliers"]
    assert record["outliers"] == "labels:0.4@2"
    assert measured["headline"]["excess loss"] > 0


def test_values_are_checked() -> None:
    with pytest.raises(UnknownName, match="did you mean steps"):
        asked("pgd", {"step": 3})
    with pytest.raises(WrongValue, match="strengths takes numbers with commas between or none"):
        asked("fgsm", {"strengths": "much"})
    assert asked("fgsm", {"strengths": "2/255,0.1"}).values["strengths"] == (2 / 255, 0.1)
    assert asked("fgsm", {"strengths": "8/255"}).values["strengths"] == (8 / 255,)
    assert asked("fgsm", {"space": "pixels"}).key == "fgsm"


def test_other_images_than_it_learned_from_are_refused(tmp_path: Path) -> None:
    path, record = finished(tmp_path)
    other = path.rename(path.with_name("0" * 16))
    with pytest.raises(WrongValue, match="not those it learned from"):
        opened(other, record)
