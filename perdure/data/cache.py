"""Decoded copies of image files, mapped into memory, so that a second start does not decode again.

A copy is one safetensors file in the user's cache ($PERDURE_CACHE names another place). It may be deleted at any time,
and whatever else lies in its place is no copy.
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError, safe_open
from torch import Tensor

from perdure import files as plain_files
from perdure.data.paths import cache_root

LARGEST = 2**36  # bytes of a copy
VERSION = 2  # rises when the same files would be decoded into other tensors or facts


@dataclass(frozen=True)
class Decoded:
    tensors: dict[str, Tensor]
    facts: dict[str, Any]  # whatever JSON can hold


class Facts(BaseModel):
    """What a copy says besides its tensors; each kind of copy has a form of its own."""

    model_config = ConfigDict(strict=True, extra="forbid")


def fit_together(x: Tensor, y: Tensor, shape: tuple[int, ...], classes: int) -> bool:
    """Whether these are images of this shape, each with a label of one of so many classes."""
    images = x.dtype == torch.uint8 and x.shape == (len(y), *shape)
    return images and y.dtype == torch.int64 and y.ndim == 1 and bool(((y >= 0) & (y < classes)).all())


def decoded_folder() -> Path:
    return cache_root() / "decoded"


def cached(
    name: str,
    place: Path,
    files: Iterable[Path],
    make: Callable[[], Decoded],
    fits: Callable[[Decoded], bool] = lambda _: True,
    **options: Any,
) -> Decoded:
    """The decoded copy of these files, made if there is none, or none that is whole and of these very files.

    `fits` says whether a copy has the form of what `make` makes, and may fail where it has not. `options` are whatever
    else decides what `make` makes. A cache that cannot be written is done without.
    """
    key = hashlib.sha256(repr((str(place.resolve()), sorted(options.items()))).encode()).hexdigest()[:12]
    path = decoded_folder() / f"{name}-{key}.safetensors"
    stamp = _stamp(place, files)
    found = _open(path, stamp)
    if found is not None and _succeeds(fits, found):
        return found
    made = make()
    try:
        _write(path, stamp, made)
    except OSError:
        return made
    return _open(path, stamp) or made  # mapped, so that the memory taken for decoding is free again


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Sixteen letters that change with any value of any tensor."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()[:16]


def _stamp(place: Path, files: Iterable[Path]) -> str:
    """Changes when a file is added, removed, moved or written again."""
    digest = hashlib.sha256(str(VERSION).encode())
    for path in files:
        found = path.stat()
        facts = f"{path.relative_to(place)}\0{found.st_size}\0{found.st_mtime_ns}\n"
        digest.update(facts.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _succeeds(fits: Callable[[Decoded], bool], found: Decoded) -> bool:
    try:
        return fits(found)
    except (ValueError, KeyError, TypeError, IndexError):  # ValueError: pydantic's, too
        return False


def _open(path: Path, stamp: str) -> Decoded | None:
    """The copy, if its stamp is this one and its bytes are those that were written."""
    try:
        plain_files.check_plain(path, LARGEST)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("stamp") != stamp:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 — not a dictionary
        if {name: _checksum(tensor) for name, tensor in tensors.items()} != _parsed(metadata["sums"]):
            return None
        return Decoded(tensors, _parsed(metadata["facts"]))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, MemoryError):
        # Absent, damaged, of another version, or with a header of nonsense.
        return None


def _parsed(text: str) -> Any:
    return plain_files.parse_json(text.encode(errors="surrogatepass"))


def _write(path: Path, stamp: str, made: Decoded) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in made.tensors.items()}
    metadata = {
        "stamp": stamp,
        "sums": json.dumps({name: _checksum(tensor) for name, tensor in tensors.items()}),
        "facts": json.dumps(made.facts),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False) as file:
        part = Path(file.name)
    try:
        try:
            safetensors.torch.save_file(tensors, part, metadata)
        except SafetensorError as error:  # such as a full disk
            raise OSError(str(error)) from None
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.numpy().data) if tensor.numel() else 0
