"""Rows, roots and tasks made of arrays."""

from pathlib import Path

import numpy as np
import pytest
import torch

from perdure.data.paths import data_root
from perdure.data.tasks import make_task, split_rows, split_rows_by_class, task_count
from perdure.errors import BadData, WrongValue

SCALE = {"mean": (0.5,) * 3, "std": (0.25,) * 3}


def numbered(n: int, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Images whose every pixel is their row number."""
    x = np.broadcast_to(np.arange(n, dtype=np.uint8)[:, None, None, None], (n, 3, 4, 4))
    return x, np.arange(n) % classes


def test_split_is_the_published_one():
    train, valid = split_rows(5000, 0.05, seed=1)
    assert valid[:6].tolist() == [2764, 4767, 3814, 3499, 2735, 3922]
    assert (len(train), len(valid)) == (4750, 250)
    expected = np.arange(5000)
    np.random.RandomState(1).shuffle(expected)
    assert torch.cat([valid, train]).tolist() == expected.tolist()


def test_split_covers_each_row_once_and_follows_the_seed():
    train, valid = split_rows(101, 0.1, seed=3)
    assert len(valid) == 10
    assert sorted([*train.tolist(), *valid.tolist()]) == list(range(101))
    assert split_rows(101, 0.1, seed=3)[1].equal(valid)
    assert not split_rows(101, 0.1, seed=4)[1].equal(valid)


def test_split_by_class_holds_out_the_same_share_of_each():
    y = torch.tensor([0] * 20 + [1] * 40 + [2] * 10)
    train, valid = split_rows_by_class(y, 0.1, seed=1)
    assert torch.bincount(y[valid]).tolist() == [2, 4, 1]
    assert sorted([*train.tolist(), *valid.tolist()]) == list(range(70))
    assert not split_rows_by_class(y, 0.1, seed=2)[1].equal(valid)


def test_split_by_class_holds_out_so_many_at_least():
    y = torch.tensor([0] * 40 + [1] * 20 + [2] * 4)
    train, valid = split_rows_by_class(y, 0.1, seed=1, least=3)
    assert torch.bincount(y[valid]).tolist() == [4, 3, 3]
    assert sorted([*train.tolist(), *valid.tolist()]) == list(range(64))


@pytest.mark.parametrize(
    ("n", "share", "seed", "says"),
    [
        *((100, share, 1, "valid_share") for share in (0.0, 1.0, -0.1, 1.5)),
        *((100, 0.1, seed, "seed") for seed in (-1, 2**32)),
        (10, 0.05, 1, r"0\.05 of 10 images"),
        (0, 0.05, 1, r"0\.05 of 0 images"),
    ],
)
def test_split_that_cannot_be(n, share, seed, says):
    with pytest.raises(WrongValue, match=says):
        split_rows(n, share, seed)


def test_share_too_small_for_a_class():
    with pytest.raises(WrongValue, match=r"0\.1 of 4 images"):
        split_rows_by_class(np.array([0] * 20 + [1] * 4), 0.1, seed=1)


@pytest.mark.parametrize("kind", ["array", "read-only array", "tensor", "int32 labels", "uint8 labels"])
def test_make_task_takes_arrays_and_tensors(kind):
    x, y = numbered(40)
    if kind == "array":
        x = x.copy()
    if kind == "tensor":
        x, y = torch.tensor(x.copy()), torch.tensor(y)
    if "labels" in kind:
        y = y.astype(kind.split()[0])
    task = make_task("t", ["even", "odd"], (x, y), (x, y), valid_share=0.1, seed=1, **SCALE)
    train, valid = split_rows(40, 0.1, seed=1)
    assert task.train.x[:, 0, 0, 0].tolist() == train.tolist()
    assert task.valid.x[:, 0, 0, 0].tolist() == valid.tolist()
    assert task.test.x[:, 0, 0, 0].tolist() == list(range(40))
    for part in (task.train, task.valid, task.test):
        assert part.y.tolist() == [row % 2 for row in part.x[:, 0, 0, 0].tolist()]
        assert (part.mean, part.std) == (SCALE["mean"], SCALE["std"])
    assert task.classes == ("even", "odd")


def test_make_task_does_not_share_memory_with_its_source():
    x, y = numbered(40)
    x = x.copy()
    task = make_task("t", "ab", (x, y), (x, y), valid_share=0.1, seed=1, **SCALE)
    before = task.test.x.clone()
    x[:] = 99
    assert task.test.x.equal(before)


def test_a_task_is_printed_without_its_images():
    task = make_task("t", "ab", numbered(40), numbered(10), valid_share=0.1, seed=1, **SCALE)
    assert "train=Split(36 images of 3×4×4), valid=Split(4 images of 3×4×4), test=Split(10 images of 3×4×4)" in repr(
        task
    )
    assert "tensor" not in repr(task)


def test_make_task_by_class():
    x, y = numbered(40, classes=4)
    task = make_task("t", "abcd", (x, y), (x, y), valid_share=0.2, seed=1, by_class=True, **SCALE)
    assert torch.bincount(task.valid.y).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda x, y: (x, y[:-1]), "40 images but 39 labels"),
        (lambda x, y: (x, y + 1), "labels reach from 1 to 2"),
        (lambda x, y: (x, y.astype(float)), "int64"),
        (lambda x, y: (x.reshape(40, -1), y), r"must be \(n, channels"),
        (lambda x, y: (x.astype(float), y), r"lie in \[0, 1\]"),
    ],
)
def test_make_task_refuses_bad_arrays(spoil, says):
    good = numbered(40)
    for train, test in ((spoil(*good), good), (good, spoil(*good))):
        with pytest.raises(BadData, match=says) as caught:
            make_task("t", "ab", train, test, valid_share=0.1, seed=1, **SCALE)
        assert "'t'" in str(caught.value)


def test_data_root(monkeypatch, tmp_path):
    monkeypatch.setenv("PERDURE_DATA", str(tmp_path / "named"))
    assert data_root(tmp_path / "given") == tmp_path / "given"
    assert data_root(None) == tmp_path / "named"
    assert data_root(Path("~/images")) == Path.home() / "images"
    monkeypatch.setenv("PERDURE_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root(None).name == "perdure"
    assert data_root(None) != Path()


def test_task_count():
    assert task_count(None, 10) == 10
    assert task_count(10, 10) == 10
    for asked in (0, 11, -1):
        with pytest.raises(WrongValue, match="use 1 to 10"):
            task_count(asked, 10)
