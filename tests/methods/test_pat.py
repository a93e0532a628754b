"""Training on attacked images: what the attack may do, what it must leave alone, and PAT, which is GPM with it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from checks import PLAN, SETTINGS, equal, make, outcome
from networks import Tracking
from torch import Tensor

from perdure import registry
from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import WrongValue
from perdure.lab.spec import RunSpec, complete, spec
from perdure.memory.replay_buffer import ReplayBuffer, ReservoirBuffer, TaskBuffer
from perdure.methods.finetune import FineTune
from perdure.methods.gpm import GPM
from perdure.methods.method import Method
from perdure.methods.pat import PAT
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.train import fit as loop
from perdure.train import guard
from perdure.train.callbacks import Callback
from perdure.train.fit import fit
from perdure.train.learn import learn
from perdure.types import Batch, Lesson, Part, Split

STRENGTH = 8 / 255
# Two tasks whose channels are normalized differently, one with a single number for all of them.
SCALES = (((0.1, 0.5, 0.9), (0.05, 0.5, 2.0)), ((0.3,), (0.2,)))


def parts() -> tuple[Part, ...]:
    found = []
    for task, (mean, std) in enumerate(SCALES):
        drawn = torch.Generator().manual_seed(task)
        x = torch.rand(12, 3, 8, 8, generator=drawn)
        x[:, :, 0], x[:, :, 1] = 0.0, 1.0  # rows that an attack can move one way only
        split = Split(x, torch.arange(12) % 3, mean, std)
        found.append(Part(task, 3, split, split))
    return tuple(found)


def network(heads: int = 2) -> Network:
    net = Network(MLP((3, 8, 8), units=(16,)))
    for _ in range(heads):
        net.add_head(3)
    return net


def mixed(lesson: Lesson | None = None) -> Batch:
    return next((lesson or Lesson(0, parts())).batches(16, torch.Generator().manual_seed(0)))


def own_scale(batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean and std of each image, written out by hand."""
    assert isinstance(batch.task, Tensor)
    mean = torch.tensor([SCALES[t][0] * (3 // len(SCALES[t][0])) for t in batch.task.tolist()])
    std = torch.tensor([SCALES[t][1] * (3 // len(SCALES[t][1])) for t in batch.task.tolist()])
    return mean[:, :, None, None], std[:, :, None, None]


# ── a batch knows its pixels ────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_of_mixed_tasks_has_the_pixel_scale_of_each_image() -> None:
    batch = mixed()
    assert isinstance(batch.task, Tensor)
    assert set(batch.task.tolist()) == {0, 1}
    assert batch.pixels is not None
    mean, std = own_scale(batch)
    assert torch.equal(batch.pixels.mean, mean)
    assert torch.equal(batch.pixels.std, std)
    pixels = batch.pixels.pixels(batch.x)
    assert float(pixels.min()) == pytest.approx(0, abs=1e-6)
    assert float(pixels.max()) == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(batch.pixels.normalize(pixels), batch.x)


def test_a_batch_of_one_task_has_one_scale_also_when_it_is_augmented() -> None:
    lesson = Lesson(0, parts()[:1])
    for augment in (None, lambda pixels: pixels.flip(3)):
        batch = next(lesson.batches(4, torch.Generator().manual_seed(0), augment=augment))
        assert batch.pixels is not None
        assert batch.pixels.std.flatten().tolist() == pytest.approx(SCALES[0][1])
        assert batch.pixels.mean.flatten().tolist() == pytest.approx(SCALES[0][0])


# ── the attack ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("steps", [1, 3])
def test_it_stays_in_the_ball_and_among_images_in_pixels(steps: int) -> None:
    batch = mixed()
    attacked = FineTune(network(), attack=STRENGTH, attack_steps=steps).train().attacked(batch)
    mean, std = own_scale(batch)
    before, after = batch.x * std + mean, attacked.x * std + mean
    moved = (after - before).abs()
    assert float(moved.max()) <= STRENGTH + 1e-6
    assert float(after.min()) >= -1e-6
    assert float(after.max()) <= 1 + 1e-6
    # It uses the room that there is, in every channel of every task, whatever the std: most pixels are at the edge.
    inside = moved[:, :, 2:]
    assert float((inside > 0.99 * STRENGTH).float().mean((2, 3)).min()) > 0.3
    assert float((moved[:, :, 0] > 0).float().mean()) < 0.9  # black that would have to become blacker
    assert attacked.y is batch.y
    assert attacked.task is batch.task
    assert attacked.original is batch.x


def by_hand(method: Method, batch: Batch, steps: int, rate: float, noise: Tensor) -> Tensor:
    """δ = Π(δ₀ + rate sign ∇ₓ L(W, x + δ₀)), written out; normalized."""
    mean, std = own_scale(batch)
    x = batch.x * std + mean
    moved = (x + noise.clamp(-STRENGTH, STRENGTH)).clamp(0, 1)
    for _ in range(steps):
        at = moved.clone().requires_grad_()
        hidden, _ = method.net.backbone((at - mean) / std)
        logits = torch.stack([method.net.heads[t](h) for t, h in zip(batch.task.tolist(), hidden, strict=True)])  # type: ignore[union-attr]
        F.cross_entropy(logits, batch.y).backward()
        assert at.grad is not None
        delta = (moved + rate * at.grad.sign() - x).clamp(-STRENGTH, STRENGTH)
        moved = (x + delta).clamp(0, 1)
    return (moved - mean) / std


@pytest.mark.parametrize(("steps", "rate"), [(1, 1.25), (2, 1.25), (5, 0.5)])
def test_it_is_what_the_equation_says(steps: int, rate: float) -> None:
    batch, method = mixed(), FineTune(network(), attack=STRENGTH, attack_steps=steps).train()
    torch.manual_seed(7)
    found = method.attacked(batch)
    torch.manual_seed(7)
    noise = STRENGTH * (2 * torch.rand(batch.x.shape) - 1)
    torch.testing.assert_close(found.x, by_hand(method, batch, steps, rate * STRENGTH, noise), atol=1e-5, rtol=1e-5)
    loss, clean = (float(method.loss(one).detach()) for one in (found, batch))
    assert loss > clean


def test_without_an_attack_the_batch_is_the_batch() -> None:
    batch, method = mixed(), FineTune(network()).train()
    before = torch.get_rng_state()
    assert method.attacked(batch) is batch
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_that_does_not_tell_its_pixels_is_refused() -> None:
    batch = replace(mixed(), pixels=None)
    with pytest.raises(WrongValue, match=r"give Batch\.pixels"):
        FineTune(network(), attack=STRENGTH).attacked(batch)


def tracking(**values: Any) -> tuple[Method, Lesson]:
    stream = synthetic(seed=1, tasks=1)
    method = FineTune(Network(Tracking()), **values)
    (lesson,) = method.lessons(stream)
    method.net.add_head(lesson.parts[0].classes)
    method.train()
    return method, lesson


def test_it_leaves_running_statistics_modes_and_gradients_alone() -> None:
    """It sees the network as the step does, dropout and batch statistics included."""
    method, lesson = tracking(attack=STRENGTH)
    batch = mixed(lesson)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    modes: list[bool] = []
    method.net.backbone.register_forward_pre_hook(lambda net, _: modes.append(net.training))
    attacked = method.attacked(batch)
    assert modes == [True]
    assert method.training
    assert equal(before, method.state_dict())
    assert all(parameter.grad is None for parameter in method.parameters())
    assert all(parameter.requires_grad for parameter in method.parameters())
    assert not attacked.x.requires_grad
    assert method.train_logits is None  # its answers are no score of the step's
    method.loss(attacked)
    assert not equal(before, method.state_dict())  # which a step does move


def test_weights_have_no_part_in_its_gradient() -> None:
    method, lesson = tracking(attack=STRENGTH)
    seen: list[bool] = []
    method.net.backbone.fc2.register_forward_hook(  # type: ignore[union-attr, operator]
        lambda module, *_: seen.append(module.weight.requires_grad)
    )
    method.attacked(mixed(lesson))
    assert seen == [False]


# ── every method takes it ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", list(registry.methods))
def test_every_method_is_trained_on_attacked_images(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch, new or replayed, is attacked once; memories see the images as they are."""
    values = {**SETTINGS[name][0], "attack": STRENGTH, "attack_guard": False}
    method: Method = registry.methods.load(name)(Network(MLP((3, 8, 8), units=(16,))), **values)
    stream, seen = synthetic(seed=1, tasks=2, size=8), []
    own, gradient = method.attacked, method.gradient

    def attacked(batch: Batch) -> Batch:
        found = own(batch)
        assert batch.original is None  # was not attacked before
        seen.append(found)
        return found

    def watched(batch: Batch) -> Any:
        assert batch is seen[-1]
        return gradient(batch)

    monkeypatch.setattr(method, "attacked", attacked)
    monkeypatch.setattr(method, "gradient", watched)
    learn(method, stream, replace(PLAN, epochs=1))
    batches = sum(-(-len(task.train) // PLAN.batch) for task in stream)
    buffers = [part for part in method.modules() if isinstance(part, ReplayBuffer)]
    assert len(seen) > batches if buffers else len(seen) == batches
    originals = torch.cat([task.train.take(slice(None))[0] for task in stream])
    for buffer in buffers:
        assert all(bool((x == originals).flatten(1).all(1).any()) for x in buffer["x"][::5])


@pytest.mark.parametrize("kind", [ReservoirBuffer, TaskBuffer])
def test_a_buffer_holds_scales_where_images_are_to_be_attacked(kind: type[Any]) -> None:
    batch = mixed()
    for scaled in (False, True):
        buffer = kind(10, scaled=scaled)
        buffer.add(batch)
        assert ("mean" in buffer, "std" in buffer) == (scaled, scaled)
        for drawn in (buffer.sample(6), buffer.sample_of_one_task(6)):
            assert (drawn.pixels is not None) == scaled
            if scaled:
                tasks = drawn.task if isinstance(drawn.task, Tensor) else torch.full((len(drawn),), drawn.task)
                mean, std = own_scale(replace(drawn, task=tasks))
                assert torch.equal(drawn.pixels.mean, mean)
                assert torch.equal(drawn.pixels.std, std)


@pytest.mark.parametrize("name", ["finetune", "er", "rcl"])
def test_no_attack_is_what_it_was_before_there_was_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, whatever the other values of the attack are."""
    outcomes = []
    for values in ({}, {"attack": None, "attack_steps": 4, "attack_guard": False}):
        method = make(name, "mlp", **values)
        outcomes.append(outcome(method, learn(method, synthetic(seed=1, tasks=2), replace(PLAN, epochs=1))))
    assert equal(*outcomes)
    method = make(name, "mlp")
    monkeypatch.setattr(Method, "attacked", lambda _, batch: batch)
    monkeypatch.setattr(loop, "guard", lambda *_: None)
    assert equal(outcomes[0], outcome(method, learn(method, synthetic(seed=1, tasks=2), replace(PLAN, epochs=1))))
    assert method.remembered() == type(method).state_attributes


@pytest.mark.parametrize("value", ["attack=2", "attack=-1/255", "attack=0", "attack_steps=0", "attack_guard=perhaps"])
@pytest.mark.parametrize("name", ["finetune", "gpm", "pat"])
def test_bad_values_are_one_line(name: str, value: str) -> None:
    key, _, given = value.partition("=")
    for ask in (
        lambda: spec(name, "synthetic", values={key: given}),
        lambda: registry.methods.load(name)(network(), **{key: given}),
    ):
        with pytest.raises(WrongValue) as error:
            ask()
        assert f"{value} is not allowed; {key} takes" in str(error.value)
        assert "\n" not in str(error.value)


def test_fractions_are_strengths() -> None:
    assert spec("rcl", "six", values={"attack": "4/255"}).values["attack"] == 4 / 255


# ── runs of before keep their names ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", list(registry.methods))
def test_a_specification_says_only_what_is_attacked(name: str) -> None:
    values = ("attack", "attack_steps", "attack_guard")
    plain = spec(name, "six")
    assert [key for key in values if key in plain.plain()["values"]] == ([*values] if name == "pat" else [])
    for given in ({}, {"attack": "4/255"}, {"attack": None, "attack_steps": 3}, {"attack": 0.1, "attack_guard": False}):
        asked = spec(name, "six", values=given)
        assert RunSpec.from_plain(asked.plain()) == asked
        assert complete(asked.plain())["values"] == asked.values
    digests = {spec(name, "six", values={"attack": a}).digest() for a in (None, 1 / 255, 2 / 255)}
    assert len(digests) == 3


def test_a_method_of_the_users_own_without_these_values_is_read_back_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry.methods, "_own", {})  # it is forgotten afterwards

    class Plain(Method):
        def __init__(self, net: Network) -> None:
            super().__init__(net)

    asked = spec(Plain, "six")
    assert asked.values == {}
    assert complete(asked.plain())["values"] == {}


# ── PAT ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_its_gradient_is_gpms_on_the_attacked_batch() -> None:
    stream = synthetic(seed=1, tasks=2)
    pat, gpm = make("pat"), make("gpm")
    assert isinstance(pat, PAT)
    assert isinstance(gpm, GPM)
    assert pat.attack == 4 / 255
    learn(pat, stream.tasks[:1], replace(PLAN, epochs=1))
    _, second = pat.lessons(stream)
    pat.net.add_head(3)
    gpm.load_state_dict(pat.state_dict())
    batch = pat.train().attacked(mixed(second))
    found, expected = [], []
    for method, kept in ((pat, found), (gpm.train(), expected)):
        torch.manual_seed(3)
        kept.append(method.gradient(batch))
    assert equal(found[0], expected[0])
    clean = gpm.gradient(mixed(second))
    assert not torch.allclose(clean["backbone.fc1.weight"], found[0]["backbone.fc1.weight"], atol=1e-4)


def test_it_is_gpm_with_the_attack() -> None:
    outcomes = []
    for name, values in (("pat", {}), ("gpm", {"attack": 4 / 255})):
        method = make(name, "mlp", **values)
        outcomes.append(outcome(method, learn(method, synthetic(seed=1, tasks=2), replace(PLAN, epochs=1))))
    assert equal(*outcomes)
    assert SETTINGS["pat"][0] == {}


# ── the guard ───────────────────────────────────────────────────────────────────────────────────────────────────


class Said(Callback):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_warning(self, text: str) -> None:
        self.texts.append(text)


def fake(monkeypatch: pytest.MonkeyPatch, *accuracies: tuple[float, float]) -> list[int]:
    """Accuracies under the attack of training and under a stronger one, epoch by epoch; the steps asked for."""
    epochs, asked = iter(accuracies), list[int]()
    now: list[float] = []

    def answer(method: Method, _lesson: Lesson, _strength: float, steps: int) -> float:
        asked.append(steps)
        if steps > method.attack_steps_now:
            now[:] = next(epochs)
        return now[steps > method.attack_steps_now]

    monkeypatch.setattr(guard, "accuracy_under_attack", answer)
    return asked


def test_it_sees_a_collapse_says_so_and_takes_more_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake(monkeypatch, (50, 48), (70, 20), (60, 55), (80, 10), (80, 10))
    method, said = make("pat", "mlp"), Said()
    (lesson,) = method.lessons(synthetic(seed=1, tasks=1))
    fit(method, lesson, replace(PLAN, epochs=5), 1, said)
    assert method.attack_steps_now == 8
    assert method.attack_steps == 1
    assert asked == [5, 5, 1, 5, 5, 2, 8, 4]  # the weaker one only where there is something to compare it with
    assert said.texts == list(method.cautions)
    assert len(said.texts) == 3
    assert "task 1, epoch 2" in said.texts[0]
    assert "(1 step) 70 %" in said.texts[0]
    assert "goes on with 2 steps" in said.texts[0]
    forwards: list[Any] = []
    method.net.backbone.register_forward_pre_hook(lambda *args: forwards.append(args))
    method.attacked(mixed(lesson))
    assert len(forwards) == 8


@pytest.mark.parametrize(
    "seen",
    [
        [(60, 45), (60, 41)],  # apart, but not by more than 20 points
        [(60, 40), (90, 69)],  # apart, while robustness grows
        [(60, 50), (75, 25)],  # half of the best is left
        [(30, 50), (20, 5)],  # both fall: that is no collapse of the attack
    ],
)
def test_it_keeps_quiet_otherwise(seen: list[tuple[float, float]], monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, *seen)
    method, said = make("pat", "mlp"), Said()
    (lesson,) = method.lessons(synthetic(seed=1, tasks=1))
    fit(method, lesson, replace(PLAN, epochs=2), 1, said)
    assert (method.attack_steps_now, said.texts, method.cautions) == (1, [], ())


def test_a_new_lesson_has_a_best_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, (90, 90), (60, 30))
    method = make("pat", "mlp")
    learn(method, synthetic(seed=1, tasks=2), replace(PLAN, epochs=1))
    assert method.cautions == ()
    assert method.robust_best == 30


def test_a_collapsed_epoch_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, (50, 48), (70, 20))
    method = make("pat", "mlp")
    (lesson,) = method.lessons(synthetic(seed=1, tasks=1))
    epochs = fit(method, lesson, replace(PLAN, epochs=2, keep="best"), 1)
    assert epochs[1].valid.loss < epochs[0].valid.loss
    assert [epoch.best for epoch in epochs] == [True, False]


@pytest.mark.parametrize("values", [{"attack": None}, {"attack_guard": False}])
def test_it_costs_nothing_where_it_is_not_wanted(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake(monkeypatch)
    method = make("pat", "mlp", **values)
    (lesson,) = method.lessons(synthetic(seed=1, tasks=1))
    fit(method, lesson, replace(PLAN, epochs=1), 1)
    assert asked == []


def test_what_it_draws_depends_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []
    monkeypatch.setattr(loop, "guard", lambda *_: drawn.append(float(torch.rand(()))))
    for outside in (1, 2):
        method = make("pat", "mlp")
        (lesson,) = method.lessons(synthetic(seed=1, tasks=1))
        torch.manual_seed(outside)
        fit(method, lesson, replace(PLAN, epochs=2), 1)
        assert torch.initial_seed() == outside
    assert drawn[:2] == drawn[2:]
    assert drawn[0] != drawn[1]


def test_it_measures_validation_images_under_attack_and_changes_nothing() -> None:
    method = FineTune(network(), attack=STRENGTH)
    given = Lesson(0, parts())
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    with torch.no_grad():  # answers that a tiny move cannot turn, and others that any can
        clean = sum(
            int((method.eval().forward(x, part.task).logits.argmax(1) == y).sum())
            for part in given.parts
            for x, y in part.valid.batches(64)
        )
    modes: list[bool] = []
    method.train().net.backbone.register_forward_pre_hook(lambda net, _: modes.append(net.training))
    assert guard.accuracy_under_attack(method, given, 1e-9, 1) == pytest.approx(100 * clean / 24)
    assert set(modes) == {False}
    assert guard.accuracy_under_attack(method, given, 0.5, 5) < 100 * clean / 24 - 10
    assert equal(before, method.state_dict())
