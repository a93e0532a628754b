"""The learner on the command line: three months with their folders deleted in between, and exit codes."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from command import perdure
from shop import as_folder, month

PLAN = ("--plan", "epochs=15", "--plan", "rate=0.1", "--plan", "batch=16", "--plan", "momentum=0")
OWN = """
import sys
sys.path.insert(0, {folder!r})
from shop import small_cnn

def network(shape):
    return small_cnn()
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "own.py").write_text(OWN.format(folder=str(Path(__file__).parent)))
    return tmp_path


def test_three_months_without_old_images(shop: Path) -> None:
    net = ("--net", "own.py:network")
    made = perdure("create", "s", *net, "--input", "12", *PLAN, cwd=shop)
    assert (made.returncode, made.stdout) == (0, "revision 1: s\n"), made.stderr
    codes = []
    for number, name in enumerate(("october", "november", "december")):
        folder = as_folder(shop / name, month(number))
        limits = shop / "limits.toml"
        rows = [f'{old} = "tests/{old}"' for old in ("october", "november")[:number]]
        limits.write_text("accuracy = 10\nrobust = 30\ncalibration = 30\nsteps = 2\n[tests]\n" + "\n".join(rows))
        found = perdure("learn", "s", name, *net, "--limits", "limits.toml", cwd=shop)
        assert "Traceback" not in found.stderr
        codes.append(found.returncode)
        as_folder(shop / "tests" / name, month(number, 30, seed=1))
        shutil.rmtree(folder)
        shutil.rmtree(shop / "cache", ignore_errors=True)
    assert codes == [0, 0, 0]

    pictures = sorted((shop / "tests" / "october").rglob("*.png"))
    said = perdure("predict", "s", *map(str, pictures), "--task", "october", "--csv", *net, cwd=shop)
    rows = list(csv.DictReader(io.StringIO(said.stdout)))
    right = [row["class"] == Path(row["image"]).parent.name for row in rows]
    assert sum(right) >= 0.9 * len(right)
    assert {row["revision"] for row in rows} == {"4"}
    as_data = json.loads(perdure("predict", "s", str(pictures[0]), "--json", *net, cwd=shop).stdout)
    assert as_data[0]["task"] == "october"

    listed = perdure("tasks", "s", *net, cwd=shop).stdout
    assert all(name in listed for name in ("october", "november", "december", "learn december", "4 *"))
    checked = perdure("check", "s", "--limits", "limits.toml", *net, "--json", cwd=shop)
    assert (checked.returncode, json.loads(checked.stdout)["verdict"]) == (0, "passed")
    assert perdure("check", "s", *net, cwd=shop).returncode == 3
    strict = shop / "strict.toml"
    strict.write_text('accuracy = 0\ncertain = true\n[tests]\noctober = "tests/october"\n')
    assert perdure("check", "s", "--limits", "strict.toml", *net, cwd=shop).returncode == 1
    held = json.loads(perdure("held", "s", *net, "--json", cwd=shop).stdout)
    assert held["bytes"] == sum(path.stat().st_size for path in (shop / "s").rglob("*") if path.is_file())
    assert "## Room left" in perdure("card", "s", *net, cwd=shop).stdout
    assert perdure("rollback", "s", "2", *net, cwd=shop).stdout == "revision 2 is in use\n"
    assert "november" not in json.loads(perdure("tasks", "s", *net, "--json", cwd=shop).stdout)["tasks"][0]["name"]
    assert "is forgotten" in perdure("forget", "s", "october", *net, cwd=shop).stdout


def test_wrong_usage_is_one_line(shop: Path, state: Path) -> None:
    for words, why in (
        (("create", "s", "--net", "nonesuch", "--input", "12"), "unknown network"),
        (("create", "s", "--net", "mlp", "--input", "x"), "input="),
        (("create", "s", "--net", "mlp", "--input", "12", "--mean", "a"), "--mean a: write numbers"),
        (("learn", "nowhere", "folder"), "no learner is there"),
        (("learn", str(state), "folder", "--net", "own.py:network"), "no such folder"),
        (("tasks", str(state)), "give it again"),
        (("predict", str(state), "none.png", "--net", "own.py:network", "--task", "first"), "none.png"),
        (("export", str(state), "m", "--onnx", "--torch", "--net", "own.py:network"), "choose one"),
        (("check", str(state), "--limits", "none.toml", "--net", "own.py:network"), "no such file of limits"),
    ):
        found = perdure(*words, cwd=shop)
        assert found.returncode in (1, 2)
        assert why in found.stderr
        assert found.stderr.count("\n") == 1
