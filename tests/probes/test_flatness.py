"""Flatness and curvature of a trained network."""

import io
import json
import math
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor
from torch.func import functional_call

from perdure.ops.losses import cross_entropy
from perdure.probes.flatness import PRODUCT, Curvature, Flatness
from perdure.probes.probe import Cost, TrainedMethod
from perdure.report.probes import Result, renderer
from perdure.seeding import generator
from perdure.types import Weights

SHORT = {"flatness": Flatness(steps=3, images=80), "curvature": Curvature(steps=2, draws=2, images=16)}


TASKS = ["a task", "another", "the last"]
FIGURES: dict[str, dict[str, Any]] = {
    "flatness": {
        "tasks": TASKS,
        "loss": [1.2, 0.5, 0.0],
        "one_step": [0.2, 0.01, -1e-7],
        "flatness": [0.3, 0.02, -1e-7],
        "sharpness": [0.1, 0.01, 0.0],
        "radius": 0.01,
        "steps": 5,
        "sam_radius": 0.05,
    },
    "curvature": {
        "tasks": TASKS,
        "loss": [1.2, 0.5, 0.0],
        "gradient_norm": [3.0, 0.2, 0.0],
        "top_eigenvalue": [340.0, 12.3, 0.0],
        "residual": [0.5, 1e-5, 0.0],
        "trace": [12345.6, 250.0, -3.0],
        "trace_error": [210.0, 17.0, 2.0],
    },
}


def joint_loss(trained: TrainedMethod, task: int, images: int, weights: Weights) -> Tensor:
    """By hand, all images in their batches and one graph."""
    split, total = trained.tasks[task].train, torch.zeros(())
    for rows in split.pieces(64, images):
        x, y = split.take(rows)
        logits = functional_call(trained.method.net, dict(weights), (x, task)).logits
        total = total + cross_entropy(logits, y) * len(y) / images
    return total


@pytest.mark.parametrize("name", SHORT)
def test_cost_is_what_is_done_and_all_is_plain(name: str, trained: TrainedMethod) -> None:
    probe = SHORT[name]
    found = probe.measure(trained)
    assert probe.cost(trained) == trained.progress.done
    assert found.figures.keys() == FIGURES[name].keys()  # which the tables below are made from
    assert json.loads(json.dumps(found.figures, allow_nan=False)) == found.figures
    assert found.figures["tasks"] == [task.name for task in trained.tasks]
    assert {len(row) for row in found.figures.values() if isinstance(row, list)} == {3}
    for shown in found.headline.values():
        assert math.isfinite(shown)


def test_cost_by_hand(trained: TrainedMethod) -> None:
    assert len(trained.tasks[0].train) > 80
    assert SHORT["flatness"].cost(trained) == Cost(forwards=3 * 80 * 2, gradients=3 * 80 * (3 + 1))
    assert SHORT["curvature"].cost(trained) == Cost(gradients=3 * 16 * (1 + PRODUCT * (2 + 2)))


def test_one_step_by_hand(trained: TrainedMethod) -> None:
    """Two batches, of 64 and of 16, whose gradients must be gathered into that of the mean over all images; and the
    rise that SAM makes small, along that gradient as a whole."""
    found = SHORT["flatness"].measure(trained).figures
    weights = {name: w.detach().clone().requires_grad_() for name, w in trained.method.weights(1).items()}
    trained.method.eval()
    before = joint_loss(trained, 1, 80, weights)
    slopes = dict(zip(weights, torch.autograd.grad(before, list(weights.values()), allow_unused=True), strict=True))
    moved = {
        name: w if slopes[name] is None or w.ndim < 2 else w + 0.01 * slopes[name] / slopes[name].norm() * w.norm()
        for name, w in weights.items()
    }
    with torch.no_grad():
        rise = joint_loss(trained, 1, 80, moved) - before
    length = torch.stack([slope.norm() for slope in slopes.values() if slope is not None]).norm()
    along = {name: w if slopes[name] is None else w + 0.05 * slopes[name] / length for name, w in weights.items()}
    with torch.no_grad():
        sam = joint_loss(trained, 1, 80, along) - before
    before = before.detach()
    assert found["sharpness"][1] == pytest.approx(float(sam), rel=1e-3)
    assert found["loss"][1] == pytest.approx(float(before), rel=1e-5)
    assert found["one_step"][1] == pytest.approx(float(rise), rel=1e-3)
    for one, many in zip(found["one_step"], found["flatness"], strict=True):
        assert 0 < one <= many


def test_flatness_grows_with_the_radius_and_headline_is_the_mean(trained: TrainedMethod) -> None:
    near, far = (Flatness(radius=radius, steps=1, images=30).measure(trained) for radius in (0.005, 0.02))
    for small, large in zip(near.figures["flatness"], far.figures["flatness"], strict=True):
        assert small < large
    assert near.headline == {"flatness": pytest.approx(sum(near.figures["flatness"]) / 3)}


def test_curvature_is_that_of_the_weights_in_use(trained: TrainedMethod) -> None:
    found = SHORT["curvature"].measure(trained).figures
    weights = dict(trained.method.weights(0))
    before = joint_loss(trained, 0, 16, weights)
    slopes = torch.autograd.grad(before, list(weights.values()), create_graph=True, allow_unused=True)
    assert sum(slope is None for slope in slopes) == 2  # the heads of the other tasks
    used = [(weight, slope) for weight, slope in zip(weights.values(), slopes, strict=True) if slope is not None]
    length = torch.stack([slope.norm() for _, slope in used]).norm()
    assert found["loss"][0] == pytest.approx(float(before.detach()), rel=1e-4)
    assert found["gradient_norm"][0] == pytest.approx(float(length.detach()), rel=1e-3)

    signs, draws = generator(0, "curvature", "trace", 0), []
    for _ in range(2):
        drawn = torch.randint(0, 2, (sum(weight.numel() for weight, _ in used),), generator=signs) * 2.0 - 1
        along = torch.cat([slope.reshape(-1) for _, slope in used]) @ drawn
        product = torch.autograd.grad(along, [weight for weight, _ in used], retain_graph=True)
        draws.append(float(torch.cat([part.reshape(-1) for part in product]) @ drawn))
    assert found["trace"][0] == pytest.approx(sum(draws) / 2, rel=1e-2)
    assert found["trace_error"][0] == pytest.approx(abs(draws[0] - draws[1]) / 2, rel=5e-2)


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("name", SHORT)
def test_tables_fit_and_pictures_are_drawn(name: str, count: int) -> None:
    results = [Result(f"a method of some name, seed {i}", {}, FIGURES[name], {}) for i in range(count)]
    shown = renderer(name)
    assert shown is not None
    console = Console(width=100, file=io.StringIO(), record=True)
    for table in shown.tables(results):
        assert not isinstance(table, str) or len(table) <= 100
        console.print(table)
    text = console.export_text()
    assert "…" not in text
    assert all(task in text for task in TASKS)
    figure = Figure()
    shown.draw(figure, results)
    figure.draw_without_rendering()
    assert len(figure.axes) == (1 if name == "flatness" else 2)
    written = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert count == 1 or written == {result.label for result in results}
