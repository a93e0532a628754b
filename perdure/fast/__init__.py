"""Faster ways to the same numbers.

Each has a name by which it is switched off: `fast.without("gram")` in Python, PERDURE_PLAIN=gram,joint_batches or
PERDURE_PLAIN=all in the environment. Results then differ in their last digits only. Methods know nothing of them: they
call `ops.gradients` and `Network`, where the way is chosen.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache

from perdure.errors import UnknownName

PATHS = {
    "project_inputs": "linear layers: project the layer's input, not its gradient, where that is less work",
    "low_rank": "RCL, DFGP, FS-DGPM: linear layers are perturbed by the two factors of their gradient",
    "joint_batches": "raw and mixed images in one forward, each with its own batch statistics",
    "mixed_images": "gradients along mixing shares from the first convolution's output, not from its input",
    "rescale_inputs": "TRGP: scale a linear layer's input, not its weight, where that is less work",
    "dropout_masks": "dropout masks from sixteen random bits an entry (CPU)",
    "pooling": "ReLU after max-pooling instead of before (CPU)",
    "gram": "new directions from a layer's Gram matrix instead of from its columns",
    "channels_last": "convolutions with the channels last in memory",
    "heap": "memory that tensors leave stays with the process and is used again (glibc, runs and benches only)",
}

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8  # of malloc.h

_off: ContextVar[frozenset[str] | None] = ContextVar("off", default=None)


def on(name: str) -> bool:
    """Whether to take this path."""
    return name not in off()


def off() -> frozenset[str]:
    """The paths that are switched off."""
    chosen = _off.get()
    return _names(os.environ.get("PERDURE_PLAIN", "")) if chosen is None else chosen


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Inside, these paths are off, and those that were off before; "all" are all of them."""
    before = _off.set(off() | _names(",".join(names)))
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
            options = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 1 << 28, M_ARENA_MAX: 1}
            for option, value in options.items():
                mallopt(option, value)


@cache
def _names(text: str) -> frozenset[str]:
    """Names from "gram, pooling".

    >>> sorted(_names("gram, pooling")), len(_names("all")) == len(PATHS)
    (['gram', 'pooling'], True)
    """
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    if "all" in wanted:
        return frozenset(PATHS)
    for name in wanted:
        if name not in PATHS:
            raise UnknownName("fast path", name, [*PATHS, "all"])
    return frozenset(wanted)
