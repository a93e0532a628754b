"""One job done away from home: by a worker on a machine that may or may not see the driver's store.

Where the worker sees the store, it works in it. Where it does not, it works in a folder of its own, having fetched
what the store has of the run (a checkpoint to go on from), and sends home every new checkpoint and in the end the
files of the finished run. So the store looks the same in both cases, and another worker can go on with a lost run.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import torch

import perdure
from perdure.errors import CorruptFile, Interrupted, PerdureError, RunLocked
from perdure.lab.build import open_stream
from perdure.lab.checkpoint import discard, latest, prune
from perdure.lab.execute.job import Job, Measurer, Tell, Teller
from perdure.lab.run import finished
from perdure.lab.store import lock_run, read_record, run_directory, write
from perdure.methods.method import Method
from perdure.train.callbacks import Callback, Callbacks, StepContext
from perdure.train.state import Learned

Files = dict[str, bytes]  # name below the run's directory → content
LOOK = 0.25  # seconds between two looks for a new checkpoint


class Line(Protocol):
    """What a worker can say to the driver, and ask of it."""

    def tell(self, kind: str, facts: dict[str, Any]) -> None: ...

    def fetch(self, where: str) -> Files:
        """What the store has of the run in this directory, which is held for us from now on; raises RunLocked."""
        ...

    def send(self, files: Files) -> None:
        """Files to keep, should this worker be lost."""
        ...


# --- what is sent ---


@dataclass(frozen=True)
class Order:
    """A job and the circumstances it was ordered in; plain data."""

    job: dict[str, Any]
    folder: str  # in which the driver runs: what is relative is meant from there
    data: str | None  # the driver's folder of image files, if it named one
    seen: bool | None  # whether the worker sees the store; None: look for the token
    token: str  # a file in the store, and
    secret: str  # what is in it
    threads: int
    perdure: str
    torch: str

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Order":
        return cls(**json.loads(text))


def order(job: Job, *, threads: int, seen: bool | None, token: str = "", secret: str = "") -> Order:
    named = job.root or os.environ.get("PERDURE_DATA")
    return Order(
        job=replace(job, out=str(Path(job.out).expanduser().absolute())).plain(),
        folder=str(Path.cwd()),
        data=named and str(Path(named).expanduser().absolute()),
        seen=seen,
        token=token,
        secret=secret,
        threads=threads,
        perdure=perdure.__version__,
        torch=torch.__version__,
    )


@dataclass(frozen=True)
class Outcome:
    """How a job ended at the worker: done, failed, stopped, or busy when another process is at work on the run."""

    kind: str
    facts: dict[str, Any]
    where: str = ""  # the run's directory below the store
    shared: bool = True

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Outcome":
        return cls(**json.loads(text))


# --- the worker's end ---


def do_away(order: Order, line: Line) -> tuple[Outcome, Files]:
    """Do a job here. Whatever goes wrong with it is its outcome; what is not in the store goes home as files."""
    job = Job.from_plain(order.job)
    shared = sees_store(order) if order.seen is None else order.seen
    line.tell("started", {"host": socket.gethostname(), "process": os.getpid(), "shared": shared})
    try:
        torch.set_num_threads(order.threads)
        _same_version(order, line)
        with _inside(order.folder):
            job = replace(job, root=order.data if order.data and Path(order.data).exists() else None)
            record, files = (job.run(Teller(line.tell), Measurer(line.tell)), {}) if shared else _apart(job, line)
    except RunLocked as error:
        return Outcome("busy", {"error": str(error)}), {}
    except PerdureError as error:
        return Outcome("stopped" if isinstance(error, Interrupted) else "failed", {"error": str(error)}), {}
    except KeyboardInterrupt:  # before or after training, which saves by itself
        return Outcome("stopped", {"error": "stopped; its last checkpoint, if it has one, is kept"}), {}
    except Exception as error:  # a fault of ours must not take the other runs with it
        return Outcome("failed", {"error": f"{type(error).__name__}: {error}"}), {}
    where = "/".join(Path(record.pop("path")).parts[-3:])
    return Outcome("done", {"record": record}, where, shared), files


def sees_store(order: Order) -> bool:
    """Whether the store is the driver's own, seen from here, and may be written to."""
    try:
        return Path(order.token).read_text("utf-8") == order.secret and os.access(order.job["out"], os.W_OK)
    except OSError:
        return False


def _same_version(order: Order, line: Line) -> None:
    host = socket.gethostname()
    if order.perdure != perdure.__version__:
        raise PerdureError(
            f"{host} has perdure {perdure.__version__}, the driver has {order.perdure}; install the same on both"
        )
    if order.torch != torch.__version__:
        text = f"{host} has torch {torch.__version__}, the driver has {order.torch}: last digits may differ"
        line.tell("warning", {"text": text})


@contextmanager
def _inside(folder: str) -> Iterator[None]:
    """Work in the driver's folder, where this machine has it, so that `folder:photos` means the same here."""
    before = Path.cwd()
    if Path(folder).is_dir():
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _apart(job: Job, line: Line) -> tuple[dict[str, Any], Files]:
    """The run in a folder of its own, and what of it is new to the store."""
    stream = open_stream(job.spec, job.data_root)
    digest = job.spec.digest(stream.fingerprint)
    with TemporaryDirectory(prefix="perdure-") as own:
        path = run_directory(Path(own), job.spec.benchmark_dir, job.spec.method, digest)
        for name, content in line.fetch(path.relative_to(own).as_posix()).items():
            write(path / name, content)
        mirror = Mirror(path, line)
        try:
            record = replace(job, out=own).run(Callbacks([Teller(line.tell), mirror]), Measurer(line.tell), stream)
        finally:
            mirror.send()
        files = {name: (path / name).read_bytes() for name in mirror.news()}
    return record, files


class Mirror(Callback):
    """Sends each new checkpoint home, with whatever else is new then."""

    def __init__(self, path: Path, line: Line) -> None:
        self.path, self.line = path, line
        self.known = whole_files(path)
        self.looked_at = time.monotonic()

    def on_step(self, now: StepContext) -> None:  # noqa: ARG002
        if time.monotonic() - self.looked_at >= LOOK:
            self.send()

    def on_task_end(self, method: Method, learned: Learned) -> None:  # noqa: ARG002
        self.looked_at = 0.0  # the checkpoint that is about to be written is worth a look at once

    def send(self) -> None:
        self.looked_at = time.monotonic()
        news = self.news()
        if any(name.startswith("checkpoint/") for name in news):
            self.line.send({name: (self.path / name).read_bytes() for name in news})
            self.known |= news

    def news(self) -> dict[str, tuple[int, int]]:
        return dict(whole_files(self.path).items() - self.known.items())


def whole_files(path: Path) -> dict[str, tuple[int, int]]:
    """The files of a run as they stand, by name, with size and time: its newest checkpoint, and all but checkpoints.

    Not what is half-written, set aside as damaged, or an older checkpoint.
    """
    found = {
        file.relative_to(path).as_posix(): (file.stat().st_size, file.stat().st_mtime_ns)
        for file in path.rglob("*")
        if file.is_file() and not file.name.startswith(".") and ".damaged-" not in file.name
    }
    checkpoints = sorted(name for name in found if name.startswith("checkpoint/"))
    return {name: stamp for name, stamp in found.items() if name not in checkpoints[:-1]}


# --- the driver's end ---


class Home:
    """The store, as a worker far away sees it for one run. Holds the run until it is closed."""

    def __init__(self, job: Job, tell: Tell) -> None:
        self.job, self.tell = job, tell
        self.path: Path | None = None
        self.held = ExitStack()

    def fetch(self, where: str) -> Files:
        """What there is to go on from; what is damaged is named and set aside, as if the run were done here."""
        self.close()
        out = Path(self.job.out).expanduser()
        path = out.joinpath(*_parts(where))
        self.held.enter_context(lock_run(out, path))
        self.path = path
        if finished(path, Teller(self.tell)) is None:
            _, damaged = latest(path / "checkpoint", self.job.spec.plan, path.name)
            for text in damaged:
                self.tell("warning", {"text": text})
        return {name: (path / name).read_bytes() for name in whole_files(path)}

    def keep(self, files: Files) -> None:
        """Write files in their place, the record last, so that a run with a record is whole."""
        assert self.path is not None
        for name in sorted(files, key=lambda name: name == "record.json"):
            write(self.path.joinpath(*_parts(name)), files[name])
        prune(self.path / "checkpoint")

    def finish(self, files: Files) -> None:
        """Write a finished run, and make sure of it."""
        assert self.path is not None
        self.keep(files)
        if read_record(self.path, thorough=True) is None:
            raise CorruptFile(f"{self.path}: its worker sent no record; run it again", self.path)
        discard(self.path / "checkpoint")

    def close(self) -> None:
        self.held.close()


def _parts(name: str) -> tuple[str, ...]:
    """A name below a directory, and nothing that leads out of it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise PerdureError(f"{name!r}: not a name of a file of a run; is the worker's perdure the same as here?")
    return path.parts
