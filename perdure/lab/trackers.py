"""Experiment trackers: TensorBoard, MLflow, Weights & Biases.

Each gets the specification of the run, every epoch, and the accuracies after every task. A run that is resumed goes on
there under the same name, and nothing is logged twice. If a tracker fails, the run goes on without it.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

from perdure.errors import Interrupted, PerdureError, UnknownName, expanded, install_hint
from perdure.files import read_json
from perdure.lab.index import flattened
from perdure.lab.spec import RunSpec
from perdure.lab.store import write_json
from perdure.methods.method import Method
from perdure.ops.metrics import average_accuracy, backward_transfer
from perdure.train.callbacks import Callback, Callbacks
from perdure.train.plan import Plan
from perdure.train.state import Epoch, Learned
from perdure.types import Lesson

Axis = Literal["epoch", "lesson"]
End = Literal["finished", "stopped", "failed"]
Figures = dict[str, float]
ALWAYS: dict[Axis, str] = {"epoch": "valid/loss", "lesson": "acc"}  # a figure that is logged at every step of the axis


@contextmanager
def tracking(names: Sequence[str], spec: RunSpec, digest: str, path: Path, callback: Callback) -> Iterator[Callback]:
    """The callback with trackers beside it, each NAME or NAME:PLACE; the callback gets their warnings.

    Trackers start with the first task, so that nothing happens for a run that is finished already.
    """
    trackers = [make_tracker(name, spec, digest, path, callback.on_warning) for name in dict.fromkeys(names)]
    end: End = "failed"
    try:
        yield Callbacks([callback, *trackers])
        end = "finished"
    except (Interrupted, KeyboardInterrupt):
        end = "stopped"
        raise
    finally:
        for tracker in trackers:
            tracker.close(end)


def make_tracker(name: str, spec: RunSpec, digest: str, path: Path, warn: Callable[[str], None]) -> "Tracker":
    """Of tensorboard, tensorboard:DIR, mlflow, mlflow:URI, wandb or wandb:PROJECT."""
    kind, _, place = name.partition(":")
    if kind not in TRACKERS:
        raise UnknownName("tracker", kind, TRACKERS)
    return TRACKERS[kind](place, spec, digest, path, warn)


class Tracker(Callback):
    """Logs a run to another program, until that fails for the first time."""

    name: ClassVar[str]
    module: ClassVar[str]

    def __init__(self, place: str, spec: RunSpec, digest: str, path: Path, warn: Callable[[str], None]) -> None:
        self.place, self.spec, self.digest, self.path, self.warn = place, spec, digest, path, warn
        self.title = f"{spec.method} {spec.benchmark_dir} seed {spec.seed}"
        self.package = _imported(self.module, self.name)
        self.state: Literal["new", "open", "closed"] = "new"
        self.logged: dict[Axis, int] = {}  # the last step on each axis

    # What each program needs.

    def start(self) -> dict[Axis, int]:
        """Create the run there, or resume it, and return the last step on each axis."""
        raise NotImplementedError

    def log(self, axis: Axis, step: int, figures: Figures) -> None:
        raise NotImplementedError

    def finish(self, end: End) -> None:
        raise NotImplementedError

    # What they share.

    def on_task_start(self, lesson: Lesson, plan: Plan) -> None:  # noqa: ARG002
        if self.state == "new":
            with self.guarded():
                self.logged, self.state = self.start(), "open"

    def on_epoch_end(self, epoch: Epoch) -> None:
        """Steps are epochs, counted as if every task took as many as the plan allows: tasks stay side by side."""
        figures = {"valid/loss": epoch.valid.loss, "valid/accuracy": epoch.valid.accuracy, "rate": epoch.rate}
        if epoch.train is not None:
            figures |= {"train/loss": epoch.train.loss, "train/accuracy": epoch.train.accuracy}
        self.log_once("epoch", epoch.lesson * self.spec.plan.epochs + epoch.epoch + 1, figures)

    def on_task_end(self, method: Method, learned: Learned) -> None:  # noqa: ARG002
        """Steps are tasks, or lessons of several."""
        figures = {f"accuracy/task_{task + 1:02d}": found for task, found in enumerate(learned.matrix[-1])}
        figures["acc"] = average_accuracy(learned.matrix)
        if (bwt := backward_transfer(learned.matrix)) is not None:
            figures["bwt"] = bwt
        self.log_once("lesson", len(learned.matrix), figures)

    def log_once(self, axis: Axis, step: int, figures: Figures) -> None:
        if self.state == "open" and step > self.logged.get(axis, 0):
            with self.guarded():
                self.log(axis, step, figures)
                self.logged[axis] = step

    def close(self, end: End) -> None:
        if self.state == "open":
            with self.guarded():
                self.finish(end)
        self.state = "closed"

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """An error is a warning, and the end of logging."""
        try:
            yield
        except Exception as error:  # whatever another program comes up with
            self.state = "closed"
            self.warn(f"{self.name} failed ({_line(error)}); the run goes on without it")


class TensorBoard(Tracker):
    """Event files in the run's directory, or below DIR by benchmark, method and hash."""

    name, module = "tensorboard", "torch.utils.tensorboard"

    def start(self) -> dict[Axis, int]:
        below = Path(self.spec.benchmark_dir, self.spec.method_dir, self.digest)
        folder = expanded(self.place) / below if self.place else self.path / "tensorboard"
        there = _events(folder)
        self.writer = self.package.SummaryWriter(str(folder))
        if HYPERPARAMETERS not in there:
            summary = import_module("torch.utils.tensorboard.summary")
            plain = {name: "none" if value is None else value for name, value in flattened(self.spec.plain()).items()}
            for part in summary.hparams(plain, {"acc": None, "bwt": None}):
                self.writer.file_writer.add_summary(part)
        self.writer.flush()
        return {axis: there.get(figure, 0) for axis, figure in ALWAYS.items()}

    def log(self, axis: Axis, step: int, figures: Figures) -> None:  # noqa: ARG002
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()  # should the run be killed

    def finish(self, end: End) -> None:  # noqa: ARG002
        self.writer.close()


HYPERPARAMETERS = "_hparams_/session_start_info"  # TensorBoard's own name for them


def _events(folder: Path) -> dict[str, int]:
    """What event files hold: figures and the last step of each, and hyper-parameters."""
    if not folder.is_dir():
        return {}
    reader = import_module("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(folder), size_guidance={reader.SCALARS: 0})
    found.Reload()
    steps = {name: max(event.step for event in found.Scalars(name)) for name in found.Tags()["scalars"]}
    with suppress(KeyError):  # there are none
        steps |= dict.fromkeys(found.PluginTagToContent("hparams"), 0)
    return steps


class MLflow(Tracker):
    """A run in the experiment `perdure` of the server at URI, known again by its tag."""

    name, module = "mlflow", "mlflow"
    TAG = "perdure_run"
    STATUS: ClassVar[dict[End, str]] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

    def start(self) -> dict[Axis, int]:
        # Seven retries with growing pauses are its custom: many minutes of training lost to a server that is down.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        self.entities = import_module("mlflow.entities")
        self.client = self.package.MlflowClient(tracking_uri=self.place or None)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "perdure")
        experiment = self.client.get_experiment_by_name(name)
        number = self.client.create_experiment(name) if experiment is None else experiment.experiment_id
        there = self.client.search_runs([number], filter_string=f"tags.{self.TAG} = '{self.digest}'", max_results=1)
        if there:
            self.run = there[0].info.run_id
            self.client.update_run(self.run, status="RUNNING")
            return {axis: self.last_step(figure) for axis, figure in ALWAYS.items()}
        made = self.client.create_run(number, tags={self.TAG: self.digest}, run_name=self.title)
        self.run = made.info.run_id
        plain = flattened(self.spec.plain())
        params = [self.entities.Param(name, str(value)[:500]) for name, value in plain.items()]
        self.client.log_batch(self.run, params=params)
        return {}

    def last_step(self, figure: str) -> int:
        return max((metric.step for metric in self.client.get_metric_history(self.run, figure)), default=0)

    def log(self, axis: Axis, step: int, figures: Figures) -> None:  # noqa: ARG002
        now = round(time.time() * 1000)
        metrics = [self.entities.Metric(name, value, now, step) for name, value in figures.items()]
        self.client.log_batch(self.run, metrics=metrics)

    def finish(self, end: End) -> None:
        self.client.set_terminated(self.run, status=self.STATUS[end])


class WandB(Tracker):
    """A run in PROJECT, or TEAM/PROJECT, whose id is the run's hash."""

    name, module = "wandb", "wandb"
    CODES: ClassVar[dict[End, int]] = {"finished": 0, "stopped": 130, "failed": 1}

    def start(self) -> dict[Axis, int]:
        team, _, project = self.place.rpartition("/")
        self.run = self.package.init(
            entity=team or None,
            project=project or "perdure",
            id=self.digest,
            name=self.title,
            config=self.spec.plain(),
            resume="allow",
            settings=self.package.Settings(console="off", silent=True),  # the terminal is ours
        )
        for axis, figures in {"epoch": ("valid/*", "train/*", "rate"), "lesson": ("accuracy/*", "acc", "bwt")}.items():
            for figure in figures:
                self.run.define_metric(figure, step_metric=axis)
        return {axis: max(self.saved().get(axis, 0), int(self.run.summary.get(axis) or 0)) for axis in ALWAYS}

    def log(self, axis: Axis, step: int, figures: Figures) -> None:
        # Its own count of steps must only rise, and go on where an earlier process stopped, also offline.
        epochs = self.spec.plan.epochs
        count = step - 1 + (step - 1) // epochs if axis == "epoch" else step * (epochs + 1) - 1
        self.run.log({axis: step, **figures}, step=count)
        write_json(self.path / "wandb.json", {**self.saved(), axis: step})

    def finish(self, end: End) -> None:
        self.run.finish(exit_code=self.CODES[end])

    def saved(self) -> dict[str, int]:
        """The last step on each axis, kept with the run: offline there is nobody to ask."""
        try:
            found = read_json(self.path / "wandb.json")
            return {axis: int(found[axis]) for axis in ALWAYS if axis in found}
        except (OSError, ValueError, TypeError, OverflowError):
            return {}


TRACKERS: dict[str, type[Tracker]] = {kind.name: kind for kind in (TensorBoard, MLflow, WandB)}


def _imported(module: str, name: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise PerdureError(f"{name} is not installed: {install_hint(name)}, or leave out --track") from None
    except Exception as error:  # installed, but at odds with another package
        raise PerdureError(
            f"{name} cannot be imported ({_line(error)}): install it anew, or leave out --track"
        ) from None


def _line(error: Exception) -> str:
    """An error in one line of moderate length."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
