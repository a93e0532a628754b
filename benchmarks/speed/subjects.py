"""What is measured: methods in the middle of a later task, on the papers' CIFAR-100 network."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from perdure import registry
from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import UnknownName
from perdure.memory.gradient_memory import DualMemory
from perdure.methods.gpm import GPM
from perdure.methods.method import Method
from perdure.methods.sgp import SGP
from perdure.nets.alexnet import AlexNet
from perdure.nets.network import Network
from perdure.ops.dual_gpm import Dual
from perdure.seeding import chance, generator
from perdure.train.optimizers import SGD
from perdure.types import EpochStart, Lesson, Part, Stream

from .turns import Work

SIZES = {"conv1": 7, "conv2": 110, "conv3": 190, "fc1": 300, "fc2": 600}  # directions held, about those of task five
BATCH, CLASSES, IMAGES = 64, 10, 640  # of an epoch here; one of CIFAR-100 has 4750
THRESHOLD = 0.97
RATE = 1e-4  # so small that a step is a step and nothing diverges

Maker = Callable[[Network], Method]
Pass = tuple[int, bool]  # how many images, and whether features without convolution dropout are asked for


def makers() -> dict[str, Maker]:
    """Every method by name; RCL with both kinds of features."""
    made: dict[str, Maker] = {}
    for name in registry.methods:
        maker = registry.methods.load(name)
        if name == "rcl":
            made |= {f"rcl {kind}": partial(maker, features=kind, phi_init=0.0) for kind in ("shared", "separate")}
        else:
            made[name] = maker
    return made


def known(names: Sequence[str]) -> dict[str, Maker]:
    there = makers()
    for name in names:
        if name not in there:
            raise UnknownName("step", name, there)
    return {name: there[name] for name in names or there}


def first(maker: Maker, stream: Stream) -> Method:
    """A method that learns its first task, on the papers' CIFAR-100 network."""
    method = maker(network())
    method.begin(lesson_of(stream, 0))
    return method


def later(maker: Maker, stream: Stream, sizes: Mapping[str, int] | None = None) -> Method:
    """A method that has learned a task and begun another, with bases of the given sizes where it has bases."""
    method = maker(network())
    old, new = lesson_of(stream, 0), lesson_of(stream, 1)
    method.begin(old)
    method.begin_epoch(EpochStart(0, 1))
    with chance(1, "bench"):
        for batch, _ in zip(old.batches(BATCH, generator(1, "bench")), range(2), strict=False):
            method.gradient(batch)
        method.end(old)
        if isinstance(method, GPM):
            remember(method, sizes or SIZES)
        method.begin(new)
    method.begin_epoch(EpochStart(1, 2))
    return method


def remember(method: GPM, sizes: Mapping[str, int]) -> None:
    """Random orthonormal bases of these sizes, and importances; the time does not depend on what they hold."""
    for layer, module in method.net.backbone.layers().items():
        if layer not in sizes:
            continue
        basis = torch.linalg.qr(torch.randn(module.weight[0].numel(), sizes[layer])).Q
        if isinstance(method.memory, DualMemory):
            method.memory.put(layer, Dual("remove", basis))
        else:
            method.memory[layer] = basis
            if isinstance(method, SGP):
                method.importance[layer] = torch.rand(sizes[layer])


def step_of(method: Method, stream: Stream, images: int = BATCH) -> Work:
    batch = next(lesson_of(stream, 1).batches(images, generator(1, "step")))
    sgd = SGD(method.trainable(), 0.0)
    method.train()
    return lambda: sgd.step(method.gradient(method.attacked(batch)), RATE)


def bare_passes(stream: Stream, passes: Sequence[Pass]) -> Work:
    """The least that a step takes: the network, forward and backward, over as many images as the step needs."""
    net = network()
    x, y = stream.tasks[0].train.take(slice(2 * BATCH))
    weights = list(net.parameters())
    net.train()

    def work() -> None:
        for images, clean in passes:
            look = net(x[:images], 0, not clean)
            loss = F.cross_entropy(look.logits, y[:images])
            torch.autograd.grad(loss + look.features.mean() if clean else loss, weights, allow_unused=True)

    return work


def small_stream(tasks: int) -> Stream:
    return synthetic(seed=1, tasks=tasks, classes=CLASSES, per_class=IMAGES // CLASSES)


def lesson_of(stream: Stream, index: int) -> Lesson:
    task = stream.tasks[index]
    return Lesson(index, (Part(index, CLASSES, task.train, task.valid),))


def network(**shape: Any) -> Network:
    with chance(1, "network"):
        net = Network(AlexNet((3, 32, 32), **shape))
        net.add_head(CLASSES)
        net.add_head(CLASSES)
    return net
