"""What EWC, ER and A-GEM have in common: switched off they are plain SGD, and they come back from their state."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from perdure import registry
from perdure.methods.agem import AGEM
from perdure.methods.er import ER
from perdure.methods.ewc import EWC
from perdure.methods.finetune import FineTune
from perdure.methods.method import Method
from perdure.methods.mtl import MTL
from perdure.nets.alexnet import SlimAlexNet
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.schema import checked, values_of
from perdure.train.fit import fit
from perdure.train.plan import Plan
from perdure.types import Lesson, Part, Split, Stream

PLAN = Plan(rate=0.05, epochs=2, batch=16, schedule="linear", keep="last")
SMALL: dict[type[Method], dict[str, Any]] = {
    EWC: {"coefficient": 200.0},
    ER: {"memory": 20, "replay_batch": 8},
    AGEM: {"memory": 20, "replay_batch": 8},
}
OFF: dict[type[Method], dict[str, Any]] = {EWC: {"coefficient": 0.0}, ER: {"memory": 0}, AGEM: {"memory": 0}}


def states(method: Method, stream: Stream, plan: Plan = PLAN) -> list[dict[str, Tensor]]:
    """The network after each lesson."""
    found = []
    for lesson in method.lessons(stream):
        fit(method, lesson, plan, seed=1)
        found.append({name: value.clone() for name, value in method.net.state_dict().items()})
    return found


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def dropping_net() -> Network:
    """Its dropout shows any draw too many."""
    torch.manual_seed(7)
    return Network(SlimAlexNet((3, 32, 32), dropout=True))


@pytest.mark.parametrize("maker", OFF)
def test_switched_off_it_is_plain_sgd_to_the_bit_and_switched_on_it_is_not(maker: type[Method], stream: Stream) -> None:
    plain = states(FineTune(dropping_net()), stream)
    off = states(maker(dropping_net(), **OFF[maker]), stream)
    assert [equal(one, other) for one, other in zip(plain, off, strict=True)] == [True, True]
    on = states(maker(dropping_net(), **SMALL[maker]), stream)
    assert not equal(on[1], plain[1])


@pytest.mark.thorough
@pytest.mark.parametrize("maker", SMALL)
def test_it_goes_on_from_its_state(maker: type[Method], stream: Stream, fresh_net: Callable[[], Network]) -> None:
    method, again, blank = (maker(fresh_net(), **SMALL[maker]) for _ in range(3))
    first, second = method.lessons(stream)
    fit(method, first, PLAN, seed=1)
    again.load_state_dict(method.state_dict())
    blank.net.load_state_dict(method.net.state_dict())
    for learner in (method, again, blank):
        fit(learner, second, PLAN, seed=1)
    assert equal(method.state_dict(), again.state_dict())
    assert not equal(method.net.state_dict(), blank.net.state_dict()), "what it remembers must matter"
    assert method.memory_bytes() == again.memory_bytes()
    assert all(size > 0 for size in method.memory_bytes().values())
    assert method.facts() == again.facts()


def shapes_differ() -> list[Lesson]:
    """Heads of three, five and two classes, and a lesson of two tasks; 33 images leave one over."""
    chance = torch.Generator().manual_seed(1)

    def part(task: int, classes: int) -> Part:
        x = torch.rand(33, 3, 8, 8, generator=chance, dtype=torch.float64)
        split = Split(x, torch.arange(33) % classes, (0.5,) * 3, (0.25,) * 3)
        return Part(task, classes, split, split)

    return [Lesson(0, (part(0, 3),)), Lesson(1, (part(1, 5), part(2, 2))), Lesson(2, (part(3, 4),))]


@pytest.mark.parametrize("maker", [*SMALL, MTL])
def test_heads_of_any_size_lessons_of_several_tasks_and_float64(maker: type[Method]) -> None:
    torch.manual_seed(0)
    method = maker(Network(MLP((3, 8, 8), units=(12,))).double(), **SMALL.get(maker, {}))
    for lesson in shapes_differ():
        fit(method, lesson, PLAN, seed=1)
    assert [len(head.weight) for head in method.net.heads] == [3, 5, 2, 4]
    kept = {name: value.dtype for name, value in method.state_dict().items() if value.is_floating_point()}
    assert set(kept.values()) == {torch.float64}


LEFT_OVER: dict[type[Method], list[list[int]]] = {  # images of every training forward, lesson by lesson
    EWC: [[16, 17] * 2 + [8, 8, 8, 9]] * 2,  # Fisher in batches of eight
    ER: [[16, 17 + 8, 16 + 8, 17 + 8], [16 + 8, 17 + 8] * 2],
    AGEM: [[16, 17] * 2, [16, 8, 17, 8] * 2],
}


@pytest.mark.parametrize("maker", LEFT_OVER)
def test_one_image_left_over_joins_the_batch_before(maker: type[Method], fresh_net: Callable[[], Network]) -> None:
    """A network with batch statistics, and 33 images, which neither 16 nor 8 divides."""
    method = maker(fresh_net(), **SMALL[maker], **({"fisher_batch": 8} if maker is EWC else {}))
    sizes: list[int] = []

    def seen(net: Network, args: tuple[Any, ...]) -> None:
        sizes.extend(map(len, args[0]) if net.training else ())

    method.net.register_forward_pre_hook(seen)
    for index, lesson in enumerate(shapes_differ()[::2]):
        part = lesson.parts[0]
        split = Split(torch.nn.functional.interpolate(part.train.x.float(), 32), part.train.y)
        sizes.clear()
        fit(method, Lesson(index, (Part(index, part.classes, split, split),)), PLAN, seed=1)
        assert sizes == LEFT_OVER[maker][index]
    assert all(torch.isfinite(value).all() for value in method.state_dict().values())


def test_who_keeps_images_says_so(fresh_net: Callable[[], Network]) -> None:
    keeping = {maker: "stored-data" in maker(fresh_net()).needs() for maker in (*SMALL, MTL)}
    assert keeping == {EWC: False, ER: True, AGEM: True, MTL: True}
    assert not any("stored-data" in maker(fresh_net(), memory=0).needs() for maker in (ER, AGEM))


def test_values_are_described_and_their_limits_kept() -> None:
    for maker in SMALL:
        assert all(value.about for value in values_of(maker).values()), maker
    assert values_of(EWC)["coefficient"].symbol == "λ"
    assert values_of(ER)["memory"].allowed == "a whole number ≥ 0"
    assert checked("er", ER, {"memory": "0", "clip": "none"}) == {"memory": 0, "clip": None}


def test_which_methods_prepare_every_task() -> None:
    """A task that is given more images begins anew with these alone."""
    found = {name for name in registry.methods if registry.methods.load(name).begins_each_task}
    assert found == {"owm", "trgp", "fsdgpm", "api"}

    class Own(FineTune):
        def begin(self, lesson: Lesson) -> None: ...

    assert Own.begins_each_task
