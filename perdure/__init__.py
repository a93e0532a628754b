"""perdure: robust continual learning.

The names below are the front door. They load on first use, so that importing perdure costs milliseconds and
does not import torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_DOORS = {
    "Batch": "perdure.types",
    "Lesson": "perdure.types",
    "Split": "perdure.types",
    "Stream": "perdure.types",
    "Task": "perdure.types",
    "Network": "perdure.nets.network",
    "Method": "perdure.methods.method",
    "Plan": "perdure.train.plan",
    "fit": "perdure.train.fit",
    "evaluate": "perdure.train.evaluate",
    "learn": "perdure.train.learn",
    "study": "perdure.lab.study",
    "search": "perdure.lab.search",
    "PerdureError": "perdure.errors",
}

__all__ = [*sorted(_DOORS), "__version__"]


def __getattr__(name: str) -> Any:
    if name in _DOORS:
        return getattr(import_module(_DOORS[name]), name)
    raise AttributeError(f"module 'perdure' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
