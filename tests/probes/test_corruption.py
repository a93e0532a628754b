"""The probe of corrupted images: what it counts, what it compares, and how it is shown."""

from dataclasses import replace
from io import StringIO

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from perdure.errors import BadData, UnknownName, WrongValue
from perdure.ops.corruptions import KINDS, corrupt
from perdure.ops.metrics import wilson
from perdure.probes.corruption import Corruption
from perdure.report.probes import Result
from perdure.report.probes.corruption import draw, tables
from perdure.schema import checked
from perdure.seeding import derive, generator
from perdure.types import Split

FEW = {"kinds": ("contrast", "fog"), "severities": (2, 5)}


class Made:
    """Twins: all images black at severity 2, unchanged at severity 5."""

    kinds = ("night", "nothing")

    def __init__(self, tasks):
        self.tasks = tasks

    def __call__(self, kind, severity):
        assert kind in self.kinds
        return [replace(task.test, x=task.test.x * (severity == 5)) for task in self.tasks]


def test_cost_is_what_is_done(trained):
    for given in (FEW, {**FEW, "images": 37}):
        fresh = replace(trained, progress=type(trained.progress)())
        probe = Corruption(**given)
        probe.measure(fresh)
        assert fresh.progress.done == probe.cost(fresh)
    assert probe.cost(trained).forwards == 3 * 37 * 5
    assert Corruption().cost(trained).forwards == trained.images() * 61


def test_figures_are_the_accuracies_on_corrupted_batches(trained):
    found = Corruption(**FEW).measure(trained)
    figures, by_task = found.figures, found.arrays["acc"]
    assert by_task.shape == (2, 2, 3)
    hits = 0
    for number, (x, y) in enumerate(trained.model(1).batches()):
        moved = corrupt(x, "fog", 5, generator(0, "corruption", "fog", 5, 1, number))
        hits += int((trained.model(1).logits(moved).argmax(1) == y).sum())
    assert float(by_task[1, 1, 1]) == pytest.approx(100 * hits / len(trained.tasks[1].test))
    assert figures["acc"] == by_task.mean(2).tolist()
    assert figures["corrupted"]["acc"] == pytest.approx(float(by_task.mean()))
    assert figures["corrupted"]["by_kind"] == pytest.approx(by_task.mean((1, 2)).tolist())
    assert figures["corrupted"]["by_severity"] == pytest.approx(by_task.mean((0, 2)).tolist())
    assert figures["corrupted"]["by_task"] == pytest.approx(by_task.mean((0, 1)).tolist())
    assert figures["kept"] == pytest.approx(100 * figures["corrupted"]["acc"] / figures["clean"]["acc"])
    assert found.headline == {"corrupted": figures["corrupted"]["acc"]}
    assert "mCE" in figures["source"]


def test_clean_accuracy_is_that_of_the_plain_batches(trained):
    figures = Corruption(**FEW).measure(trained).figures
    for task, accuracy in enumerate(figures["clean"]["by_task"]):
        model = trained.model(task)
        hits = sum(int((model.logits(x).argmax(1) == y).sum()) for x, y in model.batches())
        assert accuracy == pytest.approx(100 * hits / model.images())


def test_intervals_are_of_images_not_of_corruptions(trained):
    found = Corruption(**FEW).measure(trained)
    n = trained.images()
    assert found.figures["images"] == n
    sizes = torch.tensor([len(task.test) for task in trained.tasks])
    hits = (found.arrays["acc"] * sizes / 100).sum(2)
    clean = round(float((torch.tensor(found.figures["clean"]["by_task"]) * sizes / 100).sum()))
    assert found.figures["clean"]["interval"] == pytest.approx(list(wilson(clean, n)))
    assert found.figures["intervals"][1][0] == pytest.approx(list(wilson(round(float(hits[1, 0])), n)))
    assert found.figures["corrupted"]["interval"] == pytest.approx(list(wilson(round(float(hits.mean())), n)))


def test_chance_is_that_of_kind_severity_task_and_batch(trained, monkeypatch):
    seen = []

    def spy(x, *rest):
        seen.append(rest[-1].initial_seed())
        return x

    monkeypatch.setattr("perdure.probes.corruption.corrupt", spy)
    Corruption(kinds=("fog", "jpeg"), severities=(2,), images=10).measure(trained)
    wanted = [derive(0, "corruption", kind, 2, task, 0) for kind in ("fog", "jpeg") for task in range(3)]
    assert seen == wanted


def test_corruption_hurts(trained):
    """Hardly any contrast is left for a network that had it while it learned."""
    acc = Corruption(kinds=("fog", "contrast"), severities=(5, 1)).measure(trained).figures
    assert acc["severities"] == [1, 5]
    assert acc["corrupted"]["by_severity"][1] < acc["corrupted"]["by_severity"][0]


def test_twins_are_judged_instead(trained):
    probe = Corruption(severities=(2, 5), folder="somewhere")
    probe.published = Made(trained.tasks)
    found = probe.measure(trained)
    assert trained.progress.done == probe.cost(trained)
    figures = found.figures
    assert figures["kinds"] == ["night", "nothing"]
    assert figures["source"] == "CIFAR-100-C"
    assert found.arrays["acc"][:, 1].tolist() == [figures["clean"]["by_task"]] * 2
    # One black batch has one answer, so that it is right for one class alone.
    shares = [100 * torch.bincount(task.test.y) / len(task.test) for task in trained.tasks]
    for task, share in enumerate(shares):
        assert float(found.arrays["acc"][0, 0, task]) <= float(share.max()) + 1e-4


def test_twins_of_other_images(trained):
    probe = Corruption(folder="somewhere")
    probe.published = Made([replace(task, test=Split(task.test.x, task.test.y.flip(0))) for task in trained.tasks])
    with pytest.raises(BadData, match="are not those of its test images"):
        probe.measure(trained)


def test_folder_without_twins(trained):
    with pytest.raises(WrongValue, match="images of there were not read"):
        Corruption(folder="there").cost(trained)


def test_values(trained):
    asked = checked("probe corruption", Corruption, {"kinds": "fog, jpeg", "severities": "1,5", "images": "none"})
    assert asked == {"kinds": ("fog", "jpeg"), "severities": (1, 5), "images": None}
    with pytest.raises(UnknownName, match=r"unknown corruption 'frog'; did you mean fog\?"):
        Corruption(kinds=("frog",))
    probe = Corruption(kinds=("fog",), folder="somewhere")  # names of a folder are not ours to judge
    probe.published = Made(trained.tasks)
    with pytest.raises(UnknownName, match=r"\(all: night, nothing\)"):
        probe.cost(trained)
    with pytest.raises(WrongValue, match="severities=0,1 is not allowed"):
        Corruption(severities=(0, 1))
    for empty in ({"kinds": ()}, {"severities": ()}):
        with pytest.raises(WrongValue, match=r"is empty|is not allowed"):
            Corruption(**empty)


# --- shown ---


def result(label, kinds=KINDS, severities=(1, 2, 3, 4, 5), clean=80.0):
    acc = [[clean - (i + 1) * s for s in severities] for i in range(len(kinds))]
    mean = [sum(column) / len(kinds) for column in zip(*acc, strict=True)]
    corrupted = {
        "acc": sum(mean) / len(mean),
        "interval": [40.0, 60.0],
        "by_kind": [sum(row) / len(row) for row in acc],
        "by_severity": mean,
    }
    figures = {"kinds": list(kinds), "severities": list(severities), "acc": acc, "source": "ours", "kept": 55.5}
    return Result(label, {}, {**figures, "corrupted": corrupted, "clean": {"acc": clean}}, {})


def text(results):
    console = Console(width=100, file=StringIO())
    for part in tables(results):
        console.print(part)
    return console.file.getvalue()


def test_table_of_one():
    found = text([result("a")])
    assert max(map(len, found.splitlines())) <= 100
    row = next(line for line in found.splitlines() if "shot-noise" in line)
    assert [cell.strip() for cell in row.split("│")[2:-1]] == ["78.0", "76.0", "74.0", "72.0", "70.0", "74.0"]
    assert "40.0–60.0" in found


def test_tables_of_several():
    labels = [f"a method with a long name {i}, seed {i}" for i in range(7)]
    found = text([result(label, clean=70.0 + i) for i, label in enumerate(labels)])
    assert max(map(len, found.splitlines())) <= 100
    assert "64.0" in next(line for line in found.splitlines() if "shot-noise" in line)
    assert sum("shot-noise" in line for line in found.splitlines()) == 2  # five abreast, and two
    assert found.count("…") == 0


def test_runs_with_other_kinds_and_severities():
    some = [result("a", ("fog", "jpeg"), (1, 2)), result("b", ("jpeg", "contrast"), (5,))]
    found = text(some)
    assert [cell.strip() for cell in next(x for x in found.splitlines() if "fog" in x).split("│")[2:-1]] == [
        "78.5",
        "–",
    ]
    figure = Figure(layout="constrained")
    draw(figure, some)
    figure.draw_without_rendering()


@pytest.mark.parametrize(
    "results",
    [
        [result("a")],
        [result("a", ("fog",), (3,))],
        [result("a", KINDS[:5]), result("b", KINDS[:5], clean=75), result("c", KINDS[:5], clean=99)],
        [result("a", ("fog",)), result("b", ("fog",))],
    ],
)
def test_picture_has_every_kind(results):
    figure = Figure(layout="constrained")
    draw(figure, results)
    figure.draw_without_rendering()
    every = figure.findobj(Axes)
    shown = {label.get_text() for axes in every for label in (*axes.get_yticklabels(), axes.title)}
    assert set(results[0].figures["kinds"]) <= shown
    if len(results) > 1:
        assert {r.label for r in results} <= {label.get_text() for axes in every for label in axes.texts}
