"""How many threads torch computes with."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from perdure.errors import WrongValue, short
from perdure.nets.network import Network
from perdure.ops.layers import layer_inputs
from perdure.processes import MOST_THREADS
from perdure.seeding import chance

SMALL = 300e6
"""Multiply-adds of a batch's forward below which a network is small. The parts of a step are so short then that threads
wait for each other about as long as they save, and far longer where other processes want the cores, too
(benchmarks/busy.py, docs/speed.md)."""


def check_threads(count: int) -> None:
    if not 1 <= count <= MOST_THREADS:
        raise WrongValue(f"threads={short(count)} is not allowed; use a whole number from 1 to {MOST_THREADS}")


def usual_threads(net: Network, shape: tuple[int, int, int], batch: int) -> int:
    """Where nobody has said how many: one for a small network, torch's own number for others."""
    own = torch.get_num_threads()
    if own == 1 or "OMP_NUM_THREADS" in os.environ or next(net.parameters()).device.type != "cpu":
        return own
    return 1 if forward_work(net, shape, batch) < SMALL else own


def forward_work(net: Network, shape: tuple[int, int, int], batch: int) -> float:
    """Multiply-adds of a batch's forward, without the head. More than any where the network does not take such images;
    that is said where it is to learn from them. (Torch's own counter takes seconds to load.)"""
    images = torch.zeros(2, *shape)
    try:
        with torch.no_grad(), chance(0, "work"):
            met = layer_inputs(net.backbone, lambda: net.try_forward(images))
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, AssertionError):
        return float("inf")
    products = (
        found.layer.weight.numel() * found.columns(len(images)).shape[-1] / found.layer.groups
        for found in met.values()
        if found.layer.kind != "embedding"
    )
    return sum(products) / len(images) * batch


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Run the block with this many torch threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
