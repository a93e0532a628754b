"""What each fast path brings: a step without it against a step with all of them."""

from collections.abc import Sequence

from perdure import fast
from perdure.lab.build import with_threads
from perdure.seeding import chance

from .steps import key
from .subjects import Maker, known, later, small_stream, step_of
from .turns import Bench, Work, alternate, ratio

IN_STEPS = [name for name in fast.PATHS if name not in ("gram", "heap")]
"""Paths that a step takes. The memory is not updated in a step, and a process keeps its heap or not."""


def gains(bench: Bench, names: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """Method → fast path → how many times as long a step takes without it; "all" is a step without any."""
    fast.keep_heap()
    found = {}
    with with_threads(bench.threads), chance(1, "bench"):
        for name, maker in known(names or ("gpm", "rcl shared", "rcl separate")).items():
            bench.report(f"steps of {name} without one path and another")
            left_out = {path: [path] for path in IN_STEPS} | {"all": IN_STEPS}
            found[key(name)] = {what: _gain(bench, maker, paths) for what, paths in left_out.items()}
    return found


def _gain(bench: Bench, maker: Maker, paths: Sequence[str]) -> float:
    times = alternate({"with": _without((), maker), "without": _without(paths, maker)}, bench.rounds)
    return round(ratio(times, "without", "with"), 3)


def _without(paths: Sequence[str], maker: Maker) -> Work:
    """The network is made without them, too: its memory format is one of the paths."""
    with fast.without(*paths):
        stream = small_stream(2)
        step = step_of(later(maker, stream), stream)

    def work() -> None:
        with fast.without(*paths):
            step()

    return work
