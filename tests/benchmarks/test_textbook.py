"""The yardstick computes what the package computes: same steps, same memory, in double precision."""

import ast
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perdure import fast
from perdure.fast import dropout as fast_dropout
from perdure.methods.gpm import GPM
from perdure.methods.rcl import RCL
from perdure.nets.alexnet import AlexNet
from perdure.nets.network import Network
from perdure.ops.mixup import Mixing
from perdure.train.optimizers import SGD
from perdure.types import Batch

PATH = Path(__file__).parents[2] / "benchmarks" / "textbook.py"
found = importlib.util.spec_from_file_location("textbook", PATH)
assert found is not None
assert found.loader is not None
textbook = importlib.util.module_from_spec(found)
found.loader.exec_module(textbook)

WIDTHS = {"filters": (8, 12, 16), "units": (24, 20)}
LAYERS = ("conv1", "conv2", "conv3", "fc1", "fc2")
CLASSES = 3
RATE = 0.1


def twins(dropout: bool = False) -> tuple[Network, nn.Module]:
    """The package's network and the textbook's with the same weights, in double precision.

    Batch-norm scales and shifts are drawn, too: at 1 and 0 a wrong order of parts could go unseen.
    """
    torch.manual_seed(3)
    ours = Network(AlexNet((3, 32, 32), **WIDTHS, dropout=dropout))
    for _ in range(2):
        ours.add_head(CLASSES)
    ours.double()
    for weight in ours.parameters():
        if weight.ndim == 1:
            nn.init.uniform_(weight, 0.5, 1.5)
    plain = textbook.AlexNet(2, CLASSES, **WIDTHS, dropout=dropout).double()
    plain.load_state_dict({name.removeprefix("backbone."): value for name, value in ours.state_dict().items()})
    return ours, plain


def images(count: int, seed: int) -> Tensor:
    """Smooth images, whose layers' inputs have a few strong directions, as those of photographs have."""
    drawn = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 3, 5, 5, generator=drawn, dtype=torch.float64)
    noise = torch.randn(count, 3, 32, 32, generator=drawn, dtype=torch.float64)
    return F.interpolate(coarse, size=(32, 32), mode="bilinear") + 0.1 * noise


def batch(task: int) -> Batch:
    return Batch(images(12, 5), torch.arange(12) % CLASSES, task)


def random_bases(net: Network) -> dict[str, Tensor]:
    """A third of each layer's directions."""
    widths = {name: net.get_parameter(weight)[0].numel() for name, weight in net.weight_names().items()}
    return {name: torch.linalg.qr(torch.randn(d, d // 3, dtype=torch.float64))[0] for name, d in widths.items()}


def weights_of(net: nn.Module) -> dict[str, Tensor]:
    return {name.removeprefix("backbone."): weight.detach().clone() for name, weight in net.named_parameters()}


def assert_same_step(before: dict[str, Tensor], ours: nn.Module, plain: nn.Module, still: bool) -> None:
    """Every parameter has moved by the same, to nine digits; `still` says whether batch norm must stand."""
    one, other = weights_of(ours), weights_of(plain)
    assert one.keys() == other.keys() == before.keys()
    for name, start in before.items():
        moved, expected = other[name] - start, one[name] - start
        stands = name == "heads.0.weight" if still else name == "heads.1.weight"
        if stands or (still and start.ndim == 1):
            assert expected.abs().max() == 0
            assert moved.abs().max() < 1e-15, name  # moved there and back: only rounding is left
        else:
            assert expected.abs().max() > 1e-6, f"{name} must move, or the test says nothing"
            assert (moved - expected).abs().max() < 1e-9 * expected.abs().max(), name


@pytest.mark.parametrize("task", [0, 1])
def test_a_step_of_gpm_is_the_packages(task: int) -> None:
    ours, plain = twins()
    before, given = weights_of(ours), batch(task)
    method, projectors = GPM(ours), None
    if task:
        bases = random_bases(ours)
        for name, basis in bases.items():
            method.memory[name] = basis
        projectors = textbook.dense_projectors([bases[name].numpy() for name in LAYERS], torch.float64)
    SGD(method.trainable(), 0.0).step(method.gradient(given), RATE)
    textbook.gpm_step(plain, torch.optim.SGD(plain.parameters(), lr=RATE), projectors, given.x, given.y, task)
    assert_same_step(before, ours, plain, still=task > 0)


@pytest.mark.parametrize("task", [0, 1])
def test_a_step_of_rcl_is_the_packages(task: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, plain = twins()
    before, given = weights_of(ours), batch(task)
    # Shares at the borders meet the clamp; a mean far from ½ shows which label has which weight.
    share = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 0.1, 0.3, 0.5, 0.7], dtype=torch.float64)
    partner = torch.randperm(12)
    values = {"mix_weight": 0.4, "ua_weight": 0.7, "radius": 0.2}
    method, projectors = RCL(ours, features="separate", **values), None
    if task:
        bases = random_bases(ours)
        for name, basis in bases.items():
            method.memory[name] = basis
        projectors = textbook.dense_projectors([bases[name].numpy() for name in LAYERS], torch.float64)
    monkeypatch.setattr(method, "draw", lambda *_: Mixing(share, partner))
    SGD(method.trainable(), 0.0).step(method.gradient(given), RATE)
    optimizer = torch.optim.SGD(plain.parameters(), lr=RATE)
    textbook.rcl_step(plain, optimizer, projectors, given.x, given.y, task, mixing=(share, partner), **values)
    assert_same_step(before, ours, plain, still=task > 0)


# ── with dropout: the same masks for the same rows, whoever asks for them and in whatever order ─────────────────


class Masks:
    """One mask for each dropout, pass, and role of a row: raw or mixed image, for logits or for features.

    Dropouts are told apart by the shape of what they drop. They ask for the rows of all roles at once, or for those of
    one role after the other, in an `order`.
    """

    roles = ("raw", "mixed", "raw features", "mixed features")

    def __init__(self, order: Sequence[str], last: Sequence[str]) -> None:
        self.order, self.last = order, last  # of the dropouts after the first linear layer and after the last
        self.asked: dict[tuple[int, ...], int] = {}

    def draw(self, like: Tensor, rate: float) -> Tensor:
        shape = tuple(like.shape[1:])
        count = self.asked[shape] = self.asked.get(shape, -1) + 1
        if len(like) > 12:
            return torch.cat([self.of(role, count, shape, rate) for role in self.roles[: len(like) // 12]])
        after_conv = [role for role in self.order if "features" not in role]
        order = after_conv if len(shape) == 3 else self.last if shape == (20,) else self.order
        going, at = divmod(count, len(order))
        return self.of(order[at], going, shape, rate)

    def of(self, role: str, going: int, shape: tuple[int, ...], rate: float) -> Tensor:
        drawn = torch.Generator().manual_seed(hash((self.roles.index(role), going, *shape)) % 2**31)
        return (torch.rand(12, *shape, generator=drawn) >= rate).double()

    def dropout(self, x: Tensor, rate: float, training: bool = True) -> Tensor:
        return x * self.draw(x, rate) / (1 - rate) if training and rate else x


def with_shared_features(net: nn.Module) -> nn.Module:
    """Features from the forward that gives the logits, as `features="shared"` has them."""
    kept: list[Tensor] = []

    def forward(x: Tensor, task: int) -> Tensor:
        kept.append(net._up_to_fc2(x, conv_dropout=True))
        logits: Tensor = net.heads[task](F.dropout(F.relu(net.bn5(kept[-1])), net.linear_rate, net.training))
        return logits

    net.forward, net.features = forward, lambda _: F.normalize(kept.pop(0), dim=1)
    return net


@pytest.mark.parametrize("off", ["", "joint_batches", "pooling", "dropout_masks", "all"])
@pytest.mark.parametrize("features", ["separate", "shared"])
def test_a_step_of_rcl_with_dropout_is_the_packages(
    features: Literal["separate", "shared"], off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, plain = twins(dropout=True)
    before, given, bases = weights_of(ours), batch(1), random_bases(ours)
    values = {"mix_weight": 0.4, "ua_weight": 0.7, "radius": 0.2}
    method = RCL(ours, features=features, **values)
    for name, basis in bases.items():
        method.memory[name] = basis
    mixing = Mixing(torch.linspace(0, 1, 12).double(), torch.arange(12).roll(5))
    monkeypatch.setattr(method, "draw", lambda *_: mixing)

    image_by_image = ("raw", "raw features", "mixed", "mixed features") if features == "separate" else ("raw", "mixed")
    masks = Masks(image_by_image, image_by_image)
    monkeypatch.setattr(fast_dropout, "random_mask", masks.draw)
    monkeypatch.setattr(F, "dropout", masks.dropout)
    with fast.without(off):
        SGD(method.trainable(), 0.0).step(method.train().gradient(given), RATE)
    assert masks.asked.keys() == {(8, 29, 29), (12, 12, 12), (16, 5, 5), (24,), (20,)}

    logits_first = Masks.roles if features == "separate" else ("raw", "mixed")
    monkeypatch.setattr(F, "dropout", Masks(logits_first, last=("raw", "mixed")).dropout)
    projectors = textbook.dense_projectors([bases[name].numpy() for name in LAYERS], torch.float64)
    twin = plain if features == "separate" else with_shared_features(plain)
    optimizer, shares = torch.optim.SGD(plain.parameters(), lr=RATE), (mixing.share, mixing.partner)
    textbook.rcl_step(twin, optimizer, projectors, given.x, given.y, 1, mixing=shares, **values)
    assert_same_step(before, ours, plain, still=True)


def test_rcl_draws_its_own_mixture_with_the_papers_values(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, plain = twins()
    before, given = weights_of(ours), batch(0)
    method = RCL(ours)
    drawn = torch.distributions.Beta(20.0, 20.0)
    torch.manual_seed(11)
    mixing = Mixing(drawn.sample((12,)).double(), torch.randperm(12))
    monkeypatch.setattr(method, "draw", lambda *_: mixing)
    SGD(method.trainable(), 0.0).step(method.gradient(given), RATE)
    torch.manual_seed(11)
    textbook.rcl_step(plain, torch.optim.SGD(plain.parameters(), lr=RATE), None, given.x, given.y, 0)
    assert_same_step(before, ours, plain, still=False)


def test_memory_holds_the_packages_directions_after_each_of_two_tasks() -> None:
    ours, plain = twins()
    method, bases = GPM(ours), None
    plain.conv_rates, plain.linear_rate = (0.2, 0.2, 0.5), 0.5  # which representations must leave out by themselves
    for task, threshold in enumerate((0.9, 0.95)):
        x = images(125, 20 + task) * (1 + task)
        plain.train()
        matrices = textbook.representations(plain, x)
        given = method.representations(Batch(x, torch.zeros(125, dtype=torch.int64), 0))
        for name, matrix in zip(LAYERS, matrices, strict=True):
            assert np.allclose(matrix, given[name].numpy(), rtol=0, atol=1e-12), name
        bases = textbook.update_memory(bases, matrices, threshold)
        method.memory.extend(given, threshold)
        for name, basis in zip(LAYERS, bases, strict=True):
            held, there = method.memory.sizes()[name]
            assert basis.shape == (there, held), name
            assert 0 < held < there, f"{name} must hold some directions, not all, or the test says nothing"
            expected = method.memory[name] @ method.memory[name].T
            projector = textbook.dense_projectors([basis], torch.float64)[0]
            assert (projector - expected).abs().max() < 1e-8, name


def test_memory_grows_only_when_it_must_and_never_beyond_all_directions() -> None:
    matrix = np.random.default_rng(0).standard_normal((10, 40))
    (first,) = textbook.update_memory(None, [matrix], 0.9)
    assert 0 < first.shape[1] < 10
    (same,) = textbook.update_memory([first], [matrix], 0.5)
    assert np.array_equal(same, first)
    (full,) = textbook.update_memory([first], [matrix], 2.0)  # more than there is
    assert full.shape == (10, 10)
    assert np.allclose(full @ full.T, np.eye(10))


def test_representations_have_the_papers_shapes_and_precision() -> None:
    matrices = textbook.representations(textbook.AlexNet(1, CLASSES, **WIDTHS), images(125, 1).float())
    shapes = [(48, 24 * 29 * 29), (8 * 9, 100 * 12 * 12), (12 * 4, 100 * 5 * 5), (16 * 4, 125), (24, 125)]
    assert [matrix.shape for matrix in matrices] == shapes
    assert [matrix.dtype.name for matrix in matrices] == ["float64"] * 3 + ["float32"] * 2
    projectors = textbook.dense_projectors(textbook.update_memory(None, matrices, 0.9))
    assert {projector.dtype for projector in projectors} == {torch.float32}


def test_features_have_dropout_after_linear_layers_only() -> None:
    torch.manual_seed(0)
    net = textbook.AlexNet(1, CLASSES, **WIDTHS).double()
    x = images(12, 5)
    assert not torch.equal(net.features(x), net.features(x)), "the linear layers' dropout is on"
    assert torch.allclose(net.features(x).norm(dim=1), torch.ones(12, dtype=torch.float64))
    net.linear_rate = 0.0
    assert torch.equal(net.features(x), net.features(x))
    assert not torch.equal(net(x, 0), net(x, 0)), "the convolutions' dropout is on"
    net.linear_rate, net.conv_rates = 0.5, (0.0, 0.0, 0.0)
    assert not torch.equal(net(x, 0), net(x, 0))
    net.eval()
    assert torch.equal(net(x, 0), net(x, 0))
    assert torch.equal(net.features(x), net.features(x))


def test_forwards_are_the_packages() -> None:
    ours, plain = twins()
    for task in (0, 1):
        look = ours(images(12, 5), task)
        assert torch.allclose(plain(images(12, 5), task), look.logits, rtol=1e-10)
        assert torch.allclose(plain.features(images(12, 5)), look.features, rtol=1e-10)


def test_the_full_network_has_the_papers_size_and_rates() -> None:
    net = textbook.AlexNet()
    assert sum(layer.weight.numel() for layer in net.layers()) == 6_499_328
    assert sum(weight.numel() for weight in net.parameters()) == 6_499_328 + 9_088 + 204_800
    assert (*net.conv_rates, net.linear_rate) == (0.2, 0.2, 0.5, 0.5)


def test_an_epoch_meets_every_image_once_and_is_evaluated_without_dropout() -> None:
    torch.manual_seed(0)
    net = textbook.AlexNet(1, CLASSES, **WIDTHS).double()
    train, valid = (images(21, 5), torch.arange(21) % CLASSES), (images(9, 6), torch.arange(9) % CLASSES)
    met: list[tuple[Tensor, Tensor]] = []

    def step(x: Tensor, y: Tensor) -> None:
        assert net.training
        met.append((x, y))

    (loss, accuracy), (valid_loss, valid_accuracy) = textbook.run_epoch(step, net, train, valid, 0, batch=9)
    assert [len(y) for _, y in met] == [9, 9, 3]
    rows = [int((train[0] == image).flatten(1).all(1).nonzero()) for x, _ in met for image in x]
    assert sorted(rows) == list(range(21)) != rows
    assert torch.equal(torch.cat([y for _, y in met]), train[1][rows])
    assert loss > 0
    assert accuracy * 21 == pytest.approx(round(accuracy * 21))
    logits = net.eval()(valid[0], 0).detach()  # one batch: its order does not matter
    assert valid_loss == pytest.approx(float(F.cross_entropy(logits, valid[1])))
    assert valid_accuracy == pytest.approx(float((logits.argmax(1) == valid[1]).double().mean()))


def test_evaluation_weighs_batches_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    _, plain = twins()
    x, y = images(11, 5), torch.arange(11) % CLASSES
    monkeypatch.setattr(torch, "randperm", lambda n, **_: torch.arange(n))
    with torch.no_grad():
        parts = [(plain.eval()(x[at], 0), y[at]) for at in (slice(0, 8), slice(8, 11))]
    total = math.fsum(float(F.cross_entropy(logits, labels, reduction="sum")) for logits, labels in parts)
    hits = sum(int((logits.argmax(1) == labels).sum()) for logits, labels in parts)
    assert textbook.evaluate(plain, x, y, 0, batch=8) == pytest.approx((total / 11, hits / 11))


def test_it_stands_on_torch_and_numpy_alone() -> None:
    roots = set()
    for node in ast.walk(ast.parse(PATH.read_text())):
        if isinstance(node, ast.Import):
            roots |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add((node.module or "").split(".")[0])
    assert roots == {"collections", "numpy", "torch"}
