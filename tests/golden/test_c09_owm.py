"""c09: two steps of OWM on its own network, whose last layer stands for the head and is projected, too."""

import json
from collections.abc import Mapping

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perdure.methods.owm import OWM
from perdure.nets.network import Backbone, Network
from perdure.ops.gradients import grad, norm, project
from perdure.ops.layers import LayerInput
from perdure.ops.rls import update
from perdure.types import Batch, EpochStart, Lesson, Part, Split

from .golden import CHANGE, CLEARLY, DTYPES, GRADIENT, OWN_FOLDER, RECIPE, VALUE, Case, draw, stream, tensor, weight

SIZES = RECIPE["c09"]
SHAPES = {"c1": (64, 3, 2, 2), "c2": (128, 64, 2, 2), "c3": (256, 128, 2, 2)}
SHAPES |= {"fc1": (1000, 4096), "fc2": (1000, 1000), "fc3": (10, 1000)}
DECAYS = dict(zip(SHAPES, SIZES["alpha_bases"], strict=True))
PROJECTORS = dict(zip(SHAPES, ("Pc1", "Pc2", "Pc3", "P1", "P2", "P3"), strict=True))


class Owm2019(Backbone):
    """Three times (replication pad → 2×2 conv → ReLU → pool), three linear layers; the last gives the logits."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            out, inputs = shape[:2]
            conv = nn.Conv2d(inputs, out, shape[2:], padding=1, padding_mode="replicate", bias=False)
            self.add_module(name, conv if len(shape) > 2 else nn.Linear(inputs, out, bias=False))
        self.width = SHAPES["fc3"][0]

    def forward(self, x: Tensor, quiet: bool = False) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        for conv in (self.c1, self.c2, self.c3):
            x = F.max_pool2d(F.relu(conv(x)), 2)
        x = self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))
        return x, x


class ProjectedHead(OWM):
    """The library's method has no constant for a head, which it leaves free; the reference projects it, too."""

    def decays(self) -> dict[str, float]:
        return {**super().decays(), **DECAYS}


def test_the_constants_are_the_published_ones() -> None:
    published = json.loads((OWN_FOLDER / "recipe.json").read_text())["c09"]["alpha_bases"]
    found = OWM(Network(Owm2019())).decays()
    assert [found[name] for name in SHAPES if name != "fc3"] == published[:-1]


def two(precision: str = "f64", **values: object) -> tuple[OWM, list[Batch]]:
    """A method about to take two steps, and what to take them on."""
    rs, dtype = stream(90), DTYPES[precision]
    net = Network(Owm2019()).to(dtype)
    net.heads.append(nn.Identity())
    with torch.no_grad():
        for name, shape in SHAPES.items():
            net.get_parameter(f"backbone.{name}.weight").copy_(tensor(weight(rs, *shape), dtype))
    x = tensor(draw(rs, SIZES["samples"], 3, 32, 32), dtype)
    y = tensor(rs.randint(0, SHAPES["fc3"][0], size=SIZES["samples"], dtype=np.int64), torch.int64)
    chosen = {"patch_stride": SIZES["patch_stride"], "clip": SIZES["clip"], **values}
    method = ProjectedHead(net, **chosen).train()
    lesson = Lesson(0, (Part(0, SHAPES["fc3"][0], Split(x, y), Split(x, y)),))
    size = SIZES["batch"]
    batches = [Batch(x[start : start + size], y[start : start + size], 0) for start in range(0, len(y), size)]
    method.begin(lesson)
    method.begin_epoch(EpochStart(SIZES["epoch"], SIZES["epochs"]))
    return method, batches


def by_layer(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("backbone.").removesuffix(".weight"): value for name, value in values.items()}


@pytest.mark.parametrize("precision", DTYPES)
def test_two_steps(precision: str) -> None:
    case, (method, batches) = Case("c09_owm"), two(precision)
    weights = dict(method.net.named_parameters())
    before = {name: value.detach().clone() for name, value in weights.items()}
    optimizer = torch.optim.SGD(weights.values(), lr=SIZES["rate"], momentum=SIZES["momentum"])
    for number, batch in enumerate(batches, 1):
        where = f"{precision}/step{number}"
        raw = grad(method.loss(batch), method.trainable())
        case.check_all(f"{where}/grad_raw/", by_layer(raw), GRADIENT[precision])
        clipped = method.gradient(batch)
        projectors = {PROJECTORS[layer]: projector for layer, projector in method.projectors.items()}
        case.check_all(f"{where}/", projectors, GRADIENT[precision], complete=False)
        projected = project(raw, method.projections())
        case.check_all(f"{where}/grad_proj/", by_layer(projected), GRADIENT[precision])
        case.check(f"{where}/clip_norm", norm(projected), VALUE[precision])
        for name, slope in clipped.items():
            weights[name].grad = slope
        optimizer.step()
        stored = {name for name in case.names(f"{where}/") if "/" not in name}
        assert stored == {*PROJECTORS.values(), "clip_norm"}
    change = {name: (value - before[name]).detach() for name, value in weights.items()}
    case.check_all(f"{precision}/delta_total/", by_layer(change), CHANGE[precision])


def test_rank_one_updates_one_after_another_give_the_same() -> None:
    """The recursion as the README tells it, patch by patch, on the first convolution."""
    case, (method, batches) = Case("c09_owm"), two()
    mean = batches[0].x.mean(0, keepdim=True)  # what c1 receives
    padded = F.pad(mean, (1, 1, 1, 1), mode="replicate")[0]
    stride, side = SIZES["patch_stride"], SHAPES["c1"][2]
    alpha = DECAYS["c1"] ** (SIZES["epoch"] / SIZES["epochs"])
    first = p = torch.eye(SHAPES["c1"][1] * side * side, dtype=torch.float64)
    for row in range(0, padded.shape[1] - side + 1, stride):
        for column in range(0, padded.shape[2] - side + 1, stride):
            r = padded[:, row : row + side, column : column + side].reshape(-1)
            k = p @ r
            p = p - torch.outer(k, k) / (alpha + r @ k)
    case.check("f64/step1/Pc1", p, GRADIENT["f64"])
    patches = method.patches(mean, method.net.backbone.layers()["c1"])
    case.check("f64/step1/Pc1", update(first, patches, alpha), GRADIENT["f64"])


# --- controls: c1 receives the images, so that its projector can be had without the rest ----------


def miss(step: int, method: OWM) -> float:
    return Case("c09_owm").miss(f"f64/step{step}/Pc1", method.projectors["c1"], GRADIENT["f64"])


def see(method: OWM, batch: Batch) -> None:
    method.update_projectors({"c1": LayerInput(method.layers()["c1"], [batch.x])})


def test_slips_are_told_apart() -> None:
    right, (first, _) = two()
    see(right, first)
    assert miss(1, right) <= 1

    own_stride, _ = two(patch_stride=None)
    see(own_stride, first)
    assert miss(1, own_stride) > CLEARLY

    later, _ = two()
    later.begin_epoch(EpochStart(SIZES["epoch"] + 1, SIZES["epochs"]))
    see(later, first)
    assert miss(1, later) > CLEARLY

    one_image, _ = two()
    see(one_image, Batch(first.x[:1], first.y[:1], 0))
    assert miss(1, one_image) > CLEARLY


def test_a_regularizer_that_falls_from_epoch_to_epoch_only_is_told_apart() -> None:
    misses = []
    for counted in (True, False):
        method, (first, second) = two()
        see(method, first)
        method.seen = len(first) if counted else 0
        see(method, second)
        misses.append(miss(2, method))
    assert misses[0] <= 1
    assert misses[1] > CLEARLY


def test_a_gradient_through_the_projectors_of_before_is_told_apart() -> None:
    method, (first, _) = two()
    raw = grad(method.loss(first), method.trainable())
    before = project(raw, method.projections())["backbone.c1.weight"]  # the projectors have seen nothing yet
    assert Case("c09_owm").miss("f64/step1/grad_proj/c1", before, GRADIENT["f64"]) > CLEARLY
