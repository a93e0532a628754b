"""CIFAR-100 from the official files, where they can be had."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from perdure.data.cifar100 import LAYOUTS, MEAN, STD, cifar100

# Workers that share a group unpack the files once (with --dist loadgroup).
pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cifar100")]

UNPACK = Path(__file__).resolve().parents[3] / "shared" / "data" / "unpack"


@pytest.fixture(scope="module")
def real_cifar100(tmp_path_factory):
    """A folder that holds CIFAR-100."""
    named = os.environ.get("PERDURE_DATA")
    if named and any((Path(named) / kind / names[0]).is_file() for kind, names in LAYOUTS.items()):
        yield Path(named)
    elif UNPACK.is_file():
        folder = tmp_path_factory.mktemp("real")
        subprocess.run([sys.executable, UNPACK, "--to", folder, "--only", "cifar100"], check=True, capture_output=True)
        yield folder
        shutil.rmtree(folder)
    else:
        pytest.skip("no CIFAR-100: point PERDURE_DATA at a folder that has cifar-100-binary or cifar-100-python")


@pytest.fixture(scope="module")
def stream(real_cifar100):
    return cifar100(seed=1, root=real_cifar100)


def test_complete(stream):
    assert stream.notes["completeness"] == "complete"
    assert stream.notes["tasks"] == "10 of 10"
    assert stream.tasks[0].classes[:3] == ("apple", "aquarium_fish", "baby")
    assert stream.tasks[9].classes[-1] == "worm"


def test_counts_and_labels(stream):
    for task in stream:
        assert [len(part) for part in (task.train, task.valid, task.test)] == [4750, 250, 1000]
        assert task.test.y.bincount().tolist() == [100] * 10
        assert torch.cat([task.train.y, task.valid.y]).bincount().tolist() == [500] * 10
    # The official test file begins with classes 49, 33, 72, 51, 71, 92, 15: source order is kept within a task.
    first = {number: task.test.y[0].item() for number, task in enumerate(stream)}
    assert [first[number] for number in (4, 3, 7, 5, 9, 1)] == [9, 3, 2, 1, 2, 5]


def test_mean_and_deviation_of_pixels(stream):
    parts = [part for task in stream for part in (task.train, task.valid)]
    assert sum(map(len, parts)) == 50000
    pixels = (part.x.float() / 255 for part in parts)
    moments = torch.cat([torch.stack([x.mean((2, 3)), x.square().mean((2, 3))]) for x in pixels], dim=1)
    mean, square = moments.double().mean(1)
    std = (square - mean.square()).sqrt()
    assert mean.tolist() == pytest.approx([0.50708, 0.48655, 0.44092], abs=1e-5)
    assert std.tolist() == pytest.approx([0.26733, 0.25644, 0.27615], abs=1e-5)
    # The constants that published runs normalize with are those of CIFAR-10, a little off here.
    assert mean.tolist() == pytest.approx(MEAN, abs=0.021)
    assert std.tolist() == pytest.approx(STD, abs=0.021)


def test_validation_rows_are_the_published_ones(stream):
    # Of seed 1 they are rows 2764, 4767, … within the task; the md5s were taken from those rows of train.bin.
    task = stream.tasks[0]
    found = [hashlib.md5(part.x.numpy().tobytes()).hexdigest() for part in (task.train, task.valid, task.test)]
    assert found == [
        "1ba8ada14a3b9584fd3f9ed5ec8c80f3",
        "e55ee2d803a8010c359881770c3b0c00",
        "0187d8ac7f8f61e51f0ce1fa44450ed5",
    ]


def test_seed_changes_which_images_validate_and_nothing_else(stream, real_cifar100):
    task, other = stream.tasks[0], cifar100(seed=2, root=real_cifar100, tasks=1).tasks[0]
    assert not other.valid.x.equal(task.valid.x)
    assert other.test.x.equal(task.test.x)

    def images(of):
        return sorted(image.numpy().tobytes() for image in torch.cat([of.train.x, of.valid.x]))

    assert images(task) == images(other)
