"""Attacks crafted on one method and tried on another."""

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
from perdure.ops.attacks import Ball, pgd
from perdure.ops.metrics import wilson
from perdure.probes.probe import Cost, ProbeProgress, TrainedMethod
from perdure.probes.transfer import Transfer, _flags
from perdure.report.probes import Result, renderer
from perdure.seeding import generator
from perdure.train.learn import learn
from perdure.train.plan import Plan
from perdure.types import TaskIds, Weights


class Rounded(FineTune):
    """Has no gradient by the pixels."""

    def forward(self, x: Tensor, task: TaskIds, weights: Weights | None = None) -> Output:
        return super().forward((8 * x).round() / 8, task, weights)


@pytest.fixture(scope="module")
def both() -> tuple[TrainedMethod, TrainedMethod]:
    """Two networks that learned the same from other first weights."""
    stream = synthetic(seed=1, tasks=2, size=8)
    found = []
    for seed in (1, 2):
        method = FineTune(Network(MLP(stream.shape, units=(32,), seed=seed)))
        learned = learn(method, stream, Plan(rate=0.05, epochs=5, batch=16, keep="last"), seed)
        found.append(TrainedMethod(method, learned.tasks, f"seed {seed}"))
    return found[0], found[1]


@pytest.fixture
def pair(both: tuple[TrainedMethod, TrainedMethod]) -> list[TrainedMethod]:
    return [replace(trained, progress=ProbeProgress()) for trained in both]


def rounded(trained: TrainedMethod) -> TrainedMethod:
    method = Rounded(deepcopy(trained.method.net))
    return TrainedMethod(method, trained.tasks, "rounded")


def test_every_cell_is_what_is_left_of_the_column(pair: list[TrainedMethod]) -> None:
    figures = Transfer(strength=16 / 255, steps=5, images=40).measure_across(pair).figures
    a, b = pair[0].model(1), pair[1].model(1)
    x, y = next(a.batches(40))
    moved = pgd(a, x, y, Ball("linf", 16 / 255), steps=5, rng=generator(0, "transfer", 1))
    assert figures["by_task"][1][0] == [100 * int((s.logits(moved).argmax(1) == y).sum()) / 40 for s in (a, b)]
    matrix = figures["matrix"]
    assert matrix[0][1] == pytest.approx(sum(part[0][1] for part in figures["by_task"]) / 2)
    assert matrix[0][0] < matrix[1][0] <= figures["clean"][0]
    assert matrix[1][1] < matrix[0][1] <= figures["clean"][1]
    low, high = figures["intervals"][0][1]
    assert low <= matrix[0][1] <= high
    assert figures["clean_intervals"] == [list(wilson(round(0.8 * acc), 80)) for acc in figures["clean"]]
    assert figures["in_pixels"] == [[16 / 255, 16 / 255]]
    stds = [std for task in pair[0].tasks for std in task.test.std]
    assert figures["in_normalized"] == [pytest.approx([16 / 255 / max(stds), 16 / 255 / min(stds)])]
    assert figures["names"] == ["seed 1", "seed 2"]
    assert figures["flags"] == []


def test_all_are_attacked_from_the_same_draws(pair: list[TrainedMethod]) -> None:
    """Both crafted by hand with streams of their own; and a method beside itself is crafted on alike."""
    found = (
        Transfer(strength=16 / 255, steps=2).measure_across([*pair, pair[0]]).arrays["right"]
    )  # crafted, tried, images
    assert torch.equal(found[1], found[3])
    right = []
    for task in range(2):
        a, b = pair[0].model(task), pair[1].model(task)
        rng = generator(0, "transfer", task)
        for x, y in b.batches(256):
            moved = pgd(b, x, y, Ball("linf", 16 / 255), steps=2, rng=rng)
            right.append(a.right(moved, y))
    assert found[2, 0].tolist() == torch.cat(right).int().tolist()


def test_a_flag_is_one_of_as_many_comparisons_as_there_are_pairs() -> None:
    """Seven images more are p = 2⁻⁷: a failure between one pair, a warning among six, nothing among twelve."""
    own, rival = torch.ones(64, dtype=torch.bool), torch.arange(64) >= 7
    matrix = torch.stack(
        [torch.stack([own, rival]), torch.stack([own, own])]
    )  # crafted on the first, tried on the second
    verdicts = []
    for count in (1, 6, 12):
        pairs = [(0, 1), *[(1, 0)] * (count - 1)]
        verdicts.append([(flag["from"], flag["on"], flag["verdict"]) for flag in _flags(matrix, pairs, ["a", "b"])])
    assert verdicts == [[("a", "b", "fail")], [("a", "b", "warn")], []]


def test_a_method_that_hides_its_gradients_is_flagged(pair: list[TrainedMethod]) -> None:
    measured = Transfer(strength=32 / 255, steps=10).measure_across([pair[0], rounded(pair[0])])
    assert [(flag["from"], flag["on"], flag["verdict"]) for flag in measured.figures["flags"]] == [
        ("seed 1", "rounded", "fail")
    ]
    assert measured.headline["masked"] == 1


def test_cost_is_what_all_count(pair: list[TrainedMethod], trained: TrainedMethod) -> None:
    one = replace(trained, name="again", progress=ProbeProgress())
    for several, images in ((pair, None), ([trained, one], 16)):
        probe = Transfer(steps=2, images=images)
        probe.measure_across(several)
        assert probe.cost_across(several) == sum((s.progress.done for s in several), Cost())
        assert several[0].progress.done == several[1].progress.done


def test_the_same_method_twice_is_white_box_throughout(pair: list[TrainedMethod]) -> None:
    figures = Transfer(strength=8 / 255, steps=3).measure_across([pair[0], pair[0]]).figures
    assert figures["matrix"][0] == figures["matrix"][1]
    assert len(set(figures["matrix"][0])) == 1


def test_only_tasks_that_all_learned_count(pair: list[TrainedMethod]) -> None:
    shorter = replace(pair[1], tasks=pair[1].tasks[:1])
    figures = Transfer(steps=1).measure_across([pair[0], shorter]).figures
    assert figures["tasks"] == ["synthetic-0"]


@pytest.mark.parametrize("change", ["name", "size", "labels"])
def test_other_data_are_refused(pair: list[TrainedMethod], change: str) -> None:
    task = pair[1].tasks[0]
    cut = replace(task.test, x=task.test.x[:-1], y=task.test.y[:-1])
    other = {
        "name": replace(task, name="other"),
        "size": replace(task, test=cut),
        "labels": replace(task, test=replace(task.test, y=task.test.y.roll(1))),
    }[change]
    with pytest.raises(WrongValue, match="did not learn the same"):
        Transfer().measure_across([pair[0], replace(pair[1], tasks=[other])])


def test_one_method_has_nothing_to_transfer_to(pair: list[TrainedMethod]) -> None:
    with pytest.raises(WrongValue, match="two runs or more"):
        Transfer().cost_across(pair[:1])


def test_it_can_be_shown(pair: list[TrainedMethod]) -> None:
    several = [pair[0], rounded(pair[0]), pair[1]]
    measured = Transfer(strength=32 / 255, steps=5).measure_across(several)
    result = Result("seed 1 | rounded | seed 2", {}, measured.figures, {})
    shown = renderer("transfer")
    assert shown is not None
    console = Console(width=100, record=True)
    for table in shown.tables([result]):
        console.print(table)
    assert "crafted on seed 1 takes" in console.export_text()
    figure = Figure()
    shown.draw(figure, [result])
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert f"{measured.figures['matrix'][0][1]:.1f}*" in texts
    figure.canvas.draw()
    assert torch.equal(measured.arrays["right"][1, 1], measured.arrays["right"][1, 1].bool().to(torch.uint8))
