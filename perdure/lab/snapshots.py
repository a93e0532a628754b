"""Snapshots: the method as it was after each task, for probes that look back.

    runs/<benchmark>/<method>/<hash>/snapshots/001.safetensors, 002.safetensors, …

A run keeps them if it is asked to. For a run that did not, the method is trained again, which gives the same weights
to the last bit where torch and the number of threads are the same; the end is compared, and a difference is reported.
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from perdure.errors import CorruptFile
from perdure.lab import checkpoint
from perdure.lab.build import build
from perdure.lab.spec import RunSpec
from perdure.lab.threads import with_threads
from perdure.methods.method import Method
from perdure.train.callbacks import Callback, Callbacks
from perdure.train.learn import learn
from perdure.train.state import Learned
from perdure.types import Stream


def snapshot_file(path: Path, task: int) -> Path:
    """Where a run keeps the method as it was after a task, counted from 0."""
    folder = "stages" if (path / "stages").is_dir() else "snapshots"  # runs of earlier versions
    return path / folder / f"{task + 1:03d}.safetensors"


class SnapshotSaver(Callback):
    """Saves the method after each task."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_task_end(self, method: Method, learned: Learned) -> None:
        file = snapshot_file(self.path, len(learned.matrix) - 1)
        checkpoint.save(file, self.path.name, method, Learned(learned.matrix))


class Snapshots(Sequence[Method]):
    """Loaded one at a time, when asked for."""

    def __init__(self, path: Path, spec: RunSpec, stream: Stream, device: torch.device, tasks: int) -> None:
        self.path, self.spec, self.stream, self.device, self.tasks = path, spec, stream, device, tasks

    def __len__(self) -> int:
        return self.tasks

    def __getitem__(self, task: Any) -> Any:
        if isinstance(task, slice):
            return [self[number] for number in range(*task.indices(len(self)))]
        method = build(self.spec, self.stream).to(self.device)
        file = snapshot_file(self.path, range(self.tasks)[task])
        checkpoint.load(file, self.spec.plan, self.path.name).restore(method, self.stream.shape)
        return method

    def complete(self) -> bool:
        """Whether all of them are there and whole."""
        try:
            for task in range(self.tasks):
                self[task]
        except CorruptFile:
            return False
        return True


def load_snapshots(
    path: Path, spec: RunSpec, stream: Stream, record: dict[str, Any], device: torch.device, callback: Callback
) -> Snapshots:
    """The snapshots of a finished run; if one is missing or damaged, the method is trained again."""
    found = Snapshots(path, spec, stream, device, len(record["accuracy_matrix"]))
    if not found.complete():
        with with_threads(record["threads"]):  # another number would change the last digits
            method = _train_again(found, callback)
        _compare(found, method, callback)
    return found


def placeholder_snapshots(method: Method, matrix: Sequence[Sequence[float]]) -> list[Method]:
    """Copies of a finished method with as many heads as each snapshot has: enough to know what a probe will cost."""
    found = []
    for row in matrix:
        copy = deepcopy(method)
        copy.net.heads = copy.net.heads[: len(row)]
        found.append(copy)
    return found


def _train_again(found: Snapshots, callback: Callback) -> Method:
    spec, method = found.spec, build(found.spec, found.stream).to(found.device)
    callbacks = Callbacks([callback, SnapshotSaver(found.path)])
    learn(method, found.stream, spec.plan, spec.seed, callbacks, judged_on=spec.judged_on)
    return method


def _compare(found: Snapshots, method: Method, callback: Callback) -> None:
    """With the model that the run left."""
    model = checkpoint.load(found.path / "model.safetensors", found.spec.plan, found.path.name).state
    again = method.state_dict()
    difference = max((_difference(model[name], again[name]) for name in model if name in again), default=0.0)
    if model.keys() != again.keys() or difference > 0:
        callback.on_warning(
            f"{found.path}: trained again for its snapshots, the weights differ by up to {difference:.2g}: torch or "
            "the machine is another than it was; what is measured of snapshots is of the second training"
        )


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    return float((one.double() - other.cpu().double()).abs().max()) if one.numel() else 0.0
