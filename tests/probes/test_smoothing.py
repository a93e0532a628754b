"""Certified accuracy by randomized smoothing."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perdure.errors import WrongValue
from perdure.methods.finetune import FineTune
from perdure.nets.network import Backbone, Network
from perdure.ops.smoothing import radius
from perdure.probes import smoothing
from perdure.probes.probe import TaskModel, TrainedMethod
from perdure.probes.smoothing import Smoothing, with_fixed_statistics
from perdure.types import Split, Task

QUICK: dict[str, Any] = {"samples": 30, "selection": 10, "images": 8}


# ── fixed statistics ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def fixed(trained: TrainedMethod) -> TaskModel:
    return trained.model(1, method=with_fixed_statistics(trained, trained.method, 1, 0.12))


def test_an_image_is_answered_alone_as_in_any_batch(trained: TrainedMethod, fixed: TaskModel) -> None:
    x = torch.cat([x for x, _ in fixed.batches()])
    whole = fixed.logits(x)
    for rows in (slice(0, 1), slice(5, 6), slice(4, 7), slice(None, None, 3)):
        torch.testing.assert_close(fixed.logits(x[rows]), whole[rows], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fixed.logits(x.flip(0)).flip(0), whole, rtol=1e-4, atol=1e-4)
    strange = torch.cat([x[:1], torch.ones_like(x[:7])])
    torch.testing.assert_close(fixed.logits(strange)[:1], whole[:1], rtol=1e-4, atol=1e-4)
    usual = trained.model(1)  # which is not so
    assert not torch.allclose(usual.logits(strange)[:1], usual.logits(x)[:1], atol=0.1)


def test_statistics_are_those_of_training_images_with_noise(trained: TrainedMethod) -> None:
    """Of what the first norm is given, written out: the mean over batches."""
    sigma = 0.3
    fixed = with_fixed_statistics(trained, trained.method, 1, sigma).net.backbone
    found = next(part for part in fixed.modules() if isinstance(part, nn.BatchNorm2d))
    conv = next(part for part in fixed.modules() if isinstance(part, nn.Conv2d))
    split, rng = trained.tasks[1].train, smoothing.generator(0, "smoothing", "statistics", 1)
    means, variances = [], []
    for rows in split.pieces(64, 640):
        x = split.pixels(rows)
        given = conv(split.normalize(x + sigma * torch.randn(x.shape, generator=rng))).detach()
        means.append(given.mean((0, 2, 3)))
        variances.append(given.var((0, 2, 3)))
    torch.testing.assert_close(found.running_mean, torch.stack(means).mean(0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.running_var, torch.stack(variances).mean(0), rtol=1e-3, atol=1e-3)
    calm = with_fixed_statistics(trained, trained.method, 1, 1e-6).net.backbone
    other = next(part for part in calm.modules() if isinstance(part, nn.BatchNorm2d))
    assert float(other.running_var.mean()) < 0.9 * float(found.running_var.mean())  # type: ignore[union-attr]


def test_the_method_itself_stays_as_it_is(trained: TrainedMethod) -> None:
    before = deepcopy(trained.method.state_dict())
    other = with_fixed_statistics(trained, trained.method, 0, 0.12)
    assert other is not trained.method
    assert set(trained.method.state_dict()) == set(before)
    norms = [part for part in trained.method.modules() if isinstance(part, nn.BatchNorm2d)]
    assert not any(norm.track_running_stats for norm in norms)
    assert not any(part.training for part in other.modules())


def test_training_images_that_are_gone_are_one_line(trained: TrainedMethod) -> None:
    gone = replace(trained, tasks=[task.judged("test") for task in trained.tasks])
    with pytest.raises(WrongValue, match="the train images of task 'synthetic-0' are not held any more"):
        Smoothing(**QUICK).measure(gone)


class Coupled(Backbone):
    """Every feature less its mean over the batch."""

    def __init__(self, coupled: bool) -> None:
        super().__init__()
        self.fc, self.width, self.coupled = nn.Linear(12, 4), 4, coupled

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.fc(x.flatten(1))
        found = found - found.mean(0) if self.coupled else found
        return found, found


def one_task(backbone: Backbone, x: Tensor, y: Tensor) -> TrainedMethod:
    split = Split(x, y, (0.5,), (0.25,))
    net = Network(backbone)
    net.add_head(2)
    return TrainedMethod(FineTune(net), [Task("one", ("a", "b"), split, split, split)])


@pytest.mark.parametrize("coupled", [False, True])
def test_a_network_whose_images_depend_on_each_other_otherwise_is_refused(coupled: bool) -> None:
    x = torch.rand(20, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    trained = one_task(Coupled(coupled), x, torch.arange(20) % 2)
    if coupled:
        with pytest.raises(WrongValue, match="task 'one': this network answers an image alone otherwise"):
            Smoothing(**QUICK).measure(trained)
    else:
        gone = replace(trained, tasks=[task.judged("test") for task in trained.tasks])
        found = Smoothing(**QUICK).measure(gone)  # needs no training image
        assert not found.figures["fixed"]


# ── certificates ────────────────────────────────────────────────────────────────────────────────────────────────


def halves(x: Tensor) -> TrainedMethod:
    """Class 1 where the first pixel is above a half: how far that is, is known."""
    trained = one_task(Coupled(False), x, (x[:, 0, 0, 0] > 0.5).long())
    net = trained.method.net
    with torch.no_grad():
        net.backbone.fc.weight.zero_()  # type: ignore[union-attr, operator]
        net.backbone.fc.bias.zero_()  # type: ignore[union-attr, operator]
        net.backbone.fc.weight[0, 0] = 1.0  # type: ignore[index]
        net.heads[0].weight.zero_()
        net.heads[0].weight[:, 0] = torch.tensor([-1.0, 1.0])  # type: ignore[index]
    return trained


def test_radii_are_what_a_half_space_has() -> None:
    """There the largest possible radius is the distance to the plane, which counting comes close to from below."""
    x = torch.full((6, 3, 2, 2), 0.5)
    x[:, 0, 0, 0] = torch.tensor([0.9, 0.7, 0.6, 0.51, 0.3, 0.1])
    probe = Smoothing(sigma=0.2, samples=4000, selection=20, radii=(0.0, 0.15, 0.3))
    found = probe.measure(halves(x))
    order = halves(x).tasks[0].test.pieces(64)[0]
    distance = (x[order, 0, 0, 0] - 0.5).abs()
    radii = found.arrays["radius_0"]
    near = distance < 0.02
    assert radii[near].tolist() == [-1.0]  # abstains
    assert bool((radii[~near] < distance[~near]).all())
    assert radii[~near].tolist() == pytest.approx(distance[~near].tolist(), abs=0.035)
    assert found.arrays["right_0"][~near].tolist() == [1] * 5
    shares = {"certified ACC 0": 500 / 6, "certified ACC 0.15": 400 / 6, "certified ACC 0.3": 200 / 6}
    assert found.headline == pytest.approx({f"{name}, σ 0.2": share for name, share in shares.items()})
    assert found.figures["abstained"]["acc"] == pytest.approx(100 / 6)
    assert found.figures["clean"]["acc"] == 100
    assert found.figures["mean_radius"] == [pytest.approx(float(radii.clamp_min(0).mean()))]
    assert found.figures["largest"] == radius(4000, 4000, 0.2, 0.001)


def test_a_wrong_answer_is_not_certified_however_sure() -> None:
    x = torch.full((4, 3, 2, 2), 0.9)
    trained = halves(x)
    task = trained.tasks[0]
    wrong = replace(task.test, y=torch.tensor([1, 0, 0, 1]))
    found = Smoothing(**QUICK).measure(replace(trained, tasks=[replace(task, test=wrong)]))
    assert found.figures["certified"][0]["by_task"] == [50]
    assert found.figures["clean"]["by_task"] == [50]
    assert found.figures["abstained"]["by_task"] == [0]
    assert bool((found.arrays["radius_0"] > 0).all())


def test_more_images_leave_the_others_as_they_are(trained: TrainedMethod) -> None:
    few, more = (Smoothing(**{**QUICK, "images": images}).measure(trained) for images in (4, 9))
    for task in range(3):
        assert torch.equal(few.arrays[f"radius_{task}"], more.arrays[f"radius_{task}"][:4])


def test_class_and_count_are_drawn_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first draws the class is chosen, by others it is counted: else the bound would be too high."""
    seen: list[Tensor] = []
    noisy = smoothing.noisy
    monkeypatch.setattr(smoothing, "noisy", lambda *args: seen.append(noisy(*args)) or seen[-1])
    Smoothing(samples=600, selection=30, images=2).measure(halves(torch.full((4, 3, 2, 2), 0.7)))
    assert [len(part) for part in seen] == [30, 250, 250, 100] * 2
    draws = torch.cat(seen).flatten(1)
    assert len(draws.unique(dim=0)) == len(draws) == 1260


# ── over time ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_lesson_is_the_network_as_it_is(trained: TrainedMethod) -> None:
    alone, all_of_them = (Smoothing(**QUICK, over_time=over_time) for over_time in (False, True))
    assert (alone.needs_snapshots, all_of_them.needs_snapshots) == (False, True)
    end, found = alone.measure(replace(trained, snapshots=())), all_of_them.measure(trained)
    assert end.figures["over_time"] is None
    assert found.figures["certified"] == end.figures["certified"]
    for place, one in enumerate(found.figures["over_time"]):
        matrix = one["matrix"]
        assert [len(row) for row in matrix] == [1, 2, 3]
        assert matrix[-1] == end.figures["certified"][place]["by_task"]
        assert one["bwt"] == (matrix[2][0] - matrix[0][0] + matrix[2][1] - matrix[1][1]) / 2
        assert found.arrays[f"over_time_{place}"][0].tolist() == [matrix[0][0], -1, -1]
    at = [f"{radius:g}" for radius in (0, 0.06, 0.12, 0.24)]
    assert list(end.headline) == [f"certified ACC {one}" for one in at]
    assert list(found.headline) == [*end.headline, *(f"certified BWT {one}" for one in at)]


def test_a_network_that_was_different_has_another_row(trained: TrainedMethod) -> None:
    """The first snapshot with its head turned over."""
    spoiled = deepcopy(trained.snapshots[0])
    with torch.no_grad():
        spoiled.net.heads[0].weight.neg_()
    probe = Smoothing(**QUICK, radii=(0,), over_time=True)
    (before,), (after,) = (
        probe.measure(replace(trained, snapshots=[first, *trained.snapshots[1:]])).figures["over_time"]
        for first in (trained.snapshots[0], spoiled)
    )
    assert after["matrix"][1:] == before["matrix"][1:]
    assert after["matrix"][0][0] < before["matrix"][0][0] - 30
    assert after["bwt"] > before["bwt"] + 15


@pytest.mark.parametrize("values", [{"images": 3}, {"images": 1, "over_time": True}])
def test_cost_is_what_is_counted(trained: TrainedMethod, values: dict[str, Any]) -> None:
    probe = Smoothing(**{"samples": 260, "selection": 5} | values)
    probe.measure(trained)
    assert probe.cost(trained) == trained.progress.done
    cells = 6 if probe.over_time else 3
    assert trained.progress.done.forwards == cells * (values["images"] * 265 + 60 + 1 + len(trained.tasks[0].train))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"radii": ()}, "such radii are not allowed"),
        ({"radii": (-0.1,)}, "such radii are not allowed"),
        ({"radii": (float("inf"),)}, "such radii are not allowed"),
    ],
)
def test_radii_that_are_none(values: dict[str, Any], text: str) -> None:
    with pytest.raises(WrongValue, match=text):
        Smoothing(**values)
