"""API: layers grow where old tasks leave too little to learn with, and old tasks notice nothing of it."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from networks import Tracking
from torch import Tensor, nn

from perdure.data.benchmarks.synthetic import synthetic
from perdure.methods.api import API
from perdure.methods.gpm import GPM
from perdure.nets.mlp import MLP
from perdure.nets.network import Backbone, Network
from perdure.nets.resnet18 import ResNet18
from perdure.ops.dual_gpm import protected
from perdure.train.evaluate import evaluate
from perdure.train.fit import fit
from perdure.train.plan import Plan
from perdure.types import Lesson, Stream

PLAN = Plan(rate=0.05, epochs=1, batch=16, schedule="linear", keep="last")
GROWING = {"threshold": 0.97, "floor": 0.9}  # high enough that every layer grows for every later task

Fresh = Callable[[], Network]


@pytest.fixture
def stream() -> Stream:
    return synthetic(seed=1, tasks=3)


def learned(method: API, stream: Stream, lessons: int) -> list[Lesson]:
    """The lessons of the stream, some of them learned."""
    found = list(method.lessons(stream))
    for lesson in found[:lessons]:
        fit(method, lesson, PLAN, seed=1)
    return found


def wide(method: API) -> dict[str, Tensor]:
    """Layer → all its columns (out, d)."""
    weights = dict(method.trainable())
    return {layer: method.side_by_side(weights, layer).detach().double().clone() for layer in method.net.weight_names()}


# --- old tasks ------------------------------------------------------------------------------------


def test_answers_to_all_that_is_remembered_stay(fresh_net: Fresh, stream: Stream) -> None:
    method = API(fresh_net(), floor=1.0, threshold=0.99)
    lessons = learned(method, stream, 1)
    kinds = set()
    for lesson in lessons[1:]:
        before, stored = wide(method), {layer: protected(dual) for layer, dual in method.memory.duals().items()}
        fit(method, lesson, PLAN, seed=1)
        after = wide(method)
        for layer, basis in stored.items():
            old = before[layer]
            change = after[layer][:, : old.shape[1]] - old
            assert after[layer].shape[1] > old.shape[1], "every layer must have grown, or the test says less"
            assert (change @ basis.double()).norm() < 1e-5 * (old @ basis.double()).norm()
        kinds |= {dual.kind for dual in method.memory.duals().values()}
    assert kinds == {"remove", "retain"}


def test_a_task_uses_growth_up_to_its_own(fresh_net: Fresh, stream: Stream) -> None:
    method = API(fresh_net(), **GROWING)
    learned(method, stream, 3)
    plain = dict(method.net.named_parameters())
    assert all(torch.equal(weight, plain[name]) for name, weight in method.weights(0).items())
    for layer, name in method.net.weight_names().items():
        for task, growth in enumerate(method.growths(layer), 1):
            more = method.weights(task)[name] - method.weights(task - 1)[name]
            added = torch.einsum("oe...,ce->oc...", method.grown[growth], method.transforms[growth])
            assert torch.allclose(more, added, atol=1e-6)
            assert added.norm() > 1e-3
        assert torch.equal(method.weights()[name], method.weights(2)[name])


def test_growths_are_in_the_order_of_tasks(fresh_net: Fresh) -> None:
    method = API(fresh_net())
    for layer, task in (("fc1", 10), ("fc1", 9), ("fc2", 3)):
        method.grown[layer, task] = torch.ones(1, 1)
    assert method.growths("fc1") == ["fc1/9", "fc1/10"]
    assert method.growths("fc1", 9) == ["fc1/9"]
    assert method.growths("fc1", 8) == []


def test_the_memory_reads_what_the_grown_columns_read(fresh_net: Fresh, stream: Stream) -> None:
    """All columns on the widened inputs give what the effective weight gives on the plain ones."""
    method = API(fresh_net(), **GROWING)
    lessons = learned(method, stream, 3)
    batch = lessons[2].sample(20)
    widened, plain = method.representations(batch), GPM.representations(method, batch)
    columns, weights = wide(method), method.weights(2)
    for layer, name in method.net.weight_names().items():
        assert len(widened[layer]) == method.memory.duals()[layer].basis.shape[0] > len(plain[layer])
        one = columns[layer] @ widened[layer].double()
        assert torch.allclose(one, weights[name].detach().flatten(1).double() @ plain[layer].double(), atol=1e-4)


# --- what learns ----------------------------------------------------------------------------------


def test_old_transforms_and_batch_norm_stay_and_all_columns_learn(fresh_net: Fresh, stream: Stream) -> None:
    method = API(fresh_net(), **GROWING)
    lessons = learned(method, stream, 2)
    before = {name: part.clone() for name, part in method.state_dict().items()}
    fit(method, lessons[2], PLAN, seed=1)
    after = method.state_dict()
    moved = {name for name, part in before.items() if name in after and not torch.equal(part, after[name])}
    assert not [name for name in moved if ".bn" in name or name.startswith("transforms.")]
    assert {name for name in before if name.startswith("grown.")} <= moved
    assert set(method.net.weight_names().values()) <= {name.removeprefix("net.") for name in moved}


def test_new_columns_and_transforms_are_free(fresh_net: Fresh, stream: Stream) -> None:
    method = API(fresh_net(), **GROWING)
    lessons = learned(method, stream, 2)
    method.net.add_head(3)
    method.begin(lessons[2])
    growths = [name for layer in method.net.weight_names() for name in method.growths(layer)]
    newest = [name for name in growths if name.endswith("/2")]
    added = {f"grown.{name}" for name in growths} | {f"transforms.{name}" for name in newest}
    assert set(method.trainable()) == set(dict(method.net.named_parameters())) | added
    torch.manual_seed(0)
    raw = {name: torch.randn_like(part) for name, part in method.trainable().items()}
    found = method.project(raw)
    free = {f"{part}.{name}" for part in ("grown", "transforms") for name in newest}
    assert all(torch.allclose(found[name], raw[name], atol=1e-5) for name in free)
    bound = added - free | set(method.net.weight_names().values())
    assert all(not torch.allclose(found[name], raw[name], atol=1e-2) for name in bound)


def test_a_first_guess_comes_from_the_tasks_own_inputs(fresh_net: Fresh, stream: Stream) -> None:
    method = API(fresh_net(), **GROWING)
    lessons = learned(method, stream, 1)
    method.net.add_head(3)
    method.begin(lessons[1])
    for phi in (phi.detach() for _, phi in method.transforms.items()):
        assert torch.allclose(phi.T @ phi, torch.eye(phi.shape[1]), atol=1e-5)
        assert float(phi[:, 0].abs().sum()) == pytest.approx(abs(float(phi[:, 0].sum())), rel=1e-4)  # norms are ≥ 0


# --- how much a layer grows -----------------------------------------------------------------------


def test_growth_follows_what_is_left_of_the_gradient(fresh_net: Fresh, stream: Stream) -> None:
    method = API(fresh_net(), floor=0.7, growth=20)
    learned(method, stream, 2)
    facts = method.facts()
    assert all(0 <= ratio <= 1 for ratio in facts["retain_ratio"].values())
    for layer, ratio in facts["retain_ratio"].items():
        channels = method.net.backbone.layers()[layer].weight.shape[1]
        wanted = min(-int(-max((0.7 - ratio) * 20, 0) // 1), channels)
        assert facts["grown"][layer] == ([wanted] if wanted else [])
    low = sorted(facts["retain_ratio"], key=facts["retain_ratio"].__getitem__)
    shares = [sum(facts["grown"][layer]) for layer in low if layer != "conv1"]  # whose three channels are a cap
    assert all(one >= other for one, other in pairwise(shares))
    assert method.memory_bytes()["grown"] == method.grown.bytes() + method.transforms.bytes() > 0


def test_new_columns_are_drawn_for_all_inputs_that_there_are(fresh_net: Fresh) -> None:
    method = API(fresh_net())
    layer, shown = method.net.backbone.layers()["fc1"], torch.rand(256, 20)
    for method.now, size in ((1, 144), (2, 176)):
        method.grow("fc1", layer, size, shown)
    for task, inputs in ((1, 256 + 144), (2, 256 + 144 + 176)):
        assert 0.99 < float(method.grown["fc1", task].detach().abs().max()) * inputs**0.5 <= 1 + 1e-6


def test_measuring_takes_no_step(stream: Stream) -> None:
    method = API(Network(Tracking()))
    lessons = learned(method, stream, 1)
    method.net.add_head(3)
    before = {name: part.clone() for name, part in method.net.state_dict().items()}
    method.measure(lessons[1])
    assert all(torch.equal(part, before[name]) for name, part in method.net.state_dict().items())
    assert all(part.grad is None for part in method.parameters())


def test_without_a_floor_it_is_gpm_with_smaller_bases(fresh_net: Fresh, stream: Stream) -> None:
    net = fresh_net().double()
    doubles = replace(stream, tasks=[doubled(task) for task in stream])
    method, twin = API(net, floor=0.0), GPM(fresh_net().double())
    for one in (method, twin):
        for lesson in list(one.lessons(doubles))[:2]:
            fit(one, lesson, PLAN, seed=1)
    assert len(method.grown) == 0
    assert method.memory.sizes() == twin.memory.sizes()
    assert method.memory.bytes() <= twin.memory.bytes()
    assert all(torch.allclose(part, twin.net.get_parameter(name)) for name, part in method.net.named_parameters())


def doubled(task):  # type: ignore[no-untyped-def]
    parts = ("train", "valid", "test")
    return replace(task, **{part: replace(getattr(task, part), x=getattr(task, part).x.double()) for part in parts})


class Grouped(Backbone):
    """A plain, a grouped and a linear layer, the last with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=4, padding=1)
        self.grouped = nn.Conv2d(8, 8, (3, 2), stride=2, groups=4)
        self.linear = nn.Linear(8 * 3 * 4, 10)
        self.width = 10

    def forward(self, x: Tensor, quiet: bool = False) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        x = F.relu(self.grouped(F.relu(self.conv(x))))
        x = F.relu(self.linear(x.flatten(1)))
        return x, x


@pytest.mark.parametrize(
    "backbone", [pytest.param(lambda: ResNet18((3, 32, 32), filters=4), marks=pytest.mark.thorough), Grouped]
)
def test_other_networks_grow_except_in_groups(backbone: Callable[[], Backbone], stream: Stream) -> None:
    torch.manual_seed(0)
    method = API(Network(backbone()), threshold=0.95, floor=1.0)
    learned(method, stream, 3)
    grown = method.facts()["grown"]
    assert all(len(sizes) == (0 if layer == "grouped" else 2) for layer, sizes in grown.items())
    assert all(0 <= evaluate(method, task.test, number).accuracy <= 100 for number, task in enumerate(stream))


def test_several_tasks_at_once_share_their_growth(fresh_net: Fresh, stream: Stream) -> None:
    method = API(fresh_net(), **GROWING)
    first, second, third = method.lessons(stream)
    fit(method, first, PLAN, seed=1)
    fit(method, Lesson(1, second.parts + third.parts), PLAN, seed=1)
    assert all(method.growths(layer) == [f"{layer}/1"] for layer in method.net.weight_names())
    assert all(torch.equal(weight, method.weights(2)[name]) for name, weight in method.weights(1).items())


@pytest.mark.thorough
def test_it_goes_on_from_its_state_bit_for_bit(fresh_net: Fresh, stream: Stream) -> None:
    method, other = API(fresh_net(), **GROWING), API(fresh_net(), **GROWING)
    lessons = learned(method, stream, 2)
    state = method.state_dict()
    other.load_state_dict({name: state[name].contiguous().clone() for name in sorted(state, reverse=True)})
    assert other.facts() == method.facts()
    for one in (method, other):
        fit(one, lessons[2], PLAN, seed=1)
    assert all(torch.equal(part, other.state_dict()[name]) for name, part in method.state_dict().items())


def test_the_released_memory_forgets_what_is_free_where_samples_are_few(stream: Stream) -> None:
    """Sixty images show at most sixty of a hundred directions; the other forty are free, if one looks for them."""
    sizes = {}
    for variant in ("intended", "released"):
        torch.manual_seed(0)
        method = API(Network(MLP((3, 32, 32))), threshold=1.0, samples=60, variant=variant)
        learned(method, stream, 1)
        dual = method.memory.duals()["hidden.1"]
        assert dual.kind == "retain"
        sizes[variant] = dual.basis.shape[1]
    assert sizes["intended"] >= 40
    assert sizes["intended"] - sizes["released"] == 40
