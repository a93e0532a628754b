"""Probes over several runs, from Python."""

import shlex
from pathlib import Path

import pytest

import perdure
from perdure.errors import RunLocked, UnknownName, WrongValue
from perdure.lab.probe_run import RunProgress
from perdure.lab.probe_runs import forecast
from perdure.lab.report import gather
from perdure.lab.store import lock_run


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three finished runs."""
    place = tmp_path_factory.mktemp("runs")
    for method, seed in (("finetune", 1), ("gpm", 1), ("gpm", 2)):
        perdure.run(method, "synthetic", tasks=2, seed=seed, net="mlp", plan={"epochs": 1}, out=place, pictures=False)
    return place


def test_a_report_for_each_probe_a_result_for_each_run(out: Path) -> None:
    reports = perdure.probe(["calibration", "fgsm"], ["gpm", "synthetic"], values={"fgsm.images": 16}, out=str(out))
    assert [report.name for report in reports] == ["calibration", "fgsm"]
    assert reports[0].key == "calibration"
    assert reports[1].key.startswith("fgsm-")
    for report in reports:
        assert [result.label for result in report.results] == ["gpm, seed 1", "gpm, seed 2"]
        assert len(report.pictures) == 3  # of each, and of both
        assert all(picture.exists() for picture in report.pictures)


def test_one_run_without_pictures(out: Path) -> None:
    path = next((out / "synthetic/finetune").iterdir())
    (report,) = perdure.probe("geometry", path, out=out, pictures=False)
    assert len(report.results) == 1
    assert report.pictures == []
    assert not (path / "probes/geometry.png").exists()


class Log(RunProgress):
    def __init__(self) -> None:
        super().__init__()
        self.begun: list[str] = []
        self.warnings: list[str] = []

    def begin(self, name: str, _work: object, _seconds: float) -> None:
        self.begun.append(name)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def test_progress_and_what_is_not_measured_twice(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise perdure.PerdureError("no matplotlib")

    values = {"images": 16, "steps": 2}
    both = [out / row.path for row in perdure.runs(out) if row.seed == 1]
    first = Log()
    drawn, _ = perdure.probe(["transfer", "pgd"], both, values=values, out=out, progress=first)
    assert first.begun == ["finetune, seed 1: pgd", "gpm, seed 1: pgd", "2 runs: transfer"]
    monkeypatch.setattr("perdure.report.figures.png", fail)
    again = Log()
    (transfer, _) = perdure.probe(["transfer", "pgd"], both, values=values, out=out, progress=again)
    assert again.begun == []
    assert again.warnings[0] == f"no {drawn.pictures[0].name}: no matplotlib"
    assert transfer.pictures == []


def test_a_forecast_measures_nothing(out: Path) -> None:
    both = [out / row.path for row in perdure.runs(out) if row.seed == 1]
    rows = forecast(["curvature", "transfer"], both, values={"images": 16}, out=out)
    assert [(row["run"], row["probe"]) for row in rows] == [
        ("finetune, seed 1", "curvature"),
        ("gpm, seed 1", "curvature"),
        ("all together", "transfer"),
    ]
    assert all(row["seconds"] > 0 and row["gradients"] > 0 for row in rows)
    assert not list(out.rglob("curvature*.json"))


def test_what_is_asked_wrongly(out: Path) -> None:
    with pytest.raises(WrongValue, match="name at least one run"):
        perdure.probe("fgsm", [], out=out)
    with pytest.raises(UnknownName, match="did you mean fgsm"):
        perdure.probe("fgms", "gpm", out=out)
    with pytest.raises(WrongValue, match="no finished run of rcl"):
        perdure.probe("fgsm", "rcl", out=out)


@pytest.mark.parametrize("probe", ["fgsm", "transfer"])
def test_a_run_that_another_process_works_on_is_not_measured(probe: str, out: Path) -> None:
    """Neither alone nor together with another."""
    paths = sorted((out / "synthetic/gpm").iterdir())
    for busy in paths:
        with lock_run(out, busy), pytest.raises(RunLocked, match="is at work on it"):
            perdure.probe(probe, paths, values={"images": 3}, out=out, pictures=False)


def test_a_report_of_two_runs_has_what_was_found_of_both_together(out: Path) -> None:
    both = [out / row.path for row in perdure.runs(out) if row.seed == 1]
    perdure.probe("transfer", both, values={"images": 5}, out=out, pictures=False)
    (found,) = [one for one in gather(list(map(str, both)), out)[0].together if one.result.values["images"] == 5]
    assert (found.name, found.result.label) == ("transfer", "finetune, seed 1 | gpm, seed 1")
    words = ["perdure", "probe", "transfer", *(path.name[:10] for path in both), "--set", "images=5"]
    assert shlex.split(found.command)[: len(words)] == words
    assert gather(str(both[0]), out)[0].together == []  # one of them alone
