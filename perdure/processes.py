"""Python in another process, which has the packages of this one and imports nothing from the working directory.

A file there may bear any name, also that of a package: started as usual, Python would run it. What a user names, as
`my.py:Careful`, is loaded by its path (`registry.py`).
"""

import os
import sys
from pathlib import Path

import perdure

MOST_THREADS = 1024  # that torch may be asked to compute with; it would try to start any number of them


def python(*words: str) -> list[str]:
    """The command that runs Python with these words."""
    return [sys.executable, "-P", *words]


def python_environment() -> dict[str, str]:
    """This process's environment with its path of packages, less the working directory."""
    package, here = Path(perdure.__file__).resolve().parent.parent, Path.cwd()
    places = [Path(entry).resolve() for entry in sys.path if entry]
    path = [place for place in places if place != here or place == package]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*path, package]))}
