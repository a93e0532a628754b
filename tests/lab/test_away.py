"""A run done far from the store leaves in it what a run at home leaves. No cluster is needed to see that."""

import json
import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from perdure.errors import CorruptFile, PerdureError, RunLocked
from perdure.lab import away
from perdure.lab.away import Home, Order, Outcome, do_away, order
from perdure.lab.checkpoint import load
from perdure.lab.execute.job import Job
from perdure.lab.run import run_spec as run
from perdure.lab.spec import spec
from perdure.lab.store import lock_run

PLAN = {"epochs": 2, "momentum": 0.5}


class PulledPlug(BaseException):
    """Nothing in the code expects it."""


class Direct:
    """A line with nothing in between: the worker talks to the store itself. Falls dead after so many epochs."""

    def __init__(self, home: Home, epochs: int = 1000) -> None:
        self.home, self.left, self.told = home, epochs, []

    def tell(self, kind, facts):
        self.told.append((kind, facts))
        self.left -= kind == "epoch"
        if not self.left:
            raise PulledPlug

    def fetch(self, where):
        return self.home.fetch(where)

    def send(self, files):
        self.home.keep(files)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(spec("gpm", "synthetic", tasks=2, plan=PLAN), str(tmp_path / "store"), every=0)


@pytest.fixture(autouse=True)
def _threads():
    """Workers set their own."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(away, "LOOK", 0.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def sent(job: Job, **more) -> Order:
    """As it arrives."""
    return Order.from_text(order(job, **{"threads": 1, "seen": False, **more}).text())


def at_home(job: Job) -> tuple[Home, list]:
    told = []
    return Home(job, lambda kind, facts: told.append((kind, facts))), told


def alike(path: Path, other: Path) -> bool:
    """But for the time it took."""
    records = [json.loads((one / "record.json").read_text()) for one in (path, other)]
    for record in records:
        for name in ("seconds", "files", "check"):
            del record[name]
    plan = spec("gpm", "synthetic", plan=PLAN).plan
    one, two = (load(place / "model.safetensors", plan).state for place in (path, other))
    names = [{file.name for file in place.iterdir()} for place in (path, other)]
    return records[0] == records[1] and names[0] == names[1] and all(one[name].equal(two[name]) for name in one | two)


def whole(job: Job, tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    return Path(run(job.spec, out=tmp_path / "whole", probes=job.probes)["path"])


def test_the_store_is_the_same_as_after_a_run_at_home(job, tmp_path):
    home, told = at_home(job)
    line = Direct(home)
    outcome, files = do_away(sent(job), line)
    home.finish(files)
    home.close()
    assert (outcome.kind, outcome.shared, told) == ("done", False, [])
    assert [kind for kind, _ in line.told] == ["started", "epoch", "epoch", "epoch", "epoch"]
    assert alike(Path(job.out) / outcome.where, whole(job, tmp_path))
    assert "path" not in outcome.facts["record"]
    assert Outcome.from_text(outcome.text()).facts == outcome.facts


def test_a_lost_worker_costs_no_more_than_since_its_last_checkpoint(job, tmp_path):
    home, _ = at_home(job)
    with pytest.raises(PulledPlug):
        do_away(sent(job), Direct(home, epochs=3))
    home.close()
    kept = sorted(Path(job.out).glob("synthetic/gpm/*/checkpoint/*"))
    assert 1 <= len(kept) <= 2
    standing = load(kept[-1], job.spec.plan).fit_state
    assert (standing.lesson, standing.epoch) == (1, 0)  # the third epoch was told before it was saved
    line = Direct(home)
    outcome, files = do_away(sent(job), line)
    home.finish(files)
    assert [(facts["lesson"], facts["epoch"]) for kind, facts in line.told if kind == "epoch"] == [(1, 0), (1, 1)]
    assert alike(Path(job.out) / outcome.where, whole(job, tmp_path))


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(job):
    home, told = at_home(job)
    with pytest.raises(PulledPlug):
        do_away(sent(job), Direct(home, epochs=3))
    home.close()
    newest = max(Path(job.out).glob("synthetic/gpm/*/checkpoint/*"))
    newest.write_bytes(newest.read_bytes()[:-1])
    assert do_away(sent(job), Direct(home))[0].kind == "done"
    assert [kind for kind, _ in told] == ["warning"]
    assert "set aside as" in told[0][1]["text"]
    assert newest.with_name(f"{newest.name}.damaged-1").exists()


def test_a_finished_run_is_not_computed_again_but_measured(job):
    home, _ = at_home(job)
    outcome, files = do_away(sent(job), Direct(home))
    home.finish(files)
    before = (Path(job.out) / outcome.where / "record.json").read_bytes()
    line = Direct(home)
    outcome, files = do_away(sent(replace(job, probes=("fgsm",))), line)
    assert [kind for kind, _ in line.told] == ["started", "probe"]
    assert sorted(files) == ["probes/fgsm.json", "probes/fgsm.safetensors"]
    home.finish(files)
    assert (Path(job.out) / outcome.where / "record.json").read_bytes() == before
    assert "fgsm" in outcome.facts["record"]["probes"]


def test_a_run_that_another_works_on_is_busy(job):
    home, _ = at_home(job)
    outcome, _ = do_away(sent(job), Direct(home))
    home.close()
    with lock_run(Path(job.out), Path(job.out) / "synthetic" / "gpm" / home.path.name):
        outcome, _ = do_away(sent(job), Direct(home))
    assert outcome.kind == "busy"
    assert "is at work on it" in outcome.facts["error"]
    with pytest.raises(RunLocked), lock_run(Path(job.out), home.path):
        home.fetch(f"synthetic/gpm/{home.path.name}")


def test_it_is_held_while_it_is_done(job):
    home, _ = at_home(job)
    do_away(sent(job), Direct(home))
    with pytest.raises(RunLocked), lock_run(Path(job.out), home.path):
        pass
    home.close()
    with lock_run(Path(job.out), home.path):
        pass


def test_a_worker_that_sees_the_store_works_in_it(job, tmp_path):
    token = Path(job.out) / "token"
    token.parent.mkdir()
    token.write_text("secret")
    outcome, files = do_away(sent(job, seen=None, token=str(token), secret="secret"), Direct(at_home(job)[0]))
    assert (outcome.kind, outcome.shared, files) == ("done", True, {})
    assert alike(Path(job.out) / outcome.where, whole(job, tmp_path))


def test_what_trackers_leave_comes_home_and_goes_out_again(job):
    """Here a file of somebody else's in the run's directory, as TensorBoard's are."""
    home, _ = at_home(job)

    class Noting(Direct):
        def tell(self, kind, facts):
            if kind == "epoch":
                [path] = Path(tempfile.gettempdir()).glob("perdure-*/synthetic/gpm/*/checkpoint/..")
                with (path.resolve() / "notes.txt").open("a") as notes:
                    notes.write(f"{facts['lesson']}{facts['epoch']} ")
            super().tell(kind, facts)

    with pytest.raises(PulledPlug):
        do_away(sent(job), Noting(home, epochs=3))
    outcome, files = do_away(sent(job), Noting(home))
    home.finish(files)
    assert (Path(job.out) / outcome.where / "notes.txt").read_text() == "00 01 10 10 11 "


def test_the_model_of_a_lost_record_is_gone_on_from(job):
    home, _ = at_home(job)
    outcome, files = do_away(sent(job), Direct(home))
    home.finish(files)
    path = Path(job.out) / outcome.where
    (path / "record.json").unlink()
    line = Direct(home)
    outcome, files = do_away(sent(job), line)
    home.finish(files)
    assert [kind for kind, _ in line.told] == ["started"]
    assert (path / "record.json").exists()


@pytest.mark.parametrize("secret", ["another", None])
def test_a_worker_that_sees_another_store_does_not(job, secret):
    """A folder of the same name on another machine is not the driver's."""
    token = Path(job.out) / "token"
    token.parent.mkdir()
    if secret:
        token.write_text(secret)
    assert not away.sees_store(sent(job, seen=None, token=str(token), secret="secret"))


@pytest.mark.parametrize("name", ["../elsewhere", "/etc/passwd", "", "probes/../../x"])
def test_nothing_is_written_outside_the_run(job, name):
    home, _ = at_home(job)
    do_away(sent(job), Direct(home))
    with pytest.raises(PerdureError, match="not a name of a file"):
        home.keep({name: b""})
    with pytest.raises(PerdureError, match="not a name of a file"):
        home.fetch(name)


def test_half_a_run_is_not_a_run(job):
    home, _ = at_home(job)
    _, files = do_away(sent(job), Direct(home))
    with pytest.raises(CorruptFile, match="checksum"):
        home.finish({**files, "model.safetensors": files["model.safetensors"][:-1]})
    (home.path / "record.json").unlink()
    with pytest.raises(CorruptFile, match="no record"):
        home.finish({"spec.toml": b""})


def test_what_goes_wrong_is_the_outcome_in_one_line(job, monkeypatch):
    home, _ = at_home(job)
    missing = replace(job, spec=replace(job.spec, benchmark="cifar100"), root="/nowhere")
    monkeypatch.setenv("PERDURE_DATA", "/nowhere/either")
    for asked in (missing, replace(job, device="cuda:9"), replace(job, spec=replace(job.spec, benchmark="folder:/no"))):
        outcome, _ = do_away(sent(asked), Direct(home))
        assert outcome.kind == "failed"
        assert "\n" not in outcome.facts["error"]
    older = replace(sent(job), perdure="0.0.1")
    assert re.search("has perdure .* the driver has 0.0.1; install", do_away(older, Direct(home))[0].facts["error"])


def test_another_torch_is_a_caution(job):
    line = Direct(at_home(job)[0])
    assert do_away(replace(sent(job), torch="1.0"), line)[0].kind == "done"
    assert "last digits may differ" in dict(line.told)["warning"]["text"]


def test_the_drivers_data_is_used_where_it_is_there(job, tmp_path, monkeypatch):
    monkeypatch.setenv("PERDURE_DATA", str(tmp_path))
    assert order(job, threads=1, seen=False).data == str(tmp_path)
    monkeypatch.chdir(tmp_path)
    given = order(replace(job, root="images", out="runs"), threads=1, seen=False)
    assert (given.data, given.job["out"]) == (str(tmp_path / "images"), str(tmp_path / "runs"))
    monkeypatch.delenv("PERDURE_DATA")
    assert order(job, threads=1, seen=False).data is None
    roots = []
    monkeypatch.setattr(away, "open_stream", lambda _spec, root: roots.append(root) or 1 / 0)
    for data in (tmp_path, tmp_path / "nowhere"):
        do_away(replace(sent(job), data=str(data)), Direct(at_home(job)[0]))
    assert roots == [tmp_path, None]


def test_what_is_relative_is_meant_from_the_drivers_folder(job, tmp_path, monkeypatch):
    (tmp_path / "driver").mkdir()
    (tmp_path / "worker").mkdir()
    monkeypatch.chdir(tmp_path / "driver")
    asked = sent(job)
    monkeypatch.chdir(tmp_path / "worker")
    seen = []
    monkeypatch.setattr(away, "open_stream", lambda *_: seen.append(Path.cwd()) or 1 / 0)
    outcome, _ = do_away(asked, Direct(at_home(job)[0]))
    assert outcome.facts["error"] == "ZeroDivisionError: division by zero"
    assert seen == [tmp_path / "driver"]
    assert os.getcwd() == str(tmp_path / "worker")  # noqa: PTH109
    do_away(replace(asked, folder=str(tmp_path / "gone")), Direct(at_home(job)[0]))
    assert seen[-1] == tmp_path / "worker"
