"""Bases within a limit of bytes: what is kept, against brute force and against bases without a limit."""

from itertools import product

import pytest
import torch
from torch import Tensor

from perdure.errors import WrongValue
from perdure.memory.budget import extend_within, most_energy, protected, size
from perdure.methods.dfgp import DFGP
from perdure.methods.gpm import GPM
from perdure.methods.rcl import RCL
from perdure.ops.subspace import extend
from perdure.schema import checked

SIZES = {"wide": (12, 60), "tall": (40, 25), "small": (6, 30)}
THRESHOLD = 0.97


def tasks(count: int = 3) -> list[dict[str, Tensor]]:
    """Inputs of three layers: few strong directions, many weak ones, others for each task."""
    torch.manual_seed(0)
    return [
        {name: torch.randn(d, d) * 0.7 ** torch.arange(d) @ torch.randn(d, n) for name, (d, n) in SIZES.items()}
        for _ in range(count)
    ]


def unlimited(seen: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    bases: dict[str, Tensor] = {}
    for found in seen:
        bases = {name: extend(bases.get(name), r, THRESHOLD) for name, r in found.items()}
    return bases


def limited(budget: int, seen: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The bases after each task."""
    after: list[dict[str, Tensor]] = [{}]
    for found in seen:
        after.append(extend_within(budget, after[-1], found, THRESHOLD))
    return after[1:]


def test_what_fits_is_not_touched() -> None:
    whole = unlimited(tasks())
    found = limited(size(whole), tasks())[-1]  # to the byte
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) for name in whole)


def test_half_precision_comes_first_and_nothing_is_left_out() -> None:
    first = tasks(1)
    whole = unlimited(first)
    (found,) = limited(size(whole) // 2, first)
    assert size(found) == size(whole) // 2
    for name, basis in whole.items():
        assert found[name].dtype == torch.float16
        torch.testing.assert_close(found[name].float(), basis, atol=5e-4, rtol=0)
    assert limited(size(whole) - 1, first)[0]["wide"].dtype == torch.float16


@pytest.mark.parametrize("part", [0.02, 0.2, 0.35, 0.5, 0.8])
def test_the_limit_holds_and_old_directions_stay(part: float) -> None:
    budget = int(part * size(unlimited(tasks())))
    before: dict[str, Tensor] = {}
    for bases in limited(budget, tasks()):
        assert size(bases) <= budget
        for name, old in before.items():
            assert torch.equal(bases[name][:, : old.shape[1]], old.to(bases[name]))
        for basis in bases.values():
            gram = basis.double().T @ basis.double()
            torch.testing.assert_close(gram, torch.eye(len(gram)).double(), atol=2e-3, rtol=0)
        before = bases


def test_rounded_bases_are_extended_as_exact_ones_are() -> None:
    first, second = tasks(2)
    exact = unlimited([first])
    rounded = {name: basis.half() for name, basis in exact.items()}
    for name, r in second.items():
        one, other = extend(exact[name], r, THRESHOLD).double(), extend(rounded[name], r, THRESHOLD).double()
        assert one.shape == other.shape
        new = exact[name].shape[1]
        assert (other[:, :new].T @ other[:, new:]).abs().max() < 1e-6
        torch.testing.assert_close(one @ one.T, other @ other.T, atol=1e-2, rtol=0)


def test_rounded_bases_stay_rounded_where_there_is_room_again() -> None:
    first, second = tasks(2)
    rounded = {name: basis.half() for name, basis in unlimited([first]).items()}
    found = extend_within(10**9, rounded, second, THRESHOLD)
    assert {basis.dtype for basis in found.values()} == {torch.float16}


def test_nothing_new_where_the_old_alone_are_too_many() -> None:
    first, second = tasks(2)
    old = unlimited([first])
    found = extend_within(10, old, second, THRESHOLD)
    assert all(torch.equal(found[name], basis.half()) for name, basis in old.items())


def best_by_force(shares: dict[str, Tensor], costs: dict[str, int], room: int) -> float:
    """Most energy that any choice of first directions has in so much room."""
    energies = []
    for counts in product(*(range(len(layer) + 1) for layer in shares.values())):
        if sum(count * costs[name] for name, count in zip(shares, counts, strict=True)) <= room:
            energies.append(_energy(shares, dict(zip(shares, counts, strict=True))))
    return max(energies)


def _energy(shares: dict[str, Tensor], counts: dict[str, int]) -> float:
    return sum(float(layer[: counts[name]].sum()) for name, layer in shares.items())


def test_what_is_kept_has_the_most_energy_for_its_bytes() -> None:
    torch.manual_seed(3)
    shares = {name: torch.rand(4).double().sort(descending=True).values for name in "abc"}
    costs = {"a": 3, "b": 7, "c": 20}
    ranked = sorted(((float(s) / costs[n], costs[n]) for n, layer in shares.items() for s in layer), reverse=True)
    room = 0
    for _, cost in ranked:  # with room for just the best so many, no other choice is better
        room += cost
        counts = most_energy(shares, costs, room)
        assert sum(costs[name] * count for name, count in counts.items()) == room
        assert _energy(shares, counts) == pytest.approx(best_by_force(shares, costs, room))
    even = dict.fromkeys(shares, 5)
    for room in range(0, 62, 3):
        assert _energy(shares, most_energy(shares, even, room)) == pytest.approx(best_by_force(shares, even, room))
    assert most_energy(shares, costs, -1) == {"a": 0, "b": 0, "c": 0}
    assert most_energy({"a": shares["a"], "c": shares["c"] * 100}, costs, 19) == {"a": 4, "c": 0}  # what fits goes in


def test_protected_is_the_share_of_energy_inside() -> None:
    r = torch.diag(torch.tensor([3.0, 2.0, 1.0, 1.0]))  # energies 9, 4, 1, 1 of 15
    assert protected(torch.eye(4)[:, :2], r) == pytest.approx(13 / 15)
    assert protected(torch.eye(4)[:, :0].half(), r) == 0
    assert protected(torch.eye(4)[:, :1], torch.zeros(4, 5)) == 1


@pytest.mark.parametrize("maker", [GPM, DFGP, RCL])
def test_a_budget_may_be_given_in_words(maker: type[GPM]) -> None:
    words = {"64MB": 64_000_000, "512 kb": 512_000, "1.5GB": 1_500_000_000, "2MiB": 2 << 20, "700": 700, 700: 700}
    for text, number in {**words, "none": None}.items():
        found = checked("method", maker, {"budget": text})["budget"]
        assert found == number
        assert type(found) is type(number)
    for text in ("nonsense", "64XB", "-1MB", "0", "MB", "1,5", "", 0.5):
        with pytest.raises(WrongValue, match=r"budget takes a number of bytes \(.*64MB.*\) or none"):
            checked("method", maker, {"budget": text})
