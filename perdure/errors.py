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

import json
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit


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
        everything, name = sorted(set(known)), short(name)
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


def short(value: object, most: int = 80) -> str:
    """A wrong value as it stands in a message: on a line that can be read.

    >>> short("9" * 400, most=5), short(10**5000)
    ('99999…', 'a number of more digits than are printed')
    """
    try:
        text = str(value)
    except ValueError:
        return "a number of more digits than are printed"
    return text if len(text) <= most else f"{text[:most]}…"


def expanded(path: str | Path) -> Path:
    """A path with the folder of a user for ~ or ~name."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise WrongValue(f"{path}: there is no user of that name here; write the path without ~") from None


def install_hint(extra: str) -> str:
    """The command that installs what an extra needs: from the clone that perdure was installed from, or from an index.

    >>> install_hint("report").endswith("[report]'")
    True
    """
    clone, option = Path(__file__).parents[1], "-e "
    if not (clone / "pyproject.toml").is_file():
        clone, option = _installed_from(), ""
    return f"pip install {option}'{clone}[{extra}]'"


def _installed_from() -> Path:
    """The folder that pip installed perdure from, else its name, by which an index knows it."""
    with suppress(PackageNotFoundError, ValueError, KeyError, TypeError):
        place = urlsplit(json.loads(distribution("perdure").read_text("direct_url.json") or "")["url"])
        if place.scheme == "file" and (folder := Path(unquote(place.path))).is_dir():
            return folder
    return Path("perdure")
