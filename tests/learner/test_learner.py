"""A learner learns, remembers, answers, goes back and says what it holds."""

import errno
import hashlib
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from shop import PLAN, SHAPE, as_folder, month, small_cnn, trained_cnn
from torch import nn

from perdure.errors import BadData, CorruptFile, PerdureError, UnknownName, WrongValue
from perdure.lab.store import file_sum, write_checked
from perdure.lab.tensor_file import write_tensors
from perdure.learner import build, gate, infer, source
from perdure.learner.learner import Learner
from perdure.learner.state import StateDirectory

Open = Callable[[], Learner]


def sums(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()
    }


def test_old_answers_stay_and_new_ones_are_right(opened: Open) -> None:
    learner = opened()
    assert learner.evaluate("first", month(0, seed=1)).accuracy > 90
    assert learner.evaluate("second", month(1, seed=1)).accuracy > 90
    (accuracy, *_rest) = learner.about.checks
    assert accuracy["task"] == "first"
    assert abs(accuracy["loss"]) <= 5
    assert learner.about.verdict == "passed"


def test_without_protection_the_gate_would_have_broken(tmp_path: Path) -> None:
    """A bad month, noise with labels by chance, learned by fine-tuning: the limit is broken, and nothing is changed."""
    learner = Learner.create(tmp_path / "s", small_cnn(), input=SHAPE, method="finetune", plan=PLAN)
    learner.learn("first", month(0))
    before = sums(tmp_path / "s" / "revisions")
    answers = [answer.probabilities for answer in learner.predict(month(0, seed=1)[0], "first")]
    noise = torch.randint(0, 256, (60, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    report = learner.learn(
        "bad", (noise, ["x", "y"] * 30), tests={"first": month(0, seed=1)}, plan={"rate": 1.0, "keep": "last"}
    )
    assert (report.verdict, report.exit_code, report.revision) == ("broken", 1, 2)
    assert [task.name for task in learner.tasks] == ["first"]
    assert sums(tmp_path / "s" / "revisions") == before
    assert [answer.probabilities for answer in learner.predict(month(0, seed=1)[0], "first")] == answers
    assert Learner.open(tmp_path / "s", small_cnn()).revision == 2


def test_without_test_images_nothing_is_called_passed(opened: Open) -> None:
    learner = opened()
    report = learner.learn("third", month(2), plan={"epochs": 1}, tests={"first": month(0, 12, seed=1)})
    assert (report.verdict, report.exit_code, report.unverified) == ("not verified", 3, ["second"])
    assert set(report.drift) == {"first", "second"}
    assert "overstates" in str(report)
    assert learner.check().verdict == "not verified"
    good = learner.check(
        {"first": month(0, 12, seed=1), "second": month(1, 12, seed=1)},
        {"accuracy": 50, "robust": 100, "calibration": 100},
    )
    assert good.verdict == "passed"


def test_an_image_alone_is_answered_as_among_others(opened: Open, tmp_path: Path) -> None:
    learner = opened()
    x, names = month(0, seed=2)
    together = learner.predict(x, "first")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    shuffled = learner.predict(x[order], "first")
    for row in range(len(x)):
        alone = learner.predict(x[row : row + 1], "first")[0]
        one_class = learner.predict(x[[i for i, name in enumerate(names) if name == names[row]]], "first")
        same = one_class[[i for i, name in enumerate(names) if name == names[row]].index(row)]
        for other in (alone, same, shuffled[order.tolist().index(row)]):
            assert other.name == together[row].name
            assert max(abs(other.probabilities[k] - together[row].probabilities[k]) for k in other.probabilities) < 1e-5
    files = as_folder(tmp_path / "images", (x[:6], names[:6]))
    named = [
        answer.name for answer in learner.predict(sorted(files.rglob("*.png"), key=lambda p: int(p.stem)), "first")
    ]
    assert named == [answer.name for answer in together[:6]]


def test_tasks_are_told_apart_or_unknown(opened: Open) -> None:
    learner = opened()
    told = learner.about.inference
    assert told is not None
    assert (told["tasks"], told["chance"], told["images"]) == (["first", "second"], 50.0, 120)
    assert told["accuracy"] > 80
    found = [answer.task for answer in learner.predict(month(1, seed=3)[0])]
    assert found.count("second") > 0.8 * len(found)
    noise = torch.randint(0, 256, (20, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert [answer.task for answer in learner.predict(noise)].count(None) >= 18
    assert f"{told['accuracy']:.1f} %" in learner.card()


def test_rollback_is_bit_exact(opened: Open, state: Path) -> None:
    learner = opened()
    old = sums(state / "revisions")
    before = learner.predict(month(1, seed=1)[0], "second")
    learner.learn("third", month(2), plan={"epochs": 1})
    assert learner.revision == 4
    learner.rollback(3)
    assert learner.predict(month(1, seed=1)[0], "second") == before
    now = sums(state / "revisions")
    assert {name: now[name] for name in old} == old
    again = learner.learn("other", month(3), plan={"epochs": 1})
    assert again.revision == 5  # numbers are never given twice
    assert learner.about.parent == 3
    with pytest.raises(UnknownName, match="revision"):
        learner.rollback(9)


def test_learning_is_the_same_in_another_process(state: Path, tmp_path: Path) -> None:
    """Nothing but the files is needed: opened anew, a learner learns bit for bit what one would that stayed open."""
    path = tmp_path / "at-once"
    one = Learner.create(path, small_cnn(), input=SHAPE, method="gpm", plan=PLAN)
    one.learn("first", month(0))
    one.learn("second", month(1))
    model, other = (p / "revisions" / "003" / "model.safetensors" for p in (path, state))
    with safe_open(model, "pt") as a, safe_open(other, "pt") as b:
        assert sorted(a.keys()) == sorted(b.keys())
        assert all(torch.equal(a.get_tensor(name), b.get_tensor(name)) for name in sorted(a.keys()))


def test_more_images_of_a_known_task(opened: Open) -> None:
    learner = opened()
    report = learner.extend("first", month(0, seed=5), tests={"first": month(0, seed=1), "second": month(1, seed=1)})
    assert report.verdict == "passed"
    assert [task.name for task in learner.tasks] == ["first", "second"]
    assert learner.tasks[0].images == 2 * 54
    assert learner.evaluate("second", month(1, seed=1)).accuracy > 90
    with pytest.raises(BadData, match="has no class a1"):
        learner.extend("first", month(1))


def test_a_trained_head_is_adopted(tmp_path: Path) -> None:
    model = trained_cnn()
    x = month(0, seed=1)[0]
    with torch.no_grad():
        logits = model(x.float() / 255)
    given = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    learner = Learner.create(
        tmp_path / "s", model, input=SHAPE, classes=["p", "q", "r"], mean=[0], std=[1], reference=x, plan=PLAN
    )
    assert [task.name for task in learner.tasks] == ["start"]
    assert learner.tasks[0].protected
    found = torch.tensor([list(answer.probabilities.values()) for answer in learner.predict(x, "start")])
    assert torch.allclose(found, logits.softmax(1), atol=1e-5)
    assert all(torch.equal(given[name], tensor) for name, tensor in model.state_dict().items())
    learner.learn("new", month(1))
    moved = torch.tensor([list(answer.probabilities.values()) for answer in learner.predict(x, "start")])
    bare = Learner.create(
        tmp_path / "t", small_cnn(), input=SHAPE, classes=["p", "q", "r"], mean=[0], std=[1], plan=PLAN
    )
    assert not bare.tasks[0].protected
    bare.learn("new", month(1))
    unprotected = torch.tensor([list(answer.probabilities.values()) for answer in bare.predict(x, "start")])
    assert (moved - found).abs().mean() < (unprotected - found).abs().mean() / 3


def test_what_is_held_is_every_tensor_and_every_byte(opened: Open, state: Path) -> None:
    found = opened().held()
    assert found["bytes"] == sum(path.stat().st_size for path in state.rglob("*") if path.is_file())
    assert {one["name"] for one in found["files"]} == {
        str(p.relative_to(state)) for p in state.rglob("*") if p.is_file()
    }
    with safe_open(state / "revisions" / "003" / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    assert {one["name"]: one["bytes"] for one in found["tensors"]} == {
        name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()
    }
    assert not found["pixels"]
    assert set(found["membership"]["first"]) == {"model.9"}
    assert 0.5 < found["membership"]["first"]["model.9"] <= 1
    basis = next(one for one in found["tensors"] if one["name"] == "memory.model|9")
    assert basis["kind"] == "basis"
    assert basis["membership"].startswith("AUC 0.") or basis["membership"].startswith("AUC 1.")


def test_no_pixels_are_left_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted images are searched for, as bytes and as floats, in the state and in the cache."""
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "cache"))
    x, names = month(0)
    folder = as_folder(tmp_path / "october", (x, names))
    learner = Learner.create(tmp_path / "s", small_cnn(), input=SHAPE, plan=PLAN | {"epochs": 1})
    learner.learn("october", folder)
    content = b"".join(p.read_bytes() for where in ("s", "cache") for p in (tmp_path / where).rglob("*") if p.is_file())
    for image in x:
        row = image[0, 0]
        assert row.numpy().tobytes() not in content
        assert (row.float() / 255).numpy().tobytes() not in content
        normal = (row.float() / 255 - learner.tasks[0].mean[0]) / learner.tasks[0].std[0]
        assert normal.numpy().tobytes() not in content


def test_forgetting_removes_what_is_of_one_task_alone(opened: Open, state: Path) -> None:
    learner = opened()
    second = learner.predict(month(1, seed=1)[0], "second")
    kept = learner.forget("first")
    assert any("bases" in line for line in kept)
    assert [task.name for task in learner.tasks] == ["second"]
    assert learner.state.numbers() == [4]
    text = b"".join(path.read_bytes() for path in state.rglob("*.json"))
    assert b'"a0"' not in text
    assert b'"first"' not in text
    after = learner.predict(month(1, seed=1)[0], "second")
    assert [answer.probabilities for answer in after] == [answer.probabilities for answer in second]
    assert learner.check().verdict == "not verified"  # there is nothing left to compare with
    with pytest.raises(UnknownName, match="task"):
        learner.predict(month(0)[0], "first")
    learner.learn("first", month(0), plan={"epochs": 1})
    assert len(learner.tasks) == 2


def test_the_forecast_needs_no_images(opened: Open) -> None:
    learner = opened()
    found = learner.forecast()
    sizes = {name: (layer["held"], layer["of"]) for name, layer in found["layers"].items()}
    assert sizes == {name: tuple(size) for name, size in learner.tasks[1].basis.items()}
    assert found["first_full"] in sizes or found["tasks_left"] is None
    more = learner.forecast(month(2)[0])["layers"]
    known = learner.forecast(month(1)[0])["layers"]
    assert sum(layer["wanted"] for layer in more.values()) > sum(layer["wanted"] for layer in known.values()) >= 0
    assert {name: layer["held"] for name, layer in more.items()} == {name: held for name, (held, _) in sizes.items()}


def test_exported_files_answer_alike(opened: Open, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    learner = opened()
    x = month(1, seed=1)[0]
    expected = [
        torch.tensor([list(a.probabilities.values()) for a in learner.predict(x, name)]) for name in ("first", "second")
    ]
    about = learner.export(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map["perdure"]) == about
    assert about["classes"]["second"] == ["a1", "b1", "c1"]
    for pixels, rows in ((x, slice(None)), (x[:1], slice(1))):
        for found, wanted in zip(session.run(None, {"pixels": (pixels.float() / 255).numpy()}), expected, strict=True):
            assert np.abs(found - wanted[rows].numpy()).max() < 1e-5
    learner.export(tmp_path / "m.pt2", task="second")
    program = torch.export.load(tmp_path / "m.pt2").module()
    assert torch.allclose(program(x.float() / 255)[0], expected[1], atol=1e-5)
    with pytest.raises(WrongValue, match="ends in"):
        learner.export(tmp_path / "m.txt")


def test_pictures_are_turned_and_scaled_as_everywhere(opened: Open, tmp_path: Path) -> None:
    """A file that EXIF turns, larger than the network's images, is answered as its pixels are."""
    learner = opened()
    pixels = month(0, seed=3)[0][0].permute(1, 2, 0).numpy()
    large = Image.fromarray(pixels).resize((48, 48))
    exif = Image.Exif()
    exif[0x0112] = 6
    large.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    large.save(tmp_path / "plain.png")
    turned, plain = learner.predict([tmp_path / "turned.png", tmp_path / "plain.png"], "first")
    assert turned.probabilities == plain.probabilities
    by_array = learner.predict([np.asarray(large)], "first")[0]
    assert max(abs(by_array.probabilities[k] - plain.probabilities[k]) for k in plain.probabilities) < 1e-5


def test_loaders_and_datasets_are_read(tmp_path: Path) -> None:
    x, names = month(0)
    number = torch.tensor([sorted(set(names)).index(name) for name in names])
    data = torch.utils.data.TensorDataset(x.float() / 255, number)
    learner = Learner.create(tmp_path / "s", small_cnn(), input=SHAPE, method="finetune", plan=PLAN | {"epochs": 1})
    learner.learn("loaded", torch.utils.data.DataLoader(data, batch_size=16))
    learner.learn("set", data)
    assert [(task.classes, task.images) for task in learner.tasks] == [(["0", "1", "2"], 54)] * 2
    assert learner.tasks[0].mean == pytest.approx(learner.tasks[1].mean, abs=0.02)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, number), batch_size=7)
    task = source.make_task("streamed", loader, SHAPE, seed=1)
    assert task.valid.y.tolist() == [0, 1, 2, 0, 1, 2]  # of every class the first and the eleventh
    assert torch.equal(task.valid.x, x[[0, 1, 2, 30, 31, 32]])
    assert torch.equal(task.train.x, x[[row for row in range(60) if row not in (0, 1, 2, 30, 31, 32)]])
    assert learner.evaluate("set", loader).samples == 60


@pytest.mark.parametrize("broken", ["safetensors.torch.save_file", "perdure.learner.state.write_checked"])
def test_a_full_disk_leaves_the_revision_before(
    opened: Open, state: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, before = opened(), sums(state)

    def full(*_args: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(broken, full)
    with pytest.raises((PerdureError, OSError), match="No space left"):
        learner.learn("third", month(2), plan={"epochs": 1})
    monkeypatch.undo()
    assert {name: found for name, found in sums(state).items() if not name.startswith((".locks", "revisions/."))} == {
        name: found for name, found in before.items() if not name.startswith(".locks")
    }
    again = opened()
    assert (again.revision, len(again.tasks)) == (3, 2)
    assert again.learn("third", month(2), plan={"epochs": 1}).revision == 4


def test_a_second_process_is_kept_out(opened: Open) -> None:
    one, other = opened(), opened()
    with one.state.lock(), pytest.raises(PerdureError, match="is at work on it"):
        other.learn("third", month(2))
    one.learn("third", month(2), plan={"epochs": 1})
    with pytest.raises(PerdureError, match="revision 4 is in use by now"):
        other.learn("fourth", month(3))


def test_wrong_requests_are_one_line(opened: Open, state: Path, tmp_path: Path) -> None:
    learner = opened()
    with pytest.raises(WrongValue, match="a learner is there already"):
        Learner.create(state, small_cnn(), input=SHAPE)
    with pytest.raises(PerdureError, match="no learner is there"):
        Learner.open(tmp_path / "nowhere")
    with pytest.raises(WrongValue, match="code is not kept; give it again"):
        Learner.open(state)
    wider = small_cnn()
    wider[0] = nn.Conv2d(3, 9, 3, bias=False)
    wider[1], wider[5] = nn.BatchNorm2d(9), nn.Conv2d(9, 12, 3, bias=False)
    with pytest.raises(WrongValue, match=r"model\.0\.weight \[9, 3, 3, 3\] instead of \[8, 3, 3, 3\]"):
        Learner.open(state, wider)
    with pytest.raises(WrongValue, match="is known; extend it"):
        learner.learn("first", month(2))
    with pytest.raises(WrongValue, match="keeps training images"):
        Learner.create(tmp_path / "e", small_cnn(), input=SHAPE, method="er")
    with pytest.raises(WrongValue, match="keeps training images"):
        Learner.create(tmp_path / "e", small_cnn(), input=SHAPE, method="mtl")
    with pytest.raises(BadData, match="a task needs two or more"):
        learner.learn("third", (month(2)[0], ["same"] * 60))
    with pytest.raises(UnknownName, match="task with test images"):
        learner.check({"zero": month(0)})
    with pytest.raises(WrongValue, match=r"accuracy: input should be less than or equal to 100"):
        learner.check(limits={"accuracy": 200})
    with pytest.raises(WrongValue, match="input="):
        Learner.create(tmp_path / "e", small_cnn(), input=(4, 12, 12))
    with pytest.raises(BadData, match=r"pixels must lie in \[0, 1\]"):
        learner.learn(
            "l", torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, *SHAPE), torch.zeros(8)))
        )
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize("file", ["head.json", "revisions/003/state.json", "revisions/003/model.safetensors"])
@pytest.mark.parametrize("how", ["gone", "cut", "flipped", "folder", "link"])
def test_damaged_states_are_refused_in_a_line(opened: Open, state: Path, file: str, how: str) -> None:
    place = state / file
    content = place.read_bytes()
    place.unlink()
    if how == "cut":
        place.write_bytes(content[: len(content) // 2])
    elif how == "flipped":
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 1
        place.write_bytes(changed)
    elif how == "folder":
        place.mkdir()
    elif how == "link":
        place.symlink_to("/dev/zero")
    with pytest.raises(PerdureError) as caught:
        opened()
    assert "\n" not in str(caught.value)


def test_states_of_a_later_version_are_left_alone(opened: Open, state: Path) -> None:
    head = json.loads((state / "head.json").read_text())
    write_checked(state / "head.json", {**head, "schema": 99})
    with pytest.raises(PerdureError, match="newer perdure"):
        opened()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"input": [3, 12]}, "input"),
        ({"revision": 2}, "of revision 2"),
        ({"tasks": []}, "heads"),
        ({"method": "er"}, "keeps training images"),
        ({"method": "../x"}, "unknown method"),
    ],
)
def test_forged_facts_are_refused(opened: Open, state: Path, change: dict[str, object], why: str) -> None:
    place = state / "revisions" / "003" / "state.json"
    write_checked(place, {**json.loads(place.read_text()), **change})
    with pytest.raises(PerdureError, match=why):
        opened()


def test_forged_tensors_are_refused(opened: Open, state: Path) -> None:
    directory, place = StateDirectory(state), state / "revisions" / "003"
    tensors, remembered = directory.tensors(3)
    for name, wrong in (
        ("activations/0/model.0", torch.full((2, 3), torch.nan)),
        ("activations/7/model.0", torch.ones(2, 3)),
        ("net.heads.0.weight", torch.ones(3, 24, dtype=torch.float64)),
        ("memory.model|9", 3 * torch.ones(108, 2)),
    ):
        write_tensors(place / "model.safetensors", {**tensors, name: wrong}, {"remembered": remembered})
        facts = json.loads((place / "state.json").read_text())
        write_checked(
            place / "state.json", facts | {"files": {"model.safetensors": file_sum(place / "model.safetensors")}}
        )
        with pytest.raises(CorruptFile, match="does not fit its state"):
            opened()


def test_defaults_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "learner.md").read_text("utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    said = tomllib.loads(block)
    assert said.pop("tests")
    assert said.pop("attack") == pytest.approx(2 / 255, abs=1e-5)
    assert gate.GateLimits().model_dump(exclude={"tests", "attack"}) == said
    assert gate.GateLimits().attack == 2 / 255
    assert build.PLAN == {"rate": 0.01, "epochs": 20, "batch": 32, "schedule": "cosine", "momentum": 0.9}
    assert infer.KNOWN == 0.975


def test_losses_are_counted_on_the_same_images() -> None:
    before, after = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0, 0, 0], dtype=torch.bool), torch.zeros(10, dtype=torch.bool)
    after[4] = True
    check = gate._paired("t", "accuracy", before, after, 10)
    assert (check.before, check.after, check.loss) == (40.0, 10.0, 30.0)
    assert check.low == pytest.approx(30 - 196 * (6 - 0.9) ** 0.5 / 10, abs=0.01)
    assert not check.holds
    limits, certain = gate.GateLimits(accuracy=30), gate.GateLimits(certain=True)
    assert gate.verdict([gate._paired("t", "accuracy", before, after, 30)], [], limits) == "passed"
    assert gate.verdict([gate._paired("t", "accuracy", before, after, 29.9)], [], limits) == "broken"
    assert gate.verdict([gate._paired("t", "accuracy", before, after, 30)], [], certain) == "broken"
    assert gate.verdict([], ["old"], limits) == "not verified"
