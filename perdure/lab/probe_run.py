"""Probes of one finished run: results are kept beside the record, and nothing is measured twice.

runs/<benchmark>/<method>/<hash>/probes/
    NAME.json           values, figures and the headline; NAME-xxxxxxxx where values are not the defaults
    NAME.safetensors    its arrays, if it has any
    NAME.png            its picture, if one was drawn
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.nn.functional as F

import perdure
from perdure import registry
from perdure.data.benchmarks.cifar100c import CorruptedTests
from perdure.errors import WrongValue, short
from perdure.lab.build import open_clean, open_stream, reopen, resolve_device
from perdure.lab.index import read_finished
from perdure.lab.snapshots import load_snapshots
from perdure.lab.spec import RunSpec, as_folder, assignments
from perdure.lab.store import atomic_write, file_sum, read_probes, write_checked
from perdure.lab.threads import usual_threads
from perdure.probes.probe import Cost, ProbeProgress, ProbeResult, TrainedMethod
from perdure.schema import checked, values_of
from perdure.train.callbacks import Callback
from perdure.types import Stream


@dataclass(frozen=True)
class ProbeSpec:
    """A probe with its values."""

    name: str
    values: dict[str, Any]
    key: str  # names its files

    def build(self, stream: Stream) -> Any:
        """The probe, ready for the tasks of a stream."""
        probe = registry.probes.load(self.name)(**self.values)
        if self.values.get("folder"):  # probes read no files: corrupted copies of the test images are read for them
            probe.published = CorruptedTests(Path(self.values["folder"]), stream)
        return probe


def probe_spec(text: str, values: Mapping[str, Any] | None = None) -> ProbeSpec:
    """A probe by its name, with other values than the defaults if given: `pgd`, or `pgd(steps=50 images=100)`."""
    name, bracket, inside = text.partition("(")
    if bracket and not inside.endswith(")"):
        raise WrongValue(
            f"probe {short(text)!r}: values go in brackets with spaces between, as in pgd(steps=50 images=100)"
        )
    name = registry.probes.name(name.strip())
    maker = registry.probes.load(name)
    given = {**assignments(inside.removesuffix(")").split()), **(values or {})}
    defaults = {key: value.default for key, value in values_of(maker).items()}
    chosen = {**defaults, **checked(f"probe {name}", maker, given)}
    maker(**chosen)  # what is wrong with the values together is said now, not after hours of training
    late = {key for key in maker.added if chosen[key] == defaults[key]}
    named = [{key: value for key, value in which.items() if key not in late} for which in (chosen, defaults)]
    plain, usual = (json.dumps(which, sort_keys=True, default=list) for which in named)
    own = registry.probes.own(name)
    if own is not None:  # an edited probe is another one
        plain += own["checksum"]
    suffix = "" if plain == usual else f"-{blake2b(plain.encode(), digest_size=4).hexdigest()}"
    return ProbeSpec(name, chosen, as_folder(name) + suffix)


class RunProgress(ProbeProgress):
    """What can be seen while runs are trained and measured. Override what you want to show."""

    def training(self, run: str, tasks: int) -> Callback:  # noqa: ARG002
        """A run of so many tasks is about to be trained: who looks on."""
        return Callback()

    def begin(self, name: str, work: Cost, seconds: float) -> None:
        """A probe begins that is expected to take so many seconds."""

    def end(self, name: str, seconds: float) -> None:
        """It took so many."""

    def warn(self, text: str) -> None:
        """Something went wrong that does not stop the others."""


@dataclass(frozen=True)
class OpenRun:
    """A finished run with its method and data, ready to be measured."""

    path: Path
    record: dict[str, Any]
    spec: RunSpec
    subject: TrainedMethod
    progress: RunProgress
    root: Path | None
    stream: Stream

    @property
    def usual_threads(self) -> int:
        return usual_threads(self.subject.method.net, self.stream.shape, self.spec.plan.batch)

    @property
    def model(self) -> str:
        """The checksum of its model, by which results are told from those of another model."""
        return str(self.record["files"]["model.safetensors"])


def open_run(
    path: str | Path,
    record: dict[str, Any] | None = None,
    *,
    root: Path | None = None,
    device: str = "cpu",
    progress: RunProgress | None = None,
    stream: Stream | None = None,
    label: str = "",
) -> OpenRun:
    """Open a finished run. Its data must be those it was trained on; record and stream are read if not given."""
    path, progress = Path(path), progress or RunProgress()
    record = record or read_finished(path, thorough=True)
    spec = RunSpec.from_plain(record)
    spec.restore_code()
    stream = stream or open_stream(spec, root)
    if spec.digest(stream.fingerprint) != path.name:
        raise WrongValue(
            f"{path}: the images of {spec.benchmark} found here are not those it learned from; name theirs with --root"
        )
    method, tasks = reopen(path, spec, stream, resolve_device(device))
    subject = TrainedMethod(method, tasks, label or f"{spec.method}, seed {spec.seed}", progress=progress)
    return OpenRun(path, record, spec, subject, progress, root, stream)


def with_snapshots(run: OpenRun, callback: Callback) -> OpenRun:
    """With the method as it was after each task, and the tasks without outliers."""
    device = next(run.subject.method.parameters()).device
    kept = load_snapshots(run.path, run.spec, run.stream, run.record, device, callback)
    clean = run.stream.tasks if not run.spec.outliers else open_clean(run.spec, run.root).tasks
    return replace(run, subject=replace(run.subject, snapshots=kept, clean=[task.to(device) for task in clean]))


def measure(run: OpenRun, wanted: Sequence[ProbeSpec], callback: Callback | None = None, prefix: str = "") -> None:
    """Measure what is not measured yet, and save it with the run; the prefix is for the display of progress."""
    known = read_probes(run.path, run.record)
    missing = [one for one in wanted if one.key not in known]
    speed = Speed(run.subject) if missing else None
    for one in missing:
        assert speed is not None
        probe = one.build(run.stream)
        if probe.needs_snapshots and not run.subject.snapshots:
            run = with_snapshots(run, callback or Callback())
        do = partial(probe.measure, run.subject)
        found, facts = timed(f"{prefix}{one.name}", probe.cost(run.subject), speed, run.progress, do)
        save_result(run.path / "probes" / f"{one.key}.json", one, found, {**facts, "models": [run.model]})


def timed(
    name: str, work: Cost, speed: "Speed", progress: RunProgress, do: Callable[[], ProbeResult]
) -> tuple[ProbeResult, dict[str, Any]]:
    """What a probe found, and what it took."""
    progress.begin(name, work, speed.seconds(work))
    started = time.perf_counter()
    found = do()
    seconds = time.perf_counter() - started
    progress.end(name, seconds)
    versions = {"perdure": perdure.__version__, "torch": torch.__version__}
    return found, {
        "seconds": seconds,
        "work": asdict(work),
        "threads": torch.get_num_threads(),
        "versions": versions,
    }


def save_result(file: Path, one: ProbeSpec, found: ProbeResult, facts: Mapping[str, Any]) -> None:
    """Arrays are written first: the file of figures says that all is there."""
    arrays = {name: array.detach().cpu().contiguous() for name, array in found.arrays.items()}
    beside = file.with_suffix(".safetensors")
    if arrays:
        with atomic_write(beside) as part:
            safetensors.torch.save_file(arrays, part)
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    about = {"probe": one.name, "values": one.values, "headline": found.headline}
    write_checked(file, {**found.figures, **about, "arrays": shapes, "arrays_sum": file_sum(beside), **facts})


class Speed:
    """How long an image takes here, forward alone and forward and backward: the median of three tries."""

    def __init__(self, subject: TrainedMethod) -> None:
        model = TrainedMethod(subject.method, subject.tasks).model(0)  # counted apart
        x, y = next(iter(model.batches()))
        loss = partial(F.cross_entropy, target=y, reduction="none")
        self.forward = _median(lambda: model.logits(x)) / len(x)
        self.backward = _median(lambda: model.input_gradient(x, loss)[0]) / len(x)

    def seconds(self, work: Cost) -> float:
        forwards, gradients = astuple(work)
        return float(forwards * self.forward + gradients * self.backward)


def _median(do: Callable[[], torch.Tensor]) -> float:
    do()  # the first time is slower
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        if (device := do().device).type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)
