"""The controls for PAT: as many directions, and others; an attack that costs no pass of its own."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from perdure.data.benchmarks.synthetic import synthetic
from perdure.methods.gpm import GPM
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.train.learn import learn
from perdure.train.plan import Plan
from perdure.types import Batch, PixelScale


def load(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "benchmarks" / f"{name}.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.thorough
def test_random_bases_are_as_large_as_the_real_ones_grow_with_them_and_hold_something_else() -> None:
    stream = synthetic(seed=1, tasks=2, size=8)
    method = load("random_basis").RandomBasis(Network(MLP(stream.shape, units=(12,), seed=1)))
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


def test_reused_perturbations_climb_within_their_ball_and_the_gradient_is_gpms_where_they_are() -> None:
    torch.manual_seed(1)
    strength, shape = 0.1, (3, 8, 8)
    method, plain = (make(Network(MLP(shape, units=(12,), seed=1))) for make in (load("free_reuse").FreeReuse, GPM))
    method.attack = strength
    for one in (method, plain):
        one.net.add_head(3)
    plain.load_state_dict(method.state_dict(), strict=False)
    method.train()
    scale = PixelScale(torch.full((1, 3, 1, 1), 0.4), torch.full((1, 3, 1, 1), 0.25))
    pixels = torch.rand(6, *shape)
    batch = Batch(scale.normalize(pixels), torch.arange(6) % 3, 0, pixels=scale)
    losses, before = [], None
    for _ in range(4):
        given = method.attacked(batch)
        assert before is None or torch.allclose(given.x, scale.normalize(before), atol=1e-5)
        losses.append(plain.loss(given).item())
        theirs = plain.gradient(given)
        ours = method.gradient(given)
        assert ours.keys() == theirs.keys()
        for name, found in ours.items():
            torch.testing.assert_close(found, theirs[name])
        before = torch.stack(list(method.moved.values()))
        assert float((before - pixels).abs().max()) <= strength + 1e-5
        assert float(before.min()) >= 0
        assert float(before.max()) <= 1
    assert losses[1] > losses[0] + 0.05
    assert min(losses[1:]) > losses[0]
