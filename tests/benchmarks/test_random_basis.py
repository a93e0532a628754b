"""The control for PAT: as many directions, and others."""

import importlib.util
from pathlib import Path

import pytest
import torch

from perdure.data.benchmarks.synthetic import synthetic
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.train.learn import learn
from perdure.train.plan import Plan

FILE = Path(__file__).parents[2] / "benchmarks" / "random_basis.py"


@pytest.mark.thorough
def test_random_bases_are_as_large_as_the_real_ones_grow_with_them_and_hold_something_else() -> None:
    found = importlib.util.spec_from_file_location("random_basis", FILE)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    stream = synthetic(seed=1, tasks=2, size=8)
    method = module.RandomBasis(Network(MLP(stream.shape, units=(12,), seed=1)))
    plan = Plan(rate=0.05, epochs=1, batch=16)
    learned = learn(method, stream.tasks[:1], plan)
    first = {layer: basis.clone() for layer, basis in method.memory.items()}
    learn(method, stream.tasks[1:], plan, learned=learned)
    assert method.memory.sizes() == method.real.sizes()
    for layer, basis in method.memory.items():
        torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1]), rtol=0, atol=1e-5)
        kept = basis @ (basis.T @ first[layer])
        torch.testing.assert_close(kept, first[layer], rtol=0, atol=1e-5)
        assert basis.shape[1] == len(basis) or (basis.T @ method.real[layer]).norm() < 0.9 * basis.shape[1] ** 0.5
