"""`six`: a benchmark of real images that comes with the package, so that everything can be tried at once."""

import hashlib
from importlib.resources import files
from io import BytesIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from perdure.data.benchmarks.five import PARTS, color
from perdure.data.catalog import CIFAR10, FASHION, MNIST
from perdure.data.images import Images
from perdure.data.tasks import make_task, task_count
from perdure.errors import BadData
from perdure.types import Stream

FOLDER = files("perdure.data") / "six"
TRAIN, TEST = 100, 50  # images per class
COLUMNS = 50  # of a sheet: a class fills two rows of training images, and one of test images further down

# The md5 is of the pixels (1500, side, side[, 3]): classes 0–9 × 100 to train on, then classes 0–9 × 50 to test.
CHECKSUMS = {
    "cifar10": "bb81ed274cc9dcf51e87f52c4a6b1136",
    "mnist": "5894788a3a8c13c16afcf41a748deca6",
    "fashion": "f7c5ecafa92fc39fc4abff74046f3a04",
}
SOURCES = {"cifar10": CIFAR10, "mnist": MNIST, "fashion": FASHION}
SCALES = {  # mean and std per channel, those of `five`
    source: (mean, std) for source, whole in SOURCES.items() for published, mean, std in PARTS if published is whole
}
TASKS = [(source, half) for half in "ab" for source in SOURCES]


def six(*, seed: int, tasks: int | None = None, valid_share: float = 0.1) -> Stream:
    """Six tasks of five classes, each image (3, 32, 32): CIFAR-10, MNIST and Fashion-MNIST, first classes 0–4 of
    each and then 5–9.

    A task has 450 images to train on, 50 to validate with and 250 to test. `seed` draws the validation images,
    the same share of every class; `tasks` keeps the first few. These are small parts of the sets: compare methods
    on them, not with published figures.
    """
    count = task_count(tasks, len(TASKS))
    needed = {source for source, _ in TASKS[:count]}
    # Cloned, so that the three channels of gray images are not one and the same memory.
    images = {source: color(_planes(read_sheet(source))).clone() for source in needed}
    made = []
    for source, half in TASKS[:count]:
        first = 5 * "ab".index(half)
        train, test = images[source][: 10 * TRAIN], images[source][10 * TRAIN :]
        mean, std = SCALES[source]
        made.append(
            make_task(
                f"{source}-{half}",
                SOURCES[source].classes[first : first + 5],
                (train[first * TRAIN : (first + 5) * TRAIN], np.repeat(np.arange(5), TRAIN)),
                (test[first * TEST : (first + 5) * TEST], np.repeat(np.arange(5), TEST)),
                valid_share=valid_share,
                seed=seed,
                mean=mean,
                std=std,
                by_class=True,
            )
        )
    notes = {"source": "shipped with perdure", "completeness": "subset", "tasks": f"{count} of {len(TASKS)}"}
    return Stream("six", made, notes)


def read_sheet(source: str) -> Images:
    """The 1500 images of one source, (1500, 32, 32, 3) or gray (1500, 28, 28), checked against their md5."""
    path = FOLDER / f"{source}.webp"
    try:
        with Image.open(BytesIO(path.read_bytes())) as sheet:
            images = cut_sheet(np.asarray(sheet.convert("RGB")), 32 if source == "cifar10" else 28)
    except (OSError, ValueError, SyntaxError):
        raise BadData(f"{path}: missing or not a readable WebP image; reinstall perdure (and pillow)") from None
    if source != "cifar10":
        images = images[..., 0]
    if checksum(images) != CHECKSUMS[source]:
        raise BadData(f"{path}: damaged, its pixels are not those that were shipped; reinstall perdure")
    return images


def cut_sheet(sheet: Images, side: int) -> Images:
    """The tiles (n, side, side, 3) of a sheet (rows · side, COLUMNS · side, 3), row by row."""
    return sheet.reshape(-1, side, COLUMNS, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)


def lay_sheet(images: Images) -> Images:
    """The sheet (rows · side, COLUMNS · side[, 3]) of images (n, side, side[, 3]): `cut_sheet` backwards."""
    side, channels = images.shape[1], images.shape[3:]
    tiles = images.reshape(-1, COLUMNS, side, side, *channels).swapaxes(1, 2)
    return tiles.reshape(-1, COLUMNS * side, *channels)


def checksum(images: Images) -> str:
    return hashlib.md5(images.tobytes(), usedforsecurity=False).hexdigest()


def _planes(images: Images) -> Tensor:
    """Images (n, side, side[, 3]) as (n, 1 or 3, side, side)."""
    x = torch.from_numpy(images)
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x[:, None]
