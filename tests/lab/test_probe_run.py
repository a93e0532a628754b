"""Snapshots and probes of finished runs: kept, not made twice, and told apart by their values."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from perdure.errors import UnknownName, WrongValue
from perdure.lab import probe_run as module
from perdure.lab.build import reopen
from perdure.lab.probe_run import OpenRun, RunProgress, measure, open_run, probe_spec
from perdure.lab.run import run_spec
from perdure.lab.snapshots import Snapshots, load_snapshots, snapshot_file
from perdure.lab.spec import RunSpec, spec
from perdure.lab.store import read_probes, read_record
from perdure.probes.probe import Cost
from perdure.train.callbacks import Callback, StepContext
from perdure.train.evaluate import evaluate


class Log(RunProgress):
    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[str, Cost]] = []

    def begin(self, name: str, work: Cost, seconds: float) -> None:
        assert seconds > 0
        self.begun.append((name, work))


class Warnings(Callback):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_warning(self, text: str) -> None:
        self.texts.append(text)


def finished(out: Path, **wishes: Any) -> tuple[Path, dict[str, Any]]:
    path = Path(run_spec(spec("gpm", "synthetic", tasks=2), out=out, **wishes)["path"])
    record = read_record(path)
    assert record is not None
    return path, record


def opened(path: Path, record: dict[str, Any], progress: RunProgress | None = None) -> OpenRun:
    return open_run(path, record, progress=progress)


def snapshots_of(path: Path, record: dict[str, Any], callback: Callback | None = None) -> Snapshots:
    it = opened(path, record)
    return load_snapshots(path, it.spec, it.stream, record, torch.device("cpu"), callback or Callback())


def test_snapshots_are_the_method_after_each_task(tmp_path: Path) -> None:
    path, record = finished(tmp_path, snapshots=True)
    kept, tasks = snapshots_of(path, record), opened(path, record).subject.tasks
    assert len(kept) == 2
    for t, row in enumerate(record["accuracy_matrix"]):
        assert [evaluate(kept[t], tasks[i].test, i).accuracy for i in range(t + 1)] == row
    assert len(kept[:]) == 2
    assert len(kept[-1].net.heads) == 2
    with pytest.raises(IndexError):
        kept[2]


def test_snapshots_of_a_run_that_kept_none_are_the_same(tmp_path: Path) -> None:
    path, _ = finished(tmp_path / "kept", snapshots=True)
    other, record = finished(tmp_path / "not kept")
    assert not (other / "snapshots").exists()
    callback = Warnings()
    snapshots_of(other, record, callback)
    for task in range(2):
        assert snapshot_file(path, task).read_bytes() == snapshot_file(other, task).read_bytes()
    assert callback.texts == []


class Stopping(Callback):
    """Ends the process's work once the second task is under way."""

    def on_step(self, now: StepContext) -> None:
        if now.at.lesson == 1:
            raise KeyboardInterrupt


def test_an_interrupted_run_has_the_snapshots_of_one_left_alone(tmp_path: Path) -> None:
    path, _ = finished(tmp_path / "left alone", snapshots=True)
    with pytest.raises(KeyboardInterrupt):
        finished(tmp_path / "interrupted", snapshots=True, callback=Stopping(), every=0.0)
    other, _ = finished(tmp_path / "interrupted", snapshots=True)
    for task in range(2):
        assert snapshot_file(path, task).read_bytes() == snapshot_file(other, task).read_bytes()


def test_snapshots_of_an_older_run_are_used(tmp_path: Path) -> None:
    path, record = finished(tmp_path, snapshots=True)
    (path / "snapshots").rename(path / "stages")
    before = {file: file.stat().st_mtime_ns for file in (path / "stages").iterdir()}
    assert len(snapshots_of(path, record)[1].net.heads) == 2
    assert before == {file: file.stat().st_mtime_ns for file in (path / "stages").iterdir()}
    assert not (path / "snapshots").exists()


def test_asking_a_finished_run_for_snapshots_makes_them(tmp_path: Path) -> None:
    path, _ = finished(tmp_path)
    finished(tmp_path, snapshots=True)
    assert snapshot_file(path, 1).exists()


def test_a_damaged_snapshot_is_made_again_and_a_difference_is_a_warning(tmp_path: Path) -> None:
    path, record = finished(tmp_path, snapshots=True)
    whole = snapshot_file(path, 0).read_bytes()
    snapshot_file(path, 0).write_bytes(whole[:-8] + b"\0" * 8)
    callback = Warnings()
    snapshots_of(path, record, callback)
    assert snapshot_file(path, 0).read_bytes() == whole
    assert callback.texts == []
    it = RunSpec.from_plain(record)
    method, _ = reopen(path, it, opened(path, record).stream, torch.device("cpu"))
    with torch.no_grad():
        method.net.heads[0].weight[0, 0] += 1e-4
    from perdure.lab import checkpoint
    from perdure.train.state import Learned

    checkpoint.save(path / "model.safetensors", path.name, method, Learned(record["accuracy_matrix"]))
    snapshot_file(path, 0).unlink()
    snapshots_of(path, record, callback)
    assert "differ by up to 0.0001:" in callback.texts[0]


def test_figures_arrays_and_what_it_took_are_kept(tmp_path: Path) -> None:
    path, record = finished(tmp_path)
    progress = Log()
    measure(
        opened(path, record, progress), [probe_spec("fgsm"), probe_spec("landscape", {"images": 16, "directions": 1})]
    )
    kept = read_probes(path, record)
    name = next(key for key in kept if key.startswith("landscape-"))
    assert set(kept) == {"fgsm", name}
    assert kept["fgsm"]["values"]["space"] == "pixels"
    assert kept[name]["values"]["directions"] == 1
    assert progress.done == sum((work for _, work in progress.begun), Cost())
    arrays = safetensors.torch.load_file(path / "probes" / f"{name}.safetensors")
    assert {key: list(array.shape) for key, array in arrays.items()} == kept[name]["arrays"]


def test_nothing_is_measured_twice_but_what_is_damaged_or_of_another_model(tmp_path: Path) -> None:
    path, record = finished(tmp_path, probes=["fgsm", "calibration"])
    progress = Log()
    wanted = [probe_spec("fgsm"), probe_spec("calibration")]
    measure(opened(path, record, progress), wanted)
    assert progress.begun == []
    (path / "probes" / "fgsm.json").write_text("{")
    file = path / "probes" / "calibration.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "models": ["00000000"]}))
    measure(opened(path, record, progress), wanted)
    assert [name for name, _ in progress.begun] == ["fgsm", "calibration"]
    arrays = path / "probes" / "fgsm.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:20])
    measure(opened(path, record, progress), wanted)
    assert [name for name, _ in progress.begun] == ["fgsm", "calibration", "fgsm"]


def test_a_probe_that_looks_back_makes_a_run_keep_its_snapshots(tmp_path: Path) -> None:
    path, record = finished(tmp_path, probes=["over-time"])
    assert snapshot_file(path, 1).exists()
    assert read_probes(path, record)["over-time"]["headline"]


def test_the_clean_images_of_a_spoiled_run_are_there_for_probes(tmp_path: Path) -> None:
    wanted = spec("gpm", "synthetic", tasks=2, outliers="labels:0.4@2")
    record = run_spec(wanted, out=tmp_path, probes=["outliers"])
    measured = record["probes"]["outliers"]
    assert record["outliers"] == "labels:0.4@2"
    assert measured["headline"]["excess loss"] > 0


def test_values_are_checked() -> None:
    with pytest.raises(UnknownName, match="did you mean steps"):
        probe_spec("pgd", {"step": 3})
    with pytest.raises(WrongValue, match="give at most 1, such as 4/255"):  # before a run is trained for it
        probe_spec("fgsm(strengths=300/255)")
    with pytest.raises(WrongValue, match="strengths takes numbers with commas between or none"):
        probe_spec("fgsm", {"strengths": "much"})
    assert probe_spec("fgsm", {"strengths": "2/255,0.1"}).values["strengths"] == (2 / 255, 0.1)
    assert probe_spec("fgsm", {"strengths": "8/255"}).values["strengths"] == (8 / 255,)
    assert probe_spec("fgsm", {"space": "pixels"}).key == "fgsm"


def test_results_keep_their_names_when_a_probe_gets_another_value() -> None:
    """As they were before there was `samples`; it is named where it is not the default."""
    assert probe_spec("pgd(steps=50 images=100)").key == "pgd-10344b9b"
    assert probe_spec("apgd(strengths=4/255 images=50)").key == "apgd-dd57947a"
    assert probe_spec("pgd(samples=1)").key == "pgd"
    assert probe_spec("pgd(samples=1)").values["samples"] == 1
    assert probe_spec("pgd(samples=2)").key != probe_spec("pgd(samples=3)").key != "pgd"


def test_other_images_than_it_learned_from_are_refused(tmp_path: Path) -> None:
    path, record = finished(tmp_path)
    other = path.rename(path.with_name("0" * 16))
    with pytest.raises(WrongValue, match="not those it learned from"):
        opened(other, record)


def test_what_a_probe_will_take_is_told_by_the_median_of_three_tries_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = opened(*finished(tmp_path)).subject
    subject = replace(subject, tasks=subject.tasks[:1])
    images = len(next(iter(subject.model(0).batches()))[0])
    ticks = iter([0.0, 5.0, 5.0, 7.0, 7.0, 8.0, 0.0, 1.0, 1.0, 11.0, 11.0, 15.0])  # 5, 2, 1 s, then 1, 10, 4 s
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(ticks))
    speed = module.Speed(subject)
    assert (speed.forward, speed.backward) == (2 / images, 4 / images)
    assert speed.seconds(Cost(forwards=3 * images, gradients=5 * images)) == pytest.approx(6 + 20)
