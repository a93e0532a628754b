"""How processes are started: what they may import, and how their threads wait for each other.

Python in another process has the packages of this one and imports nothing from the working directory. A file there may
bear any name, also that of a package: started as usual, Python would run it. What a user names, as `my.py:Careful`, is
loaded by its path (`registry.py`).
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import perdure

# Threads of OpenMP spin while they wait, by default for longer than most of torch's operations take. On a busy machine
# what they wait for does not run meanwhile. A bounded spin is as quick on an idle machine and loses far less on a busy
# one (benchmarks/busy.py, docs/speed.md).
OPENMP = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}  # GNU's, in turns of its loop; LLVM's, in milliseconds
OPENMP_NAMES = ("OMP_WAIT_POLICY", *OPENMP)
MOST_THREADS = 1024  # that torch may be asked to compute with; it would try to start any number of them


def python(*words: str) -> list[str]:
    """The command that runs Python with these words."""
    return [sys.executable, "-P", *words]


def python_environment() -> dict[str, str]:
    """This process's environment with its path of packages, less the working directory."""
    package, here = Path(perdure.__file__).resolve().parent.parent, Path.cwd()
    places = [Path(entry).resolve() for entry in sys.path if entry]
    path = [place for place in places if place != here or place == package]
    return {**os.environ, **openmp_defaults(), "PYTHONPATH": os.pathsep.join(map(str, [*path, package]))}


def openmp_defaults() -> dict[str, str]:
    """How long threads spin, unless the user has chosen. It must be in the environment before torch is loaded."""
    return {} if openmp_settings(os.environ) else OPENMP


def openmp_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What an environment says about how threads wait, for records."""
    return {name: environment[name] for name in OPENMP_NAMES if name in environment}
