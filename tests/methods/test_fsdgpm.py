"""FS-DGPM: climbs inside what it remembers, learns how important each direction is, and replays."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from perdure.methods.fsdgpm import FSDGPM, split
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.ops.gradients import ascent_grad, grad, norm
from perdure.ops.subspace import extend
from perdure.train.fit import fit
from perdure.train.plan import Plan
from perdure.types import Batch, EpochStart, Lesson, Stream

PLAN = Plan(rate=0.02, epochs=2, batch=30, schedule="linear", keep="last")
Fresh = Callable[[], Network]


def second_task(method: FSDGPM, stream: Stream) -> Batch:
    """Learn the first task, begin the second, and return a batch of it."""
    first, second = list(method.lessons(stream))[:2]
    fit(method, first, replace(PLAN, epochs=1), seed=1)
    method.net.add_head(3)
    method.begin(second)
    method.train()
    torch.manual_seed(3)
    return second.sample(16)


def climbed(method: FSDGPM, batch: Batch) -> dict[str, Tensor]:
    """How far the first piece takes each weight uphill."""
    weights = method.trainable()
    piece = split(batch, method.pieces)[0]
    uphill = ascent_grad(method.loss(piece, weights), weights, method.second_order)
    point = method.ascend(weights, uphill, dict(method.importance.items()))
    return {name: (point[name] - weight).detach() for name, weight in weights.items()}


# --- uphill ---------------------------------------------------------------------------------------


def test_a_later_task_climbs_inside_what_is_remembered(fresh_net: Fresh, stream: Stream) -> None:
    method = FSDGPM(fresh_net())
    steps = climbed(method, second_task(method, stream))
    for layer, name in method.net.weight_names().items():
        step, basis = steps[name].flatten(1).double(), method.memory[layer].double()
        assert step.norm() > 0
        assert (step - step @ basis @ basis.T).norm() < 1e-3 * step.norm()
    assert steps["heads.1.weight"].any()
    assert not steps["heads.0.weight"].any()


def test_every_entry_of_a_step_uphill_is_bounded(fresh_net: Fresh, stream: Stream) -> None:
    limit, rate = 1e-3, 0.5
    free = FSDGPM(fresh_net(), look_ahead=rate, limit=1e9)
    batch = second_task(free, stream)
    bounded = FSDGPM(fresh_net(), look_ahead=rate, limit=limit)
    bounded.net.add_head(3), bounded.net.add_head(3)
    bounded.load_state_dict(free.state_dict())
    long, short = climbed(free.double(), as_double(batch)), climbed(bounded.double().train(), as_double(batch))
    for name, step in long.items():
        assert torch.allclose(short[name], step.clamp(-rate * limit, rate * limit), atol=1e-12)
    assert max(float(step.abs().max()) for step in long.values()) > 10 * rate * limit


def as_double(batch: Batch) -> Batch:
    return replace(batch, x=batch.x.double())


def test_second_order_terms_matter_and_can_be_left_out(fresh_net: Fresh, stream: Stream) -> None:
    """Without a step uphill there is no second order, and the gradient is the plain one, clipped."""
    batch = next(iter(FSDGPM(fresh_net()).lessons(stream))).sample(16)
    found = {}
    for uphill in (0.0, 0.05):
        for second_order in (True, False):
            net = fresh_net()
            torch.manual_seed(0)
            net.add_head(3)
            method = FSDGPM(net.double(), look_ahead=uphill, second_order=second_order, limit=1e6).train()
            found[uphill, second_order] = method.gradient(as_double(batch))
    plain = grad(method.loss(as_double(batch)), method.trainable())
    for name, slope in plain.items():
        assert torch.allclose(found[0.0, True][name], slope)
        assert torch.allclose(found[0.0, False][name], slope)
    assert norm({name: found[0.05, True][name] - found[0.05, False][name] for name in plain}) > 1e-3 * norm(plain)


def test_a_batch_is_cut_evenly_but_never_into_single_images() -> None:
    x = torch.arange(7.0).view(-1, 1, 1, 1)
    for size, count, sizes in ((7, 2, [4, 3]), (6, 3, [2, 2, 2]), (3, 2, [3]), (2, 2, [2]), (1, 2, [1]), (5, 1, [5])):
        found = split(Batch(x[:size], torch.arange(size), 4), count)
        assert [len(piece) for piece in found] == sizes
        assert torch.equal(torch.cat([piece.x for piece in found]), x[:size])
        assert {piece.task for piece in found} == {4}
    mixed = split(Batch(x, torch.arange(7), torch.tensor([0, 0, 1, 1, 2, 2, 2])), 2)
    assert [piece.task.tolist() for piece in mixed] == [[0, 0, 1, 1], [2, 2, 2]]


# --- the importance of directions -----------------------------------------------------------------


def test_the_gradients_of_weights_and_importance_are_clipped_apart(fresh_net: Fresh, stream: Stream) -> None:
    """Each to its own norm; the projection comes after, so that what is returned may be shorter."""
    method = FSDGPM(fresh_net(), limit=0.01, variant="intended")
    gradient = method.gradient(second_task(method, stream))
    assert 1e-3 < float(norm(gradient)) <= 0.01
    method.velocity.clear()
    method.learn_importance({name: torch.ones_like(part) for name, part in method.importance.items()})
    assert float(norm(dict(method.velocity.items()))) == pytest.approx(0.01, rel=1e-4)
    assert len({float(part[0]) for _, part in method.velocity.items()}) == 1  # one norm over all layers


def test_momentum_of_the_importance_follows_torch(fresh_net: Fresh, stream: Stream) -> None:
    method = FSDGPM(fresh_net(), soft_rate=0.3, sharpness=4.0, variant="intended")
    second_task(method, stream)
    layer = next(iter(method.importance))
    values = method.importance[layer].clone().requires_grad_()
    twin = torch.optim.SGD([values], lr=0.3, momentum=0.9)
    for seed in range(3):
        torch.manual_seed(seed)
        slopes = {name: 0.01 * torch.randn_like(part) for name, part in method.importance.items()}
        method.learn_importance(slopes)
        values.grad = slopes[layer]
        twin.step()
        with torch.no_grad():
            values.copy_(torch.sigmoid(4.0 * values))
        assert torch.allclose(method.importance[layer], values, atol=1e-7)


@pytest.mark.parametrize("variant", ["intended", "released"])
def test_the_released_importance_moves_once_until_the_rate_drops(
    fresh_net: Fresh, stream: Stream, variant: str
) -> None:
    method = FSDGPM(fresh_net(), variant=variant, soft_rate=0.2)
    second_task(method, stream)
    slopes = {name: torch.full_like(part, 0.1) for name, part in method.importance.items()}
    layer = next(iter(slopes))

    def moves() -> bool:
        before = method.importance[layer].clone()
        method.learn_importance(slopes)
        return not torch.equal(method.importance[layer], torch.sigmoid(10 * before))

    method.begin_epoch(EpochStart(0, 5))
    assert [moves(), moves(), moves()] == [True, variant == "intended", variant == "intended"]
    method.begin_epoch(EpochStart(1, 5))  # the rate is as before
    assert moves() == (variant == "intended")
    speed = method.velocity[layer].clone()
    method.begin_epoch(EpochStart(2, 5, 0.5))
    assert moves()
    if variant == "released":
        assert torch.equal(method.velocity[layer], method.velocity[layer].new_full(speed.shape, float(speed[0])))
        assert not moves()
    method.begin(list(method.lessons(stream))[1])  # a task begins with new optimizers
    assert len(method.velocity) == 0
    assert torch.equal(method.importance[layer], torch.ones_like(speed))
    assert moves()


def test_both_rates_follow_that_of_the_weights(fresh_net: Fresh, stream: Stream) -> None:
    method = FSDGPM(fresh_net().double(), look_ahead=0.01, soft_rate=0.1)
    batch = as_double(second_task(method, replace(stream, tasks=[doubled(task) for task in stream])))
    full = climbed(method, batch)
    slopes = {name: torch.full_like(part, 0.01) for name, part in method.importance.items()}
    layer = next(iter(slopes))
    method.begin_epoch(EpochStart(1, 10, 0.25))
    quarter = climbed(method, batch)
    assert all(torch.allclose(quarter[name], 0.25 * step) for name, step in full.items())
    method.learn_importance(slopes)
    step = 1 - torch.logit(method.importance[layer]) / 10
    assert torch.allclose(step, 0.25 * 0.1 * method.velocity[layer], rtol=1e-6)


def doubled(task):  # type: ignore[no-untyped-def]
    parts = ("train", "valid", "test")
    return replace(task, **{part: replace(getattr(task, part), x=getattr(task, part).x.double()) for part in parts})


def test_each_direction_is_left_as_much_as_it_is_unimportant(fresh_net: Fresh, stream: Stream) -> None:
    method = FSDGPM(fresh_net())
    second_task(method, stream)
    torch.manual_seed(0)
    raw = {name: torch.randn_like(part) for name, part in method.net.named_parameters()}
    for layer, values in list(method.importance.items()):
        method.importance[layer] = torch.rand_like(values)
    found = method.project(raw)
    for layer, name in method.net.weight_names().items():
        basis, left = method.memory[layer], 1 - method.importance[layer]
        assert torch.allclose(found[name].flatten(1) @ basis, (raw[name].flatten(1) @ basis) * left, atol=1e-4)
    assert torch.equal(found["heads.1.weight"], raw["heads.1.weight"])


@pytest.mark.parametrize("learn_norms", [False, True])
def test_batch_norm_after_the_first_task(fresh_net: Fresh, stream: Stream, learn_norms: bool) -> None:
    method = FSDGPM(fresh_net(), learn_norms=learn_norms)
    assert any(".bn" in name for name in first_gradient(method, stream))
    method = FSDGPM(fresh_net(), learn_norms=learn_norms)
    gradient = method.gradient(second_task(method, stream))
    assert any(".bn" in name for name in gradient) == learn_norms


def first_gradient(method: FSDGPM, stream: Stream) -> dict[str, Tensor]:
    method.net.add_head(3)
    return method.train().gradient(next(iter(method.lessons(stream))).sample(16))


# --- replay and memory ----------------------------------------------------------------------------


def test_every_image_passes_by_the_memory_once(fresh_net: Fresh, stream: Stream) -> None:
    method = FSDGPM(fresh_net(), memory=30)
    for seen, lesson in enumerate(method.lessons(stream), 1):
        fit(method, lesson, PLAN, seed=1)
        assert int(method.replay["seen"]) == 45 * seen
        assert method.replay.held == 30
    assert set(method.replay["task"].tolist()) == {0, 1}
    assert method.memory_bytes()["replay"] == method.replay.bytes() > 30 * 3 * 32 * 32 * 4
    facts = method.facts()
    assert all(0.9 < mean <= 1 for mean in facts["mean_importance"].values())


def test_bases_are_made_anew_from_images_of_all_tasks(fresh_net: Fresh, stream: Stream) -> None:
    method = FSDGPM(fresh_net(), memory=60, samples=60, threshold=0.9, threshold_step=0.05)
    lessons = list(method.lessons(stream))
    fit(method, lessons[0], PLAN, seed=1)
    before = method.memory.sizes()
    fit(method, lessons[1], PLAN, seed=1)
    assert method.memory.sizes() != before
    shown = method.representations(method.replay.sample(60))  # all that is held, in whatever order
    for layer, basis in method.memory.items():
        again = extend(shown[layer][:, :0], shown[layer], 0.95)
        if shown[layer].shape[1] <= 60:  # patches may be cut from fewer images, and then the order counts
            assert torch.allclose(basis @ basis.T, again @ again.T, atol=1e-3)
        held = (basis.T @ shown[layer]).square().sum() / shown[layer].square().sum()
        assert held > 0.94


def test_new_images_and_old_ones_share_one_forward(
    fresh_net: Fresh, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = FSDGPM(fresh_net())
    batch = second_task(method, stream)
    seen: list[tuple[int, object]] = []
    forward = method.forward
    monkeypatch.setattr(
        method, "forward", lambda x, task, *more: seen.append((len(x), task)) or forward(x, task, *more)
    )
    method.gradient(batch)
    assert [size for size, _ in seen] == [8, 32, 8, 32]
    assert [task for size, task in seen if size == 8] == [1, 1]
    assert all(sorted(task.tolist()) == [0] * 16 + [1] * 16 for size, task in seen if size == 32)


def test_heads_of_different_sizes_leave_no_gaps_in_second_order(fresh_net: Fresh, stream: Stream) -> None:
    method = FSDGPM(fresh_net(), look_ahead=0.1)
    batch = second_task(method, stream)
    method.net.add_head(7)
    gradient = method.gradient(replace(batch, task=2, y=batch.y + 4))
    assert {"heads.0.weight", "heads.2.weight"} <= set(gradient)
    assert "heads.1.weight" not in gradient
    assert all(bool(torch.isfinite(slope).all()) for slope in gradient.values())


def test_several_tasks_at_once(fresh_net: Fresh, stream: Stream) -> None:
    method = FSDGPM(fresh_net())
    first, second = method.lessons(stream)
    fit(method, Lesson(0, first.parts + second.parts), replace(PLAN, epochs=1), seed=1)
    assert len(method.memory) == 5


def test_without_replay_the_bases_come_from_the_lesson(fresh_net: Fresh, stream: Stream) -> None:
    method = FSDGPM(fresh_net(), memory=0)
    for lesson in method.lessons(stream):
        fit(method, lesson, replace(PLAN, epochs=1), seed=1)
    assert method.replay.held == 0
    assert "stored-data" not in method.needs()
    assert "stored-data" in FSDGPM(fresh_net()).needs()
    assert all(size > 0 for size, _ in method.memory.sizes().values())


def test_a_single_image_in_memory_has_no_statistics(fresh_net: Fresh, stream: Stream) -> None:
    method = FSDGPM(fresh_net(), memory=1)
    method.net.add_head(3)
    lesson = next(iter(method.lessons(stream)))
    method.replay.add(lesson.sample(5))
    assert method.replay.held == 1
    method.end(lesson)
    assert all(size > 0 for size, _ in method.memory.sizes().values())


def test_it_goes_on_from_its_state_bit_for_bit(fresh_net: Fresh, stream: Stream) -> None:
    """In the reading that is not the default one, which tests/checks.py has."""
    values = {"variant": "released", "memory": 50, "soft_rate": 1.0}
    method, other = FSDGPM(fresh_net(), **values), FSDGPM(fresh_net(), **values)
    first, second = method.lessons(stream)
    fit(method, first, PLAN, seed=1)
    other.load_state_dict({name: part.clone() for name, part in method.state_dict().items()})
    for one in (method, other):
        fit(one, second, PLAN, seed=1)
    assert method.facts() == other.facts()
    assert all(torch.equal(part, other.state_dict()[name]) for name, part in method.state_dict().items())


def test_single_images_are_enough_without_batch_norm(stream: Stream) -> None:
    method = FSDGPM(Network(MLP((3, 32, 32))))
    method.net.add_head(3)
    lesson = next(iter(method.lessons(stream)))
    gradient = method.train().gradient(lesson.sample(1))
    assert all(bool(slope.any()) for slope in gradient.values())
