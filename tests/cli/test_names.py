"""Names that are markup, formulas, or not UTF-8: printed as they are or as escapes, and never a traceback."""

import csv
import json
import os
import subprocess
import sys

import pytest
from rich.text import Text

from perdure.cli.options import stderr, stdout
from perdure.lab.export import to_csv
from perdure.report.table import as_text, table

PERDURE = [sys.executable, "-m", "perdure"]
STRICT = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}


@pytest.mark.parametrize("name", ["m[/new]", "[red]t", "[link=x]", ":cat:"])
def test_names_are_no_markup(name):
    for console in (stdout, stderr):
        with console.capture() as captured:
            console.print(f"record: {name}")
            console.print(table("", [name, "b"], [[name, "1"]]))
            console.print(Text.assemble((name, "bold")))
        assert captured.get().count(name) >= 4


def test_a_store_whose_name_is_markup_and_not_utf8(tmp_path):
    out = os.fsencode(tmp_path) + b"/m[/new]\xff"
    words = [*PERDURE, "ls", "runs", "--out", out]
    done = subprocess.run(words, capture_output=True, env=STRICT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode().endswith("m[/new]\\udcff\n")
    done = subprocess.run([*words, "--json"], capture_output=True, env=STRICT, check=False)
    assert os.fsencode(json.loads(done.stdout)["store"]) == out


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "@SUM(1)", "+1", "-1"])
def test_names_are_no_formulas(name):
    shown = list(csv.reader(as_text([table("", ["task", name], [[name, "-1"]])], "csv").splitlines()))
    assert shown == [["task", f"'{name}"], [f"'{name}", "-1"]]
    exported = list(csv.reader(to_csv([{"task_name": name, "bwt": -1.0}]).decode().splitlines()))
    assert exported == [["task_name", "bwt"], [f"'{name}", "-1.0"]]


def test_names_that_are_not_utf8_are_exported_as_escapes():
    assert to_csv([{"task_name": "a\udcff"}]) == b"task_name\na\\udcff\n"


@pytest.mark.parametrize("when", ["perdure.cli.main", "perdure.cli.study"])
def test_ctrl_c_while_importing(when):
    code = f"""
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == {when!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from perdure.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "perdure: interrupted\n")


def test_ctrl_c_before_a_verb_has_begun():
    code = """
from perdure.cli import main, options
def interrupted(*_, **__):
    raise KeyboardInterrupt
main.app = interrupted
main.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "perdure: interrupted\n")
