"""The loss along lines and in a plane, of a trained network."""

import io
import json
import math
from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console

from perdure.errors import WrongValue
from perdure.ops.landscape import random_direction
from perdure.probes.landscape import Landscape, Plane
from perdure.probes.probe import Cost, ProbeResult, TrainedMethod
from perdure.report.probes import Result, renderer
from perdure.train.evaluate import evaluate

LINES = Landscape(directions=2, points=5, images=20)
PLANE = Plane(task=2, points=5, images=20)
PROBES = {"landscape": LINES, "plane": PLANE}


@pytest.mark.parametrize("name", PROBES)
def test_cost_is_what_is_done_and_all_is_plain(name: str, trained: TrainedMethod) -> None:
    found = PROBES[name].measure(trained)
    assert PROBES[name].cost(trained) == trained.progress.done
    assert json.loads(json.dumps(found.figures, allow_nan=False)) == found.figures
    assert all(math.isfinite(value) for value in found.headline.values())
    assert all(array.is_contiguous() and not array.requires_grad for array in found.arrays.values())


def test_cost_by_hand(trained: TrainedMethod) -> None:
    assert Landscape().cost(trained).forwards == trained.images("train", 500) * 10 * 51
    assert LINES.cost(trained) == Cost(forwards=3 * 20 * 2 * 5)
    assert PLANE.cost(trained) == Cost(forwards=20 * 5 * 5)


def test_where_nothing_is_moved_the_loss_is_that_of_the_record(trained: TrainedMethod) -> None:
    lines = Landscape(directions=2, points=3, part="test", images=None).measure(trained)
    plane = Plane(task=2, points=3, part="test", images=None).measure(trained)
    known = [evaluate(trained.method, task.test, index).loss for index, task in enumerate(trained.tasks)]
    assert lines.arrays["curves"].shape == (3, 2, 3)
    torch.testing.assert_close(lines.arrays["curves"][:, :, 1].T, torch.tensor([known, known], dtype=torch.float64))
    assert lines.figures["loss"] == pytest.approx(known)
    assert plane.figures["loss"] == pytest.approx(known[1])
    assert lines.arrays["steps"].tolist() == [-0.5, 0, 0.5]


def test_a_point_by_hand_and_the_plane_has_the_first_two_lines_in_it(trained: TrainedMethod) -> None:
    lines, plane = LINES.measure(trained), PLANE.measure(trained)
    split, own = trained.tasks[1].train, trained.method.weights(1)
    direction = random_direction({name: weight.detach() for name, weight in own.items()}, 1)
    moved = {name: weight - 0.25 * direction[name] if name in direction else weight for name, weight in own.items()}
    (rows,) = split.pieces(64, 20)
    x, y = split.take(rows)
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(trained.method.forward(x, 1, moved).logits, y)
    assert float(lines.arrays["curves"][1, 1, 1]) == pytest.approx(float(expected), rel=1e-4)
    torch.testing.assert_close(plane.arrays["grid"][2], lines.arrays["curves"][1, 1])
    torch.testing.assert_close(plane.arrays["grid"][:, 2], lines.arrays["curves"][1, 0])
    grid = plane.arrays["grid"]
    share = 100 * sum(height <= float(grid[2, 2]) + 0.1 for height in grid.flatten().tolist()) / 25
    assert plane.headline == {"basin within 0.1 (%)": pytest.approx(share)}
    bounds = plane.figures["lowest"], plane.figures["loss"], plane.figures["highest"]
    assert bounds == (min(grid.flatten().tolist()), float(grid[2, 2]), max(grid.flatten().tolist()))
    assert lines.figures["chance"] == pytest.approx([math.log(3)] * 3)  # of one who guesses among three classes
    assert plane.figures["chance"] == pytest.approx(math.log(3))


@pytest.mark.parametrize(("at", "weights"), [(0.1, (0.6, 0.4, 0)), (0.25, (0, 1, 0)), (0.5, (0, 0, 1))])
def test_rise_is_read_on_both_sides_and_straight_between_points(
    at: float, weights: tuple[float, float, float], trained: TrainedMethod
) -> None:
    found = Landscape(directions=2, points=5, images=20, at=at).measure(trained)
    curves = found.arrays["curves"]
    heights = [curves[:, :, 2], curves[:, :, [1, 3]].mean(2), curves[:, :, [0, 4]].mean(2)]
    rises = sum(weight * (height - heights[0]) for weight, height in zip(weights, heights, strict=True))
    assert isinstance(rises, torch.Tensor)
    assert found.figures["rise"] == pytest.approx(rises.mean(1).tolist())
    assert found.figures["rise_error"] == pytest.approx((rises.std(1) / math.sqrt(2)).tolist())
    assert found.headline == {f"rise at {at:g}": pytest.approx(float(rises.mean()))}


def test_methods_with_one_network_are_looked_at_along_the_same_lines(trained: TrainedMethod) -> None:
    """Directions differ by the lengths of the filters alone."""
    early, late = (
        {name: weight.detach() for name, weight in method.weights(0).items()} for method in trained.snapshots[::2]
    )
    for number in (0, 5):
        one, other = random_direction(early, number), random_direction(late, number)
        for name in one:
            angles = torch.nn.functional.cosine_similarity(one[name].flatten(1), other[name].flatten(1))
            torch.testing.assert_close(angles, torch.ones_like(angles))
            assert not torch.equal(one[name], other[name]) or torch.equal(early[name], late[name])


def test_after_a_lesson_the_tasks_known_then_are_looked_at(trained: TrainedMethod) -> None:
    probe = Landscape(directions=1, points=3, part="test", images=None, after=2)
    found = probe.measure(trained)
    assert probe.needs_snapshots
    assert not LINES.needs_snapshots
    assert found.figures["tasks"] == [task.name for task in trained.tasks[:2]]
    assert found.figures["rise_error"] is None
    assert list(found.headline) == ["rise at 0.1 after 2"]
    assert probe.cost(trained) == trained.progress.done
    known = [evaluate(trained.snapshots[1], trained.tasks[index].test, index).loss for index in (0, 1)]
    assert found.figures["loss"] == pytest.approx(known)
    with pytest.raises(WrongValue, match=r"after=2: .* 0 tasks were kept"):
        probe.measure(replace(trained, snapshots=()))


def test_after_a_lesson_of_several_tasks_all_of_them_are_looked_at(trained: TrainedMethod) -> None:
    joint = replace(trained, snapshots=[trained.method])
    found = Landscape(directions=1, points=3, images=20, after=1).measure(joint)
    assert found.figures["tasks"] == trained.task_names


def test_one_task_alone(trained: TrainedMethod) -> None:
    everything, probe = LINES.measure(trained), Landscape(directions=2, points=5, images=20, task=2)
    alone = TrainedMethod(trained.method, trained.tasks)
    found = probe.measure(alone)
    assert found.figures["tasks"] == [trained.tasks[1].name]
    torch.testing.assert_close(found.arrays["curves"], everything.arrays["curves"][1:2])
    assert probe.cost(alone) == alone.progress.done == Cost(forwards=20 * 2 * 5)
    assert list(found.headline) == ["rise at 0.1, task 2"]
    with pytest.raises(WrongValue, match="task=3: 2 tasks were learned by then"):
        Landscape(task=3, after=2).cost(trained)


def test_all_images_are_one_batch_also_where_they_do_not_fit_into_memory(
    trained: TrainedMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = Landscape(directions=1, points=3, images=None, batch=None, task=1)
    at_once = probe.measure(trained)
    split, own = trained.tasks[0].train, trained.method.weights(0)
    (rows,) = split.pieces(len(split))
    x, y = split.take(rows)
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(trained.method.forward(x, 0, own).logits, y)
    assert at_once.figures["loss"] == [pytest.approx(float(expected), rel=1e-5)]
    apart = Landscape(directions=1, points=3, images=None, batch=7, task=1).measure(trained)
    assert apart.figures["loss"][0] != pytest.approx(float(expected), rel=1e-3)  # other statistics
    monkeypatch.setattr("perdure.probes.landscape.IN_MEMORY", 7)
    again = TrainedMethod(trained.method, trained.tasks)
    in_pieces = probe.measure(again)
    torch.testing.assert_close(in_pieces.arrays["curves"], at_once.arrays["curves"], rtol=1e-4, atol=1e-5)
    assert probe.cost(again) == again.progress.done == Cost(forwards=len(split) * 3 * (5 + 1))


def test_what_cannot_be_asked(trained: TrainedMethod) -> None:
    for points in (1, 20):
        with pytest.raises(WrongValue, match="odd number"):
            Plane(points=points)
        with pytest.raises(WrongValue, match="odd number"):
            Landscape(points=points)
    with pytest.raises(WrongValue, match="within reach"):
        Landscape(reach=0.08)
    with pytest.raises(WrongValue, match="task=4: there are 3 tasks"):
        Plane(task=4).cost(trained)


def shown(found: ProbeResult, count: int) -> list[Result]:
    arrays = {name: array.numpy() for name, array in found.arrays.items()}
    return [Result(f"a method of some name, seed {i}", {}, found.figures, arrays) for i in range(count)]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("name", PROBES)
def test_tables_fit_and_pictures_are_drawn(name: str, count: int, trained: TrainedMethod) -> None:
    results, own = shown(PROBES[name].measure(trained), count), renderer(name)
    assert own is not None
    console = Console(width=100, file=io.StringIO(), record=True)
    for table in own.tables(results):
        assert not isinstance(table, str) or len(table) <= 100
        console.print(table)
    assert "…" not in console.export_text()
    figure = Figure()
    own.draw(figure, results)
    figure.draw_without_rendering()
    assert len(figure.axes) == (3 if name == "landscape" else count)
