"""CIFAR-100 from small files in the official layouts: what is found, what is said when it is not."""

import hashlib
import pickle
from dataclasses import replace

import numpy as np
import pytest

from perdure.data.benchmarks.cifar100 import cifar100
from perdure.data.catalog import CIFAR100
from perdure.data.tasks import split_rows
from perdure.errors import BadData, MissingFile, WrongValue

NAMES = [f"thing_{number}" for number in range(100)]
TRAIN, TEST = 4, 2  # images per class


def records(per_class: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels in mixed order; the first two pixels of an image hold its row number."""
    chance = np.random.RandomState(seed)
    labels = chance.permutation(np.repeat(np.arange(100), per_class))
    pixels = np.zeros((len(labels), 3072), np.uint8)
    pixels[:, 0], pixels[:, 1] = np.divmod(np.arange(len(labels)), 256)
    return pixels, labels


def write_binary(folder, train: int = TRAIN, test: int = TEST) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, per_class, seed in (("train.bin", train, 1), ("test.bin", test, 2)):
        pixels, labels = records(per_class, seed)
        columns = np.stack([labels // 5, labels], axis=1).astype(np.uint8)
        (folder / name).write_bytes(np.concatenate([columns, pixels], axis=1).tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(NAMES) + "\n")


def write_python(folder) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, per_class, seed in (("train", TRAIN, 1), ("test", TEST, 2)):
        pixels, labels = records(per_class, seed)
        content = {"data": pixels, "fine_labels": labels.tolist(), "coarse_labels": (labels // 5).tolist()}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    names = {b"fine_label_names": [name.encode() for name in NAMES]}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))


LAYOUTS = {"cifar-100-binary": write_binary, "cifar-100-python": write_python}


@pytest.mark.parametrize("inside", [False, True], ids=["root above", "root itself"])
@pytest.mark.parametrize("kind", LAYOUTS)
def test_ten_tasks_of_ten_classes(tmp_path, kind, inside):
    LAYOUTS[kind](tmp_path / kind)
    stream = cifar100(seed=3, root=tmp_path / kind if inside else tmp_path)
    labels, test_labels = records(TRAIN, 1)[1], records(TEST, 2)[1]
    assert stream.notes == {
        "source": kind,
        "completeness": "subset",
        "reason": "cifar100: 400 images to train on and 200 to test, of 50000 and 10000 published",
        "tasks": "10 of 10",
    }
    assert [task.name for task in stream] == [f"cifar100-{number}" for number in range(10)]
    assert stream.shape == (3, 32, 32)
    for number, task in enumerate(stream):
        assert task.classes == tuple(NAMES[10 * number : 10 * number + 10])
        # Each part holds exactly the rows that the rule names, in that order, with their own labels.
        source = np.flatnonzero(labels // 10 == number)
        train, valid = (source[rows] for rows in split_rows(10 * TRAIN, 0.05, seed=3))
        test = np.flatnonzero(test_labels // 10 == number)
        for part, rows, all_labels in (
            (task.train, train, labels),
            (task.valid, valid, labels),
            (task.test, test, test_labels),
        ):
            found = part.x[:, 0, 0, 0].long() * 256 + part.x[:, 0, 0, 1]
            assert found.tolist() == rows.tolist()
            assert part.y.tolist() == (all_labels[rows] - 10 * number).tolist()


def test_root_from_the_environment(tmp_path, monkeypatch):
    write_binary(tmp_path / "cifar-100-binary")
    monkeypatch.setenv("PERDURE_DATA", str(tmp_path))
    assert len(cifar100(seed=1)) == 10


def test_first_tasks_only(tmp_path):
    write_binary(tmp_path)
    few, all_ten = cifar100(seed=1, root=tmp_path, tasks=2), cifar100(seed=1, root=tmp_path)
    assert few.notes["tasks"] == "2 of 10"
    assert len(few) == 2
    assert few.tasks[1].train.x.equal(all_ten.tasks[1].train.x)
    with pytest.raises(WrongValue, match="use 1 to 10"):
        cifar100(seed=1, root=tmp_path, tasks=11)


def test_class_names_left_out(tmp_path):
    write_binary(tmp_path)
    (tmp_path / "fine_label_names.txt").unlink()
    assert cifar100(seed=1, root=tmp_path).tasks[3].classes[:2] == ("30", "31")


def test_whole_layout_wins_over_a_broken_one(tmp_path):
    write_binary(tmp_path / "cifar-100-binary")
    write_python(tmp_path / "cifar-100-python")
    assert cifar100(seed=1, root=tmp_path).notes["source"] == "cifar-100-binary"
    (tmp_path / "cifar-100-binary" / "test.bin").unlink()
    assert cifar100(seed=1, root=tmp_path).notes["source"] == "cifar-100-python"


def test_folders_called_train_and_test_are_not_the_files(tmp_path):
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
    with pytest.raises(MissingFile, match="no CIFAR-100 in"):
        cifar100(seed=1, root=tmp_path)


def test_classes_that_are_not_there(tmp_path):
    write_binary(tmp_path)
    for name in ("train.bin", "test.bin"):
        content = np.frombuffer((tmp_path / name).read_bytes(), np.uint8).reshape(-1, 3074)
        (tmp_path / name).write_bytes(content[content[:, 1] < 20].tobytes())
    assert len(cifar100(seed=1, root=tmp_path, tasks=2)) == 2
    with pytest.raises(BadData, match=r"no images of classes 20, 21, .*29 here; ask for fewer tasks"):
        cifar100(seed=1, root=tmp_path)


def test_official_bytes_are_complete(tmp_path, monkeypatch):
    write_binary(tmp_path)
    for names in (("train.bin",), ("test.bin",), ("train.bin", "test.bin")):
        md5 = {name: hashlib.md5((tmp_path / name).read_bytes()).hexdigest() for name in names}
        layout = replace(CIFAR100.layouts[0], md5=CIFAR100.layouts[0].md5 | md5)
        monkeypatch.setattr("perdure.data.benchmarks.cifar100.CIFAR100", replace(CIFAR100, layouts=(layout,)))
        monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "-".join(names)))
        assert cifar100(seed=1, root=tmp_path).notes["completeness"] == ("complete" if len(names) == 2 else "subset")


def test_classes_in_random_order_are_drawn_by_the_seed(tmp_path) -> None:
    write_binary(tmp_path / "cifar-100-binary", train=20)
    usual, drawn, again, other = (
        [task.classes for task in cifar100(seed=seed, root=tmp_path, order=order)]
        for seed, order in ((1, "index"), (1, "random"), (1, "random"), (2, "random"))
    )
    assert usual == [tuple(NAMES[first : first + 10]) for first in range(0, 100, 10)]
    assert drawn == again != other
    for found in (drawn, other):
        assert found != usual
        assert sorted(name for classes in found for name in classes) == sorted(NAMES)
