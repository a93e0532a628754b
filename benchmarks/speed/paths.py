"""What each fast path brings: a step, or an update of the memory, without it ÷ one with all of them."""

from collections.abc import Sequence
from dataclasses import replace

from perdure import fast
from perdure.lab.threads import with_threads
from perdure.methods.gpm import GPM
from perdure.seeding import chance

from .steps import key
from .subjects import THRESHOLD, Maker, known, later, lesson_of, network, small_stream, step_of
from .turns import Bench, Work, alternate, ratio

TAKERS: dict[str, tuple[str, ...]] = {  # path → steps that take it; a process keeps its heap or not
    "project_inputs": ("gpm", "rcl shared", "owm"),
    "low_rank": ("dfgp", "rcl shared", "fsdgpm"),
    "joint_batches": ("dfgp", "rcl shared", "rcl separate"),
    "mixed_images": ("dfgp", "rcl shared"),
    "rescale_inputs": ("trgp",),
    "dropout_masks": ("gpm", "rcl shared"),
    "pooling": ("finetune", "gpm", "rcl shared"),
    "channels_last": ("gpm", "rcl shared"),
}
UPDATE = "update of the memory"


def gains(bench: Bench, names: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """Step → fast path → how many times as long it takes without the path."""
    makers = known(names or sorted({name for takers in TAKERS.values() for name in takers}))
    fast.keep_heap()
    found: dict[str, dict[str, float]] = {}
    with with_threads(bench.threads), chance(1, "bench"):
        for path, takers in TAKERS.items():
            for name in takers:
                if name in makers:
                    bench.report(f"steps of {name} without {path}")
                    found.setdefault(key(name), {})[path] = _gain(bench, makers[name], path)
        if not names:
            bench.report(f"{UPDATE} without gram")
            found[UPDATE] = {"gram": _update_gain(bench)}
    return found


def _gain(bench: Bench, maker: Maker, path: str) -> float:
    times = alternate({"with": _step(maker), "without": _step(maker, path)}, bench.rounds)
    return round(ratio(times, "without", "with"), 3)


def _step(maker: Maker, *off: str) -> Work:
    """The network is made without the path, too: its memory format is one of them."""
    with fast.without(*off):
        stream = small_stream(2)
        step = step_of(later(maker, stream), stream)
    return _without(step, *off)


def _update_gain(bench: Bench) -> float:
    stream = small_stream(2)
    method = GPM(network(), threshold=THRESHOLD, threshold_step=0.0)
    first = lesson_of(stream, 0)
    method.end(first)
    before = dict(method.memory.items())

    def update() -> None:
        for layer, basis in before.items():
            method.memory[layer] = basis
        method.end(replace(lesson_of(stream, 1), index=1))

    rounds = max(bench.rounds // 4, 1)
    times = alternate({"with": update, "without": _without(update, "gram")}, rounds)
    return round(ratio(times, "without", "with"), 3)


def _without(work: Work, *off: str) -> Work:
    def run() -> None:
        with fast.without(*off):
            work()

    return run
