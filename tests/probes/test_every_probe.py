"""What every registered probe must pass, and that probes work for every kind of method."""

import json
import re
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
import torch
from checks import METHODS, PLAN, make
from rich.console import Console

from perdure import registry
from perdure.data.benchmarks.synthetic import synthetic
from perdure.lab.probe_run import probe_spec
from perdure.methods.method import Method
from perdure.probes.probe import Cost, ProbeProgress, ProbeResult, TrainedMethod
from perdure.report.figures import png
from perdure.report.probes import Result, renderer
from perdure.schema import values_of
from perdure.train.learn import learn

from .conftest import Kept

# As little work as still says something.
QUICK: dict[str, dict[str, Any]] = {
    "pgd": {"steps": 2, "images": 16},
    "apgd": {"steps": 3, "images": 16},
    "apgd-t": {"steps": 3, "images": 16},
    "fab": {"steps": 2, "images": 16},
    "square": {"queries": 5, "images": 16},
    "masking": {"images": 16, "steps": 2, "queries": 5},
    "transfer": {"images": 16, "steps": 2},
    "over-time": {"images": 16, "steps": 2},
    "smoothing": {"images": 8, "samples": 40, "selection": 10, "over_time": True},
    "corruption": {"images": 16, "severities": (1, 5)},
    "outliers": {"images": 16},
    "flatness": {"images": 16, "steps": 2},
    "curvature": {"images": 16, "steps": 3, "draws": 2},
    "landscape": {"images": 16, "directions": 2, "points": 5},
    "plane": {"images": 16, "points": 3},
    "geometry": {"images": 16},
    "capacity": {"images": 16},
}
ALONE = [name for name in registry.probes if not registry.probes.load(name).across]


def quick(name: str) -> Any:
    return probe_spec(name, QUICK.get(name, {})).build(synthetic(seed=1))


def result(name: str, found: ProbeResult, label: str = "one") -> Result:
    arrays = {key: array.numpy() for key, array in found.arrays.items()}
    return Result(label, probe_spec(name, QUICK.get(name, {})).values, found.figures, arrays, found.headline)


@pytest.fixture(scope="module")
def found(session_trained: TrainedMethod) -> dict[str, ProbeResult]:
    """What every probe finds; checked on the way that each does what it said, and leaves everything as it was."""
    before = {name: tensor.clone() for name, tensor in session_trained.method.state_dict().items()}
    state = torch.get_rng_state()
    measured = {}
    for name in ALONE:
        trained = replace(session_trained, progress=ProbeProgress())
        told = quick(name).cost(trained)
        assert trained.progress.done == Cost(), f"{name} works before it is asked to"
        measured[name] = quick(name).measure(trained)
        assert trained.progress.done == told, f"{name} takes other work than it says"
    after = session_trained.method.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(state, torch.get_rng_state())
    assert all(weight.grad is None for weight in session_trained.method.parameters())
    return measured


@pytest.mark.parametrize("name", ALONE)
def test_what_is_found_can_be_kept(name: str, found: dict[str, ProbeResult]) -> None:
    measured = found[name]
    json.dumps(measured.figures, allow_nan=False)
    json.dumps(measured.headline, allow_nan=False)
    assert measured.headline
    assert all(isinstance(value, float) for value in measured.headline.values())
    assert measured.arrays
    assert all(array.device.type == "cpu" for array in measured.arrays.values())
    assert (
        not {"probe", "values", "headline", "arrays", "arrays_sum", "seconds", "work", "models"}
        & measured.figures.keys()
    )


SLOW = {"masking", "fab", "apgd-t"}  # and made of attacks that the others show to repeat


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] if name in SLOW else []) for name in ALONE]
)
def test_the_same_again_is_the_same(name: str, found: dict[str, ProbeResult], trained: TrainedMethod) -> None:
    again = quick(name).measure(trained)
    assert again.figures == found[name].figures
    assert all(torch.equal(array, found[name].arrays[key]) for key, array in again.arrays.items())


@pytest.mark.parametrize("name", ALONE)
def test_tables_and_pictures(name: str, found: dict[str, ProbeResult]) -> None:
    """Of one run and of three."""
    results = [result(name, found[name], f"method {n}, seed 1") for n in range(3)]
    where = renderer(name)
    assert where is not None
    console = Console(width=100, record=True, file=StringIO())
    for part in [*where.tables(results[:1]), *where.tables(results)]:
        console.print(part, soft_wrap=isinstance(part, str))
    text = console.export_text()
    assert not re.search(r"\w…", text), "cut off at 100 columns"
    picture = png(lambda figure: where.draw(figure, results))
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 5_000, "an empty page"


@pytest.mark.parametrize("name", list(registry.probes))
def test_every_value_is_explained(name: str) -> None:
    for value in values_of(registry.probes.load(name)).values():
        assert value.about, value.name
        assert value.allowed, value.name


def seen(name: str) -> tuple[object, ...]:
    """All that a probe sees of a method."""
    method = registry.methods.load(name)
    return method.forward, method.forward_each, method.weights, method.end


DIFFERENT = list({seen(name): name for name in METHODS}.values())


@pytest.fixture(scope="module", params=DIFFERENT)
def other(request: pytest.FixtureRequest) -> TrainedMethod:
    method: Method = make(request.param)
    kept = Kept()
    stream = synthetic(seed=1, tasks=2)
    learn(method, stream, replace(PLAN, epochs=1), 1, kept)
    return TrainedMethod(method, stream.tasks, request.param, kept.snapshots, stream.tasks)


SOME = ["pgd", "over-time", "flatness", "geometry", "capacity"]  # of each family one


@pytest.mark.parametrize("name", SOME)
def test_every_kind_of_method_can_be_probed(name: str, other: TrainedMethod) -> None:
    probe = quick(name)
    told = probe.cost(other)
    before = other.progress.done
    measured = probe.measure(other)
    assert other.progress.done == before + told
    json.dumps(measured.figures, allow_nan=False)
