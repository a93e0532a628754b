"""Whole steps of methods on small networks, and a count of how often a function is called."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from networks import Tracking
from torch import Tensor

from perdure.methods.dfgp import DFGP
from perdure.methods.ewc import EWC
from perdure.methods.fsdgpm import FSDGPM
from perdure.methods.gpm import GPM
from perdure.methods.method import Method
from perdure.methods.owm import OWM
from perdure.methods.pat import PAT
from perdure.methods.rcl import RCL
from perdure.methods.sgp import SGP
from perdure.methods.trgp import TRGP
from perdure.nets.alexnet import AlexNet
from perdure.nets.mlp import MLP
from perdure.nets.network import Backbone, Network
from perdure.nets.resnet18 import ResNet18
from perdure.types import EpochStart, Gradient, Lesson, Part, Split


def images(count: int, seed: int = 0) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, 32, 32, generator=drawn, dtype=torch.float64)


def lesson(index: int, dtype: torch.dtype = torch.float64) -> Lesson:
    split = Split(images(24, index).to(dtype), torch.arange(24) % 3)
    return Lesson(index, (Part(index, 3, split, split),))


NETS: dict[str, Callable[[], Backbone]] = {
    "alexnet": lambda: AlexNet((3, 32, 32), filters=(8, 12, 16), units=(40, 36), dropout=False),
    "alexnet, dropout": lambda: AlexNet((3, 32, 32), filters=(8, 12, 16), units=(40, 36)),
    "resnet18": lambda: ResNet18((3, 32, 32), filters=4),
    "mlp": lambda: MLP((3, 32, 32), units=(40, 36)),
    "tracking": lambda: Tracking((3, 32, 32), dropout=0.0),  # with running statistics
}
METHODS: dict[str, Callable[[Network], Method]] = {
    "gpm": lambda net: GPM(net, threshold=0.9),
    "pat": lambda net: PAT(net, threshold=0.9),
    "sgp": lambda net: SGP(net, threshold=0.9),
    "dfgp": lambda net: DFGP(net, threshold=0.9),
    "rcl": lambda net: RCL(net, threshold=0.9, phi_init=0.0),
    "rcl, shared": lambda net: RCL(net, threshold=0.9, phi_init=0.0, features="shared"),
    "rcl, paper": lambda net: RCL(net, threshold=0.9, phi_init=0.0, variant="paper"),
    "fsdgpm": lambda net: FSDGPM(net, threshold=0.9, look_ahead=0.1),
    "fsdgpm, first order": lambda net: FSDGPM(net, threshold=0.9, look_ahead=0.1, second_order=False),
    "fsdgpm, cut": lambda net: FSDGPM(net, threshold=0.9, look_ahead=0.1, limit=0.01),
    "trgp": lambda net: TRGP(net, threshold=0.9, trust=0.0),
    "trgp, attacked": lambda net: TRGP(net, threshold=0.9, trust=0.0, attack=4 / 255),
    "owm": lambda net: OWM(net, clip=1e9),
    "ewc": lambda net: EWC(net, clip=None),
}


def on_a_later_task(method: Method, dtype: torch.dtype = torch.float64) -> Method:
    """About to learn its second task, with all that the first has left."""
    for _ in range(2):
        method.net.add_head(3)
    method.to(dtype).train()
    method.begin(lesson(0, dtype))
    method.begin_epoch(EpochStart(0, 1))
    method.gradient(lesson(0, dtype).sample(12))
    torch.manual_seed(6)
    method.end(lesson(0, dtype))
    method.train()
    method.begin(lesson(1, dtype))
    method.begin_epoch(EpochStart(0, 1))
    with torch.no_grad():
        for weight in method.net.parameters():  # away from the weights that EWC is drawn to
            weight += 1e-3 * torch.randn(weight.shape, dtype=weight.dtype)
    return method.train()


def gradient(method: str, net: str) -> Gradient:
    """Of the second task; with the running statistics that it leaves."""
    torch.manual_seed(5)
    learner = on_a_later_task(METHODS[method](Network(NETS[net]())))
    torch.manual_seed(7)
    found = learner.gradient(learner.attacked(lesson(1).sample(12)))
    return {**found, **dict(learner.net.named_buffers())}


def assert_same(found: Gradient, expected: Gradient) -> None:
    assert found.keys() == expected.keys()
    for name, g in expected.items():
        torch.testing.assert_close(found[name], g, rtol=1e-8, atol=1e-12, msg=name)


@contextmanager
def calls_of(owner: Any, name: str) -> Iterator[list[None]]:
    """A list that grows by one with each call of a function inside."""
    calls: list[None] = []
    original = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return original(*args, **kwargs)

    on_class = isinstance(owner, type) and (isinstance(owner.__dict__.get(name), staticmethod) or name == "apply")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, staticmethod(counted) if on_class else counted)
        yield calls
