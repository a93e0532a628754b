"""What every registered method must pass, whatever it does: the same checks, one table of settings."""

import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin

import pytest
import safetensors.torch
import torch
from networks import Tracking
from torch import Tensor

from perdure import registry
from perdure.data.benchmarks.synthetic import synthetic
from perdure.memory.gradient_memory import DualMemory, GradientMemory
from perdure.methods.method import Method
from perdure.methods.sgp import SGP
from perdure.nets.network import Network, first_weights
from perdure.ops.dual_gpm import protected as protected_directions
from perdure.schema import Value, values_of
from perdure.train.fit import fit
from perdure.train.learn import learn
from perdure.train.plan import Plan
from perdure.train.state import Learned
from perdure.types import Split, Stream, Task


def two_tasks() -> Stream:
    return synthetic(seed=1, tasks=2, per_class=15)


PLAN = Plan(rate=0.02, epochs=2, batch=16, schedule="linear", keep="last")
THOROUGH = pytest.mark.thorough

# Values under which each method is checked, and what switches its memory off, where it has one.
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "finetune": ({}, None),
    "mtl": ({}, None),
    "ewc": ({"coefficient": 50.0}, {"coefficient": 0.0}),
    "er": ({"memory": 40, "replay_batch": 16}, {"memory": 0}),
    "agem": ({"memory": 40, "replay_batch": 16}, {"memory": 0}),
    "owm": ({}, {"regularizer": 1e12}),  # so stiff that the projectors stay identities
    "gpm": ({}, {"threshold": 0.0, "threshold_step": 0.0}),
    "pat": ({}, {"threshold": 0.0, "threshold_step": 0.0, "attack": None}),
    "sgp": ({}, {"threshold": 0.0, "threshold_step": 0.0}),
    "trgp": ({"threshold": 0.9}, {"trust": 1.0, "threshold": 0.0, "threshold_step": 0.0}),
    "fsdgpm": ({"memory": 40, "samples": 30}, {"memory": 1}),
    "api": ({}, {"threshold": 0.0, "threshold_step": 0.0}),
    "dfgp": ({}, {"threshold": 0.0, "threshold_step": 0.0}),
    "rcl": ({"phi_init": 0.0}, {"threshold": 0.0, "threshold_step": 0.0}),
}
METHODS = list(registry.methods)
CONTINUAL = [name for name in METHODS if name != "mtl"]
NETWORKS = {
    "alexnet": (3, 32, 32),
    "alexnet-slim": (3, 32, 32),
    "resnet18": (3, 32, 32),
    "resnet18 at 84 pixels": (3, 84, 84),
    "mlp": (3, 32, 32),
    "tracking": (3, 32, 32),  # dropout and running statistics: what a checkpoint and a seed must hold as well
}
# For the sake of time.
NARROW: dict[str, dict[str, Any]] = {
    "alexnet": {"filters": (8, 16, 32), "units": (64, 64)},
    "resnet18": {"filters": 4},
}


def make(name: str, network: str = "tracking", seed: int = 1, **values: Any) -> Method:
    with first_weights(seed):
        backbone = Tracking if network == "tracking" else registry.networks.load(network.split()[0])
        net = Network(backbone(NETWORKS[network], **NARROW.get(network.split()[0], {})))
    method: Method = registry.methods.load(name)(net, **{**SETTINGS[name][0], **values})
    return method


def outcome(method: Method, learned: Learned) -> dict[str, Tensor]:
    return {**method.state_dict(), "matrix": torch.tensor([value for row in learned.matrix for value in row])}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_the_table_names_every_method() -> None:
    assert set(SETTINGS) == set(METHODS)


def test_a_variant_is_stored_as_it_was_given() -> None:
    """Where there are two readings of a paper; also by methods that build on one with other readings."""
    variants = {name: values_of(registry.methods.load(name)).get("variant") for name in METHODS}
    papers, slips = ["gpm", "dfgp", "rcl"], ["trgp", "fsdgpm", "api"]
    assert {name: value.default for name, value in variants.items() if value} == dict.fromkeys(
        papers + slips, "released"
    )
    for name in papers + slips:
        assert make(name, "mlp").variant == "released"
        for variant in ("released", "paper" if name in papers else "intended"):
            assert make(name, "mlp", variant=variant).variant == variant


def another(value: Value) -> Any:
    """Not the default."""
    if get_origin(value.type) is Literal:
        return next(choice for choice in get_args(value.type) if choice != value.default)
    if isinstance(value.default, bool):
        return not value.default
    if value.default is None:
        return 7 if "whole" in value.allowed or "bytes" in value.allowed else 0.25
    return value.default + 3 if isinstance(value.default, int) else value.default / 2 or 0.125


@pytest.mark.parametrize("name", METHODS)
def test_every_value_is_stored_as_it_was_given(name: str) -> None:
    """Also where a method hands it on to the one that it builds on."""
    given = {value.name: another(value) for value in values_of(registry.methods.load(name)).values()}
    assert make(name, "mlp", attack=None, noise=given.pop("noise")).noise == 0.25  # not beside an attack
    method = make(name, "mlp", **given)
    buffer = getattr(method, "replay", getattr(method, "memory", None))
    stored = {key: buffer.capacity if key == "memory" else getattr(method, key) for key in given}
    assert stored == given


@pytest.mark.parametrize("name", METHODS)
def test_it_learns_the_first_task(name: str) -> None:
    plan = Plan(rate=0.02, epochs=6, batch=16, schedule="linear", keep="last")
    learned = learn(make(name), synthetic(seed=1, tasks=1), plan)
    assert learned.matrix[0][0] >= 80  # chance is 33


@dataclass(frozen=True)
class Reference:
    """A method that has learned two tasks, and what was seen meanwhile; tests look at it and change nothing."""

    method: Method
    learned: Learned
    stream: Stream
    gradients: list[tuple[dict[str, Tensor], dict[str, Tensor]]]  # of each batch, and what was trainable

    def outcome(self) -> dict[str, Tensor]:
        return outcome(self.method, self.learned)


@cache
def reference(name: str) -> Reference:
    stream, method, seen = two_tasks(), make(name, seed=3), []
    inner = method.gradient

    def spied(batch: Any) -> Any:
        gradient = inner(batch)
        seen.append((gradient, method.trainable()))
        return gradient

    method.gradient = spied  # type: ignore[method-assign]
    return Reference(method, learn(method, stream, PLAN, seed=3), stream, seen)


@cache
def after_one(name: str) -> tuple[bytes, bytes]:
    """What a method comes to after the first of the two tasks: its state, as a file, and what was learned."""
    method = make(name, seed=3)
    learned = learn(method, two_tasks().tasks[:1], PLAN, seed=3)
    state = {key: value.contiguous() for key, value in method.state_dict().items()}
    return safetensors.torch.save(state), pickle.dumps(learned)


@pytest.mark.parametrize("name", CONTINUAL)
def test_same_seed_same_bits_also_if_saved_between_tasks(name: str) -> None:
    state, learned = after_one(name)
    method = make(name, seed=3)
    method.load_state_dict(safetensors.torch.load(state))
    again = learn(method, two_tasks().tasks[1:], PLAN, seed=3, learned=pickle.loads(learned))
    assert equal(reference(name).outcome(), outcome(method, again))


def test_same_seed_same_bits_of_all_tasks_at_once() -> None:
    method = make("mtl", seed=3)
    assert equal(reference("mtl").outcome(), outcome(method, learn(method, two_tasks(), PLAN, seed=3)))


@pytest.mark.parametrize("name", METHODS)
def test_a_loaded_state_answers_alike_for_every_task(name: str) -> None:
    method, again = reference(name).method, make(name)
    again.load_state_dict(method.state_dict())
    for task, one in enumerate(reference(name).stream):
        x = one.test.take(slice(0, 20))[0]
        assert torch.equal(method.eval().forward(x, task).logits, again.eval().forward(x, task).logits)


@pytest.mark.parametrize("name", CONTINUAL)
def test_what_is_remembered_is_answered_as_before(name: str) -> None:
    """The projection family: whatever a later task does to the shared weights, a layer's response to what was protected
    when it began stays, to float precision. FS-DGPM protects softly and OWM by degrees: there it nearly stays."""
    method = make(name, seed=3)
    method.load_state_dict(safetensors.torch.load(after_one(name)[0]))
    protected = directions(method)
    if not protected:
        pytest.skip(f"{name} does not project")
    before, after = shared_weights(method), shared_weights(reference(name).method)
    moved = {layer: (after[layer] - before[layer]).double() for layer in protected}
    assert max(float(change.norm()) for change in moved.values()) > 1e-3  # something was learned
    limit = 2e-3 if name in ("fsdgpm", "owm") else 1e-5
    for layer, basis in protected.items():
        response = float((before[layer].double() @ basis.double()).norm())
        assert float((moved[layer] @ basis.double()).norm()) <= limit * response, layer


def directions(method: Method) -> dict[str, Tensor]:
    """Layer → orthonormal columns that later tasks may not touch; of SGP, those of full importance."""
    memory = getattr(method, "memory", None)
    if isinstance(method, SGP):
        return {layer: basis[:, method.importance[layer] > 1 - 1e-6] for layer, basis in method.memory.items()}
    if isinstance(memory, DualMemory):
        return {layer: protected_directions(dual).clone() for layer, dual in memory.duals().items()}
    if isinstance(memory, GradientMemory):
        return {layer: basis.clone() for layer, basis in memory.items() if basis.shape[1]}
    if hasattr(method, "projectors"):  # where the projector is nearly zero
        found = {}
        for layer, projector in method.projectors.items():
            values, vectors = torch.linalg.eigh(projector)
            if bool((values < 0.05).any()):
                found[layer] = vectors[:, values < 0.05]
        return found
    return {}


def shared_weights(method: Method) -> dict[str, Tensor]:
    names = method.net.weight_names()
    return {layer: method.net.get_parameter(name).detach().flatten(1).clone() for layer, name in names.items()}


# Whether forwards before a later lesson and after it are in training mode: layer inputs are taken as in use, without
# dropout and with running statistics; what stands for the gradients of training is taken as those are.
MODES: dict[str, tuple[set[bool], set[bool]]] = {
    **dict.fromkeys(METHODS, (set(), set())),
    **dict.fromkeys(("gpm", "pat", "sgp", "dfgp", "rcl", "fsdgpm"), (set(), {False})),
    "trgp": ({False}, {False}),
    "api": ({True, False}, {False}),  # retain ratios, then inputs of the layers that grow
    "ewc": (set(), {True}),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CONTINUAL)
def test_around_a_lesson_the_network_is_looked_at_in_the_right_mode_and_left_alone(name: str, training: bool) -> None:
    """Whatever mode it was in; with as many images as asked for; running statistics are those of training alone."""
    wanted = {"samples": 17, "trust_samples": 11, "floor": 1.0}  # at which every layer grows
    method = make(name, **{key: wanted[key] for key in wanted.keys() & values_of(registry.methods.load(name)).keys()})
    first, second = method.lessons(two_tasks())
    fit(method, first, replace(PLAN, epochs=1), seed=1)
    method.net.add_head(3)
    seen: list[tuple[bool, int]] = []
    method.net.register_forward_pre_hook(lambda net, args: seen.append((net.training, len(args[0][0]))))
    for stage, modes in zip((method.begin, method.end), MODES[name], strict=True):
        method.train(training)
        before = {key: value.clone() for key, value in method.net.state_dict().items()}
        seen.clear()
        stage(second)
        assert {mode for mode, _ in seen} == modes
        images = 11 if name == "trgp" and stage == method.begin else 17
        assert {count for mode, count in seen if not mode} <= {images}
        assert equal(before, method.net.state_dict())


@pytest.mark.parametrize("name", METHODS)
def test_the_gradient_moves_only_what_is_trainable(name: str) -> None:
    found = reference(name)
    assert found.gradients
    for gradient, trainable in found.gradients:
        assert set(gradient) <= set(trainable)
        assert all(gradient[key].shape == trainable[key].shape for key in gradient)
        assert all(not slope.requires_grad for slope in gradient.values())
    # what it answers while it learns is counted, each image once an epoch, old ones not
    images, epochs = len(found.stream.tasks[0].train) * (2 if name == "mtl" else 1), found.learned.epochs
    assert [epoch.train and epoch.train.samples for epoch in epochs] == [images] * len(epochs)


@pytest.mark.parametrize("name", METHODS)
def test_the_last_batch_may_hold_one_sample(name: str) -> None:
    def split(n: int, seed: int) -> Split:
        g = torch.Generator().manual_seed(seed)
        return Split(torch.rand(n, 3, 32, 32, generator=g), torch.arange(n) % 2)

    tasks = [Task(f"odd {i}", ("a", "b"), split(33, i), split(17, i), split(17, i)) for i in range(2)]
    learned = learn(make(name, "alexnet-slim"), tasks, PLAN)
    assert all(0 <= value <= 100 for row in learned.matrix for value in row)
    # where no batch statistics are needed, a batch of one is a batch
    small = Plan(rate=0.001, epochs=1, batch=1, schedule="linear", keep="last")
    few = [Task(f"few {i}", ("a", "b"), split(5, i), split(3, i), split(3, i)) for i in range(2)]
    learn(make(name, "mlp"), few, small)


def tensors(thing: object, depth: int = 8) -> Iterator[Tensor]:
    """Every tensor that can be reached from a thing."""
    if isinstance(thing, Tensor):
        yield thing
    elif depth == 0:
        return
    elif is_dataclass(thing):
        for field in fields(thing):
            yield from tensors(getattr(thing, field.name), depth - 1)
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from tensors(value, depth - 1)
    elif isinstance(thing, list | tuple | set | frozenset):
        for value in thing:
            yield from tensors(value, depth - 1)


@pytest.mark.parametrize("name", METHODS)
def test_no_test_data_are_reachable_from_a_lesson(name: str) -> None:
    stream = two_tasks()
    hidden = {task.test.x.untyped_storage().data_ptr() for task in stream}
    lessons = list(make(name).lessons(stream))
    found = {tensor.untyped_storage().data_ptr() for tensor in tensors(lessons)}
    assert {task.train.x.untyped_storage().data_ptr() for task in stream} <= found  # the walk does find what is there
    assert not hidden & found


@pytest.mark.parametrize("name", [name for name, (_, off) in SETTINGS.items() if off is not None])
def test_its_memory_is_really_used(name: str) -> None:
    off = SETTINGS[name][1]
    assert off is not None
    on, without = reference(name).method, make(name, seed=3, **off)
    learn(without, reference(name).stream, PLAN, seed=3)
    assert sum(on.memory_bytes().values()) > 0
    one, other = shared_weights(on), shared_weights(without)
    assert any(not torch.equal(one[layer], other[layer]) for layer in one)


@pytest.mark.parametrize(
    ("name", "network"),
    [
        (name, network) if name in ("gpm", "trgp", "er", "rcl") else pytest.param(name, network, marks=THOROUGH)
        for name in METHODS
        for network in NETWORKS
        if "84" not in network or name in ("trgp", "fsdgpm", "api", "rcl")  # one of each kind of memory: it takes time
    ],
)
def test_it_works_on_every_network_with_heads_of_different_sizes(name: str, network: str) -> None:
    size = NETWORKS[network][1]
    small = synthetic(seed=1, tasks=1, size=size, classes=2, per_class=9).tasks[0]
    large = synthetic(seed=2, tasks=1, size=size, classes=3, per_class=6).tasks[0]
    method = make(name, network)
    plan = Plan(rate=0.01, epochs=1, batch=9, schedule="linear", keep="last")
    endless = (task for task in (small, large))  # a stream whose length is not known in advance
    learned = learn(method, endless, plan)
    assert [head.out_features for head in method.net.heads] == [2, 3]  # type: ignore[union-attr]
    assert len(learned.matrix[-1]) == 2
    assert all(torch.isfinite(weight).all() for weight in method.weights(0).values())
    buffer = io.BytesIO(safetensors.torch.save({k: v.contiguous() for k, v in method.state_dict().items()}))
    assert buffer.getbuffer().nbytes > 0


@pytest.mark.parametrize("name", METHODS)
def test_what_it_holds_is_said_by_kind(name: str) -> None:
    method = reference(name).method
    assert set(method.memory_bytes()) <= {"bases", "replay", "fisher", "scales", "grown"}
    # all state besides the network is counted, up to a few numbers that say where things stand
    state = method.state_dict()
    held = sum(t.numel() * t.element_size() for key, t in state.items() if not key.startswith("net."))
    assert sum(method.memory_bytes().values()) == pytest.approx(held, rel=0.05, abs=2048)
