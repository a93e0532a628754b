"""The method as it was after each lesson, for probes that look back.

    runs/<benchmark>/<method>/<hash>/stages/001.safetensors, 002.safetensors, …

A run keeps them if it is asked to. Of a run that did not they are made by learning once more, which gives the same
weights to the last bit where torch and the number of threads are the same; the end is compared, and a difference told.
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, overload

import torch

from perdure.errors import CorruptFile
from perdure.lab import checkpoint
from perdure.lab.build import build, with_threads
from perdure.lab.spec import RunSpec
from perdure.methods.method import Method
from perdure.train.callbacks import Callback, Callbacks
from perdure.train.learn import learn
from perdure.train.state import Learned
from perdure.types import Stream


def stage_file(path: Path, lesson: int) -> Path:
    """Where a run keeps the method as it was after a lesson, counted from 0."""
    return path / "stages" / f"{lesson + 1:03d}.safetensors"


class Keeper(Callback):
    """Keeps the method after each lesson."""

    def __init__(self, path: Path, digest: str) -> None:
        self.path, self.digest = path, digest

    def on_task_end(self, method: Method, learned: Learned) -> None:
        lesson = len(learned.matrix) - 1
        checkpoint.save(stage_file(self.path, lesson), self.digest, method, Learned(learned.matrix))


class Stages(Sequence[Method]):
    """Read from its file when it is asked for, so that one at a time is in memory."""

    def __init__(self, path: Path, spec: RunSpec, stream: Stream, device: torch.device, lessons: int) -> None:
        self.path, self.spec, self.stream, self.device, self.lessons = path, spec, stream, device, lessons

    def __len__(self) -> int:
        return self.lessons

    @overload
    def __getitem__(self, lesson: int) -> Method: ...
    @overload
    def __getitem__(self, lesson: slice) -> list[Method]: ...
    def __getitem__(self, lesson: int | slice) -> Method | list[Method]:
        if isinstance(lesson, slice):
            return [self[number] for number in range(*lesson.indices(len(self)))]
        file = stage_file(self.path, range(self.lessons)[lesson])
        method = build(self.spec, self.stream).to(self.device)
        checkpoint.load(file, self.spec.plan, self.path.name).restore(method)
        return method


def stages(
    path: Path, spec: RunSpec, stream: Stream, record: dict[str, Any], device: torch.device, callback: Callback
) -> Stages:
    """The stages of a finished run; those that are not there, or not whole, are learned once more."""
    found = Stages(path, spec, stream, device, len(record["accuracy_matrix"]))
    if not _whole(found):
        _relearn(found, record, callback)
    return found


def likely(method: Method, matrix: Sequence[Sequence[float]]) -> list[Method]:
    """Stand-ins for the stages of a finished method, with as many heads as each had: enough to know what a probe of
    them takes."""
    found = []
    for row in matrix:
        stage = deepcopy(method)
        stage.net.heads = stage.net.heads[: len(row)]
        found.append(stage)
    return found


def _whole(found: Stages) -> bool:
    try:
        for lesson in range(len(found)):
            checkpoint.load(stage_file(found.path, lesson), found.spec.plan, found.path.name)
    except CorruptFile:
        return False
    return True


def _relearn(found: Stages, record: dict[str, Any], callback: Callback) -> None:
    method = build(found.spec, found.stream).to(found.device)
    keeper = Keeper(found.path, found.path.name)
    with with_threads(record["threads"]):  # another number would change the last digits
        learn(
            method,
            found.stream,
            found.spec.plan,
            found.spec.seed,
            Callbacks([callback, keeper]),
            judged_on=found.spec.judged_on,
        )
    model = checkpoint.load(found.path / "model.safetensors", found.spec.plan, found.path.name).state
    again = method.state_dict()
    apart = max((_apart(model[name], again[name]) for name in model if name in again), default=0.0)
    if model.keys() != again.keys() or apart > 0:
        callback.on_warning(
            f"{found.path}: learned once more for its stages, it came to weights that differ by up to {apart:.2g}: "
            "torch or the machine is another than it was; what is measured of stages is of the second learning"
        )


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    return float((one.double() - other.cpu().double()).abs().max()) if one.numel() else 0.0
