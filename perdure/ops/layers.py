"""Where a network's weights meet inputs, and these inputs as columns.

Weights are met where torch multiplies with them, in `F.linear`, `F.conv2d` and so on, not in modules: so a raw
parameter, a weight that two modules share, attention and one's own layers are found, and none is typed in by hand.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Kind = Literal["linear", "conv", "transposed", "embedding"]
Spans = tuple[int, ...]

ROWS: tuple[Kind, ...] = ("transposed", "embedding")
"""Kinds whose weight has the inputs in its rows: (in, out, …), or one row for each word of a vocabulary."""

ROWS_SUFFIX = ":rows"  # of their names in memories: a weight may also be read by its columns

COLUMNS = 20_000  # about as many as the papers take from AlexNet's first layer; for layers that name no image count

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Layer:
    """A weight, and how it meets its inputs."""

    kind: Kind
    weight: Tensor
    parameter: str = ""  # its name in the network
    stride: Spans = ()
    padding: Spans | str = ()
    dilation: Spans = ()
    groups: int = 1
    padding_mode: str = "zeros"

    @classmethod
    def of(cls, module: nn.Module, parameter: str = "weight") -> Self | None:
        """That of one of torch's modules, if it has one."""
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.Linear):
            return cls("linear", module.weight, parameter)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            return cls("embedding", module.weight, parameter)
        if isinstance(module, TRANSPOSED) and isinstance(weight, Tensor) and module.groups == 1:
            return cls("transposed", weight, parameter)
        if isinstance(module, CONVOLUTIONS) and isinstance(weight, Tensor):
            padding = module.padding if isinstance(module.padding, str) else tuple(module.padding)
            spans = tuple(module.stride), padding, tuple(module.dilation)
            return cls("conv", weight, parameter, *spans, module.groups, module.padding_mode)
        return None

    @property
    def name(self) -> str:
        """What it is called in memories: as its module is, or the parameter itself if that is no module's weight."""
        return self.parameter.removesuffix(".weight") + (ROWS_SUFFIX if self.kind in ROWS else "")

    @property
    def directions(self) -> int:
        """How many numbers an input has that meets one row, or one column, of the weight."""
        return len(self.weight) if self.kind in ROWS else self.weight[0].numel()


@dataclass
class LayerInput:
    """What a layer received in a forward; several tensors where it was used several times."""

    layer: Layer
    x: list[Tensor] = field(default_factory=list)

    def columns(self, images: int | None = None) -> Tensor:
        """As columns, of the first so many images of each tensor; of enough of them where it is not said."""
        wanted = images or -(-COLUMNS // max(columns(self.x[0][:1], self.layer).shape[-1], 1))
        parts = [columns(x[:wanted] if self.layer.kind != "embedding" else x, self.layer) for x in self.x]
        if len(parts) == 1:
            return parts[0]
        return torch.stack(parts).amax(0) if self.layer.kind == "embedding" else torch.cat(parts, dim=1)


def layers_of(module: nn.Module) -> dict[str, Layer]:
    """The layers of torch's modules inside, in the order of definition; one that several share is there once."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    found = (Layer.of(part, names.get(id(getattr(part, "weight", None)), "")) for part in module.modules())
    return {layer.name: layer for layer in found if layer is not None and layer.parameter}


def columns(x: Tensor, layer: Layer | nn.Module) -> Tensor:
    """The vectors that a layer's weight rows are multiplied with, as columns (d, positions); d = in·k·k (Eq. 16).

    For grouped convolutions d is that of one group and the columns of all groups stand side by side: one basis then
    covers every group. For embeddings, 1 for each row that was looked up and 0 for others (d,).
    """
    if isinstance(layer, nn.Module):
        found = Layer.of(layer)
        assert found is not None
        layer = found
    if layer.kind == "linear":
        return x.reshape(-1, x.shape[-1]).T
    if layer.kind == "embedding":
        return torch.zeros(len(layer.weight), device=x.device).index_fill_(0, x.flatten(), 1.0)
    if layer.kind == "transposed":
        return x.movedim(1, 0).flatten(1)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    patches = _patches(F.pad(x, _padding(layer), mode=mode), layer)  # (n, in·k·k, positions)
    n, rows, positions = patches.shape
    grouped = patches.reshape(n, layer.groups, rows // layer.groups, positions)
    return grouped.permute(2, 1, 0, 3).reshape(rows // layer.groups, -1)


def _patches(x: Tensor, layer: Layer) -> Tensor:
    kernel = tuple(layer.weight.shape[2:])
    if len(kernel) == 2:
        return F.unfold(x, kernel, dilation=layer.dilation, stride=layer.stride)
    for axis, (size, stride, dilation) in enumerate(zip(kernel, layer.stride, layer.dilation, strict=True), start=2):
        x = x.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    places = range(2, 2 + len(kernel))
    return x.movedim(tuple(places), tuple(range(-len(kernel), 0))).flatten(-len(kernel)).flatten(1, -2)


def _padding(layer: Layer) -> list[int]:
    """As `F.pad` wants it: the last axis first."""
    if isinstance(layer.padding, str):
        kernel = layer.weight.shape[2:]
        spans = [d * (k - 1) if layer.padding == "same" else 0 for d, k in zip(layer.dilation, kernel, strict=True)]
        sides = [(span // 2, span - span // 2) for span in spans]
    else:
        sides = [(side, side) for side in layer.padding]
    return [amount for side in reversed(sides) for amount in side]


def representations(inputs: Mapping[str, LayerInput], images: Mapping[str, int]) -> dict[str, Tensor]:
    """Every layer's inputs as columns, cut from the first so many images; from enough of them where it is not said."""
    return {name: found.columns(images.get(name)) for name, found in inputs.items()}


def layer_inputs(module: nn.Module, run: Callable[[], Any]) -> dict[str, LayerInput]:
    """What each layer of `module` receives while `run` makes a forward, in the order of definition."""
    return watch(module, run).inputs


@dataclass
class Uses:
    """How a forward used the parameters of a network."""

    inputs: dict[str, LayerInput]  # layer → what it received
    other: dict[str, str]  # parameter → what else reads it, by the name of torch's function


def watch(module: nn.Module, run: Callable[[], Any]) -> Uses:
    """How the parameters of `module` are used while `run` makes a forward."""
    with _Watching(module) as watching:
        run()
    order = {name: place for place, (name, _) in enumerate(module.named_parameters())}
    found = sorted(watching.inputs.items(), key=lambda item: order[item[1].layer.parameter])
    return Uses(dict(found), watching.other)


class _Watching(TorchFunctionMode):
    """Looks at each of torch's functions that a network calls."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.names = self._parameters()
        self.inputs: dict[str, LayerInput] = {}
        self.other: dict[str, str] = {}

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        weights = {id(layer.weight) for layer in self._record(func, args, kwargs)}
        for tensor in _tensors([*args, *kwargs.values()]):
            name = self._name(tensor)
            if name is not None and id(tensor) not in weights and not _looks_only(out, tensor):
                self.other.setdefault(name, getattr(func, "__name__", str(func)))
        return out

    def _record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Layer]:
        """Remember what the weights of this call received; these weights."""
        for kind, weight, x, how in _reads(func, args, kwargs):
            name = self._name(weight)
            if name is None:  # a forward with other weights puts them into place only when it begins
                self.names = self._parameters()
                name = self._name(weight)
            if name is None:
                continue
            layer = Layer(kind, weight, name, *how)
            # of a weight that is used in parts, such as attention's, all parts are covered by the inputs of each
            self.inputs.setdefault(layer.name, LayerInput(layer)).x.append(x.detach())
            yield layer

    def _parameters(self) -> dict[int, str]:
        return {id(parameter): name for name, parameter in self.module.named_parameters()}

    def _name(self, tensor: Tensor) -> str | None:
        base = tensor._base if tensor._base is not None else tensor
        return self.names.get(id(tensor)) or self.names.get(id(base))


def _reads(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Kind, Tensor, Tensor, tuple[Any, ...]]]:
    """The weights that a call multiplies with: kind, weight, its input, and the details of a convolution."""
    if func is F.linear:
        yield "linear", _at(1, "weight", args, kwargs), _at(0, "input", args, kwargs), ()
    elif func in _CONVOLUTIONS:
        weight, axes = _at(1, "weight", args, kwargs), _CONVOLUTIONS[func]
        padding = _at(4, "padding", args, kwargs, 0)
        details = (
            _each(_at(3, "stride", args, kwargs, 1), axes),
            padding if isinstance(padding, str) else _each(padding, axes),
            _each(_at(5, "dilation", args, kwargs, 1), axes),
            int(_at(6, "groups", args, kwargs, 1)),
        )
        x = _at(0, "input", args, kwargs)
        yield "conv", weight, x if x.ndim == axes + 2 else x[None], details
    elif func in _TRANSPOSED:
        if int(_at(6, "groups", args, kwargs, 1)) == 1:
            x = _at(0, "input", args, kwargs)
            yield "transposed", _at(1, "weight", args, kwargs), x if x.ndim == _TRANSPOSED[func] + 2 else x[None], ()
    elif func in (F.embedding, F.embedding_bag):
        yield "embedding", _at(1, "weight", args, kwargs), _at(0, "input", args, kwargs), ()
    elif func is F.multi_head_attention_forward:
        yield from _attention(args, kwargs)


def _attention(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Kind, Tensor, Tensor, tuple[Any, ...]]]:
    """What attention's projections receive: queries, keys and values, and what attention gives with an identity in
    place of its last projection."""
    names = (
        "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k",
        "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias",
    )  # fmt: skip
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    sources = [given[name] for name in names[:3]]
    if given.get("use_separate_proj_weight"):
        for weight, x in zip("qkv", sources, strict=True):
            yield "linear", given[f"{weight}_proj_weight"], x, ()
    else:
        for x in {id(x): x for x in sources}.values():  # one, where it attends to itself
            yield "linear", given["in_proj_weight"], x, ()
    out = given["out_proj_weight"]
    identity = {**given, "out_proj_weight": torch.eye(len(out)).to(out), "out_proj_bias": None}
    before, _ = F.multi_head_attention_forward(*map(identity.pop, names), *args[len(names) :], **identity)
    yield "linear", out, before, ()


_CONVOLUTIONS = {F.conv1d: 1, F.conv2d: 2, F.conv3d: 3}
_TRANSPOSED = {F.conv_transpose1d: 1, F.conv_transpose2d: 2, F.conv_transpose3d: 3}


def _at(place: int, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], default: Any = None) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


def _each(value: Any, axes: int) -> Spans:
    spans = tuple(value) if isinstance(value, Sequence) else (value,)
    return spans * axes if len(spans) == 1 else spans


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _looks_only(out: Any, tensor: Tensor) -> bool:
    """Whether a function gave a size, a flag or a view of a tensor, and computed nothing with it."""
    results = list(_tensors([out]))
    base = tensor._base if tensor._base is not None else tensor
    return all(result is tensor or result._base is base for result in results)
