"""The loop, the schedules and evaluation."""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from networks import Tracking
from torch import Tensor

from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import BadData, Diverged, TooFewSamples
from perdure.methods.agem import AGEM
from perdure.methods.finetune import FineTune
from perdure.methods.gpm import GPM
from perdure.methods.method import Method
from perdure.methods.mtl import MTL
from perdure.methods.rcl import RCL
from perdure.nets.alexnet import SlimAlexNet
from perdure.nets.mlp import MLP
from perdure.nets.network import Backbone, Network
from perdure.seeding import generator
from perdure.train.callbacks import Callback, StepContext
from perdure.train.evaluate import RunningScore, evaluate
from perdure.train.fit import check_lesson, fit
from perdure.train.learn import learn
from perdure.train.plan import Plan
from perdure.train.schedules import Linear, Plateau
from perdure.types import Batch, EpochStart, Gradient, Lesson, Part, Split, Stream, Task, cut

QUICK = Plan(rate=0.02, epochs=2, batch=16, schedule="linear", keep="last")


def first_images(split: Split, count: int) -> Split:
    return replace(split, x=split.x[:count], y=split.y[:count])


def test_where_no_network_has_a_seed_it_is_one(stream: Stream) -> None:
    found = []
    for given in ({}, {"seed": 1}):
        method = FineTune(Network(MLP(stream.shape)))
        method.net.backbone.seed = None  # as of networks that are no backbones of ours
        learn(method, stream.tasks[:1], QUICK, **given)
        found.append(method.net.heads[0].weight)
    assert torch.equal(*found)


def test_each_draw_of_a_lesson_comes_from_its_own_stream(stream: Stream) -> None:
    """By the seed, a word and numbers: so a run of another version of perdure draws the same."""

    class Drawing(FineTune):
        def begin(self, lesson: Lesson) -> None:
            drawn["begin", lesson.index] = torch.rand(3)

        def gradient(self, batch: Batch) -> Gradient:
            drawn.setdefault(("train", batch.task, len(drawn)), torch.rand(3))
            return super().gradient(batch)

        def end(self, lesson: Lesson) -> None:
            drawn["end", lesson.index] = torch.rand(3)

    def expected(*purpose: str | int) -> Tensor:
        return torch.rand(3, generator=generator(5, *purpose))

    drawn: dict[tuple[str | int, ...], Tensor] = {}
    learn(Drawing(Network(MLP(stream.shape, seed=5))), stream.tasks[:2], replace(QUICK, epochs=1, batch=100), seed=5)
    found = {(*key[:2], 0) if key[0] == "train" else key: value for key, value in drawn.items()}
    assert found.keys() == {key for task in (0, 1) for key in (("begin", task), ("train", task, 0), ("end", task))}
    assert all(torch.equal(value, expected(*key)) for key, value in found.items())


def test_validation_batches_are_new_after_each_epoch_only_where_that_is_asked_for(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the seed, the lesson and the epoch, so that a run that is resumed sees the same ones."""
    taken: dict[str, list[Tensor]] = {}

    def pieces(self: Split, size: int, images: int | None = None, order: torch.Generator | None = None) -> list[Tensor]:
        found = plain(self, size, images, order)
        if len(self) == len(task.valid):
            taken[valid_order].append(torch.cat(found))
        return found

    plain, task = Split.pieces, replace(stream.tasks[0], valid=first_images(stream.tasks[0].valid, 10))
    monkeypatch.setattr(Split, "pieces", pieces)
    for valid_order in ("fixed", "shuffled"):
        taken[valid_order] = []
        method = FineTune(Network(MLP(stream.shape, seed=3)))
        learn(method, [task], replace(QUICK, valid_order=valid_order))
    first, second = taken["fixed"]
    assert torch.equal(first, second)
    expected = [torch.randperm(len(first), generator=generator(3, "valid", 0, epoch)) for epoch in range(2)]
    assert len(taken["shuffled"]) == 2
    assert all(map(torch.equal, taken["shuffled"], expected))


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_weights_of_the_start_are_kept_only_if_the_best_are_asked_for(keep: str, stream: Stream) -> None:
    class First(Callback):
        def on_step(self, now: StepContext) -> None:
            kept.append(len(now.at.best_weights))

    kept: list[int] = []
    method = FineTune(Network(MLP(stream.shape)))
    learn(method, stream.tasks[:1], replace(QUICK, epochs=1, keep=keep), callback=First())
    assert (kept[0] > 0) == (keep == "best")


def test_plateau_follows_the_papers_rule() -> None:
    plateau = Plateau(rate=0.01, factor=2, patience=2, floor=0.004)
    assert plateau.see(1.0)
    assert not plateau.see(1.0)  # only strictly lower counts
    assert plateau.rate == 0.01
    assert not plateau.see(1.5)
    assert plateau.rate == 0.005
    assert not plateau.stopped
    assert plateau.see(0.9)
    assert not plateau.see(0.95)
    assert not plateau.see(0.95)
    assert plateau.stopped


def test_a_rate_at_its_floor_is_still_learned_with() -> None:
    """The rule is: stop when the new rate is below the floor."""
    plateau = Plateau(rate=0.5, factor=2, patience=1, floor=0.125)
    stopped = []
    for loss in (1.0, 1.0, 1.0, 1.0):
        plateau.see(loss)
        stopped.append((plateau.rate, plateau.stopped))
    assert stopped == [(0.5, False), (0.25, False), (0.125, False), (0.0625, True)]


def test_cifar_rate_drops_ten_times_before_it_stops() -> None:
    plateau, drops, rate = Plateau(rate=0.01, factor=2, patience=6, floor=1e-5), 0, 0.01
    plateau.see(1.0)
    while not plateau.stopped:
        plateau.see(1.0)
        drops, rate = drops + (plateau.rate < rate), plateau.rate
    assert drops == 10
    assert rate == pytest.approx(9.8e-6, rel=0.01)


def test_linear_falls_evenly() -> None:
    linear, rates = Linear(0.1, 4), []
    for loss in (3.0, 2.0, 2.5, 1.0):
        rates.append(linear.rate)
        linear.see(loss)
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025])


@pytest.mark.parametrize("backbone", [SlimAlexNet, Tracking])
def test_the_best_weights_are_restored_or_the_last_kept(backbone: type[Backbone], stream: Stream) -> None:
    """A gradient that ruins the weights after the first epoch: "best" goes back, "last" does not. Running statistics
    go with the weights they belong to."""

    class Spoiler(FineTune):
        steps = 0

        def gradient(self, batch: object) -> Gradient:
            self.steps += 1
            gradient = super().gradient(batch)  # type: ignore[arg-type]
            return gradient if self.steps <= 6 else {name: -5 * slope for name, slope in gradient.items()}

    scores = {}
    for keep in ("best", "last"):
        method = Spoiler(Network(backbone(stream.shape)))  # type: ignore[call-arg]
        lesson = next(iter(method.lessons(stream)))
        plan = Plan(rate=0.02, epochs=4, batch=16, schedule="linear", keep=keep)
        history = fit(method, lesson, plan, seed=1)
        scores[keep] = evaluate(method, lesson.parts[0].valid, 0).loss
    best = min(epoch.valid.loss for epoch in history)
    assert scores["best"] == pytest.approx(best)
    assert scores["last"] > scores["best"]


def test_chance_outside_changes_nothing_inside() -> None:
    def outcome(seed: int) -> dict[str, torch.Tensor]:
        method = GPM(Network(Tracking(seed=seed)))
        learn(method, synthetic(seed=1, tasks=2), QUICK, seed)
        return method.state_dict()

    torch.manual_seed(1)
    one = outcome(3)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    two, three = outcome(3), outcome(4)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], three[name]) for name in one if one[name].shape == three[name].shape)


def test_methods_with_one_seed_see_the_same_batches(fresh_net: Callable[[], Network], stream: Stream) -> None:
    seen: dict[str, list[torch.Tensor]] = {}
    for maker in (FineTune, RCL):

        class Spy(maker):  # type: ignore[valid-type, misc]
            def gradient(self, batch: object) -> Gradient:
                seen.setdefault(self.__class__.__mro__[1].__name__, []).append(batch.x)  # type: ignore[attr-defined]
                return super().gradient(batch)  # type: ignore[no-any-return]

        method = Spy(fresh_net())
        fit(method, next(iter(method.lessons(stream))), QUICK, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(seen["FineTune"], seen["RCL"], strict=True))
    assert not torch.equal(seen["RCL"][0], seen["RCL"][len(seen["RCL"]) // 2])  # epochs differ


STILL = Plan(rate=1e-30, epochs=1, batch=16, schedule="constant", keep="last")  # too slow for any weight to move


def test_every_head_starts_as_seed_and_task_say(stream: Stream) -> None:
    """Each task's with weights of its own, and a task's with the same whether it is learned alone or with others."""

    def first_heads(maker: type[Method], seed: int) -> list[torch.Tensor]:
        method = maker(Network(MLP(stream.shape, units=(8,), seed=seed)))
        learn(method, stream, STILL)
        return [head.weight.detach() for head in method.net.heads]  # type: ignore[union-attr, misc]

    one_by_one, together, other = first_heads(FineTune, 1), first_heads(MTL, 1), first_heads(FineTune, 2)
    assert one_by_one[0].shape == one_by_one[1].shape
    assert not torch.equal(one_by_one[0], one_by_one[1])
    for task in (0, 1):
        assert torch.equal(one_by_one[task], together[task])
        assert not torch.equal(one_by_one[task], other[task])


def test_a_method_is_told_how_far_the_rate_has_fallen(stream: Stream) -> None:
    told = []

    class Listening(FineTune):
        def begin_epoch(self, start: EpochStart) -> None:
            told.append((start.epoch, start.epochs, start.lr_scale, start.fallen))

    plan = Plan(rate=0.02, epochs=4, batch=16, schedule="linear", keep="last")
    learn(Listening(Network(MLP(stream.shape, units=(8,)))), stream, plan)
    assert told == 2 * [
        (0, 4, 1.0, 0),
        (1, 4, 0.75, 0),
        (2, 4, 0.5, 0),
        (3, 4, 0.25, 0),
    ]  # the full rate again for each task


def test_a_stream_without_known_end(fresh_net: Callable[[], Network]) -> None:
    stream = synthetic(seed=1, tasks=3)
    learned = learn(GPM(fresh_net()), (task for task in stream), QUICK)
    assert [len(row) for row in learned.matrix] == [1, 2, 3]


def test_evaluation_repeats_and_does_not_depend_on_the_order_of_files(stream: Stream) -> None:
    method = FineTune(Network(Tracking()))
    learn(method, stream.tasks[:1], QUICK)
    test = stream.tasks[0].test
    assert evaluate(method.train(), test, 0) == evaluate(method.train(), test, 0)
    by_class = test.y.argsort()
    ordered = Split(test.x[by_class], test.y[by_class], test.mean, test.std)
    assert abs(evaluate(method, ordered, 0).accuracy - evaluate(method, test, 0).accuracy) <= 10


def test_divergence_is_named_and_says_what_to_do(stream: Stream) -> None:
    with pytest.raises(Diverged, match=r"no longer a number after epoch 1 .* --plan rate="):
        learn(FineTune(Network(MLP((3, 32, 32)))), stream, Plan(rate=1e30, epochs=3, batch=16))
    with pytest.raises(Diverged, match=r"--plan rate=0.01$"):  # a rate that can work
        learn(FineTune(Network(MLP((3, 32, 32)))), stream, Plan(rate=1e9, epochs=3, batch=16, momentum=0.9))


# ── bad and unusual data: decided, each tested ──────────────────────────────────────────────────────────────


def split(n: int, classes: int = 2, value: float = 0.5, **values: object) -> Split:
    x = torch.full((n, 3, 32, 32), value) + 0.1 * torch.rand(n, 3, 32, 32)
    return Split(**{"x": x, "y": torch.arange(n) % classes, **values})


def test_a_last_batch_of_one_joins_the_one_before() -> None:
    assert [piece.stop - piece.start for piece in cut(33, 16)] == [16, 17]
    assert [piece.stop - piece.start for piece in cut(34, 16)] == [16, 16, 2]
    assert [piece.stop - piece.start for piece in cut(17, 8)] == [8, 9]
    assert [piece.stop - piece.start for piece in cut(5, 2)] == [2, 3]
    assert [piece.stop - piece.start for piece in cut(3, 1)] == [1, 1, 1]  # as was asked for
    assert [piece.stop - piece.start for piece in cut(4750, 64)][-1] == 14  # the papers' own tail stays
    assert sum(piece.stop - piece.start for piece in cut(1000, 64)) == 1000


@pytest.mark.parametrize("maker", [FineTune, GPM, RCL])
def test_a_lesson_whose_last_batch_would_be_one_sample(maker: type[FineTune], fresh_net: Callable[[], Network]) -> None:
    task = Task("odd", ("a", "b"), split(17), split(17), split(17))
    assert math.isfinite(learn(maker(fresh_net()), [task], QUICK).matrix[0][0])


def test_one_image_alone_is_refused_where_batch_statistics_need_two(fresh_net: Callable[[], Network]) -> None:
    net = fresh_net()
    net.add_head(2)
    with pytest.raises(TooFewSamples, match="two images or more"):
        net(torch.rand(1, 3, 32, 32), 0)
    plain = Network(MLP((3, 32, 32)))
    plain.add_head(2)
    assert plain(torch.rand(1, 3, 32, 32), 0).logits.shape == (1, 2)


@pytest.mark.parametrize("maker", [FineTune, GPM, RCL])
def test_a_task_of_one_class_is_learned_perfectly(maker: type[FineTune], fresh_net: Callable[[], Network]) -> None:
    only = Task("only", ("a",), split(20, 1), split(8, 1), split(8, 1))
    other = Task("other", ("a", "b"), split(20), split(8), split(8))
    learned = learn(maker(fresh_net()), [only, other], QUICK)
    assert learned.matrix[0] == [100.0]
    assert learned.matrix[1][0] == 100.0


BAD = {
    "empty": (lambda: split(0), "no images"),
    "nan": (
        lambda: split(4, x=torch.full((4, 3, 32, 32), math.nan)),
        "image 0 has a pixel that is not a finite number",
    ),
    "label too large": (
        lambda: split(4, y=torch.tensor([0, 1, 2, 0])),
        "labels reach from 0 to 2; 2 classes allow 0 to 1",
    ),
    "label negative": (lambda: split(4, y=torch.tensor([0, -1, 1, 0])), "labels reach from -1"),
    "too few labels": (lambda: split(4, y=torch.zeros(3, dtype=torch.int64)), "one int64 label per image"),
    "labels not whole": (lambda: split(4, y=torch.zeros(4)), "one int64 label per image"),
    "no channels": (lambda: split(4, x=torch.zeros(4, 32, 32)), "images must be"),
    "normalized already": (lambda: split(4, x=torch.randn(4, 3, 32, 32)), r"pixels must lie in \[0, 1\]"),
    "whole numbers": (lambda: split(4, x=torch.zeros(4, 3, 32, 32, dtype=torch.int32)), "uint8 or floats"),
    "std of zero": (lambda: split(4, mean=(0.5,) * 3, std=(0.2, 0.0, 0.2)), "std above 0"),
    "mean too short": (lambda: split(4, mean=(0.5,) * 2, std=(0.2,) * 2), "one per channel"),
    "other size": (lambda: split(4, x=torch.zeros(4, 3, 28, 28)), "different shapes"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_bad_data_never_become_a_task(make: Callable[[], Split], message: str) -> None:
    good = split(4)
    for place in ("train", "valid", "test"):
        with pytest.raises(BadData, match=message) as caught:
            Task("bad", ("a", "b"), **{"train": good, "valid": good, "test": good, place: make()})
        assert "\n" not in str(caught.value)


def test_a_stream_needs_tasks_of_one_shape(stream: Stream) -> None:
    with pytest.raises(BadData, match="no tasks"):
        Stream("none", [])
    with pytest.raises(BadData, match="different shapes"):
        Stream("two", [stream.tasks[0], synthetic(seed=1, size=8).tasks[0]])


def test_several_tasks_in_one_lesson(fresh_net: Callable[[], Network], stream: Stream) -> None:
    """Heads of different sizes, every sample with its own head."""
    wide = Task("wide", tuple("abcde"), split(40, 5), split(10, 5), split(10, 5))
    tasks = [stream.tasks[0], wide]
    lesson = Lesson(0, tuple(Part(i, len(t.classes), t.train, t.valid) for i, t in enumerate(tasks)))
    method = FineTune(fresh_net())
    history = fit(method, lesson, QUICK, seed=1)
    assert history[-1].valid.samples == len(tasks[0].valid) + len(wide.valid)
    method.eval()
    batch = lesson.sample(30)
    assert isinstance(batch.task, torch.Tensor)
    logits = method.forward(batch.x, batch.task).logits
    assert torch.isinf(logits[batch.task == 0][:, 3:]).all()
    assert torch.isfinite(logits[batch.task == 1]).all()
    assert torch.isfinite(method.loss(batch))
    assert all(torch.isfinite(slope).all() for slope in method.gradient(batch).values())


def test_a_lesson_of_several_tasks_is_validated_image_by_image() -> None:
    """Where tasks differ in size, a mean of their means would be another loss: the best epoch, and the schedule, follow
    that of all images together."""
    alike = split(3, x=torch.full((3, 3, 32, 32), 0.5))  # one answer for two labels: not all of it can be right
    few = Task("few", ("a", "b"), split(8), alike, split(8))
    many = Task("many", ("a",), split(8, 1), split(9, 1), split(8, 1))
    parts = tuple(Part(i, len(t.classes), t.train, t.valid) for i, t in enumerate((few, many)))
    method = FineTune(Network(MLP((3, 32, 32), units=(8,))))
    (epoch,) = fit(method, Lesson(0, parts), STILL, seed=1)
    losses, hits = [], 0
    for part in parts:
        logits = method.forward(*part.valid.take(slice(None))[:1], part.task).logits.detach()
        losses += torch.nn.functional.cross_entropy(logits, part.valid.y, reduction="none").tolist()
        hits += int((logits.argmax(1) == part.valid.y).sum())
    assert hits in (10, 11)
    assert losses[3:] == [0.0] * 9  # there is but one class to choose
    assert epoch.valid.loss == pytest.approx(sum(losses) / 12)
    assert epoch.valid.accuracy == pytest.approx(100 * hits / 12)
    assert epoch.valid.loss < 0.9 * sum(losses[:3]) / 3 / 2  # what the mean of both means would be


def test_parts_kept_apart_make_batches_of_one_task_each(stream: Stream) -> None:
    parts = tuple(Part(i, len(t.classes), t.train, t.valid) for i, t in enumerate(stream))
    order = torch.Generator().manual_seed(0)
    apart = list(Lesson(0, parts, mixed=False).batches(16, order))
    assert all(isinstance(batch.task, int) for batch in apart)
    assert [batch.task for batch in apart] != sorted(batch.task for batch in apart)  # type: ignore[type-var]
    assert sum(map(len, apart)) == len(stream.tasks[0].train) + len(stream.tasks[1].train)
    together = list(Lesson(0, parts).batches(16, order))
    assert any(isinstance(batch.task, torch.Tensor) for batch in together)


@pytest.mark.parametrize("asked", [False, True])
def test_the_training_score_is_of_the_answers_given_while_learning(asked: bool, stream: Stream) -> None:
    """Nothing moves here, and nothing couples the images of a batch: both ways to score the training set agree."""
    method = GPM(Network(MLP((3, 32, 32), units=(8,))))
    task = stream.tasks[0]
    lesson = Lesson(0, (Part(0, len(task.classes), task.train, task.valid),))
    plan = Plan(rate=1e-30, epochs=2, batch=16, schedule="linear", keep="last", train_scores=asked)
    looks = []
    method.net.register_forward_pre_hook(lambda *_: looks.append(method.training))
    history = fit(method, lesson, plan, seed=1)
    steps = 2 * len(cut(len(task.train), 16))
    assert sum(looks) == steps  # no forward more than it takes to learn
    expected = evaluate(method, task.train, 0)
    for epoch in history:
        assert epoch.train is not None
        assert epoch.train.loss == pytest.approx(expected.loss, rel=1e-5)
        assert (epoch.train.accuracy, epoch.train.samples) == (expected.accuracy, expected.samples)


def test_replayed_images_do_not_count() -> None:
    running, right = RunningScore(), torch.tensor([[5.0, 0.0]])
    y = torch.zeros(4, dtype=torch.int64)
    assert running.score() is None
    running.add(torch.cat([right.expand(3, 2), -right.expand(7, 2)]), y)  # six old images behind four new ones
    assert (running.samples, int(running.hits)) == (4, 3)
    assert RunningScore(**running.plain()).plain() == running.plain()


def test_a_batch_counts_once_however_often_a_method_looks_at_it(stream: Stream) -> None:
    """A-GEM takes the gradient of old images, too; RCL four forwards. Each new image counts once."""
    for maker in (AGEM, RCL):
        method = maker(Network(SlimAlexNet(stream.shape)))
        for lesson in list(method.lessons(stream))[:2]:
            for epoch in fit(method, lesson, Plan(rate=0.02, epochs=1, batch=16), seed=1):
                assert epoch.train is not None
                assert epoch.train.samples == len(lesson)


@pytest.mark.parametrize("reset", [False, True])
def test_momentum_starts_anew_where_the_rate_drops_if_asked(stream: Stream, reset: bool) -> None:
    plan = Plan(rate=1e-9, epochs=3, batch=16, momentum=0.9, patience=1, floor=1e-12, reset_momentum=reset)
    known: list[tuple[float, bool]] = []

    class Look(Callback):
        def on_step(self, now: StepContext) -> None:
            if now.at.batches == 0:  # an epoch is over
                known.append((now.at.schedule.rate, bool(now.state().optimizer["momentum"])))

    class Worse(FineTune):
        """Whose validation loss rises with every epoch but the second."""

        losses = iter([0.0, -10.0, 10.0])

        def penalty(self) -> float:
            return next(self.losses)

    learn(Worse(Network(MLP(stream.shape, units=(8,)))), stream.tasks[:1], plan, callback=Look())
    assert known == [(1e-9, True), (1e-9, True), (5e-10, not reset)]


def test_a_penalty_counts_for_the_schedule_and_for_the_best_epoch_and_not_in_the_score(stream: Stream) -> None:
    class Drawn(FineTune):
        penalties = iter([0.0, 50.0, 60.0, 70.0])

        def penalty(self) -> float:
            return next(self.penalties)

    plan = Plan(rate=0.02, epochs=4, batch=16, patience=1, floor=1e-9)
    learned = learn(Drawn(Network(MLP(stream.shape, units=(8,)))), stream.tasks[:1], plan)
    assert [epoch.best for epoch in learned.epochs] == [True, False, False, False]
    assert [epoch.rate for epoch in learned.epochs] == pytest.approx([0.02, 0.02, 0.01, 0.005])
    assert learned.epochs[-1].valid.loss < learned.epochs[0].valid.loss < 5


def test_evaluation_is_timed_apart_from_training(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*given: object, **options: object) -> object:
        time.sleep(0.2)
        return evaluate(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("perdure.train.learn.evaluate", slow)
    learned = learn(FineTune(Network(MLP(stream.shape))), stream, QUICK)
    assert learned.evaluation_seconds >= 0.6  # the first task, then both
    assert 0 < sum(epoch.seconds for epoch in learned.epochs) <= learned.seconds


def test_a_lesson_that_fails_leaves_the_method_as_it_was(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    method = GPM(Network(Tracking(stream.shape)))
    learned = learn(method, stream.tasks[:1], QUICK)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    usual, steps = method.gradient, 0

    def failing(batch: Batch) -> Gradient:
        nonlocal steps
        steps += 1
        if steps > 2:
            raise Diverged("too far")
        return usual(batch)

    monkeypatch.setattr(method, "gradient", failing)
    with pytest.raises(Diverged, match="too far"):
        learn(method, stream.tasks[1:], QUICK, learned=learned)
    after = method.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_one_training_image_is_enough_to_look_at_and_of_two_both_are(stream: Stream) -> None:
    seen = []

    class Looking(MLP):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            seen.append(x.detach().clone())
            return super().forward(x)

    for images in (1, 2):
        train = replace(stream.tasks[0].train, x=stream.tasks[0].train.x[:images], y=stream.tasks[0].train.y[:images])
        (lesson,) = FineTune(Network(MLP(stream.shape))).lessons([replace(stream.tasks[0], train=train)])
        check_lesson(FineTune(Network(Looking(stream.shape))), lesson, None)
        assert len(seen[-1]) == 2
        assert torch.equal(*seen[-1]) == (images == 1)
