"""Python that cannot silently go wrong: one seed, values that are checked, learning that continues or refuses."""

import inspect
import pydoc
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import Tracking

import perdure
from perdure import registry
from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import BadData, PerdureError, UnknownName, WrongValue
from perdure.methods.gpm import GPM
from perdure.methods.method import Method
from perdure.methods.mtl import MTL
from perdure.methods.rcl import RCL
from perdure.nets.alexnet import SlimAlexNet
from perdure.nets.mlp import MLP
from perdure.nets.network import Backbone, Network, first_weights
from perdure.schema import values_of
from perdure.train.learn import learn
from perdure.train.plan import Plan
from perdure.train.state import Learned
from perdure.types import Stream

QUICK = Plan(rate=0.02, epochs=1, batch=16)


def weights_of(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in net.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# --- one seed ---


def test_the_same_call_gives_the_same_figures_whatever_was_drawn_before(stream: Stream) -> None:
    found = []
    for noise in range(3):
        torch.randn(noise + 1)
        method = RCL(Network(Tracking(stream.shape)), phi_init=0)
        found.append((learn(method, stream, QUICK, seed=1).matrix, weights_of(method.net)))
    assert found[0][0] == found[1][0] == found[2][0]
    assert same(found[0][1], found[1][1])
    assert same(found[0][1], found[2][1])


def test_python_and_the_command_line_start_from_the_same_weights(stream: Stream) -> None:
    from perdure.lab.build import build
    from perdure.lab.spec import spec

    for seed in (1, 4):
        built = build(spec("gpm", "synthetic", network="alexnet-slim", seed=seed), stream)
        assert same(weights_of(built.net), weights_of(Network(SlimAlexNet(stream.shape, seed=seed))))
    assert not same(weights_of(MLP((3, 8, 8))), weights_of(MLP((3, 8, 8), seed=2)))


def test_parts_of_a_network_are_drawn_by_its_seed() -> None:
    class Outer(Backbone):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.width = MLP((3, 4, 4)), 100

    assert same(weights_of(Outer()), weights_of(Outer(seed=1)))
    assert not same(weights_of(Outer(seed=1)), weights_of(Outer(seed=2)))
    assert (Outer(seed=5).seed, Outer(seed=5).inner.seed, Outer().seed) == (5, 5, 1)
    with first_weights(3):
        assert same(weights_of(Outer()), weights_of(Outer(seed=3)))


def test_a_network_that_takes_a_seed_itself_gets_it() -> None:
    class Own(MLP):
        def __init__(self, shape: tuple[int, int, int], *, seed: int = 7) -> None:
            super().__init__(shape)
            self.given = seed

    assert (Own((3, 4, 4)).given, Own((3, 4, 4), seed=3).given, Own((3, 4, 4), seed=3).seed) == (7, 3, 3)


def test_drawing_weights_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    MLP((3, 8, 8), seed=2)
    assert torch.equal(before, torch.get_rng_state())


def test_two_seeds_are_refused_and_none_is_that_of_the_network(stream: Stream) -> None:
    with pytest.raises(WrongValue, match=r"drawn with seed=1; .*MLP\(shape, seed=2\)"):
        learn(GPM(Network(MLP(stream.shape))), stream, QUICK, seed=2)
    method, other = (GPM(Network(MLP(stream.shape, seed=2))) for _ in range(2))
    learn(method, stream, QUICK)
    learn(other, stream, QUICK, seed=2)
    assert same(weights_of(method.net), weights_of(other.net))


# --- learning goes on, or refuses ---


def test_going_on_gives_what_one_call_gives() -> None:
    first, second, third = synthetic(seed=1, tasks=3)
    at_once = RCL(Network(Tracking()), phi_init=0)
    whole = learn(at_once, [first, second, third], QUICK)
    in_parts = RCL(Network(Tracking()), phi_init=0)
    learned = learn(in_parts, [first, second], QUICK)
    again = learn(in_parts, [third], QUICK, learned=learned)
    assert again is learned
    assert again.matrix == whole.matrix
    assert same(weights_of(at_once.net), weights_of(in_parts.net))
    assert [task.name for task in again.tasks] == [first.name, second.name, third.name]
    assert [epoch.lesson for epoch in again.epochs] == [0, 1, 2]


def test_a_method_that_has_learned_is_not_begun_anew(stream: Stream) -> None:
    method = GPM(Network(MLP(stream.shape)))
    learned, before = learn(method, stream, QUICK), None
    before = weights_of(method.net)
    with pytest.raises(WrongValue, match=r"has learned 2 tasks already; .* learned="):
        learn(method, stream, QUICK)
    with pytest.raises(WrongValue, match="'synthetic-0' was learned already"):
        learn(method, stream, QUICK, learned=learned)
    with pytest.raises(WrongValue, match="is of 2 tasks and the method knows 0"):
        learn(GPM(Network(MLP(stream.shape))), [synthetic(seed=1, tasks=3).tasks[2]], QUICK, learned=learned)
    assert same(before, weights_of(method.net))
    assert len(learned.tasks) == len(learned.matrix) == 2


def test_what_is_learned_at_once_cannot_go_on(stream: Stream) -> None:
    method = MTL(Network(MLP(stream.shape)))
    learned = learn(method, stream, QUICK)
    with pytest.raises(WrongValue, match="learns all tasks at once and has learned 2"):
        learn(method, [synthetic(seed=1, tasks=3).tasks[2]], QUICK, learned=learned)


def test_nothing_to_learn_is_said() -> None:
    with pytest.raises(WrongValue, match="no task to learn"):
        learn(GPM(Network(MLP((3, 8, 8)))), [], QUICK)


def test_what_was_learned_in_a_line() -> None:
    learned = Learned([[80.0], [70.0, 90.0]], seconds=12.3)
    assert (learned.acc, learned.bwt, learned.learning_accuracy) == (80.0, -10.0, 85.0)
    assert repr(learned) == "Learned(2 tasks: ACC 80.0, BWT -10.0; 12 s)"
    assert repr(Learned([[80.0]])) == "Learned(1 task: ACC 80.0; 0 s)"
    assert repr(Learned()) == "Learned(nothing yet)"


# --- values ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda net: GPM(net, threshold=5), "method GPM: threshold=5 is not allowed; threshold takes a number ≥ 0 and"),
        (lambda net: RCL(net, features="all"), "features takes separate or shared or ascent or descent"),
        (lambda net: RCL(net, lamda=1), "unknown value of method RCL 'lamda'"),
        (lambda net: GPM(net, samples=0), "samples takes a whole number ≥ 1"),
        (lambda _: Plan(epochs=0, rate=0.1), "the plan: epochs=0 is not allowed; epochs takes a whole number ≥ 1"),
        (lambda _: Plan(rate=-3), "rate takes a number > 0"),
        (lambda _: Plan(rate=float("nan")), "rate takes a number > 0"),
        (lambda _: Plan(schedule="sometimes"), "schedule=sometimes is not allowed"),
    ],
)
def test_values_are_checked_as_on_the_command_line(make: Callable[[Any], Any], message: str) -> None:
    with pytest.raises((WrongValue, UnknownName)) as error:
        make(Network(MLP((3, 8, 8))))
    assert message in str(error.value)


def test_texts_become_numbers_as_on_the_command_line() -> None:
    method = GPM(Network(MLP((3, 8, 8))), threshold="0.5", budget="64MB")
    assert (method.threshold, method.budget) == (0.5, 64_000_000)
    assert Plan(rate="0.5").rate == 0.5


def test_own_methods_are_checked_too_and_need_no_annotations() -> None:
    class Own(Method):
        def __init__(
            self,
            net: Network,
            *,
            strength: float = 1.0,  # s: how careful
            anything=None,
        ) -> None:
            super().__init__(net)
            self.strength, self.anything = strength, anything

    assert Own(Network(MLP((3, 8, 8))), anything=[1]).anything == [1]
    assert (values_of(Own)["strength"].symbol, values_of(Own)["anything"].allowed) == ("s", "any value")
    with pytest.raises(WrongValue, match="strength takes a number"):
        Own(Network(MLP((3, 8, 8))), strength="much")
    made: dict[str, Any] = {"Method": Method}
    exec("class Typed(Method):\n def __init__(self, net, *, k=1):\n  super().__init__(net); self.k = k", made)
    assert made["Typed"](Network(MLP((3, 8, 8))), k=3).k == 3  # typed into a prompt: there is no source to read
    with pytest.raises(UnknownName):
        made["Typed"](Network(MLP((3, 8, 8))), q=3)


def test_what_a_subclass_hands_on_is_not_checked_against_the_subclass() -> None:
    class Fixed(GPM):
        def __init__(self, net: Network) -> None:
            super().__init__(net, threshold=0.5)

    assert Fixed(Network(MLP((3, 8, 8)))).threshold == 0.5


@pytest.mark.parametrize("name", list(registry.methods))
def test_help_tells_what_values_mean(name: str) -> None:
    method = registry.methods.load(name)
    text = pydoc.plain(pydoc.render_doc(method))
    assert "FieldInfo" not in text
    assert "pydantic" not in text
    for value in values_of(method).values():
        assert f"{value.name}{f' ({value.symbol})' if value.symbol else ''} = {value.default!r}: {value.about}" in text
    assert "checked_init" not in str(inspect.signature(method))


# --- the doors ---


def test_every_name_of_the_front_door_is_documented() -> None:
    for name in set(perdure.__all__) - {"__version__"}:
        thing = getattr(perdure, name)
        assert inspect.getdoc(thing), name
        if inspect.isfunction(thing):
            assert "return" in thing.__annotations__, name
        assert name in (perdure.__doc__ or ""), name


def test_what_there_is() -> None:
    assert perdure.catalog("methods")["rcl"] == registry.methods.find("rcl").about
    assert {"six", "cifar100"} <= perdure.benchmarks().keys()
    assert "cifar100" in perdure.datasets()
    with pytest.raises(UnknownName, match="methods"):
        perdure.catalog("method")
    stream = perdure.benchmark("synthetic", seed=3, tasks=2, size=16)
    assert (len(stream), stream.shape) == (2, (3, 16, 16))
    assert torch.equal(stream.tasks[0].train.x, synthetic(seed=3, tasks=2, size=16).tasks[0].train.x)


# --- a finished run ---


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("runs")
    return perdure.run("gpm", "synthetic", tasks=2, net="mlp", plan={"epochs": 2, "rate": 0.02}, out=str(out))


def test_a_loaded_run_is_the_run(record: dict[str, Any]) -> None:
    loaded = perdure.load(record["path"])
    assert loaded.matrix == record["accuracy_matrix"]
    assert loaded.record["acc"] == record["acc"] == loaded.learned.acc
    assert [task.name for task in loaded.tasks] == record["task_names"]
    assert repr(loaded).startswith("LoadedRun(gpm on synthetic, seed 1: Learned(2 tasks: ACC ")
    store = Path(record["path"]).parents[2]
    assert perdure.load(Path(record["path"]).name[:6], out=str(store)).matrix == loaded.matrix


@pytest.mark.parametrize("name", ["spec.toml", "epochs.jsonl", "model.safetensors"])
def test_a_run_of_which_a_file_was_changed_is_not_loaded(name: str, record: dict[str, Any], tmp_path: Path) -> None:
    path = Path(shutil.copytree(record["path"], tmp_path / "six" / "gpm" / Path(record["path"]).name))
    content = (path / name).read_bytes()
    (path / name).write_bytes(content + b"\n")
    with pytest.raises(PerdureError, match=f"{name}: damaged or gone"):
        perdure.load({**record, "path": str(path)})


def test_it_predicts_as_it_was_tested(record: dict[str, Any]) -> None:
    loaded = perdure.load(record)
    test = loaded.tasks[1].test
    found = loaded.predict(test.x, "synthetic-1")
    names = [loaded.tasks[1].classes[label] for label in test.y.tolist()]
    hits = sum(one == other for one, other in zip(found.classes, names, strict=True))
    assert 100 * hits / len(names) == pytest.approx(record["accuracy_matrix"][-1][1])
    assert found.probabilities.shape == (len(names), 3)
    assert torch.allclose(found.probabilities.sum(1), torch.ones(len(names)))
    as_array = np.moveaxis(test.x.numpy(), 1, 3)
    assert loaded.predict(as_array, 1).classes == found.classes
    assert loaded.predict(test.x, 1, batch=7).classes == found.classes
    assert len(loaded.predict(test.x.repeat(2, 1, 1, 1), 1).classes) == 2 * len(test)  # more than it was tested with
    assert loaded.predict(np.zeros((1, 50, 40), np.uint8), 0).probabilities.shape == (1, 3)  # gray, of another size
    with pytest.raises(UnknownName, match="synthetic-0"):
        loaded.predict(test.x, "synthetic-9")
    with pytest.raises(WrongValue, match="use 0 to 1"):
        loaded.predict(test.x, 2)
    with pytest.raises(BadData):
        loaded.predict(np.full((1, 32, 32), np.nan), 0)


def test_it_learns_more_and_the_run_stays(record: dict[str, Any]) -> None:
    before = (Path(record["path"]) / "model.safetensors").read_bytes()
    loaded = perdure.load(record)
    third = synthetic(seed=1, tasks=3).tasks[2]
    learned = loaded.learn_more(third)
    assert [len(row) for row in learned.matrix] == [1, 2, 3]
    assert learned.matrix[:2] == record["accuracy_matrix"]
    assert len(loaded.predict(third.test.x, third.name).classes) == len(third.test)
    straight = perdure.run(
        "gpm",
        "synthetic",
        tasks=3,
        net="mlp",
        plan={"epochs": 2, "rate": 0.02},
        out=str(Path(record["path"]).parents[2]),
    )
    assert learned.matrix == straight["accuracy_matrix"]
    assert (Path(record["path"]) / "model.safetensors").read_bytes() == before


def test_pictures_of_what_was_learned(record: dict[str, Any], tmp_path: Path) -> None:
    learned = perdure.load(record).learned
    assert learned.plot()._repr_png_()[1:4] == b"PNG"
    assert learned.plot("curves", path=str(tmp_path / "curves.png")) == tmp_path / "curves.png"
    assert perdure.plot([record, record]).png[1:4] == b"PNG"
    assert perdure.load(record).plot(path=tmp_path / "matrix.png").read_bytes()[1:4] == b"PNG"


def test_paths_may_be_texts(record: dict[str, Any], tmp_path: Path) -> None:
    from perdure.data.benchmarks.folder import folder
    from perdure.data.validate import check

    store = str(Path(record["path"]).parents[2])
    assert len(perdure.runs(store)) >= 1
    assert perdure.export_runs(store, csv=str(tmp_path / "runs.csv"))
    assert (tmp_path / "runs.csv").exists()
    assert check("cifar100", str(tmp_path))[0].completeness == "unreadable"
    with pytest.raises(BadData):
        folder(path=str(tmp_path / "none"), seed=1)


# What one gets without saying so, as docs/python.md and the commands' help promise it.
RUN = {"out": "runs", "root": None, "device": "cpu"}
CHOICES = {"values": None, "plan": None, "settings": None, "net": None, "tasks": None}
DEFAULTS: dict[str, dict[str, Any]] = {
    "bench": {"what": "ratios", "rounds": 15, "threads": 2, "only": (), "folder": None},
    "benchmark": {"seed": 1, "tasks": None, "root": None},
    "compare": CHOICES | {"seeds": (1, 2, 3), "probes": (), "outliers": "", "against": None},
    "evaluate": {"batch": 64, "order": None},
    "export_runs": {"out": "runs", "filters": (), "per": "run", "csv": None, "parquet": None, "warn": None}
    | {"records": None},
    "learn": {"seed": None, "callback": None, "judged_on": "test", "learned": None, "state": None},
    "load": RUN | {"code": ()},
    "plot": {"kind": None, "path": None},
    "probe": RUN | {"values": None, "code": (), "pictures": True, "progress": None},
    "run": RUN
    | CHOICES
    | {"seed": 1, "outliers": "", "probes": (), "snapshots": False, "without": (), "trackers": (), "pictures": True}
    | {"threads": None, "checkpoint_every": 60.0, "callback": None, "progress": None},
    "runs": {"out": "runs", "filters": ()},
    "search": RUN | CHOICES | {"trials": 20, "seeds": (1,), "jobs": None, "on": "local", "threads": 1, "at_once": None},
    "study": RUN
    | {"only": (), "seeds": ()}
    | {"jobs": None, "on": "local", "scale": 1.0, "threads": None, "cpus": None, "gpus": None, "trackers": ()}
    | {"dry": False, "pictures": True, "callback": None},
    "wrap": {"head": None, "keep_head": False, "free": (), "statistics": "task", "fresh": False},
    "write_report": {"what": None, "file": None, "store": "runs", "scale": 1.0, "format": "html"},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name: str) -> None:
    given = inspect.signature(getattr(perdure, name)).parameters.values()
    found = {one.name: one.default for one in given if one.default is not one.empty and not callable(one.default)}
    assert found == DEFAULTS[name]
