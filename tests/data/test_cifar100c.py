"""CIFAR-100-C from small files in its layout: every task gets the corrupted images of its own test."""

from contextlib import suppress

import numpy as np
import pytest
import torch

from perdure.data.benchmarks.cifar100 import cifar100
from perdure.data.benchmarks.cifar100c import CorruptedTests
from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import BadData, MissingFile, UnknownName, WrongValue
from perdure.types import Stream

PER_CLASS = 3
N = 100 * PER_CLASS


def write_clean(folder, labels, seed=1):
    """CIFAR-100 in its binary layout; a test image holds its row number in its first two pixels."""
    pixels = np.random.RandomState(seed).randint(0, 256, (len(labels), 3, 32, 32)).astype(np.uint8)
    pixels[:, 0, 0, 0], pixels[:, 0, 0, 1] = np.divmod(np.arange(len(labels)), 256)
    columns = np.stack([labels // 5, labels], axis=1).astype(np.uint8)
    content = np.concatenate([columns, pixels.reshape(len(labels), -1)], axis=1).tobytes()
    (folder / "test.bin").write_bytes(content)
    (folder / "train.bin").write_bytes(content)
    return pixels


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    labels = np.random.RandomState(2).permutation(np.repeat(np.arange(100), PER_CLASS))
    pixels = write_clean(folder, labels)
    return cifar100(seed=1, root=folder), pixels, labels


@pytest.fixture
def folder(tmp_path, clean):
    """The corrupted images are the clean ones, with the severity in one place that was 0 or more in them."""
    _, pixels, labels = clean
    each = []
    for severity in range(1, 6):
        images = pixels.transpose(0, 2, 3, 1).copy()
        images[:, 5, 7, 2] = severity
        each.append(images)
    np.save(tmp_path / "fog.npy", np.concatenate(each))
    np.save(tmp_path / "jpeg_compression.npy", 255 - np.concatenate(each))
    np.save(tmp_path / "labels.npy", np.tile(labels, 5).astype(np.uint8))
    return tmp_path


def test_corrupted_images_are_those_of_the_same_images(clean, folder):
    stream = clean[0]
    for severity in (1, 3, 5):
        found = CorruptedTests(folder, stream)("fog", severity)
        assert len(found) == 10
        for task, split in zip(stream, found, strict=True):
            assert split.x.shape == task.test.x.shape
            assert split.x.is_contiguous()
            assert torch.equal(split.y, task.test.y)
            assert (split.mean, split.std) == (task.test.mean, task.test.std)
            assert (split.x[:, 2, 5, 7] == severity).all()
            back = split.x.clone()
            back[:, 2, 5, 7] = task.test.x[:, 2, 5, 7]
            assert torch.equal(back, task.test.x)


def test_other_corruption_and_fewer_tasks(clean, folder):
    whole, *_ = clean
    few = type(whole)(whole.name, whole.tasks[:2])
    corrupted = CorruptedTests(folder, few)
    assert corrupted.kinds == ("fog", "jpeg_compression")
    found = corrupted("jpeg_compression", 2)
    assert len(found) == 2
    assert torch.equal(found[1].x[:, 0, 0, 0], 255 - few.tasks[1].test.x[:, 0, 0, 0])


def test_nothing_there(tmp_path, clean):
    with pytest.raises(MissingFile, match=f"no CIFAR-100-C in {tmp_path}: unpack"):
        CorruptedTests(tmp_path, clean[0])
    with pytest.raises(MissingFile, match="no CIFAR-100-C in"):
        CorruptedTests(tmp_path / "nowhere", clean[0])


def test_wrong_requests(clean, folder):
    with pytest.raises(
        UnknownName, match=r"unknown corruption 'frog'; did you mean fog\? \(all: fog, jpeg_compression\)"
    ):
        CorruptedTests(folder, clean[0])("frog", 1)
    for severity in (0, 6):
        with pytest.raises(WrongValue, match=f"severity={severity} is not allowed"):
            CorruptedTests(folder, clean[0])("fog", severity)
    with pytest.raises(WrongValue, match="has the images of cifar100, not of synthetic"):
        CorruptedTests(folder, synthetic(seed=1))("fog", 1)
    (folder / "labels.npy").unlink()
    with pytest.raises(MissingFile, match=f"{folder / 'labels.npy'}: not there"):
        CorruptedTests(folder, clean[0])("fog", 1)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((5 * N, 3, 32, 32), np.uint8),
        np.zeros((5 * N, 32, 32, 3), np.float32),
        np.zeros((N, 32, 32, 3), np.uint8),
    ],
    ids=["planes first", "floats", "one severity"],
)
def test_wrong_images(clean, folder, wrong):
    np.save(folder / "fog.npy", wrong)
    with pytest.raises(BadData, match=rf"fog.npy: holds .* instead of uint8 \({5 * N}, 32, 32, 3\)"):
        CorruptedTests(folder, clean[0])("fog", 1)


def test_files_that_are_no_arrays(clean, folder):
    np.save(folder / "fog.npy", np.array([{"an": "object"}], dtype=object), allow_pickle=True)
    with pytest.raises(BadData, match=r"fog.npy: cannot be read"):
        CorruptedTests(folder, clean[0])("fog", 1)
    for content in (b"", b"nothing of numpy"):
        (folder / "fog.npy").write_bytes(content)
        with pytest.raises(BadData, match=r"fog.npy: cannot be read"):
            CorruptedTests(folder, clean[0])("fog", 1)
    whole = (folder / "jpeg_compression.npy").read_bytes()
    (folder / "jpeg_compression.npy").write_bytes(whole[:-1000])
    with pytest.raises(BadData, match=r"jpeg_compression.npy: cannot be read"):
        CorruptedTests(folder, clean[0])("jpeg_compression", 1)


def swapped(labels):
    """Two images of one task, but of different classes, change places."""
    mixed = labels.copy()
    one, other = np.flatnonzero(labels == 3)[0], np.flatnonzero(labels == 4)[0]
    mixed[[one, other]] = labels[[other, one]]
    return np.tile(mixed, 5)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (swapped, "not the test images of 'cifar100-0' in their order"),
        (lambda labels: np.tile(labels[: N - 1], 5), "not the test images of 'cifar100-"),
        (lambda labels: np.tile(labels // 5, 5), "not the test images of 'cifar100-0'"),
        (lambda labels: np.concatenate([np.tile(labels, 4), labels[::-1]]), "labels of the five severities differ"),
        (lambda labels: np.tile(labels, 5).astype(float), "instead of 50000 whole numbers"),
        (lambda labels: np.tile(labels, 5)[:-1], "instead of 50000 whole numbers"),
        (lambda labels: labels[:0], "instead of 50000 whole numbers"),
        (lambda labels: np.tile(labels, (5, 1)), "instead of 50000 whole numbers"),
    ],
)
def test_wrong_labels(clean, folder, spoil, says):
    np.save(folder / "labels.npy", spoil(clean[2]))
    with pytest.raises(BadData, match=f"labels.npy: .*{says}"):
        CorruptedTests(folder, clean[0])("fog", 1)


def test_one_wrong_byte_in_a_header(clean, folder):
    """Whatever numpy makes of it: one line, or the images as they were."""
    path, corrupted = folder / "fog.npy", CorruptedTests(folder, Stream("cifar100", clean[0].tasks[:1]))
    wanted = corrupted("fog", 2)[0].x
    good = path.read_bytes()
    for at in range(128):
        for flip in (1, 8, 0x20, 0x80):
            with path.open("r+b") as file:
                file.write(good[:at] + bytes([good[at] ^ flip]) + good[at + 1 : 128])
            with suppress(BadData):
                assert torch.equal(corrupted("fog", 2)[0].x, wanted), (at, flip)
