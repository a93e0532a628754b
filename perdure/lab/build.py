"""From a specification to what it names: device, stream, network, method."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from perdure import registry
from perdure.data.arrays import stream_from
from perdure.data.tasks import task_count
from perdure.errors import WrongValue, expanded, short
from perdure.lab import checkpoint
from perdure.lab.outlier_spec import outlier_specs
from perdure.lab.outliers import check_possible, contaminated
from perdure.lab.spec import RunSpec, split_name
from perdure.methods.method import Method
from perdure.nets.coverage import Coverage
from perdure.nets.network import Backbone, Network, Statistics, first_weights
from perdure.nets.wrap import wrap
from perdure.types import Stream, Task

BenchmarkFunction = Callable[..., Stream | Sequence[Task]]
"""A benchmark: takes a seed and, if it wants them, tasks and root; its other arguments are settings."""


def resolve_device(device: str) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError):  # torch raises one or the other, by the kind of device
        raise WrongValue(f"no device {short(device)!r} that this torch can use; try cpu") from None


def open_stream(spec: RunSpec, root: Path | None) -> Stream:
    """The tasks to learn, contaminated with outliers where that is asked for."""
    return contaminated(open_clean(spec, root), outlier_specs(spec.outliers), spec.seed, spec.network)


def open_clean(spec: RunSpec, root: Path | None) -> Stream:
    """The benchmark's tasks without outliers, from published files below the root or from one's own."""
    kind, place = split_name(spec.benchmark)
    spec.restore_code()
    opener = registry.benchmarks.load(kind)
    takes = signature(opener).parameters
    given: dict[str, Any] = {"seed": spec.seed, "tasks": spec.tasks, "root": root}
    given = {name: value for name, value in given.items() if name in takes} | spec.settings
    if place:
        given["path"] = expanded(place)
    found = opener(**given)
    stream = found if "benchmark" not in spec.code else _own_stream(spec, found)
    check_possible(stream, outlier_specs(spec.outliers))
    return stream


def _own_stream(spec: RunSpec, found: Any) -> Stream:
    """What a benchmark of the user's own returned, cut to the tasks that are asked for; its images are its
    fingerprint, since nobody knows what else they depend on."""
    tasks = list(found) if isinstance(found, Stream | list | tuple) else []
    if not tasks or not all(isinstance(task, Task) for task in tasks):
        raise WrongValue(f"{spec.benchmark} must return a Stream or a list of tasks, not {type(found).__name__}")
    stream = found if isinstance(found, Stream) else stream_from(spec.benchmark, tasks)
    content = blake2b(digest_size=8)
    for part in (part for task in tasks for part in (task.train, task.valid, task.test)):
        content.update(repr((part.mean, part.std, part.x.dtype, tuple(part.x.shape))).encode())
        for tensor in (part.x, part.y):
            content.update(tensor.cpu().contiguous().numpy().tobytes())
    return replace(stream, tasks=tasks[: task_count(spec.tasks, len(tasks))], fingerprint=content.hexdigest())


def build(spec: RunSpec, stream: Stream) -> Method:
    """The method with a fresh network, whose weights depend on the seed alone."""
    with first_weights(spec.seed):
        net = make_network(spec.network, stream.shape, spec.plan.statistics)
    method: Method = registry.methods.load(spec.method)(net, **spec.values)
    return method


def make_network(name: str, shape: tuple[int, int, int], statistics: Statistics = "batch") -> Network:
    """A network by its name. One of the user's own may be any module, or wrapped already."""
    found = registry.networks.load(name)(shape)
    if isinstance(found, Network):
        return found
    if isinstance(found, Backbone):
        return Network(found, statistics)
    return wrap(found, shape, fresh=True)


def reopen(path: Path, spec: RunSpec, stream: Stream, device: torch.device) -> tuple[Method, list[Task]]:
    """The method of a finished run in its final state, and its tasks."""
    method = build(spec, stream).to(device)
    checkpoint.load(path / "model.safetensors", spec.plan).restore(method, stream.shape)
    return method, [task.to(device) for task in stream]


def count_lessons(spec: RunSpec, stream: Stream) -> int:
    """One per task, unless the method makes its own."""
    if registry.methods.load(spec.method).lessons is Method.lessons:
        return len(stream)
    return sum(1 for _ in build(spec, stream).lessons(stream))


def network_coverage(name: str, shape: tuple[int, int, int] = (3, 32, 32)) -> Coverage:
    """What becomes of the parameters of a network, for images of a shape; heads are left out."""
    with first_weights(1):
        net = make_network(name, shape)
    return net.examine(torch.rand(2, *shape))
