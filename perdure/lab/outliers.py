"""Streams with outliers among their training images; validation and test images stay clean."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from perdure import registry
from perdure.errors import WrongValue
from perdure.lab.outlier_spec import OutlierSpec
from perdure.methods.method import Method
from perdure.nets.network import Network, first_weights
from perdure.ops.attacks import Ball, pgd
from perdure.ops.contamination import Adversary, contaminate
from perdure.probes.probe import BATCH, TaskModel
from perdure.seeding import generator
from perdure.train.fit import fit
from perdure.train.plan import Plan
from perdure.types import Lesson, Part, Stream, cut

STRENGTH, STEPS = 8 / 255, 10  # of adversarial images
PLAN = Plan(rate=0.05, epochs=5, batch=32, schedule="linear", keep="last")  # of the network they are made against


def check_possible(stream: Stream, specs: Sequence[OutlierSpec]) -> None:
    """Whether the stream can have such outliers at all."""
    for one in specs:
        if one.tasks and one.tasks[-1] > len(stream):
            raise WrongValue(f"outliers {one}: there is no task {one.tasks[-1]}; the stream has {len(stream)}")
        if one.kind == "foreign" and len(stream) == 1:
            raise WrongValue(f"outliers {one}: foreign images come from other tasks, and there are none")


def contaminated(stream: Stream, specs: Sequence[OutlierSpec], seed: int, network: str) -> Stream:
    """The stream with outliers among its training images, the same ones for every method and plan.

    Adversarial images are made against a fresh `network` that has learned that task alone for a few epochs.
    """
    if not specs:
        return stream
    tasks = list(stream.tasks)
    for number, one in product(range(len(tasks)), specs):
        if not one.tasks or number + 1 in one.tasks:
            train = contaminate(
                tasks[number].train,
                one.kind,
                one.rate,
                classes=len(tasks[number].classes),
                rng=generator(seed, "outliers", one.kind, number),
                foreign=_other_images(stream, number) if one.kind == "foreign" else None,
                adversary=_adversary(stream, number, seed, network) if one.kind == "adversarial" else None,
            )
            tasks[number] = replace(tasks[number], train=train)
    note = f"{' and '.join(map(str, specs))} among the training images"
    return replace(stream, tasks=tasks, notes={**stream.notes, "outliers": note})


def _other_images(stream: Stream, number: int) -> Tensor:
    """Training images of all other tasks; as bytes where all are, for they are many."""
    splits = [task.train for i, task in enumerate(stream.tasks) if i != number]
    alike = len({split.x.dtype for split in splits}) == 1
    return torch.cat([split.x if alike else split.pixels(slice(None)) for split in splits])


def _adversary(stream: Stream, number: int, seed: int, network: str) -> Adversary:
    """Moves images against a network that has learned the clean task."""
    task = stream.tasks[number]

    def move(pixels: Tensor, y: Tensor) -> Tensor:
        with first_weights(seed, "outliers", "network", number):
            method = Method(Network(registry.networks.load(network)(stream.shape)))
        fit(method, Lesson(0, (Part(0, len(task.classes), task.train, task.valid),)), PLAN, seed)
        model = TaskModel(method, 0, task.train)
        source = generator(seed, "outliers", "attack", number)
        ball = Ball("linf", STRENGTH)
        return torch.cat(
            [pgd(model, pixels[piece], y[piece], ball, steps=STEPS, rng=source) for piece in cut(len(y), BATCH)]
        )

    return move
