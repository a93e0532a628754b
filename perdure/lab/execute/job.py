"""One run as a piece of work that can be sent to another process or machine, and what is told of it meanwhile."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from perdure.errors import Interrupted, PerdureError, RunLocked
from perdure.lab.probe_run import Gauge
from perdure.lab.run import run
from perdure.lab.spec import RunSpec
from perdure.probes.probe import Cost
from perdure.train.callbacks import Callback
from perdure.train.plan import Plan
from perdure.train.state import Epoch
from perdure.types import Lesson, Stream

PATIENCE = 20.0  # seconds to wait for a run that another process holds


@dataclass(frozen=True)
class Job:
    """A run and where it is to be done."""

    spec: RunSpec
    out: str  # the store
    root: str | None = None  # where image files are
    device: str = "cpu"
    probes: tuple[str, ...] = ()
    every: float = 60.0  # seconds between checkpoints
    trackers: tuple[str, ...] = ()  # who else is told how it goes

    def run(self, callback: Callback, gauge: Gauge, stream: Stream | None = None) -> dict[str, Any]:
        """Do it here and now."""
        return run(
            self.spec,
            out=Path(self.out),
            root=self.data_root,
            stream=stream,
            device=self.device,
            probes=self.probes,
            every=self.every,
            trackers=self.trackers,
            callback=callback,
            gauge=gauge,
        )

    @property
    def data_root(self) -> Path | None:
        return None if self.root is None else Path(self.root)

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "spec": self.spec.plain()}

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> "Job":
        spec = RunSpec.from_plain(content["spec"])
        lists = {name: tuple(content[name]) for name in ("probes", "trackers")}
        return cls(**{**content, "spec": spec, **lists})


Kind = Literal["started", "epoch", "probe", "warning", "done", "failed", "stopped", "lost"]


@dataclass(frozen=True)
class Event:
    """Something that happened to a job.

    Facts by kind: epoch has lesson, epoch, epochs, loss, accuracy, seconds; probe, which begins, has name and the
    seconds it is expected to take; caution has text; done has record; failed, stopped and lost have error, one line. A
    lost job, whose worker is gone, will be tried again.
    """

    job: int  # its place among the jobs
    kind: Kind
    facts: dict[str, Any]


class Executor(Protocol):
    """Does jobs, several at a time, wherever it does them. Every job ends with one of done, failed, stopped."""

    def do(self, jobs: Sequence[Job]) -> Iterator[Event]: ...


Tell = Callable[[Kind, dict[str, Any]], None]


class Teller(Callback):
    """Passes on what is seen of a run."""

    def __init__(self, tell: Tell) -> None:
        self.tell, self.epochs = tell, 1

    def on_warning(self, text: str) -> None:
        self.tell("warning", {"text": text})

    def on_task_start(self, lesson: Lesson, plan: Plan) -> None:  # noqa: ARG002
        self.epochs = plan.epochs

    def on_epoch_end(self, epoch: Epoch) -> None:
        valid = {"loss": epoch.valid.loss, "accuracy": epoch.valid.accuracy}
        place = {"lesson": epoch.lesson, "epoch": epoch.epoch, "epochs": self.epochs, "seconds": epoch.seconds}
        self.tell("epoch", {**place, **valid})


class Measurer(Gauge):
    """Passes on what is measured of it."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self.tell = tell

    def begin(self, name: str, work: Cost, seconds: float) -> None:  # noqa: ARG002
        self.tell("probe", {"name": name, "seconds": seconds})


def work(job: Job, tell: Tell) -> None:
    """Do one job here and now. Errors that a user can mend are told, not raised; others are told with their kind."""
    tell("started", {})
    try:
        record = _patiently(lambda: job.run(Teller(tell), Measurer(tell)))
    except PerdureError as error:
        tell("stopped" if isinstance(error, Interrupted) else "failed", {"error": str(error)})
    except Exception as error:  # a fault of ours must not take the other runs with it
        tell("failed", {"error": f"{type(error).__name__}: {error}"})
    else:
        tell("done", {"record": record})


def _patiently(start: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Wait a little for a process that still holds the run: one that an earlier study left may be saving it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return start()
        except RunLocked:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
