"""Robust accuracy after each lesson."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console

from perdure.errors import WrongValue
from perdure.probes.over_time import OverTime
from perdure.probes.probe import ProbeResult, TrainedMethod
from perdure.report.probes import Result, renderer
from perdure.report.table import Table
from perdure.train.evaluate import evaluate


def as_result(label: str, measured: ProbeResult) -> Result:
    return Result(label, {}, measured.figures, {name: array.numpy() for name, array in measured.arrays.items()})


@pytest.mark.parametrize("attack", ["fgsm", "pgd"])
def test_an_attack_that_moves_nothing_leaves_the_matrix_of_the_run(trained: TrainedMethod, attack: str) -> None:
    measured = OverTime(attack=attack, strength=0.0, steps=1).measure(trained)
    evaluated = [
        [evaluate(snapshot, trained.tasks[i].test, i).accuracy for i in range(t + 1)]
        for t, snapshot in enumerate(trained.snapshots)
    ]
    assert measured.figures["clean"]["matrix"] == evaluated
    assert measured.figures["robust"] == measured.figures["clean"]
    assert measured.figures["kept"] == 0


@pytest.mark.parametrize("attack", ["fgsm", "pgd"])
@pytest.mark.parametrize("images", [None, 8])
def test_cost_is_what_is_counted(trained: TrainedMethod, attack: str, images: int | None) -> None:
    probe = OverTime(attack=attack, steps=1, images=images)
    probe.measure(trained)
    assert probe.cost(trained) == trained.progress.done
    assert trained.progress.done.gradients == 6 * (images or 60)


def test_rows_are_the_stages_and_attacks_take_accuracy(trained: TrainedMethod) -> None:
    measured = OverTime(strength=4 / 255, steps=3, images=30).measure(trained)
    clean, robust = (measured.figures[kind]["matrix"] for kind in ("clean", "robust"))
    assert [len(row) for row in robust] == [1, 2, 3]
    assert all(r <= c for rows in zip(robust, clean, strict=True) for r, c in zip(*rows, strict=True))
    assert sum(robust[-1]) < sum(clean[-1])
    low, high = measured.figures["robust"]["intervals"][2][1]
    assert low <= robust[2][1] <= high
    assert measured.headline == {
        "robust ACC, PGD-3 4/255": sum(robust[-1]) / 3,
        "robust BWT, PGD-3 4/255": (robust[2][0] - robust[0][0] + robust[2][1] - robust[1][1]) / 2,
    }
    both = [measured.figures[kind]["bwt"] for kind in ("robust", "clean")]
    assert measured.figures["kept"] == pytest.approx(both[0] - both[1])
    assert measured.arrays["robust"][0].tolist() == [robust[0][0], -1, -1]
    assert measured.arrays["robust"][2].tolist() == robust[2]
    assert OverTime(strength=4 / 255, steps=3, images=30).measure(trained).figures == measured.figures


def test_what_a_stage_has_forgotten_shows_as_forgetting(trained: TrainedMethod) -> None:
    """The last snapshot with the first head turned over: right answers of task 1 become wrong, the others stay."""
    spoiled = deepcopy(trained.snapshots[2])
    with torch.no_grad():
        spoiled.net.heads[0].weight.neg_()
    probe = OverTime(attack="fgsm", strength=1 / 255, images=30)
    before = probe.measure(trained).figures["robust"]
    after = probe.measure(replace(trained, snapshots=[*trained.snapshots[:2], spoiled])).figures["robust"]
    assert after["matrix"][:2] == before["matrix"][:2]
    assert after["matrix"][2][1:] == before["matrix"][2][1:]
    assert after["matrix"][2][0] < before["matrix"][2][0] - 30
    assert after["bwt"] < before["bwt"] - 15
    assert after["forgetting"] > before["forgetting"] + 15
    assert after["learning_accuracy"] == before["learning_accuracy"]


def test_tasks_learned_together_make_one_row(trained: TrainedMethod) -> None:
    measured = OverTime(attack="fgsm", images=20).measure(replace(trained, snapshots=[trained.method]))
    assert [len(row) for row in measured.figures["robust"]["matrix"]] == [3]
    assert measured.figures["robust"]["bwt"] is None
    assert measured.figures["kept"] is None
    assert set(measured.headline) == {"robust ACC, FGSM 2/255"}
    usual = OverTime(images=2).measure(replace(trained, snapshots=[trained.method]))
    assert set(usual.headline) == {"robust ACC"}


def test_without_stages_it_says_what_is_missing(trained: TrainedMethod) -> None:
    bare = replace(trained, snapshots=())
    with pytest.raises(WrongValue, match="give its snapshots"):
        OverTime().measure(bare)
    with pytest.raises(WrongValue, match="give its snapshots"):
        OverTime().cost(bare)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "PGD-10 2/255"),
        ({"attack": "fgsm", "strength": 1.5 / 255}, "FGSM 1.5/255"),
        ({"norm": "l2", "strength": 0.5, "steps": 20}, "PGD-20 L2 0.5"),
        ({"space": "normalized", "strength": 0.1}, "PGD-10 0.1 norm."),
    ],
)
def test_it_is_named_after_its_attack(values: dict[str, object], name: str) -> None:
    assert OverTime(**values).name() == name  # type: ignore[arg-type]


@pytest.mark.parametrize("runs", [1, 3])
def test_it_can_be_shown(trained: TrainedMethod, runs: int) -> None:
    probe = OverTime(attack="fgsm", images=20)
    together = probe.measure(replace(trained, snapshots=[trained.method]))
    results = [as_result("finetune, seed 1", probe.measure(trained)), as_result("mtl, seed 1", together)]
    results = (results + results[:1])[:runs] if runs > 1 else results[:1]
    shown = renderer("over-time")
    assert shown is not None
    console = Console(width=100, record=True)
    for table in shown.tables(results):
        console.print(table)
    (summary,) = [part for part in shown.tables(results) if isinstance(part, Table) and part.columns[0].name == "run"]
    assert any(row[1].bold for row in summary.rows) == (runs > 1)  # the best ACC
    text = console.export_text()
    assert all(result.label in text for result in results)
    assert f"{results[0].figures['robust']['acc']:.1f}" in text
    figure = Figure()
    shown.draw(figure, results)
    assert len(figure.axes) == 2 * runs + (runs > 1)
    figure.canvas.draw()
