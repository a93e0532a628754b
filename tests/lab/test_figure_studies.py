"""The figure studies from end to end, small: every picture is there, and shows what the probes found."""

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import perdure
from perdure.errors import UsageError
from perdure.lab.report import of_study
from perdure.lab.run import run_spec
from perdure.lab.spec import shipped_files
from perdure.lab.study import StudyResult
from perdure.lab.study_file import FIGURES, read, shipped, specs
from perdure.report import page, paper_figures
from perdure.report.page import Report

SMALL = 'tasks = 3\nnetwork = "mlp"\nplan = { epochs = 1 }\n'
STUDIES = ("new-tasks", "landscapes", "span", "flatness", "region", "uniformity")
Do = Callable[[str], tuple[StudyResult, Path]]


@pytest.fixture(scope="module")
def do(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Do]:
    """A shipped study on three tasks of made-up images, with one seed and one setting of most methods: runs are shared,
    and done in this process. Pages take long and are drawn elsewhere."""
    folder = tmp_path_factory.mktemp("figures")

    @cache
    def small(name: str) -> tuple[StudyResult, Path]:
        text = shipped_files("studies")[name].read_bytes().decode()
        text = re.sub(r"^seeds = .*", "seeds = [1]", text, flags=re.MULTILINE).replace("cifar100", "synthetic")
        text = re.sub(r"\[values\.(?!gpm)\w+\]\n.*\n", "", text)
        text = text.replace("task=5 after=5", "task=1 after=1").replace(
            "landscape(", "landscape(directions=2 points=11 "
        )
        file = folder / f"{name}.toml"
        file.write_text(SMALL + text)
        study = read(file)
        for one in specs(study):
            run_spec(one, out=folder / "runs", probes=study.probes)
        return perdure.study(file, out=folder / "runs"), folder / "runs" / "studies" / name

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Report, "html", lambda report, before: b"")  # noqa: ARG005
        yield small


def table(file: Path) -> list[dict[str, str]]:
    with file.open() as opened:
        return list(csv.DictReader(opened))


def of_probe(result: StudyResult, method: str, probe: str, **values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a probe found of a method's first run: figures and arrays."""
    run = next(run for run in result.runs if run.spec.method == method)
    assert run.path is not None
    for file in sorted((run.path / "probes").glob("*.json")):
        content = json.loads(file.read_text())
        if content["probe"] == probe and values.items() <= content["values"].items():
            return content, load_file(file.with_suffix(".safetensors"))
    raise AssertionError(f"no {probe} of {method}")


def check_drawn(result: StudyResult, folder: Path, *names: str) -> None:
    """All there."""
    assert not [note for note in result.notes if note.startswith("warning: no ")]
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert folder / f"{name}.png" in result.files


def test_new_tasks_and_matrices(do: Do) -> None:
    result, folder = do("new-tasks")
    check_drawn(result, folder, "new-tasks", "matrices", "accuracy", "comparison")
    rows = {row["method"]: row["new task"] for row in table(folder / "summary.csv")}
    for run in result.runs:
        assert run.record is not None
        matrix = run.record["accuracy_matrix"]
        diagonal = [row[-1] for row in matrix]
        assert rows[run.spec.method] == ("" if len(matrix) == 1 else f"{sum(diagonal) / 3:.2f}")


@pytest.mark.thorough
def test_landscapes_are_the_means_over_directions(do: Do) -> None:
    result, folder = do("landscapes")
    check_drawn(result, folder, "landscapes")
    rows = table(folder / "landscapes.csv")
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    assert [re.sub(r" \(.*?\)", "", panel) for panel in panels] == ["task 2, after all tasks", "task 1, after task 1"]
    for panel, values in zip(panels, ({"task": 2, "after": None}, {"task": 1, "after": 1}), strict=True):
        for method in ("gpm", "fsdgpm", "dfgp", "rcl"):
            drawn = [(row["step"], row["loss"]) for row in rows if (row["panel"], row["method"]) == (panel, method)]
            figures, arrays = of_probe(result, method, "landscape", batch=None, images=None, **values)
            assert [float(step) for step, _ in drawn] == pytest.approx(arrays["steps"])
            assert [float(loss) for _, loss in drawn] == pytest.approx(arrays["curves"][0].mean(0), rel=1e-5)
            assert arrays["curves"].shape == (1, 2, 11)
            assert len(figures["tasks"]) == 1


def test_spans_are_read_off_both_sides_of_the_same_landscape(do: Do) -> None:
    result, folder = do("span")
    check_drawn(result, folder, "span")
    rows = {row["method"]: row for row in table(folder / "span.csv")}
    assert list(rows) == ["gpm", "rcl"]
    for method, row in rows.items():
        curve = of_probe(result, method, "landscape", task=2, after=None)[1]["curves"][0].mean(0)
        both = (curve + curve[::-1]) / 2
        assert [float(row[name]) for name in ("loss at W", "loss at 0.1", "loss at 0.2")] == pytest.approx(
            [both[5], both[6], both[7]], rel=1e-5
        )


@pytest.mark.thorough
def test_flatness_is_scattered_against_robust_loss(do: Do) -> None:
    result, folder = do("flatness")
    check_drawn(result, folder, "flatness")
    rows = table(folder / "flatness.csv")
    assert len(rows) == 10  # eight methods, of GPM three settings
    assert sum(row["run"].startswith("gpm (threshold=") for row in rows) == 3
    row = next(row for row in rows if row["run"] == "rcl, seed 1")
    flatness = of_probe(result, "rcl", "flatness")[0]["flatness"]
    attack = of_probe(result, "rcl", "fgsm")[0]
    assert attack["labels"] == ["0.001 norm."]
    assert float(row["flatness"]) == pytest.approx(np.mean(flatness), rel=1e-5)
    assert float(row["robust loss"]) == pytest.approx(attack["loss"][0], rel=1e-5)


@pytest.mark.thorough
def test_the_robust_region_is_read_off_the_attacked_matrices(do: Do) -> None:
    result, folder = do("region")
    check_drawn(result, folder, "region")
    rows = table(folder / "region.csv")
    assert list(dict.fromkeys(row["attack"] for row in rows)) == ["clean", "FGSM 0.5/255", "FGSM 1/255", "FGSM 2/255"]
    for method in ("mtl", "rcl"):
        matrix = of_probe(result, method, "over-time", strength=2 / 255)[0]["robust"]["matrix"]
        drawn = [row for row in rows if (row["attack"], row["method"]) == ("FGSM 2/255", method)]
        assert [float(row["first task"]) for row in drawn] == pytest.approx([r[0] for r in matrix], rel=1e-3)
        means = [float(row["tasks seen, mean"]) for row in drawn]
        assert means == pytest.approx([sum(r) / len(r) for r in matrix], rel=1e-3)
        assert len(drawn) == (1 if method == "mtl" else 3)


def test_features_are_seen_on_the_circle(do: Do) -> None:
    result, folder = do("uniformity")
    check_drawn(result, folder, "circle")
    rows = table(folder / "circle.csv")
    assert [(row["run"], row["plane"]) for row in rows] == [("dfgp, seed 1", "pca"), ("rcl, seed 1", "pca")]
    circle = of_probe(result, "rcl", "geometry")[0]["circle"]
    assert float(rows[1]["uniformity"]) == pytest.approx(circle["uniformity"], rel=1e-3)


def test_the_page_of_a_study_has_its_figures(do: Do) -> None:
    result, _ = do("span")
    shown = list(page._compared(of_study(result), page._Drawing()))
    assert shown[-1].caption == f"{paper_figures.FIGURES['span'].caption}."
    assert "ΔW₂ = 0.2" in shown[-1].svg
    assert of_study(result)._fingerprint() != replace(of_study(result), figures=())._fingerprint()


def test_a_figure_shows_what_the_studys_own_probes_found(do: Do) -> None:
    """The store has other landscapes of the same runs, which another study asked for."""
    do("landscapes")
    result, _ = do("span")
    (drawn,) = of_study(result).figures
    assert [[result.values["after"] for _, result in found] for _, found in drawn.runs] == [[None], [None]]


def test_a_table_shows_what_the_studys_own_probes_found(tmp_path: Path) -> None:
    """The store has another result of the same name, which another study asked for."""
    shown = {}
    for images in (5, 30):
        file = tmp_path / f"on-{images}.toml"
        file.write_text(f"""
methods = ["finetune"]
benchmarks = ["synthetic"]
seeds = [1]
tasks = 2
network = "mlp"
plan = {{ epochs = 1 }}
probes = ["pgd(strengths=4/255 steps=2 images={images})"]
""")
        (one,) = specs(asked := read(file))
        run_spec(one, out=tmp_path / "runs", probes=asked.probes)
        shown[images] = file
    for images, file in shown.items():
        (group,) = perdure.study(file, out=tmp_path / "runs", pictures=False).groups
        (found,) = group.figures("PGD-2 4/255").values()
        kept = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("probes/pgd-*.json")]
        assert {one["values"]["images"] for one in kept} == {5, 30}
        assert [found] == [one["headline"]["PGD-2 4/255"] for one in kept if one["values"]["images"] == images]
    assert len({one["headline"]["PGD-2 4/255"] for one in kept}) == 2


def test_older_results_are_in_the_same_figure_and_runs_have_the_names_of_their_rows(tmp_path: Path) -> None:
    """A result that was measured before a probe got a value has it as it is usually."""
    file = tmp_path / "mine.toml"
    file.write_text("""
benchmarks = ["synthetic"]
seeds = [1]
tasks = 2
network = "mlp"
plan = { epochs = 1 }
probes = ["pgd(strengths=4/255 images=5 steps=2)"]
figures = ["tradeoff"]
[[block]]
methods = ["pat"]
[[block]]
row = "two steps"
methods = ["pat"]
values.pat = { attack_steps = 2 }
""")
    for one in specs(asked := read(file)):
        run_spec(one, out=tmp_path / "runs", probes=asked.probes)
    older = next((tmp_path / "runs").rglob("probes/pgd-*.json"))
    content = json.loads(older.read_text())
    assert (content["values"].pop("samples"), content.pop("check")) != (None, None)
    older.write_text(json.dumps(content))
    result = perdure.study(file, out=tmp_path / "runs", pictures=False)
    assert not any(run.computed for run in result.runs)
    (drawn,) = of_study(result).figures
    assert {one.method for one in paper_figures.tradeoffs(drawn.runs)[1]} == {"pat", "two steps"}


def test_names_and_probes_are_those_of_the_figures() -> None:
    assert {name: kind.probes for name, kind in paper_figures.FIGURES.items()} == FIGURES
    assert {figure for name in shipped() for figure in read(name).figures} == FIGURES.keys()


def test_eight_methods_with_three_settings_each_one_of_them_the_preset() -> None:
    runs = specs(read("flatness"))
    methods = [run.method for run in runs]
    assert {methods.count(method) for method in methods} == {3}
    assert len(set(methods)) == 8
    usual = {run.method: run.plain() for run in specs(read("table1")) if (run.benchmark, run.seed) == ("cifar100", 1)}
    assert {run.method for run in runs if run.plain() == usual[run.method]} == set(methods)


GRID = 'methods = ["gpm"]\nbenchmarks = ["synthetic"]\nseeds = [1]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GRID + 'figures = ["flatnes"]', "did you mean flatness"),
        (GRID + 'figures = ["flatness"]\nprobes = ["flatness"]', "shows the probe fgsm, which is not among its probes"),
        (GRID + 'figures = "span"', "figures takes a list of figures of the paper"),
        (
            GRID.replace('"synthetic"', '"synthetic", "six"') + 'figures = ["circle"]\nprobes = ["geometry"]',
            "a figure shows runs of one benchmark",
        ),
    ],
)
def test_slips_are_a_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
