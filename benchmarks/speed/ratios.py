"""All ratios of a machine at once."""

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import torch

from perdure import fast
from perdure.lab.threads import with_threads
from perdure.seeding import chance

from .against_textbook import epochs, updates
from .steps import steps
from .subjects import BATCH, SIZES, known
from .turns import Bench, Times


def ratios(bench: Bench, textbook: Any, names: Sequence[str] = ()) -> dict[str, Any]:
    """All ratios, the seconds they come from, and with what they were measured."""
    known(names)
    fast.keep_heap()
    found_ratios: dict[str, float] = {}
    seconds: Times = {}
    with with_threads(bench.threads), chance(1, "bench"):
        parts = [partial(steps, bench, names)]
        parts += [partial(epochs, bench, textbook), partial(updates, bench, textbook)] if not names else []
        for part in parts:
            found, times = part()
            found_ratios |= found
            seconds |= times
    return {
        "ratios": {name: round(value, 3) for name, value in found_ratios.items()},
        "seconds": {name: round(median(values), 4) for name, values in seconds.items()},
        "network": "alexnet",
        "batch": BATCH,
        "bases": SIZES,
        "threads": bench.threads,
        "rounds": bench.rounds,
        "plain": sorted(fast.off()),
        "torch": torch.__version__,
    }
