"""Tensors and facts about them in one safetensors file, checked to the last bit; and methods read from such files.

Nothing is ever unpickled. Anybody may have written a file: what is wrong with one is a CorruptFile.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from perdure import files
from perdure.errors import CorruptFile, PerdureError
from perdure.lab.memory_form import check_memory
from perdure.lab.saved import Saved, check
from perdure.lab.store import LARGEST, atomic_write, why
from perdure.methods.method import Method

SCHEMA = 1
KEY = "perdure"  # of the header's only entry: a checksum and JSON
WRONG = (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError)  # raised where content does not fit


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write the file whole or not at all."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    sums = {name: _sum(tensor) for name, tensor in sorted(plain.items())}
    header = json.dumps({"schema": SCHEMA, **facts, "sums": sums})
    # One key: safetensors writes several in any order, and equal runs are to leave equal bytes.
    metadata = {KEY: f"{zlib.crc32(header.encode()):08x} {header}"}
    with atomic_write(path) as part:
        try:
            safetensors.torch.save_file(plain, part, metadata)
        except SafetensorError as error:  # such as a full disk
            raise OSError(0, str(error)) from None


def read_tensors(path: Path, form: type[Saved], what: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts, the latter of this form."""
    try:
        files.check_plain(path, LARGEST)
        with safe_open(path, framework="pt") as file:
            facts = _facts(path, file.metadata(), form, what)
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 — not a dictionary
        if {name: _sum(tensor) for name, tensor in found.items()} != facts["sums"]:
            raise CorruptFile(f"{path}: damaged, its checksums are wrong", path)
        return found, facts
    except OSError as error:
        raise CorruptFile(f"{path}: cannot be read ({why(error)})", path) from None
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        kind = "a readable " + what.removeprefix("a ")
        raise CorruptFile(f"{path}: not {kind} ({type(error).__name__})", path) from None


def read_facts(path: Path, form: type[Saved], what: str) -> dict[str, Any]:
    """The facts alone, with the errors as they come."""
    files.check_plain(path, LARGEST)
    with safe_open(path, "pt") as file:
        return _facts(path, file.metadata(), form, what)


def _facts(path: Path, metadata: dict[str, str] | None, form: type[Saved], what: str) -> dict[str, Any]:
    checksum, _, header = (metadata or {})[KEY].partition(" ")
    facts: dict[str, Any] = files.parse_json(header.encode(), finite=False)  # the best loss so far may be infinite
    if facts["schema"] > SCHEMA:
        raise PerdureError(f"{path}: written by a newer perdure (schema {facts['schema']}); update to read it")
    if checksum != f"{zlib.crc32(header.encode()):08x}":
        raise CorruptFile(f"{path}: damaged, its checksums are wrong", path)
    check(form, facts, path, what)
    return facts


def _sum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.numpy().reshape(-1).view("uint8").data) if tensor.numel() else 0


# --- methods ---


def attributes_of(method: Method) -> dict[str, Any]:
    """What a method must remember besides its tensors."""
    return {name: getattr(method, name) for name in method.remembered()}


def restore_method(
    method: Method,
    state: Mapping[str, Tensor],
    remembered: Mapping[str, Any],
    shape: tuple[int, int, int] | None,
    *,
    learning: bool = False,
    finite: bool = True,
) -> None:
    """Load tensors and attributes into a fresh method that was built alike, for images of this shape. What does not fit
    raises one of `WRONG`; the method is then neither fresh nor restored. `learning` says that it is in the middle of a
    lesson, and `finite` that weights must be numbers: those in the middle of an epoch may have diverged."""
    device = next(method.parameters()).device
    method.load_state_dict(state)
    for name, value in remembered.items():  # what the method declares, and nothing else, of the kind it had
        if name not in method.remembered() or not alike(getattr(method, name), value):
            raise ValueError(f"remembered {name}")
        setattr(method, name, tuple(value) if isinstance(value, list) else value)
    for name, tensor in method.state_dict().items():  # loaded, they have their own type, whatever the file has
        if state[name].dtype != tensor.dtype:
            raise ValueError(f"type of {name}")
    if finite:
        check_finite(method.net.state_dict())
    check_memory(method, learning=learning, shape=shape)
    method.to(device)


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"numbers of {name}")


def alike(one: Any, other: Any) -> bool:
    """Whether two plain values are of one kind, as far as that can be told: None may become anything, and back."""
    kinds = (int | float, str, list | tuple, dict)
    return other is None or all(isinstance(other, kind) for kind in kinds if isinstance(one, kind))


def in_short(error: Exception) -> str:
    return " ".join(str(error).split())[:100]
