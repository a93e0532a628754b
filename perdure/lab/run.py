"""One run, from specification to record."""

import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import tomli_w
import torch

import perdure
from perdure import fast
from perdure.errors import CorruptFile
from perdure.lab import checkpoint
from perdure.lab.build import build, open_stream, resolve_device
from perdure.lab.checkpoint import Saved
from perdure.lab.probe_run import Gauge, asked, measure, open_run, with_stages
from perdure.lab.saver import Saver, discard, latest, stoppable
from perdure.lab.snapshots import Keeper
from perdure.lab.spec import RunSpec
from perdure.lab.store import (
    finish,
    hold,
    read_probes,
    read_record,
    run_directory,
    set_aside,
    write,
    write_lines,
)
from perdure.lab.trackers import tracking
from perdure.lab.warnings import warnings_for
from perdure.methods.method import Method
from perdure.ops.metrics import average_accuracy, backward_transfer, forgetting, learning_accuracy
from perdure.train.callbacks import Callback, Callbacks
from perdure.train.learn import learn
from perdure.train.state import Learned
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
    stages: bool = False,
    without: Sequence[str] = (),
    callback: Callback | None = None,
    gauge: Gauge | None = None,
    trackers: Sequence[str] = (),
    every: float = 60.0,
) -> dict[str, Any]:
    """Do it, leave the record and the learned state in a directory, and return the record, where it is, and whether it
    was there already.

    A run that is finished is not computed again, and one that was interrupted goes on from its last checkpoint, of
    which one is written `every` so many seconds. With `stages` the method is kept as it was after each lesson.
    `trackers` (tensorboard, mlflow, wandb) are told how it goes; a `gauge` callbacks the probes. A stream that is open
    already, as `open_stream` opens it, is not opened again.
    """
    fast.keep_heap()
    wanted = [asked(name) for name in probes]
    place = resolve_device(device)
    stream = stream or open_stream(spec, root)
    digest = spec.digest(stream.fingerprint)
    path = run_directory(out, spec.benchmark_dir, spec.method, digest)
    with hold(out, path), tracking(trackers, spec, digest, path, callback or Callback()) as callback:
        record = finished(path, callback)
        already_done = record is not None
        if record is None:
            method = build(spec, stream).to(place)
            looks_back = any(one.make(stream).needs_stages for one in wanted)
            keepers = [Keeper(path, digest)] if stages or looks_back else []
            record = _go_on(spec, stream, method, path, digest, without, Callbacks([callback, *keepers]), every)
        if {one.key for one in wanted} - read_probes(path, record).keys() or stages:
            opened = open_run(path, record, root, place, gauge or Gauge(), stream)
            measure(with_stages(opened, callback) if stages else opened, wanted, callback)
    return {**record, "probes": read_probes(path, record), "path": str(path), "already_done": already_done}


def finished(path: Path, callback: Callback) -> dict[str, Any] | None:
    """The record of a run that is finished and whole; what is damaged is named and set aside."""
    try:
        return read_record(path, thorough=True)
    except CorruptFile as error:
        # The record alone knows its files' checksums: what is damaged goes with it, or it would be trusted from now on.
        files = [file for file in {path / "record.json": None, error.file: None} if file.exists()]
        callback.on_warning(
            f"{error}; set aside as {' and '.join(set_aside(file).name for file in files)}, and made again"
        )
        return None


def _last_good(path: Path, spec: RunSpec, digest: str) -> tuple[Saved | None, list[str]]:
    """Where to go on from: the latest checkpoint that is whole, or the model of a run whose record was lost."""
    saved, said = latest(path / "checkpoint", spec.plan, digest)
    model = path / "model.safetensors"
    if saved is not None or not model.exists():
        return saved, said
    try:
        saved = checkpoint.load(model, spec.plan, digest)
        saved.learned.epochs = checkpoint.read_epochs(path / "epochs.jsonl")
        saved.learned.seconds = sum(epoch.seconds for epoch in saved.learned.epochs)
    except CorruptFile as error:
        aside = f"; set aside as {set_aside(error.file).name}" if error.file.exists() else ""
        return None, [*said, f"{error}{aside}"]
    return saved, said


def _go_on(
    spec: RunSpec,
    stream: Stream,
    method: Method,
    path: Path,
    digest: str,
    without: Sequence[str],
    callback: Callback,
    every: float,
) -> dict[str, Any]:
    """Learn from the last checkpoint on, or from the start, and write everything down."""
    said = warnings_for(spec, method, without)
    saved, damaged = _last_good(path, spec, digest)
    if saved is not None:
        saved.restore(method)
        if saved.threads != torch.get_num_threads():
            said.append(
                f"began with {saved.threads} threads and goes on with {torch.get_num_threads()}: sums are taken in "
                "another order, so that the last digits may differ from those of a run without a break"
            )
    for caution in (*damaged, *said):
        callback.on_warning(caution)
    learned = saved.learned if saved else Learned()
    saver = Saver(path / "checkpoint", digest, learned, every)
    write(path / "spec.toml", tomli_w.dumps(_for_toml(spec.plain())).encode())
    with stoppable(saver):
        state = saved.standing if saved else None
        learn(
            method,
            stream,
            spec.plan,
            spec.seed,
            Callbacks([callback, saver]),
            judged_on=spec.judged_on,
            learned=learned,
            state=state,
        )
    # Without times, so that the same run always leaves the same bytes.
    checkpoint.save(path / "model.safetensors", digest, method, Learned(learned.matrix))
    write_lines(path / "epochs.jsonl", (asdict(epoch) for epoch in learned.epochs))
    record = {**summary(spec, stream, method, learned), "cautions": said}
    record = finish(path, record, ["spec.toml", "epochs.jsonl", "model.safetensors"])
    discard(path / "checkpoint")
    return record


def _for_toml(value: Any) -> Any:
    """TOML has no word for nothing: what is none is left out."""
    if isinstance(value, dict):
        return {name: _for_toml(inner) for name, inner in value.items() if inner is not None}
    return list(value) if isinstance(value, tuple) else value


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
        "plain": sorted(fast.off()),
    }
