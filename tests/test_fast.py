"""Every fast path gives what its plain twin gives, and can be switched off by its name."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from perdure.ops.apart import apart, parts
from perdure.ops.blocks import dropout, kept, relu_drop_pool
from perdure.ops.shield import Shield
from torch import Tensor, nn
from torch.func import functional_call

from perdure import fast, registry
from perdure.errors import TooFewSamples, UnknownName
from perdure.methods.dfgp import DFGP
from perdure.methods.ewc import EWC
from perdure.methods.fsdgpm import FSDGPM
from perdure.methods.gpm import GPM
from perdure.methods.method import Method
from perdure.methods.owm import OWM
from perdure.methods.rcl import RCL
from perdure.methods.trgp import TRGP
from perdure.nets.alexnet import AlexNet
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.nets.resnet18 import ResNet18
from perdure.ops import algebra, uphill
from perdure.ops.losses import uniformity
from perdure.ops.mixup import Mixing, Mixture, draw_mixing, mix
from perdure.ops.subspace import extend, project
from perdure.ops.trust_region import Rescaling, scaled
from perdure.types import Batch, Gradient, Lesson, Part, Split

# --- switches -------------------------------------------------------------------------------------


def test_names_switch_off_and_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_PLAIN", raising=False)
    assert all(fast.on(name) for name in fast.PATHS)
    with fast.without("gram"):
        with fast.without("together"):
            assert fast.off() == {"gram", "together"}
        assert fast.off() == {"gram"}
    assert not fast.off()
    monkeypatch.setenv("PERDURE_PLAIN", "inputs, gram")
    assert fast.off() == {"gram", "inputs"}
    monkeypatch.setenv("PERDURE_PLAIN", "all")
    assert fast.off() == fast.PATHS.keys()
    monkeypatch.setenv("PERDURE_PLAIN", "grm")
    with pytest.raises(UnknownName, match="did you mean gram"):
        fast.on("gram")


# --- whole steps: any path off, the same gradient -------------------------------------------------


def images(count: int, seed: int = 0) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, 32, 32, generator=drawn, dtype=torch.float64)


def lesson(index: int) -> Lesson:
    y = torch.arange(24) % 3
    split = Split(images(24, index), y)
    return Lesson(index, (Part(index, 3, split, split),))


NETS: dict[str, Callable[[], nn.Module]] = {
    "alexnet": lambda: AlexNet((3, 32, 32), filters=(8, 12, 16), units=(40, 36), dropout=False),
    "resnet18": lambda: ResNet18((3, 32, 32), filters=8),
    "mlp": lambda: MLP((3, 32, 32), units=(40, 36)),
}
METHODS: dict[str, Callable[[Network], Method]] = {
    "gpm": lambda net: GPM(net, threshold=0.9),
    "dfgp": lambda net: DFGP(net, threshold=0.9),
    "rcl": lambda net: RCL(net, threshold=0.9, phi_init=0.0),
    "rcl, paper": lambda net: RCL(net, threshold=0.9, phi_init=0.0, variant="paper"),
    "fsdgpm": lambda net: FSDGPM(net, threshold=0.9, look_ahead=0.1),
    "fsdgpm, first order": lambda net: FSDGPM(net, threshold=0.9, look_ahead=0.1, second_order=False),
    "fsdgpm, cut": lambda net: FSDGPM(net, threshold=0.9, look_ahead=0.1, limit=0.01),
    "trgp": lambda net: TRGP(net, threshold=0.9, trust=0.0),
    "owm": lambda net: OWM(net, clip=1e9),
    "ewc": lambda net: EWC(net, clip=None),
}


def gradient(method: str, net: str) -> Gradient:
    """Of the second task, after all that the first has left."""
    torch.manual_seed(5)
    backbone = NETS[net]()
    it = METHODS[method](Network(backbone))  # type: ignore[arg-type]
    for _ in range(2):
        it.net.add_head(3)
    it.double().train()
    it.begin(lesson(0))
    it.begin_epoch(0, 1, 1.0)
    it.gradient(lesson(0).sample(12))
    torch.manual_seed(6)
    it.end(lesson(0))
    it.train()
    it.begin(lesson(1))
    it.begin_epoch(0, 1, 1.0)
    with torch.no_grad():
        for weight in it.net.parameters():  # away from the anchor of EWC's springs
            weight += 1e-3 * torch.randn(weight.shape, dtype=weight.dtype)
    torch.manual_seed(7)
    return it.gradient(lesson(1).sample(12))


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("method", METHODS)
def test_a_step_without_any_fast_path_is_the_same(method: str, net: str) -> None:
    quick = gradient(method, net)
    kept = {"gram", "channels"} if method == "trgp" else set()  # scales are written in a basis, which these may turn
    with fast.without(*(fast.PATHS.keys() - kept)):
        plain = gradient(method, net)
    assert quick.keys() == plain.keys()
    for name, slope in plain.items():
        torch.testing.assert_close(quick[name], slope, rtol=1e-8, atol=1e-12, msg=name)


@pytest.mark.parametrize("path", sorted(fast.PATHS))
def test_each_path_can_be_left_out_alone(path: str) -> None:
    quick = gradient("rcl", "alexnet")
    with fast.without(path):
        other = gradient("rcl", "alexnet")
    for name, slope in other.items():
        torch.testing.assert_close(quick[name], slope, rtol=1e-8, atol=1e-12, msg=name)


# --- projecting inputs ----------------------------------------------------------------------------


class Tied(nn.Module):
    """A weight in a linear layer, or in two, and perhaps in something else as well."""

    def __init__(self, uses: str) -> None:
        super().__init__()
        self.part, self.uses = nn.Linear(10, 12).double(), uses

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.part(x).tanh()
        again = self.part(hidden[..., :10]) if "twice" in self.uses else hidden
        return again @ self.part.weight if "product" in self.uses else again


def shielded(layer: nn.Module, x: Tensor, weight: nn.Parameter, basis: Tensor) -> tuple[Shield, Tensor]:
    with Shield({"w": weight}, {"w": lambda rows: project(rows, basis)}) as shield:
        loss = layer(x).square().sum()
    return shield, shield.grad(loss, {"w": weight})["w"]


@pytest.mark.parametrize("shape", [(6, 10), (2, 3, 10)])
def test_a_linear_layer_with_few_rows_projects_what_it_read(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer, basis = nn.Linear(10, 12).double(), torch.linalg.qr(torch.randn(10, 4).double()).Q
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    shield, slope = shielded(layer, x, layer.weight, basis)
    assert shield.done == {"w"}
    loss = layer(x).square().sum()
    raw, of_x, of_bias = torch.autograd.grad(loss, [layer.weight, x, layer.bias])
    torch.testing.assert_close(slope, project(raw, basis))
    with Shield({"w": layer.weight}, {"w": lambda rows: project(rows, basis)}) as shield:
        loss = layer(x).square().sum()
    found = shield.grad(loss, {"x": x, "bias": layer.bias})  # these are not projected
    torch.testing.assert_close(found, {"x": of_x, "bias": of_bias})


def test_what_is_cheaper_otherwise_is_left_to_the_caller() -> None:
    layer, basis = nn.Linear(10, 12), torch.linalg.qr(torch.randn(10, 4)).Q
    shield, slope = shielded(layer, torch.randn(12, 10), layer.weight, basis)  # as many rows as outputs
    assert not shield.done
    assert (slope @ basis).abs().max() > 1e-3


@pytest.mark.parametrize("uses", ["twice", "product", "twice and product"])
def test_a_weight_that_is_used_in_several_ways_is_projected_in_all(uses: str) -> None:
    tied, basis = Tied(uses), torch.linalg.qr(torch.randn(10, 4).double()).Q
    x = torch.randn(3, 10, dtype=torch.float64)
    shield, slope = shielded(tied, x, tied.part.weight, basis)
    assert shield.done == {"w"}
    (raw,) = torch.autograd.grad(tied(x).square().sum(), tied.part.weight)
    torch.testing.assert_close(slope, project(raw, basis))


def test_nothing_to_shield_costs_nothing() -> None:
    with Shield({}, {}):
        assert not torch.overrides._get_current_function_mode_stack()


# --- climbing by factors --------------------------------------------------------------------------


@pytest.mark.parametrize("uses", ["once", "twice", "product", "twice and product"])
@pytest.mark.parametrize("shape", [(3, 10), (2, 2, 10)])
def test_worse_weights_are_the_same_by_factors(
    uses: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length of the way up, where it leads, and the gradient there."""
    monkeypatch.setattr(uphill.Thinning, "worth", lambda *_: True)
    torch.manual_seed(0)
    net, x = Tied(uses), torch.randn(shape, dtype=torch.float64)
    weights = dict(net.named_parameters())

    def climb() -> tuple[uphill.Uphill, Tensor, Gradient]:
        with uphill.Thinning(weights) as thinning:
            loss = functional_call(net, weights, (x,)).square().sum()
        up = thinning.grad(loss, weights)
        near = uphill.worst_nearby(weights, up, 0.5)
        leaves = near.leaves()
        with near.moved(leaves):
            there = functional_call(net, leaves, (x,)).square().sum()
        return up, there, algebra.grad(there, leaves)

    quick, quick_loss, quick_slopes = climb()
    assert set(quick.thin) == ({"part.weight"} if "product" not in uses else set())
    with fast.without("thin"):
        plain, plain_loss, plain_slopes = climb()
    assert not plain.thin
    torch.testing.assert_close(quick.length(), plain.length())
    torch.testing.assert_close(quick.whole(), plain.whole())
    torch.testing.assert_close(quick_loss, plain_loss)
    torch.testing.assert_close(quick_slopes, plain_slopes)


@pytest.mark.parametrize("method", ["rcl", "rcl, paper", "dfgp", "fsdgpm", "fsdgpm, first order", "fsdgpm, cut"])
@pytest.mark.parametrize("net", NETS)
def test_a_step_with_every_linear_layer_in_factors(method: str, net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uphill.Thinning, "worth", lambda *_: True)
    quick = gradient(method, net)
    with fast.without("thin"):
        plain = gradient(method, net)
    for name, slope in plain.items():
        torch.testing.assert_close(quick[name], slope, rtol=1e-8, atol=1e-12, msg=name)


@pytest.mark.parametrize(("rows", "factors"), [(128, True), (512, False)])
def test_factors_are_kept_only_where_they_are_less_work(rows: int, factors: bool) -> None:
    weight = torch.empty(2048, 2048)
    assert uphill.Thinning({}).worth(rows, weight) == factors


@pytest.mark.parametrize("rows", [3, 30])
def test_scaling_what_a_layer_reads_is_scaling_its_weight(rows: int) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(10, 12).double(), torch.randn(rows, 10, dtype=torch.float64)
    spaces = [(torch.linalg.qr(torch.randn(10, k).double()).Q, torch.randn(k, k).double()) for k in (2, 4)]
    with Rescaling({"w": layer.weight}, {"w": spaces}):
        found = layer(x)
    torch.testing.assert_close(found, F.linear(x, scaled(layer.weight, spaces), layer.bias))


def test_weights_that_are_used_in_other_ways_are_scaled_whole() -> None:
    """A network that multiplies by a layer's weight outside of the layer."""

    class Odd(MLP):
        def forward(self, x: Tensor, quiet: bool = False) -> tuple[Tensor, Tensor]:
            hidden, placed = super().forward(x, quiet)
            return hidden @ self.hidden[1].weight.T.tanh(), placed

    it = TRGP(Network(Odd((3, 32, 32), units=(40, 40))), threshold=0.9, trust=0.0)
    for _ in range(2):
        it.net.add_head(3)
    it.double().eval()
    it.end(lesson(0))
    it.begin(lesson(1))
    assert it.linear == ("hidden.0",)
    assert {key.split("/")[1] for key in it.live} == {"hidden.0", "hidden.1"}
    for scale in it.live.parameters():
        with torch.no_grad():
            scale += torch.randn(scale.shape, dtype=scale.dtype)
    x = images(5)
    torch.testing.assert_close(it.train().forward(x, 1).logits, it.eval().forward(x, 1).logits)
    torch.testing.assert_close(
        it.train().forward(x, 0).logits, it.eval().forward(x, 0).logits
    )  # another task, other scales


# --- batches together -----------------------------------------------------------------------------


def test_batch_norm_keeps_batches_apart_that_go_together() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(8 * 36)).double()
    twin = deepcopy(net)
    x, other = torch.randn(2, 5, 3, 8, 8, dtype=torch.float64)
    with apart(x, 3 + 2 * other) as both:
        assert parts(both.joint) == (x, both.batches[1])
        found = net(both.joint)
    torch.testing.assert_close(found, torch.cat([twin(x), twin(3 + 2 * other)]))
    # running statistics have seen both, one after the other
    torch.testing.assert_close(net[1].running_mean, twin[1].running_mean)
    assert (found - net(torch.cat([x, 3 + 2 * other]))).abs().max() > 0.1  # joined, they would be seen as one
    assert parts(x) == (x,)


def test_together_within_together() -> None:
    norm = nn.BatchNorm1d(4, track_running_stats=False).double()
    first, second, third, fourth = torch.randn(4, 6, 4, dtype=torch.float64) * torch.arange(1, 5).view(4, 1, 1)
    with apart(first, second) as outer, apart(outer.joint, torch.cat([third, fourth])) as inner:
        found = norm(inner.joint)
    torch.testing.assert_close(found, torch.cat([norm(one) for one in (first, second, third, fourth)]))


@pytest.mark.parametrize("groups", [1, 3])
def test_slopes_of_mixing_shares_come_from_the_first_convolution(groups: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=groups), nn.Tanh(), nn.Conv2d(6, 4, 3)).double()
    x, mixing = images(5), draw_mixing(5, 2.0, images(1))

    def slopes() -> tuple[Tensor, ...]:
        share = mixing.share.detach().requires_grad_()
        with Mixture(x, Mixing(share, mixing.partner)) as mixture:
            loss = net(mixture.x).square().sum()
        return torch.autograd.grad(loss, [share, *net.parameters()])

    with fast.without("first"):
        plain = slopes()
    for quick, slow in zip(slopes(), plain, strict=True):
        torch.testing.assert_close(quick, slow)


def test_images_that_something_else_reads_first_have_their_slopes_too() -> None:
    x, mixing = images(4), draw_mixing(4, 2.0, images(1))
    share = mixing.share.detach().requires_grad_()
    with Mixture(x, Mixing(share, mixing.partner)) as mixture:
        loss = (2 * mixture.x).square().sum()
    (found,) = torch.autograd.grad(loss, share)
    (expected,) = torch.autograd.grad((2 * mix(x, Mixing(share, mixing.partner))).square().sum(), share)
    torch.testing.assert_close(found, expected)


# --- blocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_relu_dropout_and_pooling_in_another_order(rate: float, memory_format: torch.memory_format) -> None:
    x = torch.randn(4, 8, 9, 7).to(memory_format=memory_format).requires_grad_()
    weights = torch.randn(4, 8, 4, 3)

    def run() -> tuple[Tensor, Tensor]:
        torch.manual_seed(1)
        out = relu_drop_pool([x], rate)
        return out, torch.autograd.grad((out * weights).sum(), x)[0]

    with fast.without("pooling"):
        plain = run()
    for quick, slow in zip(run(), plain, strict=True):
        torch.testing.assert_close(quick, slow, rtol=1e-6, atol=0)


def test_pooling_can_be_derived_twice() -> None:
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: relu_drop_pool([x], 0.0), x)
    assert torch.autograd.gradgradcheck(lambda x: relu_drop_pool([x], 0.0).square(), x)


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_masks_have_their_rate_and_a_seed(rate: float) -> None:
    x = torch.empty(64, 16, 29, 29).to(memory_format=torch.channels_last)
    torch.manual_seed(3)
    mask = kept([x], rate)[0]
    assert mask.stride() == x.stride()
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    # 861,184 entries: the mean is within five deviations
    assert float(mask.mean()) == pytest.approx(1 - rate, abs=5 * (rate * (1 - rate) / x.numel()) ** 0.5)
    per_channel = mask.mean((0, 2, 3))
    assert float((per_channel - (1 - rate)).abs().max()) < 5 * (rate * (1 - rate) / (64 * 29 * 29)) ** 0.5
    neighbors = (mask[..., :-1] * mask[..., 1:]).mean()
    assert float(neighbors) == pytest.approx((1 - rate) ** 2, abs=3e-3)
    assert not torch.equal(mask, kept([x], rate)[0])
    torch.manual_seed(3)
    assert torch.equal(mask, kept([x], rate)[0])


def test_dropout_scales_what_it_keeps() -> None:
    x = torch.ones(10_000)
    found = dropout(x, 0.2)
    assert set(found.unique().tolist()) == {0.0, 1.25}
    assert dropout(x, 0.0) is x


# --- small formulas -------------------------------------------------------------------------------


def test_distances_from_inner_products() -> None:
    z = F.normalize(torch.randn(20, 30, dtype=torch.float64), dim=1).requires_grad_()
    with fast.without("pairs"):
        plain = uniformity(z)
    torch.testing.assert_close(uniformity(z), plain)
    torch.testing.assert_close(torch.autograd.grad(uniformity(z), z), torch.autograd.grad(plain, z))


@pytest.mark.parametrize("threshold", [0.9, 0.99, 0.99999, 1.0])
def test_directions_from_gram_matrices(threshold: float) -> None:
    """Over three tasks: the same counts, the same space, and right angles that do not wear off."""
    torch.manual_seed(0)
    tasks = [torch.randn(30, 30) @ torch.diag(0.7 ** torch.arange(30)) @ torch.randn(30, 200) for _ in range(3)]
    quick: Tensor | None = None
    plain: Tensor | None = None
    for task in tasks:
        quick = extend(quick, task.double(), threshold)
        with fast.without("gram"):
            plain = extend(plain, task.double(), threshold)
        assert quick.shape == plain.shape
        torch.testing.assert_close(quick @ quick.T, plain @ plain.T, rtol=0, atol=1e-6)
        torch.testing.assert_close(quick.T @ quick, torch.eye(quick.shape[1], dtype=quick.dtype), rtol=0, atol=1e-9)


@pytest.mark.parametrize("queued", [False, True])
def test_the_way_up_is_the_same_where_numbers_must_not_be_read(queued: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (algebra, uphill):
        monkeypatch.setattr(module, "is_async", lambda _: queued)
    weights = {"a": torch.ones(2), "b": torch.ones(1)}
    slopes = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}
    worst = uphill.worst_nearby(weights, uphill.Uphill(slopes, {}), 0.5).weights
    assert worst["a"].tolist() == pytest.approx([1.3, 1.0])
    assert worst["b"].tolist() == pytest.approx([1.4])
    assert uphill.worst_nearby(weights, uphill.Uphill({}, {}), 0.5).weights.keys() == weights.keys()
    assert algebra.clip(slopes, 1.0)["b"].tolist() == pytest.approx([0.8])
    assert algebra.clip(slopes, 10.0)["b"].tolist() == [4.0]


def test_one_image_is_too_few_together_as_well(fresh_net: Callable[[], Network]) -> None:
    method = RCL(fresh_net())
    method.net.add_head(3)
    with pytest.raises(TooFewSamples, match="two images or more"):
        method.gradient(Batch(torch.rand(1, 3, 32, 32), torch.tensor([0]), 0))


def test_batches_of_one_task_or_several(fresh_net: Callable[[], Network]) -> None:
    """Raw and mixed images go together with a task for each image as well."""
    method = RCL(fresh_net())
    for _ in range(2):
        method.net.add_head(3)
    whose = torch.tensor([0, 1] * 4)
    batch = Batch(torch.rand(8, 3, 32, 32), torch.arange(8) % 3, whose)
    torch.manual_seed(1)
    quick = method.gradient(batch)
    torch.manual_seed(1)
    with fast.without("together"):
        plain = method.gradient(batch)
    for name, slope in plain.items():
        torch.testing.assert_close(quick[name], slope, rtol=1e-3, atol=1e-5, msg=name)


# --- half precision -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(registry.methods))
def test_half_precision_gives_nearly_the_same_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a later task, with whatever can be kept in factors. Forwards compute with eight bits, so entries differ;
    the direction as a whole hardly does. Methods that climb before they descend amplify the difference."""
    monkeypatch.setattr(uphill.Thinning, "worth", lambda *_: True)
    found = []
    for half in (False, True):
        torch.manual_seed(5)
        it = registry.methods.load(name)(Network(NETS["alexnet"]()))
        for _ in range(2):
            it.net.add_head(3)
        it.begin(single_precision(0))
        it.begin_epoch(0, 1, 1.0)
        it.train()
        it.gradient(single_precision(0).sample(12))
        it.end(single_precision(0))
        it.begin(single_precision(1))
        it.begin_epoch(0, 1, 1.0)
        it.train()
        it.net.in_bf16 = half
        torch.manual_seed(7)
        slopes = it.gradient(single_precision(1).sample(12))
        assert all(slope.dtype == torch.float32 for slope in slopes.values())
        found.append(torch.cat([slopes[key].flatten() for key in sorted(slopes)]))
    cosine = float(F.cosine_similarity(*found, dim=0))
    assert cosine > (0.9 if name in ("dfgp", "rcl") else 0.97)
    assert cosine < 1 - 1e-7  # it did compute in another precision


def single_precision(index: int) -> Lesson:
    (part,) = lesson(index).parts
    split = Split(part.train.x.float(), part.train.y)
    return Lesson(index, (Part(index, 3, split, split),))


def test_half_precision_is_for_learning_alone(fresh_net: Callable[[], Network]) -> None:
    net = fresh_net()
    net.add_head(3)
    x = torch.rand(4, 3, 32, 32)
    exact = net.eval()(x, 0).logits
    net.in_bf16 = True
    assert torch.equal(net(x, 0).logits, exact)
    assert not torch.equal(net.train()(x, 0).logits, exact)
