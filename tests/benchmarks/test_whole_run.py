"""A whole run by the textbook: the rule of the papers' code, and rows as the package's."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from perdure import benchmark

FOLDER = Path(__file__).parents[2] / "benchmarks"
SIZES = {"filters": (4, 6, 8), "units": (12, 10)}


@pytest.fixture
def whole_run(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    found = importlib.util.spec_from_file_location("whole_run", FOLDER / "whole_run.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    yield module
    sys.modules.pop("textbook", None)


def test_both_ways_give_a_matrix_and_bases(whole_run, monkeypatch):
    monkeypatch.setattr(whole_run, "PLAN", replace(whole_run.PLAN, epochs=5, rate=0.1, batch=32))
    tasks = list(benchmark("synthetic", tasks=2))
    for way in (whole_run.by_package, whole_run.by_textbook):
        matrix, sizes = way(tasks, 1, filters=(16, 16, 16), units=(64, 64), threshold=0.9)
        assert [len(row) for row in matrix] == [1, 2]
        assert all(50 < accuracy <= 100 for row in matrix for accuracy in row)
        assert len(sizes) == 5
        assert all(0 < size <= most for size, most in zip(sizes, (48, 144, 64, 64, 64), strict=True))


def test_the_rate_is_halved_when_losses_stay_and_the_best_weights_are_kept(whole_run, monkeypatch):
    losses, rates, steps = iter([3.0, 2.0, 2.5, 2.5, 2.5, 2.5]), [], []
    monkeypatch.setattr(whole_run, "PLAN", replace(whole_run.PLAN, patience=2, rate=0.4, floor=0.15))
    monkeypatch.setattr(whole_run.textbook, "evaluate", lambda *_: (next(losses), 0.0))

    def step(net, optimizer, *_):
        rates.append(optimizer.param_groups[0]["lr"])
        steps.append(None)
        with torch.no_grad():
            net.conv1.weight.fill_(len(steps))

    monkeypatch.setattr(whole_run.textbook, "gpm_step", step)
    net = whole_run.textbook.AlexNet(1, 2, **SIZES)
    images = torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.int64)
    whole_run.learn_task(net, None, images, images, 0)
    assert rates == [0.4] * 4 + [0.2] * 2
    assert net.conv1.weight.unique().tolist() == [2.0]
