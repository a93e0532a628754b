"""One run, from what is asked for to its record."""

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import tomli_w
import torch

import perdure
from perdure import fast, registry
from perdure.errors import BadData, CorruptFile, Diverged, PerdureError, TooFewSamples
from perdure.lab import checkpoint, store
from perdure.lab.build import BenchmarkFunction, build, count_lessons, open_stream, resolve_device
from perdure.lab.checkpoint import Checkpoint, Checkpointer
from perdure.lab.pictures import draw_run
from perdure.lab.probe_run import RunProgress, measure, open_run, probe_spec, with_snapshots
from perdure.lab.snapshots import SnapshotSaver
from perdure.lab.spec import RunSpec, spec
from perdure.lab.store import lock_run, read_probes, run_directory, set_aside
from perdure.lab.threads import check_threads, usual_threads, with_threads
from perdure.lab.trackers import tracking
from perdure.lab.warnings import warnings_for
from perdure.methods.method import Method
from perdure.nets.network import Backbone
from perdure.ops.metrics import average_accuracy, backward_transfer, forgetting, learning_accuracy
from perdure.processes import openmp_settings
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
    "evaluation_seconds": "testing all tasks seen after each task",
}


def run(
    method: str | type[Method],
    benchmark: str | BenchmarkFunction,
    *,
    seed: int = 1,
    values: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
    net: str | type[Backbone] | None = None,
    tasks: int | None = None,
    settings: Mapping[str, Any] | None = None,
    outliers: str = "",
    probes: Sequence[str] = (),
    snapshots: bool = False,
    without: Sequence[str] = (),
    trackers: Sequence[str] = (),
    out: str | Path = "runs",
    root: str | Path | None = None,
    device: str = "cpu",
    threads: int | None = None,
    checkpoint_every: float = 60.0,
    pictures: bool = True,
    callback: Callback | None = None,
    progress: RunProgress | None = None,
) -> dict[str, Any]:
    """Train a method on a benchmark's tasks, one after another, and return the record: what `perdure run` does.

    - Method, benchmark and network are names (`perdure ls`), things in a file of yours (`my.py:Careful`), or your
      classes and functions themselves.
    - `values`, `plan` and `settings` change the method, the training and the benchmark; presets and defaults fill in
      the rest. `net` names another network, `tasks` takes the first so many tasks.
    - `outliers` contaminates training data, e.g. "labels:0.2@2-4"; `probes` are measured in the end, e.g. "fgsm".
    - `snapshots` keeps the method as it was after each task; a checkpoint is written every so many seconds.
    - `without` names what will not be there in use (stored-data, task-identity), to be warned; `trackers` are
      tensorboard, mlflow or wandb.
    - `pictures` of the run and its probes are drawn beside its record (`pictures` in what is returned), where
      matplotlib is installed; of a run that was done before, those that are missing.
    - `threads` of torch; left out, one for a small network (`lab/threads.py`), torch's own number for others.
    - `out` is the store of runs, `root` the place of image files (default: PERDURE_DATA, else the user's cache).

    A run that is finished is not computed again (`already_done` in the record), and one that was interrupted resumes.

    >>> import tempfile
    >>> record = run("gpm", "synthetic", tasks=2, plan={"epochs": 1}, out=tempfile.mkdtemp())
    >>> [len(row) for row in record["accuracy_matrix"]]
    [1, 2]
    """
    given: dict[str, Any] = {"values": values, "plan": plan, "settings": settings, "outliers": outliers}
    wanted = spec(method, benchmark, seed=seed, network=net, tasks=tasks, **given)
    progress = progress or RunProgress()
    record = run_spec(
        wanted,
        out=Path(out),
        root=None if root is None else Path(root),
        device=device,
        threads=threads,
        probes=probes,
        snapshots=snapshots,
        without=without,
        trackers=trackers,
        every=checkpoint_every,
        callback=callback,
        progress=progress,
    )
    keys = [probe_spec(name).key for name in probes]
    drawn = draw_run(record, keys, progress.warn, again=not record["already_done"]) if pictures else []
    return {**record, "pictures": [str(path) for path in drawn]}


def run_spec(
    spec: RunSpec,
    *,
    out: Path,
    root: Path | None = None,
    stream: Stream | None = None,
    device: str = "cpu",
    threads: int | None = None,
    probes: Sequence[str] = (),
    snapshots: bool = False,
    without: Sequence[str] = (),
    callback: Callback | None = None,
    progress: RunProgress | None = None,
    trackers: Sequence[str] = (),
    every: float = 60.0,
) -> dict[str, Any]:
    """`run` with a complete specification; a stream that is open already is not opened again, a checkpoint is written
    `every` so many seconds."""
    registry.check_not_loading()
    if threads is not None:
        check_threads(threads)
    fast.keep_heap()
    wanted = [probe_spec(name) for name in probes]
    torch_device = resolve_device(device)
    stream = stream or open_stream(spec, root)
    digest = spec.digest(stream.fingerprint)
    path = run_directory(out, spec.benchmark_dir, spec.method_dir, digest)
    progress = progress or RunProgress()
    callback = Callbacks([callback or Callback(), progress.training(spec.method, count_lessons(spec, stream))])
    with lock_run(out, path), tracking(trackers, spec, digest, path, callback) as callback:
        store.sweep(path)
        record = finished(path, spec, callback)
        already_done = record is not None
        if record is None:
            looks_back = any(one.build(stream).needs_snapshots for one in wanted)
            savers = [SnapshotSaver(path)] if snapshots or looks_back else []
            with _failures_saved(path, spec):
                callbacks = Callbacks([callback, *savers])
                record = _train(spec, stream, torch_device, path, without, callbacks, every, threads)
        if {one.key for one in wanted} - read_probes(path, record).keys() or snapshots:
            opened = open_run(path, record, root=root, device=device, progress=progress, stream=stream)
            with with_threads(threads or opened.usual_threads):
                measure(with_snapshots(opened, callback) if snapshots else opened, wanted, callback)
    return {**record, "probes": read_probes(path, record), "path": str(path), "already_done": already_done}


def finished(path: Path, spec: RunSpec, callback: Callback) -> dict[str, Any] | None:
    """The record of a run that is finished and whole; what is damaged is named and set aside."""
    try:
        record = store.read_record(path, thorough=True)
        if record is not None and not spec.is_of(record):
            raise CorruptFile(f"{path / 'record.json'}: of another run", path / "record.json")
        return record
    except CorruptFile as error:
        # The record alone knows its files' checksums: what is damaged goes with it, or it would be trusted from now on.
        files = [file for file in {path / "record.json": None, error.file: None} if file.exists() or file.is_symlink()]
        callback.on_warning(
            f"{error}; set aside as {' and '.join(set_aside(file).name for file in files)}, and made again"
        )
        return None


@contextmanager
def _failures_saved(path: Path, spec: RunSpec) -> Iterator[None]:
    """What would stop this training again is written beside it; what an earlier attempt left goes."""
    store.clear_failure(path)
    try:
        yield
    except (Diverged, TooFewSamples, BadData) as error:
        with suppress(PerdureError):  # what went wrong first is what matters
            store.save_failure(path, spec.plain(), str(error))
        raise


def _resumed(
    path: Path, spec: RunSpec, make: Callable[[], Method], shape: tuple[int, int, int]
) -> tuple[Method, Checkpoint | None, Sequence[str]]:
    """The method as it was at the latest checkpoint that is whole, or in the end of a run whose record was lost; what
    it was restored from, if anything; and warnings about what had to be set aside."""
    model, warnings = path / "model.safetensors", list[str]()
    for file in [*checkpoint.newest_first(path / "checkpoint"), *([model] if model.exists() else [])]:
        try:
            saved = checkpoint.load(file, spec.plan, path.name)
            if file == model:
                saved.learned.epochs = checkpoint.read_epochs(path / "epochs.jsonl")
                saved.learned.seconds = sum(epoch.seconds for epoch in saved.learned.epochs)
            saved.restore(method := make(), shape)
        except CorruptFile as error:
            aside = f"; set aside as {set_aside(error.file).name}" if error.file.exists() else ""
            warnings.append(f"{error}{aside}")
        else:
            return method, saved, warnings
    return make(), None, warnings


def _train(
    spec: RunSpec,
    stream: Stream,
    device: torch.device,
    path: Path,
    without: Sequence[str],
    callback: Callback,
    every: float,
    threads: int | None,
) -> dict[str, Any]:
    """Train from the last checkpoint on, or from the start, and write all files of the run."""
    method, saved, damaged = _resumed(path, spec, lambda: build(spec, stream).to(device), stream.shape)
    threads = threads or usual_threads(method.net, stream.shape, spec.plan.batch)
    warnings = warnings_for(spec, method, without)
    learned, fit_state = Learned(), None
    if saved is not None:
        learned, fit_state = saved.learned, saved.fit_state
        if saved.threads != threads:
            warnings.append(
                f"began with {saved.threads} threads and goes on with {threads}: sums are taken in "
                "another order, so that the last digits may differ from those of a run without a break"
            )
    for warning in (*damaged, *warnings):
        callback.on_warning(warning)
    saver = Checkpointer(path / "checkpoint", path.name, learned, every)
    asked = tomli_w.dumps(_for_toml(spec.plain())).encode()
    store.write(path / "spec.toml", asked)
    callbacks, judged_on = Callbacks([callback, saver]), spec.judged_on
    with with_threads(threads):
        with saver.stopping_on_signals():
            learn(
                method, stream, spec.plan, spec.seed, callbacks, judged_on=judged_on, learned=learned, state=fit_state
            )
        store.write(path / "spec.toml", asked)  # again: somebody may have removed or renamed the directory meanwhile
        # Without times, so that the same run always leaves the same bytes.
        checkpoint.save(path / "model.safetensors", path.name, method, Learned(learned.matrix))
        store.write_lines(path / "epochs.jsonl", (asdict(epoch) for epoch in learned.epochs))
        record = {**summary(spec, stream, method, learned), "cautions": [*warnings, *method.cautions]}
    record = store.finish(path, record)
    checkpoint.discard(path / "checkpoint")
    return record


def _for_toml(value: Any) -> Any:
    """TOML has no null: what is None is left out."""
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
        "evaluation_seconds": learned.evaluation_seconds,
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
        "openmp": openmp_settings(os.environ),
        "plain": sorted(fast.off()),
    }
