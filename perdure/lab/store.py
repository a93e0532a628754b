"""One directory per run, named by the hash of what changes its numbers; plain files, written whole or not at all."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from perdure.errors import PerdureError


def run_directory(root: Path, benchmark: str, method: str, digest: str) -> Path:
    return root / benchmark / method / digest


def write(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, never meets half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), 0o644)  # temporary files are private, records are not
                os.fsync(file.fileno())
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise PerdureError(f"cannot write {path}: {error.strerror}; choose another place with --out") from None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write(path, (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write(path, "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows).encode())
