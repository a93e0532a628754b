"""Speed on this machine, as ratios. What is measured lies in benchmarks/ of a clone, not in the package."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from perdure.errors import PerdureError, UnknownName


def bench(
    what: Literal["ratios", "scaling", "paths"] = "ratios",
    *,
    rounds: int = 15,
    threads: int = 2,
    only: Sequence[str] = (),
    folder: Path | str | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Any:
    """Measure speed; benchmarks/README.md says how to read it.

    `what`: "ratios" of steps to the bare passes they need and of the textbook to us, how cost grows ("scaling"), or
    what each fast path brings ("paths"). `rounds` are the turns of each comparison, `only` names steps such as "gpm" or
    "rcl shared". `folder` is benchmarks/ of a clone, which is found where the package is used from a clone.
    """
    if what not in ("ratios", "scaling", "paths"):
        raise UnknownName("measurement", what, ("ratios", "scaling", "paths"))
    place = Path(folder) if folder is not None else Path(__file__).parents[2] / "benchmarks"
    speed = _load("perdure_speed", place / "speed" / "__init__.py")
    how = speed.Bench(threads, rounds, report)
    if what == "scaling":
        return [growth.plain() for growth in speed.growths(how, only)]
    if what == "paths":
        return speed.gains(how, only)
    return speed.ratios(how, None if only else _load("perdure_textbook", place / "textbook.py"), only)


def _load(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise PerdureError(f"{file}: not there; clone the repository and name its folder with --folder benchmarks")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
