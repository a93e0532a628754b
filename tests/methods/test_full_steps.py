"""One whole step of each method in a third task, dropout on, against a plain twin written from the method's equations.

A twin is torch alone: the network as a function of its weights, dense d × d projectors, autograd. It takes the dropout
masks that were drawn for the method, forward by forward, so both sides compute the same numbers in float64.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perdure import fast
from perdure.fast import dropout as fast_dropout
from perdure.methods.agem import AGEM
from perdure.methods.api import API
from perdure.methods.dfgp import DFGP
from perdure.methods.er import ER
from perdure.methods.ewc import EWC
from perdure.methods.fsdgpm import FSDGPM
from perdure.methods.gpm import GPM
from perdure.methods.method import Method
from perdure.methods.owm import OWM
from perdure.methods.rcl import RCL
from perdure.methods.sgp import SGP
from perdure.methods.trgp import TRGP
from perdure.nets.alexnet import AlexNet
from perdure.nets.network import Network
from perdure.ops.dual_gpm import Dual
from perdure.ops.mixup import Mixing
from perdure.types import Batch

CLASSES, TASK, N = (3, 4, 5), 2, 8
LAYERS = ("conv1", "conv2", "conv3", "fc1", "fc2")

Weights = Mapping[str, Tensor]
Gradient = dict[str, Tensor]


# ── the setting ─────────────────────────────────────────────────────────────────────────────────────────────────


def network() -> Network:
    """With three heads; batch-norm scales and shifts are drawn, too, for at 1 and 0 some mistakes do not show."""
    torch.manual_seed(3)
    net = Network(AlexNet((3, 20, 20), filters=(8, 9, 10), units=(14, 12)))
    for classes in CLASSES:
        net.add_head(classes)
    for weight in net.double().parameters():
        if weight.ndim == 1:
            nn.init.uniform_(weight, 0.5, 1.5)
    return net


def images(count: int, seed: int) -> Tensor:
    return torch.randn(count, 3, 20, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch() -> Batch:
    return Batch(images(N, 5), torch.arange(N) % CLASSES[TASK], TASK)


def old_images() -> Batch:
    """What a replay buffer holds, of both old tasks."""
    return Batch(images(6, 6), torch.tensor([0, 3, 1, 2, 0, 1]), torch.tensor([0, 1, 0, 1, 1, 0]))


def width(net: Network, layer: str) -> int:
    return net.get_parameter(f"backbone.{layer}.weight")[0].numel()


def orthonormal(d: int, k: int) -> Tensor:
    return torch.linalg.qr(torch.randn(d, k, dtype=torch.float64))[0]


def bases_for(method: GPM) -> dict[str, Tensor]:
    """A third of each layer's directions, put into the method's memory."""
    bases = {layer: orthonormal(d := width(method.net, layer), d // 3) for layer in LAYERS}
    for layer, basis in bases.items():
        method.memory[layer] = basis
    return bases


class Masks:
    """Dropout masks in the order in which they were drawn, to be taken once more in the same order."""

    def __init__(self) -> None:
        self.drawn: list[Tensor] = []
        self.chance = torch.Generator().manual_seed(9)

    def draw(self, like: Tensor, rate: float) -> Tensor:
        mask = (torch.rand(like.shape, generator=self.chance) >= rate).to(like)
        self.drawn.append(mask)
        return mask.clone()  # which the caller may write to

    def dropout(self, x: Tensor, rate: float) -> Tensor:
        return x * self.draw(x, rate) / (1 - rate)

    def take(self) -> Tensor:
        return self.drawn.pop(0)


Step = Callable[[Method], tuple[Gradient, Masks]]


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Iterator[Step]:
    """A method's gradient, and the masks it was taken with; raw and mixed images go one after the other."""
    masks = Masks()
    monkeypatch.setattr(fast_dropout, "random_mask", masks.draw)
    monkeypatch.setattr(F, "dropout", masks.dropout)  # which the plain way calls

    def taken(method: Method) -> tuple[Gradient, Masks]:
        with fast.without("joint_batches"):
            return method.train().gradient(batch()), masks

    yield taken
    assert not masks.drawn, "a twin takes as many masks as were drawn for its method"


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, g in expected.items():
        largest = float(g.detach().abs().max())
        assert largest > 1e-9, f"{name} must move, or the test says nothing"
        torch.testing.assert_close(found[name], g.detach(), rtol=0, atol=1e-9 * largest, msg=name)


# ── the network and the projections, plainly ────────────────────────────────────────────────────────────────────


def copied(net: Network) -> dict[str, Tensor]:
    return {name: weight.detach().clone().requires_grad_() for name, weight in net.named_parameters()}


def run(
    weights: Weights, x: Tensor, masks: Masks, conv_dropout: bool = True, inputs: dict[str, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """What the heads read, and the features; with the inputs of every layer where they are asked for."""
    seen = {} if inputs is None else inputs

    def layer(name: str, at: int, x: Tensor) -> Tensor:
        seen[name] = x.detach()
        weight = weights[f"backbone.{name}.weight"]
        return norm(at, F.conv2d(x, weight) if weight.ndim == 4 else x @ weight.T)

    def norm(at: int, x: Tensor) -> Tensor:
        scale, shift = weights[f"backbone.bn{at}.weight"], weights[f"backbone.bn{at}.bias"]
        return F.batch_norm(x, None, None, scale, shift, training=True)

    for at, rate in ((1, 0.2), (2, 0.2), (3, 0.5)):
        x = F.relu(layer(f"conv{at}", at, x))
        x = F.max_pool2d(x * masks.take() / (1 - rate) if conv_dropout else x, 2)
    x = F.relu(layer("fc1", 4, x.flatten(1))) * masks.take() / 0.5
    seen["fc2"], features = x.detach(), x @ weights["backbone.fc2.weight"].T
    return F.relu(norm(5, features)) * masks.take() / 0.5, features


def loss_of(weights: Weights, x: Tensor, y: Tensor, task: Tensor | int, masks: Masks) -> Tensor:
    """Mean over the images, each judged by the head of its task."""
    hidden, _ = run(weights, x, masks)
    tasks = torch.full((len(y),), task) if isinstance(task, int) else task
    heads = [weights[f"heads.{t}.weight"] for t in tasks]
    each = [F.cross_entropy(head @ h, label) for head, h, label in zip(heads, hidden, y, strict=True)]
    return torch.stack(each).mean()


def batch_loss(weights: Weights, masks: Masks) -> Tensor:
    return loss_of(weights, batch().x, batch().y, TASK, masks)


def slopes(loss: Tensor, weights: Weights, create_graph: bool = False) -> Gradient:
    """By name; of what the loss depends on."""
    found = torch.autograd.grad(
        loss, list(weights.values()), create_graph=create_graph, retain_graph=True, allow_unused=True
    )
    return {name: g for name, g in zip(weights, found, strict=True) if g is not None}


def length(gradient: Weights) -> Tensor:
    return torch.stack([g.square().sum() for g in gradient.values()]).sum().sqrt()


def cut(gradient: Weights, limit: float) -> Gradient:
    factor = min(1.0, limit / (float(length(gradient)) + 1e-6))
    return {name: factor * g for name, g in gradient.items()}


def times(gradient: Tensor, matrix: Tensor) -> Tensor:
    return (gradient.flatten(1) @ matrix).view_as(gradient)


def outside(gradient: Gradient, bases: Weights) -> Gradient:
    """G − G M Mᵀ in every layer."""
    names = {f"backbone.{layer}.weight": basis @ basis.T for layer, basis in bases.items()}
    return {name: g - times(g, names[name]) if name in names else g for name, g in gradient.items()}


def still(gradient: Gradient) -> Gradient:
    """Without batch norm, which learns in the first task alone."""
    return {name: g for name, g in gradient.items() if g.ndim > 1}


# ── GPM, SGP, TRGP, API ─────────────────────────────────────────────────────────────────────────────────────────


def test_gpm(step: Step) -> None:
    """G − G M Mᵀ."""
    method = GPM(network())
    bases = bases_for(method)
    found, masks = step(method)
    weights = copied(method.net)
    assert_same(found, still(outside(slopes(batch_loss(weights, masks), weights), bases)))


def test_sgp(step: Step) -> None:
    """G − G M diag(λ) Mᵀ: along each direction, as much as its λ says is taken away."""
    method = SGP(network())
    bases = bases_for(method)
    importance = {layer: torch.rand(basis.shape[1]).double() for layer, basis in bases.items()}
    for layer, values in importance.items():
        method.importance[layer] = values
    found, masks = step(method)
    weights = copied(method.net)
    expected = still(slopes(batch_loss(weights, masks), weights))
    for layer, basis in bases.items():
        name = f"backbone.{layer}.weight"
        expected[name] = expected[name] - times(expected[name], basis @ importance[layer].diag() @ basis.T)
    assert_same(found, expected)


@pytest.mark.parametrize("learn_norms", [False, True])
def test_trgp(step: Step, learn_norms: bool) -> None:
    """Weights W + Σ (W B S Bᵀ − W B Bᵀ) over two old tasks; W's gradient is projected, that of every S is free."""
    method = TRGP(network(), learn_norms=learn_norms)
    bases, weights = bases_for(method), copied(method.net)
    inside = {layer: basis.shape[1] for layer, basis in bases.items()}
    spaces = {  # which share some directions
        (old, layer): bases[layer] @ orthonormal(k, k // 2) for layer, k in inside.items() for old in (0, 1)
    }
    scales = {key: torch.randn(b.shape[1], b.shape[1], dtype=torch.float64) for key, b in spaces.items()}
    method.learning = (TASK,)
    for (old, layer), scale in scales.items():
        method.spaces[old, layer], method.live[old, layer] = spaces[old, layer], scale
        method.scales[1, old, layer] = torch.randn_like(scale)  # another task's
    found, masks = step(method)

    own = {f"live.{old}/{layer}": scale.requires_grad_() for (old, layer), scale in scales.items()}
    scaled = dict(weights)
    for (old, layer), b in spaces.items():
        name = f"backbone.{layer}.weight"
        plain = weights[name].flatten(1)
        change = plain @ b @ scales[old, layer] @ b.T - plain @ b @ b.T
        scaled[name] = scaled[name] + change.view_as(scaled[name])
    expected = outside(slopes(batch_loss(scaled, masks), {**weights, **own}), bases)
    assert_same(found, expected if learn_norms else still(expected))


def test_api(step: Step) -> None:
    """Weights W + Σ E Φᵀ; the columns of W and every E are projected side by side, by a basis to remove or to retain;
    this task's Φ is free, an older one stays."""
    method = API(network())
    method.now = TASK
    weights, own, fixed, columns = copied(method.net), {}, {}, {}
    for layer, tasks in {"conv1": (1, 2), "conv2": (), "conv3": (2,), "fc1": (1,), "fc2": (1, 2)}.items():
        out, channels, *kernel = weights[f"backbone.{layer}.weight"].shape
        columns[layer] = [f"backbone.{layer}.weight", *(f"grown.{layer}/{task}" for task in tasks)]
        for size, task in enumerate(tasks, 1):
            grown, phi = torch.randn(out, size, *kernel).double(), torch.randn(channels, size).double()
            method.grown[layer, task], method.transforms[layer, task] = grown, phi
            own[f"grown.{layer}/{task}"] = grown.requires_grad_()
            (own if task == TASK else fixed)[f"transforms.{layer}/{task}"] = phi.requires_grad_()
    duals = {}
    for at, (layer, names) in enumerate(columns.items()):
        d = sum({**weights, **own}[name][0].numel() for name in names)
        duals[layer] = Dual("retain" if at % 2 else "remove", orthonormal(d, d // 3))
        method.memory.put(layer, duals[layer])
    found, masks = step(method)

    grown_weights = dict(weights)
    for first, *more in columns.values():
        for name in more:
            phi = {**own, **fixed}[name.replace("grown", "transforms")]
            mixed = torch.stack([(own[name] * one.view(1, -1, *[1] * (own[name].ndim - 2))).sum(1) for one in phi], 1)
            grown_weights[first] = grown_weights[first] + mixed
    expected = still(slopes(batch_loss(grown_weights, masks), {**weights, **own}))
    for layer, names in columns.items():
        side_by_side = torch.cat([expected[name].flatten(1) for name in names], 1)
        inside = side_by_side @ duals[layer].basis @ duals[layer].basis.T
        kept = inside if duals[layer].kind == "retain" else side_by_side - inside
        pieces = kept.split([expected[name][0].numel() for name in names], 1)
        expected |= {name: piece.view_as(expected[name]) for name, piece in zip(names, pieces, strict=True)}
    assert_same(found, expected)


# ── DFGP, RCL ───────────────────────────────────────────────────────────────────────────────────────────────────

SHARE, PARTNER = torch.linspace(0, 1, N).double().roll(3), torch.arange(N).roll(5)  # some meet the clamp
MIX_WEIGHT, UA_WEIGHT, RADIUS = 0.4, 0.7, 0.2
BOTH_PASSES = {"separate": ("ascent", "descent"), "shared": (), "ascent": ("ascent",), "descent": ("descent",)}


def robust_twin(
    method: DFGP, bases: Weights, masks: Masks, features: str = "shared", ua_in: tuple[str, ...] = ()
) -> Gradient:
    """J = L(x) + λ L(x̃) + κ L_ua; up by ρ along its gradient by weights and by γ; the gradient there, projected.

    `features` says in which passes the features have a forward of their own, without dropout after convolutions;
    `ua_in`, in which passes they are asked for.
    """
    x, y, released = batch().x, batch().y, method.variant == "released"

    def parts(weights: Weights, share: Tensor, going: str) -> tuple[Tensor, Tensor, Tensor]:
        each = share.view(-1, 1, 1, 1)
        (logits, z), (mixed_logits, mixed_z) = (
            answers(weights, images, going) for images in (x, (1 - each) * x + each * x[PARTNER])
        )
        if released:
            weight = share.detach().mean()
            mixed = weight * F.cross_entropy(mixed_logits, y) + (1 - weight) * F.cross_entropy(mixed_logits, y[PARTNER])
        else:
            log_p = mixed_logits.log_softmax(1)
            own, other = log_p[torch.arange(N), y], log_p[torch.arange(N), y[PARTNER]]
            mixed = -((1 - share) * own + share * other).mean()
        if going not in ua_in:
            return F.cross_entropy(logits, y), mixed, torch.zeros(())
        aligned = (z - mixed_z).square().sum(1).mean()
        if not released:
            aligned = (aligned + (z[PARTNER] - mixed_z).square().sum(1).mean()) / 2
        rows = torch.cat([z, mixed_z]) if released else z
        uniform = torch.pdist(rows).square().mul(-2).exp().mean().log()
        return F.cross_entropy(logits, y), mixed, aligned + uniform

    def answers(weights: Weights, images: Tensor, going: str) -> tuple[Tensor, Tensor]:
        hidden, found = run(weights, images, masks)
        if going in ua_in and going in BOTH_PASSES[features]:
            _, found = run(weights, images, masks, conv_dropout=False)
        return hidden @ weights[f"heads.{TASK}.weight"].T, F.normalize(found, dim=1)

    kappa = 1.0 if getattr(method, "eq8", False) else UA_WEIGHT
    weights, share = copied(method.net), SHARE.clone().requires_grad_()
    plain, mixed, ua = parts(weights, share, "ascent")
    total = plain + MIX_WEIGHT * mixed + UA_WEIGHT * ua
    uphill = slopes(total, weights)
    (uphill_share,) = slopes(total if released else mixed + kappa * ua, {"share": share}).values()
    worst = {
        name: (w + RADIUS * uphill[name] / length(uphill) if name in uphill else w).detach().requires_grad_()
        for name, w in weights.items()
    }
    worst_share = (share + RADIUS * uphill_share / uphill_share.norm()).clamp(0, 1).detach()
    plain, mixed, ua = parts(worst, worst_share, "descent")
    return still(outside(slopes(plain + MIX_WEIGHT * mixed + UA_WEIGHT * ua, worst), bases))


@pytest.mark.parametrize("variant", ["released", "paper"])
def test_dfgp(step: Step, monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    method = DFGP(network(), variant=variant, mix_weight=MIX_WEIGHT, radius=RADIUS)
    monkeypatch.setattr(method, "draw", lambda *_: Mixing(SHARE, PARTNER))
    bases = bases_for(method)
    found, masks = step(method)
    assert_same(found, robust_twin(method, bases, masks))


@pytest.mark.parametrize("features", BOTH_PASSES)
@pytest.mark.parametrize("ua_in", ["both", "ascent", "descent"])
@pytest.mark.parametrize(("variant", "eq8"), [("released", False), ("paper", False), ("paper", True)])
def test_rcl(step: Step, monkeypatch: pytest.MonkeyPatch, variant: str, eq8: bool, features: str, ua_in: str) -> None:
    values: dict[str, Any] = {"mix_weight": MIX_WEIGHT, "ua_weight": UA_WEIGHT, "radius": RADIUS, "eq8": eq8}
    method = RCL(network(), variant=variant, features=features, ua_in=ua_in, **values)
    monkeypatch.setattr(method, "draw", lambda *_: Mixing(SHARE, PARTNER))
    bases = bases_for(method)
    found, masks = step(method)
    passes = ("ascent", "descent") if ua_in == "both" else (ua_in,)
    assert_same(found, robust_twin(method, bases, masks, features, passes))


# ── FS-DGPM ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("limit", [50.0, 0.02])  # which nothing reaches, and everything
@pytest.mark.parametrize("second_order", [True, False])
@pytest.mark.parametrize("learn_norms", [True, False])
def test_fsdgpm(
    step: Step, monkeypatch: pytest.MonkeyPatch, limit: float, second_order: bool, learn_norms: bool
) -> None:
    """Twice up the loss of half a batch, inside the bases by λ; the mean loss of all images there; λ learns, and the
    gradient is projected with what it has become."""
    rates: dict[str, Any] = {"look_ahead": 0.2, "soft_rate": 0.6, "soft_momentum": 0.7, "sharpness": 4.0}
    method = FSDGPM(network(), limit=limit, second_order=second_order, learn_norms=learn_norms, **rates)
    bases, weights = bases_for(method), copied(method.net)
    importance = {layer: torch.rand(basis.shape[1]).double() for layer, basis in bases.items()}
    velocity = {layer: torch.randn(basis.shape[1]).double() for layer, basis in bases.items()}
    for layer in bases:
        method.importance[layer], method.velocity[layer] = importance[layer], velocity[layer]
    method.lr_scale = 0.5
    old = old_images()
    method.replay.add(old)
    monkeypatch.setattr(method.replay, "sample", lambda size: old if size == N else None)
    found, masks = step(method)

    names = {f"backbone.{layer}.weight": layer for layer in LAYERS}
    lambdas = {layer: values.requires_grad_() for layer, values in importance.items()}

    def inside(name: str, g: Tensor, lambdas: Weights) -> Tensor:
        basis = bases[names[name]]
        return times(g, basis @ lambdas[names[name]].diag() @ basis.T)

    x, y = torch.cat([batch().x, old.x]), torch.cat([batch().y, old.y])
    task = torch.cat([torch.full((N,), TASK), old.task])  # type: ignore[list-item]
    there, losses = dict(weights), []
    for rows in (slice(0, N // 2), slice(N // 2, N)):
        uphill = slopes(loss_of(there, batch().x[rows], batch().y[rows], TASK, masks), there, second_order)
        for name, g in uphill.items():
            climb = inside(name, g, lambdas) if name in names else g
            there[name] = there[name] + 0.5 * 0.2 * climb.clamp(-limit, limit)
        losses.append(loss_of(there, x, y, task, masks))
    mean = (losses[0] + losses[1]) / 2
    learned = cut(slopes(mean, lambdas), limit)
    new = {
        layer: torch.sigmoid(4 * (lambdas[layer] - 0.5 * 0.6 * (0.7 * velocity[layer] + learned[layer])))
        for layer in bases
    }
    expected = cut(slopes(mean, weights), limit)
    expected = {name: g - inside(name, g, new) if name in names else g for name, g in expected.items()}
    assert_same(found, expected if learn_norms else still(expected))
    assert_same(dict(method.importance.items()), new)


# ── OWM, EWC, ER, A-GEM ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("clip", [1e6, 0.02])
def test_owm(step: Step, clip: float) -> None:
    """P ← P − k kᵀ/(α + rᵀk), k = P r, for every patch r of the mean input in turn; then G P."""
    method = OWM(network(), clip=clip, regularizer=2.0, conv_decay=0.1, first_linear_decay=0.2, linear_decay=0.3)
    method.first, method.images, method.epochs, method.of, method.seen = False, 20, 1, 4, 8
    projectors = {}
    for layer in LAYERS:
        u = orthonormal(d := width(method.net, layer), d // 3)
        projectors[layer] = torch.eye(d, dtype=torch.float64) - 0.7 * u @ u.T
        method.projectors[layer] = projectors[layer].clone()
    found, masks = step(method)

    weights, inputs = copied(method.net), {}
    hidden, _ = run(weights, batch().x, masks, inputs=inputs)
    expected = slopes(F.cross_entropy(hidden @ weights[f"heads.{TASK}.weight"].T, batch().y), weights)
    decays = {"conv1": 0.1, "conv2": 0.1, "conv3": 0.1, "fc1": 0.2, "fc2": 0.3}
    for layer, decay in decays.items():
        weight, mean = weights[f"backbone.{layer}.weight"], inputs[layer].mean(0, keepdim=True)
        for r in F.unfold(mean, weight.shape[2:])[0].T if weight.ndim == 4 else mean:
            k = projectors[layer] @ r
            projectors[layer] = projectors[layer] - torch.outer(k, k) / (2.0 * decay ** ((1 + 8 / 20) / 4) + r @ k)
        name = f"backbone.{layer}.weight"
        expected[name] = times(expected[name], projectors[layer])
    assert_same(found, cut(still(expected), clip))
    assert_same(dict(method.projectors.items()), projectors)
    assert method.seen == 8 + N


@pytest.mark.parametrize("clip", [None, 0.5])
def test_ewc(step: Step, clip: float | None) -> None:
    """g + λ F (θ − θ*), where an old task has been."""
    method = EWC(network(), coefficient=30.0, clip=clip)
    weights = copied(method.net)
    used = [name for name in weights if name != f"heads.{TASK}.weight"]
    fisher = {name: torch.rand_like(weights[name]) for name in used}
    anchor = {name: weights[name].detach() + 0.1 * torch.randn_like(weights[name]) for name in used}
    for name in used:
        method.fisher[name], method.anchor[name] = fisher[name], anchor[name]
    found, masks = step(method)
    expected = slopes(batch_loss(weights, masks), weights)
    for name in used:
        pull = 30.0 * fisher[name] * (weights[name].detach() - anchor[name])
        expected[name] = expected[name] + pull if name in expected else pull
    assert_same(found, expected if clip is None else cut(expected, clip))


@pytest.mark.parametrize("clip", [None, 0.05])
def test_er(step: Step, monkeypatch: pytest.MonkeyPatch, clip: float | None) -> None:
    """The mean loss over new and old images, which share one forward."""
    method = ER(network(), clip=clip, replay_batch=6)
    old = old_images()
    method.memory.add(old)
    monkeypatch.setattr(method.memory, "sample", lambda size: old if size == 6 else None)
    found, masks = step(method)
    weights, tasks = copied(method.net), torch.cat([torch.full((N,), TASK), old.task])  # type: ignore[list-item]
    loss = loss_of(weights, torch.cat([batch().x, old.x]), torch.cat([batch().y, old.y]), tasks, masks)
    expected = slopes(loss, weights)
    assert_same(found, expected if clip is None else cut(expected, clip))


@pytest.mark.parametrize("conflict", [False, True])
def test_agem(step: Step, monkeypatch: pytest.MonkeyPatch, conflict: bool) -> None:
    """g, or g − (g·r/r·r) r where g·r < 0, r the gradient on old images, over all weights."""
    method = AGEM(network(), replay_batch=6)
    sign, rows = (-1 if conflict else 1), torch.tensor([0, 1, 2, 3, 5, 6])
    old = Batch(batch().x[rows], batch().y[rows], torch.tensor([0, 0, 0, 1, 1, 1]))
    for head in method.net.heads[:TASK]:  # old tasks want of the same images what the new one wants, or the opposite
        head.weight.data = sign * method.net.heads[TASK].weight.data[: len(head.weight)]
    method.memory.add(old)
    monkeypatch.setattr(method.memory, "sample", lambda size: old if size == 6 else None)
    found, masks = step(method)
    weights = copied(method.net)
    new = slopes(batch_loss(weights, masks), weights)
    past = slopes(loss_of(weights, old.x, old.y, old.task, masks), weights)
    product = sum(float((g * past[name]).sum()) for name, g in new.items() if name in past)
    assert (product < 0) == conflict
    if conflict:
        share = product / float(length(past).square())
        new |= {name: new.get(name, torch.zeros_like(r)) - share * r for name, r in past.items()}
    assert_same(found, new)
