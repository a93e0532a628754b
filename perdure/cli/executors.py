"""Where the runs of a study or a search are done, and how they are stopped."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from perdure.errors import Interrupted, WrongValue

if TYPE_CHECKING:
    from perdure.lab.execute.job import Executor


@dataclass(frozen=True)
class Places:
    """Where runs are done, and with what."""

    out: Path
    root: Path | None
    device: str
    on: str
    jobs: int | None
    threads: int
    cpus: float | None = None
    gpus: float | None = None
    trackers: tuple[str, ...] = ()


def executor_for(places: Places) -> "Executor":
    """Whoever does the runs there; a slip in the places is told before anything is computed."""
    if places.on != "local":
        return _on_ray(places)
    from perdure.lab.build import resolve_device
    from perdure.lab.execute.local import LocalExecutor, visible_gpus

    if places.cpus is not None or places.gpus is not None:
        raise WrongValue("--cpus and --gpus are for --on ray; here, --jobs and --threads say how much is used")
    if places.device != "cuda":
        resolve_device(places.device)
        # Callbacks jobs would fight for one GPU.
        jobs = places.jobs or 1 if places.device == "cpu" else 1
        return LocalExecutor(jobs, places.threads)
    gpus = visible_gpus()
    if not gpus:
        resolve_device(places.device)  # says that there is none
    return LocalExecutor(min(places.jobs or len(gpus), len(gpus)), places.threads, gpus)


def _on_ray(places: Places) -> "Executor":
    if places.on not in ("ray", "auto") and not places.on.startswith("ray://"):
        raise WrongValue(f"--on {places.on} is not allowed; use local, ray, auto or ray://HOST:PORT")
    if places.jobs is not None:
        raise WrongValue("--jobs is for --on local; on Ray, --cpus and --gpus of a run say how many there is room for")
    from perdure.lab.execute.ray import RayExecutor

    cpus = places.threads if places.cpus is None else places.cpus
    gpus = float(places.device.startswith("cuda")) if places.gpus is None else places.gpus
    address = None if places.on == "ray" else places.on
    return RayExecutor(address=address, cpus=cpus, gpus=gpus, threads=places.threads)


def at_a_time(executor: "Executor") -> int | None:
    """How many runs at a time, where that is known."""
    from perdure.lab.execute.local import LocalExecutor

    return executor.jobs if isinstance(executor, LocalExecutor) else None


@contextmanager
def stoppable(executor: "Executor") -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM let every run save and stop; a second time, they are left to do that by themselves."""
    caught: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        if caught:
            raise Interrupted("interrupted; running jobs save their work, run the same command to resume", number)
        caught.append(number)
        executor.stop()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
