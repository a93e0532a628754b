"""`perdure search`, as a user runs it."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from perdure.cli.main import app
from perdure.lab.execute.job import Event, Job
from perdure.lab.spec import RunSpec

pytest.importorskip("optuna", reason="a search needs optuna")


def perdure(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "120"})


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[list[RunSpec]]:
    """What was to be run, round by round; nothing is, and every run comes to 50 %."""
    asked: list[list[RunSpec]] = []

    def do(_self: object, jobs: Sequence[Job]) -> Iterator[Event]:
        asked.append([job.spec for job in jobs])
        yield from (Event(number, "done", {"record": {"acc": 50.0}}) for number in range(len(jobs)))

    monkeypatch.setattr("perdure.lab.execute.local.LocalExecutor.do", do)
    return asked


def test_the_best_command_is_the_best_run(
    rounds: list[list[RunSpec]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was given is in it: what is run then is what was tried, but judged on test data."""
    out = tmp_path / "my runs"
    own = shlex.split("--net mlp --tasks 2 --plan epochs=3 --plan batch=8 --data legacy=true --set samples=20 --root")
    space = ["--space", "threshold=0.5..0.9", "--space", "plan.rate=0.01..0.1:log"]
    answer = perdure(
        "search", "gpm", "five", *own, str(tmp_path), "--out", str(out), *space, "--seeds=3,4", "--trials=1"
    )
    assert answer.exit_code == 0, answer.output
    (line,) = [line for line in answer.stdout.splitlines() if line.startswith("best: perdure run ")]
    seen: list[RunSpec] = []

    def watched(wanted: RunSpec, **places: object) -> dict[str, object]:
        seen.append(wanted)
        assert (places["out"], places["root"]) == (out, tmp_path)
        raise KeyboardInterrupt

    monkeypatch.setattr("perdure.lab.run.run_spec", watched)
    perdure(*shlex.split(line)[2:])
    tried = rounds[0][0]
    assert tried.plan.rate != 0.01
    assert {**seen[0].plain(), "judged_on": "valid"} == tried.plain()


def test_what_was_found_outdoes_what_was_given(rounds: list[list[RunSpec]], tmp_path: Path) -> None:
    words = ("--set", "threshold=0.1", "--space", "threshold=0.5,0.5", "--trials", "1", "--out", str(tmp_path))
    answer = perdure("search", "gpm", "synthetic", *words)
    assert rounds[0][0].values["threshold"] == 0.5
    assert answer.stdout.splitlines()[-1].endswith("--set threshold=0.5")
    assert "--seed" not in answer.stdout


def test_what_was_found_replaces_what_was_given_under_another_name(rounds: list[list[RunSpec]], tmp_path: Path) -> None:
    words = ("--set", "epsilon=0.1", "--space", "threshold=0.5,0.5", "--plan", "lr=1", "--space", "plan.rate=0.2,0.2")
    answer = perdure("search", "gpm", "synthetic", *words, "--trials", "1", "--out", str(tmp_path))
    assert (rounds[0][0].values["threshold"], rounds[0][0].plan.rate) == (0.5, 0.2)
    assert answer.stdout.splitlines()[-1].count("threshold=") == 1
    assert answer.stdout.splitlines()[-1].endswith("--set threshold=0.5 --plan rate=0.2")


@pytest.mark.parametrize(("words", "widths"), [([], [1, 1, 1]), (["--jobs", "2"], [2, 1]), (["--at-once", "3"], [3])])
def test_a_round_has_as_many_proposals_as_there_are_places(
    words: list[str], widths: list[int], rounds: list[list[RunSpec]], tmp_path: Path
) -> None:
    space = ("--space", "threshold=0.5..0.9", "--trials", "3", "--out", str(tmp_path), "--json")
    answer = perdure("search", "gpm", "synthetic", *space, *words)
    assert len(json.loads(answer.stdout)["trials"]) == 3
    assert [len(specs) for specs in rounds] == widths


def test_a_gpu_does_one_run_at_a_time(
    rounds: list[list[RunSpec]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two GPUs do two runs at a time, however many jobs there might be."""
    monkeypatch.setattr("perdure.lab.executors.visible_gpus", lambda: ["0", "1"])
    space = ("--space", "threshold=0.5..0.9", "--trials", "4", "--out", str(tmp_path))
    perdure("search", "gpm", "synthetic", *space, "--device", "cuda", "--jobs", "3")
    assert [len(specs) for specs in rounds] == [2, 2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--space", "threshold=0.5..0.9", "--seeds", "1,1"], "seeds 1, 1: name at least one, and each once"),
        (["--space", "threshold=0.5..0.9", "--seeds", "a"], "write whole numbers with commas, e.g. 1,2,3"),
        (["--space", "threshold=0.5,nonsense"], "threshold=nonsense is not allowed"),
        (["--space", "threshold=0.5..0.9", "--on", "moon"], "use local, ray, auto or ray://HOST:PORT"),
    ],
)
def test_what_is_asked_wrongly_gets_one_clear_line(words: list[str], message: str, tmp_path: Path) -> None:
    answer = perdure("search", "gpm", "synthetic", *words, "--out", str(tmp_path / "runs"))
    assert answer.exit_code == 2, answer.output
    assert message in re.sub(r"\s+", " ", answer.stderr)
    assert len(answer.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()
