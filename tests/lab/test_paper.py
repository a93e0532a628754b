"""What the paper prints beside what was found here."""

import json
import tomllib
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import tomli_w

from perdure.errors import UnknownName
from perdure.lab import fact_tables, paper
from perdure.lab.paper import compare_with_paper, printed, verdict
from perdure.lab.spec import shipped_files, spec
from perdure.lab.study import study
from perdure.lab.study_file import PAPER_TABLES, read, shipped
from perdure.ops.statistics import Spread, groups
from perdure.report.table import as_text
from perdure.report.tables import beside_paper

GOLDEN = Path(__file__).parent.parent / "golden" / "vectors"
NAMES = {"A-GEM": "agem", "FS-DGPM": "fsdgpm"}
BENCHMARKS = {"CIFAR100": "cifar100", "FIVE": "five", "MINI": "miniimagenet"}


def tables() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / "paper_tables.json").read_text("utf-8"))
    return found


def test_the_main_table_is_the_printed_one() -> None:
    cells = 0
    for method, row in tables()["main_table"].items():
        for benchmark, figures in row.items():
            own = printed()["table1"][BENCHMARKS[benchmark]].get(NAMES.get(method, method.lower()), {})
            for name in ("ACC", "BWT"):
                assert own.get(name.lower()) == figures[name], (method, benchmark)
                cells += figures[name] is not None
    assert cells == 57  # 30 accuracies and 27 BWTs, which MTL has not


def test_the_other_tables_are_the_printed_ones() -> None:
    theirs, ours = tables(), printed()
    for row, found in theirs["ablation"].items():
        for benchmark, figures in found.items():
            own = ours["ablation"][BENCHMARKS[benchmark]][row.replace("phi", "φ")]
            assert own == {"acc": [figures["ACC"]], "bwt": [figures["BWT"]]}
    for benchmark, methods in theirs["fgsm"]["ACC"].items():
        for method, figures in methods.items():
            row = ours["fgsm"][BENCHMARKS[benchmark]][method.lower()]
            names = ["acc", *(f"FGSM {mu:g} norm." for mu in theirs["fgsm"]["mu"][1:])]
            assert row == {name: [value] for name, value in zip(names, figures, strict=True)}
    for study_name, option, symbol in (("phi", "phi_init", "phi"), ("kappa", "ua_weight", "kappa")):
        found = theirs[f"{study_name}_sensitivity_CIFAR100"]
        cells = zip(found[symbol], found["ACC"], strict=True)
        assert ours[study_name]["cifar100"] == {f"rcl ({option}={value:g})": {"acc": pair} for value, pair in cells}
    for method in ("DFGP", "RCL"):
        mean, deviation = ours["seeds"]["cifar100"][method.lower()]["acc"]
        assert mean == pytest.approx(fmean(theirs["seeds_CIFAR100"][method]), abs=5e-4)
        assert deviation == theirs["seeds_CIFAR100"]["sigma_printed"][method]
    for method, minutes in theirs["time_minutes_CIFAR100"].items():
        assert ours["time"]["cifar100"][NAMES.get(method, method.lower())]["minutes"] == [minutes]


def test_the_authors_runs_are_the_published_ones() -> None:
    runs = json.loads((GOLDEN / "published_runs.json").read_text("utf-8"))["runs"]
    for benchmark, theirs in (("cifar100", "CIFAR100"), ("five", "FIVE"), ("miniimagenet", "MINI")):
        for method in ("RCL", "DFGP"):
            alike = [run for run in runs if (run["method"], run["dataset"]) == (method, theirs)]
            logged = printed()["table1"][benchmark][method.lower()]["logged"]
            for name, values in logged.items():
                assert values == [round(run["printed"][name.upper()], 2) for run in alike]


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        (Spread(73.80, 0.5, 5), Spread(73.01, 0.36, 5), "reproduced"),  # pooled: 0.4356, twice that: 0.871
        (Spread(73.89, 0.5, 5), Spread(73.01, 0.36, 5), "higher"),
        (Spread(72.13, 0.5, 5), Spread(73.01, 0.36, 5), "lower"),
        (Spread(73.72, None, 1), Spread(73.01, 0.36, 5), "reproduced"),  # of one run the paper's deviation counts alone
        (Spread(73.74, None, 1), Spread(73.01, 0.36, 5), "higher"),
        (Spread(74.12, None, 1), Spread(74.12, None, 0), "not comparable"),  # by what measure?
    ],
)
def test_two_pooled_standard_deviations_decide(ours: Spread, theirs: Spread, word: str) -> None:
    assert verdict(ours, theirs) == word


def run(method: str = "gpm", seed: int = 1, acc: float = 73.0, **asked: Any) -> dict[str, Any]:
    """A finished run on CIFAR-100 by the preset, but for what is asked otherwise."""
    benchmark, complete = asked.pop("benchmark", "cifar100"), asked.pop("completeness", "complete")
    record = spec(method, benchmark, seed=seed, **asked).plain()
    return {**record, "acc": acc, "bwt": -0.1, "data": {"completeness": complete}}


def word_and_reason(*runs: dict[str, Any], table: str = "table1") -> tuple[str, str]:
    first, *_ = compare_with_paper(table, groups(runs))
    return first.verdict, first.why


def test_runs_by_the_preset_are_compared() -> None:
    runs = [run(seed=seed, acc=acc) for seed, acc in zip((1, 2, 10), (72.6, 73.0, 73.4), strict=True)]
    acc, bwt = compare_with_paper("table1", groups(runs))
    assert (acc.verdict, acc.why, bwt.figure) == ("reproduced", "", "bwt")
    assert acc.ours == Spread(pytest.approx(73.0), pytest.approx((2 * 0.16 / 3) ** 0.5), 3)  # ddof 0, as the paper's
    assert acc.printed == Spread(73.01, 0.36, 0)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"plan": {"epochs": 10}}, "epochs 10, not 200"),
        ({"tasks": 3}, "3 tasks only"),
        ({"network": "mlp"}, "network mlp, not alexnet"),
        ({"values": {"threshold": 0.5}}, "threshold 0.5, not 0.97"),
        ({"completeness": "subset"}, "data: subset"),
        ({"outliers": "labels:0.2"}, "outliers labels:0.2"),
        ({"method": "ewc"}, "the paper's settings for it are not public"),
        ({"benchmark": "five"}, "the paper's Fashion-MNIST is MNIST (legacy=true)"),
    ],
)
def test_something_else_is_not_comparable(asked: dict[str, Any], reason: str) -> None:
    assert word_and_reason(run(**asked)) == ("not comparable", reason)


def test_the_papers_own_mixup_of_data_is_comparable() -> None:
    runs = [run("trgp", benchmark="five", settings={"legacy": True}, acc=90.9)]
    assert word_and_reason(*runs)[0] == "reproduced"


def test_what_was_not_run_is_said() -> None:
    asked = spec("gpm", "cifar100").plain()
    assert word_and_reason({**asked, "acc": None, "bwt": None})[0] == "not run"


def test_the_table_says_why_below() -> None:
    compared = compare_with_paper("table1", groups([run(plan={"epochs": 10}), run("rcl", acc=75.4)]))
    text = as_text([beside_paper(compared)], "markdown")
    assert "| cifar100 | gpm | ACC | 1 | 73.00 | 73.01 ± 0.36 | – | not comparable (a) |" in text
    assert "(a) epochs 10, not 200" in text
    assert "75.44, 75.42" in text
    sheet = as_text([beside_paper(compared)], "csv").splitlines()
    assert sheet[0] == "benchmark,method,figure,n,ours,paper,paper std,authors' runs,verdict"
    assert sheet[1] == "cifar100,gpm,ACC,1,73.00,73.01,0.36,,not comparable (a)"


# --- every study of the paper, end to end ---


def small(name: str, folder: Path) -> Path:
    """A study of the paper with its rows, values and probes, on made-up images and in seconds."""
    content = tomllib.loads(shipped_files("studies")[name].read_text("utf-8"))
    parts = content.get("block", [content])
    for part in parts:
        part.pop("settings", None)
        if "benchmarks" in part:
            part["benchmarks"] = ["synthetic"]
    if name == "table1":
        content["block"] = parts = parts[:1]  # the others have the same methods
    content |= {"seeds": [1, 2], "network": "mlp", "tasks": 2, "plan": {"epochs": 1}}
    content |= {"settings": {"size": 8, "per_class": 12}, "benchmarks": ["synthetic"]}
    if name == "ablation":
        content["values"] = {"rcl": {"phi_init": 1e-4}}  # made-up images have no φ of their own
    if name in ("ablation", "phi"):
        content["values"]["rcl"]["phi_steps"] = 2
    file = folder / f"{name}.toml"
    file.write_bytes(tomli_w.dumps(content).encode())
    return file


@pytest.mark.usefixtures("jobs_here")
@pytest.mark.parametrize("name", PAPER_TABLES)
def test_a_study_of_the_paper_end_to_end(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name in shipped()
    assert read(name).paper == name
    as_if = {**printed(), name: {"synthetic": printed()[name]["cifar100"]}}
    monkeypatch.setattr(paper, "printed", lambda: as_if)
    result = study(small(name, tmp_path), out=tmp_path / "runs", pictures=False)
    assert not result.failed
    rows = {(one.row, one.figure) for one in result.paper}
    expected = {
        (row, figure)
        for row, figures in as_if[name]["synthetic"].items()
        for figure, value in figures.items()
        if isinstance(value, list)
    }
    assert rows == expected  # nothing that the paper prints is missing
    assert all(one.ours is not None and one.ours.n == 2 for one in result.paper)
    assert {one.verdict for one in result.paper} == {"not comparable"}
    assert "paper.csv" in {file.name for file in result.files}
    assert "verdict" in str(result)


# --- tables without runs ---


def test_the_table_of_data_counts_images_and_says_what_the_paper_says(tmp_path: Path) -> None:
    theirs = tables()["dataset_statistics"]
    for name, benchmark in BENCHMARKS.items():
        own = printed()["datasets"][benchmark]
        assert (own["tasks"], own["classes"]) == (theirs[name]["tasks"], theirs[name]["classes_per_task"])
        one = [[theirs[name][part] for part in ("train", "valid", "test")]] if name != "FIVE" else None
        assert own["images"] == (one or list(theirs["FIVE"]["per_task"].values()))
    file = tmp_path / "data.toml"
    file.write_text('table = "datasets"\nmethods = ["gpm"]\nbenchmarks = ["synthetic", "six"]\nseeds = [1]\n')
    result = study(file, out=tmp_path)
    assert "| synthetic | synthetic-0 … synthetic-2 | 3 | 90 | 30 | 60 | – |" in str(result)
    assert not result.runs
    assert {path.name for path in result.files} == {"summary.md", "summary.tex", "datasets.csv"}


def test_images_are_compared_with_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"tasks": 3, "classes": 3, "images": [[90, 30, 60], [90, 30, 60], [1, 2, 3]]}
    monkeypatch.setattr(fact_tables, "printed", lambda: {"datasets": {"synthetic": said}})
    text = as_text([fact_tables.datasets(["synthetic"], [], None)], "markdown")
    assert "| synthetic-0 … synthetic-1 | 3 | 90 | 30 | 60 | the same |" in text
    assert "| synthetic-2 | 3 | 90 | 30 | 60 | 1 / 2 / 3 |" in text


def test_the_table_of_hyperparameters_has_every_preset_with_its_source(tmp_path: Path) -> None:
    text = str(study("hyperparameters", out=tmp_path))
    assert "| all | epochs | 200 (paper, log; no run reaches it) | 100 (paper, log; no run reaches it) |" in text
    assert "| ewc | coefficient | 5000.0 (paper) | 5000.0 (paper) | 5000.0 (paper) |" in text
    assert "| owm | clip | 10.0 (code) | – | – |" in text


def test_a_table_that_there_is_not(tmp_path: Path) -> None:
    for key in ("table", "paper"):
        file = tmp_path / "wrong.toml"
        file.write_text(f'{key} = "tabel1"\nmethods = ["gpm"]\nbenchmarks = ["six"]\nseeds = [1]\n')
        with pytest.raises(UnknownName, match="tabel1"):
            study(file, out=tmp_path)
