"""A method that has learned three small tasks, for all probes."""

from copy import deepcopy

import pytest

from perdure.data.benchmarks.synthetic import synthetic
from perdure.methods.finetune import FineTune
from perdure.methods.method import Method
from perdure.nets.alexnet import SlimAlexNet
from perdure.nets.network import Network
from perdure.probes.probe import TrainedMethod
from perdure.seeding import chance
from perdure.train.callbacks import Callback
from perdure.train.learn import learn
from perdure.train.plan import Plan
from perdure.train.state import Learned


class Kept(Callback):
    def __init__(self) -> None:
        self.snapshots: list[Method] = []

    def on_task_end(self, method: Method, learned: Learned) -> None:  # noqa: ARG002
        self.snapshots.append(deepcopy(method))


@pytest.fixture(scope="session")
def session_trained() -> TrainedMethod:
    stream = synthetic(seed=1, tasks=3)
    with chance(1, "network"):
        method = FineTune(Network(SlimAlexNet(stream.shape)))
    kept = Kept()
    learn(method, stream, Plan(rate=0.02, epochs=3, batch=16, schedule="linear", keep="last"), 1, kept)
    return TrainedMethod(method, stream.tasks, "finetune, seed 1", kept.snapshots, stream.tasks)


@pytest.fixture
def trained(session_trained: TrainedMethod) -> TrainedMethod:
    """With a progress of its own, which has counted nothing yet."""
    s = session_trained
    return TrainedMethod(s.method, s.tasks, s.name, s.snapshots, s.clean)
