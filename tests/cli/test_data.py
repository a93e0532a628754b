"""`perdure data`: what it prints, and how it fails."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from perdure.cli.main import app
from perdure.data.catalog import MNIST, SETS, USES

cli = CliRunner()


def ask(*words):
    done = cli.invoke(app, ["data", *map(str, words)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.astype(np.uint8).tobytes()


@pytest.fixture
def some_mnist(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        y = np.arange(40) % 10
        x = np.random.RandomState(len(part)).randint(0, 256, (40, 28, 28))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(x)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(y)))
    return tmp_path


def test_ls_names_every_set_and_finds_what_is_there(some_mnist):
    shown = ask("ls", "--root", some_mnist).stdout
    assert all(name in shown for name in SETS)
    data = json.loads(ask("ls", "--root", some_mnist, "--json").stdout)
    found = {row["name"]: row["found"] for row in data["sets"]}
    assert found.pop("mnist") == str(some_mnist / "MNIST/raw")
    assert set(found.values()) == {None}
    assert {row["name"]: row["benchmarks"] for row in data["sets"]}["mnist"] == ["five", "pmnist"]


def test_check_says_in_one_line_what_the_data_are_worth(some_mnist):
    done = ask("check", "mnist", "--root", some_mnist)
    assert done.exit_code == 0
    assert done.stdout.strip().splitlines()[-1].strip() == (
        "subset: compare methods with each other, not with published figures "
        "(40 images to train on and 40 to test, of 60000 and 10000 published)"
    )
    data = json.loads(ask("check", "mnist", "--root", some_mnist, "--json").stdout)
    assert data["failed"] == []
    assert data["sets"][0]["completeness"] == "subset"


def test_check_of_a_benchmark_examines_what_is_there_and_names_what_is_not(some_mnist):
    done = ask("check", "five", "--root", some_mnist)
    assert done.exit_code == 1
    assert "mnist: MNIST, IDX" in done.stdout
    missing = [line for line in done.stderr.splitlines() if line.startswith("perdure: no ")]
    assert len(missing) == 4


def test_fetch_without_a_way_to_fetch(tmp_path):
    done = ask("fetch", "miniimagenet", "--root", tmp_path, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["files"] == []
    assert "put train.pkl, test.pkl into" in json.loads(done.stdout)["failed"][0]


def test_fetch_goes_on_with_the_others_when_one_fails(tmp_path, monkeypatch):
    calls = []

    def fetch(download, *_args, **_kwargs):
        calls.append(download.name)
        return "fetched from nowhere"

    monkeypatch.setattr("perdure.data.locate.fetch", fetch)
    impossible = replace(MNIST, downloads=())
    monkeypatch.setitem(USES, "five", (impossible, SETS["svhn"]))
    done = ask("fetch", "five", "--root", tmp_path)
    assert done.exit_code == 1
    assert calls == ["train_32x32.mat", "test_32x32.mat"]
    assert "train_32x32.mat: fetched from nowhere" in done.stderr


def test_fetch_of_what_is_there(some_mnist, monkeypatch):
    monkeypatch.setattr("perdure.data.locate._unofficial", lambda *_: [])
    done = ask("fetch", "mnist", "--root", some_mnist)
    assert done.exit_code == 0
    assert "MNIST: already there" in done.stderr


@pytest.fixture
def photos(tmp_path):
    """Two tasks of two classes of small pictures."""
    for number, name in enumerate(("pets/cat", "pets/dog", "trees/elm", "trees/oak")):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for i in range(12):
            pixels = np.random.RandomState(20 * number + i).randint(60 * number, 60 * number + 60, (20, 30, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return tmp_path / "photos"


def test_own_images_are_learned_with_no_code(photos, tmp_path):
    words = [
        "run",
        "gpm",
        f"folder:{photos}",
        "--data",
        "size=32",
        "--plan",
        "epochs=2",
        "--out",
        str(tmp_path / "runs"),
    ]
    done = cli.invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["task_names"] == ["pets", "trees"]
    assert record["data"]["completeness"] == "own data"
    assert record["settings"]["size"] == 32
    assert "/folder-photos/gpm/" in record["path"]
    # The same images in another place are the same run.
    (tmp_path / "elsewhere").mkdir()
    moved = photos.rename(tmp_path / "elsewhere" / "photos")
    words[2] = f"folder:{moved}"
    assert json.loads(cli.invoke(app, [*words, "--json"]).stdout)["path"] == record["path"]
    (moved / "pets/cat/0.png").unlink()
    assert json.loads(cli.invoke(app, [*words, "--json"]).stdout)["path"] != record["path"]


def test_check_of_own_images(photos):
    assert "own data: 48 images in 2 tasks" in ask("check", f"folder:{photos}").stdout
    (photos / "pets/cat/bad.png").write_text("no picture")
    (photos / "pets/dog/copy.png").write_bytes((photos / "pets/cat/3.png").read_bytes())
    shown = ask("check", f"folder:{photos}").stdout
    assert "1 images cannot be read (pets/cat/bad.png)" in shown
    assert "pets: 1 images are there with more than one label" in shown
    assert "something to mend" in shown


def test_names_of_folders_are_printed_as_they_are(photos):
    """Rich would read [/x] as the end of a style."""
    photos.with_name("q[").mkdir()
    strange = photos.rename(photos.with_name("q[") / "x]")
    done = ask("check", f"folder:{strange}")
    assert f"folder:{strange}: folder, in {strange}" in done.stdout
    assert f"setsin{strange}" in "".join(ask("ls", "--root", strange).stdout.split())  # it is wrapped


def test_ls_names_the_others_where_one_may_not_be_read(some_mnist, monkeypatch):
    is_file = Path.is_file

    def refuse(path):
        if "svhn" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    done = ask("ls", "--root", some_mnist, "--json")
    found = {row["name"]: row["found"] for row in json.loads(done.stdout)["sets"]}
    assert (found["mnist"], found["svhn"]) == (str(some_mnist / "MNIST/raw"), None)
    assert done.stderr.startswith(f"perdure: {some_mnist / 'svhn/train_32x32.mat'}: cannot be read (Permission denied)")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data", "check", "folder:"], "say which folder, as folder:PATH"),
        (["data", "check", "folder"], "say which folder, as folder:PATH"),
        (["run", "gpm", "folder"], "say which folder, as folder:PATH"),
        (["run", "gpm", "six:here"], "leave out 'here'"),
        (["run", "gpm", "six", "--data", "size=3"], "unknown setting of six 'size'"),
        (["run", "gpm", "five", "--data", "legacy=perhaps"], "legacy takes true or false"),
    ],
)
def test_settings_asked_wrongly(words, message):
    done = cli.invoke(app, words)
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.parametrize("verb", ["fetch", "check"])
def test_unknown_name_lists_the_near_ones(verb):
    done = ask(verb, "mnst")
    assert done.exit_code == 2
    assert "did you mean mnist" in done.stderr
    assert done.stderr.count("\n") == 1
