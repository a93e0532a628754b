"""What a checkpoint may hold of a method's memory. Its tensors are of any number and size, and anybody may have
written the file: what does not fit the network is a ValueError that names it.

Methods are about equations, so their forms stand here; one of the user's own is taken as it is.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from perdure.memory.replay_buffer import ReplayBuffer
from perdure.methods.agem import AGEM
from perdure.methods.api import API
from perdure.methods.dfgp import DFGP
from perdure.methods.er import ER
from perdure.methods.ewc import EWC
from perdure.methods.fsdgpm import FSDGPM
from perdure.methods.gpm import GPM
from perdure.methods.method import Method
from perdure.methods.owm import OWM
from perdure.methods.pat import PAT
from perdure.methods.rcl import RCL
from perdure.methods.sgp import SGP
from perdure.methods.trgp import TRGP

LONGEST = 1.01  # square of a basis column's length, which is 1 but for rounding


class MemoryForm:
    """Checks the memory of one method, which was loaded a moment ago."""

    def __init__(self, method: Method, learning: bool, shape: tuple[int, int, int] | None) -> None:
        self.learning = learning  # in the middle of a lesson, not after one
        self.shape = shape  # of images, where that is known
        self.net, self.weights = method.net, method.trainable()
        like = next(method.net.backbone.parameters())
        self.dtype = like.dtype
        if shape is not None:  # so that layers are known that no module of torch's holds
            method.net.examine(torch.rand(2, *shape, device=like.device, dtype=like.dtype))
        self.layers = method.net.layers()

    def statistics(self) -> None:
        """Of tasks that there are, for buffers that there are."""
        buffers = dict(self.net.backbone.named_buffers())
        for key, kept in self.net.statistics.by_parts():
            name = "/".join(key)
            known = len(key) == 2 and key[0].isascii() and key[0].isdecimal() and int(key[0]) < len(self.net.heads)
            _require(known and key[1] in buffers, f"statistics {name}")
            self.tensor(f"statistics {name}", kept, *buffers[key[1]].shape, dtype=buffers[key[1]].dtype)

    def attack(self, method: Method) -> None:
        """What the guard over training by attacks has seen."""
        _count("attack_steps_now", method.attack_steps_now, method.attack_steps)
        _number("robust_best", method.robust_best)
        _require(all(isinstance(said, str) for said in method.cautions), "cautions")

    def inputs(self, layer: str) -> int:
        """How many a row of a layer's weight has; none of a layer that is not there."""
        return self.layers[layer].directions if layer in self.layers else -1

    # --- one method after another ---

    def gpm(self, method: GPM) -> None:
        for layer, basis in method.memory.items():
            if basis.ndim == 1 and layer in self.layers and self.layers[layer].kind == "embedding":
                _require(bool(((basis == 0) | (basis == 1)).all()), f"rows of {layer}")
                self.tensor(f"rows of {layer}", basis, self.inputs(layer), dtype=basis.dtype)
            else:
                self.basis(layer, basis, self.inputs(layer))
        _number("wanted", method.wanted)
        _numbers("protected", method.protected)

    def rcl(self, method: RCL) -> None:
        self.gpm(method)
        _numbers("phi_ratios", method.phi_ratios)

    def fsdgpm(self, method: FSDGPM) -> None:
        self.gpm(method)
        self.replay(method.replay)
        for bank in (method.importance, method.velocity):
            for layer, values in bank.items():
                _require(values.ndim == 1 and layer in method.memory, f"importance in {layer}")
                # after a lesson the bases are new, and these are not yet
                count = method.memory[layer].shape[1] if self.learning else len(values)
                self.tensor(f"importance in {layer}", values, count)
        _require({*method.importance} == {*method.memory} or not self.learning, "layers with an importance")
        _number("lr_scale", method.lr_scale)
        _flags(method, "filling", "attached")

    def sgp(self, method: SGP) -> None:
        self.gpm(method)
        _require({*method.importance} == {*method.memory}, "layers with an importance")
        for layer, values in method.importance.items():
            self.tensor(f"importance in {layer}", values, method.memory[layer].shape[1])
            _require(bool(((values >= 0) & (values <= 1)).all()), f"importance in {layer}")

    def trgp(self, method: TRGP) -> None:
        self.gpm(method)
        for key, space in method.spaces.by_parts():
            self.parts("space", key, 2)
            self.basis("/".join(key), space, self.inputs(key[1]), self.dtype)
        for length, bank in ((3, method.scales), (2, method.live)):
            for key, scale in bank.by_parts():
                self.parts("scale", key, length)
                _require(key[-2:] in method.spaces, f"space of scale {'/'.join(key)}")
                self.tensor(f"scale {'/'.join(key)}", scale, *[method.spaces[key[-2:]].shape[1]] * 2)
        for task in method.learning:
            _count("learning", task)

    def api(self, method: API) -> None:
        _require({*method.grown} == {*method.transforms}, "names of grown columns")
        more = dict.fromkeys(self.layers, 0)
        for key, columns in method.grown.by_parts():
            self.parts("columns", key[::-1], 2)
            name, (out, channels, *kernel) = "/".join(key), self.layers[key[0]].weight.shape
            grown = columns.shape[1] if columns.ndim > 1 else 0
            self.tensor(f"columns {name}", columns, out, grown, *kernel)
            self.tensor(f"transform {name}", method.transforms[name], channels, grown)
            more[key[0]] += columns[0].numel()
        for layer, ratio in method.ratios.items():
            self.tensor(f"retain ratio of {layer}", ratio)
        for layer, dual in method.memory.duals().items():
            _require(f"{dual.kind}.{layer}" in method.memory and layer in self.layers, f"basis of {layer}")
            self.basis(layer, dual.basis, self.inputs(layer) + more[layer])
        _require(len(method.memory.duals()) == len(method.memory), "two bases of a layer")
        _count("now", method.now)

    def ewc(self, method: EWC) -> None:
        _require({*method.fisher} == {*method.anchor} and {*method.fisher} <= {*self.weights}, "names of the springs")
        for name in method.fisher:
            for bank in (method.fisher, method.anchor):
                self.tensor(f"springs of {name}", bank[name], *self.weights[name].shape)
            _require(bool((method.fisher[name] >= 0).all()), f"springs of {name}")

    def owm(self, method: OWM) -> None:
        for layer, projector in method.projectors.items():
            self.tensor(f"projector of {layer}", projector, *[self.inputs(layer)] * 2, dtype=torch.float64)
        for name, least in (("images", 1), ("of", 1), ("epochs", 0), ("seen", 0)):
            _count(name, getattr(method, name), least)
        _number("fallen", method.fallen)
        _flags(method, "first")

    def er(self, method: ER) -> None:
        self.replay(method.memory)
        _flags(method, "filling")

    def agem(self, method: AGEM) -> None:
        self.replay(method.memory)

    # --- what they hold ---

    def basis(self, name: str, basis: Tensor, rows: int, dtype: torch.dtype | None = None) -> None:
        """Columns (d, k), none longer than 1; of this type if one is named, for bases may be held in fewer digits."""
        typed = basis.is_floating_point() if dtype is None else basis.dtype == dtype
        _require(typed and basis.ndim == 2 and len(basis) == rows >= basis.shape[1], f"basis of {name}")
        short = basis.double().square().sum(0) <= LONGEST  # not if there is a nan
        _require(bool(short.all()), f"basis of {name}")

    def tensor(self, name: str, tensor: Tensor, *shape: int, dtype: torch.dtype | None = None) -> None:
        """Finite, of this shape, and of the network's type if no other is named."""
        _require(tensor.shape == shape and tensor.dtype == (dtype or self.dtype), name)
        _require(bool(torch.isfinite(tensor).all()), name)

    def parts(self, what: str, key: tuple[str, ...], length: int) -> None:
        """A key of numbers, with a layer in the end."""
        known = len(key) == length and key[-1] in self.layers
        _require(known and all(part.isascii() and part.isdecimal() for part in key[:-1]), f"{what} {'/'.join(key)}")

    def replay(self, buffer: ReplayBuffer) -> None:
        """Images with labels that the heads of their tasks have."""
        if not len(buffer):
            return
        scales = ("mean", "std") if buffer.scaled else ()
        _require({*buffer} - {"seen"} == {"x", "y", "task", *scales}, "names in the replay buffer")
        images, count = buffer["x"], buffer["y"].numel()
        _require(images.ndim == 4 and count <= buffer.capacity, "size of the replay buffer")
        self.tensor("replayed images", images, count, *(self.shape or images.shape[1:]))
        for name in ("y", "task"):
            self.tensor(f"{name} of replayed images", buffer[name], count, dtype=torch.int64)
        for name in scales:
            self.tensor(f"{name} of replayed images", buffer[name], count, images.shape[1])
        _require(not scales or bool((buffer["std"] > 0).all()), "std of replayed images")
        for task, label in set(zip(buffer["task"].tolist(), buffer["y"].tolist(), strict=True)):
            known = 0 <= task < len(self.net.heads) and 0 <= label < len(self.weights[f"heads.{task}.weight"])
            _require(known, "labels of replayed images")
        if "seen" in buffer:
            self.tensor("images seen", buffer["seen"], dtype=torch.int64)
            _require(int(buffer["seen"]) >= count, "images seen")


FORMS: dict[type[Method], Callable[[MemoryForm, Any], None]] = {
    GPM: MemoryForm.gpm,
    DFGP: MemoryForm.gpm,
    PAT: MemoryForm.gpm,
    RCL: MemoryForm.rcl,
    FSDGPM: MemoryForm.fsdgpm,
    SGP: MemoryForm.sgp,
    TRGP: MemoryForm.trgp,
    API: MemoryForm.api,
    EWC: MemoryForm.ewc,
    OWM: MemoryForm.owm,
    ER: MemoryForm.er,
    AGEM: MemoryForm.agem,
}


def check_memory(method: Method, *, learning: bool, shape: tuple[int, int, int] | None) -> None:
    """Whether what a method remembers fits its network, in the middle of a lesson (`learning`) or after one."""
    checking = MemoryForm(method, learning, shape)
    checking.statistics()
    checking.attack(method)
    if (form := FORMS.get(type(method))) is not None:
        form(checking, method)


def _require(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(what)


def _number(name: str, value: Any) -> None:
    _require(isinstance(value, int | float) and abs(value) < float("inf"), name)


def _numbers(name: str, values: Any) -> None:
    _require(isinstance(values, Mapping), name)
    for value in values.values():
        _number(name, value)


def _count(name: str, value: Any, least: int = 0) -> None:
    _require(isinstance(value, int) and value >= least, name)


def _flags(method: Method, *names: str) -> None:
    for name in names:
        _require(isinstance(getattr(method, name), bool), name)
