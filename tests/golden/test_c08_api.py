"""c08, API: the dual memory over three tasks, projection of grown layers, growth, and the weights of each task."""

from collections.abc import Iterable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perdure.memory.gradient_memory import DualMemory
from perdure.methods.api import API
from perdure.nets.network import Backbone, Network
from perdure.ops.dual_gpm import Dual, project_dual
from perdure.ops.expansion import effective, expansion, patch_norms, retain_ratio, transform

from .golden import (
    CLEARLY,
    DTYPES,
    GRADIENT,
    PROJECTOR,
    RECIPE,
    VALUE,
    Bound,
    Case,
    draw,
    ortho,
    stream,
    tensor,
    weight,
)

SIZES = RECIPE["c08"]
PHI = Bound(absolute=RECIPE["tolerances"]["phi_f32_atol"])


# --- the dual memory ------------------------------------------------------------------------------


def representations(case: Case, task: int) -> list[Tensor]:
    """d includes what the layers have grown by so far."""
    rs, found = stream(79 + task), []
    grown = case["expansion"][:task].sum(0)
    parts = zip(SIZES["layers"], SIZES["kernels"], SIZES["decays"], grown, strict=True)
    for (rows, count), kernel, decay, channels in parts:
        d = rows + int(channels) * kernel**2
        spread = rs.standard_normal((d, d)) * decay ** np.arange(d)
        found.append(tensor(spread @ rs.standard_normal((d, count))))
    return found


def learn(memory: DualMemory, case: Case, task: int) -> None:
    """One task as the method does it: room for new inputs, then the update."""
    grown, thresholds = case["expansion"][task - 1], case["thresholds"][task - 1]
    for number, found in enumerate(representations(case, task)):
        memory.widen(str(number + 1), int(grown[number]) * SIZES["kernels"][number] ** 2)
        memory.extend({str(number + 1): found}, float(thresholds[number]))


def state(memory: DualMemory) -> tuple[list[int], list[int], list[int]]:
    """(is retain, k, d) of every layer."""
    duals = [memory.dual(str(number + 1)) for number in range(len(SIZES["layers"]))]
    shapes = [dual.basis.shape for dual in duals]
    return [int(dual.kind == "retain") for dual in duals], [k for _, k in shapes], [d for d, _ in shapes]


def projectors(memory: DualMemory) -> dict[str, Tensor]:
    return {layer: dual.basis @ dual.basis.T for layer, dual in memory.duals().items()}


def test_dual_memory() -> None:
    case, memory = Case("c08_api_dualgpm"), DualMemory()
    names = {"thresholds", "expansion"}
    for task in range(1, len(case["thresholds"]) + 1):
        learn(memory, case, task)
        facts = dict(zip(("is_retain", "k", "d"), state(memory), strict=True))
        for name, found in facts.items():
            assert found == case[f"task{task}/{name}"].tolist(), (task, name)
        case.check_all(f"task{task}/P", projectors(memory), PROJECTOR)
        names |= {f"task{task}/{name}" for name in (*facts, *(f"P{layer}" for layer in memory.duals()))}
    assert case.names("") == names


def test_a_memory_that_never_switches_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.ops.dual_gpm.smaller", lambda dual: dual)
    case, memory, last = Case("c08_api_dualgpm"), DualMemory(), 0
    for last in range(1, len(case["thresholds"]) + 1):
        learn(memory, case, last)
    assert state(memory)[0] != case[f"task{last}/is_retain"].tolist()


def test_new_inputs_taken_as_used_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A "retain" basis padded with zeros alone would keep the new columns from learning."""
    pad = F.pad
    monkeypatch.setattr(
        "perdure.memory.gradient_memory.widen", lambda dual, rows: Dual(dual.kind, pad(dual.basis, (0, 0, 0, rows)))
    )
    case, memory, missed = Case("c08_api_dualgpm"), DualMemory(), []
    for task in range(1, len(case["thresholds"]) + 1):
        learn(memory, case, task)
        missed += [case.miss(f"task{task}/P{layer}", found, PROJECTOR) for layer, found in projectors(memory).items()]
    assert max(missed) > CLEARLY


# --- projection of grown layers -------------------------------------------------------------------


class Parts(Backbone):
    """Layers with the inputs that the recipe calls old; they are never run."""

    width = 1

    def __init__(self, shapes: Iterable[tuple[int, ...]]) -> None:
        super().__init__()
        for number, (out, inputs, *kernel) in enumerate(shapes, 1):
            linear = not kernel
            self.add_module(
                f"layer{number}",
                nn.Linear(inputs, out, bias=False) if linear else nn.Conv2d(inputs, out, kernel, bias=False),
            )
        self.norm = nn.BatchNorm1d(1, track_running_stats=False)


def given_gradients(dtype: torch.dtype) -> tuple[list[Tensor], list[Dual]]:
    rs = stream(84)
    gradients = [tensor(draw(rs, *shape), dtype) for shape in SIZES["gradient_shapes"]]
    duals = []
    for gradient, old, kind in zip(gradients, SIZES["old_inputs"], SIZES["types"], strict=True):
        d = old * gradient[0, 0].numel()
        duals.append(Dual(kind, tensor(ortho(rs, d, max(1, d // SIZES["basis_divisor"])), dtype)))
    return gradients, duals


def grown_method(dtype: torch.dtype) -> tuple[API, list[Tensor]]:
    """Layers of which some have grown, with a memory of the inputs before that."""
    gradients, duals = given_gradients(dtype)
    old = SIZES["old_inputs"]
    shapes = [(len(g), count, *g.shape[2:]) for g, count in zip(gradients, old, strict=True)]
    method = API(Network(Parts(shapes)).to(dtype))
    for number, (gradient, count, dual) in enumerate(zip(gradients, old, duals, strict=True), 1):
        method.memory.put(f"layer{number}", dual)
        if (new := gradient.shape[1] - count) > 0:
            method.grown[f"layer{number}/1"] = torch.zeros_like(gradient[:, count:])
            method.transforms[f"layer{number}/1"] = torch.zeros(count, new, dtype=dtype)
            method.memory.widen(f"layer{number}", new * gradient[0, 0].numel())
    return method, gradients


@pytest.mark.parametrize("precision", DTYPES)
def test_projection(precision: str) -> None:
    case, (method, gradients) = Case("c08_api_step_expand"), grown_method(DTYPES[precision])
    raw = {f"backbone.norm.{part}": torch.ones(1) for part in ("weight", "bias")}
    for number, (gradient, old) in enumerate(zip(gradients, SIZES["old_inputs"], strict=True), 1):
        raw[f"backbone.layer{number}.weight"] = gradient[:, :old]
        if gradient.shape[1] > old:
            raw[f"grown.layer{number}/1"] = gradient[:, old:]
    found = method.project(raw)
    assert not [name for name in found if "norm" in name]

    wide, ratios = {}, []
    for number, gradient in enumerate(gradients, 1):
        flat = method.side_by_side(found, f"layer{number}")
        shape = (len(gradient), -1, *gradient.shape[2:])
        wide[str(number)] = flat.reshape(shape)
        ratios.append(retain_ratio(method.side_by_side(raw, f"layer{number}"), flat))
    case.check_all(f"{precision}/grad_proj", wide, GRADIENT[precision])
    case.check(f"{precision}/retain_ratio", torch.stack(ratios), VALUE[precision])


def test_the_other_kind_is_told_apart() -> None:
    case, (gradients, duals) = Case("c08_api_step_expand"), given_gradients(torch.float64)
    for number, (gradient, old, dual) in enumerate(zip(gradients, SIZES["old_inputs"], duals, strict=True), 1):
        other = Dual("retain" if dual.kind == "remove" else "remove", dual.basis)
        wrong = torch.cat([project_dual(gradient[:, :old], other), gradient[:, old:]], dim=1)
        assert case.miss(f"f64/grad_proj{number}", wrong, GRADIENT["f64"]) > CLEARLY


# --- growth ---------------------------------------------------------------------------------------


def sizes(case: Case) -> list[int]:
    floor, factor = SIZES["ratio_floor"], SIZES["expansion_factor"]
    return [expansion(float(r), floor, factor, c) for r, c in zip(case["ratios"], SIZES["channels"], strict=True)]


def shown() -> list[Tensor]:
    rs = stream(85)
    parts = zip(SIZES["channels"], SIZES["kernels"], SIZES["columns"], strict=True)
    return [tensor(draw(rs, channels * kernel**2, count)) for channels, kernel, count in parts]


def test_growth() -> None:
    case, found = Case("c08_api_step_expand"), {}
    assert sizes(case) == case["expansion"].tolist()
    for number, (size, representation, kernel) in enumerate(
        zip(sizes(case), shown(), SIZES["kernels"], strict=True), 1
    ):
        if size:
            phi = transform(patch_norms(representation, (kernel, kernel)), size)
            assert phi.shape == (SIZES["channels"][number - 1], size)
            found[str(number)] = phi @ phi.T
    case.check_all("PhiPhiT", found, PHI)


def test_frobenius_norms_are_told_apart() -> None:
    case = Case("c08_api_step_expand")
    for number, (size, representation, kernel) in enumerate(
        zip(sizes(case), shown(), SIZES["kernels"], strict=True), 1
    ):
        if 0 < size < SIZES["channels"][number - 1] and kernel > 1:
            patches = representation.reshape(-1, kernel**2, representation.shape[1])
            phi = transform(torch.linalg.vector_norm(patches, dim=1), size)
            assert case.miss(f"PhiPhiT{number}", phi @ phi.T, PHI) > 1


# --- the weights of each task ---------------------------------------------------------------------


@pytest.mark.parametrize("precision", DTYPES)
def test_weights_of_each_task(precision: str) -> None:
    case, dtype, given, rs = Case("c08_api_step_expand"), DTYPES[precision], SIZES["effective"], stream(86)
    names, weights, inputs, transforms = ("conv", "linear"), {}, {}, {}
    for name in names:
        weights[name] = tensor(weight(rs, *given[name]), dtype)
        inputs[name] = tensor(draw(rs, *given[f"{name}_input"]), dtype)
        transforms[name] = [tensor(draw(rs, *shape), dtype) for shape in given[f"{name}_transforms"]]
    method = API(
        Network(Parts([(len(weights[n]), len(transforms[n][0]), *weights[n].shape[2:]) for n in names])).to(dtype)
    )
    for number, name in enumerate(names, 1):
        cuts = [len(transforms[name][0]), *(phi.shape[1] for phi in transforms[name])]
        first, *grown = weights[name].split(cuts, dim=1)
        with torch.no_grad():
            method.net.get_parameter(f"backbone.layer{number}.weight").copy_(first)
        for task, (columns, phi) in reversed(list(enumerate(zip(grown, transforms[name], strict=True), 1))):
            method.grown[f"layer{number}/{task}"] = columns  # stored in no order
            method.transforms[f"layer{number}/{task}"] = phi

    latest = max(map(len, transforms.values()))
    for task in range(latest + 1):
        own = method.weights(task)
        found = {
            f"conv_t{task}": F.conv2d(inputs["conv"], own["backbone.layer1.weight"]),
            f"linear_t{task}": F.linear(inputs["linear"], own["backbone.layer2.weight"]),
        }
        case.check_all(f"{precision}/", found, VALUE[precision], complete=False)
    assert all(torch.equal(method.weights()[name], value) for name, value in own.items())
    expected = {f"{name}_t{task}" for name in names for task in range(latest + 1)}
    assert {name for name in case.names(f"{precision}/") if "_t" in name} == expected


def test_mixed_up_columns_are_told_apart() -> None:
    case, rs, given = Case("c08_api_step_expand"), stream(86), SIZES["effective"]
    whole, x = tensor(weight(rs, *given["conv"])), tensor(draw(rs, *given["conv_input"]))
    one, two = (tensor(draw(rs, *shape)) for shape in given["conv_transforms"])
    first, later, earlier = whole.split([len(one), two.shape[1], one.shape[1]], dim=1)
    wrong = F.conv2d(x, effective(first, [(earlier, one), (later, two)]))
    assert case.miss("f64/conv_t2", wrong, VALUE["f64"]) > CLEARLY
