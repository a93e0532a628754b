"""One job in a process of its own: python -m perdure.lab.execute.worker

The job comes as a line of JSON on standard input, which stays open; what happens goes out as lines of JSON on standard
output. When standard input ends, whoever asked for the job is gone: it is saved and left.
"""

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

from perdure.errors import Interrupted


def main() -> None:
    events = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints must not stand between the events

    def tell(kind: str, facts: dict[str, Any]) -> None:
        line = json.dumps({"kind": kind, "facts": facts}).encode() + b"\n"
        with suppress(OSError):  # nobody listens any more; standard input ends then, too
            while line:
                line = line[os.write(events, line) :]

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        asked = json.loads(sys.stdin.buffer.readline())
        threading.Thread(target=leave_with_parent, daemon=True).start()

        import torch

        from perdure.lab.execute.job import Job, work

        torch.set_num_threads(asked["threads"])
        work(Job.from_plain(asked["job"]), tell)
    except Interrupted as error:
        tell("stopped", {"error": str(error)})


def stop(number: int, _frame: FrameType | None) -> None:
    """Told to stop while there is nothing to save; while there is, `lab.checkpoint` takes the signal."""
    raise Interrupted("stopped while nothing had to be saved; the same command goes on", number)


def leave_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
