"""The command line, run as a user runs it."""

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from command import perdure

from perdure.cli import study
from perdure.lab.spec import spec

PERDURE = [sys.executable, "-m", "perdure"]  # where a process is the point
SMALL = ("--tasks", "2", "--plan", "epochs=1", "--data", "per_class=12", "--json")


def test_json_is_the_record_and_nothing_else(tmp_path: Path) -> None:
    done = perdure("run", "gpm", "synthetic", "--tasks", "2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert {"acc", "bwt", "accuracy_matrix", "path", "seed", "values", "plan"} <= set(record)
    assert len(record["accuracy_matrix"]) == 2
    assert record.pop("probes") == {}
    assert record.pop("pictures") == [f"{record['path']}/{name}.png" for name in ("matrix", "curves")]
    path = record.pop("path")
    assert json.loads((tmp_path / path / "record.json").read_text()) == record
    lines = done.stderr.splitlines()  # one per task where there is no terminal
    assert [line.partition(" of 2: ")[0] for line in lines] == ["gpm: task 1", "gpm: task 2"]
    last = json.loads((tmp_path / path / "epochs.jsonl").read_text().splitlines()[-1])
    assert f"{last['valid']['accuracy']:.1f} % on validation data after 2 epochs, " in lines[1]


@pytest.mark.thorough
@pytest.mark.thorough  # tests/test_front_door.py has it in one process
def test_two_runs_of_one_seed_agree_and_two_seeds_do_not(tmp_path: Path) -> None:
    runs = [
        json.loads(perdure("run", "rcl", "synthetic", *SMALL, "--seed", seed, "--out", str(tmp_path / out)).stdout)
        for seed, out in (("3", "a"), ("3", "b"), ("4", "c"))
    ]
    assert runs[0]["accuracy_matrix"] == runs[1]["accuracy_matrix"]
    models = [(Path(run["path"]) / "model.safetensors").read_bytes() for run in runs]
    assert models[0] == models[1]
    assert models[0] != models[2]


def test_values_reach_the_method_and_the_plan(tmp_path: Path) -> None:
    words = ["--set", "mix_weight=0.3", "--set", "phi_cap=none", "--plan", "epochs=1", "--net", "mlp", "--json"]
    words += ["--memory-budget", "20KB"]
    record = json.loads(perdure("run", "rcl", "synthetic", *words, cwd=tmp_path).stdout)
    assert record["values"]["mix_weight"] == 0.3
    assert record["values"]["budget"] == 20_000 >= record["memory_bytes"]["bases"] > 0
    assert record["plan"]["epochs"] == 1
    assert record["network"] == "mlp"
    assert record["epochs_run"] == [1, 1, 1]
    shown = " ".join(perdure("show", record["path"], cwd=tmp_path).stdout.split())
    least = 100 * min(record["facts"]["budget"]["protected"].values())
    assert "0.02 MB, in float16; of the last task's energy it protects" in shown
    assert f"{least:.1f}" in shown


@pytest.mark.usefixtures("jobs_here")
def test_demo_compares_four_methods_over_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(study.DEMO, "settings", {"valid_share": 0.9})
    monkeypatch.setitem(study.DEMO, "probes", ["pgd(strengths=4/255 images=5)"])
    done = perdure("demo", "--seeds", "2", "--tasks", "2", "--plan", "epochs=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("finetune", "gpm", "pat", "rcl", "ACC", "BWT", "PGD-20 4/255", "rcl − finetune"):
        assert word in done.stdout
    assert done.stdout.count("accuracy on each task after each was learned") == 4  # of the first seed
    records = [json.loads(path.read_text()) for path in (tmp_path / "demo").rglob("record.json")]
    found = sorted((one["method"], one["seed"], one["threads"]) for one in records)
    assert found == [("finetune", 2, 1), ("gpm", 2, 1), ("pat", 2, 1), ("rcl", 2, 1)]
    begun = [line.partition(" on ")[0] for line in done.stderr.splitlines() if line.endswith(": started")]
    assert begun[0] == "rcl" or begun[:2] == ["pat", "rcl"]  # the longest is among the first two
    assert "<title>rcl, pat, gpm, finetune on six" in (tmp_path / "demo/studies/demo/report.html").read_text()
    assert study.DEMO["plan"] == {"epochs": 5}
    assert (tmp_path / "demo" / "studies" / "demo" / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_the_former_name_of_snapshots_is_not_shown() -> None:
    shown = perdure("run", "--help").stdout
    assert "--snapshots" in shown
    assert "--stages" not in shown


def test_threads_are_those_asked_for(tmp_path: Path) -> None:
    words = ["finetune", "synthetic", "--net", "mlp", "--tasks", "1", "--plan", "epochs=1", "--threads", "2", "--json"]
    assert json.loads(perdure("run", *words, cwd=tmp_path).stdout)["threads"] == 2  # OMP_NUM_THREADS says 1


def test_ls_and_show() -> None:
    assert {"methods", "networks", "benchmarks", "probes"} <= set(json.loads(perdure("ls", "--json").stdout))
    assert "rcl" in perdure("ls", "methods").stdout
    shown = perdure("show", "rcl").stdout
    for word in ("mix_weight", "λ", "κ", "φ", "cifar100", "miniimagenet", "paper, log"):
        assert word in shown
    assert json.loads(perdure("show", "gpm", "--json").stdout)["values"]["threshold"]["symbol"] == "ε"


def test_show_knows_networks_and_studies() -> None:
    shown = perdure("show", "alexnet").stdout
    for word in ("6,508,416 parameters", "filters", "(64, 128, 256)", "conv3", "256×128×2×2"):
        assert word in shown
    network = json.loads(perdure("show", "alexnet", "--json").stdout)
    assert network["layers"]["fc2"] == [2048, 2048]
    shown = perdure("show", "smoke").stdout
    for word in ("finetune, gpm", "synthetic", "1, 2, 3", "6 runs", "perdure study smoke --dry"):
        assert word in shown
    both = json.loads(perdure("show", "six", "--json").stdout)  # a benchmark, and a study of its name
    assert (both["benchmark"], both["study"]["runs"], both["study"]["probes"]) == ("six", 36, ["fgsm"])


def test_show_a_method_on_one_benchmark_lists_every_value_and_its_source() -> None:
    found = json.loads(perdure("show", "rcl", "--on", "cifar100", "--json").stdout)
    asked = spec("rcl", "cifar100")
    assert {name: value["value"] for name, value in found["values"].items()} == asked.values
    assert {name: value["value"] for name, value in found["plan"].items()} == json.loads(json.dumps(asdict(asked.plan)))
    assert found["values"]["mix_weight"]["source"] == "paper, log"
    assert found["values"]["variant"]["source"] == "default"
    assert found["values"]["phi_rate"]["source"].startswith("code; with variant=paper 0.01 (paper: Alg. 1")
    own = json.loads(perdure("show", "fsdgpm", "--on", "cifar100", "--json").stdout)
    assert own["network"] == {"value": "alexnet-fsdgpm", "source": "code: one batch norm"}
    shown = perdure("show", "rcl", "--on", "cifar100").stdout
    assert "plateau" in shown
    assert "six" not in shown


def test_show_tells_how_far_an_unfinished_run_is(tmp_path: Path) -> None:
    words = ["run", "finetune", "synthetic", "--net", "mlp", "--plan", "epochs=100000", "--checkpoint", "0"]
    running = subprocess.Popen([*PERDURE, *words], stderr=subprocess.DEVNULL, cwd=tmp_path)
    while all(int(file.stem) < 10 for file in tmp_path.rglob("checkpoint/0*.safetensors")):  # older ones are removed
        time.sleep(0.1)
    running.send_signal(signal.SIGTERM)
    running.wait(timeout=60)
    (path,) = (tmp_path / "runs/synthetic/finetune").iterdir()
    done = perdure("show", path.name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert "finetune on synthetic, seed 1: unfinished, its last checkpoint is in task 1, after " in shown
    found = json.loads(perdure("show", path.name, "--json", cwd=tmp_path).stdout)
    assert (found["state"], found["learned_tasks"]) == ("unfinished", 0)
    assert f"after {found['learned_epochs_of_the_next']} epochs" in shown


def test_a_run_that_diverged_is_failed(tmp_path: Path) -> None:
    words = ["run", "finetune", "synthetic", "--net", "mlp", "--plan", "rate=1e30"]
    for _ in range(2):  # it is tried again
        done = perdure(*words, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "finetune" in perdure("ls", "runs", "failed", cwd=tmp_path).stdout
    (path,) = (tmp_path / "runs/synthetic/finetune").iterdir()
    shown = perdure("show", str(path), cwd=tmp_path).stdout
    assert "failed: the loss is no longer a number" in shown
    assert "run the same command to try again; no checkpoint yet" in shown


def test_show_tells_of_a_run_what_it_held(tmp_path: Path) -> None:
    words = ["run", "er", "synthetic", "--tasks", "1", "--plan", "epochs=1", "--without", "stored-data", "--json"]
    record = json.loads(perdure(*words, cwd=tmp_path).stdout)
    del record["pictures"]  # drawn, not recorded
    shown = perdure("show", record["path"], cwd=tmp_path).stdout
    for word in ("er on synthetic, seed 1", "replay", "0.74 MB", "warning", "ACC"):
        assert word in shown
    assert json.loads(perdure("show", record["path"], "--json", cwd=tmp_path).stdout) == record
    (tmp_path / record["path"] / "record.json").write_text("{")
    damaged = perdure("show", record["path"], cwd=tmp_path)
    assert damaged.returncode == 1
    assert re.search(r"not a readable record \(.*\); run it again$", damaged.stderr)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", "rlc", "six"], 2, "did you mean rcl"),
        (["run", "rcl", "sx"], 2, "did you mean six"),
        (["show", "gmp"], 2, "gpm"),
        (["show", "/no/such/path"], 2, "/no/such/path: no such path; `perdure ls runs"),
        (["show", "runs/six/gpm/xyz"], 2, "runs/six/gpm/xyz: no such path"),
        (["show", "."], 2, ".: not a run"),
        (["show", "rcl", "--on", "cifar10"], 2, "unknown benchmark 'cifar10'; did you mean cifar100"),
        (["run", "rcl", "six", "--set", "lamda=0.1"], 2, "did you mean lambda?"),
        (["run", "rcl", "six", "--probe", "fgsm(strengths=300/255)"], 2, "give at most 1, such as 4/255"),
        (["ls", "method"], 2, "did you mean methods"),
        (["run", "rcl", "six", "--set", "radius=big"], 2, "radius takes a number ≥ 0"),
        (["run", "rcl", "six", "--set", "radius"], 2, "expected NAME=VALUE, got"),
        (["run", "gpm", "six", "--memory-budget", "nonsense"], 2, "budget takes a number of bytes (500000, 512KB"),
        (["run", "gpm", "six", "--memory-budget", "1MB", "--set", "budget=1MB"], 2, "give it once"),
        (["run", "ewc", "six", "--memory-budget", "1MB"], 2, "unknown value of method ewc 'budget'"),
        (["run", "rcl", "six", "--plan", "epochs=1.5"], 2, "whole number"),
        (["run", "rcl", "six", "--tasks", "7"], 2, "1 to 6"),
        (["run", "rcl", "six", "--probe", "fgms"], 2, "did you mean fgsm"),
        (["run", "rcl", "six", "--device", "tpu9"], 2, "no device 'tpu9'"),
        (["run", "rcl", "cifar100", "--root", "nowhere"], 1, "put train.bin, test.bin into nowhere/cifar-100-binary"),
        (["run", "finetune", "synthetic", "--net", "mlp", "--plan", "rate=1e30"], 1, "lower the learning rate"),
        (["run", "finetune", "synthetic", "--plan", "epochs=1", "--out", "/dev/null"], 1, "choose another place"),
    ],
)
def test_what_is_asked_wrongly_gets_one_clear_line(words: list[str], code: int, message: str, tmp_path: Path) -> None:
    done = perdure(*words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert len([line for line in done.stderr.splitlines() if line.startswith("perdure:")]) == 1


def test_ctrl_c_stops_with_one_line(tmp_path: Path) -> None:
    words = ["run", "rcl", "synthetic", "--plan", "epochs=500"]
    running = subprocess.Popen([*PERDURE, *words], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    while not list(tmp_path.rglob("spec.toml")):
        time.sleep(0.1)
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    rest = running.communicate(timeout=60)[1]
    assert running.returncode == 130
    assert "interrupted" in rest
    assert "Traceback" not in rest
    assert not list(tmp_path.rglob("record.json"))
