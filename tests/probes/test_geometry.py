import json

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console

from perdure.errors import WrongValue
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
