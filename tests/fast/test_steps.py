"""Whole steps of methods: with and without fast paths, in other forms, in half precision."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from perdure import fast, registry
from perdure.errors import TooFewSamples
from perdure.fast.lazy import LowRankGrad, PerturbedWeight
from perdure.methods.rcl import RCL
from perdure.methods.trgp import TRGP
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.types import Batch

from .steps import METHODS, NETS, assert_same, calls_of, gradient, images, lesson, on_a_later_task


@pytest.mark.parametrize(
    ("method", "net"),
    [
        (method, net)
        for method in METHODS
        for net in NETS
        if "dropout" not in net and not (net == "resnet18" and ("," in method or method in ("pat", "sgp", "ewc")))
    ],  # a ResNet18's steps take long
)
def test_a_step_without_any_fast_path_is_the_same(method: str, net: str) -> None:
    quick = gradient(method, net)
    # TRGP's scales are written in a basis, which these turn
    kept = {"gram", "channels_last"} if method.startswith("trgp") else set()
    with fast.without(*(fast.PATHS.keys() - kept)):
        assert_same(quick, gradient(method, net))


@pytest.mark.parametrize("method", ["rcl", "rcl, paper", "dfgp", "fsdgpm", "fsdgpm, first order", "fsdgpm, cut"])
@pytest.mark.parametrize("net", ["alexnet", "mlp"])
def test_a_step_with_every_linear_layer_in_factors(method: str, net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LowRankGrad, "worth", lambda _: True)
    # entries that are cut have to be written out, after the projection
    with calls_of(LowRankGrad, "of") if "cut" in method else calls_of(PerturbedWeight, "linear") as taken:
        quick = gradient(method, net)
    assert len(taken) > 0
    with fast.without("low_rank"):
        assert_same(quick, gradient(method, net))


def test_weights_that_are_used_in_other_ways_are_scaled_whole() -> None:
    """A network that multiplies by a layer's weight outside of the layer."""

    class Odd(MLP):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden, features = super().forward(x)
            return hidden @ self.hidden[1].weight.T.tanh(), features  # type: ignore[union-attr,operator]

    it = TRGP(Network(Odd((3, 32, 32), units=(40, 40))), threshold=0.9, trust=0.0)
    on_a_later_task(it)
    assert {key.split("/")[1] for key in it.live} == {"hidden.0", "hidden.1"}
    for scale in it.live.parameters():
        with torch.no_grad():
            scale += torch.randn(scale.shape, dtype=scale.dtype)
    x = images(5)
    for task in (1, 0):  # another task, other scales
        torch.testing.assert_close(it.train().forward(x, task).logits, it.eval().forward(x, task).logits)
    it.train()
    torch.manual_seed(0)
    quick = it.gradient(lesson(1).sample(12))
    torch.manual_seed(0)
    with fast.without("all"):
        assert_same(quick, it.gradient(lesson(1).sample(12)))


def test_one_image_is_too_few_in_joint_batches_as_well(fresh_net: Callable[[], Network]) -> None:
    method = RCL(fresh_net())
    method.net.add_head(3)
    with pytest.raises(TooFewSamples, match="two images or more"):
        method.gradient(Batch(torch.rand(1, 3, 32, 32), torch.tensor([0]), 0))


def test_joint_batches_of_several_tasks() -> None:
    """Raw and mixed images go together with a task for each image as well."""
    torch.manual_seed(0)
    method = METHODS["rcl"](Network(NETS["alexnet"]()))
    for _ in range(2):
        method.net.add_head(3)
    method.double().train()
    batch = Batch(images(8), torch.arange(8) % 3, torch.tensor([0, 1, 1, 0, 1, 0, 0, 0]))
    torch.manual_seed(1)
    with calls_of(Network, "_joint") as taken:
        quick = method.gradient(batch)
    assert len(taken) == 2  # up and down
    assert {"heads.0.weight", "heads.1.weight"} <= quick.keys()
    torch.manual_seed(1)
    with fast.without("joint_batches"):
        assert_same(quick, method.gradient(batch))


# --- half precision -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [n if n in ("gpm", "rcl") else pytest.param(n, marks=pytest.mark.thorough) for n in sorted(registry.methods)],
)
def test_half_precision_gives_nearly_the_same_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a later task, with whatever can be kept in factors. Forwards compute with eight bits, so entries differ;
    the direction as a whole hardly does, and less so from that without fast paths. Methods that ascend before they
    descend amplify the difference; their directions are summed over three mixtures of all images, for how that of a
    single one is rounded depends on the processor."""
    climbs = name in ("dfgp", "rcl", "fsdgpm")  # and what is rounded there is rounded again on the way down
    monkeypatch.setattr(LowRankGrad, "worth", lambda _: True)

    def direction(half: bool) -> Tensor:
        torch.manual_seed(5)
        learner = on_a_later_task(registry.methods.load(name)(Network(NETS["alexnet"]())), torch.float32)
        learner.net.in_bf16 = half
        torch.manual_seed(7)
        gradients = [learner.gradient(lesson(1, torch.float32).sample(24)) for _ in range(3 if climbs else 1)]
        assert all(g.dtype == torch.float32 for gradient in gradients for g in gradient.values())
        return torch.stack([torch.cat([g[key].flatten() for key in sorted(g)]) for g in gradients]).sum(0)

    exact, half = direction(False), direction(True)
    with fast.without("low_rank", "project_inputs", "joint_batches", "rescale_inputs", "pooling"):
        plain = direction(True)
    assert 0.9 < float(F.cosine_similarity(exact, half, dim=0)) < 1 - 1e-7  # it did compute in another precision
    assert float(F.cosine_similarity(plain, half, dim=0)) > (0.97 if climbs else 0.995)


def test_half_precision_is_for_learning_alone(fresh_net: Callable[[], Network]) -> None:
    net = fresh_net()
    net.add_head(3)
    x = torch.rand(4, 3, 32, 32)
    exact = net.eval()(x, 0).logits
    net.in_bf16 = True
    assert torch.equal(net(x, 0).logits, exact)
    assert not torch.equal(net.train()(x, 0).logits, exact)
