"""5-Datasets: CIFAR-10, MNIST, SVHN, Fashion-MNIST and notMNIST, one task of ten classes each."""

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from perdure.data.benchmarks.cifar100 import MEAN, STD
from perdure.data.catalog import CIFAR10, FASHION, MNIST, NOTMNIST, SVHN, PublishedSet
from perdure.data.load import ImageSet, load, source_notes
from perdure.data.paths import data_root
from perdure.data.tasks import make_task, task_count
from perdure.errors import BadData
from perdure.types import Stream

LEGACY = "legacy: MNIST a second time, as in the public loaders"
VALID_SHARE = 0.05
VALID_SEED = 1  # whatever the seed of the run: the public loaders never pass theirs on

# In the order of the tasks: the set, its mean and its deviation per channel, of gray sets after padding.
PARTS: tuple[tuple[PublishedSet, tuple[float, ...], tuple[float, ...]], ...] = (
    (CIFAR10, MEAN, STD),
    (MNIST, (0.1,) * 3, (0.2752,) * 3),
    (SVHN, (0.4377, 0.4438, 0.4728), (0.198, 0.201, 0.197)),
    (FASHION, (0.2190,) * 3, (0.3318,) * 3),
    (NOTMNIST, (0.4254,) * 3, (0.4501,) * 3),
)


def five(
    *,
    seed: int,  # changes nothing here
    root: str | Path | None = None,
    tasks: int | None = None,
    legacy: bool = False,  # MNIST in place of Fashion-MNIST, the slip behind all published figures
) -> Stream:
    """Five tasks of ten classes, each image (3, 32, 32), in a fixed order with a fixed twentieth to validate with.

    The public loaders of GPM, TRGP, API, DFGP and RCL mean to read Fashion-MNIST and read MNIST a second time.
    `legacy` does the same, with Fashion-MNIST's constants, so that the printed tables can be compared; the notes say
    which of the two it was.
    """
    del seed
    count = task_count(tasks, len(PARTS))
    loaded: dict[str, ImageSet] = {}
    made = []
    for published, mean, std in PARTS[:count]:
        slip = legacy and published is FASHION
        images = load(MNIST if slip else published, root)
        if published is FASHION and not slip and images.fingerprint == loaded[MNIST.name].fingerprint:
            same = f"{data_root(root)}: the files of Fashion-MNIST are those of MNIST"
            raise BadData(f"{same}; fetch them anew, or say legacy=true")
        loaded[FASHION.name if slip else published.name] = images
        train, test = ((color(x), y) for x, y in (images.train, images.test))
        named = published.name, published.classes
        made.append(make_task(*named, train, test, valid_share=VALID_SHARE, seed=VALID_SEED, mean=mean, std=std))
    which = {"fashion-mnist": LEGACY if legacy else "real"} if FASHION.name in loaded else {}
    notes = source_notes(loaded, count, len(PARTS), **which)
    return Stream("five", made, notes, "-".join(images.fingerprint for images in loaded.values()))


def color(x: Tensor) -> Tensor:
    """Images (n, 3, 32, 32): smaller ones get a black border, gray ones three equal channels."""
    border = (32 - x.shape[-1]) // 2
    padded = F.pad(x, (border,) * 4) if border else x
    return padded.expand(-1, 3, -1, -1) if x.shape[1] == 1 else padded
