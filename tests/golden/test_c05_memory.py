"""c05: the inputs of layers as columns, and the bases that are kept of them."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from perdure.methods.gpm import GPM
from perdure.nets.alexnet import AlexNet
from perdure.nets.resnet18 import ResNet18
from perdure.ops.layers import columns
from perdure.ops.subspace import extend
from perdure.types import Batch

from .golden import (
    CLEARLY,
    GRADIENT,
    OWN_FOLDER,
    PROJECTOR,
    RECIPE,
    Case,
    alex,
    alexnet,
    draw,
    ortho,
    stream,
    tensor,
)

SIZES = RECIPE["c05_repr"]
FACTS = ("gram", "trace", "colsum")
SAME = GRADIENT["f64"]


def facts(representation: Tensor) -> dict[str, Tensor]:
    """What the files keep of a matrix; none of it depends on the order of the columns."""
    gram = representation @ representation.T
    return {"gram": gram, "trace": gram.trace(), "colsum": representation.sum(1)}


def check_representation(case: Case, number: int, representation: Tensor) -> None:
    assert tuple(representation.shape) == tuple(case[f"layer{number}/matshape"])
    case.check_all(f"layer{number}/", facts(representation), SAME, complete=False)


# --- patches of given activations -----------------------------------------------------------------


def alexnet_given() -> Iterator[tuple[Tensor, nn.Module]]:
    """(input, layer) of AlexNet's five layers; the layers are stand-ins that have the geometry alone."""
    sizes, rs = SIZES["alexnet"], stream(50)
    shapes = [(3, 32, 32), (64, 14, 14), (128, 6, 6), (1024,), (2048,)]
    layers = [nn.Conv2d(shape[0], 1, kernel) for shape, kernel in zip(shapes, sizes["kernels"], strict=False)]
    layers += [nn.Linear(shape[0], 1) for shape in shapes[len(layers) :]]
    for shape, layer, count in zip(shapes, layers, sizes["samples"], strict=True):
        yield tensor(draw(rs, sizes["images"], *shape)[:count]), layer


def resnet_geometry(sizes: dict, networks: dict, pixels: int) -> list[tuple[int, nn.Conv2d]]:
    """(place of its input among the 17, layer) of the 20 layers; a shortcut follows its block."""
    strides = [networks["resnet"][str(pixels)]["stem_stride"], *sizes["strides_after_stem"]]
    channels = sizes["channels"]
    main = [nn.Conv2d(inputs, 1, 3, stride, padding=1) for inputs, stride in zip(channels, strides, strict=True)]
    order = [(0, main[0])]
    for first in range(1, len(main), 2):
        order += [(first, main[first]), (first + 1, main[first + 1])]
        if strides[first] > 1:
            order.append((first, nn.Conv2d(channels[first], 1, 1, strides[first])))
    return order


def resnet_given(pixels: int) -> Iterator[tuple[Tensor, nn.Module]]:
    sizes, rs = SIZES["resnet"], stream({32: 52, 84: 53}[pixels])
    sides = sizes["sizes"][str(pixels)]
    inputs = [
        draw(rs, sizes["images"], channels, side, side)[:count].copy()  # the rest is drawn for the stream's sake
        for channels, side, count in zip(sizes["channels"], sides, sizes["samples"], strict=True)
    ]
    for place, layer in resnet_geometry(sizes, RECIPE["networks"], pixels):
        yield tensor(inputs[place]), layer


def test_alexnet_given() -> None:
    case = Case("c05_repr_alexnet_given")
    given = list(alexnet_given())
    for number, (x, layer) in enumerate(given, 1):
        check_representation(case, number, columns(x, layer))
    assert case.names("") == stored_names(len(given))


@pytest.mark.parametrize("pixels", [32, 84])
def test_resnet_given(pixels: int) -> None:
    case, count = Case(f"c05_repr_resnet18_{pixels}_given"), 0
    for count, (x, layer) in enumerate(resnet_given(pixels), 1):
        check_representation(case, count, columns(x, layer))
    assert case.names("") == stored_names(count)


def stored_names(count: int) -> set[str]:
    return {f"layer{number}/{fact}" for number in range(1, count + 1) for fact in (*FACTS, "matshape")}


# --- the library's networks have that geometry, and take as many images ---------------------------


def geometry(layer: nn.Module) -> tuple:
    if isinstance(layer, nn.Linear):
        return ("linear", layer.in_features)
    return ("conv", layer.in_channels, layer.kernel_size, layer.stride, layer.padding)


# The published counts stand in the project's own folder; another one may take fewer images to be small.
OWN = json.loads((OWN_FOLDER / "recipe.json").read_text())


def test_alexnet_takes_the_published_number_of_images() -> None:
    net, sizes = AlexNet((3, 32, 32)), OWN["c05_repr"]["alexnet"]
    assert [net.patch_images[name] for name in net.layers()] == sizes["samples"]
    assert [layer.kernel_size[0] for layer in (net.conv1, net.conv2, net.conv3)] == sizes["kernels"]


@pytest.mark.parametrize("pixels", [32, 84])
def test_resnet_has_the_published_geometry(pixels: int) -> None:
    net, sizes = ResNet18((3, pixels, pixels)), OWN["c05_repr"]["resnet"]
    published = resnet_geometry(sizes, OWN["networks"], pixels)
    own = [net.get_submodule(name) for name in net.layers()]
    assert [geometry(layer) for layer in own] == [geometry(layer) for _, layer in published]
    assert [net.patch_images[name] for name in net.layers()] == [sizes["samples"][place] for place, _ in published]


# --- a network's own activations, and the bases of two tasks --------------------------------------


def test_alexnet_net() -> None:
    case, sizes = Case("c05_repr_alexnet_net"), SIZES["alexnet"]
    net = alexnet(alex(stream(20)), torch.float64, dropout=True)  # which has to be off for this
    net.backbone.patch_images = dict(zip(net.backbone.layers(), sizes["samples"], strict=True))
    images = tensor(draw(stream(51), sizes["images"], 3, 32, 32))
    method = GPM(net, samples=sizes["images"]).train()
    found = method.representations(Batch(images, torch.zeros(len(images), dtype=torch.int64), 0))
    assert list(found) == list(net.backbone.layers())
    for number, representation in enumerate(found.values(), 1):
        check_representation(case, number, representation)

    names = stored_names(len(found)) | {f"layer{number}/projector" for number in range(1, len(found) + 1)}
    for key, threshold in zip(("k_task1", "k_task2_same_data"), sizes["thresholds"], strict=True):
        method.memory.extend(found, threshold)
        key = f"{key}_eps{threshold}"
        assert [size for size, _ in method.memory.sizes().values()] == case[key].tolist(), key
        names.add(key)
    for number, name in enumerate(found, 1):
        basis = method.memory[name]
        case.check(f"layer{number}/projector", basis @ basis.T, PROJECTOR)
    assert case.names("") == names


# --- the rule, over three tasks -------------------------------------------------------------------

LAYERS = RECIPE["c05_gpm_update"]["layers"]


def representations(task: int) -> list[Tensor]:
    rs, found = stream(54 + task), []
    for rows, count in LAYERS:
        spread = rs.standard_normal((rows, rows)) * RECIPE["c05_gpm_update"]["decay"] ** np.arange(rows)
        found.append(tensor(spread @ rs.standard_normal((rows, count))))
    return found


def test_update() -> None:
    case = Case("c05_gpm_update")
    thresholds = case["thresholds"]
    bases: list[Tensor | None] = [None] * len(LAYERS)
    for task, row in enumerate(thresholds, 1):
        parts = zip(bases, representations(task), row, strict=True)
        bases = [extend(basis, found, float(threshold)) for basis, found, threshold in parts]
        assert [basis.shape[1] for basis in bases] == case[f"task{task}/k"].tolist()
        projectors = {str(number): basis @ basis.T for number, basis in enumerate(bases, 1)}
        case.check_all(f"task{task}/projector", projectors, PROJECTOR)
    kept = {f"task{task}/k" for task in range(1, len(thresholds) + 1)}
    assert {name for name in case.names("") if "/projector" not in name} == {"thresholds"} | kept


def test_bounds_are_strict() -> None:
    """Four directions of equal energy: the first task stays below the threshold, a later one reaches it."""
    even = torch.eye(4, dtype=torch.float64)
    assert [extend(None, even, threshold).shape[1] for threshold in (0.25, 0.5, 0.6, 1.0)] == [0, 1, 2, 3]
    none = even[:, :0]
    assert [extend(none, even, threshold).shape[1] for threshold in (0.25, 0.5, 0.6, 1.0)] == [1, 2, 3, 4]


# --- controls -------------------------------------------------------------------------------------


def test_wrong_rules_are_told_apart() -> None:
    """The later rule on the first task, and shares of what is left instead of shares of all."""
    case = Case("c05_gpm_update")
    first, later = case["thresholds"][:2]
    reached = [extend(r[:, :0], r, float(e)).shape[1] for r, e in zip(representations(1), first, strict=True)]
    assert reached != case["task1/k"].tolist()

    sizes = []
    for before, after, old, new in zip(representations(1), representations(2), first, later, strict=True):
        basis = extend(None, before, float(old))
        left = after - basis @ (basis.T @ after)
        sizes.append(basis.shape[1] + extend(left[:, :0], left, float(new)).shape[1])
    assert sizes != case["task2/k"].tolist()


def test_wrong_patches_are_told_apart() -> None:
    """Rows and columns of a patch exchanged, and another stride."""
    case, (x, layer) = Case("c05_repr_alexnet_given"), next(alexnet_given())
    turned = facts(columns(x.transpose(2, 3), layer))
    assert case.miss("layer1/gram", turned["gram"], SAME) > CLEARLY
    assert case.miss("layer1/colsum", turned["colsum"], SAME) > CLEARLY
    layer.stride = (2, 2)
    assert case.miss("layer1/trace", facts(columns(x, layer))["trace"], SAME) > CLEARLY


def test_another_basis_is_told_apart() -> None:
    case = Case("c05_gpm_update")
    for number, ((rows, _), size) in enumerate(zip(LAYERS, case["task1/k"], strict=True), 1):
        if 0 < size < rows:  # nothing and everything have one projector each
            other = tensor(ortho(stream(0), rows, int(size)))
            assert case.miss(f"task1/projector{number}", other @ other.T, PROJECTOR) > CLEARLY
