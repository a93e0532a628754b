"""The golden vectors: their recipes (inputs and parameters) and the comparison with what perdure computes.

Every size, constant and float64 tolerance comes from the folder's recipe.json or from its .npz files, so that
another folder of the same form, named by PERDURE_GOLDEN, is checked by the same tests. What a recipe means is
written in the folder's README.md; the shapes of the networks' layers and the seed offsets stand there alone.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from torch import Tensor, nn

from perdure.nets.alexnet import AlexNet
from perdure.nets.network import Network
from perdure.nets.resnet18 import ResNet18

OWN_FOLDER = Path(__file__).parent / "vectors"
FOLDER = Path(os.environ.get("PERDURE_GOLDEN") or OWN_FOLDER)
RECIPE: dict[str, Any] = json.loads((FOLDER / "recipe.json").read_text())
DTYPES = {"f64": torch.float64, "f32": torch.float32}


# --- tolerances -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """How far a number may lie from the stored one; `relative` counts in the tensor's largest entry."""

    relative: float = 0.0
    absolute: float = 0.0


_ALLOWED = RECIPE["tolerances"]

# The float32 figures are those of the README's table; recipe.json carries the float64 ones only.
VALUE = {"f64": Bound(_ALLOWED["f64_rtol"]), "f32": Bound(1e-4)}  # losses, features, logits
SHARE = {"f64": Bound(_ALLOWED["f64_rtol"]), "f32": Bound(absolute=1e-3)}  # γ̂
GRADIENT = {"f64": Bound(_ALLOWED["f64_rtol"]), "f32": Bound(3e-2)}
CHANGE = {"f64": Bound(_ALLOWED["f64_delta_rtol"]), "f32": Bound(3e-2, absolute=1e-7)}  # new − old weight
PROJECTOR = Bound(absolute=_ALLOWED["f64_projector_atol"])

CLEARLY = 100.0  # a wrong variant must miss by so many tolerances, or the test could not have told it apart


class Case:
    """One .npz. A name stands for a tensor stored whole, or as shape, sum, norm and 64 probed entries."""

    def __init__(self, name: str) -> None:
        with np.load(FOLDER / f"{name}.npz") as file:
            self.name, self.entries = name, dict(file)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.entries[name]

    def names(self, prefix: str) -> set[str]:
        """What is stored under a prefix, without the prefix."""
        return {key.split("|")[0].removeprefix(prefix) for key in self.entries if key.startswith(prefix)}

    def miss(self, name: str, value: Tensor | float, bound: Bound) -> float:
        """Distance from the stored tensor in units of the tolerance: up to 1 passes."""
        found = _array(value)
        if name in self.entries:
            return _entries_miss(found, self.entries[name], bound)
        if found.shape != tuple(self.entries[f"{name}|shape"]):
            return float("inf")
        total, length = float(self.entries[f"{name}|sum"]), float(self.entries[f"{name}|l2"])
        # A sum of mixed signs may be near zero: its scale is the largest sum a tensor of this norm can have.
        slack = (bound.relative + bound.absolute) * length
        return max(
            _ratio(abs(found.sum() - total), slack * found.size**0.5),
            _ratio(abs(np.linalg.norm(found) - length), slack),
            _entries_miss(found.ravel()[_probed(found.size)], self.entries[f"{name}|probe"], bound),
        )

    def check(self, name: str, value: Tensor | float, bound: Bound) -> None:
        self.check_all("", {name: value}, bound, complete=False)

    def check_all(
        self, prefix: str, values: Mapping[str, Tensor | float], bound: Bound, *, complete: bool = True
    ) -> None:
        """Compare every tensor under a prefix; unless told otherwise, the sets of names must be equal too."""
        if complete:
            assert set(values) == self.names(prefix), f"{self.name}: other names than stored under {prefix!r}"
        misses = {name: self.miss(prefix + name, value, bound) for name, value in values.items()}
        wrong = sorted(((miss, name) for name, miss in misses.items() if not miss <= 1), reverse=True)
        report = "\n".join(f"  {prefix}{name}: {miss:.3g} × tolerance" for miss, name in wrong)
        assert not wrong, f"{self.name}: {len(wrong)} of {len(misses)} tensors differ\n{report}"


def _array(value: Tensor | float) -> np.ndarray:
    return value.detach().double().numpy() if isinstance(value, Tensor) else np.asarray(value, dtype=np.float64)


@cache
def _probed(size: int) -> np.ndarray:
    probe = RECIPE["probe"]
    return RandomState(probe["seed"]).randint(0, size, size=probe["count"], dtype=np.int64)


def _entries_miss(found: np.ndarray, stored: np.ndarray, bound: Bound) -> float:
    if found.shape != stored.shape:
        return float("inf")
    largest = float(np.abs(stored).max())
    allowed = bound.absolute + bound.relative * largest if largest else 0.0  # what is zero is exactly zero
    return _ratio(float(np.abs(found - stored).max()), allowed)


def _ratio(distance: float, allowed: float) -> float:
    if distance == 0:
        return 0.0
    return float(distance / allowed) if allowed and np.isfinite(distance) else float("inf")


# --- recipe helpers: numpy's legacy generator, whose streams are frozen ---------------------------


def stream(offset: int) -> RandomState:
    return RandomState(RECIPE["S"] + offset)


def draw(rs: RandomState, *shape: int) -> np.ndarray:
    return rs.standard_normal(size=shape).astype(np.float32)


def weight(rs: RandomState, *shape: int) -> np.ndarray:
    return (rs.standard_normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def bn(rs: RandomState, channels: int) -> tuple[np.ndarray, np.ndarray]:
    scale = (1 + 0.1 * rs.standard_normal(size=(channels,))).astype(np.float32)
    return scale, (0.1 * rs.standard_normal(size=(channels,))).astype(np.float32)


def ortho(rs: RandomState, rows: int, columns: int) -> np.ndarray:
    return np.linalg.qr(rs.standard_normal(size=(rows, columns)))[0]


def tensor(values: np.ndarray, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


# --- networks -------------------------------------------------------------------------------------

Parameters = dict[str, np.ndarray]


class _Maker:
    """Draws the parameters of a network one after another and keeps them under the names of the files."""

    def __init__(self, rs: RandomState) -> None:
        self.rs, self.made = rs, Parameters()

    def weight(self, name: str, *shape: int) -> None:
        self.made[name] = weight(self.rs, *shape)

    def bn(self, name: str, channels: int) -> None:
        self.made[f"{name}.gamma"], self.made[f"{name}.beta"] = bn(self.rs, channels)

    def heads(self, count: int, *shape: int) -> None:
        for head in range(count):
            self.weight(f"head{head}", *shape)


def alex(rs: RandomState) -> Parameters:
    """AlexNet's parameters in the order of the recipe."""
    maker, sizes = _Maker(rs), RECIPE["networks"]["alexnet"]
    layers = {"conv1": (64, 3, 4, 4), "conv2": (128, 64, 3, 3), "conv3": (256, 128, 2, 2)}
    layers |= {"fc1": (2048, 1024), "fc2": (2048, 2048)}
    for number, (name, shape) in enumerate(layers.items(), 1):
        maker.weight(name, *shape)
        maker.bn(f"bn{number}", shape[0])
    maker.heads(sizes["heads"], sizes["classes"], layers["fc2"][0])
    return maker.made


def resnet(rs: RandomState, pixels: int) -> Parameters:
    """ResNet18's parameters for images of 32 or 84 pixels, in the order of the recipe."""
    maker, sizes = _Maker(rs), RECIPE["networks"]["resnet"]
    inputs = sizes["widths"][0]
    maker.weight("stem", inputs, 3, 3, 3)
    maker.bn("stem.bn", inputs)
    for stage, width in enumerate(sizes["widths"], 1):
        for block in (1, 2):
            name = f"s{stage}b{block}"
            maker.weight(f"{name}.conv1", width, inputs, 3, 3)
            maker.bn(f"{name}.bn1", width)
            maker.weight(f"{name}.conv2", width, width, 3, 3)
            maker.bn(f"{name}.bn2", width)
            if stage > 1 and block == 1:
                maker.weight(f"{name}.short", width, inputs, 1, 1)
                maker.bn(f"{name}.shortbn", width)
            inputs = width
    maker.heads(sizes["heads"], sizes[str(pixels)]["classes"], sizes[str(pixels)]["flat"])
    return maker.made


def library_name(name: str) -> str:
    """The name that perdure gives to a parameter of the files."""
    if name.startswith("head"):
        return f"heads.{name.removeprefix('head')}.weight"
    name = name.replace("stem.bn", "stem_bn")
    for ending, own in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(ending):
            return f"backbone.{name.removesuffix(ending)}{own}"
    return f"backbone.{name}.weight"


def by_file_name(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """What has perdure's names, under those of the files; a name unknown to the files is an error."""
    known = {library_name(name): name for name in names}
    return {known[own]: value for own, value in values.items()}


def alexnet(parameters: Parameters, dtype: torch.dtype, dropout: bool = False) -> Network:
    return _filled(AlexNet((3, 32, 32), dropout=dropout), parameters, dtype)


def resnet18(parameters: Parameters, pixels: int, dtype: torch.dtype) -> Network:
    filters = RECIPE["networks"]["resnet"]["widths"][0]
    return _filled(ResNet18((3, pixels, pixels), filters=filters), parameters, dtype)


def _filled(backbone: nn.Module, parameters: Parameters, dtype: torch.dtype) -> Network:
    net = Network(backbone)
    for name, values in parameters.items():
        if name.startswith("head"):
            net.add_head(len(values))
    net.to(dtype)
    own = dict(net.named_parameters())
    assert set(own) == set(map(library_name, parameters)), "the network has other parameters than the recipe"
    with torch.no_grad():
        for name, values in parameters.items():
            assert own[library_name(name)].shape == values.shape, f"{name} has another shape than in the recipe"
            own[library_name(name)].copy_(tensor(values, dtype))
    return net.train()
