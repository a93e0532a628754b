"""Runs killed outright, a few times each, of one method for each kind of state: benchmarks/kill.py kills all of them,
hundreds of times, and test_resume.py interrupts all of them."""

import importlib.util
import random
import sys
from pathlib import Path

import pytest

found = importlib.util.spec_from_file_location("kill", Path(__file__).parents[2] / "benchmarks" / "kill.py")
assert found is not None
assert found.loader is not None
kill = importlib.util.module_from_spec(found)
sys.modules["kill"] = kill
found.loader.exec_module(kill)


@pytest.mark.parametrize("method", ["finetune", "fsdgpm", "trgp", "rcl"])  # weights alone, images, many matrices, bases
def test_killed_runs_end_as_if_nothing_had_happened(method, tmp_path):
    assert kill.kill_repeatedly(kill.wanted(method, "mlp"), tmp_path, 2, random.Random(method)).kills >= 2
