"""Training on images with Gaussian noise: how much of it, where it goes, and that nothing else changes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from checks import PLAN, SETTINGS, equal, make, outcome

from perdure import registry
from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import WrongValue
from perdure.lab.spec import RunSpec, complete, spec
from perdure.memory.replay_buffer import ReplayBuffer
from perdure.methods.finetune import FineTune
from perdure.methods.method import Method
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.train.evaluate import evaluate
from perdure.train.learn import learn
from perdure.types import Batch, Lesson, Part, Split

SIGMA = 0.12
# Two tasks whose channels are normalized differently, one with a single number for all of them.
SCALES = (((0.1, 0.5, 0.9), (0.05, 0.5, 2.0)), ((0.3,), (0.2,)))


def mixed() -> Batch:
    """Half black, half white: noise that were clipped would go one way only."""
    parts = []
    for task, (mean, std) in enumerate(SCALES):
        x = torch.zeros(40, 3, 16, 16)
        x[:, :, 8:] = 1.0
        split = Split(x, torch.arange(40) % 3, mean, std)
        parts.append(Part(task, 3, split, split))
    return next(Lesson(0, tuple(parts)).batches(80, torch.Generator().manual_seed(0)))


def method(**values: Any) -> Method:
    return FineTune(Network(MLP((3, 8, 8), units=(16,))), **values).train()


def test_it_has_its_deviation_in_pixels_whatever_the_normalization() -> None:
    batch = mixed()
    noisy = method(noise=SIGMA).attacked(batch)
    assert isinstance(batch.task, torch.Tensor)
    for task, (_, std) in enumerate(SCALES):
        rows = batch.task == task
        for channel in range(3):
            added = (noisy.x - batch.x)[rows, channel] * std[channel % len(std)]
            assert float(added.std()) == pytest.approx(SIGMA, rel=0.03)
            for half in (added[:, :8], added[:, 8:]):  # black and white
                assert float(half.mean()) == pytest.approx(0, abs=0.01)
    assert noisy.y is batch.y
    assert noisy.task is batch.task
    assert noisy.original is batch.x
    assert noisy.pixels is batch.pixels


def test_it_is_drawn_anew_for_each_batch_by_torchs_own_generator() -> None:
    batch, noisy = mixed(), method(noise=SIGMA)
    torch.manual_seed(3)
    first, second = noisy.attacked(batch), noisy.attacked(batch)
    torch.manual_seed(3)
    assert torch.equal(noisy.attacked(batch).x, first.x)
    assert not torch.equal(first.x, second.x)


def test_originals_of_augmented_images_stay() -> None:
    batch = replace(mixed(), original=torch.ones(1))
    assert method(noise=SIGMA).attacked(batch).original is batch.original


def test_it_costs_no_forward() -> None:
    noisy, forwards = method(noise=SIGMA), []
    noisy.net.backbone.register_forward_pre_hook(lambda *args: forwards.append(args))
    noisy.attacked(mixed())
    assert not forwards


def test_a_batch_that_does_not_tell_its_pixels_is_refused() -> None:
    with pytest.raises(WrongValue, match=r"give Batch\.pixels"):
        method(noise=SIGMA).attacked(replace(mixed(), pixels=None))


def test_none_is_drawn_in_evaluation() -> None:
    stream = synthetic(seed=1, tasks=1)
    noisy = make("gpm", "mlp", noise=SIGMA)
    learn(noisy, stream, replace(PLAN, epochs=1))
    plain = make("gpm", "mlp")
    plain.net.add_head(len(stream.tasks[0].classes))
    plain.load_state_dict(noisy.state_dict())
    state = torch.get_rng_state()
    one, other = (evaluate(of, stream.tasks[0].test, 0) for of in (noisy, plain))
    assert one == other
    assert torch.equal(torch.get_rng_state(), state)


# ── every method takes it ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", list(registry.methods))
def test_every_method_is_trained_on_noisy_images(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch, new or replayed, gets noise once; memories hold the images as they are."""
    values = {**SETTINGS[name][0], "attack": None, "noise": SIGMA}
    noisy: Method = registry.methods.load(name)(Network(MLP((3, 8, 8), units=(16,))), **values)
    stream, seen = synthetic(seed=1, tasks=2, size=8), []
    own, gradient = noisy.attacked, noisy.gradient

    def attacked(batch: Batch) -> Batch:
        assert batch.original is None
        seen.append(own(batch))
        return seen[-1]

    def watched(batch: Batch) -> Any:
        assert batch is seen[-1]
        return gradient(batch)

    monkeypatch.setattr(noisy, "attacked", attacked)
    monkeypatch.setattr(noisy, "gradient", watched)
    learn(noisy, stream, replace(PLAN, epochs=1))
    assert all(batch.original is not None and not torch.equal(batch.x, batch.original) for batch in seen)
    batches = sum(-(-len(task.train) // PLAN.batch) for task in stream)
    buffers = [part for part in noisy.modules() if isinstance(part, ReplayBuffer)]
    assert (len(seen) > batches) == bool(buffers)
    images = {row.numpy().tobytes() for task in stream for row in task.train.normalize(task.train.pixels(slice(None)))}
    assert all(row.numpy().tobytes() in images for buffer in buffers for row in buffer["x"])
    assert noisy.cautions == ()


@pytest.mark.parametrize("name", ["finetune", "pat"])
def test_it_is_not_taken_beside_an_attack(name: str) -> None:
    with pytest.raises(WrongValue, match="attack and noise cannot both be set") as error:
        make(name, "mlp", attack=4 / 255, noise=SIGMA)
    assert "\n" not in str(error.value)
    make(name, "mlp", attack=None, noise=SIGMA)


@pytest.mark.parametrize("value", ["noise=2", "noise=-0.1", "noise=0"])
def test_bad_values_are_one_line(value: str) -> None:
    key, _, given = value.partition("=")
    with pytest.raises(WrongValue, match=f"{value} is not allowed; {key} takes"):
        spec("gpm", "synthetic", values={key: given})


def test_pat_with_noise_is_gpm_with_noise() -> None:
    outcomes = []
    for name, values in (("pat", {"attack": None}), ("gpm", {})):
        noisy = make(name, "mlp", noise=SIGMA, **values)
        outcomes.append(outcome(noisy, learn(noisy, synthetic(seed=1, tasks=2), replace(PLAN, epochs=1))))
    assert equal(*outcomes)


# ── runs of before keep their names ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "benchmark", "values", "digest"),
    [
        ("pat", "six", {}, "10a0a2057e25ccdc"),
        ("pat", "six", {"attack": None}, "d52f3286dd296d72"),
        ("gpm", "six", {}, "a4cf5aafb7eedb99"),
        ("gpm", "six", {"attack": "4/255"}, "9e55732aa36305ab"),
        ("er", "cifar100", {}, "d319a038c36ff856"),
    ],
)
def test_digests_are_those_from_before_there_was_noise(
    name: str, benchmark: str, values: dict[str, Any], digest: str
) -> None:
    before: dict[str, Any] = {"plan": {"valid_order": "fixed"}}
    assert spec(name, benchmark, values=values, **before).digest() == digest
    assert spec(name, benchmark, values={"attack": None, "noise": 0.1}, **before).digest() != digest


@pytest.mark.parametrize("name", ["gpm", "pat"])
def test_a_specification_says_only_what_is_noisy(name: str) -> None:
    assert "noise" not in spec(name, "six").plain()["values"]
    asked = spec(name, "six", values={"attack": None, "noise": SIGMA})
    for one in (asked, spec(name, "six")):
        assert RunSpec.from_plain(one.plain()) == one
        assert complete(one.plain())["values"] == one.values
