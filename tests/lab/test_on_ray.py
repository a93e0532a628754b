"""Runs on two nodes of Ray, both on this machine and on its loopback alone: killed, lost or stopped, all the same."""

import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

# Before Ray is imported, which reads them then: listen on 127.0.0.1 alone, to those who know the token, report nothing.
SETTINGS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
}
for name, value in SETTINGS.items():
    os.environ.setdefault(name, value)
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'perdure[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402

from perdure.errors import PerdureError, WrongValue  # noqa: E402
from perdure.lab.checkpoint import load  # noqa: E402
from perdure.lab.execute import ray as on_ray  # noqa: E402
from perdure.lab.execute.job import Job  # noqa: E402
from perdure.lab.execute.local import Stoppable  # noqa: E402
from perdure.lab.execute.ray import RayExecutor  # noqa: E402
from perdure.lab.run import run_spec as run  # noqa: E402
from perdure.lab.spec import spec  # noqa: E402
from perdure.lab.store import lock_run, read_record  # noqa: E402

NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 100 << 20}
SHORT = {"epochs": 2}
LONG = {"epochs": 15}  # some seconds, to be killed in
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
    timeless = {name: value for name, value in written.items() if name not in ("seconds", "files", "check")}
    epochs = [(epoch.lesson, epoch.epoch, epoch.rate, epoch.valid, epoch.best) for epoch in saved.learned.epochs]
    return timeless, epochs, {name: tensor.numpy().tobytes() for name, tensor in saved.state.items()}


def job(out, seed=1, plan=SHORT, method="gpm", every=0.1, benchmark="synthetic"):
    tasks = 2 if benchmark == "synthetic" else None
    return Job(spec(method, benchmark, tasks=tasks, seed=seed, plan=plan), str(out), every=every)


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


@pytest.mark.parametrize("shared", [None, False])
def test_a_study_gives_the_same_records(cluster, reference, tmp_path, shared):
    jobs = [job(tmp_path, seed, method=method) for method, seed in (("gpm", 1), ("gpm", 2), ("rcl", 1))]
    jobs.append(job(tmp_path, benchmark="folder:/nowhere"))
    executor = RayExecutor(cluster.address, shared=shared)
    assert isinstance(executor, Stoppable)
    events = list(executor.do(jobs))
    assert all_as(reference, jobs[:-1], events)
    assert {e.facts["shared"] for e in events if e.kind == "started"} == {shared is None}
    failed = ends(events)[3]
    assert failed.kind == "failed"
    assert "no such folder" in failed.facts["error"]
    assert "\n" not in failed.facts["error"]
    for number in range(3):
        kinds = [event.kind for event in events if event.job == number]
        assert kinds == ["started", *["epoch"] * 4, "done"]
    assert nothing_left(tmp_path)
    again = list(executor.do(jobs[:2]))
    assert [event.kind for event in again if event.job == 0] == ["started", "done"]
    assert all_as(reference, jobs[:2], again)


@pytest.mark.parametrize("shared", [None, False])
def test_a_killed_worker_costs_no_more_than_since_its_last_checkpoint(cluster, reference, tmp_path, shared):
    asked = job(tmp_path, plan=LONG)
    process, lost_at, after, events = None, None, [], []
    for event in RayExecutor(cluster.address, shared=shared).do([asked]):
        events.append(event)
        kept = sorted(tmp_path.glob("synthetic/gpm/*/checkpoint/*.safetensors"))
        if event.kind == "started":
            process = event.facts["process"]
        elif event.kind == "lost":
            lost_at = load(kept[-1], asked.spec.plan).fit_state
            assert event.facts["error"] == "its worker process died"
        elif event.kind == "epoch" and lost_at is None and kept and event.facts["epoch"] > 2:
            process = process and os.kill(process, signal.SIGKILL)  # once
        elif event.kind == "epoch" and lost_at is not None:
            after.append((event.facts["lesson"], event.facts["epoch"]))
    assert Counter(event.kind for event in events)["lost"] == 1
    assert after[0] == (lost_at.lesson, lost_at.epoch) > (0, 0)
    assert all_as(reference, [asked], events)
    assert nothing_left(tmp_path)


def test_a_killed_node_loses_no_run(cluster, reference, tmp_path, capfd):
    """One of two nodes is gone in the middle: what was on it is done on the other."""
    [node] = cluster.worker_nodes
    jobs = [job(tmp_path, seed, LONG) for seed in (1, 2)]
    places, killed, events = {}, False, []
    for event in RayExecutor(cluster.address, shared=False).do(jobs):
        events.append(event)
        if event.kind == "started":
            places[event.job] = event.facts["process"]
        if event.kind == "epoch" and not killed and places[event.job] in children_of(node):
            cluster.remove_node(node, allow_graceful=False)
            killed = True
    assert killed
    assert any(event.kind == "lost" and event.facts["error"] == "its node died" for event in events)
    assert all_as(reference, jobs, events)
    assert nothing_left(tmp_path)
    cluster.add_node(**NODE)
    assert capfd.readouterr().out == ""  # Ray would tell of it there, where data goes


def children_of(node):
    process = node.all_processes["raylet"][0].process.pid
    found = Path(f"/proc/{process}/task/{process}/children")
    return {int(number) for number in found.read_text().split()} if found.exists() else set()


@pytest.mark.parametrize("shared", [None, False])
def test_stopped_runs_are_saved_and_go_on(cluster, tmp_path, shared):
    """The checkpoint of the moment of stopping is there, though none was due."""
    jobs = [job(tmp_path, seed, ENDLESS, every=1e9) for seed in range(1, 7)]
    executor = RayExecutor(cluster.address, shared=shared)
    events = []
    for event in executor.do(jobs):
        events.append(event)
        if event.kind == "epoch" and event.facts["epoch"] == 3:
            executor.stop()
    assert {event.kind for event in ends(events).values()} == {"stopped"}, [event.facts for event in events[-6:]]
    assert len(ends(events)) == len(jobs)
    said = [event.facts["error"] for event in ends(events).values()]
    assert sum("all is saved" in text for text in said) >= 1
    assert "stopped before it began" in said
    first = next(event.job for event in events if event.kind == "epoch" and event.facts["epoch"] == 3)
    executor, more = RayExecutor(cluster.address, shared=shared), []
    for event in executor.do(jobs[first : first + 1]):
        more.append(event)
        if event.kind == "epoch":
            executor.stop()
    begins = next((event.facts["lesson"], event.facts["epoch"]) for event in more if event.kind == "epoch")
    assert begins > (0, 3)


DRIVER = """
import sys
from test_on_ray import LONG, RayExecutor, job
for event in RayExecutor(sys.argv[1]).do([job(sys.argv[2], plan=LONG)]):
    print(event.facts.get("epoch", -1), flush=True)
"""


def test_a_driver_that_is_killed_and_started_again_goes_on(cluster, reference, tmp_path):
    asked = job(tmp_path, plan=LONG)
    command = [sys.executable, "-P", "-c", DRIVER, cluster.address, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        for epoch in driver.stdout:
            kept = sorted(tmp_path.glob("synthetic/gpm/*/checkpoint/*.safetensors"))
            if kept and int(epoch) > 2:
                break
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()
    saved = load(max(tmp_path.glob("synthetic/gpm/*/checkpoint/*.safetensors")), asked.spec.plan)
    events = list(RayExecutor(cluster.address).do([asked]))
    begins = next((event.facts["lesson"], event.facts["epoch"]) for event in events if event.kind == "epoch")
    assert begins >= (saved.fit_state.lesson, saved.fit_state.epoch) > (0, 0)
    assert all_as(reference, [asked], events)


@pytest.mark.parametrize("shared", [None, False])
def test_a_run_that_another_process_works_on_is_waited_for(cluster, reference, tmp_path, monkeypatch, shared):
    monkeypatch.setattr(on_ray, "BUSY", 0.1)
    asked = job(tmp_path)
    path = Path(list(RayExecutor(cluster.address).do([asked]))[-1].facts["record"]["path"])
    with lock_run(tmp_path, path):
        doing = RayExecutor(cluster.address, shared=shared).do([asked])
        first = [next(doing), next(doing)]
    assert [event.kind for event in first] == ["started", "warning"]
    assert first[1].facts["text"].endswith("; waiting for it")
    assert all_as(reference, [asked], list(doing))


def test_one_that_is_lost_too_often_has_failed(cluster, tmp_path):
    events = []
    for event in RayExecutor(cluster.address, retries=1).do([job(tmp_path, plan=LONG), job(tmp_path, seed=2)]):
        events.append(event)
        if event.kind == "started" and event.job == 0:
            os.kill(event.facts["process"], signal.SIGKILL)
    kinds = [event.kind for event in events if event.job == 0 and event.kind != "epoch"]
    assert kinds == ["started", "lost", "started", "failed"]
    assert ends(events)[0].facts["error"].startswith("lost 2 times, the last time because its worker process died")
    assert ends(events)[1].kind == "done"


def test_left_in_the_middle_nothing_goes_on(cluster, tmp_path):
    doing = RayExecutor(cluster.address, shared=False).do([job(tmp_path, plan=LONG, every=1e9)])
    for event in doing:
        if event.kind == "epoch" and event.facts["epoch"] == 1:
            break
    doing.close()
    [kept] = tmp_path.glob("synthetic/gpm/*/checkpoint/*.safetensors")
    with lock_run(tmp_path, kept.parent.parent):
        pass
    assert not list(tmp_path.glob(".locks/driver-*"))


def test_the_desk_is_where_the_driver_is(cluster):
    """Not on a node that may go while the driver stays."""
    from ray._private.state import actors

    on_ray.join(cluster.address)
    for _ in range(4):
        shift = on_ray.Shift(ray, RayExecutor(cluster.address), [])
        shift._open_desk()
        ray.get(shift.desk.nudge.remote())
        assert actors(shift.desk._actor_id.hex())["Address"]["NodeID"] == ray.get_runtime_context().get_node_id()
        ray.kill(shift.desk)


def test_more_than_any_node_has(cluster, tmp_path):
    doing = RayExecutor(cluster.address, cpus=64).do([job(tmp_path)])
    caution = next(doing)
    assert caution.kind == "warning"
    assert "64 CPUs and 0 GPUs, which no node of this cluster has now" in caution.facts["text"]
    doing.close()


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


def test_nothing_to_do():
    assert list(RayExecutor("127.0.0.1:1").do([])) == []


@pytest.mark.parametrize("wrong", [{"cpus": -1}, {"cpus": 0}, {"threads": 0}, {"retries": -1}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(WrongValue):
        RayExecutor(**wrong)


def test_a_job_on_a_gpu_takes_one(tmp_path):
    on_gpu = Job(job(tmp_path).spec, str(tmp_path), device="cuda:1")
    assert RayExecutor().needs(on_gpu) == {"num_cpus": 1, "num_gpus": 1}
    assert RayExecutor(gpus=0.5).needs(on_gpu) == {"num_cpus": 1, "num_gpus": 0.5}
    assert RayExecutor().needs(job(tmp_path)) == {"num_cpus": 1, "num_gpus": 0}


def test_without_ray_there_is_one_clear_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PerdureError, match=r"^Ray is not installed; pip install 'perdure\[ray\]'$"):
        list(RayExecutor().do([job(tmp_path)]))
