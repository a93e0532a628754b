"""c06, FS-DGPM: two steps of the real method on a first and on a later task, and the bases it keeps."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from perdure.methods import fsdgpm
from perdure.methods.fsdgpm import FSDGPM
from perdure.nets.alexnet import OneNormAlexNet
from perdure.nets.network import Network
from perdure.ops.gradients import norm
from perdure.types import Batch, Gradient, Lesson, Weights

from .golden import (
    CHANGE,
    CLEARLY,
    DTYPES,
    GRADIENT,
    PROJECTOR,
    RECIPE,
    VALUE,
    Bound,
    Case,
    Parameters,
    bn,
    draw,
    library_name,
    ortho,
    stream,
    tensor,
    weight,
)

SIZES = RECIPE["c06"]
CLASSES = SIZES["fsdgpm_classes"]
READINGS = {"reference": "released", "intended": "intended"}  # the files' word → perdure's
LAYERS = {"conv1": (64, 3, 4, 4), "conv2": (128, 64, 3, 3), "conv3": (256, 128, 2, 2)}
LAYERS |= {"fc1": (2048, 1024), "fc2": (2048, 2048)}


@cache
def parameters() -> Parameters:
    """In the order of the recipe; the one head of the files is two heads here."""
    rs, made = stream(61), Parameters()
    for name, shape in LAYERS.items():
        made[name] = weight(rs, *shape)
        if name == "conv2":
            made["bn2.gamma"], made["bn2.beta"] = bn(rs, shape[0])
    whole = weight(rs, 2 * CLASSES, LAYERS["fc2"][0])
    made["head0"], made["head1"] = whole[:CLASSES], whole[CLASSES:]
    return made


def network(dtype: torch.dtype) -> Network:
    net, made = Network(OneNormAlexNet((3, 32, 32), dropout=False)), parameters()
    net.add_head(CLASSES)
    net.add_head(CLASSES)
    net.to(dtype)
    with torch.no_grad():
        for name, values in made.items():
            net.get_parameter(library_name(name)).copy_(tensor(values, dtype))
    return net


def by_file_name(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What has perdure's names under those of the files; a head without a gradient has zeros there."""
    names = {library_name(name): name for name in parameters()}
    found = {names[own]: value for own, value in values.items()}
    heads = [found.pop(f"head{task}", torch.zeros(CLASSES, LAYERS["fc2"][0])) for task in (0, 1)]
    return {**found, "head": torch.cat([head.detach().double() for head in heads])}


class Step:
    """The method before its first step, and what it meets on the way through each."""

    def __init__(self, task: int, reading: str = "released", **values: Any) -> None:
        dtype = torch.float64
        rs, n = stream(62), SIZES["fsdgpm_batch"]
        x = tensor(draw(rs, n, 3, 32, 32), dtype)
        y = tensor(rs.randint(CLASSES, 2 * CLASSES, size=n, dtype=np.int64), torch.int64) - CLASSES
        old_x = tensor(draw(rs, SIZES["fsdgpm_memory"], 3, 32, 32), dtype)
        old_y = tensor(rs.randint(0, CLASSES, size=SIZES["fsdgpm_memory"], dtype=np.int64), torch.int64)
        self.case = Case(f"c06_fsdgpm_step_task{task}")
        self.batches = [Batch(x, y, task - 1), Batch(x.flip(0), y.flip(0), task - 1)]
        given = {
            "memory": SIZES["fsdgpm_memory"],
            "look_ahead": SIZES["fsdgpm_eta1"],
            "soft_rate": SIZES["fsdgpm_eta2"],
            "soft_momentum": SIZES["fsdgpm_momentum"],
            "sharpness": SIZES["fsdgpm_sigmoid"],
            "limit": SIZES["fsdgpm_clip"],
            "learn_norms": True,
        }
        self.method = FSDGPM(network(dtype), variant=reading, **(given | values)).train()
        if task > 1:
            self.remember(dtype)
            self.method.replay.add(Batch(old_x, old_y, 0))
        weights = self.method.trainable()
        self.optimizer = torch.optim.SGD(weights.values(), SIZES["fsdgpm_rate"], SIZES["fsdgpm_momentum"])

    def remember(self, dtype: torch.dtype) -> None:
        rs, sizes = stream(63), SIZES["fsdgpm_basis_sizes"]
        for (name, shape), size in zip(LAYERS.items(), sizes, strict=True):
            self.method.memory[name] = tensor(ortho(rs, int(np.prod(shape[1:])), size), dtype)
        for name, size in zip(LAYERS, sizes, strict=True):
            scaled = (SIZES["fsdgpm_lambda_scale"] * rs.standard_normal(size=size)).astype(np.float32)
            self.method.importance[name] = tensor(scaled, dtype)

    def take(self, number: int, patch: pytest.MonkeyPatch) -> dict[str, dict[str, Tensor]]:
        """Everything the files keep of a step, by the kind of number it is."""
        method, points, losses_seen, clips = self.method, [], [], []
        before = {name: value.detach().clone() for name, value in method.trainable().items()}
        importance = {name: value.clone() for name, value in method.importance.items()}

        def ascend(*given: Any) -> Weights:
            points.append(FSDGPM.ascend(method, *given))
            return points[-1]

        def losses_uphill(*given: Any) -> list[Tensor]:
            losses_seen.extend(FSDGPM.losses_uphill(method, *given))
            return losses_seen

        def clip(gradient: Gradient, limit: float) -> Gradient:
            if gradient:
                clips.append((norm(gradient), original(gradient, limit)))
                return clips[-1][1]
            return gradient

        original = fsdgpm.clip
        with patch.context() as context:
            context.setattr(method, "ascend", ascend)
            context.setattr(method, "losses_uphill", losses_uphill)
            context.setattr(fsdgpm, "clip", clip)
            attached = method.attached
            gradient = method.gradient(self.batches[number - 1])
        changes = {
            f"fast_delta{place}": {name: value - before[name] for name, value in point.items()}
            for place, point in enumerate(points, 1)
        }
        for name, parameter in method.trainable().items():
            parameter.grad = gradient.get(name)
        self.optimizer.step()
        changes["delta"] = {name: value - before[name] for name, value in method.trainable().items()}
        slopes = {"grad_final": gradient}
        if importance:
            slopes["grad_clipped"] = clips[0][1]
        losses = torch.stack(losses_seen).detach()
        values = {"meta_losses": losses, "loss": losses.mean(), "clip_norms": torch.stack([size for size, _ in clips])}
        values["running_mean"] = method.net.backbone.bn2.running_mean.clone()
        values["running_var"] = method.net.backbone.bn2.running_var.clone()
        soft = {}
        for place, (name, old) in enumerate(importance.items(), 1):
            soft[f"lambda{place}"] = method.importance[name]
            if attached:
                soft[f"lambda_grad{place}"] = clips[1][1][name]
                soft[f"lambda_after_sgd{place}"] = old - SIZES["fsdgpm_eta2"] * method.velocity[name]
        return {"change": spread(changes), "gradient": spread(slopes) | soft, "value": values}


def spread(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{group}/{name}": part for group, parts in groups.items() for name, part in by_file_name(parts).items()}


BOUNDS: dict[str, Bound] = {"change": CHANGE["f64"], "gradient": GRADIENT["f64"], "value": VALUE["f64"]}


@pytest.mark.parametrize(("task", "reading"), [(1, "reference"), (2, "reference"), (2, "intended")])
def test_two_steps(task: int, reading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    it = Step(task, READINGS[reading])
    for number, stored in ((1, "reference"), (2, reading)):  # the first step is common
        found, prefix = it.take(number, monkeypatch), f"f64/{stored}/step{number}/"
        for kind, numbers in found.items():
            it.case.check_all(prefix, numbers, BOUNDS[kind], complete=False)
        assert {name for numbers in found.values() for name in numbers} == it.case.names(prefix)


# --- controls: each slip below must be seen -------------------------------------------------------

SLIPS: dict[str, tuple[dict[str, Any], str, str]] = {
    "first order": ({"second_order": False}, "gradient", "grad_clipped/conv2"),
    "one piece": ({"pieces": 1}, "value", "loss"),
    "no step uphill": ({"look_ahead": 0.0}, "value", "loss"),
    "softer": ({"sharpness": 5.0}, "gradient", "lambda1"),
    "faster": ({"soft_rate": 1.0}, "gradient", "lambda1"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_slips_are_told_apart(slip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values, kind, name = SLIPS[slip]
    it = Step(2, **values)
    found = it.take(1, monkeypatch)[kind][name]
    assert it.case.miss(f"f64/reference/step1/{name}", found, BOUNDS[kind]) > CLEARLY


@pytest.mark.parametrize("reading", READINGS)
def test_the_two_readings_are_told_apart(reading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = next(name for name in READINGS if name != reading)
    it = Step(2, READINGS[reading])
    it.take(1, monkeypatch)
    found = it.take(2, monkeypatch)["gradient"]["lambda1"]
    assert it.case.miss(f"f64/{other}/step2/lambda1", found, GRADIENT["f64"]) > CLEARLY


# --- the bases ------------------------------------------------------------------------------------


def remembered(dtype: torch.dtype, threshold: float) -> tuple[FSDGPM, Batch]:
    count = SIZES["fsdgpm_svd_images"]
    net = network(dtype)
    images = Batch(tensor(draw(stream(64), count, 3, 32, 32), dtype), torch.zeros(count, dtype=torch.int64), 0)
    method = FSDGPM(net, threshold=threshold, samples=count)
    method.replay.add(images)
    method.end(Lesson(0, ()))
    return method, images


def counts(method: FSDGPM) -> list[int]:
    return [size for size, _ in method.memory.sizes().values()]


def test_bases() -> None:
    case = Case("c06_fsdgpm_memory_svd")
    method, images = remembered(torch.float64, SIZES["fsdgpm_svd_threshold"])
    assert counts(method) == case["k"].tolist()
    shown = method.representations(images)
    bases = {str(number): method.memory[name] for number, name in enumerate(LAYERS, 1)}
    case.check_all("projector", {number: basis @ basis.T for number, basis in bases.items()}, PROJECTOR)
    strengths = {
        str(number): torch.linalg.vector_norm(method.memory[name].T @ shown[name], dim=1)
        for number, name in enumerate(LAYERS, 1)
    }
    case.check_all("sigma", strengths, VALUE["f64"])
    assert case.names("") - {"k", "k_f32"} == {f"{kind}{number}" for kind in ("projector", "sigma") for number in bases}


def test_bases_in_single_precision_have_the_same_size() -> None:
    method, _ = remembered(DTYPES["f32"], SIZES["fsdgpm_svd_threshold"])
    assert counts(method) == Case("c06_fsdgpm_memory_svd")["k_f32"].tolist()


def test_another_threshold_is_told_apart() -> None:
    method, _ = remembered(torch.float64, SIZES["fsdgpm_svd_threshold"] - 0.01)
    assert counts(method) != Case("c06_fsdgpm_memory_svd")["k"].tolist()
