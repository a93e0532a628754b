"""TensorBoard, MLflow and Weights & Biases get everything, nothing twice, and are never in the way.

TensorBoard is the real one. The others are stand-ins with the signatures of mlflow 3 and wandb 0.2x that keep what they
get as the real ones do.
"""

import inspect
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from command import perdure as command

from perdure.errors import Diverged, Interrupted, PerdureError, UnknownName
from perdure.lab import trackers
from perdure.lab.build import open_stream
from perdure.lab.run import run_spec as run
from perdure.lab.spec import spec
from perdure.lab.store import run_directory
from perdure.train.callbacks import Callback

EPOCHS, TASKS = 2, 2


class First(Callback):
    """Collects warnings, and pulls the plug at the n-th moment."""

    def __init__(self, moment: int = 0, error: BaseException | None = None) -> None:
        self.warnings: list[str] = []
        self.left, self.error, self.moments = moment, error or KeyboardInterrupt(), 0

    def on_warning(self, text: str) -> None:
        self.warnings.append(text)

    def on_step(self, _now: Any) -> None:
        self.moments += 1
        if self.moments == self.left:
            raise self.error


def learn(
    word: str,
    out: Path,
    moment: int = 0,
    error: BaseException | None = None,
    every: float = 1e9,
    first: First | None = None,
) -> First:
    """Run with a tracker, until the end or the moment at which it is interrupted."""
    asked = spec("gpm", "synthetic", network="mlp", tasks=TASKS, plan={"epochs": EPOCHS, "train_scores": True})
    stream = open_stream(asked, None)
    digest = asked.digest(stream.fingerprint)
    path = run_directory(out, asked.benchmark_dir, asked.method, digest)
    first = First(moment, error) if first is None else first
    try:
        with trackers.tracking([word], asked, digest, path, first) as callback:
            run(asked, out=out, stream=stream, callback=callback, every=every)
    except BaseException as caught:
        if caught is not first.error:
            raise
    return first


# --- TensorBoard, the real one ---


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every event as it was written: reading does not merge what was logged twice."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.rglob("events.out.*")):
        for event in loader.LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, float]]]:
    pytest.importorskip("tensorboard")
    out = tmp_path_factory.mktemp("whole")
    learn("tensorboard", out)
    return scalars(out)


def test_tensorboard_sees_every_epoch_and_lesson(whole: dict[str, list[tuple[int, float]]], tmp_path: Path) -> None:
    asked = spec("gpm", "synthetic", network="mlp", tasks=TASKS, plan={"epochs": EPOCHS, "train_scores": True})
    record = run(asked, out=tmp_path)
    matrix = record["accuracy_matrix"]
    assert whole["accuracy/task_01"] == [(1, pytest.approx(matrix[0][0])), (2, pytest.approx(matrix[1][0]))]
    assert whole["accuracy/task_02"] == [(2, pytest.approx(matrix[1][1]))]
    assert whole["acc"][-1] == (2, pytest.approx(record["acc"]))
    assert whole["bwt"] == [(2, pytest.approx(record["bwt"]))]
    for figure in ("valid/loss", "valid/accuracy", "train/loss", "train/accuracy", "rate"):
        assert [step for step, _ in whole[figure]] == [1, 2, 3, 4]


def test_tensorboard_sees_the_hyperparameters(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    plugin = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    for moment in (3, 0):
        learn("tensorboard", tmp_path, moment)
    starts = []
    for file in tmp_path.rglob("events.out.*"):
        for event in loader.LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "hparams":
                    data = plugin.HParamsPluginData.FromString(value.metadata.plugin_data.content)
                    if data.HasField("session_start_info"):
                        starts.append(data.session_start_info.hparams)
    (hparams,) = starts  # once, though it was taken up again
    assert hparams["method"].string_value == "gpm"
    assert hparams["values.threshold"].number_value == 0.97
    assert hparams["plan.epochs"].number_value == EPOCHS
    assert hparams["seed"].number_value == 1


@pytest.mark.parametrize("every", [0, 1e9], ids=["saved each step", "saved between lessons"])
def test_tensorboard_gets_nothing_twice(
    every: float, whole: dict[str, list[tuple[int, float]]], tmp_path: Path
) -> None:
    """Not even where steps are taken again, because the last checkpoint was before them."""
    for moment in (8, 9, 20, 10, 0):  # a lesson has 14
        learn("tensorboard", tmp_path, moment, every=every)
    found = {name: sorted(events) for name, events in scalars(tmp_path).items()}
    assert found == whole


def test_logged_but_not_saved(
    whole: dict[str, list[tuple[int, float]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the lesson's accuracies were logged and before its checkpoint was written."""
    from perdure.lab import checkpoint

    with monkeypatch.context() as patch:
        error = RuntimeError("killed")

        def fail(*_: Any) -> None:
            raise error

        patch.setattr(checkpoint.Checkpointer, "on_task_end", fail)
        with pytest.raises(RuntimeError, match="killed"):
            learn("tensorboard", tmp_path)
    assert [step for step, _ in scalars(tmp_path)["acc"]] == [1]
    learn("tensorboard", tmp_path)
    assert {name: sorted(events) for name, events in scalars(tmp_path).items()} == whole


def test_what_was_logged_is_on_the_disk_at_once(tmp_path: Path) -> None:
    """So that nothing is lost when the run is killed."""

    class Reader(First):
        def on_step(self, now: Any) -> None:
            if now.at.batches == 0:
                self.moments = len(scalars(tmp_path)["valid/loss"])
                assert self.moments == now.at.lesson * EPOCHS + now.at.epoch

    assert learn("tensorboard", tmp_path, first=Reader()).moments == 4


def test_tensorboard_elsewhere(whole: dict[str, list[tuple[int, float]]], tmp_path: Path) -> None:
    learn(f"tensorboard:{tmp_path}/boards", tmp_path / "runs")
    (file,) = tmp_path.rglob("events.out.*")
    (record,) = tmp_path.rglob("record.json")
    assert file.parent.relative_to(tmp_path / "boards") == record.parent.relative_to(tmp_path / "runs")
    assert scalars(tmp_path / "boards") == whole


def test_a_finished_run_troubles_nobody(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    learn("tensorboard", tmp_path)
    before = list(tmp_path.rglob("events.out.*"))
    learn("tensorboard", tmp_path)
    learn(f"tensorboard:{tmp_path}/boards", tmp_path)
    assert list(tmp_path.rglob("events.out.*")) == before


def test_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    words = ["run", "gpm", "synthetic", "--tasks", "1", "--plan", "epochs=1", "--json"]
    words += ["--track", "tensorboard", "--track", "tensorboard:boards"]
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "boards").rglob("events.out.*"))) == 1
    assert len(list((tmp_path / "runs").rglob("events.out.*"))) == 1
    assert "warning" not in done.stderr


# --- stand-ins ---


class Metric:
    def __init__(self, key: str, value: float, timestamp: int, step: int) -> None:
        assert isinstance(timestamp, int)
        self.key, self.value, self.step = key, value, step


class Param:
    def __init__(self, key: str, value: str) -> None:
        self.key, self.value = key, value


@dataclass
class Server:
    """What an MLflow server keeps."""

    experiments: dict[str, str] = field(default_factory=dict)
    runs: dict[str, SimpleNamespace] = field(default_factory=dict)
    down_after: int = 10**9  # calls

    def call(self) -> None:
        self.down_after -= 1
        if self.down_after < 0:
            raise ConnectionError("Max retries exceeded\nwith url: /api/2.0/mlflow")


class MlflowClient:
    """Those methods of mlflow's client that are used, with its signatures."""

    server: Server

    def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:  # noqa: ARG002
        self.server.call()
        self.tracking_uri = tracking_uri

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        self.server.call()
        number = self.server.experiments.get(name)
        return None if number is None else SimpleNamespace(experiment_id=number)

    def create_experiment(self, name: str, artifact_location: Any = None, tags: Any = None) -> str:  # noqa: ARG002
        self.server.call()
        assert name not in self.server.experiments
        self.server.experiments[name] = str(len(self.server.experiments) + 1)
        return self.server.experiments[name]

    def search_runs(
        self,
        experiment_ids: list[str],
        filter_string: str = "",
        run_view_type: int = 1,  # noqa: ARG002
        max_results: int = 1000,
        order_by: Any = None,  # noqa: ARG002
        page_token: str | None = None,  # noqa: ARG002
    ) -> list[SimpleNamespace]:
        self.server.call()
        key, value = filter_string.removeprefix("tags.").split(" = ")
        found = [r for r in self.server.runs.values() if r.experiment in experiment_ids]
        return [r for r in found if r.tags.get(key) == value.strip("'")][:max_results]

    def create_run(
        self,
        experiment_id: str,
        start_time: Any = None,
        tags: dict[str, Any] | None = None,
        run_name: str | None = None,
    ) -> SimpleNamespace:
        self.server.call()
        assert start_time is None
        number = f"run{len(self.server.runs)}"
        info = SimpleNamespace(run_id=number, status="RUNNING", run_name=run_name)
        made = SimpleNamespace(info=info, experiment=experiment_id, tags=tags, params={}, metrics=[], statuses=[])
        self.server.runs[number] = made
        return made

    def update_run(self, run_id: str, status: str | None = None, name: str | None = None) -> None:  # noqa: ARG002
        self.server.call()
        self.server.runs[run_id].statuses.append(status)

    def get_metric_history(self, run_id: str, key: str) -> list[Metric]:
        self.server.call()
        return [metric for metric in self.server.runs[run_id].metrics if metric.key == key]

    def log_batch(
        self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = (), synchronous: bool | None = None
    ) -> None:
        self.server.call()
        assert tags == ()
        assert synchronous is None
        assert len(params) <= 100
        for param in params:
            assert isinstance(param.value, str)
            assert self.server.runs[run_id].params.setdefault(param.key, param.value) == param.value
        self.server.runs[run_id].metrics += metrics

    def set_terminated(self, run_id: str, status: str | None = None, end_time: Any = None) -> None:  # noqa: ARG002
        self.server.call()
        self.server.runs[run_id].statuses.append(status)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(name, "")  # so that what the code sets is taken back
        monkeypatch.delenv(name)
    module, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    server = Server()
    module.MlflowClient = type("MlflowClient", (MlflowClient,), {"server": server})  # type: ignore[attr-defined]
    entities.Metric, entities.Param = Metric, Param  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return server


def metrics_of(server: Server) -> dict[str, list[tuple[int, float]]]:
    (there,) = server.runs.values()
    found: dict[str, list[tuple[int, float]]] = {}
    for metric in there.metrics:
        found.setdefault(metric.key, []).append((metric.step, metric.value))
    return found


def alike(found: dict[str, list[tuple[int, float]]], whole: dict[str, list[tuple[int, float]]]) -> bool:
    """The same steps of the same figures; TensorBoard rounds to 32 bits."""
    return set(found) == set(whole) and all(
        [step for step, _ in found[name]] == [step for step, _ in whole[name]]
        and [value for _, value in found[name]] == pytest.approx([value for _, value in whole[name]])
        for name in whole
    )


def test_mlflow(server: Server, whole: dict[str, list[tuple[int, float]]], tmp_path: Path) -> None:
    for moment, error in ((8, None), (20, Interrupted("stopped", 15)), (10, Diverged("the loss")), (0, None)):
        assert learn("mlflow:http://127.0.0.1:5000", tmp_path, moment, error).warnings == []
    assert alike(metrics_of(server), whole)
    (there,) = server.runs.values()
    (record,) = tmp_path.rglob("record.json")
    assert there.tags == {"perdure_run": record.parent.name}
    assert there.info.run_name == "gpm synthetic seed 1"
    assert there.params["values.threshold"] == "0.97"
    assert there.params["plan.epochs"] == str(EPOCHS)
    assert there.statuses == ["KILLED", "RUNNING", "KILLED", "RUNNING", "FAILED", "RUNNING", "FINISHED"]
    assert server.experiments == {"perdure": "1"}


@pytest.mark.parametrize("calls", [0, 1, 4, 5, 6, 8, 11])
def test_a_server_that_goes_down_costs_one_warning(calls: int, server: Server, tmp_path: Path) -> None:
    server.down_after = calls
    first = learn("mlflow", tmp_path)
    assert len(list(tmp_path.rglob("record.json"))) == 1
    (warning,) = first.warnings
    assert warning.startswith("mlflow failed (ConnectionError: Max retries exceeded with url")
    assert warning.endswith("the run goes on without it")
    assert "\n" not in warning


def test_the_server_may_come_back(server: Server, tmp_path: Path) -> None:
    """What was logged before is not logged again; what was missed is not there."""
    server.down_after = 7  # six to begin with, and one epoch
    learn("mlflow", tmp_path, moment=20)
    server.down_after = 10**9
    learn("mlflow", tmp_path)
    found = [step for step, _ in metrics_of(server)["valid/loss"]]
    assert found == [1, 3, 4]


class Cloud:
    """What wandb keeps, of one run by its id; offline it keeps everything, but answers nothing."""

    def __init__(self, offline: bool) -> None:
        self.offline = offline
        self.rows: list[dict[str, Any]] = []
        self.counts: list[int] = []
        self.inits: list[dict[str, Any]] = []
        self.exits: list[int] = []
        self.axes: dict[str, str] = {}
        self.fail_finish = False

    def init(
        self,
        entity: str | None = None,
        project: str | None = None,
        dir: Any = None,
        id: str | None = None,
        name: str | None = None,
        notes: str | None = None,
        tags: Any = None,
        config: dict[str, Any] | str | None = None,
        config_exclude_keys: Any = None,
        config_include_keys: Any = None,
        allow_val_change: bool | None = None,
        group: str | None = None,
        job_type: str | None = None,
        mode: Any = None,
        force: bool | None = None,
        reinit: Any = None,
        resume: Any = None,
        resume_from: str | None = None,
        fork_from: str | None = None,
        save_code: bool | None = None,
        tensorboard: bool | None = None,
        sync_tensorboard: bool | None = None,
        monitor_gym: bool | None = None,
        settings: Any = None,
    ) -> "Cloud":
        self.inits.append({name: value for name, value in locals().items() if name != "self" and value is not None})
        return self

    def define_metric(self, name: str, step_metric: str | None = None, **_: Any) -> None:
        assert step_metric is not None
        self.axes[name] = step_metric

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        assert step is not None
        assert commit is None
        assert step >= (self.counts[-1] if self.counts else 0), "wandb throws away what comes too late"
        self.counts.append(step)
        self.rows.append(data)

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        assert quiet is None
        assert exit_code is not None
        if self.fail_finish:
            raise OSError("no route")
        self.exits.append(exit_code)

    @property
    def summary(self) -> dict[str, Any]:
        return {} if self.offline else {name: value for row in self.rows for name, value in row.items()}


@pytest.fixture
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    module = ModuleType("wandb")
    cloud = Cloud(offline=getattr(request, "param", False))
    module.init, module.Settings = cloud.init, SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return cloud


@pytest.mark.parametrize("cloud", [True, False], ids=["offline", "online"], indirect=True)
def test_wandb(cloud: Cloud, whole: dict[str, list[tuple[int, float]]], tmp_path: Path) -> None:
    for moment, error in ((8, None), (20, Interrupted("stopped", 15)), (10, Diverged("the loss")), (0, None)):
        assert learn("wandb:team/robots", tmp_path, moment, error).warnings == []
    found: dict[str, list[tuple[int, float]]] = {}
    for row in cloud.rows:
        (axis,) = {"epoch", "lesson"} & set(row)
        for name, value in row.items():
            if name != axis:
                found.setdefault(name, []).append((row[axis], value))
                pattern = name.partition("/")[0] + "/*" if "/" in name else name
                assert cloud.axes[pattern] == axis
    assert alike(found, whole)
    assert cloud.counts == [0, 1, 2, 3, 4, 5]
    assert cloud.exits == [130, 130, 1, 0]
    (record,) = tmp_path.rglob("record.json")
    for asked in cloud.inits:
        assert (asked["entity"], asked["project"], asked["id"]) == ("team", "robots", record.parent.name)
        assert asked["resume"] == "allow"
        assert asked["config"]["values"]["threshold"] == 0.97


def test_wandb_by_itself(cloud: Cloud, tmp_path: Path) -> None:
    cloud.fail_finish = True
    (warning,) = learn("wandb", tmp_path).warnings
    assert "wandb failed (OSError: no route)" in warning
    assert cloud.inits[0]["project"] == "perdure"
    assert "entity" not in cloud.inits[0]


# --- what is asked wrongly ---


def test_a_tracker_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean tensorboard"):
        learn("tensorbord", tmp_path)
    assert not list(tmp_path.rglob("spec.toml"))


@pytest.mark.parametrize("name", list(trackers.TRACKERS))
def test_a_package_that_is_missing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, trackers.TRACKERS[name].module, None)
    with pytest.raises(PerdureError, match=rf"{name} is not installed: pip install .*\[{name}\]'"):
        learn(name, tmp_path)
    assert not list(tmp_path.rglob("spec.toml"))


def test_no_tracker_is_imported_unasked(tmp_path: Path) -> None:
    """Without --track none of the packages is imported."""
    code = """
import sys
from pathlib import Path
from perdure.lab import trackers
print([name for name in ("tensorboard", "mlflow", "wandb") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip() == "[]"


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_the_stand_in_for_wandb_is_like_the_real_one() -> None:
    """Where that is installed."""
    real = pytest.importorskip("wandb")
    assert set(parameters(Cloud.init)) <= set(parameters(real.init))
    assert parameters(Cloud.log) == parameters(real.Run.log)[:3]
    assert "exit_code" in parameters(real.Run.finish)
    assert parameters(real.Run.define_metric)[:2] == ["name", "step_metric"]
    assert {"console", "silent"} <= set(real.Settings.model_fields)


def test_the_stand_in_for_mlflow_is_like_the_real_one() -> None:
    """Where that is installed."""
    real = pytest.importorskip("mlflow")
    for name, function in vars(MlflowClient).items():
        if callable(function):
            wanted = parameters(function)
            assert parameters(getattr(real.MlflowClient, name))[: len(wanted)] == wanted, name
    assert parameters(real.entities.Metric)[:4] == parameters(Metric)
    assert parameters(real.entities.Param) == parameters(Param)
