"""One job in a process of its own: python -P -m perdure.lab.execute.worker

The job comes as a line of JSON on standard input, which stays open; events go out as lines of JSON on standard output.
When standard input ends, whoever asked for the job is gone: the process saves the run and leaves.
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
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not mix with the events

    def send(kind: str, facts: dict[str, Any]) -> None:
        line = json.dumps({"kind": kind, "facts": facts}).encode() + b"\n"
        with suppress(OSError):  # nobody reads any more; standard input ends then, too
            while line:
                line = line[os.write(events, line) :]

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, interrupt)
        request = json.loads(sys.stdin.buffer.readline())
        threading.Thread(target=exit_with_parent, daemon=True).start()

        import torch

        from perdure.lab.execute.job import Job, run_job

        torch.set_num_threads(request["threads"])
        run_job(Job.from_plain(request["job"]), send)
    except Interrupted as error:
        send("stopped", {"error": str(error)})


def interrupt(number: int, _frame: FrameType | None) -> None:
    """Handles a signal while there is nothing to save; during training, `lab.checkpoint` does."""
    raise Interrupted("interrupted; completed work is saved, run the same command to resume", number)


def exit_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
