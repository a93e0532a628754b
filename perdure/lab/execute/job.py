"""A run as a job for another process or machine, and the events that come back while it is computed."""

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from perdure import registry
from perdure.errors import Interrupted, PerdureError, RunLocked
from perdure.lab.probe_run import RunProgress
from perdure.lab.run import run_spec
from perdure.lab.spec import RunSpec
from perdure.probes.probe import Cost
from perdure.train.callbacks import Callback
from perdure.train.plan import Plan
from perdure.train.state import Epoch
from perdure.types import Lesson

LOCK_WAIT = 20.0  # seconds: a process that an earlier study left behind may still be saving the run


@dataclass(frozen=True)
class Job:
    """A run, and what its worker needs to know to compute it."""

    spec: RunSpec
    out: str  # the store
    root: str | None = None  # where image files are
    device: str = "cpu"
    probes: tuple[str, ...] = ()
    every: float = 60.0  # seconds between checkpoints
    trackers: tuple[str, ...] = ()

    def run(self, callback: Callback, progress: RunProgress) -> dict[str, Any]:
        """Compute it in this process."""
        return run_spec(
            self.spec,
            out=Path(self.out),
            root=None if self.root is None else Path(self.root),
            device=self.device,
            threads=torch.get_num_threads(),  # as its executor has set it
            probes=self.probes,
            every=self.every,
            trackers=self.trackers,
            callback=callback,
            progress=progress,
        )

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "spec": self.spec.plain()}

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> "Job":
        spec = RunSpec.from_plain(content["spec"])
        for code in spec.code.values():  # whoever asks for the job has named these files
            registry.allow(code["where"].rpartition(":")[0])
        lists = {name: tuple(content[name]) for name in ("probes", "trackers")}
        return cls(**{**content, "spec": spec, **lists})


Kind = Literal["started", "epoch", "probe", "warning", "done", "failed", "stopped", "lost"]
FINAL: tuple[Kind, ...] = ("done", "failed", "stopped")


@dataclass(frozen=True)
class Event:
    """Something that happened to a job.

    Facts by kind: started has host and process; epoch has lesson, epoch, epochs, loss, accuracy, seconds; probe, which
    begins, has name and the seconds it is expected to take; warning has text; done has record; failed, stopped and lost
    have error, one line. A lost job, whose worker is gone, will be tried again.
    """

    job: int  # its index among the jobs
    kind: Kind
    facts: dict[str, Any]


@runtime_checkable
class Executor(Protocol):
    """Runs jobs, several at a time. Every job ends with one of done, failed, stopped."""

    def do(self, jobs: Sequence[Job]) -> Iterator[Event]: ...

    def stop(self) -> None:
        """Let running jobs save and stop, and start no others; `do` then ends soon."""


@dataclass
class JobStates:
    """Which jobs have ended, how often each was lost, and whether all are being stopped."""

    retries: int
    stopping: bool = False
    ended: set[int] = field(default_factory=set)
    losses: Counter[int] = field(default_factory=Counter)

    def received(self, event: Event) -> list[Event]:
        """What to pass on of an event that a worker sent."""
        if event.kind == "stopped" and not self.stopping:
            return []  # by somebody else: its worker ends without a result, so it is lost
        if event.kind == "failed" and self.stopping:
            event = replace(event, kind="stopped")  # libraries turn an interrupt into errors of their own
        if event.kind in FINAL:
            self.ended.add(event.job)
        return [event]

    def lost(self, job: int, error: str, retry: bool = True) -> Event:
        """The event for a job whose worker ended without a result; it is to be retried if that is "lost"."""
        self.losses[job] += 1
        if self.stopping:
            return Event(job, "stopped", {"error": error})
        if retry and self.losses[job] <= self.retries:
            return Event(job, "lost", {"error": error})
        return Event(job, "failed", {"error": f"{error}; tried {self.losses[job]} times" if retry else error})


Send = Callable[[Kind, dict[str, Any]], None]


class EpochEvents(Callback):
    """Sends the progress of training as events."""

    def __init__(self, send: Send) -> None:
        self.send, self.epochs = send, 1

    def on_warning(self, text: str) -> None:
        self.send("warning", {"text": text})

    def on_task_start(self, lesson: Lesson, plan: Plan) -> None:  # noqa: ARG002
        self.epochs = plan.epochs

    def on_epoch_end(self, epoch: Epoch) -> None:
        facts = {"lesson": epoch.lesson, "epoch": epoch.epoch, "epochs": self.epochs, "seconds": epoch.seconds}
        self.send("epoch", {**facts, "loss": epoch.valid.loss, "accuracy": epoch.valid.accuracy})


class ProbeEvents(RunProgress):
    """Sends the progress of probes as events."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self.send = send

    def begin(self, name: str, work: Cost, seconds: float) -> None:  # noqa: ARG002
        self.send("probe", {"name": name, "seconds": seconds})


def run_job(job: Job, send: Send, lock_wait: float = LOCK_WAIT) -> None:
    """Compute a job in this process; how it ended is the last event, so that no error takes other jobs with it."""
    send("started", {"host": socket.gethostname(), "process": os.getpid()})
    try:
        record = _run_when_unlocked(job, send, lock_wait)
    except Interrupted as error:
        send("stopped", {"error": str(error)})
    except PerdureError as error:
        send("failed", {"error": str(error)})
    except Exception as error:
        send("failed", {"error": registry.in_a_line(error)})
    else:
        send("done", {"record": record})


def _run_when_unlocked(job: Job, send: Send, lock_wait: float) -> dict[str, Any]:
    """Wait for a process that still works on the run, and say so."""
    deadline, waiting = time.monotonic() + lock_wait, False
    while True:
        try:
            return job.run(EpochEvents(send), ProbeEvents(send))
        except RunLocked as error:
            if time.monotonic() > deadline:
                raise
            if not waiting:
                waiting = True
                send("warning", {"text": f"{error}; waiting for it"})
            time.sleep(0.5)
