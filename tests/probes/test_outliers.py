"""Outliers beside their twins: closed forms on a linear network, and the fixture's runs."""

import json
import math
from dataclasses import replace
from io import StringIO
from statistics import fmean

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from perdure.errors import WrongValue
from perdure.methods.finetune import FineTune
from perdure.nets.network import Backbone, Network
from perdure.ops.contamination import contaminate
from perdure.ops.outliers import past_gradient, weight_span
from perdure.probes.outliers import Outliers, agreement
from perdure.probes.probe import ProbeResult, TrainedMethod
from perdure.report.probes import Result, outliers
from perdure.seeding import generator
from perdure.types import Split, Task

from . import plain


class Flat(Backbone):
    """One linear layer: with the heads, a linear softmax model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 4, bias=False)
        self.width = 4

    def forward(self, x: Tensor, quiet: bool = False) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        hidden = self.layer(x.flatten(1))
        return hidden, hidden


def linear(tasks: int = 3, images: int = 20) -> TrainedMethod:
    """Two classes a task, float64; every task has its own normalization, every snapshot its own weights, and a head for
    each task so far."""
    chance = generator(0, "test")
    made, snapshots = [], []
    for task in range(tasks):
        x = 0.3 + 0.4 * torch.rand(images, 3, 2, 2, generator=chance, dtype=torch.float64)
        split = Split(x, torch.arange(images) % 2, (0.5,) * 3, (0.25, 0.5 + task / 8, 1.0))
        made.append(Task(f"task {task}", ("a", "b"), split, split, split))
        net = Network(Flat()).double()
        for _ in range(task + 1):
            net.add_head(2)
        for weight in net.parameters():
            weight.data = torch.randn(weight.shape, generator=chance, dtype=torch.float64)
        snapshots.append(FineTune(net))
    return TrainedMethod(snapshots[-1], made, snapshots=snapshots)


def contaminated(trained: TrainedMethod, rate: float, kind: str) -> TrainedMethod:
    dirty = []
    for number, task in enumerate(trained.tasks):
        foreign = 1 - task.train.x
        train = contaminate(task.train, kind, rate, classes=2, rng=generator(0, number), foreign=foreign)  # type: ignore[arg-type]
        dirty.append(replace(task, train=train))
    return TrainedMethod(trained.method, dirty, snapshots=trained.snapshots, clean=trained.tasks)


def claim(found: ProbeResult, start: str) -> dict[str, float]:
    (one,) = [one for one in found.figures["claims"] if one["claim"].startswith(start)]
    return one


def answers(trained: TrainedMethod, snapshot: int, head: int, x: Tensor) -> Tensor:
    """Of a linear network by hand: images (n, 12), as the network is given them, to logits."""
    net = trained.snapshots[snapshot].net
    return x @ net.backbone.layer.weight.T @ net.heads[head].weight.T  # type: ignore[union-attr, operator]


# --- the functions ---


def test_past_gradient_is_the_logit_gradient_over_past_classes() -> None:
    logits = torch.randn(5, 7, generator=generator(0, "logits"), dtype=torch.float64, requires_grad=True)
    loss = nn.functional.cross_entropy(logits, torch.tensor([4, 5, 6, 4, 5]), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(past_gradient(logits.detach(), 4), gradient[:, :4].abs().sum(1))


def test_past_gradient_keeps_the_digits_of_a_network_that_is_sure() -> None:
    """Logits in single precision, all of whose digits count: the past class has a share of 1 / (1 + e⁴⁰)."""
    found = past_gradient(torch.tensor([[0.0, 40.0]]), 1)
    assert float(found) == pytest.approx(1 / (1 + math.exp(40)), rel=1e-12)


def test_weight_span_is_one_norm_over_all_tensors() -> None:
    before = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}
    now = {"a": torch.tensor([3.0, 3.0]), "b": torch.tensor([[0.0]])}
    assert weight_span(now, before) == pytest.approx((5.0, 1.0))


def test_agreement_needs_three_lessons_that_differ() -> None:
    assert agreement([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == pytest.approx(1.0)
    assert agreement([1.0, 2.0], [2.0, 4.0]) is None
    assert agreement([1.0, 1.0, 1.0], [2.0, 4.0, 6.0]) is None


# --- closed forms ---


def test_first_order_is_exact_for_small_steps_and_adversaries_climb() -> None:
    """The error of Eq. 2 is of second order: a tenth of the step has a hundredth of it."""
    gaps = []
    for strength in (1e-2, 1e-3):
        found = Outliers(strength=strength).measure(linear()).figures
        gaps.append(abs(found["mean"]["excess"] - found["mean"]["first_order"]))
        assert found["mean"]["excess"] > 0
    assert gaps[1] == pytest.approx(gaps[0] / 100, rel=0.1)


@torch.no_grad()
def test_figures_of_a_linear_network_by_hand() -> None:
    """Adversarial outliers of task 1 (the second): Eqs. 2–4 without the probe."""
    trained, step = linear(), 0.05
    found = Outliers(strength=step).measure(trained).figures["tasks"][1]
    split = trained.tasks[1].train
    net = trained.snapshots[1].net
    whole = net.backbone.layer.weight, net.heads[1].weight
    scale = torch.tensor(split.std).double().repeat_interleave(4)
    x, y = ((split.x - 0.5) / scale.view(1, 3, 2, 2)).flatten(1), split.y
    wrong = answers(trained, 1, 1, x).softmax(1) - nn.functional.one_hot(y, 2)
    slope = wrong @ whole[1] @ whole[0] / scale  # by pixels
    odd = x + step * slope.sign() / scale
    loss = [nn.functional.cross_entropy(answers(trained, 1, 1, images), y) for images in (x, odd)]
    assert found["excess"]["real"] == pytest.approx(float(loss[1] - loss[0]))
    assert found["excess"]["first_order"] == pytest.approx(step * float(slope.abs().sum(1).mean()))
    for images, side in ((x, "clean"), (odd, "outlier")):
        logits = torch.cat([answers(trained, 1, head, images) for head in (0, 1)], 1)
        assert found["past_gradient"][side] == pytest.approx(float(logits.softmax(1)[:, :2].sum(1).mean()))
        errors = answers(trained, 1, 1, images).softmax(1) - nn.functional.one_hot(y, 2)
        by_weights = (errors @ whole[1]).T @ images / len(images)
        assert found["weight_gradient"][side] == pytest.approx(float(by_weights.norm()))


@torch.no_grad()
def test_spans_and_past_losses_are_from_one_stage_to_the_next() -> None:
    trained = linear()
    layers = [snapshot.net.backbone.layer.weight for snapshot in trained.snapshots]

    def loss(task: int, snapshot: int) -> float:
        split = trained.tasks[task].train
        logits = answers(trained, snapshot, task, split.normalize(split.x).flatten(1))
        return float(nn.functional.cross_entropy(logits, split.y))

    for number, found in enumerate(Outliers().measure(trained).figures["tasks"]):
        if number:
            rises = [loss(old, number) - loss(old, number - 1) for old in range(number)]
            assert found["past_loss_rise"] == pytest.approx(sum(rises) / number)
            span = float((layers[number] - layers[number - 1]).norm())
            assert found["span"] == pytest.approx(span)
            assert found["relative_span"] == pytest.approx(span / float(layers[number - 1].norm()))
        else:
            assert found["span"] is found["past_loss_rise"] is None


def test_identical_twins_differ_in_nothing() -> None:
    trained = linear()
    same = [replace(task, train=replace(task.train, x=1 - task.train.x)) for task in trained.tasks]
    twin = TrainedMethod(trained.method, same, snapshots=trained.snapshots, clean=same)
    found = Outliers(strength=1e-300).measure(twin)  # so small a step that no pixel moves
    assert found.headline["excess loss"] == 0
    assert found.headline["past gradient ×"] == found.headline["weight gradient ×"] == 1
    assert claim(found, "Eq. 2")["held"] == claim(found, "Eq. 3")["held"] == claim(found, "Eq. 4")["held"] == 0


def test_foreign_images_come_from_the_task_before() -> None:
    """Where that task has the same images, nothing is foreign."""
    trained = linear(tasks=2)
    alike = [trained.tasks[0], replace(trained.tasks[1], train=trained.tasks[0].train)]
    found = Outliers(kind="foreign").measure(TrainedMethod(trained.method, alike, snapshots=trained.snapshots))
    assert [task["excess"]["real"] for task in found.figures["tasks"]] == [0, 0]
    assert Outliers(kind="foreign").measure(trained).figures["tasks"][1]["excess"]["real"] != 0
    with pytest.raises(WrongValue, match="there is one task"):
        Outliers(kind="foreign").measure(linear(tasks=1))


def test_foreign_images_of_a_third_task_come_from_the_second() -> None:
    trained = linear()
    alike = [*trained.tasks[:2], replace(trained.tasks[2], train=trained.tasks[1].train)]
    found = Outliers(kind="foreign").measure(TrainedMethod(trained.method, alike, snapshots=trained.snapshots))
    assert [task["excess"]["real"] == 0 for task in found.figures["tasks"]] == [False, False, True]


def test_noise_moves_less_than_the_adversary() -> None:
    by_kind = [Outliers(kind=kind).measure(linear()).headline["excess loss"] for kind in ("noise", "adversarial")]
    assert abs(by_kind[0]) < by_kind[1] / 2


# --- outliers that the run learned from ---


@torch.no_grad()
def test_contaminated_rows_are_found_and_stand_beside_their_originals() -> None:
    trained = contaminated(linear(images=200), 0.1, "foreign")
    found = Outliers(images=50).measure(trained).figures
    assert found["source"] == "those of the run"
    assert [(task["images"], task["outliers"]) for task in found["tasks"]] == [(50, 20)] * 3
    few = Outliers(images=8).measure(trained).figures["tasks"]  # outliers come first
    assert [(task["images"], task["outliers"]) for task in few] == [(8, 8)] * 3
    pure = trained.clean[0].train
    changed = (trained.tasks[0].train.x != pure.x).flatten(1).any(1)
    scale = torch.tensor(pure.std).double().view(1, 3, 1, 1)
    loss = [
        nn.functional.cross_entropy(
            answers(trained, 0, 0, ((split.x - 0.5) / scale).flatten(1)[changed]), split.y[changed]
        )
        for split in (pure, trained.tasks[0].train)
    ]
    assert found["tasks"][0]["excess"]["real"] == pytest.approx(float(loss[1] - loss[0]))
    assert found["tasks"][0]["loss"]["clean"] == pytest.approx(float(loss[0]))


def test_wrong_labels_cost_what_no_gradient_by_pixels_foretells() -> None:
    found = Outliers().measure(contaminated(linear(images=100), 0.2, "labels")).figures["tasks"][1]
    assert found["excess"]["first_order"] == 0
    assert found["excess"]["real"] != 0
    assert found["past_gradient"]["ratio"] == 1


def test_the_right_class_is_that_of_the_image_whatever_its_label_says() -> None:
    """Images with wrong labels are the same images: no logit of the right class falls."""
    found = Outliers().measure(contaminated(linear(images=100), 0.2, "labels"))
    assert claim(found, "Sec. 3.2: r_c falls (logit of the right class)")["held"] == 0
    assert 0 < claim(found, "Eq. 2")["held"] < 100


def every_third_inverted(trained: TrainedMethod) -> TrainedMethod:
    """Of the second and the third task, every third training image; the first stays clean."""
    dirty = [trained.tasks[0]]
    for task in trained.tasks[1:]:
        x = task.train.x.clone()
        x[::3] = 1 - x[::3]
        dirty.append(replace(task, train=replace(task.train, x=x)))
    return replace(trained, tasks=dirty, clean=trained.tasks)


def looked_at(images: int, task: int) -> list[int]:
    """Which 72 rows: outliers before others, but in the order in which all probes take images."""
    order = torch.randperm(images, generator=torch.Generator().manual_seed(0)).tolist()
    outliers = [row for row in order if task > 0 and row % 3 == 0]
    chosen = {*outliers, *[row for row in order if row not in outliers][: 72 - len(outliers)]}
    return [row for row in order if row in chosen]


def slopes(model: plain.Answers, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Of the mean loss, by the weights that all tasks share."""
    weights = {name: w.clone().requires_grad_() for name, w in model.weights.items() if name.startswith("backbone.")}
    found = torch.autograd.grad(model.losses(x, y, weights).mean(), list(weights.values()))
    return dict(zip(weights, found, strict=True))


def test_claims_and_layers_by_hand() -> None:
    """On a network of two layers, in batches of 64 and of 8, of which only outliers count."""
    trained = every_third_inverted(plain.make().trained)
    figures = Outliers(images=72).measure(trained).figures
    grew: dict[str, list[bool]] = {
        name: [] for name in ("Eq. 2", "r_p rises", "(mean logit of the", "(logit of", "Eq. 3")
    }
    steeper = []
    for task, snapshot in enumerate(trained.snapshots):
        clean, odd = trained.clean[task].train, trained.tasks[task].train
        heads = [plain.Answers(snapshot, head, clean) for head in range(task + 1)]
        rows = looked_at(len(clean), task)
        for batch in (rows[:64], rows[64:]):
            y = clean.y[batch]
            before, after = (slopes(heads[-1], split.x[batch], y) for split in (clean, odd))
            lengths = [float(torch.cat([part.flatten() for part in side.values()]).norm()) for side in (before, after)]
            outliers = [row for row in batch if task > 0 and row % 3 == 0]
            steeper += [lengths[1] > lengths[0]] if outliers else []
        for row in (row for row in rows if task > 0 and row % 3 == 0):
            label = int(clean.y[row])
            sides = [[head(split.x[row : row + 1])[0] for head in heads] for split in (clean, odd)]
            (past, own), (odd_past, odd_own) = ((torch.cat(logits[:-1]), logits[-1]) for logits in sides)
            grew["Eq. 2"].append(bool(odd_own.log_softmax(0)[label] < own.log_softmax(0)[label]))
            grew["r_p rises"].append(bool(odd_past.mean() > past.mean()))
            grew["(mean logit of the"].append(bool(odd_own.mean() < own.mean()))
            grew["(logit of"].append(bool(odd_own[label] < own[label]))
            shares = [torch.cat(logits).softmax(0)[: len(past)].sum() for logits in sides]
            grew["Eq. 3"].append(bool(shares[1] > shares[0]))
        if task == 2:
            norms = {layer: found["clean"] for layer, found in figures["tasks"][2]["weight_gradient"]["layers"].items()}
            parts = [slopes(heads[-1], clean.x[batch], clean.y[batch]) for batch in (rows[:64], rows[64:])]
            assert norms == {
                layer: pytest.approx(fmean(float(part[f"backbone.{layer}.weight"].norm()) for part in parts))
                for layer in ("conv", "fc")
            }
    rises = [task["past_loss_rise"] > 0 for task in figures["tasks"][1:]]
    found = {claim["claim"]: claim for claim in figures["claims"]}
    assert len(found) == 7
    for name, held in {**grew, "Eq. 4": steeper, "Fig. 2a": rises}.items():
        (claim_of,) = [claim for text, claim in found.items() if name in text]
        assert (claim_of["of"], claim_of["held"]) == (len(held), pytest.approx(100 * fmean(held))), name
    assert len({claim["held"] for claim in found.values()}) > 3  # they are told apart


def test_a_task_without_outliers_among_contaminated_ones_has_no_figures() -> None:
    trained = contaminated(linear(), 0.2, "foreign")
    mixed = TrainedMethod(
        trained.method, [trained.clean[0], *trained.tasks[1:]], snapshots=trained.snapshots, clean=trained.clean
    )
    probe = Outliers()
    found = probe.measure(mixed)
    first = found.figures["tasks"][0]
    assert first["outliers"] == 0
    assert first["excess"] is first["loss"] is first["weight_gradient"] is None
    assert found.figures["tasks"][1]["excess"] is not None
    assert probe.cost(mixed) == mixed.progress.done
    assert "task 0" in shown(found)


# --- the fixture's runs ---


@pytest.fixture(scope="module")
def found(session_trained: TrainedMethod) -> ProbeResult:
    return Outliers(images=64).measure(session_trained)


def shown(measured: ProbeResult, several: int = 1) -> str:
    console = Console(width=100, file=StringIO())
    for part in outliers.tables([Result(f"run {i}", {}, measured.figures, {}) for i in range(several)]):
        console.print(part, markup=False)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("kind", ["adversarial", "noise", "foreign"])
def test_cost_is_what_is_counted(trained: TrainedMethod, kind: str) -> None:
    probe = Outliers(kind=kind, images=16)  # type: ignore[arg-type]
    json.dumps(probe.measure(trained).figures, allow_nan=False)
    assert probe.cost(trained) == trained.progress.done


def test_the_cost_is_right_where_one_lesson_held_all_tasks(trained: TrainedMethod) -> None:
    joint = TrainedMethod(trained.method, trained.tasks, snapshots=[trained.method])
    probe = Outliers(images=16)
    measured = probe.measure(joint)
    assert probe.cost(joint) == joint.progress.done
    assert "weight span" not in measured.headline
    assert all(task["span"] is None for task in measured.figures["tasks"])


def test_adversaries_of_a_trained_network_do_what_eqs_2_to_4_say(found: ProbeResult) -> None:
    assert set(found.headline) == {"excess loss", "past gradient ×", "weight gradient ×", "weight span"}
    assert found.headline["excess loss"] > 0
    assert found.headline["weight gradient ×"] > 1
    assert claim(found, "Eq. 2")["held"] > 90
    assert claim(found, "Eq. 2")["of"] == 3 * 64
    assert claim(found, "Eq. 3")["of"] == 2 * 64  # the first task has no past
    assert found.figures["tasks"][0]["past_gradient"] is None


def test_without_stages_it_says_what_it_needs(trained: TrainedMethod) -> None:
    bare = TrainedMethod(trained.method, trained.tasks)
    for ask in (Outliers().measure, Outliers().cost):
        with pytest.raises(WrongValue, match="needs the method as it was after each task"):
            ask(bare)


def test_tables_tell_tasks_lessons_and_claims(found: ProbeResult) -> None:
    text = shown(found)
    assert "synthetic-2" in text
    assert "Eq. 4" in text
    assert "run 2" in shown(found, several=3)


@pytest.mark.parametrize("several", [1, 3])
def test_draws_three_panels_for_each_result(found: ProbeResult, several: int) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    figure = figures.Figure()
    outliers.draw(figure, [Result(f"run {i}", {}, found.figures, {}) for i in range(several)])
    assert len(figure.axes) == 3 * several
    for axes in figure.axes:
        assert {text.get_text() for text in axes.texts} == {"clean", "outliers"}
        top = max(float(height) for line in axes.lines for height in line.get_ydata())
        assert axes.get_ylim()[0] == 0 < top < axes.get_ylim()[1]  # nothing is cut off
