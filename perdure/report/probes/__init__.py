"""What probes found, as tables and pictures: one module for each, named after the one in `perdure/probes`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from perdure.errors import PerdureError

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    from perdure.report.table import Table


@dataclass(frozen=True)
class Result:
    """What a probe found of one run."""

    label: str  # such as "rcl, seed 1": distinguishes the runs of a comparison
    values: Mapping[str, Any]  # of the probe
    figures: Mapping[str, Any]
    arrays: "Mapping[str, np.ndarray[Any, Any]]"
    headline: Mapping[str, float] = field(default_factory=dict)


class Renderer(Protocol):
    """What a module of this folder has."""

    def tables(self, results: Sequence[Result]) -> "Sequence[Table | str]":
        """To be printed; texts are single lines that say how to read them. One result or several to compare."""

    def draw(self, figure: "Figure", results: Sequence[Result]) -> None:
        """On an empty matplotlib figure of constrained layout, whose size it may set. Readable in grey."""


RENDERERS = {
    **dict.fromkeys(("fgsm", "pgd", "apgd", "apgd-t", "fab", "square", "noise"), "robustness"),
    **dict.fromkeys(("flatness", "curvature"), "flatness"),
    **dict.fromkeys(("landscape", "plane"), "landscape"),
    **{name: name for name in ("masking", "transfer", "corruption", "outliers", "geometry", "capacity", "calibration")},
    "over-time": "over_time",
    "smoothing": "smoothing",
}


def renderer(probe: str) -> Renderer | None:
    """Where a probe's tables and pictures are made; None for one from another package, which has a headline only."""
    name = RENDERERS.get(probe)
    return None if name is None else import_module(f"{__name__}.{name}")


@contextmanager
def showing(key: str) -> Iterator[None]:
    """Around tables and pictures of results: anybody may have written their files, and what figures a probe has only
    the probe knows. Those that it cannot show are an error in one line."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:100]
        raise PerdureError(
            f"{key}.json: not what this probe measures ({reason}); remove the file, and measure it again"
        ) from None
