"""What the driver does with Ray's answers, whichever they are: a Ray made up, so that no cluster is started."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.errors import PerdureError, WrongValue
from perdure.lab.execute import ray as module
from perdure.lab.execute.job import Event, Job
from perdure.lab.execute.ray import RayBatch, RayExecutor, connect, store_token
from perdure.lab.executors import make_executor
from perdure.lab.spec import spec


class RayError(Exception): ...


class RayTaskError(RayError): ...


class NodeDiedError(RayError): ...


class LocalRayletDiedError(RayError): ...


class FakeRay:
    """Tasks are numbers. `ends` has, for each look, the tasks that have ended by then, with their errors; `sent` the
    events that have arrived by then."""

    exceptions = SimpleNamespace(
        RayError=RayError, RayTaskError=RayTaskError, LocalRayletDiedError=LocalRayletDiedError
    )

    def __init__(self, *ends: dict[int, Exception | None]) -> None:
        self.ends, self.errors = list(ends), dict[int, Exception | None]()
        self.sent: list[list[Any]] = []
        self.orders: list[dict[str, Any]] = []
        self.options_given: list[dict[str, Any]] = []
        self.cancelled: list[tuple[int, dict[str, Any]]] = []
        self.killed: list[Any] = []

    def remote(self, _: Any) -> Any:
        def submit(order: str, _queue: Any) -> int:
            self.orders.append(json.loads(order))
            return len(self.orders) - 1

        def options(**given: Any) -> Any:
            self.options_given.append(given)
            return SimpleNamespace(remote=submit)

        return SimpleNamespace(options=options)

    def wait(self, tasks: list[int], timeout: float) -> tuple[list[int], list[int]]:
        assert timeout == 0.25
        self.errors |= (now := self.ends.pop(0) if self.ends else {})
        return [task for task in tasks if task in now], []

    def get(self, what: Any, timeout: float | None = None) -> Any:
        if what == "taken":
            assert timeout == 60
            events, self.sent = self.sent, []
            return [json.dumps(event) for event in events]
        if (error := self.errors[what]) is not None:
            raise error
        return None

    def cancel(self, task: int, **how: Any) -> None:
        self.cancelled.append((task, how))

    def kill(self, what: Any) -> None:
        self.killed.append(what)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = SimpleNamespace(take=SimpleNamespace(remote=lambda: "taken"))
    monkeypatch.setattr(module, "event_queue", lambda _ray: found)
    return found


def jobs(out: Path, count: int = 1, device: str = "cpu") -> list[Job]:
    return [Job(spec("finetune", "synthetic", seed=seed), str(out), None, device) for seed in range(1, count + 1)]


def ends(events: Iterator[Event]) -> list[tuple[int, str, str]]:
    return [(event.job, event.kind, event.facts.get("error", "")) for event in events]


@pytest.mark.usefixtures("queue")
def test_a_lost_job_is_given_to_another_worker_and_its_old_one_is_not_heard(tmp_path: Path) -> None:
    ray = FakeRay({0: NodeDiedError("lost\nand more")}, {}, {1: None})
    batch = RayBatch(ray, RayExecutor(), jobs(tmp_path), "token")
    events = batch.events()
    assert next(events) == Event(0, "lost", {"error": "its node died"})
    ray.sent = [
        [[0, 1], "done", {"record": {"path": "/elsewhere/of/the/first"}}],
        [[0, 2], "done", {"record": {"path": "/mnt/node/of/the/store/synthetic/finetune/abc"}}],
    ]
    assert list(events) == [Event(0, "done", {"record": {"path": str(tmp_path / "synthetic/finetune/abc")}})]
    assert [order["id"] for order in ray.orders] == [[0, 1], [0, 2]]
    assert [given["max_retries"] for given in ray.options_given] == [0, 0]
    assert ray.options_given[0]["name"] == "finetune-synthetic-1"
    assert ray.cancelled == []


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize(
    ("error", "said", "tries"),
    [
        (RayTaskError("Traceback\n  ImportError: no perdure."), "ImportError: no perdure; is perdure installed", 1),
        (LocalRayletDiedError("gone"), "Ray on this machine died; start it again", 1),
        (RayError("the cause.\nand more"), "Ray lost it (the cause); tried 2 times", 2),
        (RayError(), "Ray lost it (RayError); tried 2 times", 2),
        (None, "its worker was stopped; tried 2 times", 2),
    ],
)
def test_why_a_job_failed(error: Exception | None, said: str, tries: int, tmp_path: Path) -> None:
    ray = FakeRay({0: error}, {1: error})
    found = ends(RayBatch(ray, RayExecutor(retries=1), jobs(tmp_path), "token").events())
    assert [kind for _, kind, _ in found] == ["lost"] * (tries - 1) + ["failed"]
    assert found[-1][2].startswith(said)
    assert len(ray.orders) == tries


def test_stopped_workers_are_asked_once_and_forced_when_their_time_is_over(
    queue: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 1.0, 50.0, 110.0, 121.5])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now))
    ray, executor = FakeRay({}, {1: None}), RayExecutor()
    executor.stop()
    batch = RayBatch(ray, executor, jobs(tmp_path, 2), "token")
    found = ends(batch.events())
    assert found == [(1, "stopped", "its worker was stopped"), (0, "stopped", found[1][2])]
    assert "did not stop in time" in found[1][2]
    gently, by_force = {"recursive": False}, {"recursive": False, "force": True}
    assert ray.cancelled == [(0, gently), (1, gently), (0, by_force)]
    batch.close()  # which does not ask again
    assert (len(ray.cancelled), ray.killed) == (3, [queue])


def test_closed_in_the_middle_all_are_asked_to_stop(queue: Any, tmp_path: Path) -> None:
    ray = FakeRay({0: None, 1: None})
    batch = RayBatch(ray, RayExecutor(), jobs(tmp_path, 2), "token")
    batch.close()
    assert [task for task, _ in ray.cancelled] == [0, 1]
    assert (batch.tasks, ray.killed) == ({}, [queue])


@pytest.mark.usefixtures("queue")
def test_a_queue_that_is_gone_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay({0: None})
    batch = RayBatch(ray, RayExecutor(retries=0), jobs(tmp_path), "token")

    def gone(_: Any, timeout: float | None = None) -> Any:  # noqa: ARG001
        raise RayError

    monkeypatch.setattr(ray, "get", gone)
    assert list(batch.received()) == []


@pytest.mark.usefixtures("queue")
def test_an_order_has_what_a_node_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ray, (job,) = FakeRay(), jobs(Path("store"), device="cuda:3")
    RayBatch(ray, RayExecutor(threads=3, cpus=2), [Job(job.spec, job.out, "data", job.device)], "token")
    (order,), (given,) = ray.orders, ray.options_given
    assert (order["job"]["out"], order["job"]["root"]) == (str(tmp_path / "store"), str(tmp_path / "data"))
    assert (order["job"]["device"], order["threads"], order["cwd"]) == ("cuda", 3, str(tmp_path))
    assert (order["token"], order["id"]) == ("token", [0, 1])
    assert (given["num_cpus"], given["num_gpus"]) == (2, 1.0)


@pytest.mark.parametrize(
    ("node", "enough"),
    [
        ({"CPU": 2.0, "GPU": 1.0}, True),
        ({"CPU": 3.0, "GPU": 2.0}, True),
        ({"CPU": 1.0, "GPU": 1.0}, False),
        ({"CPU": 2.0}, False),
        ({"GPU": 1.0}, False),
    ],
)
def test_a_node_that_has_just_enough_is_enough(node: dict[str, float], enough: bool, tmp_path: Path) -> None:
    dead = {"Alive": False, "Resources": {"CPU": 9.0, "GPU": 9.0}}
    ray = SimpleNamespace(nodes=lambda: [dead, {"Alive": True, "Resources": node}])
    said = RayExecutor("auto", cpus=2, gpus=1).missing_resources(ray, jobs(tmp_path))
    assert (said is None) == enough
    if not enough:
        with pytest.raises(WrongValue, match="a run needs 2 CPUs and 1 GPUs, which this machine does not have"):
            RayExecutor(cpus=2, gpus=1).missing_resources(ray, jobs(tmp_path))


def test_a_token_is_in_every_store_while_it_is_needed(tmp_path: Path) -> None:
    stores = {str(tmp_path / "a"), str(tmp_path / "b")}
    with store_token(stores) as name:
        assert all(Path(store, name).read_bytes() == b"" for store in stores)
        Path(tmp_path, "a", name).unlink()  # by somebody else
    assert not any(Path(store, name).exists() for store in stores)


def test_signals_are_the_callers_again_when_ray_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**given: Any) -> None:
        assert (given["address"], given["include_dashboard"]) == ("local", False)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    fake = SimpleNamespace(is_initialized=lambda: False, init=init, exceptions=FakeRay.exceptions)
    monkeypatch.setattr(module, "import_module", lambda name: {"ray": fake}[name])
    before = signal.getsignal(signal.SIGTERM)
    assert connect(None) is fake
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("whole", [True, False])
def test_a_batch_is_closed_however_it_ends(
    whole: bool, queue: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To its end, or left by the caller; the token in the store is there meanwhile."""
    ray = FakeRay({0: RayTaskError("ImportError")}, {1: None})
    ray.nodes = lambda: [{"Alive": True, "Resources": {"CPU": 1.0}}]  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "connect", lambda address: ray if address == "auto" else None)
    events = RayExecutor("auto", retries=0).do(jobs(tmp_path, 2))
    assert next(events).kind == "failed"
    (token,) = tmp_path.glob(".locks/driver-*")
    assert [order["token"] for order in ray.orders] == [f".locks/{token.name}"] * 2
    if whole:
        assert [event.kind for event in events] == ["failed"]
    else:
        events.close()
    assert ray.killed == [queue]
    assert [task for task, _ in ray.cancelled] == ([] if whole else [1])
    assert not token.exists()


def test_what_no_node_has_is_said_and_waited_for(queue: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay({0: None})
    ray.nodes = lambda: [{"Alive": True, "Resources": {"CPU": 1.0}}]  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "connect", lambda _: ray)
    warning, end = RayExecutor("auto", cpus=64, retries=0).do(jobs(tmp_path))
    assert (warning.job, warning.kind, end.kind) == (0, "warning", "failed")
    assert "64 CPUs and 0 GPUs, which no node of this cluster has now" in warning.facts["text"]
    assert ray.killed == [queue]


def test_events_are_kept_on_the_drivers_own_node_until_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def remote(actor: type) -> Any:
        def options(**those: Any) -> Any:
            given.append(those)
            return SimpleNamespace(remote=actor)

        return SimpleNamespace(options=options)

    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft))
    monkeypatch.setattr(module, "import_module", lambda name: {"ray.util.scheduling_strategies": strategies}[name])
    here = SimpleNamespace(get_node_id=lambda: "this node")
    found = module.event_queue(SimpleNamespace(remote=remote, get_runtime_context=lambda: here))
    assert given == [  # started again as often as it dies, and asked again as often as that
        {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": ("this node", False)}
    ]
    found.put("one")
    found.put("two")
    assert (found.take(), found.take()) == (["one", "two"], [])


@pytest.mark.parametrize(
    ("on", "given", "address", "cpus", "gpus"),
    [
        ("ray", {}, None, 2, 0),
        ("auto", {"cpus": 3.0}, "auto", 3, 0),
        ("ray://there:10001", {"device": "cuda"}, "ray://there:10001", 2, 1),
        ("ray", {"device": "cuda:1", "gpus": 0.5}, None, 2, 0.5),
    ],
)
def test_what_a_run_takes_of_a_cluster(
    on: str, given: dict[str, Any], address: str | None, cpus: float, gpus: float
) -> None:
    executor, at_a_time = make_executor(on, threads=2, **given)
    assert isinstance(executor, RayExecutor)
    assert (executor.address, executor.cpus, executor.gpus, executor.threads) == (address, cpus, gpus, 2)
    assert at_a_time is None


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (None, r"^cannot start Ray on this machine: no room; use --on local; see docs/clusters.md$"),
        ("auto", r"^this machine is in no Ray cluster; join one .*; see docs/clusters.md$"),
        ("there:6379", r"^no Ray at there:6379: no room; if it asks for a token, .*; see docs/clusters.md$"),
    ],
)
def test_why_ray_cannot_be_joined(address: str | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise RuntimeError("no room.\nand more")

    fake = SimpleNamespace(is_initialized=lambda: False, init=init, exceptions=FakeRay.exceptions)
    monkeypatch.setattr(module, "import_module", lambda _: fake)
    monkeypatch.setattr(module, "check_address", lambda _: None)
    with pytest.raises(PerdureError, match=said):
        connect(address)


def test_a_ray_that_is_joined_already_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setattr(module, "import_module", lambda _: fake)
    assert connect("nonsense") is fake
