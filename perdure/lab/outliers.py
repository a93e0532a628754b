"""Outlier streams: a benchmark whose training images are in part not what they should be.

Validation and test images stay as they were, so that accuracy says what the outliers did to the learner.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from perdure import registry
from perdure.errors import WrongValue
from perdure.lab.outlier_spec import OutlierSpec
from perdure.methods.method import Method
from perdure.nets.network import Network
from perdure.ops.attacks import Ball, pgd
from perdure.ops.contamination import contaminate
from perdure.probes.probe import BATCH, TaskModel
from perdure.seeding import chance, generator
from perdure.train.fit import fit
from perdure.train.plan import Plan
from perdure.types import Lesson, Part, Split, Stream, Task, cut

STRENGTH, STEPS = 8 / 255, 10  # of adversarial images
PLAN = Plan(rate=0.05, epochs=5, batch=32, schedule="linear", keep="last")  # of the network they are made against

Adversary = Callable[[Tensor, Tensor], Tensor]  # pixels and labels to moved pixels


def check_possible(stream: Stream, outlier_specs: Sequence[OutlierSpec]) -> None:
    """Whether the stream can have such outliers at all."""
    for dose in outlier_specs:
        if dose.tasks and dose.tasks[-1] > len(stream):
            raise WrongValue(f"outliers {dose}: there is no task {dose.tasks[-1]}; the stream has {len(stream)}")
        if dose.kind == "foreign" and len(stream) == 1:
            raise WrongValue(f"outliers {dose}: foreign images come from other tasks, and there are none")


def contaminated(stream: Stream, outlier_specs: Sequence[OutlierSpec], seed: int, network: str) -> Stream:
    """The stream with outliers among its training images, the same ones for every method and plan.

    Adversarial images are made against a fresh `network` that has learned that task alone for a few epochs.
    """
    if not outlier_specs:
        return stream
    tasks = list(stream.tasks)
    for number in range(len(tasks)):
        for dose in outlier_specs:
            if not dose.tasks or number + 1 in dose.tasks:
                tasks[number] = replace(
                    tasks[number], train=_spoiled(tasks[number], number, dose, stream, seed, network)
                )
    told = f"{' and '.join(map(str, outlier_specs))} among the training images"
    return replace(stream, tasks=tasks, notes={**stream.notes, "outliers": told})


def _spoiled(task: Task, number: int, dose: OutlierSpec, stream: Stream, seed: int, network: str) -> Split:
    foreign = _others(stream, number) if dose.kind == "foreign" else None
    adversary = _adversary(stream, number, seed, network) if dose.kind == "adversarial" else None
    return contaminate(
        task.train,
        dose.kind,
        dose.rate,
        classes=len(task.classes),
        rng=generator(seed, "outliers", dose.kind, number),
        foreign=foreign,
        adversary=adversary,
    )


def _others(stream: Stream, number: int) -> Tensor:
    """Training images of all other tasks; as bytes where all are, for they are many."""
    splits = [task.train for i, task in enumerate(stream.tasks) if i != number]
    alike = len({split.x.dtype for split in splits}) == 1
    return torch.cat([split.x if alike else split.pixels(slice(None)) for split in splits])


def _adversary(stream: Stream, number: int, seed: int, network: str) -> Adversary:
    """Moves images against a network that has learned the task as it was."""
    task = stream.tasks[number]

    def move(pixels: Tensor, y: Tensor) -> Tensor:
        with chance(seed, "outliers", "network", number):
            method = Method(Network(registry.networks.load(network)(stream.shape)))
        lesson = Lesson(0, (Part(0, len(task.classes), task.train, task.valid),))
        fit(method, lesson, PLAN, seed)
        model = TaskModel(method, 0, task.train)
        source = generator(seed, "outliers", "attack", number)
        moved = [
            pgd(model, pixels[piece], y[piece], Ball("linf", STRENGTH), steps=STEPS, rng=source)
            for piece in cut(len(y), BATCH)
        ]
        return torch.cat(moved)

    return move
