"""A folder of images as a stream; folders in another form give one clear line that names all that is wrong."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_files import one_line, picture
from PIL import Image

from perdure.data.arrays import mean_and_std
from perdure.data.benchmarks import folder as module
from perdure.data.benchmarks.folder import folder, make_tasks, read_folder, scan_folder
from perdure.data.cache import Decoded
from perdure.data.validate import check_folder
from perdure.errors import BadData, MissingFile, WrongValue
from perdure.schema import checked, values_of


def build(top: Path, *places: str, images: int = 4) -> Path:
    """A folder with so many images in each place; a place may end in :n for n of them, or be the name of a file."""
    top.mkdir(exist_ok=True)
    for place in places:
        name, _, count = place.partition(":")
        if Path(name).suffix == ".png":
            picture(top / name)
        elif Path(name).suffix:
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text("something else")
        else:
            (top / name).mkdir(parents=True, exist_ok=True)
            for number in range(int(count or images)):
                picture(top / name / f"{number}.png", level=10 * number)
    return top


GOOD = ("t1/cat", "t1/dog", "t2/oak", "t2/elm")


@pytest.fixture
def made(tmp_path):
    return lambda *places, **values: build(tmp_path / "pets", *places, **values)


# --- what is right is read right ---


def test_a_stream(made):
    stream = folder(path=made(*GOOD, images=10), seed=1, size=8)
    assert [task.name for task in stream] == ["t1", "t2"]
    assert [task.classes for task in stream] == [("cat", "dog"), ("elm", "oak")]
    assert stream.shape == (3, 8, 8)
    for task in stream:
        assert [len(part) for part in (task.train, task.valid, task.test)] == [14, 2, 4]
        seen = [x.unique().tolist() for part in (task.train, task.valid, task.test) for x in part.x]
        assert sorted(seen) == sorted([[10 * number] for number in range(10)] * 2)
        assert (task.train.mean, task.train.std) == mean_and_std(task.train.x)
    assert stream.name == "folder"
    assert stream.notes == {
        "source": "folder",
        "completeness": "own data",
        "size": "8 × 8, short side scaled and the center cut out",
        "split": "test: 0.2 of every class; validation: 0.1 of every class's other images; drawn by the seed",
        "tasks": "2 of 2",
        "copies": "10 image files are in more than one class: "
        + ", ".join(f"t1/cat/{n}.png = t1/dog/{n}.png = t2/elm/{n}.png" for n in range(5))
        + " and 5 more",
    }


def test_labels_follow_their_folders(made):
    path = made(*(f"t1/{name}:0" for name in "bca"), "t2/x", "t2/y")
    for level, name in enumerate("abc"):
        for number in range(6):
            picture(path / "t1" / name / f"{number}.png", level)
    task = folder(path=path, seed=1, size=4).tasks[0]
    for part in (task.train, task.valid, task.test):
        assert part.x[:, 0, 0, 0].tolist() == part.y.tolist()


def test_order_is_natural(made):
    path = made(*(f"{task}/{name}" for task in ("task10", "task2", "Task1") for name in ("c10", "c9")))
    stream = folder(path=path, seed=1, size=4)
    assert [task.name for task in stream] == ["Task1", "task2", "task10"]
    assert stream.tasks[0].classes == ("c9", "c10")


def test_seed_and_shares(made):
    path = made(*GOOD, images=20)
    first = folder(path=path, seed=1, size=4, valid_share=0.25, test_share=0.4).tasks[0]
    assert [len(part) for part in (first.train, first.valid, first.test)] == [18, 6, 16]
    again = folder(path=path, seed=1, size=4, valid_share=0.25, test_share=0.4).tasks[0]
    other = folder(path=path, seed=2, size=4, valid_share=0.25, test_share=0.4).tasks[0]
    assert first.test.x.equal(again.test.x)
    assert not first.test.x.equal(other.test.x)


def test_test_folder(made):
    path = made(*GOOD, "t1/test/cat:3", "t1/test/dog:2")
    stream = folder(path=path, seed=1, size=4)
    first, second = stream
    assert first.test.y.tolist() == [0, 0, 0, 1, 1]
    assert first.test.x[:, 0, 0, 0].tolist() == [0, 10, 20, 0, 10]
    assert len(first.train) + len(first.valid) == 8
    assert len(second.train) + len(second.valid) + len(second.test) == 8
    assert stream.notes["split"].startswith("test: folder test (1 of 2 tasks), else 0.2 of every class; validation")
    alone = folder(path=path, seed=1, size=4, tasks=1).notes
    assert alone["split"].startswith("test: folder test; validation")
    assert alone["tasks"] == "1 of 2"


@pytest.mark.parametrize("names", [("train", "test"), ("Train", "TEST")])
def test_train_and_test_folders(made, names):
    train, test = names
    path = made(f"t/{train}/cat", f"t/{train}/dog", f"t/{test}/dog:3")
    (task,) = folder(path=path, seed=1, size=4)
    assert task.classes == ("cat", "dog")
    assert task.test.y.tolist() == [1, 1, 1]  # a test may have some of the classes only
    assert len(task.train) + len(task.valid) == 8


def test_train_folder_alone(made):
    (task,) = folder(path=made("t/train/cat", "t/train/dog"), seed=1, size=4)
    assert task.classes == ("cat", "dog")
    assert len(task.test) == 2


def test_a_class_may_be_called_train(made):
    (task,) = folder(path=made("t/train", "t/car", "t/test/train:2"), seed=1, size=4)
    assert task.classes == ("car", "train")
    assert task.test.y.tolist() == [1, 1]


def test_a_class_may_be_in_two_tasks(made):
    stream = folder(path=made("t1/cat", "t1/dog", "t2/cat", "t2/elm"), seed=1, size=4)
    assert [task.classes for task in stream] == [("cat", "dog"), ("cat", "elm")]


def test_tasks_keeps_the_first_and_reads_no_others(made):
    path = made(*GOOD, "t3/a", "t3/b")
    (path / "t3" / "a" / "0.png").write_bytes(b"not an image")
    stream = folder(path=path, seed=1, size=4, tasks=2)
    assert [task.name for task in stream] == ["t1", "t2"]
    assert stream.notes["tasks"] == "2 of 3"
    whole = folder(path=made(*GOOD), seed=1, size=4, tasks=1).tasks[0]
    assert stream.tasks[0].train.x.equal(whole.train.x)
    for wrong in (0, 4):
        with pytest.raises(WrongValue, match="use 1 to 3"):
            folder(path=path, seed=1, tasks=wrong)


def test_hidden_and_other_files_are_left_out(made):
    places = (".cache/x:1", ".DS_Store.png", "t1/.cache:1", "t1/.x.png", "t1/cat/.x.png", "t1/notes.txt", "list.csv")
    path = made(*GOOD, *places, "t1/cat/notes.txt", "t1/cat/a.heic")
    stream = folder(path=path, seed=1, size=4)
    assert sum(len(part) for part in (stream.tasks[0].train, stream.tasks[0].valid, stream.tasks[0].test)) == 8
    assert stream.notes["ignored"] == "2 files that do not end like an image: t1/cat/a.heic, t1/cat/notes.txt"


def test_sizes_gray_and_colored_images_together(made):
    path = made(*GOOD)
    picture(path / "t1" / "cat" / "wide.png", 7, (30, 10))
    picture(path / "t1" / "cat" / "gray.jpg", 77, (5, 9), "L")
    picture(path / "t2" / "oak" / "tall.gif", 5, (4, 40), "L")
    stream = folder(path=path, seed=1)
    assert stream.shape == (3, 64, 64)
    assert stream.notes["size"].startswith("64 × 64,")


def test_symbolic_links(made, tmp_path):
    path = made(*GOOD)
    far = build(tmp_path / "far", "bird")
    (path / "t1" / "bird").symlink_to(far / "bird")
    (path / "t1" / "cat" / "linked.png").symlink_to(far / "bird" / "0.png")
    (path / "t1" / "cat" / "broken.png").symlink_to(far / "absent.png")
    (task, _) = folder(path=path, seed=1, size=4)
    assert task.classes == ("bird", "cat", "dog")
    assert sum(map(len, (task.train, task.valid, task.test))) == 13


def test_links_that_lead_nowhere_are_left_out_and_named(made, tmp_path):
    path = made(*GOOD, "t2/test/oak:1")
    (path / "t1" / "cat" / "broken.png").symlink_to(tmp_path / "absent.png")
    for circle in ("t1/cat/circle.png", "t1/class", "t2/test/x", "t3"):
        (path / circle).symlink_to(path / circle)
    stream = folder(path=path, seed=1, size=4)
    assert [len(task.classes) for task in stream] == [2, 2]
    named = "t3, t1/cat/broken.png, t1/cat/circle.png, t1/class, t2/test/x"
    assert stream.notes["links"].startswith("5 that lead nowhere were left out: ")
    assert sorted(stream.notes["links"].partition(": ")[2].split(", ")) == sorted(named.split(", "))
    (found,) = [f for f in check_folder(path).findings if "links" in f.text]
    assert found.level == "note"
    assert found.text.startswith("5 links lead nowhere (")


def test_a_file_in_two_classes_is_named(made):
    path = made()
    for number, name in enumerate(f"{place}/{n}" for place in GOOD for n in range(4)):
        picture(path / f"{name}.png", level=number)
    assert "copies" not in folder(path=path, seed=1, size=4).notes
    copy = path / "t2" / "oak" / "9.png"
    copy.write_bytes((path / "t1" / "dog" / "1.png").read_bytes())
    (path / "t1" / "dog" / "9.png").write_bytes((path / "t1" / "dog" / "2.png").read_bytes())  # of the same class
    says = "1 image files are in more than one class"
    assert folder(path=path, seed=1, size=4).notes["copies"] == f"{says}: t1/dog/1.png = t2/oak/9.png"
    assert f"{says} (t1/dog/1.png = t2/oak/9.png)" in [finding.text for finding in check_folder(path).findings]


def test_no_user_of_that_name():
    with pytest.raises(WrongValue, match="~nobody-here/x: there is no user of that name here; write the path without"):
        scan_folder(Path("~nobody-here/x"))


def test_home_is_known(made, monkeypatch):
    monkeypatch.setenv("HOME", str(made(*GOOD).parent))
    assert len(folder(path=Path("~/pets"), seed=1, size=4)) == 2


NAMES = ["猫", "🐕 dog", "Ü b;c", "a,b", "[x]", "%s{}", "-rf", "ف‌ا"]


def test_names_in_any_script(made):
    stream = folder(
        path=made(*(f"{name}/{name}" for name in NAMES), *(f"{name}/other" for name in NAMES)), seed=1, size=4
    )
    assert sorted(task.name for task in stream) == sorted(NAMES)
    assert all(task.name in task.classes for task in stream)


def test_names_that_cannot_be_printed(made):
    path = made(*GOOD, "t1/two\nlines")
    bad = Path(os.fsdecode(os.fsencode(path / "t1") + b"/latin\xe9"))
    build(bad.parent, bad.name)
    task = folder(path=path, seed=1, size=4).tasks[0]
    assert task.classes == ("cat", "dog", "latin\\udce9", "two\\nlines")
    json.dumps(task.classes, ensure_ascii=False).encode()


def test_accents_stored_in_two_ways_are_one_name(made):
    (task,) = folder(path=made("t/train/caf\u00e9", "t/train/dog", "t/test/cafe\u0301:3"), seed=1, size=4)
    assert task.classes == ("café", "dog")
    assert task.test.y.tolist() == [0, 0, 0]
    path = made("u/caf\u00e9", "u/cafe\u0301")
    with pytest.raises(BadData, match="differ only in how accents are stored: u/café; rename"):
        folder(path=path, seed=1)


def test_values_are_a_schema():
    values = values_of(folder)
    assert values["size"].about == "pixels: each image becomes size × size, once"
    assert all(values[name].about for name in ("size", "valid_share", "test_share", "skip_unreadable"))
    assert checked("folder", folder, {"size": "32", "skip_unreadable": "true"}) == {"size": 32, "skip_unreadable": True}
    for wrong in ({"size": 0}, {"valid_share": 1.5}, {"skip_unreadable": "perhaps"}):
        with pytest.raises(WrongValue):
            checked("folder", folder, wrong)


@pytest.mark.parametrize("values", [{"valid_share": 0.0}, {"test_share": 1.0}])
def test_shares_of_nothing_and_of_all(made, values):
    with pytest.raises(WrongValue, match=f"{next(iter(values))}=.* use a number between 0 and 1"):
        folder(path=made(*GOOD), seed=1, **values)


# --- surveying and decoding ---


def test_survey_is_in_reading_order_and_opens_nothing(made, monkeypatch):
    path = made("t10/b:2", "t10/a:1", "t2/x:1", "t2/y:1", "t2/test/x:1")
    monkeypatch.setattr(module, "read_images", None)
    monkeypatch.setattr(Image, "open", None)
    names = [str(file.relative_to(path)) for file in scan_folder(path).files()]
    assert names == ["t2/x/0.png", "t2/y/0.png", "t2/test/x/0.png", "t10/a/0.png", "t10/b/0.png", "t10/b/1.png"]


def test_decoded_is_flat_and_survives_json(made):
    path = made(*GOOD, "t1/test/dog:2", images=5)
    decoded = read_folder(scan_folder(path), 4)
    assert decoded.tensors["x"].shape == (22, 3, 4, 4)
    assert decoded.tensors["x"].dtype == torch.uint8
    assert decoded.tensors["y"].tolist() == [0] * 5 + [1] * 5 + [1] * 2 + [0] * 5 + [1] * 5
    assert decoded.facts.pop("fingerprint")
    assert decoded.facts.pop("copies")[0] == "t1/cat/0.png = t1/dog/0.png = t1/test/dog/0.png"
    assert decoded.facts == {
        "tasks": [
            {"name": "t1", "classes": ["cat", "dog"], "train": [0, 10], "test": [10, 12]},
            {"name": "t2", "classes": ["elm", "oak"], "train": [12, 22], "test": None},
        ],
        "unreadable": [],
    }
    copy = Decoded(decoded.tensors, json.loads(json.dumps(decoded.facts)))
    shares = {"seed": 1, "valid_share": 0.1, "test_share": 0.2}
    for one, other in zip(make_tasks(copy, **shares), folder(path=path, size=4, **shares), strict=True):
        assert one.train.x.equal(other.train.x)
        assert one.test.y.equal(other.test.y)
        assert one.train.mean == other.train.mean


def test_fingerprint_changes_with_what_changes_numbers(tmp_path):
    def of(name: str, *places: str, level: int = 9, **values) -> str:
        path = build(tmp_path / name, *places)
        for file in scan_folder(path).files():
            picture(file, level)  # all alike, so that only their places differ
        return folder(path=path, seed=1, **({"size": 4} | values)).fingerprint

    first = of("first", *GOOD)
    assert of("elsewhere", *GOOD) == first
    assert of("other names", "one/a", "one/b", "two/c", "two/d") == first
    others = [
        of("other pixels", *GOOD, level=8),
        of("more images", *GOOD, "t1/cow"),
        of("other labels", "t1/cat:3", "t1/dog:5", "t2/elm", "t2/oak"),
        of("a test", "t1/cat", "t1/dog", "t1/test/cat", "t1/test/dog"),
        of("other size", *GOOD, size=5),
        of("first task", *GOOD, tasks=1),
    ]
    assert len({first, *others}) == len(others) + 1


# --- what cannot be read ---


def spoil(path: Path, *names: str) -> None:
    for name in names:
        (path / name).write_bytes(b"not an image")


def test_unreadable_images_are_all_named(made):
    path = made(*GOOD, "t2/test/oak:2")
    spoil(path, "t1/cat/1.png", "t2/oak/3.png", "t2/test/oak/0.png")
    with pytest.raises(BadData) as caught:
        folder(path=path, seed=1, size=4)
    one_line(caught.value, path, 300, ())
    for name in ("t1/cat/1.png", "t2/oak/3.png", "t2/test/oak/0.png", "skip_unreadable"):
        assert name in str(caught.value)


def test_unreadable_images_can_be_left_out(made):
    path = made(*GOOD, "t2/test/oak:2", images=5)
    spoil(path, "t1/cat/0.png", "t1/cat/4.png", "t2/oak/3.png", "t2/test/oak/0.png")
    first, second = stream = folder(path=path, seed=1, size=4, skip_unreadable=True)
    labels = torch.cat([first.train.y, first.valid.y, first.test.y])
    assert torch.bincount(labels).tolist() == [3, 5]
    cats = [part.x[part.y == 0][:, 0, 0, 0].tolist() for part in (first.train, first.valid, first.test)]
    assert sorted(sum(cats, start=[])) == [10, 20, 30]  # noqa: RUF017
    assert second.test.x[:, 0, 0, 0].tolist() == [10]
    listed = "t1/cat/0.png, t1/cat/4.png, t2/oak/3.png, t2/test/oak/0.png"
    assert stream.notes["unreadable"] == f"4 left out: {listed}"


def test_a_class_that_is_left_with_too_few(made):
    path = made(*GOOD)
    spoil(path, "t1/cat/0.png", "t1/cat/1.png")
    with pytest.raises(BadData, match=r"'t1', train: too few images of cat \(2\); .*could not be read and were left"):
        folder(path=path, seed=1, size=4, skip_unreadable=True)
    spoil(path, "t1/cat/2.png", "t1/cat/3.png")
    with pytest.raises(BadData, match=r"'t1', train: no images of class cat; .*could not be read and were left"):
        folder(path=path, seed=1, size=4, skip_unreadable=True)


def test_too_few_though_all_could_be_read(made):
    decoded = read_folder(scan_folder(made(*GOOD)), 4)
    with pytest.raises(BadData, match=r"'t1', train: too few images of cat \(4\), dog \(4\); .* or leave it out$"):
        make_tasks(decoded, seed=1, valid_share=0.9, test_share=0.9)


def test_all_images_unreadable(made):
    path = made(*GOOD)
    spoil(path, *(str(file.relative_to(path)) for file in scan_folder(path).files()))
    with pytest.raises(BadData, match="'t1', train: no images"):
        folder(path=path, seed=1, size=4, skip_unreadable=True)


# --- folders in another form ---

SHOWN = "FOLDER/task/class/image.jpg"
BAD = {
    "nothing": ((), f"holds nothing instead of folders; .*{SHOWN}"),
    "hidden folders alone": ((".t/a",), "holds nothing instead of folders"),
    "files alone": (("a.txt",), "holds nothing instead of folders"),
    "images alone": (("a.png", "b.png"), f"holds images instead of folders; .*{SHOWN}"),
    "a single task": (("cat", "dog"), r"its folders \(cat, dog\) hold images; put your class folders into"),
    "a single task in two parts": (("train/cat", "train/dog", "test/cat", "test/dog"), "holds test and train, as"),
    "a test for all tasks": ((*GOOD, "Test/cat"), "holds Test, as a task does; put them into a folder per task"),
    "image beside tasks": ((*GOOD, "x.png"), "images outside of class folders: x.png; put them into the folder of"),
    "images beside classes": (
        (*GOOD, "t1/x.png", "t1/y.png", "t2/z.png"), "images outside of class folders: t1/x.png, t1/y.png, t2/z.png; "),
    "images beside test classes": ((*GOOD, "t1/test/cat", "t1/test/x.png"), "outside of class folders: t1/test/x.png"),
    "images in test": ((*GOOD, "t1/test"), f"no class folders in t1/test; .*{SHOWN}"),
    "empty test": ((*GOOD, "t1/test:0"), "no class folders in t1/test; "),
    "images beside classes to train on": (("t/train/a", "t/train/b", "t/train/x.png"), "outside of .*: t/train/x.png"),
    "empty tasks": ((*GOOD, "t3:0", "t4:0"), f"no class folders in t3, t4; .*{SHOWN}"),
    "a task without classes": ((*GOOD, "t3"), "no class folders in t3; "),
    "a task with a test alone": ((*GOOD, "t3/test/a"), "no class folders in t3; "),
    "many empty tasks": ((*GOOD, *(f"x{n}:0" for n in range(9))), "in x0, x1, x2, x3, x4 and 4 more; "),
    "validation images apart": (
        ("t/train/a", "t/train/b", "t/val/a", "t/test/a"), "folders beside train and test: t/val; put their images"),
    "train and val": (("t/train/a", "t/train/b", "t/val/a", "t/val/b"), "folders beside train and test: t/val; "),
    "folders in classes": ((*GOOD, "t1/cat/more", "t2/oak/more"), "folders inside class folders: t1/cat, t2/oak; a"),
    "one level too many": (("x/t1/cat/a", "x/t2/oak/a"), f"folders inside class folders: x/t1, x/t2; .*{SHOWN}"),
    "classes without images": ((*GOOD, "t1/a:0", "t2/b:0"), r"no images in t1/a, t2/b; add some \(.*\.jpg.*\), or"),
    "class of other files": ((*GOOD, "t1/a/x.heic"), "no images in t1/a; add some"),
    "test class without images": ((*GOOD, "t1/test/cat:0"), "no images in t1/test/cat; "),
    "test classes that train lacks": (
        (*GOOD, "t1/test/cat", "t1/test/cow", "t2/test/fir"),
        "test classes without training images: t1/test/cow, t2/test/fir; add images to train on"),
    "tasks of one class": ((*GOOD, "t3/a", "t4/b"), "only one class in t3, t4; a task needs two"),
    "task of one class to train on": ((*GOOD, "t3/train/a", "t3/test/a"), "only one class in t3/train; "),
    "classes of too few images": (
        (*GOOD, "t1/a:1", "t2/b:2"), r"too few images of t1/a \(1\), t2/b \(2\); a class needs 3 for valid_share"),
    "class of too few images beside a test": (
        (*GOOD, "t1/a:1", "t1/test/a"), r"too few images of t1/a \(1\); a class needs 2 for valid_share=0.1: add some"),
    "a name of two lines": ((*GOOD, "t1/a\nb:0"), r"no images in t1/a\\nb; "),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_folder(made, monkeypatch, case):
    places, says = BAD[case]
    path = made(*places)
    monkeypatch.setattr(module, "read_images", None)  # the form is checked before anything is decoded
    with pytest.raises(BadData, match=says) as caught:
        folder(path=path, seed=1)
    one_line(caught.value, path, 300, ())


def test_no_such_folder(tmp_path):
    for absent in (tmp_path / "absent", tmp_path / "absent" / "further", Path("a\0b")):
        with pytest.raises(MissingFile, match=r"no such folder; put images as FOLDER/task/class/image.jpg") as caught:
            folder(path=absent, seed=1)
        assert "\0" not in str(caught.value)


def test_a_file(tmp_path):
    path = picture(tmp_path / "cat.png")
    with pytest.raises(BadData, match=f"a file, not a folder; .*{SHOWN}") as caught:
        folder(path=path, seed=1)
    one_line(caught.value, path, 300, ())
    with pytest.raises(BadData, match=r"cannot be read|no such folder"):
        folder(path=path / "further", seed=1)


def test_a_folder_that_may_not_be_read(made, monkeypatch):
    path, scan = made(*GOOD), os.scandir

    def refuse(place):
        if Path(place).name == "cat":
            raise PermissionError(13, "Permission denied")
        return scan(place)

    monkeypatch.setattr(os, "scandir", refuse)  # as root, permissions would not stop us
    with pytest.raises(BadData, match=r"cat: cannot be read \(Permission denied\); check") as caught:
        folder(path=path, seed=1)
    one_line(caught.value, path, 300, ())


IMAGES = st.sampled_from([3, 4, 5, 6, 3, 4, 5, 6, 2, 1, 0])
CLASSES = st.dictionaries(st.sampled_from(["cat", "dog", "owl"]), IMAGES, min_size=1)
EXTRAS = st.sampled_from([{}, {}, {"x.png": 1}, {".x": 2}, {"val": {"cat": 2}}, {"cat": {"more": 1}}])
TASKS = st.one_of(
    CLASSES,
    st.builds(dict, CLASSES, test=CLASSES),
    st.builds(dict, train=CLASSES, test=CLASSES),
    st.builds(dict, train=st.one_of(CLASSES, IMAGES), dog=IMAGES),
    st.builds(lambda task, extra: task | extra, CLASSES, EXTRAS),
)
TREES = st.dictionaries(st.sampled_from(["t1", "t2", "t10", ".x"]), TASKS)


def plant(path: Path, tree: object) -> None:
    """Dictionaries are folders, numbers are folders of so many images; a name with a suffix is an image."""
    if path.suffix == ".png" and not path.name.startswith("."):
        picture(path, size=(2, 2))
    elif isinstance(tree, dict):
        path.mkdir()
        for name, inner in tree.items():
            plant(path / name, inner)
    else:
        path.mkdir()
        for number in range(tree):
            picture(path / f"{number}.png", size=(2, 2))


@settings(
    max_examples=100, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(tree=TREES)
def test_any_folder_is_a_stream_or_one_line(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("any") / "top"
    plant(path, tree)
    try:
        stream = folder(path=path, seed=1, size=2)
    except BadData as error:
        one_line(error, path if str(path) in str(error) else "task '", 300, ())
        return
    images = sum(len(part) for task in stream for part in (task.train, task.valid, task.test))
    assert images == len(scan_folder(path).files())


def test_what_is_read_is_what_pillow_reads(made):
    path = made(*GOOD, images=3)
    pixels = np.random.RandomState(0).randint(0, 256, (6, 6, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path / "t1" / "cat" / "9.png")
    x = read_folder(scan_folder(path), 6).tensors["x"]
    assert x[3].equal(torch.tensor(pixels.transpose(2, 0, 1).copy()))
