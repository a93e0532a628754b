"""Methods, networks, benchmarks and probes of the user's own, wherever a name goes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Answer
from command import perdure as command

import perdure
from perdure import registry
from perdure.errors import UnknownName, WrongValue
from perdure.lab.spec import spec
from perdure.methods.finetune import FineTune

MINE = '''
import numpy as np
import torch.nn.functional as F
from torch import nn

import neighbor
from perdure import Backbone, Method
from perdure.data import task_from
from perdure.ops.gradients import grad
from perdure.probes.probe import Cost, Probe, ProbeResult


class Careful(Method):
    """Plain SGD that freezes the backbone after the first task."""

    def __init__(self, net, *, heads: bool = True):  # whether heads learn
        super().__init__(net)
        self.learning_heads = heads

    def gradient(self, batch):
        gradient = grad(self.loss(batch), self.trainable())
        return gradient if batch.task == 0 else {n: g for n, g in gradient.items() if n.startswith("heads.")}


class Small(Backbone):
    def __init__(self, shape):
        super().__init__()
        self.drop, self.conv, self.norm = nn.Dropout(0.1), nn.Conv2d(shape[0], 8, 3), nn.BatchNorm2d(8)
        self.width = neighbor.WIDTH

    def forward(self, x):
        hidden = self.drop(F.relu(self.norm(self.conv(x))).mean((2, 3)))
        return hidden, hidden


def noise(seed, *, images: int = 40):  # per task
    chance = np.random.default_rng(seed)
    pixels = chance.integers(0, 256, (3, images, 12, 12, 3), dtype=np.uint8)
    return [task_from(name, (pixels[i], ["a", "b"] * (images // 2))) for i, name in enumerate(("one", "two", "three"))]


class Tasks(Probe):
    """Counts tasks."""

    def cost(self, subject):
        return Cost(0, 0)

    def measure(self, subject):
        return ProbeResult({"count": len(subject.tasks)}, {"tasks": float(len(subject.tasks))})


def darker(pixels): return pixels / 2


def nothing(): return 5

five = 5
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with one's own file in `code`, and nothing known of it."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/mine.py").write_text(MINE)
    (tmp_path / "code/neighbor.py").write_text("WIDTH = 8")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    forget()
    yield tmp_path
    forget()
    sys.path[:] = path
    sys.modules.pop("neighbor", None)


def forget() -> None:
    for kind in registry.KINDS:
        kind._own.clear()
    registry._allowed.clear()
    registry._modules.clear()


OWN: dict[str, Any] = {"net": "code/mine.py:Small", "plan": {"epochs": 1, "batch": 16}}
NAMES = "code/mine.py:Careful", "code/mine.py:noise"


def test_own_things_run_by_file(folder: Path) -> None:
    record = perdure.run(*NAMES, **OWN, settings={"images": 60}, tasks=2)
    assert (record["method"], record["network"], record["benchmark"]) == (
        "mine.py:Careful",
        "mine.py:Small",
        "mine.py:noise",
    )
    assert Path(record["path"]).parts[:3] == ("runs", "noise", "Careful")
    assert record["task_names"] == ["one", "two"]
    assert record["values"] == {"heads": True}
    assert set(record["code"]) == {"method", "network", "benchmark"}
    assert record["code"]["method"]["where"] == f"{folder / 'code/mine.py'}:Careful"
    assert perdure.run(*NAMES, **OWN, settings={"images": 60}, tasks=2)["already_done"]


@pytest.mark.usefixtures("jobs_here")
def test_own_augmentations_run_by_file_and_by_themselves(folder: Path) -> None:
    plan = {"epochs": 1, "augment": "flip+code/mine.py:darker"}
    record = perdure.run("finetune", "synthetic", net="mlp", tasks=1, plan=plan)
    assert record["plan"]["augment"] == "flip+mine.py:darker"
    assert set(record["code"]) == {"augmentation mine.py:darker"}
    forget()
    with pytest.raises(WrongValue, match="--code"):
        perdure.load(record)
    assert perdure.load(record, code=folder / "code/mine.py").spec.plan.augment == "flip+mine.py:darker"
    forget()
    result = perdure.compare(["finetune"], "synthetic", seeds=[1], net="mlp", tasks=1, plan=plan)
    assert not result.failed
    assert result.runs[0].record["path"] == record["path"]
    assert perdure.run("finetune", "synthetic", net="mlp", tasks=1, plan={"epochs": 1, "augment": half})["plan"] == {
        **record["plan"],
        "augment": "test_own_things.py:half",
    }


def half(pixels: Any) -> Any:
    return pixels / 2


def test_an_edited_file_is_another_run_and_another_place_is_not(folder: Path) -> None:
    first = spec("code/mine.py:Careful", "six")
    assert first.digest() == spec("code/mine.py:Careful", "six").digest()
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere/mine.py").write_text(MINE)
    assert spec("elsewhere/mine.py:Careful", "six").digest() == first.digest()
    (folder / "code/mine.py").write_text(MINE + "\n# edited")
    assert spec("code/mine.py:Careful", "six").digest() != first.digest()
    assert "code" not in spec("gpm", "six").plain()


def test_other_data_from_the_same_function_are_another_run(folder: Path) -> None:
    (folder / "code/neighbor.py").write_text("WIDTH = 8\nSHIFT = 0")
    (folder / "code/mine.py").write_text(MINE.replace("default_rng(seed)", "default_rng(seed + neighbor.SHIFT)"))
    one = perdure.run("finetune", "code/mine.py:noise", **OWN)["path"]
    sys.modules["neighbor"].SHIFT = 1  # which no checksum of the file can tell  # type: ignore[attr-defined]
    assert perdure.run("finetune", "code/mine.py:noise", **OWN)["path"] != one
    sys.modules["neighbor"].SHIFT = 0  # type: ignore[attr-defined]
    assert perdure.run("finetune", "code/mine.py:noise", **OWN)["path"] == one


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("code/mine.py:Carefl", "did you mean Careful"),
        ("code/none.py:Careful", r"code/none.py: cannot be read .* name a Python file"),
        (
            "code/mine.py:Small",
            "mine.py:Small cannot be a method, which is a class that extends perdure.methods.method",
        ),
        ("code/mine.py:five", "cannot be a method"),
    ],
)
def test_wrong_names_are_one_line(folder: Path, name: str, message: str) -> None:  # noqa: ARG001
    with pytest.raises((WrongValue, UnknownName), match=message):
        perdure.run(name, "synthetic")


def test_a_file_that_fails_is_one_line_with_its_place(folder: Path) -> None:
    (folder / "bad.py").write_text("x = 1\n\nraise ValueError('no\\ngood')\n")
    with pytest.raises(WrongValue, match=r"^bad.py, line 3: ValueError: no good$"):
        perdure.run("bad.py:X", "six")
    (folder / "worse.py").write_text("def f(:\n")
    with pytest.raises(WrongValue, match=r"^worse.py: SyntaxError"):
        perdure.run("worse.py:X", "six")
    with pytest.raises(WrongValue, match="must return a Stream or a list of tasks, not int"):
        perdure.run("gpm", "code/mine.py:nothing")


def test_a_record_cannot_make_anybody_run_a_file(folder: Path) -> None:
    record = perdure.run(*NAMES, **OWN)
    forget()
    for open_it in (lambda: perdure.load(record["path"]), lambda: perdure.probe("calibration", record["path"])):
        with pytest.raises(WrongValue, match=r"mine.py, a file of yours that is run only if you name it: .*--code"):
            open_it()
    assert perdure.load(record["path"], code="code/mine.py").matrix == record["accuracy_matrix"]
    forget()
    (report,) = perdure.probe("code/mine.py:Tasks", record["path"], code=["code/mine.py"], pictures=False)
    assert report.results[0].headline == {"tasks": 3.0}
    forget()
    (folder / "code/mine.py").write_text(MINE + "\n# edited")
    with pytest.raises(WrongValue, match="has changed since"):
        perdure.load(record["path"], code="code/mine.py")


@pytest.mark.usefixtures("jobs_here")
def test_they_enter_comparisons_studies_searches_and_probes(folder: Path) -> None:
    result = perdure.compare(["finetune", NAMES[0]], NAMES[1], seeds=[1, 2], **OWN, values={NAMES[0]: {"heads": False}})
    assert not result.failed
    assert [group.method for group in result.groups] == ["finetune", "mine.py:Careful"]
    assert result.runs[1].record["values"] == {"heads": False}
    (folder / "code/own.toml").write_text(
        'methods = ["mine.py:Careful"]\nbenchmarks = ["mine.py:noise"]\nseeds = [1]\nnetwork = "mine.py:Small"\n'
        'probes = ["mine.py:Tasks"]\nplan = {epochs = 1}\nagainst = "mine.py:Careful"\n'
    )
    forget()
    result = perdure.study("code/own.toml")  # files are looked for beside it
    assert [run.state for run in result.runs] == ["done"]
    assert result.measured == ["tasks"]
    forget()
    found = perdure.search(*NAMES, ["plan.rate=0.01,0.1"], trials=1, tasks=2, **OWN)
    assert found.best is not None
    reports = perdure.probe(["calibration"], [NAMES[0]], pictures=False)
    assert len(reports[0].results) >= 2


def test_classes_stand_for_names(folder: Path) -> None:  # noqa: ARG001
    assert spec(FineTune, "six").method == "finetune"
    assert spec(FineTune, "six").plain() == spec("finetune", "six").plain()

    class Mine(FineTune):
        pass

    asked = spec(Mine, "six")
    assert (asked.method, asked.code["method"]["where"]) == ("Mine", f"{Path(__file__).resolve()}:{Mine.__qualname__}")
    assert perdure.register(Mine, "mine") == "mine"
    assert "mine" in perdure.catalog("methods")
    record = perdure.run("mine", "synthetic", net="mlp", tasks=1, plan={"epochs": 1})
    assert record["method"] == "mine"
    with pytest.raises(WrongValue, match="gpm is a method of perdure"):
        perdure.register(Mine, "gpm")
    with pytest.raises(WrongValue, match="none of"):
        perdure.register(5)  # type: ignore[arg-type]


def test_what_is_typed_into_a_prompt_runs_here_but_not_in_a_study(folder: Path) -> None:  # noqa: ARG001
    names: dict[str, Any] = {"FineTune": FineTune, "__name__": "prompt"}
    exec("class Typed(FineTune):\n  def remedy(self): return 'one'", names)
    first = spec(names["Typed"], "six")
    assert first.code["method"]["where"] == ""
    with pytest.raises(WrongValue, match=r"typed into a prompt, .* put it into a file"):
        perdure.compare([names["Typed"]], "synthetic", seeds=[1], tasks=1, plan={"epochs": 1})
    exec("class Typed(FineTune):\n  def remedy(self): return 'two'", names)
    assert spec(names["Typed"], "six").digest() != first.digest()


@pytest.mark.thorough
def test_a_script_that_names_itself(folder: Path) -> None:
    """Its runs are other processes, which read it without running what it does as a program."""
    (folder / "script.py").write_text(
        MINE.replace("import neighbor\n", "").replace("neighbor.WIDTH", "8") + "\nif __name__ == '__main__':\n"
        "    import perdure\n"
        "    result = perdure.compare([Careful], noise, net=Small, seeds=[1], plan={'epochs': 1})\n"
        "    assert not result.failed, result.failed[0].error\n"
        "    loaded = perdure.load(result.runs[0].record['path'])\n"
        "    print(len(loaded.matrix), type(loaded.method) is Careful)\n"
    )
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True)
    assert done.stdout == "3 True\n", done.stderr
    (folder / "open.py").write_text(
        "import perdure\nfrom perdure import Method\nclass Mine(Method):\n    pass\n"
        "r = perdure.compare([Mine], 'synthetic', seeds=[1], tasks=1, plan={'epochs': 1})\nprint(r.runs[0].error)\n"
    )
    done = subprocess.run([sys.executable, "open.py"], capture_output=True, text=True, timeout=120)
    assert "open.py starts runs when it is imported; put them under" in done.stdout


@pytest.mark.usefixtures("jobs_here")
def test_errors_of_ones_own_code_name_their_line_in_a_comparison(folder: Path) -> None:
    (folder / "wrong.py").write_text(
        "from perdure import Method\nclass Wrong(Method):\n    def gradient(self, batch):\n        return {}['heads']\n"
    )
    result = perdure.compare(["wrong.py:Wrong"], "synthetic", seeds=[1], net="mlp", tasks=1, plan={"epochs": 1})
    assert [run.error for run in result.failed] == ["wrong.py, line 4: KeyError: 'heads'"]
    assert repr(result).endswith(": 0 of 1 runs done)")


@pytest.mark.usefixtures("folder", "jobs_here")
@pytest.mark.thorough  # tests above have it in Python
def test_on_the_command_line() -> None:
    def cli(*words: str) -> Answer:
        forget()  # as another process would not know it
        return command(*words)

    quick = ("--net", "code/mine.py:Small", "--plan", "epochs=1", "--json")
    record = json.loads(cli("run", *NAMES, *quick).stdout)
    assert record["method"] == "mine.py:Careful"
    found = json.loads(cli("compare", "finetune", *NAMES, "--seeds", "1", *quick).stdout)
    assert [group["method"] for group in found["groups"]] == ["finetune", "mine.py:Careful"]
    refused = cli("probe", Path(record["path"]).name, "calibration")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--code" in refused.stderr
    measured = json.loads(
        cli("probe", Path(record["path"]).name, "calibration", "--code", NAMES[0][:-8], "--json").stdout
    )
    assert list(measured["probes"]) == ["calibration"]
    by_name = json.loads(cli("probe", "code/mine.py:Careful", "code/mine.py:Tasks", "--json").stdout)
    assert len(by_name["probes"]) == 1
    wrong = cli("compare", "gpm", "six", "--set", "threshold=0.9")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "METHOD.NAME=VALUE" in wrong.stderr
    assert "no benchmark among gpm" in cli("compare", "gpm").stderr
    shown = json.loads(cli("show", NAMES[0], "--on", NAMES[1], "--json").stdout)
    assert (shown["benchmark"], shown["values"]["heads"]["value"]) == ("mine.py:noise", True)
    assert "presets" not in cli("show", NAMES[0]).stdout
