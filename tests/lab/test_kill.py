"""Runs of every method killed outright, a few times each; benchmarks/kill.py does it hundreds of times."""

import importlib.util
import random
import sys
from pathlib import Path

import pytest

from perdure import registry

found = importlib.util.spec_from_file_location("kill", Path(__file__).parents[2] / "benchmarks" / "kill.py")
assert found is not None
assert found.loader is not None
kill = importlib.util.module_from_spec(found)
sys.modules["kill"] = kill
found.loader.exec_module(kill)


@pytest.mark.parametrize("method", list(registry.methods))
def test_killed_runs_end_as_if_nothing_had_happened(method, tmp_path):
    network = None if method in ("owm", "api") else "mlp"  # these two take long over wide inputs
    assert kill.torment(kill.wanted(method, network), tmp_path, 2, random.Random(method)).kills >= 2
