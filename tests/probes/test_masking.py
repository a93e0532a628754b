"""The battery against masked gradients: it catches masks, and does not accuse a plain network."""

import math
from collections.abc import Callable, Iterator
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
from perdure.probes.masking import (
    Masking,
    ScaledLogits,
    _another_seed,
    _curve_checks,
    _middle,
    _rivals,
    _smooth,
    _vanished,
)
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


def right(count: int, of: int = 100) -> Tensor:
    """So many right answers, those of fewer among those of more."""
    return torch.arange(of) < count


def test_another_seed_may_leave_something_else_only_within_the_interval_or_below_chance() -> None:
    """Wilson's interval of 50 in 100 is 40.4 … 59.6; 31 has 22.8 … 40.6, which meets it, 30 has 21.9 … 39.6."""
    verdicts = {other: _another_seed(right(50), right(other), 10.0).verdict for other in (41, 40, 59, 60, 31, 30)}
    assert verdicts == {41: "pass", 40: "warn", 59: "pass", 60: "warn", 31: "warn", 30: "fail"}
    assert _another_seed(right(50), right(20), 50.0).verdict == "pass"
    assert _another_seed(right(50), right(20), 49.0).verdict == "fail"  # one of them leaves more than chance


@pytest.mark.parametrize(
    ("points", "p", "comparisons", "verdict"),
    [
        (5.0, 0.01, 1, "fail"),
        (4.99, 0.01, 1, "warn"),
        (5.0, 0.0101, 1, "warn"),
        (2.0, 0.05, 1, "warn"),
        (1.99, 0.05, 1, "pass"),
        (2.0, 0.0501, 1, "pass"),
        (50.0, 0.005, 2, "fail"),
        (50.0, 0.0051, 2, "warn"),
        (50.0, 0.0251, 2, "pass"),
    ],
)
def test_a_rival_has_to_be_sure_and_to_have_size(points: float, p: float, comparisons: int, verdict: str) -> None:
    assert SignTest(points, p).verdict(comparisons) == verdict


def test_rivals_are_compared_above_chance_and_as_one_of_so_many() -> None:
    """Seven images more, of which none is spared, are p = 2⁻⁷: a failure once, and nothing among eight."""
    pair, same = (right(64, 64), right(57, 64)), (right(64, 64), right(64, 64))
    assert _rivals("loss scale", [pair], 0.0).verdict == "fail"
    assert _rivals("loss scale", [*[pair], *[same] * 4], 0.0).verdict == "warn"
    assert _rivals("loss scale", [*[pair], *[same] * 7], 0.0).verdict == "pass"
    worst_counts = _rivals("loss scale", [same, pair, same], 0.0)
    assert (worst_counts.verdict, worst_counts.value) == ("warn", pytest.approx(100 * 7 / 64))
    taken = [(right(40), right(20))]
    assert [_rivals("loss scale", taken, chance).verdict for chance in (39.9, 40.0)] == ["fail", "pass"]
    assert _rivals("loss scale", taken, 40.0).value == 0


def test_curves_are_judged_against_the_strongest_before_and_by_name() -> None:
    def checks(**curves: list[int]) -> dict[str, str]:
        whole = {name: [10, 10, 10] for name in ("PGD", "FGSM", "Square", "noise")} | curves
        found = {name: torch.stack([right(count) for count in counts]) for name, counts in whole.items()}
        return {check.name: check.verdict for check in _curve_checks(found, 0.0)}

    quiet = {"FGSM": [99] * 3, "Square": [99] * 3, "noise": [99] * 3}
    # twelve points from the first to the last are p = 2 · 2⁻¹², six from one to the next 2 · 2⁻⁶
    assert checks(PGD=[40, 46, 52], **quiet)["falls with strength"] == "fail"
    assert checks(PGD=[40, 40, 46], **quiet)["falls with strength"] == "warn"
    assert checks(PGD=[52, 46, 40], **quiet)["falls with strength"] == "pass"
    names = {"FGSM": "many steps beat one", "Square": "white box beats black box", "noise": "white box beats noise"}
    for attack, name in names.items():
        found = checks(PGD=[50, 50, 50], **{**quiet, attack: [99, 30, 99]})
        assert {check for check in names.values() if found[check] == "fail"} == {name}


def test_what_is_left_of_gray_images_is_chance_by_the_interval() -> None:
    """Of a hundred, 42 may be 32.8 % and 43 no less than 33.7 %."""

    def verdict(left: int) -> str:
        curves = {name: torch.stack([right(left)] * 2) for name in ("PGD", "FGSM", "Square", "noise")}
        return {check.name: check.verdict for check in _curve_checks(curves, 100 / 3)}["nothing left at 0.5"]

    assert [verdict(left) for left in (33, 42, 43)] == ["pass", "pass", "fail"]


def test_attacks_are_compared_where_half_of_what_is_above_chance_is_left() -> None:
    def middle(*left: int) -> int:
        return _middle(torch.stack([right(count) for count in left]), right(90), chance=30.0)

    assert middle(80, 58, 44) == 1  # nearest to 60
    assert middle(70, 50, 10) == 1  # of equals the stronger


def climbing(detour: float) -> Tensor:
    """Losses that go up to 1 and come down so far that this share of the way is lost."""
    return torch.tensor([0.0, 1.0, 2 * (1 - detour) / (2 - detour)], dtype=torch.float64)


@pytest.mark.parametrize(
    ("own", "other", "verdict"),
    [
        (0.099, 0.0, "pass"),  # a tenth is smooth whatever a random line does
        (0.101, 0.0, "warn"),
        (0.299, 0.3, "pass"),  # no more jagged than a random line
        (0.301, 0.3, "warn"),
        (0.499, 0.9, "pass"),  # but half of the way is jagged, however jagged the random line is
        (0.501, 0.9, "fail"),
        (0.499, 0.0, "warn"),
        (0.501, 0.0, "fail"),
    ],
)
def test_jags_on_the_way_up(own: float, other: float, verdict: str) -> None:
    found = _smooth(climbing(own), climbing(other))
    assert (found.verdict, found.value) == (verdict, pytest.approx(100 * own))


def test_a_loss_that_falls_or_stays_is_all_detour_and_a_random_line_may_fall() -> None:
    straight = climbing(0.0)
    for losses in (-straight, 0 * straight):
        assert (_smooth(losses, straight).verdict, _smooth(losses, straight).value) == ("fail", 100)
    assert _smooth(climbing(0.3), torch.tensor([0.0, -1.0, -2.0])).verdict == "warn"  # which is a straight way, too


@pytest.mark.parametrize(("wrong", "gone"), [(0.99e-12, True), (1.01e-12, False)])
def test_a_gradient_is_gone_where_the_answer_is_all_but_certain(wrong: float, gone: bool) -> None:
    logits = torch.tensor([[-math.log(wrong / 2), 0.0, 0.0]], dtype=torch.float64)  # two others, as likely
    assert _vanished(logits, torch.ones(1, 1, 2, 2), torch.zeros(1, dtype=torch.int64)).tolist() == [gone]


class Stub:
    """A model of two classes that says what it is told to, and has any gradient."""

    task, bounds = 0, (0.0, 1.0)

    def __init__(self, images: int, sure: int = 0, gradient: float = 1.0, drift: float = 0.0) -> None:
        self.count, self.sure, self.gradient, self.drift = images, sure, gradient, drift

    def images(self, _limit: int) -> int:
        return self.count

    def batches(self, _limit: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield torch.full((self.count, 1, 1, 1), 0.5, dtype=torch.float64), torch.zeros(self.count, dtype=torch.int64)

    def logits(self, x: Tensor) -> Tensor:
        """The right class leads by two, less by as much as the pixel rises, and by more where it is sure."""
        own = 1 - (x.flatten(1)[:, 0] - 0.5)
        own[: self.sure] = 1e3
        self.offset = self.drift - getattr(self, "offset", self.drift)  # every other time
        return torch.stack([own + self.offset, -own], 1)

    def input_gradient(self, x: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.logits(x)
        return logits, loss(logits), torch.full_like(x, self.gradient)


def gradient_verdict(name: str, stub: Stub) -> tuple[str, float]:
    (found,) = [check for check in Masking()._gradient_checks([stub]) if check.name == name]  # type: ignore[list-item]
    return found.verdict, found.value


@pytest.mark.parametrize(
    ("images", "sure", "verdict"), [(100, 1, "pass"), (99, 1, "warn"), (100, 10, "warn"), (99, 10, "fail")]
)
def test_one_image_in_a_hundred_may_have_no_gradient_and_ten_are_too_many(images: int, sure: int, verdict: str) -> None:
    assert gradient_verdict("gradients are there", Stub(images, sure)) == (verdict, pytest.approx(100 * sure / images))


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (1.0, "pass"),
        (0.501, "pass"),
        (0.499, "warn"),
        (1.999, "pass"),
        (2.001, "warn"),
        (0.251, "warn"),
        (0.249, "fail"),
        (3.999, "warn"),
        (4.001, "fail"),
    ],
)
def test_the_loss_may_rise_by_half_or_twice_of_what_the_gradient_foretells(ratio: float, verdict: str) -> None:
    """The first of eight steps to 1/255, logits over their deviation √2 at the start."""
    step = 1 / 255 / 8
    before, after = (math.log1p(math.exp(-2 * own / math.sqrt(2))) for own in (1, 1 - step))
    stub = Stub(5, gradient=(after - before) / step / ratio)
    assert gradient_verdict("first order holds", stub) == (verdict, pytest.approx(ratio, rel=1e-6))


def test_a_gradient_that_foretells_nothing_does_not_hold() -> None:
    assert gradient_verdict("first order holds", Stub(5, gradient=0.0)) == ("fail", 0.0)


@pytest.mark.parametrize(("drift", "verdict"), [(0.0, "pass"), (1e-12, "warn"), (0.99e-5, "warn"), (1.01e-5, "fail")])
def test_answers_that_differ_from_pass_to_pass(drift: float, verdict: str) -> None:
    """In deviations of an image's logits, which are √2 here; the largest of all batches counts."""
    stubs = [Stub(3, drift=drift * math.sqrt(2)), Stub(3)]
    found = Masking()._repeated(stubs)  # type: ignore[arg-type]
    assert (found.verdict, found.value) == (verdict, pytest.approx(drift, rel=1e-3, abs=1e-16))


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
