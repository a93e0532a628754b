import json
import math
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console

from perdure.errors import WrongValue
from perdure.ops.geometry import trained_plane
from perdure.ops.losses import uniformity
from perdure.probes.geometry import Geometry
from perdure.probes.probe import ProbeResult, TrainedMethod
from perdure.report.probes import Result, geometry


def result(measured: ProbeResult, label: str = "finetune, seed 1") -> Result:
    return Result(label, {}, measured.figures, {name: array.numpy() for name, array in measured.arrays.items()})


@pytest.mark.parametrize(("head", "images"), [("pca", 30), ("trained", 80)])  # a task has 90 to train and 60 to test
def test_cost_is_what_is_counted(trained: TrainedMethod, head, images: int) -> None:
    probe = Geometry(images=images, head=head)
    measured = probe.measure(trained)
    assert probe.cost(trained) == trained.progress.done
    assert measured.figures["together"]["images"] == 3 * min(images, 60)
    json.dumps(measured.figures, allow_nan=False)


def test_figures_are_those_of_the_features(trained: TrainedMethod) -> None:
    measured = Geometry().measure(trained)
    with torch.no_grad():
        model = trained.model(1)
        z = torch.cat([model.forward(x).features for x, _ in model.batches(200)]).double()
    of_task, together = measured.figures["tasks"][1], measured.figures["together"]
    assert of_task["uniformity"] == pytest.approx(float(uniformity(z)))
    assert 1 < of_task["effective_rank"] < 60 < together["effective_rank"] < 180
    assert of_task["class_overlap"] < together["class_overlap"]  # nine classes to take it for instead of three
    # No two tasks share a class, so that together there are no other pairs; every class has 20 images here.
    assert together["alignment"] == pytest.approx(sum(task["alignment"] for task in measured.figures["tasks"]) / 3)
    low, high = together["class_overlap_interval"]
    assert low < together["class_overlap"] == measured.headline["class overlap"] < high


def test_circle_has_every_image_with_its_task_and_label(trained: TrainedMethod) -> None:
    arrays = Geometry(images=30, part="valid").measure(trained).arrays
    assert arrays["task"].tolist() == [0] * 30 + [1] * 30 + [2] * 30
    expected = [y for task in range(3) for _, ys in trained.model(task, "valid").batches(30) for y in ys.tolist()]
    assert arrays["label"].tolist() == expected
    torch.testing.assert_close(arrays["features2d"].norm(dim=1), torch.ones(90))


def features(trained: TrainedMethod, part: str, images: int) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """Of all tasks, with the task and the label of each."""
    rows, groups = [], []
    for task in range(len(trained.tasks)):
        model = trained.model(task, part)  # type: ignore[arg-type]
        for x, y in model.batches(images):
            with torch.no_grad():
                rows.append(model.forward(x).features.double())
            groups += [(task, label) for label in y.tolist()]
    return torch.cat(rows), groups


def test_figures_of_the_circle_are_those_of_its_points(trained: TrainedMethod) -> None:
    found = Geometry(images=20).measure(trained)
    circle, points = found.figures["circle"], found.arrays["features2d"].double()
    z, groups = features(trained, "test", 20)
    squared = {pair: float((points[pair[0]] - points[pair[1]]).square().sum()) for pair in combinations(range(60), 2)}
    alike = [value for (a, b), value in squared.items() if groups[a] == groups[b]]
    assert circle["uniformity"] == pytest.approx(math.log(fmean(math.exp(-2 * v) for v in squared.values())), rel=1e-4)
    assert circle["alignment"] == pytest.approx(fmean(alike), rel=1e-4)
    assert circle["resultant"] == pytest.approx(float(points.mean(0).norm()), rel=1e-4)
    energies = torch.linalg.svdvals(z).square()
    assert circle["squared_length"] == pytest.approx(100 * float(energies[:2].sum() / energies.sum()))


def test_near_are_the_ten_nearest(trained: TrainedMethod) -> None:
    found = Geometry(images=20).measure(trained).figures["together"]
    z, groups = features(trained, "test", 20)
    foreign = []
    for place, point in enumerate(z):
        nearest = (z - point).norm(dim=1).argsort().tolist()[1:11]
        foreign += [groups[other] != groups[place] for other in nearest]
    assert found["neighbor_overlap"] == pytest.approx(100 * fmean(foreign))


def test_a_trained_head_learns_from_training_images_whatever_is_shown(trained: TrainedMethod) -> None:
    shown = Geometry(images=20, head="trained").measure(trained).arrays["features2d"]
    learned_from, groups = features(trained, "train", 20)
    numbers = torch.tensor([3 * task + label for task, label in groups])
    plane = trained_plane(learned_from, numbers)
    expected = torch.nn.functional.normalize(features(trained, "test", 20)[0] @ plane, dim=1)
    torch.testing.assert_close(shown, expected.float())


def test_trained_head_spreads_images_it_has_not_learned_from(trained: TrainedMethod) -> None:
    pca, trained = (Geometry(head=head).measure(trained).figures["circle"] for head in ("pca", "trained"))
    assert trained["uniformity"] < pca["uniformity"] - 0.3
    assert trained["alignment"] > 0.01  # it would be near 0 on those it learned from
    assert "squared_length" in pca
    assert "squared_length" not in trained


def test_too_few_images_are_refused(trained: TrainedMethod) -> None:
    with pytest.raises(WrongValue, match="ask for more images"):
        Geometry(images=2).measure(trained)


def test_tables_fit_and_pictures_are_drawn(trained: TrainedMethod) -> None:
    one = result(Geometry(images=40).measure(trained))
    fewer = TrainedMethod(trained.method, trained.tasks[:1])
    other = result(Geometry(images=40).measure(fewer), "of one task")
    for results in ([one], [one, other, one]):
        console = Console(width=100)
        with console.capture() as printed:
            for part in geometry.tables(results):
                console.print(part)
        assert "…" not in printed.get().replace("0 … 4", "")  # nothing cut off
        assert max(map(len, printed.get().splitlines())) <= 100
        figure = Figure()
        geometry.draw(figure, results)
        shown = [axes for axes in figure.axes if axes.get_visible()]
        assert len(shown) == sum(8 if len(r.figures["tasks"]) == 3 else 4 for r in results)


def test_densities_hold_all_points_and_the_angle_goes_round() -> None:
    rng = np.random.default_rng(0)
    angles = rng.normal(np.pi, 0.2, 200)  # around the seam
    points = np.stack([np.cos(angles), np.sin(angles)], 1)
    turn = np.linspace(-np.pi, np.pi, 721)
    density = geometry._angle_density(points, turn)
    assert np.trapezoid(density, turn) == pytest.approx(1, abs=1e-6)
    assert density[0] == pytest.approx(density[-1])
    assert density[0] > 1
    plane = geometry._plane_density(points)
    cell = (2 * geometry.EDGE / (len(plane) - 1)) ** 2
    assert plane.sum() * cell == pytest.approx(1, abs=0.01)
    assert plane[80, :30].max() > 100 * plane[:30, 80].max()  # row y, column x: the crowd is to the left, not below
