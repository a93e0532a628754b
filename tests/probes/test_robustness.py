"""Accuracy under attack."""

import itertools
import json
import math
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.errors import WrongValue
from perdure.nets.network import Output
from perdure.ops.attacks import Ball, Classifier, apgd, pgd
from perdure.ops.metrics import wilson
from perdure.probes import robustness as probes
from perdure.probes.outliers import Outliers
from perdure.probes.over_time import OverTime
from perdure.probes.probe import TaskModel, TrainedMethod
from perdure.probes.robustness import (
    APGD,
    FAB,
    FGSM,
    PGD,
    APGDTargeted,
    AttackProbe,
    Noise,
    Square,
    _answers,
    _worst,
)
from perdure.probes.transfer import Transfer
from perdure.report.probes import Result, robustness
from perdure.seeding import generator
from perdure.train.evaluate import evaluate
from perdure.types import Weights

PAIR = (2 / 255, 8 / 255)
SMALL: list[AttackProbe] = [
    FGSM(images=20, strengths=PAIR),
    PGD(images=20, strengths=PAIR, steps=2, restarts=2),
    APGD(images=20, strengths=PAIR, steps=2),
    APGDTargeted(images=20, strengths=PAIR, steps=2, restarts=2),
    APGDTargeted(images=20, strengths=PAIR, steps=2, targets=1, norm="l2", samples=2),
    FAB(images=20, strengths=PAIR, steps=2),
    FAB(images=20, strengths=PAIR, steps=2, targets=1, norm="l2", space="normalized"),
    PGD(images=20, strengths=PAIR, steps=2, samples=3, norm="l2"),
    APGD(images=20, strengths=PAIR, steps=2, samples=2, norm="l2"),
    Square(images=20, strengths=PAIR, queries=3),
    Noise(images=20, strengths=PAIR),
    Square(images=20, strengths=PAIR, queries=3, norm="l2", space="normalized"),
]


def named(probe: AttackProbe) -> str:
    return f"{probe.name} {probe.norm} {probe.space}"


@pytest.mark.parametrize("probe", SMALL, ids=named)
def test_the_cost_is_what_is_counted_and_the_figures_are_plain(probe: AttackProbe, trained: TrainedMethod) -> None:
    found = probe.measure(trained)
    assert probe.cost(trained) == trained.progress.done
    assert json.loads(json.dumps(found.figures, allow_nan=False)) == found.figures
    figures = found.figures
    assert list(found.headline.values()) == figures["acc"]
    for level, row in enumerate(figures["by_task"]):
        assert figures["acc"][level] == pytest.approx(sum(row) / len(row))
        hits = [int(found.arrays[f"right_{task}"][level].sum()) for task in range(len(row))]
        assert [100 * count / 20 for count in hits] == row
        assert figures["intervals"]["by_task"][level] == [list(wilson(count, 20)) for count in hits]
        assert figures["intervals"]["pooled"][level] == list(wilson(sum(hits), 60))
    assert found.arrays["clean_0"].shape == (20,)
    assert found.arrays["right_0"].shape == (2, 20)


def test_strength_0_is_clean_and_clean_is_what_training_reports(trained: TrainedMethod) -> None:
    own = [evaluate(trained.method, task.test, i) for i, task in enumerate(trained.tasks)]
    for probe in (
        FGSM(strengths=(0.0,)),
        FGSM(strengths=(0.0,), space="normalized"),
        PGD(strengths=(0.0,), steps=1),
        APGD(strengths=(0.0,), steps=1),
        APGDTargeted(strengths=(0.0,), steps=1),
        FAB(strengths=(0.0,), steps=1),
        Square(strengths=(0.0,), queries=1),
        Noise(strengths=(0.0,), norm="l2"),
    ):
        figures = probe.measure(trained).figures
        assert figures["clean"]["by_task"] == [score.accuracy for score in own]
        assert figures["by_task"][0] == figures["clean"]["by_task"]
        assert figures["loss"][0] == pytest.approx(sum(score.loss for score in own) / len(own), rel=1e-5)


def test_fgsm_in_the_normalized_space_is_a_step_of_the_network_s_input_without_clipping(trained: TrainedMethod) -> None:
    found = FGSM(strengths=(0.3,), space="normalized").measure(trained)
    method, hits, total = trained.method.eval(), 0, 0
    for i, task in enumerate(trained.tasks):
        for x, y in task.test.batches(64):
            start = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(method.forward(start, i).logits, y), start)
            moved = x + 0.3 * slope.sign()
            hits += int((method.forward(moved, i).logits.argmax(1) == y).sum())
            total += len(y)
    assert found.figures["space"] == "normalized images, not clipped"
    assert sum(int(found.arrays[f"right_{i}"].sum()) for i in range(3)) == hits < total


def test_both_strengths_are_given_and_agree_with_the_spread_of_the_pixels(trained: TrainedMethod) -> None:
    stds = ((0.2, 0.25, 0.5), (0.3, 0.3, 0.3), (0.25, 0.3, 0.4))
    tasks = [replace(task, test=replace(task.test, std=std)) for task, std in zip(trained.tasks, stds, strict=True)]
    other = replace(trained, tasks=tasks)
    pixels = FGSM(strengths=(0.01,), images=20).measure(other).figures
    assert pixels["in_pixels"] == [[0.01, 0.01]]
    assert pixels["in_normalized"] == [[pytest.approx(0.01 / 0.5), pytest.approx(0.01 / 0.2)]]
    normalized = FGSM(strengths=(0.01,), images=20, space="normalized").measure(other).figures
    assert normalized["in_normalized"] == [[0.01, 0.01]]
    assert normalized["in_pixels"] == [[pytest.approx(0.01 * 0.2), pytest.approx(0.01 * 0.5)]]


def test_stronger_attacks_leave_less_and_chance_leaves_most(trained: TrainedMethod) -> None:
    by = {
        probe.name: probe.measure(trained).figures
        for probe in (FGSM(strengths=PAIR), PGD(strengths=PAIR, steps=3), Noise(strengths=PAIR))
    }
    clean = by["fgsm"]["clean"]["acc"]
    assert by["pgd"]["acc"][1] < by["pgd"]["acc"][0] < clean
    assert by["pgd"]["acc"][1] <= by["fgsm"]["acc"][1] < by["noise"]["acc"][1]
    assert by["pgd"]["loss"][1] > by["pgd"]["loss"][0] > by["pgd"]["clean"]["loss"]


def test_apgd_counts_the_worst_actual_batch(trained: TrainedMethod) -> None:
    found = APGD(strengths=(8 / 255,), images=20, steps=3).measure(trained)
    model = trained.model(1)
    (x, y), *_ = model.batches(20)
    rng = generator(0, "attack", "apgd", 1, 0, 0)
    hits = []
    for loss in ("ce", "dlr"):
        moved = apgd(model, x, y, Ball("linf", 8 / 255), loss=loss, steps=3, rng=rng)  # type: ignore[arg-type]
        hits.append(int((model.logits(moved).argmax(1) == y).sum()))
    assert int(found.arrays["right_1"].sum()) <= min(hits)
    assert found.figures["notes"] == []


class Lookup:
    """A model whose images are their own logits; counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def logits(self, x: Tensor) -> Tensor:
        self.asked += 1
        return x.flatten(1)


def batch(*leads: float) -> Tensor:
    """Images of which class 0 is said where the lead is positive."""
    return torch.tensor([[lead, 0.0] for lead in leads]).view(-1, 2, 1, 1)


def test_an_image_counts_as_right_only_if_every_attack_leaves_it_right() -> None:
    y, model = torch.zeros(4, dtype=torch.int64), Lookup()
    one, other = batch(1, -1, 1, -1), batch(1, 1, -1, -1)
    found = _worst(model, [one, other], y)  # type: ignore[arg-type]
    assert (found.argmax(1) == y).tolist() == [True, False, False, False]
    assert model.asked == 3


def test_of_batches_that_leave_as_many_right_the_one_with_the_higher_loss_counts() -> None:
    y = torch.zeros(2, dtype=torch.int64)
    for several in ([batch(1, -1), batch(1, -3)], [batch(1, -3), batch(1, -1)]):
        found = _worst(Lookup(), several, y)  # type: ignore[arg-type]
        assert float(found[1, 0]) == -3
    assert torch.equal(_worst(Lookup(), [batch(2, 1)], y), batch(2, 1).flatten(1))  # type: ignore[arg-type]


def test_of_coupled_images_the_union_may_leave_more_right_than_one_attack() -> None:
    """Then that one counts: here every image is right as soon as the first one is."""

    class Coupled(Lookup):
        def logits(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:1].expand(len(x), -1)

    y = torch.zeros(3, dtype=torch.int64)
    found = _worst(Coupled(), [batch(-1, 9, 9), batch(1, -9, -9)], y)  # type: ignore[arg-type]
    assert int((found.argmax(1) == y).sum()) == 0


def test_the_loss_of_a_task_is_the_mean_over_its_images_not_over_its_batches() -> None:
    parts = [(torch.zeros(3, 2), torch.tensor([0, 1, 0])), (torch.tensor([[5.0, 0.0]]), torch.tensor([1]))]
    right, loss = _answers(parts)
    assert right.tolist() == [True, False, True, False]
    assert loss == pytest.approx((3 * math.log(2) + math.log(1 + math.exp(5))) / 4)


def test_pgd_takes_the_rate_that_it_is_given(trained: TrainedMethod) -> None:
    found = PGD(strengths=(8 / 255,), steps=2, restarts=2, rate=1 / 255, images=20).measure(trained)
    model = trained.model(2)
    (x, y), *_ = model.batches(20)
    rng = generator(0, "attack", "pgd", 2, 0, 0)
    moved = pgd(model, x, y, Ball("linf", 8 / 255), steps=2, restarts=2, rate=1 / 255, rng=rng)
    assert found.arrays["right_2"][0].tolist() == model.right(moved, y).int().tolist()
    by_task = found.figures["by_task"][0]
    assert by_task != PGD(strengths=(8 / 255,), steps=2, restarts=2, images=20).measure(trained).figures["by_task"][0]


def test_apgd_leaves_dlr_out_for_two_classes_and_says_so(trained: TrainedMethod) -> None:
    first = trained.tasks[0]
    pair = replace(first, **{part: replace(getattr(first, part), y=getattr(first, part).y % 2) for part in PARTS})
    two = replace(pair, classes=pair.classes[:2], name="pair")
    probe = APGD(images=20, steps=2)
    found = probe.measure(replace(trained, tasks=[two, *trained.tasks[1:]]))
    assert found.figures["notes"] == ["by cross-entropy alone, since DLR needs three classes: pair"]
    assert probe.cost(replace(trained, tasks=[two, *trained.tasks[1:]])) == trained.progress.done


def test_targeted_apgd_says_where_there_are_too_few_classes_for_its_loss(trained: TrainedMethod) -> None:
    few = [task.name for task in trained.tasks]
    told = f"by the difference of logits, since targeted DLR needs four classes: {', '.join(few)}"
    assert APGDTargeted().notes(trained.tasks) == [told]
    assert APGDTargeted().notes([replace(task, classes=("a", "b", "c", "d")) for task in trained.tasks]) == []


def test_targets_beyond_the_wrong_classes_cost_nothing(trained: TrainedMethod) -> None:
    for probe in (APGDTargeted, FAB):
        one, two, nine = (probe(images=8, steps=2, targets=count).cost(trained) for count in (1, 2, 9))
        assert one.gradients < two.gradients
        assert two == nine


def test_attacks_see_the_mean_of_so_many_passes_and_are_judged_by_one(
    trained: TrainedMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a network that answers in turn by its logits and by their opposite there is nothing left on average."""
    plain, turns = TaskModel.forward, itertools.cycle((1.0, -1.0))

    def shaken(self: TaskModel, x: Tensor, weights: Weights | None = None) -> Output:
        out = plain(self, x, weights)
        return replace(out, logits=next(turns) * out.logits)

    seen = []

    def spy(model: Classifier, x: Tensor, *_: Any, **__: Any) -> Tensor:
        seen.append((model.logits(x), model.input_gradient(x, lambda logits: logits.square().sum(1))))
        return x

    monkeypatch.setattr(TaskModel, "forward", shaken)
    monkeypatch.setattr(probes, "pgd", spy)
    monkeypatch.setattr(probes, "apgd", spy)
    monkeypatch.setattr(probes, "apgd_targeted", spy)
    for probe in (PGD, APGD, APGDTargeted):
        for samples in (1, 2):
            seen.clear()
            probe(images=8, strengths=(0.1,), steps=1, samples=samples).measure(trained)
            for logits, (others, _, gradient) in seen:
                assert (float(logits.abs().max()) < 1e-6) == (float(others.abs().max()) < 1e-6) == (samples == 2)
                assert float(gradient.abs().max()) > 0  # of a square: the same in both turns


PARTS = ("train", "valid", "test")


def test_headlines_name_attack_and_strength(trained: TrainedMethod) -> None:
    def names(probe: AttackProbe) -> list[str]:
        return list(probe.measure(trained).headline)

    assert names(FGSM(images=8)) == ["FGSM 1/255", "FGSM 2/255", "FGSM 4/255"]
    assert names(PGD(images=8, steps=2, norm="l2")) == ["PGD-2 L2 0.1", "PGD-2 L2 0.25", "PGD-2 L2 0.5"]
    assert names(Noise(images=8, space="normalized"))[1] == "noise 0.001 norm."
    assert names(Square(images=8, queries=1, strengths=(0.005,))) == ["Square 0.005"]


def test_wrong_strengths_are_refused() -> None:
    with pytest.raises(WrongValue, match="at least one strength"):
        FGSM(strengths=())
    with pytest.raises(WrongValue, match="≥ 0"):
        PGD(strengths=(-1.0,))
    FGSM(strengths=(1.0,))
    FGSM(strengths=(300 / 255,), norm="l2")
    FGSM(strengths=(300 / 255,), space="normalized")
    FGSM(strengths=(10_000,), norm="l2")
    with pytest.raises(WrongValue, match="strength 10001 is not allowed; no image is that far"):
        FGSM(strengths=(10_001,), norm="l2")
    for probe in (FGSM, PGD, APGD, APGDTargeted, FAB, Square, Noise):
        with pytest.raises(WrongValue, match=r"strength 1\.17647 is not allowed; pixels are 0 … 1, give at most 1"):
            probe(strengths=(4 / 255, 300 / 255))
    for other in (OverTime, Transfer, Outliers):
        with pytest.raises(WrongValue, match="give at most 1"):
            other(strength=300 / 255)


def test_tables_and_pictures_of_one_run_and_of_three(trained: TrainedMethod) -> None:
    from matplotlib.figure import Figure
    from rich.console import Console

    found = FGSM(images=20).measure(trained)
    arrays = {name: array.numpy() for name, array in found.arrays.items()}
    one = [Result("finetune, seed 1", {}, found.figures, arrays)]
    other = FGSM(images=20, strengths=(0.0, 8 / 255)).measure(trained).figures
    three = [*one, Result("gpm, seed 1", {}, other, {}), Result("rcl, seed 1", {}, found.figures, {})]
    for results in (one, three):
        console = Console(width=100, record=True, file=StringIO())
        for table in robustness.tables(results):
            console.print(table)
        text = console.export_text()
        assert "…" not in text.replace(" … ", "")  # nothing cut off
        rows = robustness.tables(results)[0].rows
        clean = [row[4] for row in rows if row[1].text == "clean"]
        highest = max(float(cell.text) for cell in clean)
        assert [cell.bold for cell in clean] == [len(results) > 1 and float(cell.text) == highest for cell in clean]
        for result in results:
            assert result.label in text
            assert f"{result.figures['clean']['acc']:.1f}" in text
            for acc in result.figures["acc"]:
                assert f"{acc:.1f}" in text
        figure = Figure()
        robustness.draw(figure, results)
        (axes,) = figure.axes
        assert {result.label for result in results} <= {label.get_text() for label in axes.texts}
