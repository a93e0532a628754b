"""Jobs on a Ray cluster, or on a Ray of one's own on this machine.

Every job is one Ray task. What happens to it comes back through a small actor on the driver's node, the desk, and how
it ended is what the task returns; both are JSON and bytes, nothing else. Ray is told never to retry by itself: the
driver does, so that it can say so, and a job that was lost goes on from its last checkpoint (see `lab.away`).
"""

import json
import logging
import os
import secrets
import signal
import socket
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from perdure.errors import PerdureError, RunLocked, WrongValue
from perdure.lab.away import Files, Home, Order, Outcome, do_away, order
from perdure.lab.desk import Desk, Letter
from perdure.lab.execute.job import Event, Job, Kind
from perdure.lab.store import read_record, write

BEAT = 0.5  # seconds: how soon a signal is noticed
BUSY = 5.0  # seconds until a run that another process works on is tried again
GRACE = 120.0  # seconds that a worker told to stop has to end its step and save


class RayExecutor:
    """Does jobs on Ray, as many at a time as there is room for.

    `address` None starts a Ray on this machine for this process alone; "auto" joins the one this machine belongs to,
    "HOST:PORT" that one, "ray://HOST:PORT" one that this machine does not belong to. Each job takes `cpus` and `gpus`
    of its node, and computes with `threads`, whatever the node has. A job that lost its worker or its node is tried
    again, at most `retries` times. `shared` says whether the workers see the store; None: each looks for itself.
    """

    def __init__(
        self,
        address: str | None = None,
        cpus: float = 1,
        gpus: float = 0,
        threads: int = 1,
        retries: int = 3,
        shared: bool | None = None,
    ) -> None:
        if cpus < 0 or gpus < 0 or cpus + gpus == 0:
            raise WrongValue(f"a run that takes {cpus:g} CPUs and {gpus:g} GPUs; ask for some, e.g. --cpus 1")
        if threads < 1 or retries < 0:
            raise WrongValue(f"{threads} threads and {retries} retries: at least 1 and 0")
        self.address, self.cpus, self.gpus = address, cpus, gpus
        self.threads, self.retries, self.shared = threads, retries, shared
        self.stopping = False

    def stop(self) -> None:
        """Let the jobs at hand save and stop, begin no others; `do` then ends soon."""
        self.stopping = True

    def do(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Do them; left in the middle, it lets every worker save and stop."""
        if jobs:
            yield from Shift(join(self.address), self, jobs).events()

    def needs(self, job: Job) -> dict[str, float]:
        """What Ray sets aside for a job; a job on a GPU needs one."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus or float(job.device.startswith("cuda"))}


# --- joining ---


def join(address: str | None) -> Any:
    """Ray, joined or started, unless this process has joined one already."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        # A Ray for this process alone listens to this machine alone. This is the switch that Ray has for it: without,
        # it takes the machine's outer address even where it is told 127.0.0.1.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        ray = import_module("ray")
    except ImportError:
        raise PerdureError("Ray is not installed; pip install 'perdure[ray]'") from None
    if ray.is_initialized():
        return ray
    _reach(address)
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        with _same_signals(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a connection that fails; the error says it
            if address is None:
                ray.init(address="local", include_dashboard=False, **quiet)
            else:
                ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError, ImportError, ray.exceptions.RayError) as error:
        if address == "auto":
            raise PerdureError(
                "this machine belongs to no Ray cluster; join one with `ray start`, or say where one is: --on ray://HOST:PORT"
            ) from None
        where = "on this machine" if address is None else f"at {address}"
        token = "" if address is None else "; if it asks for a token, set RAY_AUTH_MODE=token and give it"
        raise PerdureError(f"no Ray {where}: {_first_line(error)}{token}; see docs/clusters.md") from None
    _keep_off_standard_output()
    return ray


def _reach(address: str | None) -> None:
    """See that somebody listens there; Ray itself would try for minutes."""
    if address in (None, "auto"):
        return
    host, _, port = str(address).removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise WrongValue(f"{address!r} is no address of a Ray cluster; use auto, HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise PerdureError(
            f"nobody listens at {address} ({error}); is Ray running there? See docs/clusters.md"
        ) from None


@contextmanager
def _same_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself; whoever uses us had it before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        with suppress(ValueError):  # not the main thread: Ray did not take it either
            for number, handler in before.items():
                signal.signal(number, handler)


def _keep_off_standard_output() -> None:
    """Ray prints the troubles of its nodes on standard output, where `--json` has data; events say it all."""
    worker: Any = import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_args, **_more: None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".;") if lines else type(error).__name__


# --- between workers and driver ---


class DeskLine:
    """A worker's line to the desk: one letter at a time, since Ray may overtake itself.

    A letter that does not arrive is not worth a run. It is_async for futures, never with `ray.get`: a task that is_async so
    gives its CPU to another.
    """

    def __init__(self, desk: Any, job: int, attempt: int) -> None:
        self.desk, self.job, self.attempt = desk, job, attempt
        self.on_its_way: list[Future[Any]] = []

    def tell(self, kind: str, facts: dict[str, Any]) -> None:
        self._post(kind, facts, {})

    def send(self, files: Files) -> None:
        self._post("kept", {}, files)

    def fetch(self, where: str) -> Files:
        self.settle()
        asked = self.desk.ask.remote(f"{self.job}/{self.attempt}", self._text("fetch", {"where": where}))
        text, files = asked.future().result()
        found: Files = files
        if wrong := json.loads(text):
            raise RunLocked(wrong["busy"]) if "busy" in wrong else PerdureError(wrong["error"])
        return found

    def settle(self) -> None:
        """Wait until what was sent has arrived, or never will."""
        wait(self.on_its_way, timeout=60)
        self.on_its_way = []

    def _post(self, kind: str, facts: dict[str, Any], files: Files) -> None:
        self.settle()
        self.on_its_way = [self.desk.post.remote(self._text(kind, facts), files).future()]

    def _text(self, kind: str, facts: dict[str, Any]) -> str:
        return json.dumps({"job": self.job, "attempt": self.attempt, "kind": kind, "facts": facts})


def task(desk: Any, job: int, attempt: int, text: str) -> Letter:
    """What a Ray worker does. It runs in its process's main thread, so that `ray.cancel` stops it as Ctrl-C would."""
    line = DeskLine(desk, job, attempt)
    outcome, files = do_away(Order.from_text(text), line)
    line.settle()
    return outcome.text(), files


# --- the driver ---


@dataclass
class Standing:
    """Where a job stands."""

    job: Job
    home: Home
    attempt: int = 0
    losses: int = 0
    said_busy: bool = False
    tokens: tuple[str, str] = ("", "")


@dataclass
class Shift:
    """One set of jobs, from first to last event."""

    ray: Any
    how: RayExecutor
    jobs: Sequence[Job]
    standings: list[Standing] = field(default_factory=list)
    under_way: dict[Any, int] = field(default_factory=dict)  # Ray's reference → job
    later: list[tuple[float, int]] = field(default_factory=list)  # when, job
    news: list[Event] = field(default_factory=list)  # to be passed on
    stopping: bool = False

    def events(self) -> Iterator[Event]:
        with self._tokens() as tokens:
            self._open_desk()
            try:
                yield from self._begin(tokens)
                while self.under_way or self.later:
                    yield from self._stop() if self.how.stopping else self._step()
            finally:
                try:
                    if not self.stopping:  # left in the middle, and nobody listens any more
                        for _ in self._stop():
                            pass
                finally:
                    for standing in self.standings:
                        standing.home.close()
                    self.ray.kill(self.desk)

    # beginning

    @contextmanager
    def _tokens(self) -> Iterator[dict[str, tuple[str, str]]]:
        """A file in each store, by which a worker knows whether it sees that store."""
        tokens = {}
        try:
            for out in {job.out for job in self.jobs}:
                secret = secrets.token_hex(16)
                path = Path(out).expanduser().absolute() / ".locks" / f"driver-{secret[:8]}"
                if self.how.shared is None:
                    write(path, secret.encode())
                tokens[out] = (str(path), secret)
            yield tokens
        finally:
            for token, _ in tokens.values():
                with suppress(OSError):
                    Path(token).unlink(missing_ok=True)

    def _open_desk(self) -> None:
        """On the driver's own node, so that it lives as long as the driver."""
        affinity = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        here = affinity(self.ray.get_runtime_context().get_node_id(), soft=False)
        makes = self.ray.remote(Desk).options(
            num_cpus=0, max_concurrency=1000, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here
        )
        self.desk = makes.remote()
        self.mail = self.desk.collect.remote()

    def _begin(self, tokens: dict[str, tuple[str, str]]) -> Iterator[Event]:
        for number, job in enumerate(self.jobs):
            home = Home(job, partial(self._note, number))
            self.standings.append(Standing(job, home, tokens=tokens[job.out]))
        if (text := self._too_small()) is not None:
            yield Event(0, "warning", {"text": text})
        for number in range(len(self.jobs)):
            self._submit(number)

    def _note(self, number: int, kind: Kind, facts: dict[str, Any]) -> None:
        self.news.append(Event(number, kind, facts))

    def _too_small(self) -> str | None:
        """What there is to say if no node has room for a run; a cluster may grow, one's own Ray does not."""
        wanted = {name: max(self.how.needs(job)[name] for job in self.jobs) for name in ("num_cpus", "num_gpus")}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if any(n.get("CPU", 0) >= wanted["num_cpus"] and n.get("GPU", 0) >= wanted["num_gpus"] for n in nodes):
            return None
        need = f"{wanted['num_cpus']:g} CPUs and {wanted['num_gpus']:g} GPUs"
        if self.how.address is None:
            raise WrongValue(f"a run needs {need}, which this machine does not have; ask for less (--cpus, --gpus)")
        return f"a run needs {need}, which no node of this cluster has now; waiting for one that has"

    def _submit(self, number: int) -> None:
        standing = self.standings[number]
        standing.attempt += 1
        needs = self.how.needs(standing.job)
        job = standing.job
        if needs["num_gpus"] and job.device.startswith("cuda"):
            job = replace(job, device="cuda")  # Ray shows a worker its own GPU only, as the first
        token, secret = standing.tokens
        wanted = order(job, threads=self.how.threads, seen=self.how.shared, token=token, secret=secret)
        name = f"{job.spec.method}-{job.spec.benchmark}-{job.spec.seed}"
        remote = self.ray.remote(task).options(max_retries=0, name=name, **needs)
        self.under_way[remote.remote(self.desk, number, standing.attempt, wanted.text())] = number

    # going on

    def _step(self) -> Iterator[Event]:
        """Wait a moment for news, and pass them on."""
        now = time.monotonic()
        for when, number in [due for due in self.later if due[0] <= now]:
            self.later.remove((when, number))
            self._submit(number)
        ready, _ = self.ray.wait([self.mail, *self.under_way], num_returns=1, timeout=BEAT)
        if self.mail in ready:
            yield from self._read()
        for ref in ready:
            if ref in self.under_way:
                # What was told before the end comes before it.
                with suppress(self.ray.exceptions.RayError):
                    self.ray.get(self.desk.nudge.remote(), timeout=60)
                yield from self._read()
                yield from self._settle(ref)

    def _read(self) -> Iterator[Event]:
        try:
            letters = self.ray.get(self.mail, timeout=60)
        except self.ray.exceptions.RayError:  # lost with the desk, which is made anew
            letters = []
        self.mail = self.desk.collect.remote()
        for text, files in letters:
            said = json.loads(text)
            number, kind, facts = said["job"], said["kind"], said["facts"]
            if said["attempt"] != self.standings[number].attempt:
                continue  # from a worker that was given up
            if kind == "fetch":
                self._answer(number, facts["where"])
            elif kind == "kept":
                self._keep(number, files)
            else:
                self._note(number, kind, facts)
            yield from self._news()

    def _news(self) -> Iterator[Event]:
        news, self.news = self.news, []
        yield from news

    def _answer(self, number: int, where: str) -> None:
        """Tell a worker what the store has of its run."""
        standing = self.standings[number]
        files: Files = {}
        said = {}
        try:
            files = standing.home.fetch(where)
        except RunLocked as error:
            said = {"busy": str(error)}
        except PerdureError as error:
            said = {"error": str(error)}
        self.desk.answer.remote(f"{number}/{standing.attempt}", json.dumps(said), files)

    def _keep(self, number: int, files: Files) -> None:
        try:
            self.standings[number].home.keep(files)
        except PerdureError as error:
            self._note(number, "warning", {"text": f"a checkpoint was not kept: {error}"})

    # ending

    def _settle(self, ref: Any) -> Iterator[Event]:
        """A task has ended, in whatever way."""
        number = self.under_way.pop(ref)
        wrong = self.ray.exceptions
        try:
            text, files = self.ray.get(ref)
        except wrong.TaskCancelledError:
            yield self._end(number, "stopped", {"error": "stopped before it began"})
        except wrong.RayTaskError as error:
            kind: Kind = "stopped" if self.stopping else "failed"  # interrupted before it could say so, most likely
            yield self._end(number, kind, {"error": f"{_cause(error)}; is perdure installed on every node?"})
        except wrong.LocalRayletDiedError:  # where another try would be no better
            yield self._end(
                number, "failed", {"error": "Ray on this machine died; start it again, and the same command goes on"}
            )
        except wrong.RayError as error:
            yield from self._lost(number, _why(wrong, error))
        else:
            yield from self._ended(number, Outcome.from_text(text), files)

    def _ended(self, number: int, outcome: Outcome, files: Files) -> Iterator[Event]:
        standing = self.standings[number]
        if outcome.kind == "done":
            yield self._done(number, outcome, files)
        elif outcome.kind == "stopped" and not self.stopping:  # its node is being shut down
            yield from self._lost(number, "its worker was told to stop")
        elif outcome.kind == "busy" and not self.stopping:
            standing.home.close()
            self.later.append((time.monotonic() + BUSY, number))
            if not standing.said_busy:
                standing.said_busy = True
                yield Event(number, "warning", {"text": f"{outcome.facts['error']}; waiting for it"})
        else:
            # A word to stop may come out of a library as an error of its own; a real one is there again next time.
            kind: Kind = "failed" if outcome.kind == "failed" and not self.stopping else "stopped"
            yield self._end(number, kind, outcome.facts)

    def _done(self, number: int, outcome: Outcome, files: Files) -> Event:
        standing = self.standings[number]
        path = Path(standing.job.out) / outcome.where
        try:
            if not outcome.shared:
                standing.home.finish(files)
            elif read_record(path.expanduser()) is None:
                raise PerdureError(f"{path}: done, but not to be seen from here yet; the same command looks again")
        except PerdureError as error:
            return self._end(number, "failed", {"error": str(error)})
        return self._end(number, "done", {"record": {**outcome.facts["record"], "path": str(path)}})

    def _lost(self, number: int, why: str) -> Iterator[Event]:
        standing = self.standings[number]
        standing.home.close()
        standing.losses += 1
        if self.stopping:
            yield self._end(number, "stopped", {"error": f"{why}; its last checkpoint, if it has one, is kept"})
        elif standing.losses > self.how.retries:
            times = f"{standing.losses} times" if standing.losses > 1 else "once"
            yield self._end(number, "failed", {"error": f"lost {times}, the last time because {why}; try it again"})
        else:
            yield Event(number, "lost", {"error": why})
            self._submit(number)

    def _end(self, number: int, kind: Kind, facts: dict[str, Any]) -> Event:
        self.standings[number].home.close()
        return Event(number, kind, facts)

    def _stop(self) -> Iterator[Event]:
        """Let every worker save and stop; end those that do not in time."""
        self.stopping = True
        for _, job in self.later:
            yield self._end(job, "stopped", {"error": "stopped before it began"})
        self.later = []
        for ref in self.under_way:
            self.ray.cancel(ref, force=False, recursive=False)
        until = time.monotonic() + GRACE
        while self.under_way and time.monotonic() < until:
            ready, _ = self.ray.wait([self.mail, *self.under_way], num_returns=1, timeout=BEAT)
            if ready:
                with suppress(self.ray.exceptions.RayError):
                    self.ray.get(self.desk.nudge.remote(), timeout=BEAT)
                yield from self._read()
            for ref in ready:
                if ref in self.under_way:
                    yield from self._settle(ref)
        for ref, job in list(self.under_way.items()):
            self.ray.cancel(ref, force=True, recursive=False)
            del self.under_way[ref]
            yield self._end(job, "stopped", {"error": "did not stop in time; its last checkpoint is kept"})


def _why(wrong: Any, error: Exception) -> str:
    if isinstance(error, wrong.OutOfMemoryError):
        return "its node ran out of memory"
    if isinstance(error, wrong.NodeDiedError):
        return "its node died"
    if isinstance(error, wrong.WorkerCrashedError):
        return "its worker process died"
    return f"Ray lost it ({_first_line(error)})"


def _cause(error: Any) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
