"""The benchmarks on real files in their original layouts: CIFAR-100 complete, the others in part."""

import hashlib
import pickle
import shutil

import numpy as np
import pytest
import torch

from perdure.data.benchmarks.cifar100 import MEAN, STD, cifar100
from perdure.data.benchmarks.five import PARTS, five
from perdure.data.benchmarks.miniimagenet import class_order, miniimagenet
from perdure.data.benchmarks.pmnist import pmnist
from perdure.data.catalog import CIFAR10, CIFAR100, FASHION, MINIIMAGENET, MNIST, NOTMNIST, SVHN
from perdure.data.load import load
from perdure.data.validate import check_set

pytestmark = [pytest.mark.real, pytest.mark.thorough]


def moments(splits):
    """Mean and deviation per channel of the pixels of several splits."""
    values = torch.arange(256) / 255
    counts = torch.zeros(splits[0].x.shape[1], 256, dtype=torch.long)
    for split in splits:
        for channel, found in enumerate(counts):
            found += split.x[:, channel].flatten().bincount(minlength=256)
    mean = (counts * values).double().sum(1) / counts.sum(1)
    square = (counts * values.square()).double().sum(1) / counts.sum(1)
    return mean.tolist(), (square - mean.square()).sqrt().tolist()


def md5(tensor):
    return hashlib.md5(tensor.contiguous().numpy().tobytes()).hexdigest()


# --- CIFAR-100, complete ---


@pytest.fixture(scope="module")
def whole(real_files):
    return cifar100(seed=1, root=real_files)


def test_cifar100_is_complete(whole):
    assert whole.notes["completeness"] == "complete"
    assert whole.notes["tasks"] == "10 of 10"
    assert whole.tasks[0].classes[:3] == ("apple", "aquarium_fish", "baby")
    assert whole.tasks[9].classes[-1] == "worm"


def test_cifar100_counts_and_labels(whole):
    for task in whole:
        assert [len(part) for part in (task.train, task.valid, task.test)] == [4750, 250, 1000]
        assert task.test.y.bincount().tolist() == [100] * 10
        assert torch.cat([task.train.y, task.valid.y]).bincount().tolist() == [500] * 10
    # The official test file begins with classes 49, 33, 72, 51, 71, 92, 15: source order is kept within a task.
    first = {number: task.test.y[0].item() for number, task in enumerate(whole)}
    assert [first[number] for number in (4, 3, 7, 5, 9, 1)] == [9, 3, 2, 1, 2, 5]


def test_cifar100_mean_and_deviation(whole):
    mean, std = moments([part for task in whole for part in (task.train, task.valid)])
    assert mean == pytest.approx([0.50708, 0.48655, 0.44092], abs=1e-5)
    assert std == pytest.approx([0.26733, 0.25644, 0.27615], abs=1e-5)
    # The constants that published runs normalize with are those of CIFAR-10, a little off here.
    assert mean == pytest.approx(MEAN, abs=0.021)
    assert std == pytest.approx(STD, abs=0.021)


def test_cifar100_validation_rows_are_the_published_ones(whole):
    # Of seed 1 they are rows 2764, 4767, … within the task; the md5s were taken from those rows of train.bin.
    task = whole.tasks[0]
    assert [md5(part.x) for part in (task.train, task.valid, task.test)] == [
        "1ba8ada14a3b9584fd3f9ed5ec8c80f3",
        "e55ee2d803a8010c359881770c3b0c00",
        "0187d8ac7f8f61e51f0ce1fa44450ed5",
    ]


def test_cifar100_seed_changes_which_images_validate_and_nothing_else(whole, real_files):
    task, other = whole.tasks[0], cifar100(seed=2, root=real_files, tasks=1).tasks[0]
    assert not other.valid.x.equal(task.valid.x)
    assert other.test.x.equal(task.test.x)

    def images(of):
        return sorted(image.numpy().tobytes() for image in torch.cat([of.train.x, of.valid.x]))

    assert images(task) == images(other)


def test_cifar100_binary_and_python_are_the_same_images(whole, real_files, tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for part in ("train", "test"):
        records = np.fromfile(real_files / "cifar-100-binary" / f"{part}.bin", np.uint8).reshape(-1, 3074)
        content = {"data": records[:, 2:], "fine_labels": records[:, 1].tolist()}
        (folder / part).write_bytes(pickle.dumps(content, protocol=2))
    other = cifar100(seed=1, root=tmp_path)
    assert other.notes["source"] == "cifar-100-python"
    assert other.fingerprint == whole.fingerprint


def test_cifar100_checkup(real_files):
    found = check_set(CIFAR100, real_files)
    assert found.completeness == "complete"
    assert found.verdict.startswith("complete: figures may be compared with published ones")
    texts = [finding.text for finding in found.findings]
    assert "train: 50000 images of 3 × 32 × 32, 500 of each class, labels 0 to 99" in texts
    assert "train.bin: the official file (md5 6172c7755cfe09b2fe270c85cebc1b15)" in texts


# --- 5-Datasets ---


@pytest.fixture(scope="module")
def five_real(real_files):
    return five(seed=7, root=real_files)


def test_five_counts_and_order(five_real):
    assert [task.name for task in five_real] == ["cifar10", "mnist", "svhn", "fashion-mnist", "notmnist"]
    assert five_real.shape == (3, 32, 32)
    sizes = [[len(part) for part in (task.train, task.valid, task.test)] for task in five_real]
    # Of the 10 000 notMNIST images in folders, 1000 test (a tenth), and a twentieth of the others validates.
    assert sizes == [[7600, 400, 2000]] * 4 + [[8550, 450, 1000]]
    assert five_real.notes["completeness"] == "subset"
    assert five_real.notes["fashion-mnist"] == "real"


def test_five_constants(five_real):
    """The constants that the published runs normalize with fit the pixels, though only a part of them is here."""
    for task, (published, mean, std) in zip(five_real, PARTS, strict=True):
        found, spread = moments([task.train, task.valid])
        assert found == pytest.approx(mean, abs=0.015), published.name
        assert spread == pytest.approx(std, abs=0.015), published.name


def test_five_validates_with_the_same_images_for_every_seed(five_real, real_files):
    other = five(seed=8, root=real_files, tasks=2)
    for one, two in zip(other, five_real, strict=False):
        assert one.valid.x.equal(two.valid.x)
        assert one.train.y.equal(two.train.y)


def test_five_legacy_is_mnist_twice(five_real, real_files):
    legacy = five(seed=7, root=real_files, legacy=True)
    mnist, fashion = legacy.tasks[1], legacy.tasks[3]
    assert legacy.notes["fashion-mnist"].startswith("legacy: MNIST")
    assert fashion.train.x.equal(mnist.train.x)
    assert fashion.train.mean == (0.2190,) * 3
    assert not five_real.tasks[3].train.x.equal(mnist.train.x)
    assert legacy.fingerprint != five_real.fingerprint


@pytest.mark.parametrize(
    ("published", "first"),
    [
        (MNIST, [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]),
        (FASHION, [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]),
        (CIFAR10, [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]),
        (SVHN, [1, 9, 2, 3, 2, 5, 9, 3, 3, 1]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_first_labels_are_the_official_ones(real_files, published, first):
    assert load(published, real_files).train[1][:10].tolist() == first


def test_notmnist_as_folders_and_as_idx_are_the_same_images(real_files, tmp_path):
    shutil.copytree(real_files / "notMNIST", tmp_path / "notMNIST")
    folders, idx = load(NOTMNIST, real_files), load(NOTMNIST, tmp_path)
    assert (folders.source, idx.source) == ("notMNIST_small, folders", "notMNIST, IDX")

    def images(found):
        return sorted(x.numpy().tobytes() for part in (found.train, found.test) for x in part[0])

    assert images(folders) == images(idx)
    assert len(idx.train[1]) == 8500


# --- Split MiniImageNet ---


def test_miniimagenet_class_orders():
    assert class_order(1)[:3] == [[80, 84, 33, 81, 93], [17, 36, 82, 69, 65], [92, 39, 56, 52, 51]]
    assert class_order(2)[:3] == [[83, 30, 56, 24, 16], [23, 2, 27, 28, 13], [99, 92, 76, 14, 0]]


@pytest.fixture(scope="module")
def mini(real_files):
    return miniimagenet(seed=1, root=real_files)


def test_miniimagenet_tasks(mini, real_files):
    names = sorted(path.name for path in (real_files / "miniimagenet" / "train").iterdir())
    assert mini.shape == (3, 84, 84)
    assert mini.notes["completeness"] == "subset"
    for task, classes in zip(mini, class_order(1), strict=True):
        assert task.classes == tuple(names[label] for label in classes)
        assert [len(part) for part in (task.train, task.valid, task.test)] == [245, 5, 75]
        assert task.test.y.bincount().tolist() == [15] * 5
    mean, _ = moments([task.train for task in mini])
    assert mean == pytest.approx((0.485, 0.456, 0.406), abs=0.02)


def test_miniimagenet_layouts_are_the_same_images(mini, real_files, tmp_path):
    """The two pickles that the papers read, made from the folders."""
    images = load(MINIIMAGENET, real_files)
    folder = tmp_path / "miniimagenet"
    folder.mkdir()
    for part, (x, y) in (("train", images.train), ("test", images.test)):
        content = {"images": x.permute(0, 2, 3, 1).contiguous().numpy(), "labels": y.tolist()}
        (folder / f"{part}.pkl").write_bytes(pickle.dumps(content))
    assert miniimagenet(seed=1, root=tmp_path).fingerprint == mini.fingerprint


def test_miniimagenet_checkup(real_files):
    found = check_set(MINIIMAGENET, real_files)
    assert found.completeness == "subset"
    assert found.verdict.startswith("subset: compare methods with each other")


# --- permuted MNIST ---


def test_pmnist(real_files):
    stream = pmnist(seed=1, root=real_files, tasks=2)
    whole = load(MNIST, real_files)
    assert stream.shape == (1, 28, 28)
    for task in stream:
        assert [len(part) for part in (task.train, task.valid, task.test)] == [7200, 800, 2000]
        pixels = torch.cat([task.valid.x, task.train.x])
        assert not pixels.equal(whole.train[0])  # the first task is permuted too
        assert pixels.flatten(1).sort(1)[0].equal(whole.train[0].flatten(1).sort(1)[0])
        assert torch.cat([task.valid.y, task.train.y]).equal(whole.train[1])
    assert not stream.tasks[0].test.x.equal(stream.tasks[1].test.x)
    mean, std = moments([stream.tasks[0].train])
    assert (mean[0], std[0]) == pytest.approx((0.1307, 0.3081), abs=0.003)
