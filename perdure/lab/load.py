"""A finished run, opened again: look at it, predict with it, let it learn more."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perdure import registry
from perdure.data.arrays import images_from
from perdure.errors import UnknownName, WrongValue
from perdure.lab import checkpoint
from perdure.lab.index import find_run, read_finished
from perdure.lab.probe_run import open_run
from perdure.lab.spec import RunSpec
from perdure.lab.store import read_probes
from perdure.methods.method import Method
from perdure.train.callbacks import Callback
from perdure.train.learn import learn
from perdure.train.plan import Plan
from perdure.train.state import Learned
from perdure.types import Task, cut


@dataclass(frozen=True)
class Prediction:
    """What a model says of some images."""

    classes: list[str]  # the most likely of each image
    probabilities: Tensor  # (n, classes of the task)
    names: tuple[str, ...]  # of the columns


@dataclass
class LoadedRun:
    """A finished run with its method and its data. What is done with it does not change the run's files."""

    path: Path
    record: dict[str, Any]  # as `perdure.run` returned it
    spec: RunSpec
    method: Method
    learned: Learned  # accuracy matrix, epochs, tasks

    @property
    def matrix(self) -> list[list[float]]:
        """Row t: accuracy on each task so far after task t, percent."""
        return self.learned.matrix

    @property
    def tasks(self) -> list[Task]:
        return self.learned.tasks

    def predict(self, images: Any, task: int | str, batch: int = 64) -> Prediction:
        """The class of each image, told which task it belongs to, by number from 0 or by name.

        Images are as in `perdure.data.task_from`: pixels, not normalized; they are scaled to the network's size. Where
        the network normalizes with batch statistics, as those of the papers do, an answer depends on the other images
        of its batch: give images as mixed as those it was tested with.
        """
        number = self._number(task)
        split, names = self.tasks[number].test, self.tasks[number].classes
        channels, height, width = split.x.shape[1:]
        x = images_from(images, (channels, height, width)).to(split.x.device)
        own = replace(split, x=x, y=torch.zeros(len(x), dtype=torch.int64, device=x.device))
        self.method.eval()
        with torch.no_grad():
            weights = self.method.weights(number)
            logits = [self.method.forward(own.take(rows)[0], number, weights).logits for rows in cut(len(x), batch)]
        probabilities = torch.cat(logits).softmax(1)
        return Prediction([names[row] for row in probabilities.argmax(1).tolist()], probabilities, names)

    def learn_more(
        self, tasks: Task | Iterable[Task], plan: Plan | None = None, callback: Callback | None = None
    ) -> Learned:
        """Learn further tasks, with the run's own plan unless another is given; the model at hand goes on, the run on
        disk stays as it is."""
        new = [tasks] if isinstance(tasks, Task) else tasks
        plan = self.spec.plan if plan is None else plan
        return learn(self.method, new, plan, self.spec.seed, callback, learned=self.learned)

    def plot(self, kind: str = "matrix", path: str | Path | None = None) -> Any:
        """The accuracy "matrix" or learning "curves" as a picture; see `perdure.plot`."""
        return self.learned.plot(kind, path)

    def _number(self, task: int | str) -> int:
        names = [known.name for known in self.tasks]
        if isinstance(task, str):
            if task not in names:
                raise UnknownName("task", task, names)
            return names.index(task)
        if not 0 <= task < len(names):
            raise WrongValue(f"task={task} is not allowed; use 0 to {len(names) - 1}, or one of {', '.join(names)}")
        return task

    def __repr__(self) -> str:
        spec = self.spec
        return f"LoadedRun({spec.method} on {spec.benchmark}, seed {spec.seed}: {self.learned})"


def load(
    run: str | Path | dict[str, Any],
    *,
    out: str | Path = "runs",
    root: str | Path | None = None,
    device: str = "cpu",
    code: str | Path | Sequence[str | Path] = (),
) -> LoadedRun:
    """Open a finished run: by its path, by the beginning of its hash in the store `out`, or by its record.

    Its data must be there, since they tell classes and normalization; `root` says where, as in `perdure.run`. A run
    with a method, network or benchmark of your own needs its file, the same as it was: name it in `code`.

    >>> import tempfile
    >>> from perdure.lab.run import run
    >>> loaded = load(run("gpm", "synthetic", tasks=2, plan={"epochs": 1}, out=tempfile.mkdtemp()))
    >>> loaded.predict(loaded.tasks[0].test.x[:3], task=0).probabilities.shape
    torch.Size([3, 3])
    """
    registry.allow_all(code)
    path = Path(run["path"]) if isinstance(run, dict) else find_run(Path(out), str(run))
    record = read_finished(path, thorough=True)
    opened = open_run(path, record, root=None if root is None else Path(root), device=device)
    epochs = checkpoint.read_epochs(path / "epochs.jsonl")
    matrix = [list(row) for row in record["accuracy_matrix"]]
    learned = Learned(matrix, epochs, list(opened.subject.tasks), record["seconds"])
    record = {**record, "probes": read_probes(path, record), "path": str(path)}
    return LoadedRun(path, record, opened.spec, opened.subject.method, learned)
