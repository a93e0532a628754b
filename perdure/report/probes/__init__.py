"""What probes found, as tables and pictures: one module for each, named after the one in `perdure/probes`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

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
    **dict.fromkeys(("fgsm", "pgd", "apgd", "square", "noise"), "robustness"),
    **dict.fromkeys(("flatness", "curvature"), "flatness"),
    **dict.fromkeys(("landscape", "plane"), "landscape"),
    **{name: name for name in ("masking", "transfer", "corruption", "outliers", "geometry", "capacity", "calibration")},
    "over-time": "over_time",
}


def renderer(probe: str) -> Renderer | None:
    """Where a probe's tables and pictures are made; None for one from another package, which has a headline only."""
    name = RENDERERS.get(probe)
    return None if name is None else import_module(f"{__name__}.{name}")
