"""Faster ways to the same numbers. Each has a name by which it is switched off: `without("together")` in Python,
PERDURE_PLAIN=together,gram or PERDURE_PLAIN=all in the environment. Results differ in their last digits only.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from perdure.errors import UnknownName

PATHS = {
    "inputs": "linear layers: project what the layer read, not its gradient, where that is less work",
    "thin": "RCL, DFGP, FS-DGPM: linear layers climb to worse weights by two thin factors, which are not multiplied",
    "together": "raw and mixed images in one forward, with their batch statistics kept apart",
    "first": "the slope along mixing shares from the first convolution's output, not from its input",
    "prefix": "features without convolution dropout share everything before the first dropout with the logits",
    "pooling": "ReLU after max-pooling instead of before, and no second look at the dropout mask (CPU)",
    "masks": "dropout masks from sixteen random bits an entry (CPU)",
    "pairs": "distances of features from their inner products",
    "gram": "new directions from a layer's Gram matrix instead of from its columns",
    "scales": "TRGP: scale what linear layers read, not their weights, where that is less work",
    "springs": "the gradient of EWC's penalty by its formula instead of by a backward pass",
    "channels": "convolutions with the channels last in memory",
    "heap": "memory that tensors leave stays with the process and is used again (glibc, runs and benches only)",
}

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8  # of malloc.h

_off: ContextVar[frozenset[str] | None] = ContextVar("off", default=None)


def on(name: str) -> bool:
    """Whether to go this way."""
    return name not in off()


def off() -> frozenset[str]:
    """The ways that are switched off."""
    chosen = _off.get()
    return named(os.environ.get("PERDURE_PLAIN", "")) if chosen is None else chosen


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Inside, the ways named are not taken, nor any that were switched off before; "all" are all of them."""
    before = _off.set(off() | named(",".join(names)))
    try:
        yield
    finally:
        _off.reset(before)


def keep_heap() -> None:
    """Ask glibc not to give large blocks back to the system: having them again costs a page fault for every 4 KiB,
    a quarter of a step on a CPU. Elsewhere nothing happens."""
    if on("heap"):
        with suppress(OSError, AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            wishes = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 1 << 28, M_ARENA_MAX: 1}
            for option, value in wishes.items():
                mallopt(option, value)


def named(text: str) -> frozenset[str]:
    """Names from "together, gram".

    >>> sorted(named("together, gram")), len(named("all")) == len(PATHS)
    (['gram', 'together'], True)
    """
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    if "all" in wanted:
        return frozenset(PATHS)
    for name in wanted:
        if name not in PATHS:
            raise UnknownName("fast path", name, [*PATHS, "all"])
    return frozenset(wanted)
