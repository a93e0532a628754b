"""Replay buffers: images of past tasks.

Images are held as the batches bring them: normalized, in the floating-point type of training, so that a replayed image
is the same to the bit. As uint8 pixels they would take a quarter of the bytes. Where batches are augmented, attacked or
noisy, originals are held: one random crop of an image would else stand for it for good, in replay and in bases. A
buffer whose images are going to be attacked or noisy again holds the pixel scale of each beside it.
"""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from perdure.memory.bank import TensorBank
from perdure.schema import Limits
from perdure.types import Batch, PixelScale

Capacity = Annotated[int, Limits(ge=0)]
"""How many images a buffer holds. 0 switches it off."""


def join(one: Batch, other: Batch) -> Batch:
    """Two batches as one, each sample with its own task."""
    tasks = torch.cat([_tasks(one), _tasks(other)])
    return Batch(torch.cat([one.x, other.x]), torch.cat([one.y, other.y]), tasks)


def _tasks(batch: Batch) -> Tensor:
    return torch.full((len(batch),), batch.task) if isinstance(batch.task, int) else batch.task


def reservoir_slot(seen: int, capacity: int, draw: Callable[[int], int]) -> int | None:
    """Reservoir sampling (Vitter 1985): the slot of an item that follows `seen` others, or none to let it pass.

    `draw(n)` gives a number from 0 to n − 1, all equally likely; it is asked only when the memory is full. Then every
    item of the stream, old or new, is held with the same probability.

    >>> reservoir_slot(2, 3, lambda n: 0), reservoir_slot(3, 3, lambda n: 1), reservoir_slot(3, 3, lambda n: 3)
    (2, 1, None)
    """
    slot = seen if seen < capacity else draw(seen + 1)
    return slot if slot < capacity else None


class ReplayBuffer(TensorBank):
    """Images x (n, …), labels y (n,) and tasks (n,) of the past, n ≤ capacity; if `scaled`, also the mean and std
    (n, channels) of their pixels."""

    def __init__(self, capacity: int, scaled: bool = False) -> None:
        super().__init__()
        self.capacity, self.scaled = capacity, scaled

    @property
    def held(self) -> int:
        return len(self["y"]) if "y" in self else 0

    def sample(self, size: int) -> Batch:
        """Up to `size` of the images held, all equally likely, none twice, drawn by torch's global generator."""
        rows = torch.randperm(self.held)[:size].to(self["y"].device)
        return Batch(self["x"][rows], self["y"][rows], self["task"][rows].cpu(), pixels=self._scale(rows))

    def sample_of_one_task(self, size: int) -> Batch:
        """The same of one task, which is drawn as often as it has images. A task with a single image, which has no
        batch statistics, is drawn only if there is no other."""
        tasks, counts = self["task"], torch.bincount(self["task"])
        several = (counts[tasks] > 1).nonzero()[:, 0]
        among = several if len(several) else torch.arange(self.held)
        task = int(tasks[among[torch.randint(len(among), ())]])
        rows = (tasks == task).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows))[:size].to(rows.device)]
        return Batch(self["x"][rows], self["y"][rows], task, pixels=self._scale(rows))

    def counts(self) -> list[int]:
        """How many images are held of each task."""
        found: list[int] = torch.bincount(self["task"].cpu()).tolist() if self.held else []
        return found

    def _append(self, batch: Batch) -> None:
        images = batch.x if batch.original is None else batch.original
        new = {"x": images, "y": batch.y, "task": _tasks(batch).to(batch.y.device)}
        if self.scaled:
            assert batch.pixels is not None  # or it could not have been attacked
            scale = batch.pixels.rows(images)
            new |= {"mean": scale.mean.flatten(1), "std": scale.std.flatten(1)}
        for name, values in new.items():
            self[name] = torch.cat([self[name], values]) if name in self else values.clone()

    def _keep(self, rows: Tensor) -> None:
        for name in ("x", "y", "task", *(("mean", "std") if self.scaled else ())):
            self[name] = self[name][rows]

    def _scale(self, rows: Tensor) -> PixelScale | None:
        if not self.scaled:
            return None
        return PixelScale(self["mean"][rows][:, :, None, None], self["std"][rows][:, :, None, None])


class ReservoirBuffer(ReplayBuffer):
    """A uniform sample of all images that passed by, however many will come."""

    def add(self, batch: Batch) -> None:
        if self.capacity == 0:
            return
        seen, held = int(self["seen"]) if "seen" in self else 0, self.held
        rows = list(range(held))
        for row in range(len(batch)):
            slot = reservoir_slot(seen + row, self.capacity, _draw)
            if slot is not None:
                rows[slot : slot + 1] = [held + row]  # in the place of another, or at the end
        self["seen"] = torch.tensor(seen + len(batch), device=batch.y.device)
        if rows != list(range(held)):
            self._append(batch)
            self._keep(torch.tensor(rows, device=batch.y.device))


class TaskBuffer(ReplayBuffer):
    """As many images of one task as of another. How many tasks will come is not known: with each, all shares shrink."""

    def add(self, batch: Batch) -> None:
        """Take in images of new tasks, in random order, and keep the first ⌈(capacity − i)/tasks⌉ of the i-th task."""
        if self.capacity == 0:
            return
        self._append(batch)
        tasks = sorted(set(self["task"].tolist()))
        shares = [-(-(self.capacity - i) // len(tasks)) for i in range(len(tasks))]
        found = [(self["task"] == task).nonzero()[:share, 0] for task, share in zip(tasks, shares, strict=True)]
        self._keep(torch.cat(found))


def _draw(n: int) -> int:
    return int(torch.randint(n, ()))
