"""Runs killed outright, a few times each; benchmarks/kill.py does it hundreds of times."""

import importlib.util
import random
import time
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("kill", Path(__file__).parents[2] / "benchmarks" / "kill.py")
assert spec is not None
assert spec.loader is not None
kill = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kill)


@pytest.mark.parametrize("method", ["rcl", "trgp"])
def test_killed_runs_end_as_if_nothing_had_happened(method, tmp_path):
    running = kill.start(method, tmp_path / "alone", every=1e9)
    began = time.monotonic()
    assert running.wait() == 0
    running.stdout.close()
    length = 0.5 * (time.monotonic() - began)
    hits, _ = kill.torment(method, tmp_path / "killed", 3, length, random.Random(method))
    assert hits >= 1
    assert kill.outcome(tmp_path / "alone") == kill.outcome(tmp_path / "killed")
