"""Old tasks are kept: the response of every projected layer to what old tasks showed it does not change."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from networks import Tracking

from perdure.data.benchmarks.synthetic import synthetic
from perdure.lab.checkpoint import load, save
from perdure.methods.api import API
from perdure.methods.dfgp import DFGP
from perdure.methods.fsdgpm import FSDGPM
from perdure.methods.gpm import GPM
from perdure.methods.rcl import RCL
from perdure.methods.trgp import TRGP
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.nets.resnet18 import ResNet18
from perdure.ops.dual_gpm import protected as protected_directions
from perdure.train.fit import fit
from perdure.train.plan import Plan
from perdure.train.state import Learned
from perdure.types import Batch, Lesson, Stream

PLAN = Plan(rate=0.05, epochs=2, batch=32, schedule="linear", keep="last")


def worst_change(method: GPM, stream: Stream) -> float:
    """Largest ‖ΔW m‖/‖W m‖ over layers, m the directions stored after task 1, ΔW what task 2 did to the weights."""
    first, second = list(method.lessons(stream))[:2]
    fit(method, first, PLAN, seed=1)
    names = method.net.weight_names()
    stored = {layer: method.memory[layer].double().clone() for layer in names}
    before = {layer: method.net.get_parameter(name).detach().double().flatten(1) for layer, name in names.items()}
    fit(method, second, PLAN, seed=1)
    after = {layer: method.net.get_parameter(name).detach().double().flatten(1) for layer, name in names.items()}
    moved = {layer: float((after[layer] - before[layer]).norm()) for layer in names}
    assert min(moved.values()) > 1e-4, "task 2 must have moved every layer, or the test says nothing"
    return max(
        float(((after[layer] - before[layer]) @ basis).norm() / (before[layer] @ basis).norm())
        for layer, basis in stored.items()
    )


@pytest.mark.thorough  # test_projected_update.py has it with other optimizers
@pytest.mark.parametrize("maker", [GPM, DFGP, RCL])
def test_responses_to_stored_directions_stay_and_change_without_projection(
    maker: type[GPM], fresh_net: Callable[[], Network], stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"phi_init": 0.0} if maker is RCL else {}
    assert worst_change(maker(fresh_net(), threshold=0.95, **values), stream) < 1e-5
    monkeypatch.setattr(maker, "projections", lambda _self: {})
    assert worst_change(maker(fresh_net(), threshold=0.95, **values), stream) > 1e-2


@pytest.mark.parametrize("backbone", [partial(ResNet18, filters=8), MLP])
def test_it_holds_on_other_networks(
    backbone: Callable[[tuple[int, int, int]], torch.nn.Module], stream: Stream
) -> None:
    torch.manual_seed(0)
    assert worst_change(GPM(Network(backbone((3, 32, 32))), threshold=0.9), stream) < 1e-5


def test_batch_norm_moves_in_the_first_task_only(fresh_net: Callable[[], Network], stream: Stream) -> None:
    method = GPM(fresh_net())
    first, second = method.lessons(stream)
    norms = {name: p for name, p in method.net.named_parameters() if ".bn" in name}
    start = {name: p.detach().clone() for name, p in norms.items()}
    fit(method, first, PLAN, seed=1)
    learned = {name: p.detach().clone() for name, p in norms.items()}
    assert any(not torch.equal(start[name], learned[name]) for name in norms)
    fit(method, second, PLAN, seed=1)
    assert all(torch.equal(learned[name], p) for name, p in norms.items())


def test_threshold_grows_with_the_tasks_and_stops_at_one(fresh_net: Callable[[], Network], stream: Stream) -> None:
    method = GPM(fresh_net(), threshold=0.9, threshold_step=0.5)
    for lesson in method.lessons(stream):
        fit(method, lesson, PLAN, seed=1)
    inputs = method.representations(next(iter(method.lessons(stream))).sample(50))
    for name, (held, there) in method.memory.sizes().items():
        rank = int(torch.linalg.matrix_rank(inputs[name].double()))
        assert held <= there
        assert held >= 0.5 * min(rank, there)  # ε = 1 on the second task: nearly every direction is taken


@pytest.mark.parametrize("maker", [GPM, DFGP, RCL, TRGP, API, FSDGPM])
def test_the_threshold_gains_its_step_with_each_task_from_the_second_on(maker: type[GPM]) -> None:
    method = maker(Network(MLP((3, 32, 32), units=(4,))), threshold=0.5, threshold_step=0.2)
    found = [method.threshold_after(Lesson(task, ())) for task in range(4)]
    assert found == pytest.approx([0.5, 0.7, 0.9, 1.0])


@pytest.mark.parametrize("maker", [GPM, DFGP, RCL, TRGP, API, FSDGPM])
def test_a_later_task_is_protected_up_to_its_own_threshold(maker: type[GPM], stream: Stream) -> None:
    method = maker(Network(MLP((3, 32, 32), units=(30,))), threshold=0.3, threshold_step=0.6)
    first, second = method.lessons(stream)
    for lesson in (first, second):
        method.net.add_head(3)
        method.end(lesson)
    for layer, r in method.representations(second.sample(90)).items():
        if maker is API:
            held = protected_directions(method.memory.duals()[layer])
        else:
            held = method.spaces[1, layer] if isinstance(method, TRGP) else method.memory[layer]
        assert 0.9 - 1e-6 < (held.T @ r).square().sum() / r.square().sum() < 0.99


@pytest.mark.parametrize("variant", ["released", "paper"])
def test_what_is_remembered_is_added_to(variant: str, stream: Stream) -> None:
    method = GPM(Network(MLP((3, 32, 32), units=(30,))), variant=variant)
    method.net.add_head(3), method.net.add_head(3)
    first, second = method.lessons(stream)
    method.end(first)
    before = {layer: basis.clone() for layer, basis in method.memory.items()}
    method.end(second)
    for layer, basis in before.items():
        assert torch.equal(method.memory[layer][:, : basis.shape[1]], basis)
        assert method.memory[layer].shape[1] > basis.shape[1] > 0


def test_paper_variant_reaches_the_threshold_on_the_first_task(
    fresh_net: Callable[[], Network], stream: Stream
) -> None:
    sizes = {}
    for variant in ("released", "paper"):
        method = GPM(fresh_net(), threshold=0.9, variant=variant)
        fit(method, next(iter(method.lessons(stream))), PLAN, seed=1)
        sizes[variant] = method.memory.sizes()
    assert {name: held + 1 for name, (held, _) in sizes["released"].items()} == {
        name: held for name, (held, _) in sizes["paper"].items()
    }


def rcl_gradient(net: Network, batch: Batch, **values: object) -> dict[str, torch.Tensor]:
    return seeded_gradient(RCL(net, phi_init=0.0, **values), batch)


def seeded_gradient(method: GPM, batch: Batch) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    method.net.add_head(3)
    method.train()
    return method.gradient(batch)


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_every_value_of_rcl_changes_its_gradient(fresh_net: Callable[[], Network], stream: Stream) -> None:
    batch = next(iter(GPM(fresh_net()).lessons(stream))).sample(12)
    plain = rcl_gradient(fresh_net(), batch)
    assert difference(plain, rcl_gradient(fresh_net(), batch)) == 0
    for values in (
        {"mix_weight": 0.5},
        {"ua_weight": 0.0},
        {"ua_in": "descent"},
        {"ua_in": "ascent"},
        {"radius": 0.2},
        {"concentration": 1.0},
        {"variant": "paper"},
    ):
        assert difference(plain, rcl_gradient(fresh_net(), batch, **values)) > 1e-3, values
    # without dropout both forwards are the same
    assert difference(plain, rcl_gradient(fresh_net(), batch, features="shared")) < 1e-4


def test_dfgp_is_rcl_without_its_additions(stream: Stream) -> None:
    """To the bit, dropout included: no forward more."""
    batch = next(iter(GPM(Network(Tracking())).lessons(stream))).sample(12)
    dfgp = seeded_gradient(DFGP(Network(Tracking())), batch)
    assert difference(dfgp, rcl_gradient(Network(Tracking()), batch, ua_weight=0.0)) == 0


def test_noise_stage_rewrites_small_layers_unless_capped(fresh_net: Callable[[], Network], stream: Stream) -> None:
    lesson = next(iter(GPM(fresh_net()).lessons(stream)))
    torch.manual_seed(0)
    free, capped = RCL(fresh_net()), RCL(fresh_net(), phi_cap=0.05)
    free.begin(lesson)
    capped.begin(lesson)
    assert free.facts()["phi_ratio"]["conv1"] > 1
    assert capped.facts()["phi_ratio"] == pytest.approx(dict.fromkeys(capped.net.backbone.layers(), 0.05), rel=1e-3)


def moved_by_noise(method: RCL, lesson: Lesson) -> set[str]:
    before = {name: weight.detach().clone() for name, weight in method.net.named_parameters()}
    method.begin(lesson)
    return {name for name, weight in method.net.named_parameters() if not torch.equal(weight, before[name])}


def test_noise_comes_before_the_first_task_alone(fresh_net: Callable[[], Network], stream: Stream) -> None:
    method = RCL(fresh_net(), phi_steps=5)
    first, second = method.lessons(stream)
    assert moved_by_noise(method, first) == set(method.net.weight_names().values())
    assert moved_by_noise(method, second) == set()


@pytest.mark.parametrize("variant", ["released", "paper"])
def test_noise_is_trained_as_published(stream: Stream, variant: str) -> None:
    """θ̃ = θ + φ∘ε, and φ follows the gradient of −2 ‖θ/‖θ‖ − θ̃/‖θ̃‖‖². Released: the θ̃ before the last step."""
    method = RCL(Network(MLP((1, 3, 3), units=(4, 3))), variant=variant, phi_init=0.5, phi_steps=3, phi_rate=0.7)
    before = [layer.weight.detach().clone() for layer in method.net.backbone.layers().values()]
    torch.manual_seed(4)
    method.begin(next(iter(method.lessons(stream))))
    torch.manual_seed(4)
    for weight, layer in zip(before, method.net.backbone.layers().values(), strict=True):
        noise, phi = torch.randn_like(weight), torch.empty_like(weight).uniform_(-0.5, 0.5)
        for _ in range(3):
            moved = weight + phi.requires_grad_() * noise
            loss = -2 * (weight / weight.norm() - moved / moved.norm()).square().sum()
            phi = (phi - 0.7 * torch.autograd.grad(loss, phi)[0]).detach()
        expected = moved if variant == "released" else weight + phi * noise
        torch.testing.assert_close(layer.weight.detach(), expected.detach())


def test_noise_is_for_the_convolutions_inside_blocks(stream: Stream) -> None:
    """As published: neither for the stem nor for shortcuts."""
    method = RCL(Network(ResNet18((3, 32, 32), filters=8)), phi_steps=2)
    moved = moved_by_noise(method, next(iter(method.lessons(stream))))
    blocks = [f"s{stage}b{block}" for stage in (1, 2, 3, 4) for block in (1, 2)]
    assert moved == {f"backbone.{block}.conv{at}.weight" for block in blocks for at in (1, 2)}
    assert len(method.facts()["phi_ratio"]) == 16


# ── with a budget of bytes ──────────────────────────────────────────────────────────────────────────────────


BRIEF = Plan(rate=0.05, epochs=1, batch=32, schedule="linear", keep="last")


def taught(method: GPM, stream: Stream) -> GPM:
    for lesson in method.lessons(stream):
        fit(method, lesson, BRIEF, seed=1)
    return method


@pytest.mark.parametrize("maker", [GPM, DFGP, RCL])
def test_a_budget_that_suffices_changes_no_bit(
    maker: type[GPM], fresh_net: Callable[[], Network], stream: Stream
) -> None:
    values = {"phi_init": 0.0} if maker is RCL else {}
    free, ample = (taught(maker(fresh_net(), budget=b, **values), stream) for b in (None, 10**9))
    assert free.state_dict().keys() == ample.state_dict().keys()
    assert all(torch.equal(tensor, ample.state_dict()[name]) for name, tensor in free.state_dict().items())
    assert "budget" not in free.facts()
    told = ample.facts()["budget"]
    assert (told["bytes"], told["held"], told["precision"]) == (10**9, free.memory.bytes(), "float32")
    assert told["protected"].keys() == ample.memory.sizes().keys()
    assert min(told["protected"].values()) >= told["wanted"] - 1e-3


def test_a_tight_budget_holds_over_three_tasks_and_says_what_it_costs(fresh_net: Callable[[], Network]) -> None:
    method = GPM(fresh_net(), budget=60_000)
    sizes: dict[str, tuple[int, int]] = {}
    for lesson in method.lessons(synthetic(seed=1, tasks=3)):
        fit(method, lesson, BRIEF, seed=1)
        assert method.memory.bytes() <= 60_000
        assert all(method.memory.sizes()[name][0] >= held for name, (held, _) in sizes.items())
        sizes = method.memory.sizes()
    told = method.facts()["budget"]
    assert (told["precision"], told["wanted"]) == ("float16", method.threshold + 2 * method.threshold_step)
    assert told["held"] == method.memory.bytes() > 0.98 * 60_000
    assert 0 < min(told["protected"].values()) < told["wanted"] - 0.01


def test_rounded_directions_still_protect(fresh_net: Callable[[], Network], stream: Stream) -> None:
    first = GPM(fresh_net(), threshold=0.9)
    fit(first, next(iter(first.lessons(stream))), PLAN, seed=1)
    half = first.memory.bytes() // 2
    method = GPM(fresh_net(), threshold=0.9, budget=half)
    assert worst_change(method, stream) < 1e-2
    assert method.facts()["budget"]["precision"] == "float16"
    assert method.memory.bytes() == half  # all of the first task in half the bytes, and no room for the second
    assert method.memory.sizes() == first.memory.sizes()


@pytest.mark.parametrize("maker", [GPM, RCL])
def test_what_a_budget_left_survives_saving(
    maker: type[GPM], fresh_net: Callable[[], Network], stream: Stream, tmp_path: Path
) -> None:
    values = {"phi_steps": 5} if maker is RCL else {}
    method = taught(maker(fresh_net(), budget=50_000, **values), stream)
    matrix = [[50.0] * (row + 1) for row in range(len(method.net.heads))]
    save(tmp_path / "model", "digest", method, Learned(matrix))
    again = maker(fresh_net(), budget=50_000, **values)
    for _ in method.net.heads:
        again.net.add_head(3)
    load(tmp_path / "model", BRIEF).restore(again)
    assert again.facts() == method.facts() != maker(fresh_net(), budget=50_000, **values).facts()
    assert all(basis.dtype == torch.float16 for _, basis in again.memory.items())
    assert all(torch.equal(basis, again.memory[name]) for name, basis in method.memory.items())
