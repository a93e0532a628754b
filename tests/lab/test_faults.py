"""Whatever happens to the store, nothing finished is lost, and each fault is one clear line."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from command import perdure as command

from perdure.errors import CorruptFile, Interrupted, PerdureError, RunLocked
from perdure.lab import checkpoint, tensor_file
from perdure.lab.run import run_spec
from perdure.lab.spec import spec
from perdure.lab.store import lock_run, read_record, write
from perdure.train.callbacks import Callback

ASKED = spec("gpm", "synthetic", network="mlp", tasks=2, plan={"epochs": 2}, settings={"size": 8})


class Log(Callback):
    """Remembers what was said, and whether anything was learned."""

    def __init__(self):
        self.warnings, self.epochs = [], 0

    def on_warning(self, text):
        self.warnings.append(text)

    def on_epoch_end(self, _epoch):
        self.epochs += 1


class Pull(Exception):
    pass


class PullAfter(Callback):
    def __init__(self, epochs):
        self.left = epochs

    def on_epoch_end(self, _epoch):
        self.left -= 1
        if self.left < 0:
            raise Pull


def state(record):
    return checkpoint.load(Path(record["path"]) / "model.safetensors", ASKED.plan).state


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    return out, run_spec(ASKED, out=out)


@pytest.fixture(scope="module")
def whole(finished):
    """What an undisturbed run comes to."""
    return state(finished[1])


@pytest.fixture
def done(finished, tmp_path):
    """A finished run."""
    return copied(finished[0], tmp_path)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("begun")
    with pytest.raises(Pull):
        run_spec(ASKED, out=out, callback=PullAfter(3), every=0)
    return out


@pytest.fixture
def begun(interrupted, tmp_path):
    """A run that was interrupted in its second lesson, with two checkpoints."""
    path = copied(interrupted, tmp_path)
    assert len(list((path / "checkpoint").iterdir())) == 2
    return path


def copied(store, folder):
    """The one run of a store, in another."""
    shutil.copytree(store, folder, dirs_exist_ok=True)
    (path,) = (folder / "synthetic" / "gpm").iterdir()
    return path


def again(path, **wishes):
    log = Log()
    return run_spec(ASKED, out=path.parents[2], callback=log, **wishes), log


def test_finished_runs_are_not_computed_again(done):
    before = {file: file.stat().st_mtime_ns for file in done.rglob("*") if file.is_file()}
    record, log = again(done)
    assert record["already_done"]
    assert log.epochs == 0
    assert before == {file: file.stat().st_mtime_ns for file in done.rglob("*") if file.is_file()}


# --- damage to a finished run ---


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


DAMAGE = {
    "record cut short": (lambda path: write(path / "record.json", (path / "record.json").read_bytes()[:100]), False),
    "record empty": (lambda path: write(path / "record.json", b""), False),
    "record a list": (lambda path: write(path / "record.json", b"[]"), False),
    "a figure changed by hand": (
        lambda path: write(
            path / "record.json", (path / "record.json").read_bytes().replace(b'"seed": 1', b'"seed": 2')
        ),
        False,
    ),
    "a figure in the epochs changed by hand": (
        lambda path: write(
            path / "epochs.jsonl", (path / "epochs.jsonl").read_bytes().replace(b'"epoch": 0', b'"epoch": 7')
        ),
        True,
    ),
    "epochs cut short": (lambda path: write(path / "epochs.jsonl", (path / "epochs.jsonl").read_bytes()[:-9]), True),
    "epochs gone": (lambda path: (path / "epochs.jsonl").unlink(), True),
    "bit flipped in the model": (lambda path: flip(path / "model.safetensors", -9), True),
    "model cut short": (lambda path: write(path / "model.safetensors", b"\0" * 9), True),
    "model gone": (lambda path: (path / "model.safetensors").unlink(), True),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_run_is_named_set_aside_and_made_again(done, whole, kind):
    spoil, anew = DAMAGE[kind]
    spoil(done)
    record, log = again(done)
    assert log.warnings
    assert all("\n" not in line for line in log.warnings)
    assert "set aside as record.json.damaged-1" in log.warnings[0]
    assert (log.epochs > 0) == anew  # from the model that is whole, no epoch need be learned again
    assert equal(state(record), whole)
    assert read_record(done, thorough=True)


def test_a_record_of_a_newer_schema_is_left_alone(done):
    record = json.loads((done / "record.json").read_text())
    content = json.dumps({**record, "schema": 99})
    (done / "record.json").write_text(content)
    with pytest.raises(PerdureError, match=r"newer perdure \(schema 99\); update"):
        again(done)
    assert (done / "record.json").read_text() == content


# --- damage to checkpoints ---


@pytest.mark.parametrize("how", ["cut short", "bit in a tensor", "bit in the header", "empty", "of another run"])
@pytest.mark.parametrize("both", [False, True], ids=["the latest", "both"])
def test_a_damaged_checkpoint_costs_one_interval_at_most(begun, whole, how, both):
    files = sorted((begun / "checkpoint").iterdir())
    for path in files if both else files[-1:]:
        if how == "cut short":
            path.write_bytes(path.read_bytes()[:-5])
        elif how == "bit in a tensor":
            flip(path, -5)
        elif how == "bit in the header":
            flip(path, path.read_bytes().index(b"matrix"))
        elif how == "empty":
            path.write_bytes(b"")
        else:
            content = path.read_bytes()
            path.write_bytes(content)
            saved = checkpoint.load(path, ASKED.plan)
            assert saved.learned.matrix
            with pytest.raises(CorruptFile, match="of another run"):
                checkpoint.load(path, ASKED.plan, "0123456789abcdef")
            return
    record, log = again(begun)
    assert len(log.warnings) == (2 if both else 1)
    assert all("set aside as" in line for line in log.warnings)
    assert log.epochs == (4 if both else 1)
    assert equal(state(record), whole)


def test_a_checkpoint_of_a_newer_schema_is_left_alone(begun, monkeypatch):
    monkeypatch.setattr(tensor_file, "SCHEMA", 0)
    with pytest.raises(PerdureError, match="newer perdure"):
        again(begun)
    assert len(list((begun / "checkpoint").iterdir())) == 2


def test_half_written_files_are_never_met(begun, whole):
    """What a crash in the middle of a write leaves is a hidden file that nobody reads."""
    (begun / "checkpoint" / ".000009.safetensors.abc").write_bytes(b"half")
    (begun / ".record.json.xyz").write_bytes(b"{")
    record, log = again(begun)
    assert log.warnings == []
    assert equal(state(record), whole)


# --- a disk that is full, rights that are gone ---


@pytest.mark.parametrize(
    ("code", "when"),
    [(errno.EIO, "fsync"), (errno.ENOSPC, "fsync"), (errno.EACCES, "replace"), (errno.ENOSPC, "save")],
)
def test_a_write_that_fails_is_one_line_and_loses_nothing(begun, whole, monkeypatch, code, when):
    before = {path.name for path in begun.rglob("*")}
    error = OSError(code, os.strerror(code))

    def fail(*_args, **_kwargs):
        raise error

    with monkeypatch.context() as patch:
        place = {"fsync": "os.fsync", "replace": "pathlib.Path.replace", "save": "safetensors.torch.save_file"}[when]
        patch.setattr(place, fail)
        with pytest.raises(PerdureError) as caught:
            run_spec(ASKED, out=begun.parents[2], every=0)
    assert os.strerror(code) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert {path.name for path in begun.rglob("*")} == before
    assert equal(state(run_spec(ASKED, out=begun.parents[2])), whole)


class Watch(Callback):
    """A clock that ticks once at every moment between two steps."""

    def __init__(self):
        self.now = 0.0

    def on_step(self, _now):
        self.now += 1


def test_checkpoints_follow_an_interval_and_the_end_of_tasks_whatever_the_time_of_day(tmp_path, whole, monkeypatch):
    """The wall clock is set back again and again meanwhile. An epoch has six steps and the moment after it."""
    watch, saved, save = Watch(), [], checkpoint.save
    backwards = iter(range(10**9, 0, -1000))
    monkeypatch.setattr(time, "time", lambda: float(next(backwards)))
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: watch.now, time=time.time))

    def note(path, digest, method, learned, fit_state=None):
        save(path, digest, method, learned, fit_state)
        if path.parent.name == "checkpoint":
            saved.append((watch.now, "within" if fit_state else f"after {len(learned.matrix)}"))

    monkeypatch.setattr(checkpoint, "save", note)
    assert equal(state(run_spec(ASKED, out=tmp_path, callback=watch, every=5)), whole)
    first, second = [(5, "within"), (10, "within"), (14, "after 1")], [(19, "within"), (24, "within"), (28, "after 2")]
    assert saved == [*first, *second]


def test_what_was_learned_before_the_end_of_a_task_is_not_learned_again(tmp_path, whole):
    """Even if no interval has passed."""

    class PullInSecondTask(Callback):
        def on_task_start(self, lesson, _plan):
            if lesson.index == 1:
                raise Pull

    with pytest.raises(Pull):
        run_spec(ASKED, out=tmp_path, callback=PullInSecondTask(), every=1e9)
    log = Log()
    assert equal(state(run_spec(ASKED, out=tmp_path, callback=log)), whole)
    assert log.epochs == 2


# --- two processes ---


def test_a_second_process_says_so_and_leaves(tmp_path):
    path = tmp_path / "six" / "gpm" / "0123"
    with lock_run(tmp_path, path):
        places = f"Path({str(tmp_path)!r}), Path({str(path)!r})"
        code = f"from pathlib import Path; from perdure.lab.store import lock_run; lock_run({places}).__enter__()"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "RunLocked" in other.stderr
        assert f"process {os.getpid()} on " in other.stderr
        assert "wait for it, or stop it" in other.stderr
        with pytest.raises(RunLocked), lock_run(tmp_path, path):
            pass
    with lock_run(tmp_path, path):
        pass


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path):
    path = tmp_path / "six" / "gpm" / "0123"
    code = (
        "import time; from pathlib import Path; from perdure.lab.store import lock_run\n"
        f"with lock_run(Path({str(tmp_path)!r}), Path({str(path)!r})): print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(RunLocked, match=f"process {other.pid} "), lock_run(tmp_path, path):
        pass
    other.kill()
    other.wait()
    other.stdout.close()
    with lock_run(tmp_path, path):
        pass


# --- signals ---


class Signal(Callback):
    def __init__(self, number, epochs):
        self.number, self.left = number, epochs

    def on_epoch_end(self, _epoch):
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_and_stop(tmp_path, whole, number):
    before = signal.getsignal(number)
    with pytest.raises(
        Interrupted, match="interrupted at task 2, epoch 2; completed work is saved, run the same command to resume"
    ) as caught:
        run_spec(ASKED, out=tmp_path, callback=Signal(number, 3), every=1e9)
    assert caught.value.exit_code == 128 + number
    assert signal.getsignal(number) is before
    log = Log()
    assert equal(state(run_spec(ASKED, out=tmp_path, callback=log)), whole)
    assert log.epochs == 1  # nothing was learned twice


@pytest.mark.thorough
def test_a_stopped_command_goes_on_when_given_again(tmp_path):
    words = [sys.executable, "-m", "perdure", "run", "finetune", "synthetic", "--json"]
    words += ["--net", "mlp", "--tasks", "2", "--plan", "epochs=100"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment)
    assert running.stderr is not None
    assert running.stderr.readline().startswith("finetune: task 1 of 2: ")
    running.send_signal(signal.SIGTERM)  # Ctrl-C: see tests/cli/test_main.py
    rest = running.communicate(timeout=60)[1]
    assert running.returncode == 128 + signal.SIGTERM
    assert "completed work is saved, run the same command to resume" in rest
    finished = command(*words[3:], cwd=tmp_path)
    assert [line.partition(":")[2].partition(":")[0] for line in finished.stderr.splitlines()] == [" task 2 of 2"]
    assert json.loads(finished.stdout)["epochs_run"] == [100, 100]


def test_an_error_of_the_work_itself_is_not_taken_for_one_of_the_lock(tmp_path):
    path = tmp_path / "six" / "gpm" / ("0" * 16)
    with pytest.raises(FileNotFoundError), lock_run(tmp_path, path):
        Path("/not/there").read_text()
    with lock_run(tmp_path, path):  # and the lock is free again
        pass
