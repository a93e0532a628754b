"""`perdure study`, as a user runs it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command import perdure as command
from finished_runs import finish_run
from typer.testing import CliRunner, Result

import perdure
from perdure.cli.main import app
from perdure.errors import Interrupted
from perdure.lab import estimate, study
from perdure.lab.execute.job import Event
from perdure.lab.execute.local import LocalExecutor
from perdure.lab.executors import stop_on_signal
from perdure.lab.store import finish, run_directory
from perdure.lab.study import StudyCallback, StudyPlan
from perdure.lab.study_file import read, specs
from perdure.train.plan import Plan

PERDURE = [sys.executable, "-m", "perdure"]
ENVIRONMENT = {**os.environ, "COLUMNS": "120", "OMP_NUM_THREADS": "1"}

GRID = """
methods = ["finetune", "gpm"]
benchmarks = ["synthetic"]
seeds = [1, 2, 3]
tasks = 2
"""
ENDLESS = 'methods = ["gpm"]\nbenchmarks = ["synthetic"]\nseeds = [1, 2]\nplan = { epochs = 100000 }\n'


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pictures, which are in lab/test_pictures.py, and without timing the start of a process."""
    written = study._written
    monkeypatch.setattr(study, "_written", lambda result, _pictures: written(result, pictures=False))
    monkeypatch.setattr(estimate, "_start_seconds", lambda: 1.0)


def here(*words: str) -> Result:
    """In this process, for what computes nothing."""
    return CliRunner().invoke(app, ["study", *words], env={"COLUMNS": "120"})


def pretend(file: Path, out: Path, figures: dict[str, list[float]], **more: Any) -> None:
    """Records of runs that nobody did: for each method what it came to, seed by seed."""
    for one in specs(read(file)):
        if len(figures[one.method]) < one.seed:
            continue
        record = {**one.plain(), "acc": figures[one.method][one.seed - 1], "bwt": -1.0, "threads": 1, "device": "cpu"}
        record |= {"versions": {"torch": "2", "perdure": "0"}, "seconds": 1.0, "data": {"completeness": "complete"}}
        finish_run(run_directory(out, one.benchmark_dir, one.method, one.digest()), {**record, **more})


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def workers(out: Path) -> list[int]:
    """The processes that hold runs of a store."""
    return [int(file.read_text().split()[1]) for file in (out / ".locks").glob("*.worker")]


def begun(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A study that learns and would go on for hours."""
    (folder / "endless.toml").write_text(ENDLESS)
    words = (*PERDURE, "study", "endless.toml", *words)
    running = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=folder, env=ENVIRONMENT)
    assert running.stderr is not None
    for line in running.stderr:
        if line.endswith("started\n"):
            while not list(folder.rglob("spec.toml")):
                time.sleep(0.05)
            time.sleep(0.3)  # some steps
            return running
    raise AssertionError("it ended")


@pytest.mark.usefixtures("jobs_here")
def test_done_once_compared_and_not_done_again(tmp_path: Path) -> None:
    """One of the runs fails: it is kept with its error, and the others go on."""
    (tmp_path / "mine.toml").write_text("""
        benchmarks = ["synthetic"]
        seeds = [1, 2]
        tasks = 1
        plan = { epochs = 1 }
        [[block]]
        methods = ["finetune", "gpm"]
        [[block]]
        methods = ["ewc"]
        seeds = [1]
        plan = { rate = 1e30 }
    """)
    first = command("study", "mine.toml", "--jobs", "2", "--json", cwd=tmp_path)
    assert first.returncode == 1, first.stderr
    found = json.loads(first.stdout)
    assert [(run["method"], run["seed"], run["state"]) for run in found["runs"]] == [
        ("finetune", 1, "done"),
        ("gpm", 1, "done"),
        ("finetune", 2, "done"),
        ("gpm", 2, "done"),
        ("ewc", 1, "failed"),
    ]
    assert found["computed"] == 4
    assert found["notes"] == ["data of synthetic: complete"]
    assert "lower the learning rate" in found["runs"][4]["error"]
    (kept,) = tmp_path.rglob("failed.json")
    assert "lower the learning rate" in json.loads(kept.read_text())["error"]
    assert "5 runs, 0 done already, 5 to do; 2 at a time, 1 thread each" in first.stderr
    assert "gpm on synthetic, seed 2: started\n" in first.stderr
    assert len(first.stderr.splitlines()) == 1 + 2 * 5  # what is to do, and each run's start and end
    before = {path: path.read_bytes() for path in tmp_path.rglob("record.json")}
    assert len(before) == 4

    second = command("study", "mine.toml", cwd=tmp_path)
    assert second.returncode == 1
    assert "5 runs, 4 done already, 1 to do" in second.stderr
    assert "finetune on" not in second.stderr
    assert "1 of 5 runs are not done; the same command tries them again" in second.stdout
    assert {path: path.read_bytes() for path in tmp_path.rglob("record.json")} == before


@pytest.mark.thorough
def test_stopped_it_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    running = begun(tmp_path, "--jobs", "2")
    processes = workers(tmp_path / "runs")
    assert any(map(alive, processes))
    running.send_signal(signal.SIGINT)
    rest = running.communicate(timeout=120)[1]
    assert running.returncode == 128 + signal.SIGINT
    (said,) = [line for line in rest.splitlines() if line.startswith("perdure:")]
    assert "0 of 2 runs are done" in said
    assert "run the same command to resume" in said
    assert "Traceback" not in rest
    assert not any(map(alive, processes))
    assert list(tmp_path.rglob("checkpoint/*.safetensors"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_runs_and_a_second_one_waits_for_nobody(number: int) -> None:
    before, executor = signal.getsignal(number), LocalExecutor()
    with stop_on_signal(executor) as caught:
        signal.raise_signal(number)
        assert (caught, executor.stopping) == ([number], True)
        with pytest.raises(Interrupted, match="run the same command to resume") as second:
            signal.raise_signal(number)
        assert second.value.exit_code == 128 + number
    assert signal.getsignal(number) is before


def test_killed_it_leaves_no_orphans_and_loses_nothing(tmp_path: Path) -> None:
    running = begun(tmp_path)
    (process,) = workers(tmp_path / "runs")
    assert not list(tmp_path.rglob("checkpoint/*.safetensors"))  # none is due yet
    running.kill()
    running.communicate(timeout=120)
    deadline = time.monotonic() + 120
    while alive(process):
        assert time.monotonic() < deadline, "an orphan"
        time.sleep(0.05)
    assert list(tmp_path.rglob("checkpoint/*.safetensors"))


def test_dry_counts_times_and_computes_nothing(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.toml", tmp_path / "runs"
    file.write_text(GRID)
    pretend(file, out, {"finetune": [70, 71], "gpm": []})
    before = sorted(out.rglob("*"))
    answer = here(str(file), "--out", str(out), "--dry", "--json", "--jobs", "2")
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert (found["runs"], found["done"], found["to_do"], found["jobs"], found["threads"]) == (6, 2, 4, 2, 1)
    assert [(one["method"], one["runs"], one["lessons"], one["epochs"]) for one in found["estimates"]] == [
        ("gpm", 3, 2, 2),
        ("finetune", 1, 2, 2),
    ]
    assert all(one["whole"] and 0 < one["epoch"] < one["run"] for one in found["estimates"])
    assert found["seconds_at_most"] == pytest.approx(sum(one["runs"] * one["run"] for one in found["estimates"]))
    longest = max(one["run"] for one in found["estimates"])
    assert found["seconds_at_most_with_these_jobs"] == pytest.approx(found["seconds_at_most"] / 2 + longest / 2)
    assert sorted(out.rglob("*")) == before
    said = here(str(file), "--out", str(out), "--dry").stdout
    assert "6 runs, 2 done already, 4 to do" in said
    assert "The number of epochs is an upper bound" in said
    assert "on 8 cores" in said
    assert "on 32 cores (a Ray cluster, --on ray)" in said


def test_tables_of_means_and_paired_differences(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.toml", tmp_path / "runs"
    file.write_text(GRID)
    pretend(file, out, {"finetune": [70, 60, 80], "gpm": [71, 62, 83]})
    stale = next(out.rglob("record.json")).with_name("failed.json")
    stale.write_text("{}")
    answer = here(str(file), "--out", str(out))
    assert answer.exit_code == 0, answer.output
    assert not stale.exists()
    assert "6 runs, all of them done already; nothing to compute" in answer.stderr
    text = re.sub(r"\s+", " ", answer.stdout)
    assert "mean ± standard deviation over n seeds (ddof 1)" in text
    assert "finetune │ 3 │ 70.00 ± 10.00 │ -1.00 ± 0.00" in text
    assert "gpm │ 3 │ 72.00 ± 10.54" in text
    assert "paired differences over n seeds" in text
    assert "95 %" in text
    assert "gpm − finetune │ 3 │ +2.00 [-0.48, +4.48] │ +0.00 [+0.00, +0.00]" in text
    assert "warning" not in text
    found = json.loads(here(str(file), "--out", str(out), "--json").stdout)
    assert found["computed"] == 0
    assert found["groups"][1]["acc"] == {"mean": 72.0, "deviation": pytest.approx(10.535654), "n": 3}
    assert found["differences"][0]["acc"]["low"] == pytest.approx(2 - 2.4841377)


def test_the_first_method_need_not_be_the_one_to_compare_with(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.toml", tmp_path / "runs"
    file.write_text(GRID + 'against = "gpm"')
    pretend(file, out, {"finetune": [70, 60, 80], "gpm": [71, 62, 83]})
    found = json.loads(here(str(file), "--out", str(out), "--json").stdout)
    assert [(one["method"], one["against"], one["acc"]["mean"]) for one in found["differences"]] == [
        ("finetune", "gpm", -2.0)
    ]


def test_scaled_runs_are_others_and_the_table_says_so(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.toml", tmp_path / "runs"
    file.write_text(GRID)
    pretend(file, out, {"finetune": [1, 1, 1], "gpm": [1, 1, 1]})
    file.write_text(GRID + f"plan = {{ epochs = {2 * Plan().epochs} }}")
    pretend(file, out, {"finetune": [70, 60, 80], "gpm": [71, 62, 83]})
    file.write_text(GRID + f"plan = {{ epochs = {20 * Plan().epochs} }}")
    answer = here(str(file), "--out", str(out), "--scale", "0.1")
    assert answer.exit_code == 0, answer.output
    assert "epochs × 0.1: not the plan's figures" in re.sub(r"\s+", " ", answer.stdout)
    assert "70.00 ± 10.00" in answer.stdout


def test_tables_say_what_was_learned_from(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.toml", tmp_path / "runs"
    file.write_text(GRID)
    pretend(file, out, {"finetune": [70, 60, 80], "gpm": []})
    legacy = {"completeness": "complete", "fashion-mnist": "legacy: MNIST", "source": "files", "fingerprint": "abc"}
    pretend(file, out, {"finetune": [], "gpm": [70, 60, 80]}, data=legacy)
    answer = here(str(file), "--out", str(out)).stdout
    assert "data of synthetic: complete\ndata of synthetic: complete; fashion-mnist: legacy: MNIST\n" in answer


def test_runs_that_are_not_alike_get_a_warning(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.toml", tmp_path / "runs"
    file.write_text(GRID)
    pretend(file, out, {"finetune": [70, 60, 80], "gpm": []})
    pretend(file, out, {"finetune": [], "gpm": [70, 60, 80]}, threads=4)
    assert "warning: these runs differ in threads (1, 4)" in here(str(file), "--out", str(out)).stdout


def test_a_missing_probe_makes_a_run_undone(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.toml", tmp_path / "runs"
    file.write_text(GRID + 'probes = ["fgsm"]')
    pretend(file, out, {"finetune": [70, 60, 80], "gpm": [71, 62, 83]})
    path = next(out.rglob("record.json")).parent
    (path / "probes").mkdir()
    (path / "model.safetensors").write_bytes(b"weights")
    record = json.loads((path / "record.json").read_text())
    model = finish(path, record)["files"]["model.safetensors"]
    (path / "probes" / "fgsm.json").write_text(
        json.dumps({"probe": "fgsm", "values": {}, "models": [model], "headline": {}, "arrays": {}, "arrays_sum": ""})
    )
    found = json.loads(here(str(file), "--out", str(out), "--dry", "--json").stdout)
    assert (found["done"], found["to_do"]) == (1, 5)


def test_a_damaged_record_is_not_a_done_run_and_a_newer_one_is_left_alone(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.toml", tmp_path / "runs"
    file.write_text(GRID)
    pretend(file, out, {"finetune": [70, 60, 80], "gpm": [71, 62, 83]})
    damaged, newer = sorted(out.rglob("record.json"))[:2]
    damaged.write_text(damaged.read_text().replace('"bwt": -1.0', '"bwt": -2.0'))
    newer.write_text('{"schema": 99}')
    found = json.loads(here(str(file), "--out", str(out), "--dry", "--json").stdout)
    assert (found["done"], found["to_do"], len(found["impossible"])) == (4, 1, 1)
    assert "newer perdure" in found["impossible"][0]
    assert newer.read_text() == '{"schema": 99}'


def test_data_that_are_not_there_fail_their_runs_alone(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.toml", tmp_path / "runs"
    file.write_text(GRID)
    pretend(file, out, {"finetune": [70, 60, 80], "gpm": [71, 62, 83]})
    file.write_text(GRID.replace('["synthetic"]', '["synthetic", "cifar100"]'))
    answer = here(str(file), "--out", str(out), "--root", str(tmp_path / "nowhere"))
    assert answer.exit_code == 1
    assert "12 runs, 6 done already, none that can be done; nothing to compute" in answer.stderr
    assert "70.00 ± 10.00" in answer.stdout
    assert "0 of 3" in answer.stdout
    assert "finetune on cifar100, seed 1 and 5 more: no CIFAR-100 in" in answer.stdout
    assert answer.stdout.count("perdure data fetch cifar100") == 1


def test_the_same_from_python(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.toml", tmp_path / "runs"
    file.write_text(GRID)
    pretend(file, out, {"finetune": [70, 60, 80], "gpm": [71, 62, 83]})
    found = perdure.study(file, out=out)
    assert found.plain() == json.loads(here(str(file), "--out", str(out), "--json").stdout)
    assert [(run.spec.method, run.spec.seed, run.state, run.computed) for run in found.runs[:2]] == [
        ("finetune", 1, "done", False),
        ("gpm", 1, "done", False),
    ]
    assert [group.spread("acc").mean for group in found.groups] == [70.0, 72.0]
    (difference,) = found.differences
    assert (difference.group.method, difference.other.method) == ("gpm", "finetune")
    assert found.notes == ["data of synthetic: complete"]
    assert found.failed == []


@pytest.mark.usefixtures("jobs_here")
def test_python_runs_what_is_not_done_and_follows_it(tmp_path: Path) -> None:
    file, kinds = tmp_path / "mine.toml", []
    file.write_text(GRID.replace("[1, 2, 3]", "[1]").replace("tasks = 2", "tasks = 1") + "plan = { epochs = 1 }")

    class Follower(StudyCallback):
        def on_start(self, plan: StudyPlan) -> None:
            kinds.append(len(plan.to_do))

        def on_event(self, event: Event) -> None:
            kinds.append((event.job, event.kind))

    cost = perdure.study(read(file), out=tmp_path, dry=True)
    assert [(each.spec.method, each.runs) for each in cost.costs] == [("finetune", 1), ("gpm", 1)]
    assert cost.seconds == cost.seconds_in_parallel > 0
    assert not list(tmp_path.rglob("record.json"))
    found = perdure.study(read(file), out=tmp_path, callback=Follower())
    assert kinds == [2] + [(job, kind) for job in (0, 1) for kind in ("started", "epoch", "done")]
    assert [run.computed for run in found.runs] == [True, True]
    assert found.costs is None


@pytest.mark.usefixtures("jobs_here")
def test_rows_and_seeds_that_are_asked_for_are_done_and_the_rest_waits(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    more = """
    tasks = 1
    plan = { epochs = 1 }
    [[block]]
    methods = ["finetune", "gpm"]
    [[block]]
    row = "gpm, ε = 0.9"
    methods = ["gpm"]
    values.gpm = { threshold = 0.9 }
    """
    file.write_text(GRID.replace('methods = ["finetune", "gpm"]\n', "").replace("tasks = 2", more))

    def done(**asked: Any) -> list[tuple[str, float, int]]:
        found = perdure.study(file, out=tmp_path, **asked)
        assert [run.state for run in found.runs] == ["done" if run.record else "waiting" for run in found.runs]
        assert not found.failed
        now = [run.spec for run in found.runs if run.computed]
        return [(one.method, one.values.get("threshold"), one.seed) for one in now]

    assert done(only=["gpm"], seeds=[2]) == [("gpm", 0.97, 2)]
    assert done(only=["gpm, ε = 0.9"], seeds=[2, 3]) == [("gpm", 0.9, 2), ("gpm", 0.9, 3)]
    assert done(only=["gpm", "gpm, ε = 0.9"], seeds=[2]) == []
    said = here(str(file), "--out", str(tmp_path), "--only", "gpm", "--seeds", "2")
    assert said.exit_code == 0, said.output
    assert "9 runs, 3 done already, none of those asked for is left" in said.stderr
    dry = json.loads(here(str(file), "--out", str(tmp_path), "--dry", "--json", "--seeds", "2").stdout)
    assert (dry["done"], dry["to_do"]) == (3, 1)
    said = here(str(file), "--out", str(tmp_path), "--only", "gpm", "--seeds", "1")
    assert "gpm on synthetic, seed 1: started" in said.stderr.splitlines()
    # A method whose rows all have names of their own goes by them, and by its own.
    file.write_text(file.read_text().replace('"finetune", "gpm"', '"finetune"'))
    said = here(str(file), "--out", str(tmp_path), "--only", "gpm", "--seeds", "1")
    assert "gpm, ε = 0.9 on synthetic, seed 1: started" in said.stderr.splitlines()
    assert done(only=["gpm"], seeds=[1, 2, 3]) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["smok"], "did you mean smoke"),
        (["nothing.toml"], "no such file"),
        (["smoke", "--scale", "0"], "scale=0 is not allowed"),
        (["smoke", "--only", "gmp"], "unknown row 'gmp'; did you mean gpm?"),
        (["smoke", "--seeds", "7"], "seed 7 is not in the study; it has 1, 2, 3"),
        (["smoke", "--seeds", "a"], "--seeds a is not allowed; write whole numbers"),
        (["smoke", "--on", "moon"], "use local, ray, auto or ray://HOST:PORT"),
        (["smoke", "--on", "ray", "--jobs", "2"], "--jobs is for --on local"),
        (["smoke", "--cpus", "2"], "--cpus and --gpus are for --on ray"),
        (["smoke", "--device", "tpu9"], "no device 'tpu9'"),
    ],
)
def test_what_is_asked_wrongly_gets_one_clear_line(words: list[str], message: str) -> None:
    answer = here(*words)
    assert answer.exit_code == 2, answer.output
    assert message in answer.stderr
    assert answer.stdout == ""
    assert len(answer.stderr.splitlines()) == 1


def test_more_tasks_than_there_are_are_a_slip_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GRID.replace("synthetic", "six").replace("tasks = 2", "tasks = 7"))
    answer = here(str(file), "--out", str(tmp_path))
    assert answer.exit_code == 2
    assert "mine.toml: tasks=7 is not allowed; use 1 to 6" in re.sub(r"\s+", " ", answer.stderr)
