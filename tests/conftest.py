"""Small streams and networks that many tests share."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from perdure.data.benchmarks.synthetic import synthetic
from perdure.lab.execute.job import Event, Job, Kind, run_job
from perdure.lab.execute.local import LocalExecutor
from perdure.nets.alexnet import SlimAlexNet
from perdure.nets.network import Network
from perdure.types import Stream


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or leaves anything in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERDURE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def jobs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of studies and searches are computed in this process, one after another, as a process of its own gets and
    sends them: to start one and import torch there takes longer than a small run. Those are in lab/test_local.py."""

    def do(executor: LocalExecutor, jobs: Sequence[Job]) -> Iterator[Event]:
        threads = torch.get_num_threads()
        for number, job in enumerate(jobs):
            events: list[Event] = []

            def send(kind: Kind, facts: dict[str, Any], number: int = number, events: list[Event] = events) -> None:
                events.append(Event(number, kind, json.loads(json.dumps(facts))))

            torch.set_num_threads(executor.threads)
            try:
                run_job(Job.from_plain(json.loads(json.dumps(job.plain()))), send)
            finally:
                torch.set_num_threads(threads)
            yield from events

    monkeypatch.setattr(LocalExecutor, "do", do)


@pytest.fixture
def stream() -> Stream:
    return synthetic(seed=1, tasks=2, per_class=15)


@pytest.fixture
def fresh_net() -> Callable[..., Network]:
    """The same slim AlexNet, new each time, or that of another seed."""

    def make(seed: int = 1) -> Network:
        return Network(SlimAlexNet((3, 32, 32), seed=seed))

    return make
