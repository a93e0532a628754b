"""Times of several things in turns, and their ratios: absolute times say more about a machine and its neighbors than
about a program.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

Work = Callable[[], object]


@dataclass(frozen=True)
class Bench:
    """How to measure."""

    threads: int = 2
    rounds: int = 15  # turns of each comparison
    report: Callable[[str], None] = print


Times = dict[str, list[float]]  # name → seconds, by turn


def alternate(works: Mapping[str, Work], rounds: int, pause: float = 0.0) -> Times:
    """Everything in turns, there and back again, so that a machine's ups and downs meet all alike, and so does what one
    leaves to the next. The first turn warms up.

    A `pause` lets the threads of another library, which wait in circles for a while, come to rest.
    """
    times: Times = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in list(works.items())[:: -1 if turn % 2 else 1]:
            time.sleep(pause)
            started = time.perf_counter()
            work()
            if turn:
                times[name].append(time.perf_counter() - started)
    return times


def ratio(times: Times, one: str, other: str) -> float:
    """How many times as long `one` takes as the `other`: the median over the turns."""
    return median(own / its for own, its in zip(times[one], times[other], strict=True))
