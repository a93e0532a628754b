"""A run between two steps, in one file: weights, the method's own state, optimizer, schedule, best weights, generators.

The file is safetensors with JSON in its header. Nothing is ever unpickled. Loaded again, a run goes on bit for bit.
"""

import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from perdure.errors import CorruptFile, PerdureError
from perdure.lab.store import written
from perdure.methods.method import Method
from perdure.train.evaluate import RunningScore, Score
from perdure.train.plan import Plan
from perdure.train.state import Epoch, FitState, Learned

SCHEMA = 1
KEY = "perdure"  # of the header's only entry: a checksum and JSON
METHOD = ""  # the method's own tensors bear their names in its state_dict; the others have their group before it


@dataclass(frozen=True)
class Saved:
    """What a file holds."""

    state: dict[str, Tensor]  # of the method
    remembered: dict[str, Any]
    learned: Learned
    standing: FitState | None  # None between two lessons
    threads: int

    def restore(self, method: Method) -> None:
        """Put a fresh method, built alike, where the saved one was."""
        device = next(method.parameters()).device
        method.load_state_dict(self.state)
        for name, value in self.remembered.items():
            setattr(method, name, tuple(value) if isinstance(value, list) else value)
        method.to(device)
        if self.standing is not None:
            self.standing.best_weights = {
                name: tensor.to(device) for name, tensor in self.standing.best_weights.items()
            }
            self.standing.momentum = {name: tensor.to(device) for name, tensor in self.standing.momentum.items()}


def save(path: Path, digest: str, method: Method, learned: Learned, standing: FitState | None = None) -> None:
    """Write the file whole or not at all; `digest` says of which run it is."""
    groups = {METHOD: method.state_dict()}
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "digest": digest,
        "remembered": {name: getattr(method, name) for name in method.state_attributes},
        "matrix": learned.matrix,
        "epochs": [asdict(epoch) for epoch in learned.epochs],
        "seconds": learned.seconds,
        "standing": None,
        "threads": torch.get_num_threads(),
    }
    if standing is not None:
        groups |= {"kept": standing.best_weights, "momentum": standing.momentum, "chance": standing.generators}
        facts["standing"] = {
            "lesson": standing.lesson,
            "epoch": standing.epoch,
            "batches": standing.batches,
            "seconds": standing.seconds,
            "running": standing.running.plain(),
            "history": [asdict(epoch) for epoch in standing.history],
            "schedule": asdict(standing.schedule),  # type: ignore[call-overload]
        }
    tensors = {
        name if group == METHOD else f"{group}/{name}": tensor.detach().cpu().contiguous()
        for group, found in groups.items()
        for name, tensor in found.items()
    }
    sums = {name: _sum(tensor) for name, tensor in sorted(tensors.items())}
    header = json.dumps({**facts, "sums": sums})
    # One key: safetensors writes several in any order, and equal runs are to leave equal bytes.
    said = {KEY: f"{zlib.crc32(header.encode()):08x} {header}"}
    with written(path) as part:
        try:
            safetensors.torch.save_file(tensors, part, said)
        except SafetensorError as error:  # such as a full disk
            raise OSError(0, str(error)) from None


def load(path: Path, plan: Plan, digest: str | None = None) -> Saved:
    """Read a file back, checked to the last bit; of the run with this digest, if one is asked for."""
    try:
        with safe_open(path, framework="pt") as file:
            check, _, header = (file.metadata() or {})[KEY].partition(" ")
            facts = json.loads(header)
            if facts["schema"] > SCHEMA:
                raise PerdureError(f"{path}: written by a newer perdure (schema {facts['schema']}); update to read it")
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 — not a dictionary
        intact = check == f"{zlib.crc32(header.encode()):08x}"
        if not intact or {name: _sum(tensor) for name, tensor in found.items()} != facts["sums"]:
            raise CorruptFile(f"{path}: damaged, its checksums are wrong", path)
        if digest is not None and facts["digest"] != digest:
            raise CorruptFile(f"{path}: of another run ({facts['digest']})", path)
        return _saved(found, facts, plan)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"{path}: not a readable checkpoint ({type(error).__name__})", path) from None


def _saved(found: dict[str, Tensor], facts: dict[str, Any], plan: Plan) -> Saved:
    groups: dict[str, dict[str, Tensor]] = {METHOD: {}, "kept": {}, "momentum": {}, "chance": {}}
    for key, tensor in found.items():
        group, _, name = key.partition("/")
        group, name = (group, name) if group in groups else (METHOD, key)
        groups[group][name] = tensor.clone()  # apart from the file, which may go
    learned = Learned(facts["matrix"], [_epoch(epoch) for epoch in facts["epochs"]], [], facts["seconds"])
    standing = None
    if (at := facts["standing"]) is not None:
        schedule = plan.schedule_for_lesson()
        for name, value in at["schedule"].items():
            setattr(schedule, name, value)
        history = [_epoch(epoch) for epoch in at["history"]]
        position = (at["epoch"], at["batches"], at["seconds"])
        tensors = (groups["momentum"], groups["chance"])
        running = RunningScore(**at["running"])
        standing = FitState(at["lesson"], schedule, groups["kept"], *position, history, *tensors, running)
    return Saved(groups[METHOD], facts["remembered"], learned, standing, facts["threads"])


def read_epochs(path: Path) -> list[Epoch]:
    """The epochs of a run, from the lines it left."""
    try:
        return [_epoch(json.loads(line)) for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptFile(f"{path}: not readable ({type(error).__name__})", path) from None


def _epoch(plain: dict[str, Any]) -> Epoch:
    scores = {name: Score(**plain[name]) if plain[name] else None for name in ("valid", "train")}
    return Epoch(**{**plain, **scores})


def _sum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.numpy().reshape(-1).view("uint8").data) if tensor.numel() else 0
