"""Images as users have them, as a task: FOLDER/class/image.jpg, arrays, a Dataset or a DataLoader.

No decoded copy is kept anywhere: what was read is gone when the process ends.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from perdure.data.arrays import images_from, mean_and_std, read_source, too_few
from perdure.data.benchmarks.folder import TASK_FORM, scan_task
from perdure.data.images import list_folders, list_images, read_images
from perdure.data.paths import first_few, one_line
from perdure.data.tasks import split_rows_by_class
from perdure.errors import BadData, MissingFile, expanded
from perdure.types import Split, Task

Shape = tuple[int, int, int]


def read_labeled(where: str, data: Any, shape: Shape, *, training: bool) -> tuple[Tensor, list[str]]:
    """Images (n, *shape) and the name of each one's class. Test images may be of a single class."""
    if isinstance(data, str | Path):
        return _read_folder(expanded(data), shape, training)
    if isinstance(data, DataLoader):
        with _Spool() as spool:
            for images, names in _batches(where, data, shape):
                spool.add(images, names)
            return spool.images(), spool.labels
    x, labels = read_source(where, data, shape[1] if shape[1] == shape[2] else None)
    if shape[0] == 3 and x.shape[1] == 1:
        x = x.expand(-1, 3, -1, -1)
    if tuple(x.shape[1:]) != shape:
        raise BadData(f"{where}: images are (channels, height, width) {tuple(x.shape[1:])}, and the learner's {shape}")
    return x, [str(label) for label in labels]


def read_unlabeled(images: Any, shape: Shape) -> Tensor:
    """Images alone: paths of files, a folder of them, arrays or PIL images."""
    if isinstance(images, str | Path):
        place = expanded(images)
        images = list_images(place) if place.is_dir() else [place]
        if not images:
            raise BadData(f"{one_line(place)}: no images in it")
    if isinstance(images, list | tuple) and images and all(isinstance(one, str | Path) for one in images):
        return _read_files([expanded(one) for one in images], shape)
    return images_from(images, shape)


def make_task(
    name: str,
    data: Any,
    shape: Shape,
    *,
    seed: int,
    valid_share: float = 0.1,
    classes: Sequence[str] | None = None,  # of a task that is known
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Task:
    """A task to learn: a share of every class, drawn by the seed, validates, and there are no test images."""
    where = f"task {name!r}"
    if isinstance(data, DataLoader):
        streamed = _held_out(where, data, shape, valid_share)
        labels = [label for _, own in streamed for label in own]
    else:
        x, labels = read_labeled(where, data, shape, training=True)
    names = sorted(set(labels)) if classes is None else list(classes)
    if strange := sorted(set(labels) - set(names)):
        raise BadData(f"{where}: has no class {first_few(strange)}; learn new classes as a task of their own")
    if len(names) < 2:
        raise BadData(f"{where}: all images are of one class ({first_few(names)}); a task needs two or more")
    if short := too_few(dict(sorted(Counter(labels).items())), valid_share, None):
        raise BadData(f"{where}: {short}")
    number = {label: place for place, label in enumerate(names)}
    y = torch.tensor([number[label] for label in labels])
    if isinstance(data, DataLoader):
        first = len(streamed[0][1])
        parts = [(streamed[0][0], y[:first]), (streamed[1][0], y[first:])]
    else:
        parts = [(x.index_select(0, rows), y[rows]) for rows in split_rows_by_class(y, valid_share, seed, least=1)]
    measured = mean_and_std(parts[0][0]) if mean is None or std is None else ((), ())
    scale = tuple(mean or measured[0]), tuple(std or measured[1])
    learning, judging = (Split(images, of, *scale) for images, of in parts)
    return Task(name, tuple(names), learning, judging, judging.emptied(), held=("train", "valid"))


def read_test_images(name: str, data: Any, shape: Shape, task: Any) -> Split:
    """Labeled images of a known task, to be judged on."""
    where = f"test images of task {name!r}"
    x, labels = read_labeled(where, data, shape, training=False)
    if strange := sorted(set(labels) - set(task.classes)):
        raise BadData(f"{where}: has no class {first_few(strange)}; its classes are {first_few(task.classes)}")
    return Split(x, torch.tensor([task.classes.index(label) for label in labels]), tuple(task.mean), tuple(task.std))


def _read_folder(path: Path, shape: Shape, training: bool) -> tuple[Tensor, list[str]]:
    if training:
        (task,) = scan_task(path).tasks
        groups: Mapping[str, Iterable[Path]] = dict(zip(task.classes, task.train, strict=True))
    else:
        if not path.is_dir():
            raise MissingFile(f"{one_line(path)}: there is no such folder; {TASK_FORM}")
        groups = {one_line(folder.name): list_images(folder) for folder in list_folders(path)}
    files = [(name, file) for name, group in groups.items() for file in group]
    if not files:
        raise BadData(f"{one_line(path)}: no images in it; {TASK_FORM}")
    return _read_files([file for _, file in files], shape), [name for name, _ in files]


def _read_files(files: Sequence[Path], shape: Shape) -> Tensor:
    channels, height, width = shape
    if height != width:
        raise BadData(
            f"files are scaled to squares, and this learner takes {height}×{width} pixels; give arrays instead"
        )
    found, _, _ = read_images(files, height, channels)
    return torch.from_numpy(found)


class _Spool:
    """Images that go to a file without a name, which is gone with the process, and are in memory only while they are
    used."""

    def __init__(self) -> None:
        self.labels, self.like = list[str](), torch.empty(0, dtype=torch.uint8)

    def __enter__(self) -> Self:
        self.file = TemporaryFile()  # closed below
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def add(self, x: Tensor, labels: Sequence[str]) -> None:
        if labels:
            self.like, self.labels = x[:0], [*self.labels, *labels]
            self.file.write(x.contiguous().numpy().tobytes())

    def images(self) -> Tensor:
        """All of them, mapped; the map outlives the file's handle."""
        self.file.flush()
        kind, shape = self.like.numpy().dtype, (len(self.labels), *self.like.shape[1:])
        return torch.from_numpy(np.memmap(self.file, kind, "c", shape=shape)) if self.labels else self.like


def _batches(where: str, loader: DataLoader[Any], shape: Shape) -> Iterator[tuple[Tensor, list[str]]]:
    kind = None
    for batch in loader:
        if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[0], Tensor):
            raise BadData(f"{where}: a DataLoader must give pairs (images, labels)")
        x, labels = batch[0], batch[1].tolist() if isinstance(batch[1], Tensor) else list(batch[1])
        if x.is_floating_point() and (float(x.min()) < 0 or float(x.max()) > 1):
            raise BadData(
                f"{where}: pixels must lie in [0, 1]; leave normalization out of the loader, the learner does it"
            )
        x = images_from(x, shape)
        if len(labels) != len(x) or kind not in (None, x.dtype):
            raise BadData(f"{where}: a DataLoader must give as many labels as images, and images of one type")
        kind = x.dtype
        yield x, [str(label) for label in labels]


def _held_out(
    where: str, loader: DataLoader[Any], shape: Shape, valid_share: float
) -> tuple[tuple[Tensor, list[str]], tuple[Tensor, list[str]]]:
    """Images to train on and to validate with: of every class the first, and then one of so many, validates. Which, is
    decided as they come, so that none has to be held."""
    seen, every = Counter[str](), max(round(1 / valid_share), 2)
    with _Spool() as training, _Spool() as judging:
        for x, labels in _batches(where, loader, shape):
            validates = []
            for label in labels:
                validates.append(seen[label] % every == 0)
                seen[label] += 1
            for spool, wanted in ((training, False), (judging, True)):
                rows = [row for row, held in enumerate(validates) if held is wanted]
                spool.add(x[rows], [labels[row] for row in rows])
        if not seen:
            raise BadData(f"{where}: the DataLoader gave no batch")
        return (training.images(), training.labels), (judging.images(), judging.labels)
