"""How cost grows: a step against basis size, width, batch and finished tasks; memory against finished tasks."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from perdure import fast
from perdure.lab.threads import with_threads
from perdure.methods.gpm import GPM
from perdure.methods.method import Method
from perdure.nets.network import Network
from perdure.seeding import chance

from .subjects import (
    CLASSES,
    THRESHOLD,
    Maker,
    known,
    later,
    lesson_of,
    network,
    small_stream,
    step_of,
)
from .turns import Bench, Work, alternate


@dataclass(frozen=True)
class Growth:
    """Seconds of a step, or bytes held, against a size."""

    method: str
    what: str
    sizes: Sequence[float]
    values: Sequence[float]
    unit: str

    @property
    def slope(self) -> float:
        """Of log value against log size: 1 grows in proportion, 0 not at all."""
        x, y = [math.log(size) for size in self.sizes], [math.log(value) for value in self.values]
        middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
        over = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
        return over / sum((a - middle_x) ** 2 for a in x)

    def summary(self) -> str:
        """Relative to the first size: seconds are this machine's alone."""
        if self.unit == "bytes":
            return ", ".join(f"{value / 1e6:.2f} MB" for value in self.values)
        return ", ".join(f"{value / self.values[0]:.2f}" for value in self.values)

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "slope": round(self.slope, 3), "summary": self.summary()}


def growths(bench: Bench, names: Sequence[str] = ()) -> Iterator[Growth]:
    """A step against basis size, width, batch and finished tasks; memory against finished tasks."""
    makers = known(names or ("gpm", "rcl shared"))
    fast.keep_heap()
    with with_threads(bench.threads), chance(1, "bench"):
        for name, maker in makers.items():
            bench.report(f"how {name} grows")
            yield _growth(bench, name, "directions held, of all there are", (0.05, 0.2, 0.8), partial(_held, maker))
            yield _growth(bench, name, "width, of the papers' network", (0.25, 0.5, 1.0), partial(_wide, maker))
            yield _growth(bench, name, "images a batch", (16, 32, 64, 128), partial(_batched, maker))
            yield _growth(bench, name, "finished tasks, with the same bases", (1, 5, 20), partial(_after, maker))
        yield _memory((1, 2, 4, 8))


def _growth(bench: Bench, name: str, what: str, sizes: Sequence[float], make: Callable[[Any], Work]) -> Growth:
    times = alternate({str(size): make(size) for size in sizes}, bench.rounds)
    return Growth(name, what, sizes, [median(times[str(size)]) for size in sizes], "s")


def _held(maker: Maker, share: float) -> Work:
    stream = small_stream(2)
    layers = network().backbone.layers()
    sizes = {name: max(int(share * layer.weight[0].numel()), 1) for name, layer in layers.items()}
    return step_of(later(maker, stream, sizes), stream)


def _wide(maker: Maker, width: float) -> Work:
    stream = small_stream(2)
    filters, units = (int(64 * width), int(128 * width), int(256 * width)), (int(2048 * width),) * 2

    def make(_: Network) -> Method:
        return maker(network(filters=filters, units=units))

    layers = make(network()).net.backbone.layers()
    sizes = {name: max(layer.weight[0].numel() // 4, 1) for name, layer in layers.items()}
    return step_of(later(make, stream, sizes), stream)


def _batched(maker: Maker, images: int) -> Work:
    stream = small_stream(2)
    method = later(maker, stream)
    return step_of(method, stream, images)


def _after(maker: Maker, tasks: int) -> Work:
    stream = small_stream(2)
    method = later(maker, stream)
    for _ in range(tasks - 1):
        method.net.add_head(CLASSES)
    return step_of(method, stream)


def _memory(tasks: Sequence[int]) -> Growth:
    """What GPM holds after so many tasks; images are not among it."""
    stream = small_stream(max(tasks))
    method, held = GPM(network(), threshold=THRESHOLD), []
    for _ in range(len(stream) - len(method.net.heads)):
        method.net.add_head(CLASSES)
    with chance(1, "memory"):
        for task in range(max(tasks)):
            method.end(replace(lesson_of(stream, 0), parts=lesson_of(stream, task).parts))
            held.append(sum(method.memory_bytes().values()))
    return Growth("gpm", "finished tasks, memory", tasks, [held[count - 1] for count in tasks], "bytes")
