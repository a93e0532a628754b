"""What the pictures of records show: every line, bar and cell where it belongs."""

from typing import Any

import pytest
from matplotlib.figure import Figure

from perdure.ops.statistics import Group
from perdure.report import figures
from perdure.report.plot import plot

ROWS = [[90.0], [80.0, 70.0], [75.0, 60.0, 50.0]]
RECORD: dict[str, Any] = {
    "method": "gpm",
    "benchmark": "six",
    "seed": 3,
    "acc": 61.7,
    "bwt": -12.5,
    "task_names": ["one", "two", "three"],
    "accuracy_matrix": ROWS,
}


def data(line: Any) -> tuple[list[float], list[float]]:
    return list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))


def named(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): data(line) for line in axes.lines if not str(line.get_label()).startswith("_")}


def test_the_matrix_has_every_figure_and_its_title() -> None:
    figure = Figure()
    figures._draw_matrix(figure, RECORD)
    (axes,) = figure.axes
    written = {tuple(map(float, text.get_position())): text.get_text() for text in axes.texts}
    assert written == {(i, t): f"{value:.1f}" for t, row in enumerate(ROWS) for i, value in enumerate(row)}
    assert figure.get_suptitle() == "gpm on six, seed 3: ACC 61.7, BWT −12.5 (%)"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2", "3"]


def test_each_task_has_its_line_from_when_it_was_learned() -> None:
    axes = Figure().subplots()
    figures._draw_tasks(axes, RECORD)
    assert named(axes) == {
        "one": ([1, 2, 3], [90, 80, 75]),
        "two": ([2, 3], [70, 60]),
        "three": ([3], [50]),
    }
    assert axes.get_xticks().tolist() == [1, 2, 3]


def test_of_many_tasks_the_mean_of_those_seen_and_the_newest_are_drawn() -> None:
    rows = [[100.0 - t - i for i in range(t + 1)] for t in range(12)]
    axes = Figure().subplots()
    figures._draw_tasks(axes, {**RECORD, "task_names": [str(t) for t in range(12)], "accuracy_matrix": rows})
    assert named(axes) == {
        "tasks seen, mean": (list(range(1, 13)), pytest.approx([100 - 1.5 * t for t in range(12)])),
        "the newest task": (list(range(1, 13)), [100.0 - 2 * t for t in range(12)]),
    }


def test_tasks_learned_together_are_bars() -> None:
    axes = Figure().subplots()
    figures._draw_tasks(axes, {**RECORD, "accuracy_matrix": [[60.0, 70.0, 80.0]]})
    assert [bar.get_height() for bar in axes.patches] == [60, 70, 80]  # type: ignore[attr-defined]


def test_epochs_go_on_from_task_to_task_with_accuracy_left_and_loss_right() -> None:
    epochs = [
        {"lesson": lesson, "valid": {"accuracy": 10.0 * lesson + epoch, "loss": lesson + epoch / 10}}
        for lesson in range(2)
        for epoch in (1, 2)
    ]
    figure = Figure()
    figures._draw_epochs(figure.subplots(), epochs)
    left, right = figure.axes
    rules = [line for line in left.lines if len(line.get_xdata()) == 2 and line.get_color() == "0.8"]  # type: ignore[arg-type]
    assert [data(line)[0] for line in rules] == [[2.5, 2.5]]
    assert [data(line) for line in left.lines if line not in rules] == [([1, 2], [1, 2]), ([3, 4], [11, 12])]
    assert [data(line) for line in right.lines] == [([1, 2], [0.1, 0.2]), ([3, 4], [1.1, 1.2])]


def group(method: str, *runs: dict[str, Any], where: str = "six") -> Group:
    return Group(method, where, "", tuple({"seed": seed, **run} for seed, run in enumerate(runs, 1)))


def test_methods_are_compared_by_mean_deviation_and_each_seed() -> None:
    groups = [
        group("gpm", {"acc": 70.0, "bwt": -1.0}, {"acc": 74.0, "bwt": -3.0}),
        group("rcl", {"acc": 80.0, "bwt": None}),
    ]
    figure = Figure()
    figures.comparison(groups, lambda draw: draw(figure) or b"")
    acc, bwt = figure.axes
    (mean, caps, (bar,)) = acc.containers[0]  # type: ignore[attr-defined]
    assert data(mean) == ([72.0], [0.0])
    assert [cap.get_xdata()[0] for cap in caps] == pytest.approx([72 - 8**0.5, 72 + 8**0.5])
    assert bar.get_segments()[0][:, 0].tolist() == pytest.approx([72 - 8**0.5, 72 + 8**0.5])
    points = [data(line) for line in acc.lines if len(line.get_xdata()) == 2]  # type: ignore[arg-type]
    assert points == [([70, 74], pytest.approx([0.24, 0.24]))]
    assert data(acc.containers[1][0]) == ([80.0], [1.0])  # type: ignore[attr-defined]
    assert data(bwt.containers[0][0]) == ([-2.0], [0.0])  # type: ignore[attr-defined]
    assert len(bwt.containers) == 1  # who has no BWT has no point
    assert [label.get_text() for label in acc.get_yticklabels()] == ["gpm", "rcl"]
    assert acc.get_ylim()[0] > acc.get_ylim()[1]  # the first is above


def test_over_tasks_the_mean_of_seeds_is_drawn_and_joint_learning_is_a_level() -> None:
    other = [[80.0], [60.0, 50.0], [55.0, 40.0, 10.0]]
    groups = [
        group("gpm", {"accuracy_matrix": ROWS}, {"accuracy_matrix": other}, {}),
        group("mtl", {"accuracy_matrix": [[90.0, 80.0, 70.0]]}),
        group("ewc", {}),
        group("gpm", {"accuracy_matrix": ROWS[:2]}, where="five"),
    ]
    figure = Figure()
    figures.accuracy_over_tasks(groups, lambda draw: draw(figure) or b"")
    six, five = figure.axes
    assert named(six) == {
        "gpm": ([1, 2, 3], pytest.approx([85, 65, (185 + 105) / 6])),
        "mtl": ([1, 3], [80, 80]),
    }
    assert named(five) == {"gpm": ([1, 2], [90, 75])}
    assert (six.get_title(), five.get_title()) == ("six", "five")


def test_new_tasks_are_the_diagonal_and_joint_learning_is_a_line_of_all_tasks() -> None:
    groups = [
        group("gpm", {"accuracy_matrix": ROWS}, {"accuracy_matrix": [[80.0], [0.0, 50.0], [0.0, 0.0, 10.0]]}, {}),
        group("mtl", {"accuracy_matrix": [[91.0, 82.0, 73.0]]}),
    ]
    figure = Figure()
    figures.new_task_accuracy(groups, lambda draw: draw(figure) or b"")
    (axes,) = figure.axes
    assert named(axes) == {"gpm": ([1, 2, 3], [85, 60, 30]), "mtl": ([1, 2, 3], [91, 82, 73])}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("task", "accuracy (%), just after it was learned")


def test_the_matrices_of_methods_are_those_of_their_first_seeds() -> None:
    known = {"acc": 61.7, "bwt": -12.5}
    groups = [
        group("gpm", {}, {"accuracy_matrix": ROWS, **known}, {"accuracy_matrix": [[1.0]], **known}),
        group("ewc", {}),
        group("mtl", {"accuracy_matrix": [[91.0, 82.0, 73.0]], "acc": 82.0, "bwt": None}, where="five"),
    ]
    figure = Figure()
    figures.matrices(groups, lambda draw: draw(figure) or b"")
    gpm, mtl = [axes for axes in figure.axes if axes.images]
    assert gpm.get_title() == "gpm on six, seed 2\nACC 61.7, BWT −12.5 (%)"
    assert [text.get_text() for text in gpm.texts] == [f"{value:.1f}" for row in ROWS for value in row]
    assert [text.get_text() for text in mtl.texts] == ["91.0", "82.0", "73.0"]
    assert (gpm.get_ylabel(), mtl.get_ylabel()) == ("after learning task", "all learned together")


def test_more_matrices_than_a_picture_holds_are_left_out_and_it_says_so() -> None:
    one = {"accuracy_matrix": [[50.0]], "acc": 50.0, "bwt": None}
    figure = Figure()
    figures._draw_matrices(figure, [group(f"m{place}", one) for place in range(figures.MATRICES + 2)])
    assert sum(bool(axes.images) for axes in figure.axes) == figures.MATRICES
    assert figure.get_suptitle() == f"the first {figures.MATRICES} of {figures.MATRICES + 2}"


def test_tasks_without_names_are_numbered_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(figures, "accuracy_matrix", lambda record: seen.append(record) or b"")
    plot({"accuracy_matrix": ROWS})
    assert seen[0]["task_names"] == ["task 1", "task 2", "task 3"]
    assert (seen[0]["acc"], seen[0]["bwt"]) == (pytest.approx(185 / 3), pytest.approx((-15 - 10) / 2))
