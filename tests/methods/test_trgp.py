"""TRGP: related tasks are used again by scales of one's own, and nothing that old tasks use moves."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perdure.data.benchmarks.synthetic import synthetic
from perdure.methods.gpm import GPM
from perdure.methods.trgp import TRGP
from perdure.nets.mlp import MLP
from perdure.nets.network import Backbone, Network
from perdure.nets.resnet18 import ResNet18
from perdure.train.evaluate import evaluate
from perdure.train.fit import fit
from perdure.train.plan import Plan
from perdure.types import Lesson, Stream

PLAN = Plan(rate=0.05, epochs=2, batch=16, schedule="linear", keep="last")
LEANING = {"threshold": 0.9, "threshold_step": 0.0, "trust": 0.1}  # low enough that every layer leans on something

Fresh = Callable[[], Network]


@pytest.fixture
def stream() -> Stream:
    return synthetic(seed=1, tasks=3)


def learned(method: TRGP, stream: Stream, lessons: int) -> list[Lesson]:
    """The lessons of the stream, some of them learned."""
    found = list(method.lessons(stream))
    for lesson in found[:lessons]:
        fit(method, lesson, PLAN, seed=1)
    return found


def effective(method: TRGP, task: int) -> dict[str, Tensor]:
    """Layer → the task's weights as a matrix (out, d)."""
    weights = method.weights(task)
    return {
        layer: weights[name].detach().double().flatten(1).clone() for layer, name in method.net.weight_names().items()
    }


def test_the_first_lesson_is_gpms(fresh_net: Fresh, stream: Stream) -> None:
    one, other = TRGP(fresh_net(), **LEANING), GPM(fresh_net(), threshold=0.9, threshold_step=0.0)
    for method in (one, other):
        fit(method, next(iter(method.lessons(stream))), PLAN, seed=1)
    assert all(torch.equal(one.memory[layer], basis) for layer, basis in other.memory.items())
    assert all(torch.equal(one.spaces[f"0/{layer}"], basis) for layer, basis in other.memory.items())
    assert all(torch.equal(weight, other.weights(0)[name]) for name, weight in one.weights(0).items())
    assert one.facts()["related"] == {}


def test_old_tasks_keep_their_answers_to_all_that_is_remembered(fresh_net: Fresh, stream: Stream) -> None:
    method = TRGP(fresh_net(), **LEANING)
    lessons = learned(method, stream, 2)
    assert method.facts()["related"]["1"].keys() == method.net.backbone.layers().keys()
    stored = {layer: basis.double().clone() for layer, basis in method.memory.items()}
    before = [effective(method, task) for task in (0, 1)]
    fit(method, lessons[2], PLAN, seed=1)
    for task, old in enumerate(before):
        new = effective(method, task)
        for layer, basis in stored.items():
            change = new[layer] - old[layer]
            assert change.norm() > 1e-4, "lesson 3 must have moved every layer, or the test says nothing"
            assert (change @ basis).norm() / (old[layer] @ basis).norm() < 1e-5


def test_the_released_memory_leaves_the_strongest_new_direction_open(fresh_net: Fresh, stream: Stream) -> None:
    """A task's own space lies in the memory, but for one direction of each layer where the code has its slip."""
    for variant, open_directions in (("intended", 0), ("released", 1)):
        method = TRGP(fresh_net(), **LEANING, variant=variant)
        learned(method, stream, 2)
        for layer, memory in method.memory.items():
            own = method.spaces[f"1/{layer}"].double()
            left = own - memory.double() @ (memory.double().T @ own)
            assert left.square().sum() == pytest.approx(open_directions, abs=1e-4), (variant, layer)


@pytest.mark.parametrize("moves", [False, True])
def test_batch_norm_after_the_first_lesson(fresh_net: Fresh, stream: Stream, moves: bool) -> None:
    method = TRGP(fresh_net(), **LEANING, learn_norms=moves)
    lessons = learned(method, stream, 1)
    before = {name: p.detach().clone() for name, p in method.net.named_parameters() if ".bn" in name}
    fit(method, lessons[1], PLAN, seed=1)
    assert any(not torch.equal(old, method.net.get_parameter(name)) for name, old in before.items()) == moves


@pytest.mark.parametrize(("variant", "scaled"), [("intended", True), ("released", False)])
def test_inputs_are_remembered_as_the_tasks_own_weights_make_them(
    fresh_net: Fresh, stream: Stream, monkeypatch: pytest.MonkeyPatch, variant: str, scaled: bool
) -> None:
    method = TRGP(fresh_net(), **LEANING, variant=variant)
    lessons = learned(method, stream, 1)
    used = []

    def spy(batch: object) -> dict[str, Tensor]:
        used.append(effective(method, 1))
        return GPM.representations(method, batch)

    monkeypatch.setattr(method, "representations", spy)
    fit(method, lessons[1], PLAN, seed=1)
    own = effective(method, 1)
    plain = {name: method.net.get_parameter(f"backbone.{name}.weight").double().flatten(1) for name in own}
    expected, other = (own, plain) if scaled else (plain, own)
    assert all(torch.equal(used[0][layer], expected[layer]) for layer in own)
    assert not any(torch.equal(used[0][layer], other[layer]) for layer in own)


def test_scales_start_as_identities_learn_and_are_frozen_with_their_task(fresh_net: Fresh, stream: Stream) -> None:
    method = TRGP(fresh_net(), **LEANING)
    lessons = learned(method, stream, 1)
    method.net.add_head(3)
    method.begin(lessons[1])
    assert set(method.trainable()) == set(GPM.trainable(method)) | {f"live.{key}" for key in method.live}
    assert all(torch.equal(scale, torch.eye(len(scale))) for _, scale in method.live.items())
    plain = dict(method.net.named_parameters())
    assert all(torch.allclose(weight, plain[name], atol=1e-6) for name, weight in method.weights(1).items())
    method.net.heads = method.net.heads[:1]

    fit(method, lessons[1], PLAN, seed=1)
    kept = {key: scale.clone() for key, scale in method.scales.items()}
    assert len(method.live) == 0
    assert all(key.startswith("1/0/") and not torch.equal(scale, torch.eye(len(scale))) for key, scale in kept.items())
    fit(method, lessons[2], PLAN, seed=1)
    assert all(torch.equal(method.scales[key], scale) for key, scale in kept.items())
    assert {key.partition("/")[0] for key in method.scales} == {"1", "2"}


def test_a_batch_moves_scales_without_projection_and_layers_with(fresh_net: Fresh, stream: Stream) -> None:
    method = TRGP(fresh_net(), **LEANING)
    lessons = learned(method, stream, 1)
    method.net.add_head(3)
    method.begin(lessons[1])
    method.train()
    gradient = method.gradient(lessons[1].sample(16))
    assert {name for name in gradient if name.startswith("live.")} == {f"live.{key}" for key in method.live}
    for layer, name in method.net.weight_names().items():
        assert (gradient[name].flatten(1) @ method.memory[layer]).norm() < 1e-5 * (1 + gradient[name].norm())


def test_no_more_than_the_related_tasks_asked_for_and_none_without_trust(fresh_net: Fresh, stream: Stream) -> None:
    for values, most in (({"related": 1}, 1), ({"related": 2}, 2), ({"trust": 1.0}, 0)):
        method = TRGP(fresh_net(), **{**LEANING, **values})
        learned(method, stream, 3)
        counts = {len(old) for old in method.facts()["related"].get("2", {}).values()}
        assert counts == ({most} if most else set())
        if not most:
            assert method.memory_bytes()["scales"] == 0
            assert all(torch.equal(w, method.net.get_parameter(name)) for name, w in method.weights(2).items())


def test_it_goes_on_from_its_state_bit_for_bit(fresh_net: Fresh, stream: Stream) -> None:
    """In the reading that is not the default one, which tests/checks.py has."""
    method = TRGP(fresh_net(), **LEANING, variant="released")
    lessons = learned(method, stream, 2)
    other = TRGP(fresh_net(), **LEANING, variant="released")
    other.load_state_dict({name: tensor.clone() for name, tensor in method.state_dict().items()})
    for one in (method, other):
        fit(one, lessons[2], PLAN, seed=1)
    assert method.state_dict().keys() == other.state_dict().keys()
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in method.state_dict().items())
    for task in range(3):
        assert evaluate(method, stream.tasks[task].test, task) == evaluate(other, stream.tasks[task].test, task)


def test_it_holds_bases_of_every_task_and_square_scales(fresh_net: Fresh, stream: Stream) -> None:
    method = TRGP(fresh_net(), **LEANING)
    lessons = learned(method, stream, 1)
    method.net.add_head(3)
    method.begin(lessons[1])
    assert method.memory_bytes()["scales"] == 4 * sum(scale.numel() for scale in method.live.parameters()) > 0
    method = TRGP(fresh_net(), **LEANING)
    learned(method, stream, 2)
    held = method.memory_bytes()
    assert held["bases"] == method.memory.bytes() + sum(4 * basis.numel() for _, basis in method.spaces.items())
    assert held["scales"] == sum(4 * method.spaces[f"0/{layer}"].shape[1] ** 2 for layer in method.memory)


# --- other networks, lessons and precisions -------------------------------------------------------


class Grouped(Backbone):
    """A grouped convolution between a plain one and a linear layer, with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=4)
        self.grouped = nn.Conv2d(8, 8, 3, stride=2, groups=4)
        self.linear = nn.Linear(8 * 3 * 3, 10)
        self.width = 10

    def forward(self, x: Tensor, quiet: bool = False) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        x = F.relu(self.grouped(F.relu(self.conv(x))))
        x = F.relu(self.linear(x.flatten(1)))
        return x, x


@pytest.mark.thorough
@pytest.mark.parametrize("backbone", [lambda: ResNet18((3, 32, 32), filters=8), lambda: MLP((3, 32, 32)), Grouped])
def test_it_runs_on_other_networks(backbone: Callable[[], Backbone], stream: Stream) -> None:
    torch.manual_seed(0)
    method = TRGP(Network(backbone()), **{**LEANING, "trust": 0.0})
    learned(method, stream, 2)
    leaning = method.facts()["related"]["1"]
    empty = {layer for layer in method.memory if method.spaces[f"0/{layer}"].shape[1] == 0}
    assert leaning.keys() == method.net.backbone.layers().keys() - empty  # shortcuts, too
    assert len(empty) < len(leaning)
    assert evaluate(method, stream.tasks[1].test, 1).loss > 0


def test_it_runs_in_float64(stream: Stream) -> None:
    torch.manual_seed(0)
    method = TRGP(Network(MLP((3, 32, 32))).double(), **LEANING)
    doubled = replace(stream, tasks=[replace(task, **precise(task)) for task in stream])
    learned(method, doubled, 2)
    kept = (method.memory, method.spaces, method.scales)
    assert {tensor.dtype for bank in kept for _, tensor in bank.items()} == {torch.float64}


def precise(task: object) -> dict[str, object]:
    return {part: replace(getattr(task, part), x=getattr(task, part).x.double()) for part in ("train", "valid", "test")}


@pytest.mark.parametrize("variant", ["intended", "released"])
def test_a_later_lesson_may_be_of_several_tasks(fresh_net: Fresh, stream: Stream, variant: str) -> None:
    method = TRGP(fresh_net(), **LEANING, variant=variant)
    first, second, third = method.lessons(stream)
    fit(method, first, PLAN, seed=1)
    fit(method, Lesson(1, (*second.parts, *third.parts)), PLAN, seed=1)
    related = method.facts()["related"]
    assert related["1"] == related["2"]
    weights = [method.weights(task) for task in (1, 2)]
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())
    assert not torch.equal(weights[0]["backbone.fc1.weight"], method.weights()["backbone.fc1.weight"])
