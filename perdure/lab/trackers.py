"""Other programs that look on: TensorBoard, MLflow, Weights & Biases.

Each learns what was asked for, every epoch, and the accuracies after every lesson. A run that is taken up again goes on
there under the same name, and what is there already is not told twice. Whatever goes wrong with them, the run goes on.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

from perdure.errors import Interrupted, PerdureError, UnknownName
from perdure.lab.index import flattened
from perdure.lab.spec import RunSpec
from perdure.lab.store import write_json
from perdure.methods.method import Method
from perdure.ops.metrics import average_accuracy, backward_transfer
from perdure.train.callbacks import Callback, Callbacks
from perdure.train.plan import Plan
from perdure.train.state import Epoch, Learned
from perdure.types import Lesson

Kind = Literal["epoch", "lesson"]
Ending = Literal["finished", "stopped", "failed"]
MARKS: dict[Kind, str] = {"epoch": "valid/loss", "lesson": "acc"}  # a figure that is told each time


@contextmanager
def watching(words: Sequence[str], asked: RunSpec, digest: str, path: Path, first: Callback) -> Iterator[Callback]:
    """Let others look on besides the first, to whom is said what goes wrong with them; each word is NAME or NAME:PLACE.

    They begin with the first lesson, so that a run that is finished already does not trouble them.
    """
    trackers = [make(word, asked, digest, path, first.on_warning) for word in dict.fromkeys(words)]
    ending: Ending = "failed"
    try:
        yield Callbacks([first, *trackers])
        ending = "finished"
    except (Interrupted, KeyboardInterrupt):
        ending = "stopped"
        raise
    finally:
        for tracker in trackers:
            tracker.close(ending)


def make(word: str, asked: RunSpec, digest: str, path: Path, caution: Callable[[str], None]) -> "Tracker":
    """The one that a word names: tensorboard, tensorboard:DIR, mlflow, mlflow:URI, wandb or wandb:PROJECT."""
    name, _, place = word.partition(":")
    if name not in TRACKERS:
        raise UnknownName("watcher", name, TRACKERS)
    return TRACKERS[name](place, asked, digest, path, caution)


class Tracker(Callback):
    """Tells another program how a run goes, until that fails for the first time."""

    name: ClassVar[str]
    module: ClassVar[str]

    def __init__(self, place: str, asked: RunSpec, digest: str, path: Path, caution: Callable[[str], None]) -> None:
        self.place, self.asked, self.digest, self.path, self.say = place, asked, digest, path, caution
        self.package = _imported(self.module, self.name)
        self.told: dict[Kind, int] = {}  # the last step of each kind that is there
        self.open = self.broken = False

    # What each program needs.

    def begin(self) -> dict[Kind, int]:
        """Start the run there, or go on with it, and say how far it is."""
        raise NotImplementedError

    def send(self, kind: Kind, step: int, figures: dict[str, float]) -> None:
        raise NotImplementedError

    def end(self, ending: Ending) -> None:
        raise NotImplementedError

    # What they share.

    def on_task_start(self, lesson: Lesson, plan: Plan) -> None:  # noqa: ARG002
        if not (self.open or self.broken):
            with self.harmless():
                self.told = self.begin()
                self.open = True

    def on_epoch_end(self, epoch: Epoch) -> None:
        """Steps are epochs, counted as if every lesson took as many as the plan allows: lessons stay side by side."""
        figures = {"valid/loss": epoch.valid.loss, "valid/accuracy": epoch.valid.accuracy, "rate": epoch.rate}
        if epoch.train is not None:
            figures |= {"train/loss": epoch.train.loss, "train/accuracy": epoch.train.accuracy}
        self.tell("epoch", epoch.lesson * self.asked.plan.epochs + epoch.epoch + 1, figures)

    def on_task_end(self, method: Method, learned: Learned) -> None:  # noqa: ARG002
        """Steps are lessons."""
        figures = {f"accuracy/task_{task + 1:02d}": found for task, found in enumerate(learned.matrix[-1])}
        figures["acc"] = average_accuracy(learned.matrix)
        bwt = backward_transfer(learned.matrix)
        self.tell("lesson", len(learned.matrix), figures | ({} if bwt is None else {"bwt": bwt}))

    def tell(self, kind: Kind, step: int, figures: dict[str, float]) -> None:
        if self.open and not self.broken and step > self.told.get(kind, 0):
            with self.harmless():
                self.send(kind, step, figures)
                self.told[kind] = step

    def close(self, ending: Ending) -> None:
        if self.open and not self.broken:
            with self.harmless():
                self.end(ending)
        self.open = False

    @contextmanager
    def harmless(self) -> Iterator[None]:
        """What fails inside is said, once, and nothing more is tried."""
        try:
            yield
        except Exception as error:  # whatever another program comes up with
            self.broken = True
            self.say(f"{self.name} failed ({_line(error)}); the run goes on without it")

    @property
    def title(self) -> str:
        return f"{self.asked.method} {self.asked.benchmark_dir} seed {self.asked.seed}"


class TensorBoard(Tracker):
    """Event files in the run's directory, or below DIR by benchmark, method and hash."""

    name, module = "tensorboard", "torch.utils.tensorboard"

    def begin(self) -> dict[Kind, int]:
        below = Path(self.asked.benchmark_dir, self.asked.method, self.digest)
        folder = Path(self.place).expanduser() / below if self.place else self.path / "tensorboard"
        there = _events(folder)
        self.writer = self.package.SummaryWriter(str(folder))
        if HYPERPARAMETERS not in there:
            summary = import_module("torch.utils.tensorboard.summary")
            plain = {name: "none" if value is None else value for name, value in flattened(self.asked.plain()).items()}
            for part in summary.hparams(plain, {"acc": None, "bwt": None}):
                self.writer.file_writer.add_summary(part)
        self.writer.flush()
        return {kind: there.get(figure, 0) for kind, figure in MARKS.items()}

    def send(self, kind: Kind, step: int, figures: dict[str, float]) -> None:  # noqa: ARG002
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()  # so that a run that is killed has told what it had come to

    def end(self, ending: Ending) -> None:  # noqa: ARG002
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
    STATUS: ClassVar[dict[Ending, str]] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

    def begin(self) -> dict[Kind, int]:
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
            return {kind: self.last(figure) for kind, figure in MARKS.items()}
        made = self.client.create_run(number, tags={self.TAG: self.digest}, run_name=self.title)
        self.run = made.info.run_id
        plain = flattened(self.asked.plain())
        params = [self.entities.Param(name, str(value)[:500]) for name, value in plain.items()]
        self.client.log_batch(self.run, params=params)
        return {}

    def last(self, figure: str) -> int:
        return max((metric.step for metric in self.client.get_metric_history(self.run, figure)), default=0)

    def send(self, kind: Kind, step: int, figures: dict[str, float]) -> None:  # noqa: ARG002
        now = round(time.time() * 1000)
        metrics = [self.entities.Metric(name, value, now, step) for name, value in figures.items()]
        self.client.log_batch(self.run, metrics=metrics)

    def end(self, ending: Ending) -> None:
        self.client.set_terminated(self.run, status=self.STATUS[ending])


class WandB(Tracker):
    """A run in PROJECT, or TEAM/PROJECT, whose id is the run's hash."""

    name, module = "wandb", "wandb"
    CODES: ClassVar[dict[Ending, int]] = {"finished": 0, "stopped": 130, "failed": 1}

    def begin(self) -> dict[Kind, int]:
        team, _, project = self.place.rpartition("/")
        self.run = self.package.init(
            entity=team or None,
            project=project or "perdure",
            id=self.digest,
            name=self.title,
            config=self.asked.plain(),
            resume="allow",
            settings=self.package.Settings(console="off", silent=True),  # the terminal is ours
        )
        for figures, axis in (("valid/*", "epoch"), ("train/*", "epoch"), ("rate", "epoch"), ("accuracy/*", "lesson")):
            self.run.define_metric(figures, step_metric=axis)
        for figure in ("acc", "bwt"):
            self.run.define_metric(figure, step_metric="lesson")
        return {kind: max(self.noted().get(kind, 0), int(self.run.summary.get(kind) or 0)) for kind in MARKS}

    def send(self, kind: Kind, step: int, figures: dict[str, float]) -> None:
        # Its own count of steps must only rise, and go on where an earlier process stopped, also offline.
        epochs = self.asked.plan.epochs
        count = step - 1 + (step - 1) // epochs if kind == "epoch" else step * (epochs + 1) - 1
        self.run.log({kind: step, **figures}, step=count)
        write_json(self.notebook, {**self.noted(), kind: step})

    def end(self, ending: Ending) -> None:
        self.run.finish(exit_code=self.CODES[ending])

    @property
    def notebook(self) -> Path:
        """How far it was told, kept with the run: offline there is nobody to ask."""
        return self.path / "wandb.json"

    def noted(self) -> dict[str, int]:
        try:
            found = json.loads(self.notebook.read_text("utf-8"))
            return {kind: int(found[kind]) for kind in MARKS if kind in found}
        except (OSError, ValueError, TypeError):
            return {}


TRACKERS: dict[str, type[Tracker]] = {kind.name: kind for kind in (TensorBoard, MLflow, WandB)}


def _imported(module: str, name: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise PerdureError(f"{name} is not installed: pip install 'perdure[{name}]', or leave out --track") from None
    except Exception as error:  # installed, but at odds with another package
        raise PerdureError(
            f"{name} cannot be imported ({_line(error)}): install it anew, or leave out --track"
        ) from None


def _line(error: Exception) -> str:
    """An error in one line of moderate length."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
