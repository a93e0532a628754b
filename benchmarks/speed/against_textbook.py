"""An epoch and an update of the memory against the plain implementation in benchmarks/textbook.py."""

from functools import partial
from typing import Any

import torch

from perdure.methods.gpm import GPM
from perdure.methods.method import Method
from perdure.seeding import chance, generator
from perdure.train.evaluate import RunningScore, evaluate
from perdure.train.optimizers import SGD
from perdure.types import Stream

from .steps import key
from .subjects import (
    BATCH,
    CLASSES,
    IMAGES,
    RATE,
    SIZES,
    THRESHOLD,
    known,
    later,
    lesson_of,
    network,
    small_stream,
)
from .turns import Bench, Times, Work, alternate, ratio

PAUSE = 0.3  # seconds between ours and the textbook's, which has NumPy's threads at work


def epochs(bench: Bench, textbook: Any) -> tuple[dict[str, float], Times]:
    """An epoch of a later task, textbook ÷ ours: steps, and what is evaluated after them."""
    stream = small_stream(2)
    makers = known(("gpm", "rcl shared", "rcl separate"))
    works: dict[str, Work] = {
        f"epoch of {name}": _epoch(later(maker, stream), stream) for name, maker in makers.items()
    }
    works |= {f"textbook epoch of {name}": _textbook_epoch(textbook, name, stream) for name in ("gpm", "rcl")}
    bench.report(f"epochs of {IMAGES} images; an RCL epoch of the textbook takes its time")
    times = alternate(works, max(bench.rounds // 4, 1), PAUSE)
    return {
        f"{key(name)}_epoch_speedup": ratio(times, f"textbook epoch of {name.split()[0]}", f"epoch of {name}")
        for name in makers
    }, times


def _epoch(method: Method, stream: Stream) -> Work:
    """What `train.fit` does in an epoch."""
    lesson, sgd = lesson_of(stream, 1), SGD(method.trainable(), 0.0)

    def work() -> None:
        method.train()
        running = RunningScore()
        for batch in lesson.batches(BATCH, generator(1, "epoch")):
            method.train_rows, method.train_logits = len(batch), None
            sgd.step(method.gradient(batch), RATE)
            assert method.train_logits is not None
            running.add(method.train_logits, batch.y)
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
    stream = small_stream(2)
    method = GPM(network(), threshold=THRESHOLD, threshold_step=0.0)
    net = textbook.AlexNet(2, CLASSES)
    net.load_state_dict({name.removeprefix("backbone."): value for name, value in method.net.state_dict().items()})
    with chance(1, "update"):
        method.end(lesson_of(stream, 0))
    before = dict(method.memory.items())
    x, _ = stream.tasks[1].train.take(slice(125))
    old = textbook.update_memory(None, textbook.representations(net, stream.tasks[0].train.take(slice(125))[0]), 0.97)

    def ours() -> None:
        for layer, basis in before.items():
            method.memory[layer] = basis
        method.end(lesson_of(stream, 1))

    def theirs() -> None:
        textbook.update_memory(old, textbook.representations(net, x), THRESHOLD)

    bench.report("updates of the memory")
    times = alternate({"update": ours, "textbook update": theirs}, max(bench.rounds // 4, 1), PAUSE)
    return {"basis_update_speedup": ratio(times, "textbook update", "update")}, times
