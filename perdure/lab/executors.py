"""Which executor does the runs of a study or a search, and how it is interrupted."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from perdure.errors import Interrupted, WrongValue
from perdure.lab.build import resolve_device
from perdure.lab.execute.job import Executor
from perdure.lab.execute.local import LocalExecutor, visible_gpus
from perdure.lab.threads import check_threads


def make_executor(
    on: str = "local",
    *,
    jobs: int | None = None,
    threads: int = 1,
    cpus: float | None = None,
    gpus: float | None = None,
    device: str = "cpu",
) -> tuple[Executor, int | None]:
    """The executor, and how many runs it does at a time where that is known; nothing is started yet.

    `on` is local, ray (one of our own on this machine), auto (the cluster this machine belongs to) or ray://HOST:PORT.
    """
    check_threads(threads)
    if on != "local":
        if on not in ("ray", "auto") and not on.startswith("ray://"):
            raise WrongValue(f"--on {on} is not allowed; use local, ray, auto or ray://HOST:PORT")
        if jobs is not None:
            raise WrongValue("--jobs is for --on local; on Ray, --cpus and --gpus of a run say how many fit")
        from perdure.lab.execute.ray import RayExecutor

        cpus = threads if cpus is None else cpus
        gpus = float(device.startswith("cuda")) if gpus is None else gpus
        return RayExecutor(address=None if on == "ray" else on, cpus=cpus, gpus=gpus, threads=threads), None
    if cpus is not None or gpus is not None:
        raise WrongValue("--cpus and --gpus are for --on ray; here, --jobs and --threads say how much is used")
    here = visible_gpus() if device == "cuda" else []
    if here:
        jobs = min(jobs or len(here), len(here))
    else:
        resolve_device(device)  # an error if there is none
        jobs = jobs or 1 if device == "cpu" else 1  # several would share one GPU
    return LocalExecutor(jobs, threads, here), jobs


@contextmanager
def stop_on_signal(executor: Executor) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM let every run save and stop; a second one does not wait for them. Yields the signals."""
    caught: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        if caught:
            raise Interrupted("interrupted; running jobs save their work, run the same command to resume", number)
        caught.append(number)
        executor.stop()

    before: dict[int, Any] = {}
    with suppress(ValueError):  # not in the main thread, where alone signals arrive
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, stop)
    try:
        yield caught
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
