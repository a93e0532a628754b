"""A run killed outright, twice, of a method that holds bases and images: benchmarks/kill.py kills those of all methods,
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


@pytest.mark.thorough  # in processes; test_resume.py has it in one
def test_killed_runs_end_as_if_nothing_had_happened(tmp_path):
    assert kill.kill_repeatedly(kill.wanted("fsdgpm", "mlp"), tmp_path, 2, random.Random(1)).kills >= 2
