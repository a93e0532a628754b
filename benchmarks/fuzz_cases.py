"""What the fuzzers share: a command in a forked process with limits, what is wrong with its outcome, and the counts.

Not a program. Forked from a process that has imported torch and perdure, a command that reads a file takes some
hundredths of a second.
"""

import io
import os
import re
import resource
import shutil
import signal
import stat
import sys
import traceback
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 60  # that a command may take; the slowest takes one or two, but others may be at work on the machine
MEMORY = 2**30  # bytes that it may take besides what perdure and torch take
ADDRESSES = 2**33  # bytes of addresses, likewise, so that what would take all memory stops before
WRITTEN = 2**28  # bytes of the largest file that it may write
CODES = (0, 1, 2)  # with which a command may end here; nobody interrupts it
WARNING = re.compile(r"^.*\.py:\d+: \w*Warning: .*$", re.MULTILINE)
BREAKING = ("Cc", "Cs", "Zl", "Zp")  # Unicode's categories: controls, lone surrogates, line and paragraph ends
LONGEST = 2000  # characters of an error; paths may be long


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int  # that it exited with, or minus the signal that ended it
    out: str
    err: str
    memory: int  # bytes besides those that the process had when it was forked

    @property
    def fault(self) -> str:
        """What must never happen; empty if nothing of it did."""
        if self.code == -signal.SIGALRM:
            return f"no end after {SECONDS} seconds"
        if "Traceback (most recent call last)" in self.err:
            return f"traceback: {' | '.join(self.err.strip().splitlines()[-3:])}"
        if self.code < 0:
            return f"ended by signal {-self.code}"
        if self.memory > MEMORY:
            return f"took {self.memory / 2**20:,.0f} MB"
        if self.code not in CODES:
            return f"exit code {self.code}"
        if warning := WARNING.search(self.err):
            return f"a warning of Python's: {warning[0]}"
        return self._fault_of_lines()

    def _fault_of_lines(self) -> str:
        lines = self.err.removesuffix("\n").split("\n") if self.err else []
        errors = [line for line in lines if line.startswith("perdure: ")]
        if self.code and not errors:
            return f"exit code {self.code} without a word"
        if self.code and not lines[-1].startswith("perdure: "):
            return f"an error of several lines: {' | '.join(lines[-3:])}"
        for line in lines:
            if any(unicodedata.category(letter) in BREAKING for letter in line):
                return f"a line that cannot be printed: {line!r}"
        for line in errors:
            if len(line) > LONGEST:
                return f"an error of {len(line)} characters: {line[:80]}…"
        return ""


def forked(do: Callable[[], int | str | None], folder: Path, environment: Mapping[str, str]) -> Outcome:
    """Call this in a process of its own, in this working directory, within the limits; what it returns is the exit
    code."""
    texts = {number: folder.parent / f"{folder.name}.{name}" for number, name in ((1, "out"), (2, "err"))}
    before = _resident()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _become(do, folder, environment, texts)
    _, status, used = os.wait4(child, 0)
    with suppress(ProcessLookupError):  # what it had started and left
        os.killpg(child, signal.SIGKILL)
    out, err = (text.read_bytes().decode(errors="backslashreplace") for text in texts.values())
    return Outcome(os.waitstatus_to_exitcode(status), out, err, used.ru_maxrss * 1024 - before)


def _become(
    do: Callable[[], int | str | None], folder: Path, environment: Mapping[str, str], texts: Mapping[int, Path]
) -> None:
    """The forked process, which never returns."""
    code: int | str | None = 1
    try:
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        addresses = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (addresses + ADDRESSES,) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (WRITTEN,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number, text in texts.items():
            os.dup2(os.open(text, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin, sys.stdout, sys.stderr = io.open(0), io.open(1, "w"), io.open(2, "w", errors="backslashreplace")  # noqa: UP020, SIM115
        os.environ.update(environment)
        os.chdir(folder)
        code = do()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def perdure(*words: str) -> Callable[[], None]:
    """The command line with these words."""

    def do() -> None:
        from perdure.cli.main import main

        sys.argv = ["perdure", *words]
        main()

    return do


def import_all() -> None:
    """What commands import when they need it: here once, and not in every process."""
    import importlib
    import pkgutil

    import torch
    from matplotlib.figure import Figure

    import perdure as package

    torch.set_num_threads(1)  # a forked process cannot use the threads of the one that it was forked from
    for module in pkgutil.walk_packages(package.__path__, "perdure."):
        if not module.name.endswith(("__main__", ".ray", ".worker")):
            importlib.import_module(module.name)
    from perdure.lab import estimate

    # How long a new process takes to start is no matter here, and pictures are drawn, but not turned into pixels: both
    # would take far longer than all the rest.
    estimate._start_seconds = lambda: 0.0
    Figure.savefig = lambda *_, **__: None


# --- what is where ---

Stamp = tuple[int, int, int, str]


def stamps(folder: Path) -> dict[str, Stamp]:
    """What lies below a folder: kind, size and time of each file, and where links lead."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            seen = path.lstat()
            link = str(path.readlink()) if stat.S_ISLNK(seen.st_mode) else ""
            of_folder = stat.S_ISDIR(seen.st_mode)
            facts = (0, 0) if of_folder else (seen.st_size, seen.st_mtime_ns)
            found[str(path.relative_to(folder))] = (stat.S_IFMT(seen.st_mode), *facts, link)
    return found


def changed(before: Mapping[str, Stamp], after: Mapping[str, Stamp], allowed: Iterable[str]) -> list[str]:
    """What is another than it was, besides what a command may change: files and folders, and all that is below."""
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    parents = {str(parent) for own in allowed for parent in Path(own).parents}  # which may have to be made
    return [n for n in names if n not in parents and not any(n == own or n.startswith(f"{own}/") for own in allowed)]


def empty(folder: Path) -> None:
    """Remove all that is in a folder, whatever it is."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


# --- what came of all ---


@dataclass
class Tally:
    """How often what came out, by kind of case."""

    classes: tuple[str, ...]  # that are no failures
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    failures: int = 0

    def add(self, kind: str, verdict: str) -> None:
        self.counts.setdefault(kind, Counter())[verdict] += 1

    def fail(self, kind: str, name: str, about: str, fault: str, again: str) -> None:
        self.add(kind, "failures")
        self.failures += 1
        print(f"FAILURE {name}: {about}: {fault}\n    again: {again}", flush=True)

    def print(self) -> None:
        columns = ("cases", *self.classes, "failures")
        counts = {**self.counts, "together": sum(self.counts.values(), Counter())}
        rows = [[kind, *(str(self._count(found, name)) for name in columns)] for kind, found in counts.items()]
        widths = [max(map(len, column)) for column in zip(["", *columns], *rows, strict=True)]
        for row in (["", *columns], *rows):
            cells = [f"{cell:{'<' if place == 0 else '>'}{widths[place]}}" for place, cell in enumerate(row)]
            print("  ".join(cells).rstrip())

    @staticmethod
    def _count(found: Counter[str], name: str) -> int:
        return found.total() if name == "cases" else found[name]
