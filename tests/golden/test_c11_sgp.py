"""c11: SGP's bases and the importances of their directions, over four tasks."""

import numpy as np
import pytest
import torch
from torch import Tensor

from perdure.methods.sgp import SGP
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.ops.soft_projection import importances, part_outside

from .golden import CLEARLY, PROJECTOR, RECIPE, Case, stream, tensor

SIZES = RECIPE["c11_sgp_update"]
LAYERS = [str(number) for number in range(1, len(SIZES["layers"]) + 1)]


def representations(task: int) -> dict[str, Tensor]:
    rs, found = stream(SIZES["seed_offset"] + task), {}
    for name, (rows, count) in zip(LAYERS, SIZES["layers"], strict=True):
        spread = rs.standard_normal((rows, rows)) * SIZES["decay"] ** np.arange(rows)
        found[name] = tensor(spread @ rs.standard_normal((rows, count)))
    return found


def remembered(case: Case, task: int) -> SGP:
    """A method after so many tasks; thresholds differ from layer to layer."""
    method = SGP(Network(MLP((1, 2, 2))).double(), scale=float(case["scale"]))
    for number in range(1, task + 1):
        thresholds = case["thresholds"][number - 1]
        for (name, found), threshold in zip(representations(number).items(), thresholds, strict=True):
            method.remember({name: found}, float(threshold))
    return method


def test_bases_and_importances() -> None:
    case = Case("c11_sgp_update")
    names = {"thresholds", "scale"}
    for task in range(1, len(case["thresholds"]) + 1):
        method = remembered(case, task)
        assert [method.memory[name].shape[1] for name in LAYERS] == case[f"task{task}/k"].tolist()
        for name in LAYERS:
            basis, found = method.memory[name], method.importance[name]
            case.check(f"task{task}/projector{name}", basis @ basis.T, PROJECTOR)
            case.check(f"task{task}/scaled{name}", basis @ found.diag() @ basis.T, PROJECTOR)
            case.check(f"task{task}/importance{name}", found.sort().values, PROJECTOR)
            names |= {f"task{task}/{what}{name}" for what in ("projector", "scaled", "importance")}
        names.add(f"task{task}/k")
    assert case.names("") == names


def test_a_step_is_scaled_direction_by_direction() -> None:
    case = Case("c11_sgp_update")
    method = remembered(case, 4)
    for name in LAYERS:
        gradient = torch.randn(3, len(method.memory[name]), dtype=torch.float64)
        left = part_outside(gradient, method.memory[name], method.importance[name])
        scaled = tensor(case[f"task4/scaled{name}"])
        torch.testing.assert_close(left, gradient - gradient @ scaled)


def test_wrong_rules_are_told_apart() -> None:
    """Importances that forget what was before, and another scale."""
    case, found = Case("c11_sgp_update"), representations(2)
    method = remembered(case, 2)
    misses = []
    for name in LAYERS:
        basis, before = method.memory[name], remembered(case, 1).importance[name]
        for scale, old in ((float(case["scale"]), None), (1.1 * float(case["scale"]), before)):
            wrong = importances(basis, found[name], scale, old)
            misses.append(case.miss(f"task2/scaled{name}", basis @ wrong.diag() @ basis.T, PROJECTOR))
    assert np.median(misses) > CLEARLY


def test_nothing_seen_adds_nothing() -> None:
    basis, before = torch.eye(3)[:, :2], torch.tensor([0.5, 0.25])
    assert importances(basis, torch.zeros(3, 4), 10.0, before).tolist() == [0.5, 0.25]
    assert importances(basis[:, :0], torch.ones(3, 4), 10.0).tolist() == []
    assert importances(basis, torch.tensor([[2.0], [1.0], [0.0]]), 10.0).tolist() == pytest.approx([1.0, 11 / 12])
