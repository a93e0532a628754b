"""How fast it is here, as ratios: absolute times say more about a machine and its neighbors than about a program.

What is compared runs in one process, in turns; a ratio is the median over the turns. A step of a method is set against
the bare forward and backward passes of the same images through the same network, and steps, epochs and updates of the
memory against the plain implementation in benchmarks/textbook.py.
"""

import importlib.util
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from perdure import fast, registry
from perdure.data.synthetic import synthetic
from perdure.errors import PerdureError, UnknownName
from perdure.lab.opening import with_threads
from perdure.methods.gpm import GPM
from perdure.methods.method import Method
from perdure.nets.alexnet import AlexNet
from perdure.nets.network import Network
from perdure.ops.dual import Dual, DualMemory
from perdure.ops.tally import Running
from perdure.seeding import chance, generator
from perdure.train.evaluate import evaluate
from perdure.train.sgd import SGD
from perdure.types import Lesson, Part, Stream

SIZES = {"conv1": 7, "conv2": 110, "conv3": 190, "fc1": 300, "fc2": 600}  # directions held, about those of task five
BATCH, CLASSES, IMAGES = 64, 10, 640  # of an epoch here; one of CIFAR-100 has 4750
THRESHOLD = 0.97
RATE = 1e-4  # so small that a step is a step and nothing diverges

PAUSE = 0.3  # seconds between ours and the textbook's, which has NumPy's threads at work

Work = Callable[[], object]
Pass = tuple[int, bool]  # how many images, and whether features without convolution dropout are asked for

PASSES: dict[str, Sequence[Pass]] = {  # what a step must compute; methods not named: one pass over the batch
    "er": [(2 * BATCH, False)],
    "agem": [(BATCH, False)] * 2,
    "fsdgpm": [(BATCH // 2, False), (2 * BATCH, False)] * 2,
    "dfgp": [(2 * BATCH, False)] * 2,
    "rcl shared": [(2 * BATCH, False)] * 2,
    "rcl separate": [(2 * BATCH, True)] * 2,
}


@dataclass(frozen=True)
class Bench:
    """How to measure."""

    threads: int = 2
    rounds: int = 15  # turns of each comparison
    tell: Callable[[str], None] = print


Times = dict[str, list[float]]  # name → seconds, by turn


def alternate(works: Mapping[str, Work], rounds: int, pause: float = 0.0) -> Times:
    """Everything in turns, so that a machine's ups and downs meet all alike. The first turn warms up.

    A `pause` lets the threads of another library, which wait in circles for a while, come to rest.
    """
    times: Times = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            time.sleep(pause)
            started = time.perf_counter()
            work()
            if turn:
                times[name].append(time.perf_counter() - started)
    return times


def ratio(times: Times, one: str, other: str) -> float:
    """How many times as long `one` takes as the `other`: the median over the turns."""
    return median(own / its for own, its in zip(times[one], times[other], strict=True))


# ── methods in the middle of a later task ───────────────────────────────────────────────────────────────────


def steps(bench: Bench, names: Sequence[str] = ()) -> tuple[dict[str, float], Times]:
    """Every method's step ÷ the bare passes it needs, and projected ÷ unprojected steps."""
    stream = _stream(2)
    found: dict[str, float] = {}
    all_times: Times = {}
    for name, maker in _known(names).items():
        bench.tell(f"steps of {name}")
        bare, step = f"bare passes of {name}", f"step of {name}"
        works = {bare: _bare(stream, PASSES.get(name, [(BATCH, False)])), step: _step(later(maker, stream), stream)}
        if name in ("gpm", "rcl shared"):
            works[f"{step}, unprojected"] = _step(first(maker, stream), stream)
        times = alternate(works, bench.rounds)
        found[f"{_key(name)}_over_bare"] = ratio(times, step, bare)
        if f"{step}, unprojected" in works:
            found[f"{name.split()[0]}_projected_over_plain"] = ratio(times, step, f"{step}, unprojected")
        all_times |= times
    return found, all_times


def _makers() -> dict[str, Callable[[Network], Method]]:
    """Every method by name; RCL with both kinds of features."""
    made: dict[str, Callable[[Network], Method]] = {}
    for name in registry.methods:
        maker = registry.methods.load(name)
        if name == "rcl":
            made |= {f"rcl {kind}": partial(maker, features=kind, noise_range=0.0) for kind in ("shared", "separate")}
        else:
            made[name] = maker
    return made


def _known(names: Sequence[str]) -> dict[str, Callable[[Network], Method]]:
    makers = _makers()
    for name in names:
        if name not in makers:
            raise UnknownName("step", name, makers)
    return {name: makers[name] for name in names or makers}


def first(maker: Callable[[Network], Method], stream: Stream) -> Method:
    """A method that learns its first task, on the papers' CIFAR-100 network."""
    method = maker(_network())
    method.begin(_lesson(stream, 0))
    return method


def later(maker: Callable[[Network], Method], stream: Stream, sizes: Mapping[str, int] | None = None) -> Method:
    """A method that has learned a task and begun another, with bases of the given sizes where it has bases."""
    method = maker(_network())
    old, new = _lesson(stream, 0), _lesson(stream, 1)
    method.begin(old)
    method.epoch(0, 1, 1.0)
    with chance(1, "bench"):
        for batch, _ in zip(old.batches(BATCH, generator(1, "bench")), range(2), strict=False):
            method.gradient(batch)
        method.end(old)
        if isinstance(method, GPM):
            remember(method, sizes or SIZES)
        method.begin(new)
    method.epoch(1, 2, 1.0)
    return method


def remember(method: GPM, sizes: Mapping[str, int]) -> None:
    """Random orthonormal bases of these sizes: what they hold does not matter to the time they take."""
    for layer, module in method.net.backbone.layers().items():
        if layer not in sizes:
            continue
        basis = torch.linalg.qr(torch.randn(module.weight[0].numel(), sizes[layer])).Q
        if isinstance(method.memory, DualMemory):
            method.memory.put(layer, Dual("remove", basis))
        else:
            method.memory[layer] = basis


def _step(method: Method, stream: Stream, images: int = BATCH) -> Work:
    batch = next(_lesson(stream, 1).batches(images, generator(1, "step")))
    sgd = SGD(method.trainable(), 0.0)
    method.train()
    return lambda: sgd.step(method.gradient(batch), RATE)


def _bare(stream: Stream, passes: Sequence[Pass]) -> Work:
    """The least that a step takes: the network, forward and backward, over as many images as the step needs."""
    net = _network()
    x, y = stream.tasks[0].train.take(slice(2 * BATCH))
    weights = list(net.parameters())
    net.train()

    def work() -> None:
        for images, quiet in passes:
            look = net(x[:images], 0, quiet)
            loss = F.cross_entropy(look.logits, y[:images])
            torch.autograd.grad(loss + look.features.mean() if quiet else loss, weights, allow_unused=True)

    return work


def _key(name: str) -> str:
    return name.replace(" ", "_")


# ── against the textbook ────────────────────────────────────────────────────────────────────────────────────


def epochs(bench: Bench, textbook: Any) -> tuple[dict[str, float], Times]:
    """An epoch of a later task, textbook ÷ ours: steps, and what is evaluated after them."""
    stream = _stream(2)
    makers = {name: _makers()[name] for name in ("gpm", "rcl shared", "rcl separate")}
    works: dict[str, Work] = {
        f"epoch of {name}": _epoch(later(maker, stream), stream) for name, maker in makers.items()
    }
    works |= {f"textbook epoch of {name}": _textbook_epoch(textbook, name, stream) for name in ("gpm", "rcl")}
    bench.tell(f"epochs of {IMAGES} images; an RCL epoch of the textbook takes its time")
    times = alternate(works, max(bench.rounds // 4, 1), PAUSE)
    return {
        f"{_key(name)}_epoch_speedup": ratio(times, f"textbook epoch of {name.split()[0]}", f"epoch of {name}")
        for name in makers
    }, times


def _epoch(method: Method, stream: Stream) -> Work:
    """What `train.fit` does in an epoch."""
    lesson, sgd = _lesson(stream, 1), SGD(method.trainable(), 0.0)

    def work() -> None:
        method.train()
        method.running = Running()
        for batch in lesson.batches(BATCH, generator(1, "epoch")):
            method.running.expect(batch)
            sgd.step(method.gradient(batch), RATE)
        evaluate(method, lesson.parts[0].valid, 1)

    return work


def _textbook_epoch(textbook: Any, name: str, stream: Stream) -> Work:
    net = textbook.AlexNet(2, CLASSES)
    bases = [torch.linalg.qr(torch.randn(len(layer.weight[0].flatten()), size)).Q.numpy() for layer, size in
             zip(net.layers(), SIZES.values(), strict=True)]  # fmt: skip
    projectors = textbook.dense_projectors(bases)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    step = partial({"gpm": textbook.gpm_step, "rcl": textbook.rcl_step}[name], net, optimizer, projectors, task=1)
    train, valid = (split.take(slice(None)) for split in (stream.tasks[1].train, stream.tasks[1].valid))
    return lambda: textbook.run_epoch(lambda x, y: step(x, y), net, train, valid, 1, BATCH)


def updates(bench: Bench, textbook: Any) -> tuple[dict[str, float], Times]:
    """The memory after a second task, textbook ÷ ours: layer inputs of 125 images, and the bases that hold them."""
    stream = _stream(2)
    method = GPM(_network(), threshold=THRESHOLD, threshold_step=0.0)
    net = textbook.AlexNet(2, CLASSES)
    net.load_state_dict({name.removeprefix("backbone."): value for name, value in method.net.state_dict().items()})
    with chance(1, "update"):
        method.end(_lesson(stream, 0))
    before = dict(method.memory.items())
    x, _ = stream.tasks[1].train.take(slice(125))
    old = textbook.update_memory(None, textbook.representations(net, stream.tasks[0].train.take(slice(125))[0]), 0.97)

    def ours() -> None:
        for layer, basis in before.items():
            method.memory[layer] = basis
        method.end(_lesson(stream, 1))

    def theirs() -> None:
        textbook.update_memory(old, textbook.representations(net, x), THRESHOLD)

    bench.tell("updates of the memory")
    times = alternate({"update": ours, "textbook update": theirs}, max(bench.rounds // 4, 1), PAUSE)
    return {"basis_update_speedup": ratio(times, "textbook update", "update")}, times


def load_textbook(path: Path | None = None) -> Any:
    """benchmarks/textbook.py of a checkout; it is not part of the installed package."""
    place = path or Path(__file__).parents[2] / "benchmarks" / "textbook.py"
    found = importlib.util.spec_from_file_location("perdure_textbook", place)
    if not place.is_file() or found is None or found.loader is None:
        raise PerdureError(f"{place}: not there; clone the repository and give --textbook its benchmarks/textbook.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


# ── how cost grows ──────────────────────────────────────────────────────────────────────────────────────────


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

    def told(self) -> str:
        """Relative to the first size: seconds are this machine's alone."""
        if self.unit == "bytes":
            return ", ".join(f"{value / 1e6:.2f} MB" for value in self.values)
        return ", ".join(f"{value / self.values[0]:.2f}" for value in self.values)

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "slope": round(self.slope, 3)}


def growths(bench: Bench, names: Sequence[str] = ()) -> Iterator[Growth]:
    """A step against basis size, width, batch and finished tasks; memory against finished tasks."""
    makers = _known(names or ("gpm", "rcl shared"))
    fast.keep_heap()
    with with_threads(bench.threads), chance(1, "bench"):
        for name, maker in makers.items():
            bench.tell(f"how {name} grows")
            yield _growth(bench, name, "directions held, of all there are", (0.05, 0.2, 0.8), partial(_held, maker))
            yield _growth(bench, name, "width, of the papers' network", (0.25, 0.5, 1.0), partial(_wide, maker))
            yield _growth(bench, name, "images a batch", (16, 32, 64, 128), partial(_batched, maker))
            yield _growth(bench, name, "finished tasks, with the same bases", (1, 5, 20), partial(_after, maker))
        yield _memory((1, 2, 4, 8))


def _growth(bench: Bench, name: str, what: str, sizes: Sequence[float], make: Callable[[Any], Work]) -> Growth:
    times = alternate({str(size): make(size) for size in sizes}, bench.rounds)
    return Growth(name, what, sizes, [median(times[str(size)]) for size in sizes], "s")


def _held(maker: Callable[[Network], Method], share: float) -> Work:
    stream = _stream(2)
    layers = _network().backbone.layers()
    sizes = {name: max(int(share * layer.weight[0].numel()), 1) for name, layer in layers.items()}
    return _step(later(maker, stream, sizes), stream)


def _wide(maker: Callable[[Network], Method], width: float) -> Work:
    stream = _stream(2)
    filters, units = (int(64 * width), int(128 * width), int(256 * width)), (int(2048 * width),) * 2

    def make(_: Network) -> Method:
        return maker(_network(filters=filters, units=units))

    layers = make(_network()).net.backbone.layers()
    sizes = {name: max(layer.weight[0].numel() // 4, 1) for name, layer in layers.items()}
    return _step(later(make, stream, sizes), stream)


def _batched(maker: Callable[[Network], Method], images: int) -> Work:
    stream = _stream(2)
    method = later(maker, stream)
    return _step(method, stream, images)


def _after(maker: Callable[[Network], Method], tasks: int) -> Work:
    stream = _stream(2)
    method = later(maker, stream)
    for _ in range(tasks - 1):
        method.net.add_head(CLASSES)
    return _step(method, stream)


def _memory(tasks: Sequence[int]) -> Growth:
    """What GPM holds after so many tasks; images are not among it."""
    stream = _stream(max(tasks))
    method, held = GPM(_network(), threshold=THRESHOLD), []
    for _ in range(len(stream) - len(method.net.heads)):
        method.net.add_head(CLASSES)
    with chance(1, "memory"):
        for task in range(max(tasks)):
            method.end(replace(_lesson(stream, 0), parts=_lesson(stream, task).parts))
            held.append(sum(method.memory_bytes().values()))
    return Growth("gpm", "finished tasks, memory", tasks, [held[count - 1] for count in tasks], "bytes")


# ── small parts ─────────────────────────────────────────────────────────────────────────────────────────────


def _stream(tasks: int) -> Stream:
    return synthetic(seed=1, tasks=tasks, classes=CLASSES, per_class=IMAGES // CLASSES)


def _lesson(stream: Stream, index: int) -> Lesson:
    task = stream.tasks[index]
    return Lesson(index, (Part(index, CLASSES, task.train, task.valid),))


def _network(**shape: Any) -> Network:
    with chance(1, "network"):
        net = Network(AlexNet((3, 32, 32), **shape))
        net.add_head(CLASSES)
        net.add_head(CLASSES)
    return net


def run(bench: Bench, textbook: Path | None = None, names: Sequence[str] = ()) -> dict[str, Any]:
    """All ratios, the seconds they come from, and with what they were measured."""
    _known(names)
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
