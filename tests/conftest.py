"""Small streams and networks that many tests share."""

from collections.abc import Callable

import pytest
import torch

from perdure.data.synthetic import synthetic
from perdure.nets.alexnet import SlimAlexNet
from perdure.nets.network import Network
from perdure.types import Stream


@pytest.fixture
def stream() -> Stream:
    return synthetic(seed=1, tasks=2)


@pytest.fixture
def fresh_net() -> Callable[[], Network]:
    """The same slim AlexNet, new each time."""

    def make() -> Network:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return Network(SlimAlexNet((3, 32, 32)))

    return make
