"""The dual memory protects what GPM's would, whichever of the two bases it holds."""

from itertools import pairwise, product

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.memory.gradient_memory import DualMemory
from perdure.ops.dual_gpm import (
    Dual,
    complement,
    first_dual,
    project_dual,
    protected,
    shrink,
    smaller,
    update_dual,
    widen,
)
from perdure.ops.gradients import project as project_all
from perdure.ops.subspace import extend, project


def projector(basis: Tensor) -> Tensor:
    return basis @ basis.T


def orthonormal(d: int, k: int) -> Tensor:
    return torch.linalg.qr(torch.randn(d, k, dtype=torch.float64)).Q


def decaying(d: int, n: int, rate: float) -> Tensor:
    """A representation whose energy lies mostly in few directions, other ones each time."""
    return (torch.randn(d, d, dtype=torch.float64) * rate ** torch.arange(d)) @ torch.randn(d, n, dtype=torch.float64)


def test_it_is_gpm_with_fewer_columns_while_layers_grow() -> None:
    """The slow twin: GPM's basis, with zero rows for new inputs. Sizes vary so that every change of kind is met."""
    changes = set()
    for seed in range(8):
        torch.manual_seed(seed)
        memory, twin, d, kinds = DualMemory(), None, 10 + seed, []
        for task, grown in enumerate((0, 0, seed % 4, 0, 30, 0)):
            d += grown
            memory.widen("layer", grown)
            twin = None if twin is None else F.pad(twin, (0, 0, 0, grown))
            shown = decaying(d, 3 * d, 0.55 + 0.05 * (seed % 5))
            memory.extend({"layer": shown}, 0.9 + 0.01 * task)
            twin = extend(twin, shown, 0.9 + 0.01 * task)
            dual = memory.duals()["layer"]
            size = dual.basis.shape[1]
            assert size <= d / 2
            assert torch.allclose(dual.basis.T @ dual.basis, torch.eye(size).double(), atol=1e-9)
            assert torch.allclose(projector(protected(dual)), projector(twin), atol=1e-8)
            assert memory.sizes() == {"layer": (twin.shape[1], d)}
            gradient = torch.randn(4, d, dtype=torch.float64)
            found = project_all({"w": gradient, "head": gradient}, {"w": memory.projections()["layer"]})
            assert torch.allclose(found["w"], project(gradient, twin), atol=1e-8)
            assert found["head"] is gradient
            kinds.append(dual.kind)
        changes |= set(pairwise(kinds))
    assert changes == set(product(("remove", "retain"), repeat=2))


def test_more_than_half_free_again_turns_retain_into_remove() -> None:
    """Only growth makes a "retain" basis larger."""
    torch.manual_seed(0)
    dual = Dual("retain", orthonormal(6, 3))
    grown = widen(dual, 4)
    assert grown.basis.shape == (10, 7)
    turned = smaller(grown)
    assert turned.kind == "remove"
    assert turned.basis.shape == (10, 3)
    assert torch.allclose(projector(turned.basis) + projector(grown.basis), torch.eye(10).double())
    assert torch.allclose(projector(turned.basis)[:6, :6], projector(protected(dual)))
    assert not turned.basis[6:].abs().max() > 1e-12  # no old task uses the new inputs
    assert update_dual(grown, torch.zeros(10, 2, dtype=torch.float64), 0.9).kind == "remove"


def test_exactly_half_is_left_as_it_is() -> None:
    for kind in ("remove", "retain"):
        dual = Dual(kind, orthonormal(6, 3))
        assert smaller(dual) is dual


def test_the_thin_first_basis_misses_what_no_sample_showed() -> None:
    torch.manual_seed(0)
    shown = orthonormal(12, 8) @ torch.diag(torch.linspace(2, 1, 8)).double() @ orthonormal(9, 8).T
    used = extend(None, shown, 0.99)
    assert used.shape[1] == 7  # of the 8 that occur: more than half, and less than all
    full, thin = first_dual(shown, 0.99), first_dual(shown, 0.99, thin=True)
    assert (full.kind, full.basis.shape[1]) == ("retain", 5)
    assert (thin.kind, thin.basis.shape[1]) == ("retain", 2)  # 9 samples show at most 9 directions
    assert torch.allclose(projector(protected(full)), projector(used))
    assert torch.allclose(projector(full.basis) @ thin.basis, thin.basis)  # a part of what is free
    memory = DualMemory(thin=True)
    memory.extend({"layer": shown}, 0.99)
    assert memory["retain.layer"].shape == (12, 2)


def test_first_bases_up_to_half_are_those_of_gpm() -> None:
    shown = torch.eye(8, dtype=torch.float64)
    for threshold, kind, size in ((0.45, "remove", 3), (0.55, "retain", 4), (0.8, "retain", 2)):
        dual = first_dual(shown, threshold)
        assert (dual.kind, dual.basis.shape[1]) == (kind, size)


def test_retain_shrinks_while_enough_energy_is_left() -> None:
    """Eight directions of equal energy: one is taken whenever what remains is at least 1 − ε, tested before."""
    even = torch.eye(8, dtype=torch.float64)
    free = even[:, :4]  # half of the energy
    for threshold, left in ((0.4, 4), (0.5, 3), (0.55, 3), (0.7, 2), (0.75, 1), (0.8, 1), (0.99, 0), (1.0, 0)):
        assert shrink(free, even, threshold).shape[1] == left, threshold
    assert shrink(free, torch.zeros(8, 3).double(), 0.9) is free
    assert shrink(free, even[:, 4:], 1.0).shape[1] == 4  # nothing is taken that is not there


def test_nothing_free_means_nothing_moves() -> None:
    gradient = torch.randn(3, 2, 2, 2)
    assert not project_dual(gradient, Dual("retain", torch.empty(8, 0))).any()
    assert torch.equal(project_dual(gradient, Dual("remove", torch.empty(8, 0))), gradient)
    assert torch.equal(complement(torch.empty(3, 0)), torch.eye(3))
    assert complement(torch.eye(3)).shape == (3, 0)


def test_new_inputs_are_free_with_either_kind() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(3, 10, dtype=torch.float64)
    for kind in ("remove", "retain"):
        dual = Dual(kind, orthonormal(6, 2))
        found = project_dual(gradient, widen(dual, 4))
        assert torch.allclose(found[:, :6], project_dual(gradient[:, :6], dual))
        assert torch.allclose(found[:, 6:], gradient[:, 6:])


def test_it_comes_back_from_its_state() -> None:
    torch.manual_seed(0)
    memory, again = DualMemory(), DualMemory()
    memory.put("s1b1.conv1", Dual("retain", orthonormal(6, 2)))
    memory.put("fc", Dual("remove", orthonormal(6, 2)))
    memory.put("fc", Dual("retain", orthonormal(6, 3)))
    assert list(memory) == ["retain.s1b1.conv1", "retain.fc"]
    again.load_state_dict(memory.state_dict())
    assert again.duals().keys() == memory.duals().keys() == {"s1b1.conv1", "fc"}
    assert torch.equal(again.duals()["fc"].basis, memory.duals()["fc"].basis)
    assert again.dual("nothing") is None
