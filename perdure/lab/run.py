"""One run, from specification to record."""

import platform
from collections.abc import Sequence
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import Any

import numpy
import safetensors.torch
import torch

import perdure
from perdure import registry
from perdure.errors import WrongValue
from perdure.lab.cautions import cautions
from perdure.lab.spec import RunSpec, split_name
from perdure.lab.store import run_directory, write, write_json, write_lines
from perdure.methods.method import Method
from perdure.nets.network import Network
from perdure.ops.scores import average_accuracy, backward_transfer, forgetting, learning_accuracy
from perdure.seeding import chance
from perdure.train.fit import Watch
from perdure.train.learn import Learned, learn
from perdure.types import Stream

DEFINITIONS = {
    "acc": "mean of the last row of the accuracy matrix, percent",
    "bwt": "mean over tasks 1…T−1 of last row − diagonal, percent points",
    "learning_accuracy": "mean of the diagonal, percent",
    "forgetting": "mean over tasks 1…T−1 of best ever − last row, percent points",
    "seconds": "training, without evaluation and probes",
}


def run(
    spec: RunSpec,
    *,
    out: Path,
    root: Path | None = None,
    stream: Stream | None = None,
    device: str = "cpu",
    probes: Sequence[str] = (),
    without: Sequence[str] = (),
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Do it, leave the record and the learned state in a directory, and return the record.

    A stream that is open already, as `open_stream` opens it, is not opened again.
    """
    measures = {name: registry.probes.load(name) for name in probes}
    place = usable(device)
    stream = stream or open_stream(spec, root)
    method = build(spec, stream).to(place)
    said = cautions(spec, method, without)
    watch = watch or Watch()
    for caution in said:
        watch.caution(caution)
    learned = learn(method, stream, spec.plan, spec.seed, watch)
    path = run_directory(out, spec.shelf, spec.method, spec.digest(stream.fingerprint))
    record = {
        **summary(spec, stream, method, learned),
        **{name: measure(method, learned.tasks) for name, measure in measures.items()},
        "cautions": said,
        "path": str(path),
    }
    write(path / "model.safetensors", safetensors.torch.save(_tensors(method)))
    write_lines(path / "epochs.jsonl", (asdict(epoch) for epoch in learned.epochs))
    write_json(path / "record.json", record)
    return record


def usable(device: str) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError):  # torch raises one or the other, by the kind of device
        raise WrongValue(f"no device {device!r} that this torch can use; try cpu") from None


def open_stream(spec: RunSpec, root: Path | None) -> Stream:
    """The benchmark's tasks, from published files below the root or from one's own."""
    kind, place = split_name(spec.benchmark)
    opener = registry.benchmarks.load(kind)
    given: dict[str, Any] = {"seed": spec.seed, "tasks": spec.tasks, **spec.settings}
    if "root" in signature(opener).parameters:
        given["root"] = root
    if place:
        given["path"] = Path(place).expanduser()
    stream: Stream = opener(**given)
    return stream


def build(spec: RunSpec, stream: Stream) -> Method:
    """A fresh network, with weights by the seed alone, in the hands of the method."""
    with chance(spec.seed, "network"):
        net = Network(registry.networks.load(spec.network)(stream.shape))
    method: Method = registry.methods.load(spec.method)(net, **spec.values)
    return method


def summary(spec: RunSpec, stream: Stream, method: Method, learned: Learned) -> dict[str, Any]:
    return {
        **spec.plain(),
        "task_names": [task.name for task in learned.tasks],
        "data": {**stream.notes, "fingerprint": stream.fingerprint},
        "acc": average_accuracy(learned.matrix),
        "bwt": backward_transfer(learned.matrix),
        "learning_accuracy": learning_accuracy(learned.matrix),
        "forgetting": forgetting(learned.matrix),
        "accuracy_matrix": learned.matrix,
        "epochs_run": [sum(epoch.lesson == row for epoch in learned.epochs) for row in range(len(learned.matrix))],
        "seconds": learned.seconds,
        "memory_bytes": method.memory_bytes(),
        "facts": method.facts(),
        "definitions": DEFINITIONS,
        "versions": {
            "perdure": perdure.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "device": str(next(method.parameters()).device),
        "threads": torch.get_num_threads(),
    }


def _tensors(method: Method) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in method.state_dict().items()}
