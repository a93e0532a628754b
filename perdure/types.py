"""The nouns: batch, split, task, stream, lesson; weights and gradients are dictionaries of tensors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from perdure.errors import BadData

Weights = Mapping[str, Tensor]
"""Parameter name → tensor. A network is called with weights by value, so nothing ever has to be put back."""

Gradient = dict[str, Tensor]
"""Parameter name → direction of ascent. A missing name means: do not move this one."""

TaskIds = int | Tensor
"""The task of a batch: one number, or one per sample (n,) on the CPU where tasks are mixed."""


@dataclass(frozen=True)
class PixelScale:
    """How normalized images are made of pixels in [0, 1] and read as such: x = (pixels − mean) / std.

    Both are shaped to broadcast over images (1 or n, 1 or channels, 1, 1), one row for each where tasks are mixed.
    """

    mean: Tensor
    std: Tensor

    def normalize(self, pixels: Tensor) -> Tensor:
        return (pixels - self.mean) / self.std

    def pixels(self, x: Tensor) -> Tensor:
        return x * self.std + self.mean

    def rows(self, like: Tensor) -> "PixelScale":
        """With a row for each of these images, and a column for each channel."""
        shape = *like.shape[:2], 1, 1
        return PixelScale(self.mean.expand(shape), self.std.expand(shape))


@dataclass(frozen=True)
class Batch:
    x: Tensor  # (n, channels, height, width), normalized
    y: Tensor  # (n,) int64, counted from 0 within its task
    task: TaskIds
    original: Tensor | None = None  # x as the data have it, where augmentation or an attack has changed it
    pixels: PixelScale | None = None  # of its task or tasks, where that is known

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Split:
    """Images and labels of one part (train, valid or test) of a task, all on one device.

    Images are pixels, uint8 or float in [0, 1]; `mean` and `std` (per channel, of pixels in [0, 1]) are applied when
    images are taken, so that attacks can still be measured in pixels.
    """

    x: Tensor  # (n, channels, height, width), uint8 or float in [0, 1]
    y: Tensor  # (n,) int64
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        """Without the images: tasks and streams are printed to see what they are."""
        return f"Split({len(self)} images of {'×'.join(map(str, self.x.shape[1:]))})"

    def take(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Normalized images and labels of some rows."""
        return self.normalize(self.pixels(rows)), self.y[rows]

    def pixels(self, rows: Tensor | slice) -> Tensor:
        """Images of some rows as floats in [0, 1]."""
        found = self.x[rows] if isinstance(rows, slice) else self.x.index_select(0, rows)  # ten times as fast
        return found.float().div_(255) if found.dtype == torch.uint8 else found

    def normalize(self, pixels: Tensor) -> Tensor:
        return self.scale(pixels).normalize(pixels)

    def scale(self, like: Tensor) -> PixelScale:
        """Between pixels and normalized images, of their type and on their device."""
        mean, std = (torch.tensor(v, dtype=like.dtype, device=like.device) for v in (self.mean, self.std))
        return PixelScale(mean.view(1, -1, 1, 1), std.view(1, -1, 1, 1))

    def batches(self, size: int, order: torch.Generator | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """All samples, normalized, in the same batches every time, so that the same weights always give the same
        accuracy, or in batches that `order` shuffles."""
        for rows in self.pieces(size, order=order):
            yield self.take(rows)

    def pieces(self, size: int, images: int | None = None, order: torch.Generator | None = None) -> list[Tensor]:
        """The rows of each of those batches, of all images or of the first so many.

        Without an `order` they are shuffled once for all: files sorted by class would make batches of one class, whose
        statistics are worth nothing.
        """
        rows = torch.randperm(len(self), generator=order or torch.Generator().manual_seed(0))[:images].to(self.y.device)
        return [rows[piece] for piece in cut(len(rows), size)]

    def emptied(self) -> "Split":
        """The same without any image."""
        return replace(self, x=self.x[:0].clone(), y=self.y[:0].clone())

    def to(self, device: torch.device | str) -> "Split":
        return replace(self, x=self.x.to(device), y=self.y.to(device))


@dataclass(frozen=True)
class Task:
    """One classification problem. Checked when it is made: bad labels or pixels never reach a network."""

    name: str
    classes: tuple[str, ...]
    train: Split
    valid: Split
    test: Split
    held: tuple[str, ...] = ("train", "valid", "test")  # parts whose images are there

    def __post_init__(self) -> None:
        for part in self.held:
            _check(f"task {self.name!r}, {part}", getattr(self, part), len(self.classes))
        shapes = {tuple(split.x.shape[1:]) for split in (self.train, self.valid, self.test)}
        if len(shapes) > 1:
            raise BadData(f"task {self.name!r}: its parts have images of different shapes {sorted(shapes)}")

    def judged(self, part: str) -> "Task":
        """Without the images that it is not judged on: a task that was learned is not to be held for life."""
        gone = {name: getattr(self, name).emptied() for name in ("train", "valid", "test") if name != part}
        return replace(self, held=(part,), **gone)

    def to(self, device: torch.device | str) -> "Task":
        return replace(self, **{part: getattr(self, part).to(device) for part in ("train", "valid", "test")})


@dataclass(frozen=True)
class Stream:
    """All tasks, in order. `notes` say what the data are and whether published figures may be compared."""

    name: str
    tasks: Sequence[Task]
    notes: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""  # of the files it was made from; empty where name and seed decide everything

    def __post_init__(self) -> None:
        shapes = {tuple(task.train.x.shape[1:]) for task in self.tasks}
        if len(shapes) != 1:
            found = f"images of different shapes {sorted(shapes)}" if shapes else "no tasks"
            raise BadData(f"stream {self.name!r}: has {found}; it needs tasks whose images all have one shape")

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of every image."""
        channels, height, width = self.tasks[0].train.x.shape[1:]
        return channels, height, width


@dataclass(frozen=True)
class Part:
    """A task's share in a lesson: data to train on and to validate with, and no test data."""

    task: int
    classes: int
    train: Split
    valid: Split


@dataclass(frozen=True)
class Lesson:
    """What is trained at once: one task, or several at a time where a method wants them so."""

    index: int
    parts: tuple[Part, ...]
    mixed: bool = True  # whether one batch may hold several parts

    def __len__(self) -> int:
        return sum(len(part.train) for part in self.parts)

    def batches(
        self, size: int, order: torch.Generator, skip: int = 0, augment: Callable[[Tensor], Tensor] | None = None
    ) -> Iterator[Batch]:
        """Every training sample once, shuffled by `order`: over all parts, or part by part and the batches then.

        The first `skip` batches are left out, for a lesson that is resumed. `augment` changes pixels in [0, 1].
        """
        if self.mixed:
            rows = torch.randperm(len(self), generator=order)
            pieces = [rows[piece] for piece in cut(len(rows), size)]
        else:
            pieces, first = [], 0
            for part in self.parts:
                rows = first + torch.randperm(len(part.train), generator=order)
                pieces += [rows[piece] for piece in cut(len(rows), size)]
                first += len(rows)
            pieces = [pieces[i] for i in torch.randperm(len(pieces), generator=order)]
        for rows in pieces[skip:]:
            yield self._gather(rows, augment)

    def sample(self, size: int) -> Batch:
        """Some training samples, drawn without replacement by torch's global generator."""
        return self._gather(torch.randperm(len(self))[:size])

    def _gather(self, rows: Tensor, augment: Callable[[Tensor], Tensor] | None = None) -> Batch:
        tasks, xs, ys, scales, changed, first = [], [], [], [], [], 0
        for part in self.parts:
            own = rows[(rows >= first) & (rows < first + len(part.train))] - first
            first += len(part.train)
            if len(own):
                own = own.to(part.train.y.device)
                pixels = part.train.pixels(own)
                scale = part.train.scale(pixels)
                tasks.append(part.task)
                xs.append(scale.normalize(pixels))
                ys.append(part.train.y[own])
                scales.append(scale if len(self.parts) == 1 else scale.rows(pixels))
                if augment is not None:
                    changed.append(scale.normalize(augment(pixels)))
        task = tasks[0] if len(tasks) == 1 else torch.tensor(tasks).repeat_interleave(torch.tensor([*map(len, ys)]))
        scale = PixelScale(_joined([one.mean for one in scales]), _joined([one.std for one in scales]))
        if augment is None:
            return Batch(_joined(xs), _joined(ys), task, pixels=scale)
        return Batch(_joined(changed), _joined(ys), task, _joined(xs), scale)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def cut(length: int, size: int) -> list[slice]:
    """Consecutive pieces of `size`; a tail shorter than an eighth of that, or of one, joins the piece before it.

    Batch statistics of one sample do not exist, and those of two are ruinous: on `six`, a tail of 2 after fourteen
    batches of 32 cost plain SGD ten points of new-task accuracy. The papers' tails (11 of 64 and up) stay as they are.

    >>> cut(20, 16)
    [slice(0, 16, None), slice(16, 20, None)]
    >>> cut(17, 16)
    [slice(0, 17, None)]
    """
    starts = list(range(0, length, size))
    if len(starts) > 1 and length - starts[-1] < max(size / 8, min(size, 2)):
        starts.pop()
    return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], length], strict=True)]


def _check(where: str, split: Split, classes: int) -> None:
    x, y = split.x, split.y
    if x.ndim != 4:
        raise BadData(f"{where}: images must be (n, channels, height, width), not {tuple(x.shape)}")
    if y.ndim != 1 or y.dtype != torch.int64 or len(x) != len(y):
        raise BadData(f"{where}: needs one int64 label per image, has {y.dtype} {tuple(y.shape)} for {len(x)} images")
    if len(split.mean) != len(split.std) or len(split.std) not in (1, x.shape[1]) or min(split.std) <= 0:
        raise BadData(f"{where}: mean and std need one value, or one per channel ({x.shape[1]}), and std above 0")
    if len(y) == 0:
        raise BadData(f"{where}: no images; give it some, or leave the task out")
    if not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise BadData(
            f"{where}: labels reach from {int(y.min())} to {int(y.max())}; {classes} classes allow 0 to {classes - 1}"
        )
    if x.dtype != torch.uint8:
        if not x.dtype.is_floating_point:
            raise BadData(f"{where}: pixels must be uint8 or floats in [0, 1], not {x.dtype}")
        if not bool(torch.isfinite(x).all()):
            row = int((~torch.isfinite(x)).flatten(1).any(1).nonzero()[0])
            raise BadData(f"{where}: image {row} has a pixel that is not a finite number; repair or remove it")
        if float(x.min()) < 0 or float(x.max()) > 1:
            raise BadData(
                f"{where}: pixels must lie in [0, 1], these reach from {float(x.min()):.4g} to {float(x.max()):.4g}"
            )


@dataclass(frozen=True)
class EpochStart:
    """Where a lesson stands when an epoch begins."""

    epoch: int  # counted from 0
    epochs: int  # of the plan: at most so many
    lr_scale: float = 1.0  # learning rate, as a multiple of the plan's
    fallen: float = 0.0  # share of the drops of the rate after which the lesson stops; 0 where it never does

    def progress(self, part: float = 0.0) -> float:
        """How far the lesson has come, 0 … 1, after a part of this epoch: by epochs or by drops of the rate, whichever
        is further, so that a lesson that stops early comes to its end, too.

        >>> EpochStart(2, 10).progress(0.5), EpochStart(2, 10, fallen=0.75).progress(0.5)
        (0.25, 0.75)
        """
        return max(min((self.epoch + part) / self.epochs, 1.0), self.fallen)
