"""The battery against masked gradients: it catches masks, and does not accuse a plain network."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import WrongValue
from perdure.methods.finetune import FineTune
from perdure.nets.mlp import MLP
from perdure.nets.network import Network, Output
from perdure.probes.masking import Masking, ScaledLogits, _another_seed, _vanished
from perdure.probes.probe import ProbeProgress, ProbeResult, TrainedMethod
from perdure.probes.verdicts import SignTest, sign_test
from perdure.report.probes import Result, renderer
from perdure.seeding import chance
from perdure.train.learn import learn
from perdure.train.plan import Plan
from perdure.types import TaskIds, Weights


class Masked(FineTune):
    """A trained network behind something that hides its gradients."""

    before: Callable[[Tensor], Tensor] = staticmethod(lambda x: x)
    after: Callable[[Tensor], Tensor] = staticmethod(lambda logits: logits)

    def forward(self, x: Tensor, task: TaskIds, weights: Weights | None = None) -> Output:
        seen = super().forward(self.before(x), task, weights)
        return Output(self.after(seen.logits), seen.features)


@pytest.fixture(scope="module")
def small() -> TrainedMethod:
    """Quick to attack: a perceptron on images of 8 × 8, without batch norm."""
    stream = synthetic(seed=1, tasks=2, size=8)
    with chance(1, "network"):
        method = Masked(Network(MLP(stream.shape, units=(32,))))
    learned = learn(method, stream, Plan(rate=0.05, epochs=5, batch=16, keep="last"), 1)
    return TrainedMethod(method, learned.tasks, "plain")


@pytest.fixture(scope="module")
def plain(small: TrainedMethod) -> ProbeResult:
    return Masking(strengths=(2 / 255, 8 / 255, 32 / 255), queries=60).measure(replace(small, progress=ProbeProgress()))


def behind(trained: TrainedMethod, **mask: Callable[[Tensor], Tensor]) -> TrainedMethod:
    method = deepcopy(trained.method)
    for name, change in mask.items():
        setattr(method, name, change)
    return TrainedMethod(method, trained.tasks, "masked")


def verdicts(measured: ProbeResult) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in measured.figures["checks"]}


QUICK = {"strengths": (32 / 255,), "steps": 10, "queries": 50}


def test_a_plain_network_is_not_accused(plain: ProbeResult) -> None:
    assert set(verdicts(plain).values()) == {"pass"}
    assert plain.figures["verdict"] == "pass"
    assert plain.headline == {"masking fails": 0.0, "masking warns": 0.0}
    curve = plain.figures["curve"]
    assert curve["strengths"][-1] == 0.5
    assert curve["clean"] > 90
    assert curve["PGD"]["accuracy"][-1] < curve["chance"] == pytest.approx(100 / 3)
    assert curve["images"] == plain.arrays["PGD"].shape[1] == 120


def test_a_plain_network_with_batch_norm_is_not_accused(trained: TrainedMethod) -> None:
    """Its images are coupled, and there are few of them."""
    measured = Masking(strengths=(), images=16, steps=5, queries=5).measure(trained)
    assert "fail" not in verdicts(measured).values()


def test_a_saturated_softmax_is_caught(small: TrainedMethod) -> None:
    found = verdicts(Masking(**QUICK).measure(behind(small, after=lambda logits: 1e4 * logits)))
    assert found["loss scale"] == found["gradients are there"] == "fail"
    assert found["white box beats transfer"] == "fail"
    assert found["same answer twice"] == "pass"


def test_a_slope_that_others_lend_does_not_count() -> None:
    """Batch norm may give a sure image a slope by its pixels; the loss of its own answer has none all the same."""
    logits = torch.tensor([[40.0, 0.0, 0.0], [10.0, 0.0, 0.0], [0.0, 40.0, 0.0], [10.0, 0.0, 0.0]])
    slope = torch.ones(4, 1, 2, 2)
    slope[3] = 0
    found = _vanished(logits, slope, torch.zeros(4, dtype=torch.int64))
    assert found.tolist() == [True, False, False, True]


def test_rounded_inputs_are_caught(small: TrainedMethod) -> None:
    """Their gradient is zero everywhere."""
    measured = Masking(**QUICK).measure(behind(small, before=lambda x: (4 * x).round() / 4))
    found = verdicts(measured)
    assert found["gradients are there"] == found["first order holds"] == found["smooth uphill"] == "fail"
    assert found["white box beats black box"] == "fail"
    assert measured.figures["verdict"] == "fail"
    assert measured.headline["masking fails"] == list(found.values()).count("fail")


def test_shattered_gradients_are_caught(small: TrainedMethod) -> None:
    """Ripples too low to change an answer, too steep for a gradient to lead anywhere."""
    found = verdicts(Masking(**QUICK).measure(behind(small, before=lambda x: x + 0.05 * torch.sin(3000 * x))))
    assert found["first order holds"] == found["smooth uphill"] == "fail"
    assert found["white box beats black box"] != "pass"
    assert found["gradients are there"] == "pass"


def test_random_answers_are_caught(small: TrainedMethod) -> None:
    with chance(1, "test"):
        found = verdicts(Masking(**QUICK).measure(behind(small, before=lambda x: x + 0.1 * torch.randn_like(x))))
    assert found["same answer twice"] == "fail"


def test_cost_is_what_is_counted(small: TrainedMethod, trained: TrainedMethod) -> None:
    for one, probe in (
        (
            replace(small, progress=ProbeProgress()),
            Masking(strengths=(4 / 255, 0.25), images=500, steps=3, queries=4, restarts=2),
        ),
        (trained, Masking(strengths=(), images=16, steps=1, queries=1)),
    ):
        probe.measure(one)
        assert probe.cost(one) == one.progress.done


@pytest.mark.parametrize("strengths", [(0.0,), (0.1, -0.1), (8.0,)])
def test_strengths_are_pixels(strengths: tuple[float, ...]) -> None:
    with pytest.raises(WrongValue, match="such as 4/255"):
        Masking(strengths=strengths)


def test_an_edge_of_an_image_or_two_is_noise() -> None:
    left = torch.ones(64, dtype=torch.bool)

    def without(n: int) -> Tensor:
        return torch.arange(64) >= n

    assert sign_test(left, left) == SignTest(0.0, 1.0)
    assert sign_test(left, without(2)).p == 0.25
    assert sign_test(without(2), left).points == -3.125
    assert [sign_test(left, without(n)).verdict() for n in (2, 5, 7)] == ["pass", "warn", "fail"]
    assert sign_test(left, without(7)).verdict(comparisons=8) == "pass"
    many = torch.ones(2000, dtype=torch.bool)
    assert sign_test(many, torch.arange(2000) >= 20).verdict() == "pass"  # sure, but of one point


def test_another_seed_may_leave_something_else_only_within_the_interval_or_below_chance() -> None:
    first, *others = (torch.arange(100) < right for right in (50, 55, 36, 20))
    assert [_another_seed(first, other, 10.0).verdict for other in others] == ["pass", "warn", "fail"]
    assert _another_seed(first, others[-1], 50.0).verdict == "pass"


def test_dividing_logits_brings_a_slope_back(small: TrainedMethod) -> None:
    sure = behind(small, after=lambda logits: 1e4 * logits).model(0)
    x, y = next(sure.batches(20))
    right = sure.logits(x).argmax(1) == y

    def loss(logits: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits, y, reduction="none")

    assert not sure.input_gradient(x, loss)[2][right].any()
    assert ScaledLogits(sure).input_gradient(x, loss)[2][right].flatten(1).any(1).all()
    assert torch.equal(ScaledLogits(sure).logits(x).argmax(1), sure.logits(x).argmax(1))


@pytest.mark.parametrize("runs", [1, 3])
def test_it_can_be_shown(plain: ProbeResult, runs: int) -> None:
    arrays = {name: array.numpy() for name, array in plain.arrays.items()}
    results = [Result(f"run {n}, seed 1", {}, plain.figures, arrays) for n in range(runs)]
    shown = renderer("masking")
    assert shown is not None
    console = Console(width=100, record=True)
    for table in shown.tables(results):
        console.print(table)
    text = console.export_text()
    assert all(check["name"] in text for check in plain.figures["checks"])
    figure = Figure()
    shown.draw(figure, results)
    assert len(figure.axes) == 2 * runs
    figure.canvas.draw()
