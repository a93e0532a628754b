"""Any result as a picture: what `perdure.plot` does. Shows itself in a notebook."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from perdure.errors import PerdureError, UnknownName, WrongValue
from perdure.files import read_json, read_json_lines
from perdure.ops.metrics import average_accuracy, backward_transfer
from perdure.ops.statistics import Group, groups
from perdure.report import figures


class Picture:
    """A PNG; a notebook shows it as an image."""

    def __init__(self, png: bytes) -> None:
        self.png = png

    def _repr_png_(self) -> bytes:
        return self.png

    def save(self, path: str | Path) -> Path:
        """Write it to a file, and return the path."""
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.png)
        except OSError as error:
            raise PerdureError(f"cannot write {path}: {error.strerror or error}; choose another place") from None
        return path


@overload
def plot(thing: Any, kind: str | None = None, path: None = None) -> Picture: ...
@overload
def plot(thing: Any, kind: str | None = None, *, path: str | Path) -> Path: ...
@overload
def plot(thing: Any, kind: str | None, path: str | Path) -> Path: ...
def plot(thing: Any, kind: str | None = None, path: str | Path | None = None) -> Picture | Path:
    """A picture of a run or of several; written to `path` if given.

    - Of one run, which is a record as `run` returns it, the directory of a run, or what `learn` returned: "matrix", the
      accuracy matrix (the default), or "curves", how it came about.
    - Of several, which are a list of such or what `study` returned: "comparison" of ACC and BWT (the default),
      "accuracy", the mean over tasks seen after each task, "new-tasks", the accuracy on each task just after it was
      learned, or "matrices", the accuracy matrices of first seeds.

    >>> record = {"method": "gpm", "accuracy_matrix": [[90.0], [80.0, 70.0]]}
    >>> plot(record).png[1:4]
    b'PNG'
    """
    single = not isinstance(thing, Sequence | Group) or isinstance(thing, str)
    single = single and not hasattr(thing, "groups")
    kinds = _of_one(thing) if single else _of_several(thing)
    kind = kind or next(iter(kinds))
    if kind not in kinds:
        raise UnknownName("kind of picture here", kind, kinds)
    picture = Picture(kinds[kind]())
    return picture if path is None else picture.save(path)


def _of_one(thing: Any) -> dict[str, Callable[[], bytes]]:
    record = _record(thing)
    return {
        "matrix": lambda: figures.accuracy_matrix(record),
        "curves": lambda: figures.curves(record, record.get("epochs") or []),
    }


def _of_several(thing: Any) -> dict[str, Callable[[], bytes]]:
    if not hasattr(thing, "groups") and not thing:
        raise WrongValue("nothing to plot: the list is empty")
    found = thing.groups if hasattr(thing, "groups") else groups([_comparable(_record(one)) for one in thing])
    return {
        "comparison": lambda: figures.comparison(found),
        "accuracy": lambda: figures.accuracy_over_tasks(found),
        "new-tasks": lambda: figures.new_task_accuracy(found),
        "matrices": lambda: figures.matrices(found),
    }


def _record(thing: Any) -> dict[str, Any]:
    """Names, figures and epochs, wherever they come from."""
    if isinstance(thing, str | Path):
        record = _read(Path(thing))
    elif isinstance(thing, Mapping):
        record = {"epochs": read_epochs(Path(thing["path"])), **thing} if "path" in thing else dict(thing)
    elif hasattr(thing, "matrix"):
        names = [getattr(task, "name", str(task)) for task in getattr(thing, "tasks", ())]
        epochs = [_plain_epoch(epoch) for epoch in getattr(thing, "epochs", ())]
        record = {"accuracy_matrix": thing.matrix, "epochs": epochs, **({"task_names": names} if names else {})}
    else:
        raise WrongValue(f"cannot plot a {type(thing).__name__}; give a record, a run's directory, or a list of them")
    rows = record.get("accuracy_matrix")
    if not rows:
        raise WrongValue("nothing to plot: there is no accuracy matrix yet")
    numbers = [f"task {place + 1}" for place in range(len(rows[-1]))]
    known = {"acc": average_accuracy(rows), "bwt": backward_transfer(rows), "task_names": numbers, "method": "run"}
    return known | record


def _comparable(record: dict[str, Any]) -> dict[str, Any]:
    """With all that tells runs apart."""
    asked = {"benchmark": "", "network": "", "seed": 1, "tasks": None, "values": {}, "plan": {}, "settings": {}}
    return asked | record


def _read(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = dict(read_json(path / "record.json"))
    except (OSError, ValueError, TypeError):
        raise WrongValue(f"{path}: not the directory of a finished run; `perdure ls runs` lists them") from None
    return {**record, "epochs": read_epochs(path)}


def read_epochs(path: Path) -> list[dict[str, Any]]:
    """The epochs of the run in this directory; none where they cannot be read."""
    try:
        return read_json_lines(path / "epochs.jsonl")
    except (OSError, ValueError):
        return []


def _plain_epoch(epoch: Any) -> dict[str, Any]:
    return {"lesson": epoch.lesson, "valid": {"accuracy": epoch.valid.accuracy, "loss": epoch.valid.loss}}
