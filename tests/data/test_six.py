"""The benchmark that is shipped: six tasks of real images."""

import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import perdure.data
from perdure.data.benchmarks import six as module
from perdure.data.benchmarks.six import CHECKSUMS, checksum, cut_sheet, lay_sheet, read_sheet, six
from perdure.errors import BadData, WrongValue

SIX = Path(perdure.data.__file__).parent / "six"


def color(images):
    """Images (n, 3, 32, 32) of a sheet's, made here once more."""
    if images.ndim == 4:
        return images.transpose(0, 3, 1, 2)
    return np.repeat(np.pad(images, ((0, 0), (2, 2), (2, 2)))[:, None], 3, axis=1)


@pytest.fixture(scope="module")
def stream():
    return six(seed=1)


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The shipped folder, where it may be spoiled."""
    folder = Path(shutil.copytree(SIX, tmp_path / "six"))
    monkeypatch.setattr(module, "FOLDER", folder)
    return folder


def test_six_tasks_in_order(stream):
    assert {task.name: task.classes for task in stream} == {
        "cifar10-a": ("airplane", "automobile", "bird", "cat", "deer"),
        "mnist-a": ("0", "1", "2", "3", "4"),
        "fashion-a": ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        "cifar10-b": ("dog", "frog", "horse", "ship", "truck"),
        "mnist-b": ("5", "6", "7", "8", "9"),
        "fashion-b": ("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    }
    assert [task.name[:-2] for task in stream] == ["cifar10", "mnist", "fashion"] * 2
    assert stream.shape == (3, 32, 32)
    assert stream.notes["completeness"] == "subset"


def test_counts(stream):
    for task in stream:
        counts = [part.y.bincount().tolist() for part in (task.train, task.valid, task.test)]
        assert counts == [[90] * 5, [10] * 5, [50] * 5]


@pytest.mark.parametrize(("source", "shape"), [("cifar10", (32, 32, 3)), ("mnist", (28, 28)), ("fashion", (28, 28))])
def test_pixels_are_those_of_the_source(source, shape):
    images = read_sheet(source)
    assert images.shape == (1500, *shape)
    assert checksum(images) == CHECKSUMS[source]


@pytest.mark.parametrize(("number", "half"), [(0, 0), (1, 0), (2, 0), (3, 5), (4, 5), (5, 5)])
def test_every_image_has_its_own_label(stream, number, half):
    task = stream.tasks[number]
    images = color(read_sheet(task.name[:-2]))
    for parts, start, each in (((task.train, task.valid), 0, 100), ((task.test,), 1000, 50)):
        found = sorted((int(y), x.numpy().tobytes()) for part in parts for x, y in zip(part.x, part.y, strict=True))
        first = start + half * each
        expected = sorted((row // each, images[first + row].tobytes()) for row in range(5 * each))
        assert found == expected


def test_labels_are_right_to_a_simple_classifier(stream):
    """A nearest class mean, which knows nothing of how the sheets are laid, tells digits and clothes apart."""
    for task in stream:
        x, y = task.train.x.flatten(1).float(), task.train.y
        means = torch.stack([x[y == label].mean(0) for label in range(5)])
        guess = torch.cdist(task.test.x.flatten(1).float(), means).argmin(1)
        accuracy = (guess == task.test.y).float().mean().item()
        assert accuracy > (0.3 if task.name.startswith("cifar10") else 0.75)


def test_gray_images_are_padded_and_copied(stream):
    for task in stream:
        x = task.train.x
        gray = not task.name.startswith("cifar10")
        assert bool((x[:, 0] == x[:, 1]).all() and (x[:, 1] == x[:, 2]).all()) == gray
        border = torch.cat([x[..., :2, :], x[..., -2:, :], x[..., :2].mT, x[..., -2:].mT], dim=-2)
        assert bool((border == 0).all()) == gray
        assert x[..., 2:-2, 2:-2].any()


def test_normalized_pixels_are_about_zero_with_deviation_one():
    for source, (mean, std) in module.SCALES.items():
        pixels = color(read_sheet(source)) / 255
        assert np.abs(pixels.mean((0, 2, 3)) - mean).max() < 0.02
        assert np.abs(pixels.std((0, 2, 3)) - std).max() < 0.02


def test_batches_mix_classes(stream):
    for task in stream:
        for part in (task.train, task.valid, task.test):
            assert min(len(y.unique()) for _, y in part.batches(25)) >= 3


def test_seed_changes_which_images_validate_and_nothing_else(stream):
    again, other = six(seed=1), six(seed=2)
    for task, same, new in zip(stream, again, other, strict=True):
        assert same.train.x.equal(task.train.x)
        assert same.valid.x.equal(task.valid.x)
        assert not new.valid.x.equal(task.valid.x)
        assert new.test.x.equal(task.test.x)
        assert new.test.y.equal(task.test.y)


def test_first_tasks_only(stream, copied):
    (copied / "fashion.webp").unlink()  # not needed for the first two
    few = six(seed=1, tasks=2)
    assert [task.name for task in few] == ["cifar10-a", "mnist-a"]
    assert few.tasks[1].train.x.equal(stream.tasks[1].train.x)
    assert few.notes["tasks"] == "2 of 6"
    for tasks in (0, 7):
        with pytest.raises(WrongValue, match="use 1 to 6"):
            six(seed=1, tasks=tasks)


def test_share_to_validate_with():
    task = six(seed=1, tasks=1, valid_share=0.25).tasks[0]
    assert (len(task.train), task.valid.y.bincount().tolist()) == (375, [25] * 5)


@pytest.mark.parametrize("damage", ["missing", "cut short", "empty", "one pixel", "another size"])
def test_damaged_sheet(copied, damage):
    path = copied / "mnist.webp"
    content = path.read_bytes()
    path.unlink()
    if damage == "cut short":
        path.write_bytes(content[:1000])
    if damage == "empty":
        path.write_bytes(b"")
    if damage in ("one pixel", "another size"):
        with Image.open(SIX / "mnist.webp") as image:
            sheet = np.array(image)
        if damage == "one pixel":
            sheet[100, 100] ^= 1
        else:
            sheet = sheet[:, :-1]
        Image.fromarray(sheet).save(path, lossless=True)
    with pytest.raises(BadData, match="reinstall perdure") as caught:
        six(seed=1)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("shape", [(100, 4, 4, 3), (150, 5, 5)])
def test_sheets_are_cut_as_they_are_laid(shape):
    images = np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)
    sheet = lay_sheet(images)
    side = shape[1]
    assert sheet.shape[:2] == (shape[0] // 50 * side, 50 * side)
    assert np.array_equal(sheet[side : 2 * side, side : 2 * side], images[51])
    if len(shape) == 3:
        sheet = np.repeat(sheet[..., None], 3, axis=2)
        images = np.repeat(images[..., None], 3, axis=3)
    assert np.array_equal(cut_sheet(sheet, side), images)


def test_terms_are_shipped_and_the_sheets_are_small():
    terms = (SIX / "TERMS.md").read_text()
    for needed in ("Krizhevsky", "LeCun, Corinna Cortes and Christopher J. C. Burges", "Zalando", "CC BY-SA 3.0"):
        assert needed in terms
    assert sum(path.stat().st_size for path in SIX.iterdir()) < 3.5e6


def test_decoding_is_fast():
    read_sheet("mnist")  # the first call loads Pillow's reader
    start = time.process_time()
    for source in CHECKSUMS:
        read_sheet(source)
    assert time.process_time() - start < 0.5
