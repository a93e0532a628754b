"""Checkpoints: weights, the method's own state, optimizer, schedule, best weights and random generators in one file.

The file is safetensors with JSON in its header. Nothing is ever unpickled. Resumed, a run ends bit for bit as it would
have without the break.
"""

import json
import re
import signal
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from perdure import files
from perdure.errors import CorruptFile, Interrupted, PerdureError
from perdure.lab.memory_form import check_memory
from perdure.lab.saved import CheckpointHeader, SavedEpochs, check
from perdure.lab.store import LARGEST, atomic_write, why
from perdure.methods.method import Method
from perdure.train.callbacks import Callback, StepContext
from perdure.train.evaluate import RunningScore, Score
from perdure.train.plan import Plan
from perdure.train.schedules import set_state
from perdure.train.state import Epoch, FitState, Learned, changing

SCHEMA = 1
KEY = "perdure"  # of the header's only entry: a checksum and JSON
METHOD = ""  # the method's own tensors bear their names in its state_dict; the others have their group before it
TENSORS = ("best_weights", "generators")  # of a FitState
OPTIMIZER = ("momentum", "squares", "steps")  # what one may remember
KEPT = 2  # checkpoints: should the latest be damaged, there is the one before


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds."""

    path: Path
    plan: Plan
    state: dict[str, Tensor]  # of the method
    remembered: dict[str, Any]
    learned: Learned
    fit_state: FitState | None  # None between two tasks
    threads: int

    def restore(self, method: Method, shape: tuple[int, int, int] | None = None) -> None:
        """Load it into a fresh method that was built alike, for images of this shape. Raises CorruptFile if it is of
        another: the method is then neither fresh nor restored."""
        device = next(method.parameters()).device
        try:
            method.load_state_dict(self.state)
            self._remind(method)
            self._check_heads(method)
            self._check_weights(method)
            check_memory(method, learning=self.fit_state is not None, shape=shape)
            if self.fit_state is not None:
                _check_fit(self.fit_state, self.plan, changing(method))
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            reason = " ".join(str(error).split())[:100]
            raise CorruptFile(f"{self.path}: does not fit its run ({reason})", self.path) from None
        method.to(device)
        if (fit := self.fit_state) is not None:
            fit.best_weights = {name: tensor.to(device) for name, tensor in fit.best_weights.items()}
            for kind, found in fit.optimizer.items():
                if kind != "steps":  # counts stay where reading them waits for no queue
                    fit.optimizer[kind] = {name: tensor.to(device) for name, tensor in found.items()}

    def _remind(self, method: Method) -> None:
        """Set what the method declares, and nothing else, to values of the kind it had."""
        for name, value in self.remembered.items():
            if name not in method.remembered() or not _alike(getattr(method, name), value):
                raise ValueError(f"remembered {name}")
            setattr(method, name, tuple(value) if isinstance(value, list) else value)

    def _check_heads(self, method: Method) -> None:
        """There is one for each task that was tested, and within a lesson more."""
        heads, tested = len(method.net.heads), len(self.learned.matrix[-1]) if self.learned.matrix else 0
        if heads <= tested if self.fit_state is not None else heads != tested:
            raise ValueError(f"{heads} heads, {tested} tasks tested")

    def _check_weights(self, method: Method) -> None:
        """Loaded, they have their own type, whatever the file has. After an epoch they have been scored, so that they
        are numbers; in the middle of one they may have diverged."""
        for name, tensor in method.state_dict().items():
            if self.state[name].dtype != tensor.dtype:
                raise ValueError(f"type of {name}")
        if self.fit_state is None or self.fit_state.batches == 0:
            _check_finite(method.net.state_dict())


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"numbers of {name}")


def _alike(one: Any, other: Any) -> bool:
    """Whether two plain values are of one kind, as far as that can be told: None may become anything, and back."""
    kinds = (int | float, str, list | tuple, dict)
    return other is None or all(isinstance(other, kind) for kind in kinds if isinstance(one, kind))


def _check_fit(fit: FitState, plan: Plan, weights: Mapping[str, Tensor]) -> None:
    """Whether a lesson with these weights can go on."""
    best = weights if plan.keep == "best" else {}
    remembered = [(found, name) for kind, found in fit.optimizer.items() if kind != "steps" for name in found]
    for found, name in [*((fit.best_weights, name) for name in best), *remembered]:
        if name in weights and (found[name].shape, found[name].dtype) != (weights[name].shape, weights[name].dtype):
            raise ValueError(f"shape of {name}")
    _check_finite(fit.best_weights)
    for count in fit.optimizer.get("steps", {}).values():
        count.item()
    if fit.batches:
        torch.Generator().set_state(fit.generators["cpu"])


def save(path: Path, digest: str, method: Method, learned: Learned, fit_state: FitState | None = None) -> None:
    """Write the file whole or not at all; `digest` is that of its run."""
    groups = {METHOD: method.state_dict()}
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "digest": digest,
        "remembered": {name: getattr(method, name) for name in method.remembered()},
        "matrix": learned.matrix,
        "epochs": [asdict(epoch) for epoch in learned.epochs],
        "seconds": learned.seconds,
        "evaluation_seconds": learned.evaluation_seconds,
        "fit_state": None,
        "threads": torch.get_num_threads(),
    }
    if fit_state is not None:
        groups |= {name: getattr(fit_state, name) for name in TENSORS} | fit_state.optimizer
        facts["fit_state"] = {
            **{name: getattr(fit_state, name) for name in ("lesson", "epoch", "batches", "seconds")},
            "running": fit_state.running.plain(),
            "history": [asdict(epoch) for epoch in fit_state.history],
            "schedule": asdict(fit_state.schedule),  # type: ignore[call-overload]
        }
    tensors = {
        name if group == METHOD else f"{group}/{name}": tensor.detach().cpu().contiguous()
        for group, found in groups.items()
        for name, tensor in found.items()
    }
    sums = {name: _sum(tensor) for name, tensor in sorted(tensors.items())}
    header = json.dumps({**facts, "sums": sums})
    # One key: safetensors writes several in any order, and equal runs are to leave equal bytes.
    metadata = {KEY: f"{zlib.crc32(header.encode()):08x} {header}"}
    with atomic_write(path) as part:
        try:
            safetensors.torch.save_file(tensors, part, metadata)
        except SafetensorError as error:  # such as a full disk
            raise OSError(0, str(error)) from None


def load(path: Path, plan: Plan, digest: str | None = None) -> Checkpoint:
    """Read a file back, checked to the last bit, and whether it is of the run with this digest."""
    try:
        files.check_plain(path, LARGEST)
        with safe_open(path, framework="pt") as file:
            facts = _header(path, file.metadata())
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 — not a dictionary
        if {name: _sum(tensor) for name, tensor in found.items()} != facts["sums"]:
            raise CorruptFile(f"{path}: damaged, its checksums are wrong", path)
        if digest is not None and facts["digest"] != digest:
            raise CorruptFile(f"{path}: of another run", path)
        return _checkpoint(path, found, facts, plan)
    except OSError as error:
        raise CorruptFile(f"{path}: cannot be read ({why(error)})", path) from None
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"{path}: not a readable checkpoint ({type(error).__name__})", path) from None


def _header(path: Path, metadata: dict[str, str] | None) -> dict[str, Any]:
    """What a checkpoint says besides its tensors."""
    checksum, _, header = (metadata or {})[KEY].partition(" ")
    facts: dict[str, Any] = files.parse_json(header.encode(), finite=False)  # the best loss so far may be infinite
    if facts["schema"] > SCHEMA:
        raise PerdureError(f"{path}: written by a newer perdure (schema {facts['schema']}); update to read it")
    if checksum != f"{zlib.crc32(header.encode()):08x}":
        raise CorruptFile(f"{path}: damaged, its checksums are wrong", path)
    check(CheckpointHeader, facts, path, "a checkpoint")
    return facts


def _checkpoint(path: Path, found: dict[str, Tensor], facts: dict[str, Any], plan: Plan) -> Checkpoint:
    groups: dict[str, dict[str, Tensor]] = {METHOD: {}, **{name: {} for name in (*TENSORS, *OPTIMIZER)}}
    for key, tensor in found.items():
        group, _, name = key.partition("/")
        group, name = (group, name) if group in groups else (METHOD, key)
        groups[group][name] = tensor.clone()  # apart from the file, which may go
    state = groups.pop(METHOD)
    epochs, tested = [_epoch(epoch) for epoch in facts["epochs"]], facts.get("evaluation_seconds", 0.0)
    learned = Learned(facts["matrix"], epochs, [], facts["seconds"], tested)
    fit_state = None
    if (at := facts["fit_state"]) is not None:
        schedule = plan.schedule_for_lesson()
        _check_schedule(asdict(schedule), at["schedule"])  # type: ignore[call-overload]
        set_state(schedule, at["schedule"])
        optimizer = {kind: groups.pop(kind) for kind in OPTIMIZER}
        history, running = [_epoch(epoch) for epoch in at["history"]], RunningScore(**at["running"])
        made = {"schedule": schedule, "optimizer": optimizer, "history": history, "running": running}
        fit_state = FitState(**{**at, **groups, **made})
    return Checkpoint(path, plan, state, facts["remembered"], learned, fit_state, facts["threads"])


def _check_schedule(known: dict[str, Any], given: dict[str, Any]) -> None:
    if known.keys() != given.keys() or not all(_alike(known[name], given[name]) for name in known):
        raise ValueError("of another schedule")
    for name, inner in known.items():
        if isinstance(inner, dict):
            _check_schedule(inner, given[name])


def read_epochs(path: Path) -> list[Epoch]:
    """The epochs of a finished run."""
    try:
        epochs = files.read_json_lines(path)
    except (OSError, ValueError) as error:
        raise CorruptFile(f"{path}: not readable ({why(error)})", path) from None
    check(SavedEpochs, {"epochs": epochs}, path, "the epochs of a run")
    return [_epoch(epoch) for epoch in epochs]


def _epoch(plain: dict[str, Any]) -> Epoch:
    scores = {name: Score(**plain[name]) if plain[name] else None for name in ("valid", "train")}
    return Epoch(**{**plain, **scores})


def _sum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.numpy().reshape(-1).view("uint8").data) if tensor.numel() else 0


# --- while a run goes on ---


class Checkpointer(Callback):
    """Writes a checkpoint after every task, and within one when `every` seconds have passed since the last."""

    def __init__(self, folder: Path, digest: str, learned: Learned, every: float) -> None:
        self.folder, self.digest, self.learned, self.every = folder, digest, learned, every
        self.saved_at = time.monotonic()
        self.signal: int | None = None  # that asked to stop

    def on_step(self, now: StepContext) -> None:
        if self.signal is not None or time.monotonic() - self.saved_at >= self.every:
            self.save(now.method, now.state())
        self.stop_if_asked(f"task {now.at.lesson + 1}, epoch {now.at.epoch + 1}")

    def on_task_end(self, method: Method, learned: Learned) -> None:
        self.save(method, None)
        self.stop_if_asked(f"the end of task {len(learned.matrix)}")

    def save(self, method: Method, fit_state: FitState | None) -> None:
        before = _numbered(self.folder)
        number = before[-1][0] + 1 if before else 1
        save(self.folder / f"{number:06d}.safetensors", self.digest, method, self.learned, fit_state)
        prune(self.folder)
        self.saved_at = time.monotonic()

    def stop_if_asked(self, where: str) -> None:
        if self.signal is not None:
            raise Interrupted(
                f"interrupted at {where}; completed work is saved, run the same command to resume", self.signal
            )

    @contextmanager
    def stopping_on_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM let the step at hand end, save and stop; a second Ctrl-C stops at once."""

        def ask(number: int, _frame: FrameType | None) -> None:
            if self.signal is not None and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.signal = number

        before: dict[int, Any] = {}
        with suppress(ValueError):  # not the main thread: whoever runs it there stops it in another way
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, ask)
        try:
            yield
        finally:
            for caught, handler in before.items():
                signal.signal(caught, handler)


def newest_first(folder: Path) -> list[Path]:
    """The checkpoints there are, whole or not."""
    return [path for _, path in reversed(_numbered(folder))]


def how_far(folder: Path) -> tuple[int, int] | None:
    """How many lessons, and of the next one how many epochs, the newest readable checkpoint has behind it."""
    for path in newest_first(folder):
        with suppress(OSError, SafetensorError, ValueError, KeyError, TypeError, PerdureError):
            files.check_plain(path, LARGEST)
            with safe_open(path, "pt") as file:
                facts = _header(path, file.metadata())
            return len(facts["matrix"]), facts["fit_state"]["epoch"] if facts["fit_state"] else 0
    return None


def prune(folder: Path) -> None:
    """Remove all but the newest."""
    for _, old in _numbered(folder)[:-KEPT]:
        with suppress(OSError):  # gone, or a folder that somebody named so
            old.unlink()


def discard(folder: Path) -> None:
    """Remove the checkpoints of a run that is finished."""
    for _, path in _numbered(folder):
        with suppress(OSError):
            path.unlink()
    with suppress(OSError):  # something that was set aside is left in it, or it was never made
        folder.rmdir()


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints there are, oldest first."""
    try:
        found = [(int(path.stem), path) for path in folder.glob("*.safetensors") if re.fullmatch("[0-9]+", path.stem)]
    except OSError as error:
        raise PerdureError(f"{folder}: cannot be read ({error.strerror}); check that you may read it") from None
    return sorted(found)
