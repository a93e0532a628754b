"""Runs in processes of this machine, several at a time.

Each run has a process of its own, so that one that is killed takes no other with it; it is tried again from its last
checkpoint. Every process computes with the same number of threads however many there are, for sums taken in another
order differ in their last digits: a study gives the same records with one job at a time and with eight.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Protocol, runtime_checkable

from perdure.errors import PerdureError, WrongValue
from perdure.lab.execute.job import Event, Executor, Job

RETRIES = 3  # of a job whose process is lost
PATIENCE = 0.2  # seconds until a wish to stop is noticed


@runtime_checkable
class Stoppable(Executor, Protocol):
    def stop(self) -> None:
        """Let the jobs at hand save and stop, begin no others; `do` then ends soon."""


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """The GPUs there are for us, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


@dataclass
class Worker:
    """A process at work on a job."""

    job: int
    process: subprocess.Popen[bytes]
    place: dict[str, str]
    said: IO[bytes]  # what it wrote on standard error
    unread: bytes = b""
    ended: bool = False  # whether it told how the job ended
    told_to_stop: bool = False

    def listen(self) -> list[dict[str, Any]] | None:
        """What it has told since; None when it will tell no more."""
        assert self.process.stdout is not None
        heard = os.read(self.process.stdout.fileno(), 1 << 16)
        *lines, self.unread = (self.unread + heard).split(b"\n")
        return list(filter(None, map(_told, lines))) if heard else None

    def stop(self) -> None:
        if not self.told_to_stop:
            self.told_to_stop = True
            self.process.terminate()

    def close(self) -> None:
        """Hear no more of it; it takes the end of its input for a sign to leave."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):  # unsent bytes for a process that is gone
                    pipe.close()

    def wait(self) -> None:
        self.process.wait()
        self.said.close()

    def last_words(self) -> str:
        """Why it is gone, in a line."""
        code = self.process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            why = "; perhaps there was not enough memory: fewer --jobs need less" if code == -signal.SIGKILL else ""
            return f"its process was ended by {name}{why}"
        self.said.seek(max(0, self.said.seek(0, os.SEEK_END) - 4096))
        lines = self.said.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "and said nothing")
        return f"its process ended with code {code}: {last}"


class LocalExecutor:
    """So many processes at a time, each with so many threads; with GPUs, each job has one for itself."""

    def __init__(self, jobs: int = 1, threads: int = 1, gpus: Sequence[str] = (), retries: int = RETRIES) -> None:
        if jobs < 1 or threads < 1:
            raise WrongValue(f"jobs={jobs} with threads={threads} is not allowed; use 1 or more of each")
        self.threads, self.retries, self.stopping = threads, retries, False
        self.places: list[dict[str, str]] = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus[:jobs]] or [{}] * jobs
        self.running: dict[int, Worker] = {}  # by the descriptor on which it is heard

    def stop(self) -> None:
        self.stopping = True

    def do(self, jobs: Sequence[Job]) -> Iterator[Event]:
        waiting, losses = deque(range(len(jobs))), Counter[int]()
        free = list(reversed(self.places))
        with selectors.DefaultSelector() as ears:
            try:
                while waiting or self.running:
                    if self.stopping:
                        for worker in self.running.values():
                            worker.stop()
                        while waiting:
                            yield Event(waiting.popleft(), "stopped", {"error": "not begun"})
                    while waiting and free:
                        self._start(waiting[0], jobs[waiting[0]], free.pop(), ears)
                        waiting.popleft()
                    for key, _ in ears.select(PATIENCE):
                        worker = self.running[key.fd]
                        told = worker.listen()
                        if told is not None:
                            yield from self._events(worker, told)
                            continue
                        ears.unregister(key.fd)
                        del self.running[key.fd]
                        free.append(worker.place)
                        last = None if worker.ended else self._gone(worker, losses)
                        worker.close()
                        worker.wait()
                        if last is not None:
                            if last.kind == "lost":
                                waiting.appendleft(worker.job)
                            yield last
            finally:
                self._leave()

    def _start(self, number: int, job: Job, place: dict[str, str], ears: selectors.BaseSelector) -> None:
        try:
            said = TemporaryFile()  # noqa: SIM115 — closed with its worker
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "perdure.lab.execute.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env={**os.environ, **_environment(self.threads), **place},
                start_new_session=True,  # Ctrl-C reaches this process alone, which then tells the others
            )
        except OSError as error:
            raise PerdureError(f"cannot start another process ({error.strerror}); use fewer --jobs") from None
        assert process.stdin is not None
        assert process.stdout is not None
        self.running[process.stdout.fileno()] = Worker(number, process, place, said)
        ears.register(process.stdout.fileno(), selectors.EVENT_READ)
        with suppress(OSError):  # gone already, which is noticed when nothing is heard of it
            process.stdin.write(json.dumps({"job": job.plain(), "threads": self.threads}).encode() + b"\n")
            process.stdin.flush()

    def _events(self, worker: Worker, told: Sequence[dict[str, Any]]) -> Iterator[Event]:
        for one in told:
            if one["kind"] == "stopped" and not self.stopping:  # by somebody else: it is lost to us
                continue
            worker.ended = worker.ended or one["kind"] in ("done", "failed", "stopped")
            yield Event(worker.job, one["kind"], one["facts"])

    def _gone(self, worker: Worker, losses: Counter[int]) -> Event:
        """A process that ended without telling how its job did."""
        why = worker.last_words()
        if self.stopping:
            return Event(worker.job, "stopped", {"error": why})
        losses[worker.job] += 1
        if losses[worker.job] > self.retries:
            return Event(worker.job, "failed", {"error": f"{why}; tried {losses[worker.job]} times"})
        return Event(worker.job, "lost", {"error": why})

    def _leave(self) -> None:
        """No process outlives this one; each saves what it has before it goes."""
        for worker in self.running.values():
            worker.stop()
            worker.close()  # it must not wait for being heard
        for worker in self.running.values():
            worker.wait()
        self.running.clear()


def _told(line: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
    except ValueError:  # cut off where it was interrupted
        return None
    return told if isinstance(told, dict) else None


def _environment(threads: int) -> dict[str, str]:
    """The same packages as here, wherever this was started from, and so many threads."""
    here = [str(Path(entry).resolve()) for entry in sys.path]
    return {
        "PYTHONPATH": os.pathsep.join(here),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
    }
