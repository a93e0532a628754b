"""Where tasks come from: readers of the original files, and the streams made of them.

>>> from perdure.data import check  # what `perdure data check` prints
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.data.arrays import stream_from, task_from
    from perdure.data.validate import check

__all__ = ["check", "stream_from", "task_from"]


def __getattr__(name: str) -> Any:
    """Loaded on first use, so that finding and fetching files does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module 'perdure.data' has no attribute {name!r}")
    return getattr(import_module("perdure.data.validate" if name == "check" else "perdure.data.arrays"), name)
