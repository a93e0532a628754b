"""Runs in processes of their own: whatever happens to one, the others continue, and it resumes."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from perdure import registry
from perdure.errors import WrongValue
from perdure.lab.execute import job as job_module
from perdure.lab.execute import local, worker
from perdure.lab.execute.job import EpochEvents, Event, Executor, Job, run_job
from perdure.lab.execute.local import LocalExecutor, Process, cores, visible_gpus
from perdure.lab.spec import spec
from perdure.lab.store import lock_run


def job(out: Path, method: str = "gpm", seed: int = 1, epochs: int = 2, every: float = 60.0, **more: Any) -> Job:
    return Job(spec(method, "synthetic", seed=seed, tasks=2, plan={"epochs": epochs}, **more), str(out), every=every)


def do(executor: LocalExecutor, jobs: list[Job], seen: Callable[[Event], None] = lambda _: None) -> list[Event]:
    events = []
    for event in executor.do(jobs):
        events.append(event)
        seen(event)
    return events


def here(jobs: list[Job]) -> list[Event]:
    """What jobs come to in this process, one after the other, with one thread."""
    events, threads = list[Event](), torch.get_num_threads()
    torch.set_num_threads(1)
    for number, one in enumerate(jobs):
        run_job(one, lambda kind, facts, number=number: events.append(Event(number, kind, facts)))  # type: ignore[misc]
    torch.set_num_threads(threads)
    return events


def ends(events: list[Event]) -> dict[int, str]:
    return {event.job: event.kind for event in events if event.kind in ("done", "failed", "stopped")}


def records(events: list[Event]) -> dict[int, dict[str, Any]]:
    """What the jobs came to, without what is never the same twice, and how threads wait, which processes choose."""
    return {
        event.job: {
            name: value
            for name, value in event.facts["record"].items()
            if name not in ("seconds", "evaluation_seconds", "finished", "path", "files", "check", "openmp")
        }
        for event in events
        if event.kind == "done"
    }


def models(events: list[Event]) -> dict[int, dict[str, torch.Tensor]]:
    from safetensors.torch import load_file

    done = {event.job: event.facts["record"]["path"] for event in events if event.kind == "done"}
    return {number: load_file(f"{path}/model.safetensors") for number, path in done.items()}


def same(one: dict[int, dict[str, torch.Tensor]], other: dict[int, dict[str, torch.Tensor]]) -> bool:
    assert set(one) == set(other)
    assert all(set(one[number]) == set(other[number]) for number in one)
    return all(torch.equal(one[number][name], other[number][name]) for number in one for name in one[number])


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids(executor: LocalExecutor) -> list[int]:
    return [running.process.pid for running in executor.running]


@pytest.mark.thorough
def test_two_at_a_time_leave_what_one_at_a_time_leaves(tmp_path: Path) -> None:
    most, executor = 0, LocalExecutor(2)

    def seen(_: Event) -> None:
        nonlocal most
        most = max(most, len(executor.running))

    def jobs(out: Path) -> list[Job]:
        return [job(out, "gpm"), job(out, "rcl", epochs=1), job(out, "rcl", seed=2, epochs=1)]

    found = do(executor, jobs(tmp_path / "two"), seen)
    assert most == 2
    assert ends(found) == {0: "done", 1: "done", 2: "done"}
    assert executor.running == []
    alone = here(jobs(tmp_path / "one"))
    assert records(found) == records(alone)
    assert {record["threads"] for record in records(found).values()} == {1}
    assert same(models(found), models(alone))
    kinds = [event.kind for event in found if event.job == 0]
    assert kinds == ["started", *["epoch"] * 4, "done"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    return here([job(tmp_path_factory.mktemp("whole"), epochs=6)])


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_lost_run_goes_on_from_its_checkpoint(number: int, whole: list[Event], tmp_path: Path) -> None:
    """Killed by the system, or stopped by somebody else."""
    executor, killed = LocalExecutor(), []

    def kill(event: Event) -> None:
        if event.kind == "epoch" and event.facts["epoch"] == 3 and not killed:
            killed.extend(pids(executor))
            os.kill(killed[0], number)

    events = do(executor, [job(tmp_path / "cut", epochs=6, every=0.0)], kill)
    kinds = [event.kind for event in events]
    assert kinds.count("lost") == 1
    assert ends(events) == {0: "done"}
    lost = kinds.index("lost")
    assert (number == signal.SIGKILL) == ("SIGKILL" in events[lost].facts["error"])
    assert kinds[lost + 1] == "started"
    following = events[lost + 2].facts
    assert (following["lesson"], following["epoch"]) > (0, 2)  # not from the start
    assert records(events) == records(whole)
    assert same(models(events), models(whole))


@pytest.mark.thorough
def test_what_is_lost_again_and_again_fails_and_the_others_go_on(tmp_path: Path) -> None:
    executor = LocalExecutor(2, retries=1)

    def kill(event: Event) -> None:
        if event.job == 0 and event.kind == "started":
            os.kill(event.facts["process"], signal.SIGKILL)

    events = do(executor, [job(tmp_path, epochs=100_000), job(tmp_path, "finetune")], kill)
    assert ends(events) == {0: "failed", 1: "done"}
    assert [event.kind for event in events if event.job == 0] == ["started", "lost", "started", "failed"]
    last = next(event for event in events if event.kind == "failed")
    assert last.facts["error"].endswith("tried 2 times")


@pytest.mark.thorough
def test_a_run_that_fails_is_not_tried_again(tmp_path: Path) -> None:
    wrong = Job(spec("finetune", "synthetic", network="mlp", plan={"rate": 1e30}), str(tmp_path))
    events = do(LocalExecutor(), [wrong])
    assert [event.kind for event in events] == ["started", "failed"]
    assert "lower the learning rate" in events[-1].facts["error"]


@pytest.mark.thorough
def test_methods_of_other_packages_are_found_and_may_print_on_two_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process sees the packages that this one sees, and what they print is no event."""
    (tmp_path / "loud.py").write_text(
        "from perdure.methods.finetune import FineTune\n\n\n"
        "class Loud(FineTune):\n"
        "    def begin(self, lesson):\n"
        "        print('{')\n"
        '        print(\'{"kind": "failed", "facts": {"error": "not an event"}}\', flush=True)\n'
    )
    about = tmp_path / "loud-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[perdure.methods]\nloud = loud:Loud\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_of_other_packages", registry._of_other_packages.__wrapped__)  # not as found before
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    events = do(LocalExecutor(threads=2), [job(tmp_path / "runs", "loud", epochs=1, network="mlp")])
    assert [event.kind for event in events] == ["started", "epoch", "epoch", "done"]
    assert records(events)[0]["threads"] == 2  # those asked for, whatever the environment says


def test_stopping_saves_what_is_under_way(tmp_path: Path) -> None:
    executor = LocalExecutor(1)
    assert isinstance(executor, Executor)
    processes: list[int] = []

    def stop(event: Event) -> None:
        if event.kind == "epoch" and not processes:
            processes.extend(pids(executor))
            executor.stop()

    endless = job(tmp_path, epochs=100_000)
    events = do(executor, [endless, *(job(tmp_path, "finetune", seed) for seed in range(20))], stop)
    assert ends(events) == dict.fromkeys(range(21), "stopped")
    assert any(event.job == 0 and "completed work is saved" in event.facts.get("error", "") for event in events)
    assert [event.job for event in events if event.kind == "started"] == [0]
    assert list(tmp_path.rglob("checkpoint/*.safetensors"))
    assert not any(map(alive, processes))


@pytest.mark.thorough
def test_left_in_the_middle_no_process_stays_behind(tmp_path: Path) -> None:
    executor = LocalExecutor(1)
    events = executor.do([job(tmp_path, epochs=100_000)])
    while next(events).kind != "epoch":
        pass
    processes = pids(executor)
    assert any(map(alive, processes))
    assert all(os.getpgid(process) != os.getpgid(0) for process in processes)  # Ctrl-C does not reach them
    events.close()  # type: ignore[attr-defined]
    assert not any(map(alive, processes))
    assert list(tmp_path.rglob("checkpoint/*.safetensors"))


@pytest.mark.thorough
def test_a_worker_whose_events_nobody_reads_finishes(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    worker = subprocess.Popen([sys.executable, "-m", "perdure.lab.execute.worker"], stdin=subprocess.PIPE, stdout=write)
    os.close(write)
    assert worker.stdin is not None
    with worker.stdin:
        worker.stdin.write(json.dumps({"job": job(tmp_path).plain(), "threads": 1}).encode() + b"\n")
        worker.stdin.flush()
        assert worker.wait(120) == 0
    assert list(tmp_path.rglob("record.json"))


def test_a_gpu_for_each_job(monkeypatch: pytest.MonkeyPatch) -> None:
    two = LocalExecutor(2, gpus=["3", "5", "7"])
    assert (two.jobs, two.gpus) == (2, ["3", "5"])
    assert LocalExecutor(9, gpus=["3"]).jobs == 1
    assert LocalExecutor(2).jobs == 2
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6")
    assert visible_gpus() == ["4", "6"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert cores() == 7


def test_none_at_a_time_is_not_allowed() -> None:
    with pytest.raises(WrongValue, match="jobs=0"):
        LocalExecutor(0)


def test_a_line_that_was_cut_off_is_skipped() -> None:
    read, write = os.pipe()
    os.write(write, b'{"kind": "started", "facts": {}}\n{"kind": "do{"kind": "stopped"}\n{"ki')
    os.close(write)
    process = Process(0, None, SimpleQueue())
    with os.fdopen(read, "rb") as stdout:
        process.process = SimpleNamespace(stdout=stdout)  # type: ignore[assignment]
        process.read()
    assert [process.received.get()[1] for _ in range(2)] == [Event(0, "started", {}), None]
    assert process.received.empty()


def test_a_locked_run_is_waited_for(tmp_path: Path) -> None:
    events: list[tuple[str, Any]] = []
    asked = job(tmp_path, "finetune", epochs=1)
    locked = ExitStack()
    locked.enter_context(lock_run(tmp_path, tmp_path / asked.spec.benchmark_dir / "finetune" / asked.spec.digest()))

    def send(kind: str, facts: dict[str, Any]) -> None:
        events.append((kind, facts))
        if kind == "warning":
            locked.close()

    run_job(asked, send)
    assert [kind for kind, _ in events] == ["started", "warning", "epoch", "epoch", "done"]
    assert events[1][1]["text"].endswith("; waiting for it")


def test_a_worker_that_is_stopped_before_it_begins_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> bytes:
        signal.raise_signal(signal.SIGTERM)
        return b""

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=SimpleNamespace(readline=interrupted)))
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        try:
            worker.main()
        finally:
            monkeypatch.undo()
            for number, handler in handlers.items():
                signal.signal(number, handler)
    (event,) = map(json.loads, (tmp_path / "out").read_text().splitlines())
    assert event["kind"] == "stopped"
    assert event["facts"]["error"].startswith("interrupted; completed work is saved")
    assert (tmp_path / "err").read_bytes() == b""


def test_a_worker_ends_when_nobody_writes_to_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, ended = [b"a line", b""], []
    monkeypatch.setattr(os, "read", lambda number, size: sent.pop(0) if (number, size) == (0, 1024) else b"")
    monkeypatch.setattr(os, "kill", lambda process, number: ended.append((process, number, len(sent))))
    worker.exit_with_parent()
    assert ended == [(os.getpid(), signal.SIGTERM, 0)]


def test_events_of_training() -> None:
    sent = list[tuple[str, dict[str, Any]]]()
    EpochEvents(lambda kind, facts: sent.append((kind, facts))).on_warning("a word")
    assert sent == [("warning", {"text": "a word"})]


def test_a_worker_has_a_session_of_its_own_and_sees_its_own_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that Ctrl-C reaches the driver alone, which lets it save."""
    given: dict[str, Any] = {}

    def start(command: list[str], **options: Any) -> Any:
        given.update(options, command=command)
        return SimpleNamespace(stdin=io.BytesIO(), stdout=io.BytesIO())

    monkeypatch.setattr(subprocess, "Popen", start)
    process = Process(0, "3", SimpleQueue())
    process.start(job(tmp_path), threads=2)
    process.reader.join()
    process.stderr.close()
    assert given["start_new_session"]
    assert given["command"][-1] == "perdure.lab.execute.worker"
    assert (given["env"]["CUDA_VISIBLE_DEVICES"], given["env"]["OMP_NUM_THREADS"]) == ("3", "2")


class Ending:
    """Stands for a process that computes a job: what it sends, and why it ends."""

    ends: ClassVar[dict[int, list[tuple[list[Event], str]]]] = {}
    started: ClassVar[list[tuple[int, str | None, int]]] = []
    stopped: ClassVar[list[int]] = []

    def __init__(self, job: int, gpu: str | None, received: Any) -> None:
        self.job, self.gpu, self.received = job, gpu, received

    def start(self, _job: Job, threads: int) -> None:
        self.started.append((self.job, self.gpu, threads))
        events, self.reason = self.ends[self.job].pop(0)
        for event in (*events, None):
            self.received.put((self, event))

    def stop(self) -> None:
        self.stopped.append(self.job)

    def close(self) -> str:
        return self.reason


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> type[Ending]:
    Ending.ends, Ending.started, Ending.stopped = {}, [], []
    monkeypatch.setattr(local, "Process", Ending)
    return Ending


def test_a_lost_job_is_the_next_to_be_started_again_on_a_free_gpu(ending: type[Ending], tmp_path: Path) -> None:
    done = {number: Event(number, "done", {"record": {}}) for number in range(3)}
    ending.ends = {
        0: [([], "ended by SIGKILL"), ([done[0]], "")],
        1: [([done[1]], "it ended badly, after all was done")],
        2: [([done[2]], "")],
    }
    jobs = [job(tmp_path, seed=seed) for seed in (1, 2, 3)]
    events = list(LocalExecutor(1, threads=2, gpus=["7"]).do(jobs))
    assert events == [Event(0, "lost", {"error": "ended by SIGKILL"}), *done.values()]
    assert ending.started == [(0, "7", 2), (0, "7", 2), (1, "7", 2), (2, "7", 2)]
    assert ending.stopped == []


def test_a_job_that_is_lost_again_and_again_has_failed(ending: type[Ending], tmp_path: Path) -> None:
    ending.ends = {0: [([], "ended by SIGKILL")] * 9}
    events = list(LocalExecutor(1, threads=1, gpus=[]).do([job(tmp_path)]))
    assert [event.kind for event in events[:-1]] == ["lost"] * (len(events) - 1)
    assert events[-1].kind == "failed"
    assert events[-1].facts["error"] == f"ended by SIGKILL; tried {len(events)} times"


@pytest.mark.parametrize(
    ("code", "printed", "said"),
    [
        (-9, b"", "its process was ended by SIGKILL; perhaps there was not enough memory: fewer --jobs need less"),
        (-15, b"x", "its process was ended by SIGTERM"),
        (3, b"first\n last word \n\n", "its process ended with code 3: last word"),
        (0, b" \n", "its process ended with code 0: no message"),
        (1, b"early" + b" " * 5000, "its process ended with code 1: no message"),
    ],
)
def test_why_a_process_ended(code: int, printed: bytes, said: str) -> None:
    process = Process(0, None, SimpleQueue())
    pipes = {"stdin": io.BytesIO(), "stdout": io.BytesIO()}
    process.process = SimpleNamespace(**pipes, wait=lambda: code)  # type: ignore[assignment]
    process.reader, process.stderr = SimpleNamespace(join=lambda: None), io.BytesIO(printed)  # type: ignore[assignment]
    assert process.close() == said
    assert all(pipe.closed for pipe in (*pipes.values(), process.stderr))


def test_an_error_of_any_kind_is_one_line_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(job_module, "_run_when_unlocked", broken)
    sent = list[tuple[str, dict[str, Any]]]()
    run_job(job(tmp_path), lambda kind, facts: sent.append((kind, facts)))
    assert [kind for kind, _ in sent] == ["started", "failed"]
    assert sent[0][1]["process"] == os.getpid()
    assert "ZeroDivisionError: by nothing" in sent[1][1]["error"]
    assert "\n" not in sent[1][1]["error"]
