"""Whatever somebody puts into a store: no hang, no traceback, nothing outside is touched, good runs are listed."""

import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from finished_runs import finish_run, rewrite_record
from forgery import forge
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from typer.testing import CliRunner

import perdure
from perdure.cli.main import app
from perdure.errors import CorruptFile, PerdureError, WrongValue
from perdure.lab import checkpoint, index, store
from perdure.lab.build import build, open_stream
from perdure.lab.export import export_runs
from perdure.lab.memory_form import check_memory
from perdure.lab.run import run_spec
from perdure.lab.saved import SavedFailure
from perdure.lab.spec import RunSpec, spec
from perdure.lab.study import find_runs
from perdure.lab.study_file import read
from perdure.methods.gpm import GPM
from perdure.nets.alexnet import SlimAlexNet
from perdure.nets.network import Network
from perdure.train.callbacks import Callback

ASKED = spec("gpm", "synthetic", network="mlp", tasks=2, plan={"epochs": 2, "keep": "best", "momentum": 0.5})
GOOD, BAD = "aaaa000000000001", "bbbb000000000002"
DEEP = 100_000
Change = Callable[[dict[str, Any], dict[str, Tensor]], object]  # of what a checkpoint says and of its tensors


class Log(Callback):
    """Remembers what was said, and how many epochs were learned."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.epochs = 0

    def on_warning(self, text: str) -> None:
        self.warnings.append(text)

    def on_epoch_end(self, _epoch: Any) -> None:
        self.epochs += 1


class Pull(Exception):
    pass


class PullAfter(Callback):
    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def on_epoch_end(self, _epoch: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise Pull


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    return Path(run_spec(ASKED, out=root)["path"])


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interrupted in its second lesson, with two checkpoints."""
    root = tmp_path_factory.mktemp("begun")
    with pytest.raises(Pull):
        run_spec(ASKED, out=root, callback=PullAfter(3), every=0)
    (path,) = (root / "synthetic" / "gpm").iterdir()
    return path


def copied(path: Path, root: Path) -> Path:
    shutil.copytree(path.parents[2], root / "runs")
    return root / "runs" / path.relative_to(path.parents[2])


def again(path: Path) -> tuple[dict[str, Any], Log]:
    log = Log()
    return run_spec(ASKED, out=path.parents[2], callback=log), log


def command(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def listed_beside_a_good_run(root: Path) -> index.RunSummary:
    """The bad run in a line, with all that lists or exports a store."""
    finish_run(root / "six" / "gpm" / GOOD, {})
    rows = {row.digest: row for row in index.runs(root)}
    assert rows.keys() == {GOOD, BAD}
    assert rows[GOOD].state == "finished"
    assert {row.digest: row for row in index.runs(root)} == rows  # from the index, too
    warnings: list[str] = []
    exported = export_runs(root, per="task", warn=warnings.append)
    assert GOOD in {row["run"] for row in exported}
    for done in (command("ls", "runs", "--out", str(root)), command("show", BAD, "--out", str(root))):
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert all("\n" not in (row.problem or "") for row in rows.values())
    return rows[BAD]


# --- names ---


@pytest.mark.parametrize("name", ["../../../../mine.txt", "ABSOLUTE", "..", "", "a\\b", "probes/x.json"])
def test_a_record_names_files_of_its_own_run_only(name: str, finished: Path, tmp_path: Path) -> None:
    path = copied(finished, tmp_path)
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    record = json.loads((path / "record.json").read_text())
    rewrite_record(path, files={**record["files"], str(mine) if name == "ABSOLUTE" else name: "00000000"})
    with pytest.raises(CorruptFile, match="not a record of a run"):
        store.read_record(path)
    _, log = again(path)
    assert "record.json.damaged-1" in log.warnings[0]
    assert mine.read_text() == "mine"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["mine.txt", "runs"]


def test_the_directory_of_another_run_is_not_believed(finished: Path, tmp_path: Path) -> None:
    path = copied(finished, tmp_path)
    other = spec("gpm", "synthetic", network="mlp", tasks=2, plan={"epochs": 1})
    place = path.with_name(other.digest())
    path.rename(place)
    (known,) = find_runs([other], out=path.parents[2], root=None)
    assert known.state == "waiting"
    log = Log()
    record = run_spec(other, out=path.parents[2], callback=log)
    assert record["plan"]["epochs"] == 1
    assert [line.partition("; ")[0] for line in log.warnings] == [
        f"{place}/{name}: of another run" for name in ("record.json", "model.safetensors")
    ]


# --- what is no plain file, and what is too large ---


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


@pytest.mark.parametrize("make", [pipe, device, huge, folder])
@pytest.mark.parametrize("name", ["record.json", "failed.json", "spec.toml"])
def test_what_is_no_plain_file_is_one_line_of_the_listing(make: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / "six" / "er" / BAD
    path.mkdir(parents=True)
    make(path / name)
    states = {"record.json": "damaged", "failed.json": "failed", "spec.toml": "unfinished"}
    assert listed_beside_a_good_run(tmp_path).state == states[name]


@pytest.mark.parametrize("make", [pipe, device, huge])
@pytest.mark.parametrize(
    "name",
    ["record.json", "spec.toml", "epochs.jsonl", "model.safetensors", "probes/fgsm.json", "../../../.index.json"],
)
def test_a_finished_run_with_what_is_no_plain_file_is_made_whole_again(
    make: Any, name: str, finished: Path, tmp_path: Path
) -> None:
    path = copied(finished, tmp_path)
    (path / "probes").mkdir()
    index.runs(path.parents[2])
    make(path / name)
    record, _ = again(path)
    assert record["probes"] == {}
    assert [row.state for row in index.runs(path.parents[2])] == ["finished"]
    assert store.read_record(path, thorough=True)


@pytest.mark.parametrize("make", [pipe, device, huge, folder])
def test_checkpoints_that_are_no_plain_files_are_set_aside(make: Any, begun: Path, tmp_path: Path) -> None:
    path = copied(begun, tmp_path)
    make(path / "checkpoint" / "000099.safetensors")
    assert checkpoint.how_far(path / "checkpoint") == (1, 1)
    _, log = again(path)
    assert len(log.warnings) == 1
    assert "set aside as 000099.safetensors.damaged-1" in log.warnings[0]
    assert log.epochs == 1


def test_a_study_file_is_a_plain_one(tmp_path: Path) -> None:
    for make in (pipe, device, huge, folder):
        file = tmp_path / f"{make.__name__}.toml"
        make(file)
        with pytest.raises(WrongValue, match=r"cannot be read \("):
            read(file)
    for text in ("a = " + "[" * DEEP, ".".join("a" * DEEP) + " = 1"):
        (tmp_path / "deep.toml").write_text(text)
        with pytest.raises(WrongValue, match="not a TOML file: nested too deeply"):
            read(tmp_path / "deep.toml")


# --- right checksums, wrong content ---

WRONG: dict[str, dict[str, Any]] = {
    "text for a figure": {"acc": "80"},
    "a figure beyond all": {"acc": 10**400},
    "no data": {"data": ...},
    "no files": {"files": ...},
    "files of numbers": {"files": {"spec.toml": 5}},
    "a sum that is none": {"files": {"spec.toml": ""}},
    "a ragged matrix": {"accuracy_matrix": [[1.0, 2.0, 3.0], [1.0]]},
    "an empty matrix": {"accuracy_matrix": []},
    "a matrix of text": {"accuracy_matrix": [["a"], ["b", "c"]]},
    "too few names": {"task_names": ["a"]},
    "a method that is a number": {"method": 5},
    "a method that is a table": {"method": {}},
    "a seed of text": {"seed": "1"},
    "a time that is none": {"finished": "yesterday"},
    "code without a file": {"code": {"method": {}}},
    "code of another kind": {"code": {"os": {"where": "x", "checksum": "y"}}},
    "versions of nothing": {"versions": {}},
    "memory of text": {"memory_bytes": {"bases": "much"}},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_record_of_wrong_types_is_one_damaged_line(wrong: str, tmp_path: Path) -> None:
    path = finish_run(tmp_path / "six" / "er" / BAD, {})
    rewrite_record(path, **WRONG[wrong])
    row = listed_beside_a_good_run(tmp_path)
    assert row.state == "damaged"
    assert "not a record of a run" in (row.problem or "")


@pytest.mark.parametrize(
    "text",
    ["[" * DEEP, '{"a":' * DEEP, '{"method": "\\ud800"}', "NaN", "[]", '"method"', "5", "\x00", "\\", '{"a": 1'],
    ids=["lists", "tables", "half a character", "NaN", "list", "text", "number", "zero", "backslash", "cut"],
)
@pytest.mark.parametrize("name", ["record.json", "failed.json"])
def test_any_json_is_one_line_of_the_listing(text: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "six" / "er" / BAD
    path.mkdir(parents=True)
    (path / name).write_text(text)
    assert listed_beside_a_good_run(tmp_path).state == ("damaged" if name == "record.json" else "failed")


@pytest.mark.parametrize("text", ["method = 5", "[method]", "a = " + "[" * DEEP, "seed = -1", "tasks = nan", "\x00"])
def test_any_specification_is_one_line_of_the_listing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "six" / "er" / BAD
    path.mkdir(parents=True)
    (path / "spec.toml").write_text(text)
    row = listed_beside_a_good_run(tmp_path)
    assert (row.state, row.method, row.benchmark) == ("unfinished", "er", "six")


def test_a_line_stays_a_line(tmp_path: Path) -> None:
    path = tmp_path / "six" / "er" / BAD
    store.write_json(path / "failed.json", {"method": "two\nlines", "error": "\x1b[2J\nand more"})
    row = listed_beside_a_good_run(tmp_path)
    assert row.method == "two\\nlines"
    assert (row.problem or "").endswith("\\x1b[2J\\nand more")


def test_keys_that_are_not_known_are_kept_and_a_record_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    path = finish_run(tmp_path / "six" / "er" / BAD, {"color": "red"})
    assert (store.read_record(path, thorough=True) or {})["color"] == "red"
    with pytest.raises(CorruptFile, match="memory_bytes"):
        finish_run(path, {"memory_bytes": {"bases": None}})


def test_an_index_of_wrong_types_is_made_anew(tmp_path: Path) -> None:
    finish_run(tmp_path / "six" / "gpm" / GOOD, {})
    first = index.runs(tmp_path)
    content = json.loads((tmp_path / index.INDEX).read_text())["index"]
    content["runs"][0][1][2] = {"no": "name"}
    for body in (json.dumps(content).encode(), b"[" * DEEP):
        (tmp_path / index.INDEX).write_bytes(index._HEAD % index.zlib.crc32(body) + body + b"}\n")
        assert index.runs(tmp_path) == first


# --- checkpoints ---


def cut(begin: str) -> Any:
    """Leave one row of a weight."""

    def change(_facts: Any, tensors: Any) -> None:
        name = next(name for name in tensors if name.startswith(begin) and name.endswith("weight"))
        tensors[name] = tensors[name][:1].contiguous()

    return change


FIRST = "net.backbone.hidden.0.weight"
FORGED: dict[str, Any] = {
    "matrix of text": lambda facts, _: facts.update(matrix=[["a"]]),
    "nine rows": lambda facts, _: facts.update(matrix=[[1.0] * (row + 1) for row in range(9)], fit_state=None),
    "nine rows within a lesson": lambda facts, _: facts.update(matrix=[[1.0] * (row + 1) for row in range(9)]),
    "another lesson": lambda facts, _: facts["fit_state"].update(lesson=7),
    "weights of another shape": cut("net.backbone"),
    "best weights of another shape": cut("best_weights/"),
    "momentum of another shape": cut("momentum/"),
    "no best weights": lambda _, tensors: [tensors.pop(n) for n in list(tensors) if n.startswith("best_weights/")],
    "no generator": lambda facts, tensors: (tensors.pop("generators/cpu"), facts["fit_state"].update(batches=1)),
    "what the method does not declare": lambda facts, _: facts["remembered"].update(forward="x"),
    "remembered of another kind": lambda facts, _: facts["remembered"].update(protected=[1]),
    "another schedule": lambda facts, _: facts["fit_state"].update(schedule={"see": 1}),
    "epochs of text": lambda facts, _: facts.update(epochs=["a"]),
    "a basis of another shape": lambda _, tensors: tensors.update({"memory.hidden|0": torch.zeros(5, 2)}),
    "weights of whole numbers": lambda _, tensors: tensors.update({FIRST: tensors[FIRST].int()}),
    "best weights that are no numbers": lambda _, tensors: tensors[f"best_weights/{FIRST[4:]}"].fill_(torch.nan),
    "weights that were scored and are no numbers": lambda facts, tensors: (
        facts["fit_state"].update(batches=0),
        tensors[FIRST].fill_(torch.inf),
    ),
    "deep": lambda facts, _: facts.update(raw="[" * DEEP),
    "a list": lambda facts, _: facts.update(raw="[]"),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_checkpoint_with_right_checksums_and_wrong_content_is_set_aside(
    how: str, begun: Path, tmp_path: Path
) -> None:
    path = copied(begun, tmp_path)
    newest = checkpoint.newest_first(path / "checkpoint")[0]
    forge(newest, FORGED[how])
    record, log = again(path)
    assert [line.partition("; ")[2] for line in log.warnings] == [f"set aside as {newest.name}.damaged-1"]
    assert log.epochs == 1
    assert record["epochs_run"] == [2, 2]


def small(method: str) -> RunSpec:
    # so that layers grow, shares are kept, and replayed images have pixel scales
    values = {"api": {"floor": 1.0}, "gpm": {"budget": 10**6}, "agem": {"attack": 4 / 255}}.get(method, {})
    settings, plan = {"size": 8, "per_class": 6}, {"epochs": 2, "batch": 8}
    return spec(method, "synthetic", network="mlp", tasks=2, plan=plan, settings=settings, values=values)


class StopAfter(Callback):
    """In the middle of the second epoch of the second task."""

    left = 14

    def on_step(self, _now: Any) -> None:
        self.left -= 1
        if not self.left:
            raise Pull


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of each method with a memory, one from the middle of its second task."""
    found = {}
    for method in dict.fromkeys(method for method, *_ in MADE_UP):
        out = tmp_path_factory.mktemp(method)
        with pytest.raises(Pull):
            run_spec(small(method), out=out, callback=StopAfter(), every=0)
        found[method] = max(out.rglob("*.safetensors"))
    return found


def tensor(name: str, change: Callable[[Tensor], Tensor]) -> Change:
    """Another tensor under this name."""
    return lambda _, tensors: tensors.update({name: change(tensors[name]).contiguous()})


def gone(name: str) -> Change:
    return lambda _, tensors: tensors.pop(name)


def renamed(old: str, new: str) -> Change:
    return lambda _, tensors: tensors.update({new: tensors.pop(old)})


def remembered(name: str, value: Any) -> Change:
    return lambda facts, _: facts["remembered"].update({name: value})


def one(value: float) -> Callable[[Tensor], Tensor]:
    """With another first entry."""

    def change(tensor: Tensor) -> Tensor:
        tensor.view(-1)[0] = value
        return tensor

    return change


# The network has layers of 192 and 100 inputs, three classes for each of two tasks, and images of (3, 8, 8).
MADE_UP: list[tuple[str, str, Change]] = [
    ("gpm", "basis of hidden.0", tensor("memory.hidden|0", lambda t: t[:-1])),
    ("gpm", "basis of hidden.0", tensor("memory.hidden|0", lambda t: t.T)),
    ("gpm", "basis of hidden.0", tensor("memory.hidden|0", lambda t: t[None])),
    ("gpm", "basis of hidden.0", tensor("memory.hidden|0", lambda _: torch.zeros(192, 193))),
    ("gpm", "basis of hidden.0", tensor("memory.hidden|0", lambda t: t.long())),
    ("gpm", "basis of hidden.0", tensor("memory.hidden|0", one(torch.nan))),
    ("gpm", "basis of hidden.0", tensor("memory.hidden|0", lambda t: 2 * t)),
    ("gpm", "basis of conv9", renamed("memory.hidden|0", "memory.conv9")),
    ("gpm", "wanted", remembered("wanted", None)),
    ("gpm", "wanted", remembered("wanted", float("nan"))),
    ("gpm", "protected", remembered("protected", None)),
    ("gpm", "protected", remembered("protected", {"hidden.0": "x"})),
    ("dfgp", "basis of hidden.1", tensor("memory.hidden|1", lambda t: t[:-1])),
    ("rcl", "basis of hidden.1", tensor("memory.hidden|1", lambda t: t[:-1])),
    ("rcl", "phi_ratios", remembered("phi_ratios", {"hidden.0": float("inf")})),
    ("fsdgpm", "basis of hidden.1", tensor("memory.hidden|1", lambda t: t[:-1])),
    ("fsdgpm", "importance in hidden.0", tensor("importance.hidden|0", lambda t: t[:-1])),
    ("fsdgpm", "importance in hidden.0", tensor("importance.hidden|0", lambda t: t[None])),
    ("fsdgpm", "importance in hidden.0", tensor("importance.hidden|0", lambda t: t.double())),
    ("fsdgpm", "importance in hidden.0", tensor("velocity.hidden|0", one(torch.inf))),
    ("fsdgpm", "importance in conv9", renamed("velocity.hidden|0", "velocity.conv9")),
    ("fsdgpm", "layers with an importance", gone("importance.hidden|0")),
    ("fsdgpm", "replayed images", tensor("replay.x", lambda t: t[:, :, :4])),
    ("fsdgpm", "lr_scale", remembered("lr_scale", float("inf"))),
    ("fsdgpm", "filling", remembered("filling", None)),
    ("owm", "fallen", remembered("fallen", float("nan"))),
    ("fsdgpm", "attached", remembered("attached", 2)),
    ("sgp", "basis of hidden.1", tensor("memory.hidden|1", lambda t: t[:-1])),
    ("sgp", "importance in hidden.0", tensor("importance.hidden|0", lambda t: t[:-1])),
    ("sgp", "importance in hidden.0", tensor("importance.hidden|0", lambda t: t.double())),
    ("sgp", "importance in hidden.0", tensor("importance.hidden|0", one(torch.nan))),
    ("sgp", "importance in hidden.0", tensor("importance.hidden|0", one(1.5))),
    ("sgp", "importance in hidden.0", tensor("importance.hidden|0", one(-0.5))),
    ("sgp", "layers with an importance", gone("importance.hidden|0")),
    ("sgp", "layers with an importance", renamed("importance.hidden|0", "importance.conv9")),
    ("trgp", "basis of hidden.0", tensor("memory.hidden|0", lambda t: t[:-1])),
    ("trgp", "basis of 0/hidden.0", tensor("spaces.0/hidden|0", lambda t: t[:-1])),
    ("trgp", "basis of 0/hidden.0", tensor("spaces.0/hidden|0", lambda t: t.double())),
    ("trgp", "space x/hidden.0", renamed("spaces.0/hidden|0", "spaces.x/hidden|0")),
    ("trgp", "space 0/conv9", renamed("spaces.0/hidden|0", "spaces.0/conv9")),
    ("trgp", "space hidden.0", renamed("spaces.0/hidden|0", "spaces.hidden|0")),
    ("trgp", "space of scale 0/hidden.1", gone("spaces.0/hidden|1")),
    ("trgp", "scale 0/hidden.1", tensor("live.0/hidden|1", lambda t: t[:-1])),
    ("trgp", "scale 0/hidden.1", tensor("live.0/hidden|1", one(torch.nan))),
    ("trgp", "scale 1/9/hidden.1/0", renamed("live.0/hidden|1", "scales.1/9/hidden|1/0")),
    ("trgp", "scale 1/0/hidden.1", renamed("live.0/hidden|1", "live.1/0/hidden|1")),
    ("trgp", "learning", remembered("learning", ["x"])),
    ("trgp", "learning", remembered("learning", [-1])),
    ("api", "names of grown columns", gone("grown.hidden|1/1")),
    ("api", "columns hidden.1/1", tensor("grown.hidden|1/1", lambda t: t[:-1])),
    ("api", "columns hidden.1/1", tensor("grown.hidden|1/1", lambda t: t.flatten())),
    ("api", "transform hidden.1/1", tensor("transforms.hidden|1/1", lambda t: t[:, :-1])),
    ("api", "columns x/hidden.1", lambda _, tensors: [
        tensors.update({f"{bank}.hidden|1/x": tensors.pop(f"{bank}.hidden|1/1")}) for bank in ("grown", "transforms")
    ]),
    ("api", "retain ratio of hidden.1", tensor("ratios.hidden|1", lambda t: t[None])),
    ("api", "basis of hidden.1", tensor("memory.remove|hidden|1", lambda t: t[:-1])),
    ("api", "basis of hidden.1", renamed("memory.remove|hidden|1", "memory.other|hidden|1")),
    ("api", "basis of conv9", renamed("memory.remove|hidden|1", "memory.remove|conv9")),
    ("api", "two bases of a layer", lambda _, tensors: tensors.update(
        {"memory.retain|hidden|1": tensors["memory.remove|hidden|1"].clone()}
    )),
    ("api", "now", remembered("now", None)),
    ("ewc", "springs of heads.0.weight", tensor("anchor.heads|0|weight", lambda t: t[:, :-1])),
    ("ewc", "springs of heads.0.weight", tensor("fisher.heads|0|weight", lambda t: t.double())),
    ("ewc", "springs of heads.0.weight", tensor("fisher.heads|0|weight", one(torch.nan))),
    ("ewc", "springs of heads.0.weight", tensor("fisher.heads|0|weight", one(-1))),
    ("ewc", "names of the springs", gone("fisher.heads|0|weight")),
    ("ewc", "names of the springs", lambda _, tensors: tensors.update(
        {f"{bank}.heads|9|weight": torch.zeros(3, 100) for bank in ("fisher", "anchor")}
    )),
    ("owm", "projector of hidden.1", tensor("projectors.hidden|1", lambda t: t[:-1])),
    ("owm", "projector of hidden.1", tensor("projectors.hidden|1", lambda t: t.float())),
    ("owm", "projector of conv9", renamed("projectors.hidden|1", "projectors.conv9")),
    ("owm", "images", remembered("images", 0)),
    ("owm", "of", remembered("of", 0)),
    ("owm", "seen", remembered("seen", -1)),
    ("owm", "epochs", remembered("epochs", None)),
    ("owm", "first", remembered("first", None)),
    ("pat", "basis of hidden.1", tensor("memory.hidden|1", lambda t: t[:-1])),
    ("pat", "attack_steps_now", remembered("attack_steps_now", 0)),
    ("pat", "robust_best", remembered("robust_best", float("nan"))),
    ("pat", "cautions", remembered("cautions", [1])),
    ("agem", "names in the replay buffer", gone("memory.std")),
    ("agem", "mean of replayed images", tensor("memory.mean", lambda t: t[:-1])),
    ("agem", "mean of replayed images", tensor("memory.mean", one(torch.nan))),
    ("agem", "std of replayed images", tensor("memory.std", lambda t: t[:, :1])),
    ("agem", "std of replayed images", tensor("memory.std", one(0.0))),
    ("er", "names in the replay buffer", gone("memory.task")),
    ("er", "size of the replay buffer", tensor("memory.x", lambda t: t.flatten(1))),
    ("er", "size of the replay buffer", tensor("memory.y", lambda _: torch.zeros(2001, dtype=torch.int64))),
    ("er", "replayed images", tensor("memory.x", lambda t: t[:-1])),
    ("er", "replayed images", tensor("memory.x", lambda t: t.double())),
    ("er", "replayed images", tensor("memory.x", one(torch.nan))),
    ("er", "y of replayed images", tensor("memory.y", lambda t: t.int())),
    ("er", "task of replayed images", tensor("memory.task", lambda t: t[:, None])),
    ("er", "labels of replayed images", tensor("memory.y", one(3))),
    ("er", "labels of replayed images", tensor("memory.y", one(-1))),
    ("er", "labels of replayed images", tensor("memory.task", one(2))),
    ("er", "labels of replayed images", tensor("memory.task", one(-1))),
    ("er", "images seen", tensor("memory.seen", lambda t: t[None])),
    ("er", "images seen", tensor("memory.seen", one(1))),
    ("er", "filling", remembered("filling", None)),
    ("agem", "replayed images", tensor("memory.x", lambda t: t[..., :-1])),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MADE_UP)), ids=[f"{method}, {says}" for method, says, _ in MADE_UP])
def test_memory_that_does_not_fit_the_network(number: int, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    method, says, change = MADE_UP[number]
    file, asked = tmp_path / "000001.safetensors", small(method)
    shutil.copy(checkpoints[method], file)
    stream = open_stream(asked, None)
    checkpoint.load(file, asked.plan).restore(build(asked, stream), stream.shape)
    forge(file, change)
    with pytest.raises(CorruptFile, match=rf"does not fit its run \({re.escape(says)}\)"):
        checkpoint.load(file, asked.plan).restore(build(asked, stream), stream.shape)


def test_replayed_images_of_another_size_are_set_aside(tmp_path: Path) -> None:
    with pytest.raises(Pull):
        run_spec(small("er"), out=tmp_path, callback=StopAfter(), every=0)
    newest = max(tmp_path.rglob("checkpoint/*.safetensors"))
    forge(newest, tensor("memory.x", lambda t: t[:, :, :4]))
    log = Log()
    run_spec(small("er"), out=tmp_path, callback=log)
    assert log.warnings == [f"{newest}: does not fit its run (replayed images); set aside as {newest.name}.damaged-1"]


def test_a_space_that_is_missing_is_done_without(tmp_path: Path) -> None:
    asked = small("trgp")
    with pytest.raises(Pull):
        run_spec(asked, out=tmp_path, callback=PullAfter(2))  # with a checkpoint after the first task
    (file,) = tmp_path.rglob("checkpoint/*.safetensors")
    forge(file, gone("spaces.0/hidden|0"))
    log = Log()
    record = run_spec(asked, out=tmp_path, callback=log)
    assert log.warnings == []
    assert "hidden.0" not in record["facts"]["related"].get("1", {})


def test_files_that_only_look_like_checkpoints_are_left_alone(begun: Path, tmp_path: Path) -> None:
    path = copied(begun, tmp_path)
    for name in ("².safetensors", "٣.safetensors", "-1.safetensors", "notes.safetensors"):
        (path / "checkpoint" / name).write_bytes(b"")
    (path / "checkpoint" / "000000.safetensors").mkdir()
    assert checkpoint.how_far(path / "checkpoint") == (1, 1)
    _, log = again(path)
    assert log.warnings == []
    assert (path / "checkpoint" / "².safetensors").exists()


# --- results of probes ---


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(run_spec(small("gpm"), out=tmp_path_factory.mktemp("probed"), probes=["fgsm"])["path"])


def rewrite_result(path: Path, **facts: Any) -> None:
    """Change a result with the right checksum; what is `...` is left out."""
    file = path / "probes" / "fgsm.json"
    content = {**json.loads(file.read_text()), **facts}
    store.write_checked(file, {name: value for name, value in content.items() if value is not ... and name != "check"})


def spoil_figures(path: Path) -> None:
    file = path / "probes" / "fgsm.json"
    content = json.loads(file.read_text())
    assert content["seconds"] != 7
    file.write_text(json.dumps({**content, "seconds": 7}))


def spoil_arrays(path: Path) -> None:
    file = path / "probes" / "fgsm.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def spoil_text(path: Path) -> None:
    (path / "probes" / "fgsm.json").write_text("{")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (spoil_figures, "fgsm.json: damaged, its checksum is wrong"),
        (spoil_arrays, "fgsm.safetensors: damaged or gone, its checksum is not the one in fgsm.json"),
        (spoil_text, "fgsm.json: not a readable result of a probe"),
        (lambda path: rewrite_result(path, headline={"ACC": "x"}), "fgsm.json: not the result of a probe"),
    ],
)
def test_a_damaged_result_is_named_and_left_out(spoil: Any, says: str, probed: Path, tmp_path: Path) -> None:
    path = copied(probed, tmp_path)
    root, record = path.parents[2], store.read_record(path) or {}
    assert store.read_probes(path, record).keys() == {"fgsm"}
    assert any(name.startswith("measured.") for name in export_runs(root)[0])
    spoil(path)
    warnings: list[str] = []
    (row,) = export_runs(root, warn=warnings.append)
    assert not any(name.startswith("measured.") for name in row)
    assert len(warnings) == 1
    assert warnings[0].startswith(f"left out: {path}/probes/{says}")
    shown = command("show", str(path), "--json")
    assert shown.stderr.startswith(f"warning: {path}/probes/{says}")
    assert json.loads(shown.stdout)["probes"] == {}


def test_a_result_of_an_earlier_version_has_no_checksum(probed: Path, tmp_path: Path) -> None:
    path = copied(probed, tmp_path)
    file = path / "probes" / "fgsm.json"
    content = json.loads(file.read_text())
    del content["check"]
    file.write_text(json.dumps(content))
    assert store.read_probes(path, store.read_record(path) or {}) == {"fgsm": content}


def test_a_result_that_its_probe_cannot_show_is_one_line(probed: Path, tmp_path: Path) -> None:
    path = copied(probed, tmp_path)
    rewrite_result(path, acc=...)
    done = command("probe", str(path), "fgsm")
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    last = done.stderr.splitlines()[-1]
    assert (
        last
        == "perdure: fgsm.json: not what this probe measures (KeyError: 'acc'); remove the file, and measure it again"
    )
    done = command("probe", str(path), "fgsm", "--json")
    assert done.exit_code == 0  # only its picture cannot be drawn
    assert done.stderr.startswith("warning: no fgsm.png: fgsm.json: not what this probe measures")
    assert "check" not in json.loads(done.stdout)["probes"]["fgsm"][0]


@pytest.mark.parametrize("acc", [[50.0, 40.0, {}], [50.0], "x", ...])
def test_a_result_without_its_figures_is_shown_without_them(acc: Any, probed: Path, tmp_path: Path) -> None:
    path = copied(probed, tmp_path)
    assert "FGSM 1" in command("show", str(path)).stdout
    rewrite_result(path, acc=acc)
    done = command("show", str(path))
    assert (done.exit_code, "FGSM 1" in done.stdout) == (0, False), done.output


def other_names(file: Path) -> None:
    save_file({"other": torch.zeros(2)}, file)


def other_shapes(file: Path) -> None:
    save_file({name: array[None] for name, array in load_file(file).items()}, file)


def nonsense(file: Path) -> None:
    file.write_bytes(b"\xff" * 20)


@pytest.mark.parametrize("change", [other_names, other_shapes, nonsense])
def test_arrays_that_are_not_those_of_a_result_are_one_line(change: Any, probed: Path, tmp_path: Path) -> None:
    path = copied(probed, tmp_path)
    arrays = path / "probes" / "fgsm.safetensors"
    change(arrays)
    rewrite_result(path, arrays_sum=store.file_sum(arrays))
    done = command("probe", str(path), "fgsm")
    assert done.exit_code == 1
    assert done.stderr == f"perdure: {arrays}: not the arrays that fgsm.json names; remove both, and measure it again\n"


# --- what is removed, and what is left ---


class RemoveAfter(Callback):
    def __init__(self, epochs: int, remove: Any) -> None:
        self.left, self.remove = epochs, remove

    def on_epoch_end(self, _epoch: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.remove()


@pytest.mark.parametrize("what", ["the run", "the store", "renamed"])
@pytest.mark.parametrize("epochs", [1, 4])
def test_a_run_whose_directory_goes_in_the_middle_leaves_all_files(what: str, epochs: int, tmp_path: Path) -> None:
    root = tmp_path / "runs"

    def remove() -> None:
        if what == "renamed":
            root.rename(tmp_path / "other")
        else:
            shutil.rmtree(root if what == "the store" else next((root / "synthetic" / "gpm").iterdir()))

    record = run_spec(ASKED, out=root, callback=RemoveAfter(epochs, remove))
    assert store.read_record(Path(record["path"]), thorough=True)
    assert run_spec(ASKED, out=root)["already_done"]


@pytest.mark.parametrize("name", store.FILES)
def test_a_record_without_one_of_its_files_is_not_whole(name: str, finished: Path, tmp_path: Path) -> None:
    path = copied(finished, tmp_path)
    (path / name).unlink()
    with pytest.raises(CorruptFile, match=name):
        store.read_record(path, thorough=True)
    record = json.loads((path / "record.json").read_text())
    rewrite_record(path, files={known: found for known, found in record["files"].items() if known != name})
    with pytest.raises(CorruptFile, match=name):
        store.read_record(path, thorough=True)
    with pytest.raises(PerdureError, match="gone while the run was at work"):
        store.finish(path, record)


def test_what_killed_writes_left_is_swept_and_nothing_else(begun: Path, tmp_path: Path) -> None:
    path = copied(begun, tmp_path)
    left = [".record.json.ab12_xyz", "checkpoint/.000003.safetensors.abcdefgh", "probes/.fgsm.json.abcdefgh"]
    kept = [".record.json.mine", ".notes", "record.json.abcdefgh", ".matrix.png.abcdefgh", ".failed.json.abcdefgh"]
    (path / "probes").mkdir()
    for name in left + kept:
        (path / name).write_text("half")
    again(path)
    assert [name for name in left if (path / name).exists()] == []
    assert [name for name in kept if (path / name).exists()] == kept


def test_memory_of_a_network_in_other_digits_is_checked_in_these() -> None:
    method = GPM(Network(SlimAlexNet((3, 32, 32), seed=1)).double())
    check_memory(method, learning=False, shape=(3, 32, 32))


def test_tensors_of_more_than_64_gib_are_not_opened(tmp_path: Path) -> None:
    file = tmp_path / "000001.safetensors"
    file.touch()
    os.truncate(file, 2**36 + 1)  # which takes no place on the disk
    with pytest.raises(CorruptFile, match="at most 68,719,476,736 are allowed"):
        checkpoint.load(file, small("gpm").plan)
    os.truncate(file, 2**36)
    with pytest.raises(CorruptFile, match="not a readable"):
        checkpoint.load(file, small("gpm").plan)


def test_what_was_read_is_taken_as_it_stands_and_stays_so() -> None:
    """A number in quotes is none."""
    failure = SavedFailure.model_validate({"seed": 3, "error": "no room", "new": 1})
    assert (failure.seed, failure.error) == (3, "no room")
    with pytest.raises(ValidationError):
        SavedFailure.model_validate({"seed": "3"})
    with pytest.raises(ValidationError, match="frozen"):
        failure.error = "none"  # type: ignore[misc]


def test_json_is_written_to_be_read(tmp_path: Path) -> None:
    store.write_json(tmp_path / "some.json", {"ä": [1]})
    assert (tmp_path / "some.json").read_text() == '{\n "ä": [\n  1\n ]\n}\n'


class Words(nn.Module):
    """Pixels as words of a vocabulary of nine."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x.flatten(1).clamp(0, 8).long()).mean(1))


@pytest.mark.parametrize(("rows", "fits"), [([0.0, 1.0] * 4 + [0.0], True), ([0.0, 0.5] * 4 + [0.0], False)])
def test_rows_of_a_vocabulary_are_looked_up_or_not(rows: list[float], fits: bool) -> None:
    method = GPM(perdure.wrap(Words(), (1, 3, 3)))
    check_memory(method, learning=False, shape=(1, 3, 3))
    method.memory["model.words:rows"] = torch.tensor(rows)
    with nullcontext() if fits else pytest.raises(ValueError, match=r"rows of model\.words"):
        check_memory(method, learning=False, shape=(1, 3, 3))


def test_a_layer_may_be_full() -> None:
    method = GPM(Network(SlimAlexNet((3, 32, 32), seed=1)))
    name, layer = next(iter(method.layers().items()))
    method.memory[name] = torch.eye(layer.directions)
    check_memory(method, learning=False, shape=(3, 32, 32))
    method.memory[name] = torch.eye(layer.directions, layer.directions + 1)
    with pytest.raises(ValueError, match=f"basis of {name}"):
        check_memory(method, learning=False, shape=(3, 32, 32))


def test_damaged_files_are_set_aside_one_beside_the_other(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (file := tmp_path / "record.json").write_text(str(number))
        assert store.set_aside(file).name == f"record.json.damaged-{number}"
    assert (tmp_path / "record.json.damaged-2").read_text() == "2"


def test_a_record_of_another_run_is_not_taken() -> None:
    content = {**ASKED.plain(), "code": {}}
    assert ASKED.is_of(content)
    for change in ({"seed": 2}, {"method": "gmp"}, {"plan": {"epochs": -1}}):
        assert not ASKED.is_of({**content, **change})
    del content["method"]
    assert not ASKED.is_of(content)
