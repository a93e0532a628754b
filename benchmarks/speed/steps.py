"""A step of each method against the bare forward and backward passes of the same images through the same network."""

from collections.abc import Sequence

from .subjects import BATCH, Pass, bare_passes, first, known, later, small_stream, step_of
from .turns import Bench, Times, alternate, ratio

PASSES: dict[str, Sequence[Pass]] = {  # what a step must compute; methods not named: one pass over the batch
    "er": [(2 * BATCH, False)],
    "agem": [(BATCH, False)] * 2,
    "pat": [(BATCH, False)] * 2,  # one to attack the batch
    "fsdgpm": [(BATCH // 2, False), (2 * BATCH, False)] * 2,
    "dfgp": [(2 * BATCH, False)] * 2,
    "rcl shared": [(2 * BATCH, False)] * 2,
    "rcl separate": [(2 * BATCH, True)] * 2,
}

IMAGES = 8 * BATCH  # that the passes of a turn have, more or less: short steps take more turns


def steps(bench: Bench, names: Sequence[str] = ()) -> tuple[dict[str, float], Times]:
    """Every method's step ÷ the bare passes it needs, and projected ÷ unprojected steps."""
    stream = small_stream(2)
    found: dict[str, float] = {}
    all_times: Times = {}
    for name, maker in known(names).items():
        bench.report(f"steps of {name}")
        bare, step = f"bare passes of {name}", f"step of {name}"
        passes = PASSES.get(name, [(BATCH, False)])
        works = {bare: bare_passes(stream, passes), step: step_of(later(maker, stream), stream)}
        if name in ("gpm", "rcl shared"):
            works[f"{step}, unprojected"] = step_of(first(maker, stream), stream)
        times = alternate(works, bench.rounds * max(IMAGES // sum(images for images, _ in passes), 1))
        found[f"{key(name)}_over_bare"] = ratio(times, step, bare)
        if f"{step}, unprojected" in works:
            found[f"{name.split()[0]}_projected_over_plain"] = ratio(times, step, f"{step}, unprojected")
        all_times |= times
    return found, all_times


def key(name: str) -> str:
    return name.replace(" ", "_")
