"""CIFAR-100-C (Hendrycks and Dietterich, ICLR 2019): CIFAR-100's test images, corrupted, if you have them.

It is a folder of one file for each corruption, such as fog.npy with (50000, 32, 32, 3) bytes: all 10 000 test images in
the order of CIFAR-100's own test file, at severity 1, then at severity 2, up to 5. labels.npy holds their classes.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from perdure.data.catalog import CIFAR100
from perdure.errors import BadData, MissingFile, UnknownName, WrongValue
from perdure.types import Split, Stream

SEVERITIES = 5
LABELS = "labels.npy"


class CorruptedTests:
    """The test images of a stream of CIFAR-100, corrupted: called with ("fog", 3) it gives one split for each task."""

    def __init__(self, root: Path, stream: Stream) -> None:
        self.root, self.stream = root, stream
        self.kinds = tuple(sorted(file.stem for file in root.glob("*.npy") if file.name != LABELS))
        if not self.kinds:
            source = "CIFAR-100-C.tar of zenodo.org/records/3555552"
            raise MissingFile(f"no CIFAR-100-C in {root}: unpack {source} and name the folder with its .npy files")

    def __call__(self, kind: str, severity: int) -> list[Split]:
        """For each task its test split with corrupted images, in the same order."""
        if not 1 <= severity <= SEVERITIES:
            raise WrongValue(f"severity={severity} is not allowed; use 1 to {SEVERITIES}")
        if kind not in self.kinds:
            raise UnknownName("corruption", kind, self.kinds)
        labels = _read_labels(self.root / LABELS)
        rows = _rows(labels, self.stream, self.root / LABELS)
        images = _read_images(self.root / f"{kind}.npy", severity, len(labels))
        found = []
        for clean, own in zip((task.test for task in self.stream), rows, strict=True):
            x = images.index_select(0, own).permute(0, 3, 1, 2).contiguous()
            found.append(Split(x.to(clean.x.device), clean.y, clean.mean, clean.std))
        return found


def _rows(labels: Tensor, stream: Stream, path: Path) -> list[Tensor]:
    """Which rows of the files are the test images of each task.

    Tasks take the classes in the order of their indices, and a task's images stand in the order of the file: so the
    labels say the rows, and that they come out in the same order says that these are the same images.
    """
    if stream.name != CIFAR100.name:
        raise WrongValue(f"CIFAR-100-C has the images of cifar100, not of {stream.name}; leave its folder out")
    found, first = [], 0
    for task in stream:
        last = first + len(task.classes)
        rows = ((labels >= first) & (labels < last)).nonzero()[:, 0]
        if not torch.equal(labels[rows] - first, task.test.y.cpu()):
            raise BadData(
                f"{path}: not the test images of {task.name!r} in their order; both must be the complete official files"
            )
        found.append(rows)
        first = last
    return found


def _read_labels(path: Path) -> Tensor:
    """Of the images at one severity."""
    labels = _load(path)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) % SEVERITIES or len(labels) == 0:
        raise BadData(f"{path}: holds {labels.dtype} {labels.shape} instead of 50000 whole numbers; unpack it again")
    each = np.array(labels, np.int64).reshape(SEVERITIES, -1)
    if (each != each[0]).any():
        raise BadData(f"{path}: the labels of the five severities differ; unpack it again")
    return torch.from_numpy(each[0])


def _read_images(path: Path, severity: int, count: int) -> Tensor:
    """The images (count, 32, 32, 3) of one severity; of a file of 150 million bytes, only those are read."""
    images = _load(path)
    wanted = (SEVERITIES * count, 32, 32, 3)
    if images.shape != wanted or images.dtype != np.uint8:
        raise BadData(f"{path}: holds {images.dtype} {images.shape} instead of uint8 {wanted}; unpack it again")
    return torch.from_numpy(np.array(images[(severity - 1) * count : severity * count]))


def _load(path: Path) -> npt.NDArray[Any]:
    """An array as it lies in its file. One byte of a header that is wrong can fail in any way at all."""
    damaged = f"{path}: cannot be read as an array of numpy; unpack CIFAR-100-C.tar again"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a header that Python 2 wrote
            found: npt.NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise MissingFile(f"{path}: not there; unpack CIFAR-100-C.tar again") from None
    except Exception:
        raise BadData(damaged) from None
    if not found.flags.c_contiguous or found.nbytes + found.offset != path.stat().st_size:  # type: ignore[attr-defined]
        raise BadData(damaged)
    return found
