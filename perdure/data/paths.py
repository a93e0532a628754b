"""Where files are looked for, and where copies of them are kept."""

import os
from pathlib import Path

from platformdirs import user_cache_path


def data_root(root: Path | None = None) -> Path:
    """The folder that holds image files: the one given, else $PERDURE_DATA, else the user's cache."""
    return Path(root).expanduser() if root is not None else _named("PERDURE_DATA")


def cache_root() -> Path:
    """The folder for what can be made anew: $PERDURE_CACHE, else the user's cache."""
    return _named("PERDURE_CACHE")


def _named(variable: str) -> Path:
    named = os.environ.get(variable)
    return Path(named).expanduser() if named else user_cache_path("perdure")
