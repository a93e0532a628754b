"""The fuzzers: a few cases of each, and that they notice what they are there to notice.

Each test is a process of its own: fuzzers fork, which a process must be made for.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def program(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, BENCHMARKS / name, *words], capture_output=True, text=True, check=False)


def counted(table: str) -> dict[str, int]:
    """The last line of the counts, by the names in the first."""
    names, together = table.splitlines()[0].split("  "), table.splitlines()[-1].split()
    return dict(zip(filter(None, map(str.strip, names)), map(int, together[1:]), strict=True))


def told(code: str) -> Any:
    """What a Python program prints as JSON; `folder` is one for it to work in."""
    begin = f"""
import json, sys, tempfile
from pathlib import Path
sys.path.insert(0, {str(BENCHMARKS)!r})
place = tempfile.TemporaryDirectory()
folder = Path(place.name).resolve()
"""
    done = subprocess.run([sys.executable, "-c", begin + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.thorough  # a fault of each kind is below
def test_files() -> None:
    done = program("fuzz_files.py", "--seed", "1", "--cases", "5")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    counts = counted(done.stdout)
    assert (counts["cases"], counts["failures"]) == (5, 0)
    assert counts["same"] < 5


@pytest.mark.thorough
def test_values() -> None:
    done = program("fuzz_values.py", "--seed", "1", "--cases", "12")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    counts = counted(done.stdout)
    assert (counts["cases"], counts["failures"]) == (12, 0)
    assert counts["one line"] > counts["accepted"] > 0


FAULTS = """
import os, time
import fuzz_cases
fuzz_cases.SECONDS, fuzz_cases.MEMORY = 3, 2**26
(folder / "here").mkdir()

def say(text, code):
    print(text, file=sys.stderr)
    return code

def forever():
    while True:
        pass

cases = {
    "good": lambda: say("perdure: no such file; name another", 1),
    "traceback": lambda: 1 / 0,
    "forever": forever,
    "signal": lambda: os.kill(os.getpid(), 9),
    "memory": lambda: say("", len(b"x" * 2**27) * 0),
    "code": lambda: say("perdure: done", 3),
    "silent": lambda: 1,
    "lines": lambda: say("perdure: no such\\nfile", 1),
    "controls": lambda: say("perdure: \\x1b[2J", 1),
    "long": lambda: say("perdure: " + "x" * 9000, 1),
    "warning": lambda: say("a.py:5: UserWarning: what is this?", 0),
}
print(json.dumps({name: fuzz_cases.forked(do, folder / "here", {}).fault for name, do in cases.items()}))
"""


def test_what_no_command_may_do() -> None:
    found = told(FAULTS)
    assert found.pop("good") == ""
    beginnings = {
        "traceback": "traceback: ",
        "forever": "no end after 3 seconds",
        "signal": "ended by signal 9",
        "memory": "took ",
        "code": "exit code 3",
        "silent": "exit code 1 without a word",
        "lines": "an error of several lines: perdure: no such | file",
        "controls": "a line that cannot be printed: ",
        "long": "an error of 9009 characters: perdure: xxx",
        "warning": "a warning of Python's: a.py:5: UserWarning: what is this?",
    }
    assert found.keys() == beginnings.keys()
    assert {name: found[name][: len(begin)] for name, begin in beginnings.items()} == beginnings


JUDGED = """
import fuzz_cases, fuzz_files
from perdure.lab import run, store

fuzz_cases.import_all()
fuzzer = fuzz_files.Fuzzer(folder)
make = lambda: fuzz_files.run("finetune", "synthetic", **fuzz_files.ASKED)
good = fuzzer.good(fuzz_files.Material("store", "a run", make, list))
(record,) = good.folder.rglob("record.json")
target = str(record.relative_to(good.folder))
path = str(Path(target).parent)
show = fuzz_files.Command(("show", path, "--json"), (), (), (target,))
words = ("run", "finetune", "synthetic", *fuzz_files.OPTIONS)
again = fuzz_files.Command(words, (), (path, "runs/.locks"), (), fuzz_files.trained(path))

def case(command, how, old="", new=""):
    expected = fuzzer.expected(good, command)
    fuzzer.fill(good)
    file = fuzzer.world / target
    file.write_text(file.read_text().replace(old, new, 1))
    found = fuzzer.judge(command, expected, fuzz_files.Change(how, target, ""))
    return [found.fault, found.verdict]

def replaced(module, name, other, *args):
    kept = getattr(module, name)
    setattr(module, name, other)
    try:
        return case(*args)
    finally:
        setattr(module, name, kept)

def read(path, *_):
    return json.loads((path / "record.json").read_text())

def spoil(*_):
    Path("mine.txt").write_text("yours")
    return {}

seed = '"seed": 1,', '"seed": 2,'
found = {
    "same": case(show, "damage"),
    "one line": case(show, "damage", *seed),
    "set aside": case(again, "damage", *seed),
    "other content": replaced(store, "_check", lambda record: record["check"], show, "forged", *seed),
    "believed": replaced(store, "_check", lambda record: record["check"], show, "damage", *seed),
    "changed": replaced(run, "read_probes", spoil, again, "damage"),
    "another result": replaced(run, "finished", read, again, "damage", *seed),
}
print(json.dumps(found))
"""


@pytest.mark.thorough
def test_what_comes_of_a_changed_file() -> None:
    found = told(JUDGED)
    assert {name: verdict for name, (fault, verdict) in found.items() if not fault} == {
        name: name for name in ("same", "one line", "set aside", "other content")
    }
    assert found["believed"][0] == "believed, although a checksum covers it"
    assert found["changed"][0] == "changed mine.txt"
    assert found["another result"][0] == "another result than with good files"
