"""Jobs on a Ray cluster, or on a Ray of one's own on this machine; all nodes must see the store.

Every job is one Ray task that works in the store. Its events come back as JSON through a small actor on the driver's
node. Ray itself never retries: the driver does, so that it can say so, and a lost job resumes from its last checkpoint.
"""

import json
import logging
import math
import os
import secrets
import signal
import socket
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import chdir, contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import perdure
from perdure.errors import PerdureError, WrongValue, expanded, install_hint
from perdure.lab.execute.job import Event, Job, JobStates, Kind, Send, run_job
from perdure.lab.store import write

POLL = 0.25  # seconds between two looks for events
GRACE = 120.0  # seconds that a worker has to end its step and save when it is stopped

# Ray reads these when it is imported. No usage statistics; no messages about nodes on standard output, where `--json`
# has data: the events tell all. LOOPBACK keeps a Ray of one's own off the machine's outer address.
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

REASONS = {  # by the name of Ray's error
    "TaskCancelledError": "not started",
    "OutOfMemoryError": "its node ran out of memory",
    "NodeDiedError": "its node died",
    "WorkerCrashedError": "its worker process died",
    "LocalRayletDiedError": "Ray on this machine died; start it again, then run the same command to resume",
}


class RayExecutor:
    """Runs jobs on Ray, as many at a time as there are resources for.

    `address` None starts a Ray on this machine for this process alone; "auto" joins the one this machine belongs to,
    "HOST:PORT" that one, "ray://HOST:PORT" one that this machine does not belong to. Each job takes `cpus` and `gpus`
    of its node, and computes with `threads`, whatever the node has. A job that lost its worker or its node is retried,
    at most `retries` times.
    """

    def __init__(
        self, address: str | None = None, cpus: float = 1, gpus: float = 0, threads: int = 1, retries: int = 3
    ) -> None:
        if cpus < 0 or gpus < 0 or cpus + gpus == 0:
            raise WrongValue(f"a run that takes {cpus:g} CPUs and {gpus:g} GPUs; ask for some, e.g. --cpus 1")
        if threads < 1 or retries < 0:
            raise WrongValue(f"{threads} threads and {retries} retries: at least 1 and 0")
        self.address, self.cpus, self.gpus = address, cpus, gpus
        self.threads, self.retries, self.stopping = threads, retries, False

    def stop(self) -> None:
        self.stopping = True

    def do(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Run them; closed in the middle, it lets every worker save and stop."""
        if not jobs:
            return
        ray = connect(self.address)
        if (text := self.missing_resources(ray, jobs)) is not None:
            yield Event(0, "warning", {"text": text})
        with store_token({_absolute(job.out) for job in jobs}) as token:
            batch = RayBatch(ray, self, jobs, token)
            try:
                yield from batch.events()
            finally:
                batch.close()

    def resources(self, job: Job) -> dict[str, float]:
        """What Ray sets aside for a job; a job on a GPU needs one."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus or float(job.device.startswith("cuda"))}

    def missing_resources(self, ray: Any, jobs: Sequence[Job]) -> str | None:
        """A warning if no node can run the jobs now: a cluster may grow. A Ray of one's own does not: an error."""
        cpus, gpus = (max(self.resources(job)[name] for job in jobs) for name in ("num_cpus", "num_gpus"))
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
            return None
        need = f"a run needs {cpus:g} CPUs and {gpus:g} GPUs"
        if self.address is None:
            raise WrongValue(f"{need}, which this machine does not have; ask for less (--cpus, --gpus)")
        return f"{need}, which no node of this cluster has now; waiting for one that has"


class RayBatch:
    """The Ray tasks of one call of `do`, from the first event to the last."""

    def __init__(self, ray: Any, executor: RayExecutor, jobs: Sequence[Job], token: str) -> None:
        self.ray, self.executor, self.jobs, self.token = ray, executor, jobs, token
        self.states, self.attempts = JobStates(executor.retries), Counter[int]()
        self.tasks: dict[Any, int] = {}  # Ray's reference → job
        self.queue = event_queue(ray)
        for index in range(len(jobs)):
            self.submit(index)

    def submit(self, index: int) -> None:
        job, resources = self.jobs[index], self.executor.resources(self.jobs[index])
        name = f"{job.spec.method}-{job.spec.benchmark}-{job.spec.seed}"
        remote = self.ray.remote(run_remote).options(max_retries=0, name=name, **resources)
        self.attempts[index] += 1
        if resources["num_gpus"] and job.device.startswith("cuda"):
            job = replace(job, device="cuda")  # Ray shows a worker its own GPU only, as the first
        data = job.root or os.environ.get("PERDURE_DATA")
        order = {
            "job": replace(job, out=_absolute(job.out), root=data and _absolute(data)).plain(),
            "id": [index, self.attempts[index]],
            "token": self.token,
            "cwd": str(Path.cwd()),
            "threads": self.executor.threads,
            "versions": [perdure.__version__, torch.__version__],
        }
        self.tasks[remote.remote(json.dumps(order), self.queue)] = index

    def events(self) -> Iterator[Event]:
        deadline = math.inf
        while self.tasks and time.monotonic() < deadline:
            self.states.stopping |= self.executor.stopping
            if self.states.stopping and deadline == math.inf:
                deadline = time.monotonic() + GRACE
                for task in self.tasks:
                    self.ray.cancel(task, recursive=False)
            ended, _ = self.ray.wait(list(self.tasks), timeout=POLL)
            yield from self.received()  # a task ends after its events have arrived, so none is missed
            for task in ended:
                yield from self.ended(task)
        while self.tasks:
            task, index = self.tasks.popitem()
            self.ray.cancel(task, force=True, recursive=False)
            yield Event(index, "stopped", {"error": "did not stop in time; its last checkpoint is kept"})

    def received(self) -> Iterator[Event]:
        try:
            texts = self.ray.get(self.queue.take.remote(), timeout=60)
        except self.ray.exceptions.RayError:  # Ray starts it again
            return
        for text in texts:
            (index, attempt), kind, facts = json.loads(text)
            if attempt != self.attempts[index]:
                continue  # from a worker that was given up
            if kind == "done":
                record = facts["record"]
                record["path"] = str(Path(self.jobs[index].out, *Path(record["path"]).parts[-3:]))
            yield from self.states.received(Event(index, kind, facts))

    def ended(self, task: Any) -> Iterator[Event]:
        """A task has ended; a result that has arrived counts, whatever Ray says."""
        index, errors, retry = self.tasks.pop(task), self.ray.exceptions, True
        try:
            self.ray.get(task)
            reason = "its worker was stopped"
        except errors.RayTaskError as error:
            reason, retry = f"{_line(error, -1)}; is perdure installed on every node?", False
        except errors.RayError as error:
            reason = REASONS.get(type(error).__name__, f"Ray lost it ({_line(error)})")
            retry = not isinstance(error, errors.LocalRayletDiedError)
        if index not in self.states.ended:
            event = self.states.lost(index, reason, retry)
            yield event
            if event.kind == "lost":
                self.submit(index)

    def close(self) -> None:
        """Let running tasks save and stop, unless they were asked to before."""
        try:
            if not self.states.stopping:
                self.states.stopping = True
                deque(self.events(), maxlen=0)
        finally:
            self.ray.kill(self.queue)


def event_queue(ray: Any) -> Any:
    """An actor that keeps events until the driver takes them, on the driver's own node: no other takes it along."""

    class EventQueue:  # defined here, Ray sends its code along: its process need not import torch
        def __init__(self) -> None:
            self.events: list[str] = []

        def put(self, event: str) -> None:
            self.events.append(event)

        def take(self) -> list[str]:
            events, self.events = self.events, []
            return events

    affinity = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    here = affinity(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(EventQueue)
    return actor.options(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here).remote()


@contextmanager
def store_token(stores: set[str]) -> Iterator[str]:
    """The name of a file in the store: a worker that does not find it sees another store, or none."""
    name = f".locks/driver-{secrets.token_hex(8)}"
    try:
        for store in stores:
            write(Path(store, name), b"")
        yield name
    finally:
        for store in stores:
            with suppress(OSError):
                Path(store, name).unlink(missing_ok=True)


# --- the worker ---


def run_remote(text: str, queue: Any) -> None:
    """What a Ray worker does, in its process's main thread, where `ray.cancel` interrupts it as Ctrl-C would."""
    order = json.loads(text)
    job, cwd = Job.from_plain(order["job"]), Path(order["cwd"])
    last: list[Future[Any]] = []

    def send(kind: Kind, facts: dict[str, Any]) -> None:
        # A future, for a task that waits with `ray.get` gives its CPU to another. The actor keeps their order.
        last[:] = [queue.put.remote(json.dumps([order["id"], kind, facts])).future()]

    try:
        check_node(order, send)
        torch.set_num_threads(order["threads"])
        with chdir(cwd if cwd.is_dir() else "."):  # `folder:photos` is meant from where the driver is
            if job.root and not Path(job.root).exists():
                job = replace(job, root=None)  # the node's own image files
            run_job(job, send, lock_wait=math.inf)
    except PerdureError as error:
        send("failed", {"error": str(error)})
    except KeyboardInterrupt:  # before or after training, which saves by itself
        send("stopped", {"error": "interrupted; completed work is saved, run the same command to resume"})
    wait(last, timeout=60)


def check_node(order: dict[str, Any], send: Send) -> None:
    """The node must see the store, and have the driver's perdure."""
    host, out, (driver, drivers_torch) = socket.gethostname(), order["job"]["out"], order["versions"]
    if not (Path(out, order["token"]).exists() and os.access(out, os.W_OK)):
        raise PerdureError(
            f"node {host} does not see the store {out}; "
            "mount it there at the same path, writable, or use --out on a file system that all nodes share"
        )
    if driver != perdure.__version__:
        raise PerdureError(f"{host} has perdure {perdure.__version__}, the driver {driver}; install the same on both")
    if drivers_torch != torch.__version__:
        text = f"{host} has torch {torch.__version__}, the driver {drivers_torch}: last digits may differ"
        send("warning", {"text": text})


# --- connecting ---


def connect(address: str | None) -> Any:
    """Ray, joined or started, unless this process has joined one already."""
    for name, value in (SETTINGS | LOOPBACK if address is None else SETTINGS).items():
        os.environ.setdefault(name, value)
    try:
        ray = import_module("ray")
    except ImportError:
        raise PerdureError(f"Ray is not installed: {install_hint('ray')}") from None
    if ray.is_initialized():
        return ray
    if address not in (None, "auto"):
        check_address(address)
    logging.getLogger("ray").setLevel(logging.ERROR)
    own = {"include_dashboard": False} if address is None else {}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        # Workers import from the folder in which Ray was joined: let that be where perdure is.
        with warnings.catch_warnings(), chdir(Path(perdure.__file__).parent.parent):
            warnings.simplefilter("ignore")  # of a connection that fails; the error says it
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, RuntimeError, ValueError, ImportError, ray.exceptions.RayError) as error:
        message = f"no Ray at {address}: {_line(error)}; if it asks for a token, set RAY_AUTH_MODE=token and give it"
        if address is None:
            message = f"cannot start Ray on this machine: {_line(error)}; use --on local"
        elif address == "auto":
            message = "this machine is in no Ray cluster; join one with `ray start`, or name one: --on ray://HOST:PORT"
        raise PerdureError(f"{message}; see docs/clusters.md") from None
    finally:
        with suppress(ValueError):  # Ray takes SIGTERM for itself; outside the main thread it cannot
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return ray


def check_address(address: str) -> None:
    """Somebody must listen there; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise WrongValue(f"{address!r} is no address of a Ray cluster; use auto, HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise PerdureError(
            f"nobody listens at {address} ({error}); is Ray running there? See docs/clusters.md"
        ) from None


def _absolute(path: str) -> str:
    return str(expanded(path).absolute())


def _line(error: BaseException, which: int = 0) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[which].rstrip(".;") if lines else type(error).__name__
