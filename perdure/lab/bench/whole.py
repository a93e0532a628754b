"""All ratios of a machine at once."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from perdure import fast
from perdure.lab.bench.clock import Bench, Times
from perdure.lab.bench.steps import steps
from perdure.lab.bench.subjects import BATCH, SIZES, known
from perdure.lab.bench.textbook import epochs, load_textbook, updates
from perdure.lab.build import with_threads
from perdure.seeding import chance


def run(bench: Bench, textbook: Path | None = None, names: Sequence[str] = ()) -> dict[str, Any]:
    """All ratios, the seconds they come from, and with what they were measured."""
    known(names)
    slow = load_textbook(textbook) if not names else None
    fast.keep_heap()
    ratios: dict[str, float] = {}
    seconds: Times = {}
    with with_threads(bench.threads), chance(1, "bench"):
        parts = [partial(steps, bench, names)]
        parts += [partial(epochs, bench, slow), partial(updates, bench, slow)] if slow else []
        for part in parts:
            found, times = part()
            ratios |= found
            seconds |= times
    return {
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
        "seconds": {name: round(median(values), 4) for name, values in seconds.items()},
        "network": "alexnet",
        "batch": BATCH,
        "bases": SIZES,
        "threads": bench.threads,
        "rounds": bench.rounds,
        "plain": sorted(fast.off()),
        "torch": torch.__version__,
    }
