"""Every error that perdure raises on purpose. Each says what to do next.

PerdureError
├── UsageError          the request itself is wrong                       (exit code 2)
│   ├── UnknownName       no method, network, benchmark … of that name
│   └── WrongValue        a value that is not allowed
├── BadData               images or labels that cannot be learned from      (exit code 1)
│   └── MissingFile       a file that should be there is not
├── DownloadError            a file could not be had from the network          (exit code 1)
├── TooFewSamples         batch statistics need two samples                 (exit code 1)
├── Diverged              the loss is no longer a number                    (exit code 1)
├── CorruptFile               a record or a checkpoint that is not whole        (exit code 1)
├── RunLocked                  another process is at work on this run            (exit code 1)
└── Interrupted               by Ctrl-C or SIGTERM, with all work saved         (exit code 130 or 143)
"""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class PerdureError(Exception):
    """Something the user can mend; the message says how."""

    exit_code = 1


class UsageError(PerdureError):
    exit_code = 2


class UnknownName(UsageError):
    """A name that is not known; lists the near ones.

    >>> print(UnknownName("method", "rlc", ["gpm", "rcl"]))
    unknown method 'rlc'; did you mean rcl? (all: gpm, rcl)
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        everything = sorted(known)
        near = get_close_matches(name.lower(), everything, n=3, cutoff=0.5)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        more = f"; {hint}" if hint else ""
        super().__init__(f"unknown {kind} {name!r}{meant} (all: {', '.join(everything) or 'none'}{more})")


class WrongValue(UsageError):
    pass


class BadData(PerdureError):
    pass


class MissingFile(BadData):
    pass


class DownloadError(PerdureError):
    pass


class TooFewSamples(PerdureError):
    pass


class Diverged(PerdureError):
    pass


class CorruptFile(PerdureError):
    def __init__(self, message: str, file: Path) -> None:
        super().__init__(message)
        self.file = file


class RunLocked(PerdureError):
    pass


class Interrupted(PerdureError):
    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal
