"""What each fast path brings: a step without it against a step with all of them."""

from collections.abc import Sequence

from perdure import fast
from perdure.lab.bench.clock import Bench, Work, alternate, ratio
from perdure.lab.bench.steps import key
from perdure.lab.bench.subjects import Maker, known, later, small_stream, step_of
from perdure.lab.opening import with_threads
from perdure.seeding import chance

IN_STEPS = [name for name in fast.PATHS if name not in ("gram", "heap")]
"""Paths that a step takes. The memory is not updated in a step, and a process keeps its heap or not."""


def gains(bench: Bench, names: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """Method → fast path → how many times as long a step takes without it; "all" is a step without any."""
    fast.keep_heap()
    found = {}
    with with_threads(bench.threads), chance(1, "bench"):
        for name, maker in known(names or ("gpm", "rcl shared", "rcl separate")).items():
            bench.tell(f"steps of {name} without one path and another")
            works = {"none": _without((), maker)}
            works |= {path: _without((path,), maker) for path in IN_STEPS} | {"all": _without(IN_STEPS, maker)}
            times = alternate(works, bench.rounds)
            found[key(name)] = {path: round(ratio(times, path, "none"), 3) for path in works if path != "none"}
    return found


def _without(paths: Sequence[str], maker: Maker) -> Work:
    """The network is made without them, too: its memory format is one of the paths."""
    with fast.without(*paths):
        stream = small_stream(2)
        step = step_of(later(maker, stream), stream)

    def work() -> None:
        with fast.without(*paths):
            step()

    return work
