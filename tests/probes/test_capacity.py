"""How full layers are: the measure agrees with GPM's own account, and holds for any method."""

import json
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import WrongValue
from perdure.methods.gpm import GPM
from perdure.nets.alexnet import SlimAlexNet
from perdure.nets.network import Network
from perdure.ops.capacity import forecast
from perdure.probes.capacity import Capacity, in_percent, own_account
from perdure.probes.probe import ProbeResult, TrainedMethod
from perdure.report.probes import Result, capacity
from perdure.seeding import chance
from perdure.train.learn import learn
from perdure.train.plan import Plan

from .conftest import Kept


@pytest.fixture(scope="module")
def found(session_trained: TrainedMethod) -> ProbeResult:
    return Capacity().measure(session_trained)


def shown(measured: ProbeResult, several: int = 1) -> str:
    console = Console(width=100, file=StringIO())
    results = [Result(f"run {i}", {}, measured.figures, {}) for i in range(several)]
    for part in capacity.tables(results):
        console.print(part, markup=False)
    return console.file.getvalue()


def test_every_column_is_explained_below_the_table(found: ProbeResult) -> None:
    text = shown(found, several=2)
    for name, _ in capacity.COLUMNS:
        assert f"{name}: " in text


def test_cost_is_what_is_counted_and_figures_are_plain(trained: TrainedMethod) -> None:
    probe = Capacity(images=40)
    some = probe.measure(trained)
    assert probe.cost(trained) == trained.progress.done
    assert trained.progress.done.forwards == 3 * 40
    json.dumps(some.figures, allow_nan=False)
    left = some.figures["forecast"]["tasks_left"]
    assert set(some.headline) == {"capacity taken"} | ({"tasks left"} if left is not None else set())
    layers = some.figures["layers"]
    assert set(layers) == {"conv1", "conv2", "conv3", "fc1", "fc2"}
    for layer in layers.values():
        assert layer["taken"] == sorted(layer["taken"])
        assert 0 < layer["taken"][0] <= layer["taken"][-1] <= layer["directions"]
        assert layer["own"] is None
    fullest = max(layers, key=lambda name: layers[name]["taken"][-1] / layers[name]["directions"])
    assert some.figures["bottleneck"] == fullest
    assert some.headline["capacity taken"] == pytest.approx(layers[fullest]["percent"][-1])


def test_a_task_seen_twice_takes_nothing_new(trained: TrainedMethod) -> None:
    same = TrainedMethod(trained.method, [trained.tasks[0]] * 3, snapshots=[trained.method] * 3)
    again = Capacity(images=40).measure(same)
    for layer in again.figures["layers"].values():
        assert layer["taken"][-1] - layer["taken"][0] <= 1  # only later tasks reach ε
        assert layer["taken"][1] == layer["taken"][2]
    assert "tasks left" not in again.headline
    assert again.figures["forecast"]["tasks_left"] is None
    assert "more than 100" in again.figures["text"][0]


def test_a_lower_threshold_takes_less(trained: TrainedMethod, found: ProbeResult) -> None:
    for name, layer in Capacity(threshold=0.8).measure(trained).figures["layers"].items():
        assert layer["taken"][-1] < found.figures["layers"][name]["taken"][-1]


def test_one_stage_serves_all_tasks_of_one_lesson(trained: TrainedMethod) -> None:
    joint = TrainedMethod(trained.method, trained.tasks, snapshots=[trained.method])
    apart = TrainedMethod(trained.method, trained.tasks, snapshots=[trained.method] * 3)
    assert Capacity(images=20).measure(joint).figures == Capacity(images=20).measure(apart).figures


def test_forecast_can_be_checked_against_what_came(found: ProbeResult) -> None:
    told, layers = found.figures["forecast"], found.figures["layers"]
    assert [(check["after"], check["at"]) for check in told["checks"]] == [(2, 3)] * 5
    off = [abs(check["said"] - layers[check["layer"]]["percent"][2]) for check in told["checks"]]
    assert told["error"] == pytest.approx(sum(off) / 5)
    assert told["error"] == min(told["errors"][model] for model in ("share", "count", "fading"))


def test_a_forecast_in_percent_by_hand() -> None:
    """Two layers that take a tenth with each task: "count" is right throughout, and so it is taken."""
    shares = {"a": [0.1, 0.2, 0.3], "b": [0.5, 0.6, 0.7]}
    told = in_percent(forecast(shares, free=0.05), shares)
    assert (told["model"], told["ends_in"], told["tasks_left"]) == ("count", "b", 2)  # 0.8, 0.9, and 1.0 is too much
    assert told["error"] == pytest.approx(0, abs=1e-9)
    assert told["errors"]["unchanged"] == pytest.approx(10)
    # "share": of 0.9 and 0.4 that were free 0.1 were taken, then 0.1 of 0.8 and 0.4 …; the error is in percent points
    assert told["errors"]["share"] == pytest.approx(100 * (abs(0.2 + 0.8 / 9 - 0.3) + abs(0.6 + 0.4 / 5 - 0.7)) / 2)
    for name, ahead in (("a", [40, 50, 60]), ("b", [80, 90, 100])):
        assert told["layers"][name]["rate"] == pytest.approx(10)
        assert told["layers"][name]["ahead"] == pytest.approx(ahead)
    assert [told["layers"][name]["tasks_left"] for name in "ab"] == [6, 2]
    assert told["by_model"]["count"] == 2
    assert [(check["layer"], check["said"], check["was"]) for check in told["checks"]] == [
        ("a", pytest.approx(30), pytest.approx(30)),
        ("b", pytest.approx(70), pytest.approx(70)),
    ]


def test_other_rules_end_with_the_layer_that_is_full_first() -> None:
    shares = {"slow": [0.1, 0.15, 0.2], "fast": [0.1, 0.3, 0.5]}
    by_rule = in_percent(forecast(shares, free=0.05), shares)["by_model"]
    assert by_rule["count"] == 2  # 0.7, 0.9, and 1.1 is too much; the slow one has 15


def test_a_method_s_own_account_is_of_what_is_no_longer_free() -> None:
    def account(**facts: dict[str, Any]) -> dict[str, float]:
        return own_account(SimpleNamespace(facts=lambda: facts))  # type: ignore[arg-type]

    assert account(basis={"fc": (3, 12)}) == {"fc": 25.0}
    assert account(free={"fc": 0.3}) == {"fc": pytest.approx(70.0)}
    assert account() == {}


def test_inputs_that_a_layer_was_shown_are_counted(trained: TrainedMethod) -> None:
    """Linear layers see as many as there are images."""
    layers = Capacity(images=20).measure(trained).figures["layers"]
    assert (layers["fc1"]["shown"], layers["fc2"]["shown"]) == (20, 20)


def test_one_task_has_no_forecast_and_says_so(trained: TrainedMethod) -> None:
    alone = Capacity(images=20).measure(
        TrainedMethod(trained.method, trained.tasks[:1], snapshots=trained.snapshots[:1])
    )
    assert alone.figures["forecast"] is None
    assert set(alone.headline) == {"capacity taken"}
    assert "needs two tasks" in shown(alone)


def test_without_stages_it_says_what_it_needs(trained: TrainedMethod) -> None:
    with pytest.raises(WrongValue, match="needs the method as it was after each task"):
        Capacity().measure(TrainedMethod(trained.method, trained.tasks))


def test_agrees_with_what_gpm_itself_holds() -> None:
    """Both see all 90 training images of a task, so layers that take every image's inputs agree to the direction. The
    first layer takes patches of 24 of them, others than GPM drew, and may be off by a few of its 48. (Conv2 and conv3
    would, too, if tasks had more images than their 100.)"""
    stream = synthetic(seed=1, tasks=2)
    with chance(1, "network"):
        method = GPM(Network(SlimAlexNet(stream.shape)), threshold_step=0.0)
    kept = Kept()
    learn(method, stream, Plan(rate=0.02, epochs=1, batch=16, keep="last"), 1, kept)
    measured = Capacity().measure(TrainedMethod(method, stream.tasks, snapshots=kept.snapshots))
    for name, layer in measured.figures["layers"].items():
        own = [round(percent * layer["directions"] / 100) for percent in layer["own"]]
        assert own == [snapshot.facts()["basis"][name][0] for snapshot in kept.snapshots]
        apart = [abs(mine - other) for mine, other in zip(layer["taken"], own, strict=True)]
        assert max(apart) <= (3 if name == "conv1" else 0), name


def test_tables_mark_the_bottleneck_and_compare(found: ProbeResult) -> None:
    assert f"{found.figures['bottleneck']} ◂" in shown(found)
    assert "run 2" in shown(found, several=3)


@pytest.mark.parametrize("several", [1, 3])
def test_draws_every_layer(found: ProbeResult, several: int) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    figure = figures.Figure()
    capacity.draw(figure, [Result(f"run {i}", {}, found.figures, {}) for i in range(several)])
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert len(panels) == several
    for axes in panels:
        assert {"conv1", "conv2", "conv3", "fc1", "fc2"} <= {text.get_text().strip() for text in axes.texts}
