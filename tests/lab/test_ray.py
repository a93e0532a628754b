"""Runs on two Ray nodes, both on this machine's loopback: killed, lost or stopped, they leave the same records. What
needs a real cluster is thorough; test_ray_batch.py has what the driver does with a made-up one."""

import json
import os
import secrets
import signal
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

import perdure
from perdure.errors import PerdureError, WrongValue
from perdure.lab.checkpoint import load
from perdure.lab.execute import ray as module
from perdure.lab.execute.job import Executor, Job
from perdure.lab.execute.ray import LOOPBACK, SETTINGS, RayExecutor, check_node, run_remote
from perdure.lab.run import run_spec as run
from perdure.lab.spec import spec
from perdure.lab.store import lock_run, read_record

# Before Ray is imported, which reads them then: listen on 127.0.0.1 alone, to those who know the token.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
for name, value in (SETTINGS | LOOPBACK | TOKEN).items():
    os.environ.setdefault(name, value)
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'perdure[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402

NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 100 << 20}
SHORT = {"epochs": 2}
LONG = {"epochs": 12}  # some seconds, to be killed in
ENDLESS = {"epochs": 1000}  # to be stopped in, however late the word comes


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with room for one run each; the driver is on the first."""
    # Names of sockets in it must be short.
    with TemporaryDirectory(prefix="ray-") as place, pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_TMPDIR", place)
        cluster = Cluster()
        cluster.add_node(include_dashboard=False, **NODE)
        cluster.add_node(**NODE)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The same runs here, one after the other, with as many threads; each is done once."""
    out, done = tmp_path_factory.mktemp("reference"), {}

    def outcome_of(asked):
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            digest = asked.digest()
            if digest not in done:
                done[digest] = outcome(run(asked, out=out), asked)
            return done[digest]
        finally:
            torch.set_num_threads(before)

    return outcome_of


def outcome(record, asked):
    """All that is in the store but the time it took."""
    saved = load(Path(record["path"]) / "model.safetensors", asked.plan)
    written = read_record(Path(record["path"]), thorough=True)
    assert written.items() <= record.items()
    times = ("seconds", "evaluation_seconds", "finished", "files", "check")
    timeless = {name: value for name, value in written.items() if name not in times}
    epochs = [(epoch.lesson, epoch.epoch, epoch.rate, epoch.valid, epoch.best) for epoch in saved.learned.epochs]
    return timeless, epochs, {name: tensor.numpy().tobytes() for name, tensor in saved.state.items()}


def job(out, seed=1, plan=SHORT, method="gpm", every=0.1, benchmark="synthetic"):
    tasks = 2 if benchmark == "synthetic" else None
    return Job(spec(method, benchmark, tasks=tasks, seed=seed, plan=plan), str(out), every=every)


def checkpoints(out):
    return sorted(out.glob("synthetic/gpm/*/checkpoint/*.safetensors"))


def ends(events):
    return {event.job: event for event in events if event.kind in ("done", "failed", "stopped")}


def all_as(reference, jobs, events):
    for number, one in enumerate(jobs):
        end = ends(events)[number]
        assert end.kind == "done", end.facts
        assert end.facts["record"]["path"].startswith(one.out)
        assert outcome(end.facts["record"], one.spec) == reference(one.spec)
    return True


def nothing_left(out):
    """No checkpoint, no token, no sign of a worker; but for what a killed one was just writing."""
    names = {file.name for file in Path(out).rglob("*") if file.is_file() and not file.name.startswith(".")}
    finished = {"spec.toml", "record.json", "epochs.jsonl", "model.safetensors"}
    return not {name for name in names - finished if not name.endswith(".lock")}


@pytest.mark.thorough
def test_a_study_gives_the_same_records(cluster, reference, tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise RuntimeError('imported from the working directory')")
    monkeypatch.chdir(tmp_path)
    jobs = [job("runs", seed, method=method) for method, seed in (("gpm", 1), ("gpm", 2), ("rcl", 1))]
    jobs.append(job("runs", benchmark="folder:/nowhere"))
    executor = RayExecutor(cluster.address)
    assert isinstance(executor, Executor)
    events = list(executor.do(jobs))
    assert all_as(reference, jobs[:-1], events)
    failed = ends(events)[3]
    assert failed.kind == "failed"
    assert "no such folder" in failed.facts["error"]
    assert "\n" not in failed.facts["error"]
    for number in range(3):
        kinds = [event.kind for event in events if event.job == number]
        assert kinds == ["started", *["epoch"] * 4, "done"]
    assert nothing_left(tmp_path / "runs")
    again = list(executor.do(jobs[:2]))
    assert [event.kind for event in again if event.job == 0] == ["started", "done"]
    assert all_as(reference, jobs[:2], again)


@pytest.mark.thorough
def test_a_node_that_does_not_see_the_store_fails_the_job(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "write", lambda *_: tmp_path.mkdir(exist_ok=True))  # as on another machine: no token
    [event] = RayExecutor(cluster.address).do([job(tmp_path)])
    assert event.kind == "failed"
    assert f"does not see the store {tmp_path}; mount it there at the same path" in event.facts["error"]
    assert "\n" not in event.facts["error"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_a_killed_worker_costs_no_more_than_since_its_last_checkpoint(cluster, reference, tmp_path):
    asked = job(tmp_path, plan=LONG)
    process, lost_at, after, events = None, None, [], []
    for event in RayExecutor(cluster.address).do([asked]):
        events.append(event)
        kept = checkpoints(tmp_path)
        if event.kind == "started":
            process = event.facts["process"]
        elif event.kind == "lost":
            lost_at = load(kept[-1], asked.spec.plan).fit_state
            assert event.facts["error"] == "its worker process died"
        elif event.kind == "epoch" and lost_at is None and kept and event.facts["epoch"] > 2:
            process = process and os.kill(process, signal.SIGKILL)  # once
        elif event.kind == "epoch" and lost_at is not None:
            after.append((event.facts["lesson"], event.facts["epoch"]))
    assert [event.kind for event in events].count("lost") == 1
    assert after[0] == (lost_at.lesson, lost_at.epoch) > (0, 0)
    assert all_as(reference, [asked], events)
    assert nothing_left(tmp_path)


@pytest.mark.thorough
def test_a_killed_node_loses_no_run(cluster, reference, tmp_path, capfd):
    """One of two nodes is gone in the middle: its run resumes on the other."""
    [node] = cluster.worker_nodes
    jobs = [job(tmp_path, seed, LONG) for seed in (1, 2)]
    processes, killed, events = {}, False, []
    for event in RayExecutor(cluster.address).do(jobs):
        events.append(event)
        if event.kind == "started":
            processes[event.job] = event.facts["process"]
        if event.kind == "epoch" and not killed and processes[event.job] in children_of(node):
            cluster.remove_node(node, allow_graceful=False)
            killed = True
    assert killed
    assert any(event.kind == "lost" and event.facts["error"] == "its node died" for event in events)
    assert all_as(reference, jobs, events)
    assert nothing_left(tmp_path)
    cluster.add_node(**NODE)
    assert capfd.readouterr().out == ""  # Ray would report it there, where data goes


def children_of(node):
    process = node.all_processes["raylet"][0].process.pid
    found = Path(f"/proc/{process}/task/{process}/children")
    return {int(number) for number in found.read_text().split()} if found.exists() else set()


@pytest.mark.thorough
def test_stopped_runs_are_saved_and_resume(cluster, tmp_path):
    """The checkpoint of the moment of stopping is there, though none was due."""
    jobs = [job(tmp_path, seed, ENDLESS, every=1e9) for seed in range(1, 5)]
    executor = RayExecutor(cluster.address)
    events = []
    for event in executor.do(jobs):
        events.append(event)
        if event.kind == "epoch" and event.facts["epoch"] == 3:
            executor.stop()
    assert {event.kind for event in ends(events).values()} == {"stopped"}, [event.facts for event in events[-6:]]
    assert len(ends(events)) == len(jobs)
    said = [event.facts["error"] for event in ends(events).values()]
    assert any(text.startswith("interrupted at task 1") for text in said)
    assert "not started" in said
    first = next(event.job for event in events if event.kind == "epoch" and event.facts["epoch"] == 3)
    executor, more = RayExecutor(cluster.address), []
    for event in executor.do(jobs[first : first + 1]):
        more.append(event)
        if event.kind == "epoch":
            executor.stop()
    begins = next((event.facts["lesson"], event.facts["epoch"]) for event in more if event.kind == "epoch")
    assert begins > (0, 3)


DRIVER = """
import sys
from test_ray import LONG, RayExecutor, job
for event in RayExecutor(sys.argv[1]).do([job(sys.argv[2], plan=LONG)]):
    print(event.facts.get("epoch", -1), flush=True)
"""


@pytest.mark.thorough
def test_a_driver_that_is_killed_and_started_again_resumes(cluster, reference, tmp_path):
    asked = job(tmp_path, plan=LONG)
    command = [sys.executable, "-P", "-c", DRIVER, cluster.address, str(tmp_path)]
    package = Path(module.__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}{package}"}
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        for epoch in driver.stdout:
            if checkpoints(tmp_path) and int(epoch) > 2:
                break
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()
    saved = load(checkpoints(tmp_path)[-1], asked.spec.plan)
    events = list(RayExecutor(cluster.address).do([asked]))
    begins = next((event.facts["lesson"], event.facts["epoch"]) for event in events if event.kind == "epoch")
    assert begins >= (saved.fit_state.lesson, saved.fit_state.epoch) > (0, 0)
    assert all_as(reference, [asked], events)


@pytest.mark.thorough
def test_a_locked_run_is_waited_for(cluster, reference, tmp_path):
    asked = job(tmp_path)
    with lock_run(tmp_path, tmp_path / asked.spec.benchmark_dir / "gpm" / asked.spec.digest()):
        events = RayExecutor(cluster.address).do([asked])
        first = [next(events), next(events)]
    assert [event.kind for event in first] == ["started", "warning"]
    assert first[1].facts["text"].endswith("; waiting for it")
    assert all_as(reference, [asked], list(events))


@pytest.mark.thorough
def test_a_job_that_is_lost_too_often_has_failed(cluster, tmp_path):
    events = []
    for event in RayExecutor(cluster.address, retries=1).do([job(tmp_path, plan=LONG), job(tmp_path, seed=2)]):
        events.append(event)
        if event.kind == "started" and event.job == 0:
            os.kill(event.facts["process"], signal.SIGKILL)
    kinds = [event.kind for event in events if event.job == 0 and event.kind != "epoch"]
    assert kinds == ["started", "lost", "started", "failed"]
    assert ends(events)[0].facts["error"] == "its worker process died; tried 2 times"
    assert ends(events)[1].kind == "done"


@pytest.mark.thorough
def test_closed_in_the_middle_nothing_runs_on(cluster, tmp_path):
    events = RayExecutor(cluster.address).do([job(tmp_path, plan=ENDLESS, every=1e9)])
    while next(events).kind != "epoch":
        pass
    events.close()
    [kept] = checkpoints(tmp_path)
    with lock_run(tmp_path, kept.parent.parent):
        pass
    assert not list(tmp_path.glob(".locks/driver-*"))


@pytest.mark.thorough
def test_more_than_any_node_has(cluster, tmp_path):
    events = RayExecutor(cluster.address, cpus=64).do([job(tmp_path)])
    warning = next(events)
    assert warning.kind == "warning"
    assert "64 CPUs and 0 GPUs, which no node of this cluster has now" in warning.facts["text"]
    events.close()


class FakeQueue:
    """Stands for the actor: keeps what a worker in this process sends."""

    def __init__(self):
        self.put, self.sent = self, []

    def remote(self, text):
        self.sent.append(json.loads(text)[1:])
        return self

    def future(self):
        done = Future()
        done.set_result(None)
        return done


@pytest.fixture
def order(tmp_path):
    """What the driver sends to a worker."""
    (tmp_path / "token").touch()
    versions = [perdure.__version__, torch.__version__]
    common = {"id": [0, 1], "token": "token", "cwd": str(tmp_path), "threads": 1, "versions": versions}
    return {**common, "job": job(tmp_path).plain()}


def test_a_node_with_other_versions(order):
    queue = FakeQueue()
    check_node(order, lambda *event: queue.sent.append(event))
    assert queue.sent == []
    run_remote(json.dumps({**order, "versions": ["0.0", torch.__version__]}), queue)
    [(kind, facts)] = queue.sent
    assert kind == "failed"
    assert facts["error"].endswith("the driver 0.0; install the same on both")
    check_node({**order, "versions": [perdure.__version__, "0.0"]}, lambda *event: queue.sent.append(event))
    kind, facts = queue.sent[-1]
    assert kind == "warning"
    assert facts["text"].endswith("the driver 0.0: last digits may differ")


def test_a_node_that_sees_another_store(order, tmp_path):
    """The folder is there, and the driver's token is not in it."""
    queue = FakeQueue()
    run_remote(json.dumps({**order, "token": "of another store"}), queue)
    [(kind, facts)] = queue.sent
    assert kind == "failed"
    assert f"does not see the store {tmp_path}; mount it there at the same path" in facts["error"]


def test_paths_are_those_of_the_driver_where_the_node_has_them(order, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(module, "run_job", lambda job, *_, **__: seen.append((job.root, Path.cwd())))
    here = Path.cwd()
    for root, cwd in ((tmp_path, tmp_path), (tmp_path / "nowhere", tmp_path / "nowhere")):
        sent = {**order, "cwd": str(cwd), "job": {**order["job"], "root": str(root)}}
        run_remote(json.dumps(sent), FakeQueue())
    assert seen == [(str(tmp_path), tmp_path), (None, here)]
    assert Path.cwd() == here


def test_interrupted_outside_of_training(order, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt  # not by a signal: whoever starts the tests in the background may ignore it

    monkeypatch.setattr(module, "run_job", interrupted)
    queue = FakeQueue()
    run_remote(json.dumps(order), queue)
    assert [kind for kind, _ in queue.sent] == ["stopped"]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nonsense", "no address of a Ray cluster; use auto, HOST:PORT or ray://HOST:PORT"),
        ("ray://:10001", "no address of a Ray cluster"),
        ("127.0.0.1:1", r"nobody listens at 127.0.0.1:1 .*; is Ray running there\?"),
        ("ray://127.0.0.1:1", "nobody listens at ray://127.0.0.1:1"),
    ],
)
def test_where_there_is_no_cluster(monkeypatch, tmp_path, address, said):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(PerdureError, match=said) as caught:
        list(RayExecutor(address).do([job(tmp_path)]))
    assert "\n" not in str(caught.value)


def test_no_jobs():
    assert list(RayExecutor("127.0.0.1:1").do([])) == []


@pytest.mark.parametrize("wrong", [{"cpus": -1}, {"cpus": 0}, {"threads": 0}, {"retries": -1}])
def test_impossible_values_are_refused(wrong):
    with pytest.raises(WrongValue):
        RayExecutor(**wrong)


def test_a_job_on_a_gpu_takes_one(tmp_path):
    on_gpu = Job(job(tmp_path).spec, str(tmp_path), device="cuda:1")
    assert RayExecutor().resources(on_gpu) == {"num_cpus": 1, "num_gpus": 1}
    assert RayExecutor(gpus=0.5).resources(on_gpu) == {"num_cpus": 1, "num_gpus": 0.5}
    assert RayExecutor().resources(job(tmp_path)) == {"num_cpus": 1, "num_gpus": 0}


def test_without_ray_there_is_one_clear_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PerdureError, match=r"^Ray is not installed: pip install .*\[ray\]'$"):
        list(RayExecutor().do([job(tmp_path)]))
