"""Specifications, records and files."""

import json
import shutil
import signal
import stat
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

import perdure
from perdure import registry
from perdure.cli.main import app
from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import Diverged, Interrupted, PerdureError, UnknownName, UsageError, WrongValue
from perdure.lab.build import _own_stream, build, open_stream
from perdure.lab.checkpoint import read_epochs
from perdure.lab.run import run_spec
from perdure.lab.spec import FORMAT, RunSpec, assignments, spec
from perdure.lab.store import read_record, write, write_json
from perdure.lab.study import find_runs
from perdure.schema import values_of
from perdure.train.evaluate import evaluate
from perdure.train.plan import Plan


def test_a_record_holds_what_its_matrix_says(tmp_path: Path) -> None:
    record = run_spec(spec("gpm", "synthetic"), out=tmp_path, probes=["fgsm"])
    matrix = record["accuracy_matrix"]
    assert [len(row) for row in matrix] == [1, 2, 3]
    assert record["acc"] == pytest.approx(sum(matrix[-1]) / 3)
    assert record["bwt"] == pytest.approx((matrix[2][0] - matrix[0][0] + matrix[2][1] - matrix[1][1]) / 2)
    assert all(0 <= value <= 100 for row in matrix for value in row)
    assert len(record["probes"]["fgsm"]["acc"]) == 3
    folder = Path(record["path"])
    written = json.loads((folder / "record.json").read_text())
    assert {
        **written,
        "probes": {"fgsm": json.loads((folder / "probes/fgsm.json").read_text())},
        "path": str(folder),
        "already_done": False,
    } == record
    assert len((folder / "epochs.jsonl").read_text().splitlines()) == sum(record["epochs_run"]) == 6
    assert set(record["facts"]["basis"]) == {"conv1", "conv2", "conv3", "fc1", "fc2"}


def test_a_saved_model_gives_the_same_answers(tmp_path: Path) -> None:
    wanted = spec("rcl", "synthetic", tasks=2, plan={"epochs": 1})
    stream = open_stream(wanted, None)
    record = run_spec(wanted, out=tmp_path, stream=stream)
    state = safetensors.torch.load_file(Path(record["path"]) / "model.safetensors")
    method = build(wanted, stream)
    method.load_state_dict(state)
    assert len(method.net.heads) == 2
    assert all(torch.equal(state[name], tensor) for name, tensor in method.state_dict().items())


def test_attacks_hurt_more_the_stronger_they_are(tmp_path: Path) -> None:
    record = run_spec(spec("finetune", "synthetic"), out=tmp_path, probes=["fgsm"])
    acc = [record["acc"], *record["probes"]["fgsm"]["acc"]]
    assert acc[0] >= acc[1] >= acc[2] >= acc[3]
    assert acc[0] > acc[3]


def test_the_hash_covers_what_changes_numbers() -> None:
    plain = spec("rcl", "six").digest()
    assert plain == spec("rcl", "six", seed=1).digest()
    # a value that is the preset's anyway changes nothing
    assert plain == spec("rcl", "six", values={"mix_weight": "0.1"}).digest()
    others = [
        spec("rcl", "six", seed=2),
        spec("rcl", "six", tasks=3),
        spec("rcl", "six", network="resnet18"),
        spec("rcl", "six", values={"mix_weight": "0.2"}),
        spec("rcl", "six", plan={"rate": "0.01"}),
        spec("rcl", "six", plan={"optimizer": "adamw"}),
        spec("rcl", "six", plan={"weight_decay": "0.01"}),
        spec("rcl", "six", plan={"warmup": "2"}),
        spec("rcl", "six", plan={"augment": "flip"}),
        spec("rcl", "six", plan={"momentum": 0.9}),
        spec("rcl", "six", plan={"momentum": 0.9, "nesterov": True}),
        spec("rcl", "six", plan={"schedule": "steps"}),
        spec("rcl", "six", plan={"schedule": "steps", "milestones": "3,5"}),
        spec("rcl", "six", judged_on="valid"),
        spec("rcl", "six", outliers="labels:0.2"),
        spec("dfgp", "six"),
        spec("rcl", "synthetic"),
    ]
    assert len({plain, *(other.digest() for other in others)}) == 1 + len(others)
    assert spec("gpm", "five").digest() != spec("gpm", "five", settings={"legacy": True}).digest()
    # the same name with other images behind it
    assert len({spec("rcl", "six").digest(data) for data in ("", "a", "b")}) == 3


def test_a_run_judged_on_validation_data_is_not_taken_for_a_tested_one(tmp_path: Path) -> None:
    """A search leaves such runs in the store, with the same method, values and seed."""
    wishes = {"network": "mlp", "tasks": 1, "plan": {"epochs": 1}}
    stream = open_stream(spec("finetune", "synthetic", **wishes), None)
    wrong = replace(stream.tasks[0], test=replace(stream.tasks[0].test, y=1 + stream.tasks[0].test.y * 0))
    stream = replace(stream, tasks=[wrong])  # every test image is said to be of the second class
    acc = {}
    for judged_on in ("valid", "test"):
        asked = spec("finetune", "synthetic", judged_on=judged_on, **wishes)
        record = run_spec(asked, out=tmp_path, stream=stream)
        assert not record["already_done"]
        assert record["judged_on"] == judged_on
        method = build(asked, stream)
        method.load_state_dict(safetensors.torch.load_file(Path(record["path"]) / "model.safetensors"))
        assert record["acc"] == evaluate(method, getattr(wrong, judged_on), 0).accuracy
        acc[judged_on] = record["acc"]
    assert acc["valid"] != acc["test"]


def test_a_run_on_other_images_of_the_same_name_is_not_taken_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by a run nor by a study."""
    asked = spec("finetune", "synthetic", network="mlp", tasks=1, plan={"epochs": 1})
    streams = {data: replace(open_stream(asked, None), fingerprint=data) for data in ("a", "b")}
    paths = {data: Path(run_spec(asked, out=tmp_path, stream=streams[data])["path"]) for data in streams}
    assert paths["a"] != paths["b"]
    shutil.rmtree(paths["b"])
    for data, state in {"a": "done", "b": "waiting"}.items():
        monkeypatch.setattr("perdure.lab.study.open_clean", lambda *_, data=data: streams[data])
        (found,) = find_runs([asked], out=tmp_path, root=None)
        assert (found.state, found.path) == (state, paths[data])


@pytest.mark.parametrize(
    ("benchmark", "rcl", "gpm"),
    [
        ("synthetic", "217f12e89b5303d2", "45fbaed134f2d3b8"),
        ("six", "1b6370d126a467ea", "918466ad7d58e610"),
        ("cifar100", "0eb21733973db301", "753fb8bda8980f81"),
        ("five", "a6fade0f7ad5086c", "ba49cf1fb71298a4"),
        ("miniimagenet", "9ae13191d6024455", "c3771b14fa27bcc7"),
        ("pmnist", "a1dc5bc18316157a", "e9240882f5f3cc97"),
        ("folder:photos", "cc7998f155a88151", "9b6cf5279e56c0fa"),
    ],
)
def test_hashes_stay_what_they_are(benchmark: str, rcl: str, gpm: str) -> None:
    """Another hash would be another directory: every run that anybody has would be computed again."""
    assert spec("rcl", benchmark, plan={"valid_order": "fixed"}).digest() == rcl
    assert spec("gpm", benchmark, plan={"valid_order": "fixed"}).digest("data") == gpm


@pytest.mark.parametrize(
    ("benchmark", "rcl", "gpm"),
    [
        ("cifar100", "736e3b16eab20da2", "ab6692abda3ddc6d"),
        ("five", "96f282ad2316ef1a", "2e0a376ef4ad7fc0"),
        ("miniimagenet", "421e5f655863a575", "1031935a3c9e9213"),
    ],
)
def test_hashes_of_the_papers_presets(benchmark: str, rcl: str, gpm: str) -> None:
    """Which shuffle validation batches, as earlier ones did not."""
    assert spec("rcl", benchmark).digest() == rcl
    assert spec("gpm", benchmark).digest("data") == gpm


@pytest.mark.parametrize("written", [FORMAT - 1, FORMAT + 1])
def test_a_specification_of_another_format_is_refused(written: int) -> None:
    """Its numbers would be others, so it must neither be resumed nor probed as if it were of today."""
    plain = json.loads(json.dumps(spec("gpm", "synthetic").plain()))
    assert RunSpec.from_plain(plain) == spec("gpm", "synthetic")
    with pytest.raises(WrongValue, match=f"format {written}, but this perdure has {FORMAT}"):
        RunSpec.from_plain({**plain, "format": written})


def test_plan_options_go_by_habitual_names() -> None:
    plain = spec("rcl", "six", plan={"rate": 0.2, "batch": 8, "epochs": 3, "schedule": "linear"})
    assert plain == spec("rcl", "six", plan={"lr": "0.2", "bs": 8, "epoch": 3, "sched": "linear"})
    assert plain == spec("rcl", "six", plan={"learning_rate": 0.2, "batch_size": 8, "epochs": 3, "schedule": "linear"})
    decayed = spec("rcl", "six", plan={"optimizer": "adamw", "weight_decay": 0.1})
    assert decayed == spec("rcl", "six", plan={"opt": "adamw", "wd": "0.1"})
    assert decayed == spec("rcl", "six", plan={"optim": "adamw", "wd": 0.1})


def test_a_plan_with_newer_options_comes_back_from_its_files(tmp_path: Path) -> None:
    plan = {"epochs": 3, "opt": "adamw", "lr": 1e-3, "wd": 0.01, "schedule": "steps", "milestones": [2], "warmup": 1}
    asked = spec("finetune", "synthetic", network="mlp", tasks=1, plan={**plan, "augment": "flip+crop"})
    path = Path(run_spec(asked, out=tmp_path)["path"])
    record, written = read_record(path), tomllib.loads((path / "spec.toml").read_text("utf-8"))
    assert record is not None
    assert RunSpec.from_plain(record).plan == asked.plan == Plan(**{**written["plan"], "milestones": (2,)})
    rates = [epoch.rate for epoch in read_epochs(path / "epochs.jsonl")]
    assert rates == pytest.approx([0.0005, 0.001, 0.0005])
    assert run_spec(asked, out=tmp_path)["already_done"]


def test_what_is_no_python_function_is_no_augmentation_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(WrongValue, match="flip cannot be an augmentation, which is a function"):
        perdure.run("finetune", "synthetic", tasks=1, plan={"augment": torch.flip}, out=tmp_path)


@pytest.mark.parametrize("name", list(registry.methods))
def test_every_value_has_a_meaning(name: str) -> None:
    assert all(value.about for value in values_of(registry.methods.load(name)).values())


def test_wrong_wishes_are_one_clear_line() -> None:
    for wish, kind, message in (
        ({"method": "rlc"}, UnknownName, "did you mean rcl"),
        ({"benchmark": "sixx"}, UnknownName, "did you mean six"),
        ({"network": "alexnett"}, UnknownName, "did you mean alexnet"),
        ({"values": {"mix_wieght": "1"}}, UnknownName, "did you mean mix_weight"),
        ({"values": {"mix_weight": "-1"}}, WrongValue, "mix_weight takes a number ≥ 0"),
        ({"values": {"mix_weight": "nan"}}, WrongValue, "mix_weight takes a number ≥ 0"),
        ({"values": {"threshold": "1.5"}}, WrongValue, "≤ 1"),
        ({"values": {"variant": "mine"}}, WrongValue, "released or paper"),
        ({"plan": {"epochs": "0"}}, WrongValue, "a whole number ≥ 1"),
        ({"plan": {"epochz": "3"}}, UnknownName, "unknown plan option .epochz.; did you mean epoch or epochs"),
        ({"plan": {"lrr": "0.1"}}, UnknownName, "unknown plan option .lrr.; did you mean lr"),
        ({"plan": {"wd": "-1e-4"}}, WrongValue, "weight_decay takes a number ≥ 0"),
        ({"plan": {"wd": "0.1", "weight_decay": "0.1"}}, WrongValue, "one option under two names"),
        ({"plan": {"opt": "adam"}}, WrongValue, "optimizer takes sgd or adamw"),
        ({"plan": {"schedule": "step"}}, WrongValue, "plateau or linear or cosine or steps or constant"),
        ({"plan": {"milestones": "half"}}, WrongValue, "milestones takes numbers with commas between"),
        ({"plan": {"warmup": -1}}, WrongValue, "warmup takes a whole number ≥ 0"),
        ({"plan": {"augment": "flop"}}, UnknownName, "unknown augmentation 'flop'; did you mean flip"),
        (
            {"plan": {"augment": "flip,crop"}},
            WrongValue,
            r"augment takes none, flip, crop, my.py:NAME, or several with \+ between",
        ),
        ({"plan": {"lr": 1, "rate": 2}}, WrongValue, "one option under two names"),
        ({"plan": {"keep": "first"}}, WrongValue, "best or last"),
    ):
        with pytest.raises(kind, match=message) as caught:
            spec(**{"method": "rcl", "benchmark": "six", **wish})
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="expected NAME=VALUE, got 'epochs'"):
        assignments(["epochs"])


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write(path, b"old")
    with pytest.raises(ValueError, match="Out of range"):
        write_json(path, {"acc": float("nan")})
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(PerdureError, match=r"cannot write .* choose another place with --out"):
        write(blocked / "record.json", b"x")


def test_records_can_be_read_by_others(tmp_path: Path) -> None:
    write(tmp_path / "record.json", b"x")
    assert stat.S_IMODE((tmp_path / "record.json").stat().st_mode) & 0o444 == 0o444


def test_values_go_by_the_papers_symbols_too() -> None:
    plain = spec("rcl", "synthetic", values={"mix_weight": 0.2})
    assert plain == spec("rcl", "synthetic", values={"lambda": "0.2"}) == spec("rcl", "synthetic", values={"λ": 0.2})
    with pytest.raises(WrongValue, match="given twice"):
        spec("rcl", "synthetic", values={"mix_weight": 0.2, "lambda": 0.3})


# --- the function of the front door, and runs of earlier versions ---


def test_perdure_run_takes_names_and_strings(tmp_path: Path) -> None:
    wishes = {"tasks": 2, "plan": {"epochs": 1}, "values": {"ε": "0.9"}}
    record = perdure.run("gpm", "synthetic", **wishes, net="mlp", out=str(tmp_path), probes=["fgsm"])
    assert (record["network"], record["values"]["threshold"], record["plan"]["epochs"]) == ("mlp", 0.9, 1)
    assert Path(record["path"]).is_relative_to(tmp_path)
    assert not record["already_done"]
    assert record["probes"]["fgsm"]["headline"]
    again = run_spec(spec("gpm", "synthetic", network="mlp", **wishes), out=tmp_path)
    assert again["already_done"]
    assert again["path"] == record["path"]


OLD = Path("synthetic/finetune/903031f73d1340fa")


@pytest.fixture
def old_store(tmp_path: Path) -> Path:
    """A run as version 0.1.0 left it, before `stages/` became `snapshots/`; without its model, which is large."""
    shutil.copytree(Path(__file__).parent / "old_store", tmp_path / "runs")
    return tmp_path / "runs"


def test_a_run_that_fails_is_listed_as_failed_until_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = spec("finetune", "synthetic", network="mlp", tasks=1, plan={"epochs": 1})

    def state_after(error: PerdureError) -> tuple[str, str | None]:
        def learn(*_: object, **__: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr("perdure.lab.run.learn", learn)
            with pytest.raises(type(error)):
                run_spec(asked, out=tmp_path)
        (row,) = perdure.runs(tmp_path)
        return row.state, row.problem

    state, problem = state_after(Diverged("lower the learning rate"))
    assert state == "failed"
    assert (problem or "").endswith("lower the learning rate")
    assert state_after(Interrupted("interrupted", signal.SIGINT)) == ("unfinished", None)
    assert state_after(Diverged("lower the learning rate"))[0] == "failed"
    record = run_spec(asked, out=tmp_path)
    assert perdure.runs(tmp_path)[0].state == "finished"
    assert not (Path(record["path"]) / "failed.json").exists()


def test_an_older_run_is_listed_shown_and_exported(old_store: Path) -> None:
    (row,) = perdure.runs(old_store)
    assert (row.path, row.state, row.method, row.seed, row.tasks) == (str(OLD), "finished", "finetune", 1, 2)
    (exported,) = perdure.export_runs(old_store)
    assert (exported["acc"], exported["plan.epochs"]) == (row.acc, 1)
    shown = CliRunner().invoke(app, ["show", "9030", "--out", str(old_store), "--json"])
    assert json.loads(shown.stdout)["accuracy_matrix"] == [[98.33333333333333], [98.33333333333333] * 2]


def test_an_older_run_is_not_taken_for_one_of_today(old_store: Path) -> None:
    """The same specification gives other last digits now, so its format has risen."""
    record = read_record(old_store / OLD)
    assert record is not None
    with pytest.raises(WrongValue, match="format 3, but this perdure has 4; run it again"):
        RunSpec.from_plain(record)
    asked = spec("finetune", "synthetic", network="mlp", tasks=2, plan={"epochs": 1})
    assert asked.digest(record["data"]["fingerprint"]) != OLD.name
    assert [epoch.lesson for epoch in read_epochs(old_store / OLD / "epochs.jsonl")] == [0, 1]


def test_images_of_ones_own_are_told_apart_by_all_that_a_network_sees_of_them() -> None:
    """Pixels, labels, and how they are normalized."""
    stream, asked = synthetic(seed=1, tasks=2), spec("gpm", "synthetic")
    first, *others = stream.tasks
    train = first.train
    changes: list[dict[str, Any]] = [{}, {"mean": (0.3, 0.3, 0.3)}, {"std": (0.7, 0.7, 0.7)}]
    changes += [{"y": 1 - train.y.clamp(max=1)}, {"x": train.x.flip(-1)}]
    found = [_own_stream(asked, [replace(first, train=replace(train, **one)), *others]) for one in changes]
    assert len({one.fingerprint for one in found}) == len(changes)
    assert _own_stream(asked, stream.tasks).fingerprint == found[0].fingerprint
    assert len(found[0].fingerprint) == 16
