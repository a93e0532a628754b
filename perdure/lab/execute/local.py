"""Jobs in processes of this machine, several at a time.

Each job has a process of its own, so that one that is killed takes no other with it; it is retried from its last
checkpoint. Every process computes with the same number of threads however many there are, because sums taken in another
order differ in their last digits: a study gives the same records with one job at a time and with eight.
"""

import json
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from tempfile import TemporaryFile

from perdure.errors import PerdureError, WrongValue
from perdure.lab.execute.job import Event, Job, JobStates
from perdure.processes import python, python_environment

POLL = 0.2  # seconds until a call of `stop` is noticed


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


class LocalExecutor:
    """Runs `jobs` processes at a time with `threads` threads each; where there are GPUs, each job has its own."""

    def __init__(self, jobs: int = 1, threads: int = 1, gpus: Sequence[str] = (), retries: int = 3) -> None:
        if jobs < 1 or threads < 1:
            raise WrongValue(f"jobs={jobs} with threads={threads} is not allowed; use 1 or more of each")
        self.gpus = list(gpus[:jobs])
        self.jobs, self.threads, self.retries = len(self.gpus) or jobs, threads, retries
        self.running: list[Process] = []
        self.stopping = False

    def stop(self) -> None:
        self.stopping = True

    def do(self, jobs: Sequence[Job]) -> Iterator[Event]:
        states, waiting = JobStates(self.retries), deque(range(len(jobs)))
        gpus: list[str | None] = [*reversed(self.gpus)] or [None] * self.jobs
        received: SimpleQueue[Received] = SimpleQueue()
        try:
            while waiting or self.running:
                states.stopping = self.stopping
                if states.stopping:
                    for process in self.running:
                        process.stop()
                    while waiting:
                        yield Event(waiting.popleft(), "stopped", {"error": "not started"})
                while waiting and gpus:
                    process = Process(waiting[0], gpus.pop(), received)
                    process.start(jobs[waiting.popleft()], self.threads)
                    self.running.append(process)
                try:
                    process, event = received.get(timeout=POLL)
                except Empty:
                    continue
                if event is not None:
                    yield from states.received(event)
                    continue
                self.running.remove(process)
                gpus.append(process.gpu)
                reason = process.close()
                if process.job not in states.ended:
                    event = states.lost(process.job, reason)
                    if event.kind == "lost":
                        waiting.appendleft(process.job)
                    yield event
        finally:  # no process outlives this one; each saves its run first
            for process in self.running:
                process.stop()
            while self.running:
                self.running.pop().close()


@dataclass(eq=False)
class Process:
    """A process that computes a job, and a thread that reads its events."""

    job: int
    gpu: str | None
    received: "SimpleQueue[Received]"
    stopping: bool = False

    def start(self, job: Job, threads: int) -> None:
        gpu = {} if self.gpu is None else {"CUDA_VISIBLE_DEVICES": self.gpu}
        try:
            self.stderr = TemporaryFile()  # noqa: SIM115 — `close` closes it
            self.process = subprocess.Popen(
                python("-m", "perdure.lab.execute.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.stderr,
                env={**python_environment(), **_thread_counts(threads), **gpu},
                start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the others
            )
        except OSError as error:
            raise PerdureError(f"cannot start another process ({error.strerror}); use fewer --jobs") from None
        assert self.process.stdin is not None
        with suppress(OSError):  # ended already; it will be found lost
            self.process.stdin.write(json.dumps({"job": job.plain(), "threads": threads}).encode() + b"\n")
            self.process.stdin.flush()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):  # a line that was cut off
                content = json.loads(line)
                self.received.put((self, Event(self.job, content["kind"], content["facts"])))
        self.received.put((self, None))

    def stop(self) -> None:
        if not self.stopping:
            self.stopping = True
            self.process.terminate()

    def close(self) -> str:
        """Wait for its end, and say in a line why it ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError):  # bytes that a killed process did not read
            self.process.stdin.close()
        code = self.process.wait()
        self.reader.join()
        self.process.stdout.close()
        with self.stderr as stderr:
            stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - 4096))
            lines = stderr.read().decode(errors="replace").split("\n")
        if code < 0:
            hint = "; perhaps there was not enough memory: fewer --jobs need less" if code == -signal.SIGKILL else ""
            return f"its process was ended by {signal.Signals(-code).name}{hint}"
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        return f"its process ended with code {code}: {last}"


Received = tuple[Process, Event | None]  # None: it will send no more


def _thread_counts(threads: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
