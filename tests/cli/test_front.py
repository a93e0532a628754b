"""The front door: version, help, wrong usage, and output that cannot be written."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from command import perdure as command
from typer.testing import CliRunner

from perdure.cli.main import VERBS, app
from perdure.errors import PerdureError

PERDURE = [sys.executable, "-m", "perdure"]


def perdure(*words: str, out: Any = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "80"}
    command = [*PERDURE, *words]
    return subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, env=environment, check=False)


def verbs() -> list[list[str]]:
    """All of them, by the words to type."""
    top: Any = typer.main.get_command(app)
    groups = {name: getattr(verb, "commands", {}) for name, verb in top.commands.items()}
    return [*([name] for name in groups), *([name, inner] for name, group in groups.items() for inner in group)]


def test_version_is_the_packages_and_needs_no_torch() -> None:
    script = """
import sys
from perdure.cli.main import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "perdure 0.1.0\n", "")


def test_verbs_come_in_the_order_of_their_use() -> None:
    top: Any = typer.main.get_command(app)
    assert top.list_commands(None) == [verb for verb in VERBS if verb in top.commands]
    top.commands = {"unheard-of": None, **top.commands}
    assert top.list_commands(None)[-1] == "unheard-of"
    shown = command("--help").stdout
    assert shown.index("│ demo ") < shown.index("│ run ") < shown.index("│ study ") < shown.index("│ bench ")


@pytest.mark.parametrize("verb", [[], *verbs()], ids=" ".join)
def test_help_names_no_types_of_flags_and_keeps_to_the_width(verb: list[str]) -> None:
    shown = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(app, [*verb, "--help"]).stdout
    assert "--help" in shown
    assert "<bool>" not in shown
    assert "<int" not in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnu"], "no such command 'rnu'. Did you mean 'run'? (see `perdure --help`)"),
        (["run"], "missing argument 'METHOD' (see `perdure run --help`)"),
        (["run", "gpm"], "missing argument 'BENCHMARK' (see `perdure run --help`)"),
        (["run", "gpm", "six", "--nope"], "no such option: --nope"),
        (["run", "gpm", "six", "--seed", "-1"], "invalid value for '--seed'"),
        (["run", "gpm", "six", "--seed", "x"], "invalid value for '--seed'"),
        (["data", "chek"], "no such command 'chek'. Did you mean 'check'? (see `perdure data --help`)"),
        (["search", "gpm", "six"], "missing option '--space' (see `perdure search --help`)"),
    ],
)
def test_wrong_usage_is_one_line(words: list[str], message: str) -> None:
    done = command(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"perdure: {message}")
    assert done.stderr.count("\n") == 1


def test_no_words_at_all_get_the_help() -> None:
    done = command()
    assert "Usage: perdure" in done.stdout
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", ["ls", "ls --json", "--help", "--version"])
def test_output_that_cannot_be_written_is_one_line(words: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = perdure(*words.split(), out=full)
    assert done.returncode == 1
    assert done.stderr == "perdure: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("words", ["ls", "ls --json", "--help"])
def test_a_reader_that_goes_away_is_no_error(words: str) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        done = perdure(*words.split(), out=gone)
    assert done.stderr == ""


def test_other_errors_of_the_system_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.cli import main, options

    def fails(**_: Any) -> None:
        raise FileNotFoundError(2, "No such file", "lost")

    monkeypatch.setattr(main, "app", fails)
    with pytest.raises(FileNotFoundError):
        main.main()
    assert issubclass(options.UsageProblem, Exception)
    assert not issubclass(options.UsageProblem, PerdureError)
