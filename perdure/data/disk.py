"""What fetching and unpacking share: writing to a disk that may be full, and never over what is not ours."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perdure.errors import BadData, PerdureError

CHUNK = 1 << 18  # bytes moved at once
ANOTHER_ROOT = "choose another folder with --root or PERDURE_DATA"


class InTheWay(BadData):
    """Something that is not ours is where a file should go."""


def settle(paths: list[Path]) -> None:
    """Wait until files are on the disk."""
    if len(paths) > 100 and hasattr(os, "sync"):  # 60 000 images one by one take minutes
        os.sync()
        return
    for path in paths:
        with path.open("rb+") as file:
            os.fsync(file.fileno())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an error of the file system into one line about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PerdureError(f"{path}: the disk is full; make room, or {ANOTHER_ROOT}") from None
        raise PerdureError(f"{path}: cannot be written ({error.strerror or error}); {ANOTHER_ROOT}") from None


@contextmanager
def made_folder(path: Path) -> Iterator[None]:
    """A folder that is made if it is missing, and goes again if a failure leaves it empty."""
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        raise
