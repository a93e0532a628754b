"""Probes of finished runs: what they found is kept beside the record, and is not measured twice.

runs/<benchmark>/<method>/<hash>/probes/
    NAME.json           values, figures and the headline; NAME-xxxxxxxx where values are not the usual ones
    NAME.safetensors    its arrays, if it has any
    NAME.png            its picture, if one was drawn
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.nn.functional as F

import perdure
from perdure import registry
from perdure.data.cifar100c import Twins
from perdure.errors import WrongValue
from perdure.lab.build import open_clean, open_stream, reopen
from perdure.lab.snapshots import stages
from perdure.lab.spec import RunSpec, assignments
from perdure.lab.store import file_sum, read_probes, write_json, written
from perdure.probes.probe import Cost, ProbeProgress, ProbeResult, TrainedMethod
from perdure.schema import checked, values_of
from perdure.train.callbacks import Callback
from perdure.types import Stream


@dataclass(frozen=True)
class Asked:
    """A probe with its values."""

    name: str
    values: dict[str, Any]
    key: str  # names its files

    def make(self, stream: Stream) -> Any:
        """Ready for the tasks of a stream."""
        probe = registry.probes.load(self.name)(**self.values)
        if self.values.get("folder"):  # probes know no files: corrupted twins of the test images are read for them
            probe.published = Twins(Path(self.values["folder"]), stream)
        return probe


def asked(text: str, wishes: Mapping[str, Any] | None = None) -> Asked:
    """A probe by its name, with other values than the usual ones if wished: `pgd`, or `pgd(steps=50 images=100)`."""
    name, bracket, inside = text.partition("(")
    if bracket and not inside.endswith(")"):
        raise WrongValue(f"probe {text!r}: values go in brackets with spaces between, as in pgd(steps=50 images=100)")
    maker = registry.probes.load(name.strip())
    name, wishes = name.strip(), {**assignments(inside.removesuffix(")").split()), **(wishes or {})}
    defaults = {key: value.default for key, value in values_of(maker).items()}
    values = {**defaults, **checked(f"probe {name}", maker, wishes)}
    text = json.dumps(values, sort_keys=True, default=list)
    if text == json.dumps(defaults, sort_keys=True, default=list):
        return Asked(name, values, name)
    return Asked(name, values, f"{name}-{blake2b(text.encode(), digest_size=4).hexdigest()}")


class Gauge(ProbeProgress):
    """Watches measuring. Override what you want to see."""

    def begin(self, name: str, work: Cost, seconds: float) -> None:
        """A probe begins that is expected to take so many seconds."""

    def end(self, name: str, seconds: float) -> None:
        """It took so many."""


@dataclass(frozen=True)
class Opened:
    """A finished run, opened to be measured."""

    path: Path
    record: dict[str, Any]
    spec: RunSpec
    subject: TrainedMethod
    gauge: Gauge
    root: Path | None
    stream: Stream


def open_run(
    path: Path,
    record: dict[str, Any],
    root: Path | None,
    device: torch.device,
    gauge: Gauge,
    stream: Stream | None = None,
) -> Opened:
    """A finished run with its method and its data, which must be the ones it learned from."""
    spec = RunSpec.from_plain(record)
    stream = stream or open_stream(spec, root)
    if spec.digest(stream.fingerprint) != path.name:
        raise WrongValue(
            f"{path}: the images of {spec.benchmark} found here are not those it learned from; name theirs with --root"
        )
    method, tasks = reopen(path, spec, stream, device)
    subject = TrainedMethod(method, tasks, f"{spec.method}, seed {spec.seed}", progress=gauge)
    return Opened(path, record, spec, subject, gauge, root, stream)


def with_stages(run: Opened, callback: Callback) -> Opened:
    """With the method as it was after each lesson, and the tasks as they were without outliers."""
    device = next(run.subject.method.parameters()).device
    kept = stages(run.path, run.spec, run.stream, run.record, device, callback)
    clean = run.stream.tasks if not run.spec.outliers else open_clean(run.spec, run.root).tasks
    return replace(run, subject=replace(run.subject, stages=kept, clean=[task.to(device) for task in clean]))


def measure(run: Opened, wanted: Sequence[Asked], callback: Callback | None = None) -> None:
    """Measure what is not measured yet, and keep it with the run."""
    known = read_probes(run.path, run.record)
    missing = [one for one in wanted if one.key not in known]
    if not missing:
        return
    pace = Pace(run.subject)
    for one in missing:
        probe = one.make(run.stream)
        if probe.needs_stages and not run.subject.stages:
            run = with_stages(run, callback or Callback())
        measured = partial(probe.measure, run.subject)
        found, facts = timed(one.name, probe.cost(run.subject), pace, run.gauge, measured)
        keep(run.path / "probes", one, found, {**facts, "models": [run.record["files"]["model.safetensors"]]})


def timed(
    name: str, work: Cost, pace: "Pace", gauge: Gauge, do: Callable[[], ProbeResult]
) -> tuple[ProbeResult, dict[str, Any]]:
    """What it found, and what it took."""
    gauge.begin(name, work, pace.seconds(work))
    started = time.perf_counter()
    found = do()
    seconds = time.perf_counter() - started
    gauge.end(name, seconds)
    versions = {"perdure": perdure.__version__, "torch": torch.__version__}
    threads = torch.get_num_threads()
    return found, {"seconds": seconds, "work": asdict(work), "threads": threads, "versions": versions}


def keep(folder: Path, one: Asked, found: ProbeResult, facts: Mapping[str, Any]) -> None:
    """Write arrays first: a file of figures says that all is there."""
    arrays = {name: array.detach().cpu().contiguous() for name, array in found.arrays.items()}
    if arrays:
        with written(folder / f"{one.key}.safetensors") as part:
            safetensors.torch.save_file(arrays, part)
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    kept = {"arrays": shapes, "arrays_sum": file_sum(folder / f"{one.key}.safetensors")}
    about = {"probe": one.name, "values": one.values, "headline": found.headline, **kept, **facts}
    write_json(folder / f"{one.key}.json", {**found.figures, **about})


class Pace:
    """How long an image takes here, forward alone and forward and back: the middle of three tries."""

    def __init__(self, subject: TrainedMethod) -> None:
        model = TrainedMethod(subject.method, subject.tasks).model(0)  # counted apart
        x, y = next(iter(model.batches()))
        self.look = _middle(lambda: model.logits(x)) / len(x)
        loss = partial(F.cross_entropy, target=y, reduction="none")
        self.slope = _middle(lambda: model.input_gradient(x, loss)) / len(x)

    def seconds(self, work: Cost) -> float:
        return work.forwards * self.look + work.gradients * self.slope


def _middle(do: Callable[[], Any]) -> float:
    do()  # the first time is slower
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        _wait(do())
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def _wait(found: Any) -> None:
    """For a GPU's queue."""
    tensor = found if isinstance(found, torch.Tensor) else found[0]
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
