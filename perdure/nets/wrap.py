"""Any module as the network of a method: the user's own, torchvision's, timm's, pretrained or not."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from perdure.errors import WrongValue
from perdure.nets.coverage import Coverage
from perdure.nets.network import Backbone, Network, Statistics


def wrap(
    model: nn.Module,
    shape: Sequence[int],
    *,
    head: str | None = None,
    keep_head: bool = False,
    free: Sequence[str] = (),
    statistics: Statistics = "task",
    fresh: bool = False,
) -> Network:
    """A network for methods around any module that turns images of one shape (channels, height, width) into logits or
    features (n, d). The module is not copied, and neither reformatted nor perturbed nor unfrozen; it is trained.

    - `head` names the linear layer that gives the logits; left out, it is the one whose output is the module's, if any.
      Tasks get heads of their own that read what it reads. `head=""` says that there is none.
    - With `keep_head` the first task begins with a copy of that layer.
    - `free` are beginnings of the names of parameters that may move in later tasks although nothing protects them.
    - `statistics="task"` stores the statistics of batch norms with each task; with "batch", norms without running
      statistics use those of the batch, so that answers depend on what else is in it.
    - `fresh` says that the weights have not been trained yet, so that RCL may put its noise on them.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 10))
    >>> net = wrap(model, (3, 4, 4))
    >>> net.backbone.width, net.backbone.head
    (8, '3')
    >>> print(coverage(net))
    projected     79.7 %  moves only where no old task's inputs are
    fixed          1.7 %  learned with the first task and fixed from then on
    frozen        18.7 %  never moves
      model.1.weight  8×48          projected
      model.1.bias    8             fixed  (read by linear, which no basis covers)
      model.3.weight  10×8          frozen  (the head that was there)
      model.3.bias    10            frozen  (the head that was there)
    """
    if isinstance(model, Network | Backbone):
        raise WrongValue(f"{type(model).__name__} needs no wrapping; give it to a method, or to Network, as it is")
    if not isinstance(model, nn.Module):
        raise WrongValue(f"wrap takes a torch module, not {type(model).__name__}")
    if next(model.parameters(), None) is None:
        raise WrongValue("the module has no parameters to train")
    if len(shape) != 3 or min(shape) < 1:
        raise WrongValue(f"the shape of an image is (channels, height, width), as in (3, 224, 224), not {tuple(shape)}")
    backbone = Wrapped(model, tuple(shape), head, keep_head, tuple(f"model.{name}" for name in free))
    if not fresh:
        backbone.seed = None
    net = Network(backbone, statistics)
    net.examine(backbone.example())
    return net


def coverage(network: Network | Backbone | nn.Module, shape: Sequence[int] | None = None) -> Coverage:
    """What becomes of each parameter and buffer under a method that protects old tasks by projection: *projected*,
    *fixed* after the first task, *per task*, *frozen* or *unprotected*. A module that is not wrapped needs the shape of
    its images."""
    if isinstance(network, Network) and network.coverage is not None:
        return network.coverage
    if shape is None:
        raise WrongValue("give the shape of its images, too, as in coverage(model, (3, 32, 32))")
    if not isinstance(network, Network):
        network = Network(network) if isinstance(network, Backbone) else wrap(network, shape)
    like = next(network.parameters())
    return network.examine(torch.rand(2, *shape, device=like.device, dtype=like.dtype))


class Wrapped(Backbone):
    """A module whose features are what its last linear layer reads, or what it returns if there is no such layer."""

    guarded = True

    def __init__(
        self, model: nn.Module, shape: tuple[int, ...], head: str | None, keep_head: bool, free: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.model, self.shape, self.free, self.keep_head = model, shape, free, keep_head
        self.head = self._find_head() if head is None else head
        if self.head and not isinstance(dict(model.named_modules()).get(self.head), nn.Linear):
            raise WrongValue(f"head={self.head!r} is not a linear layer of the module; name one, or give head=''")
        if keep_head and not self.head:
            raise WrongValue("keep_head: the module has no linear layer that gives its output; name it as head=")
        hidden, _ = self._dry(lambda x: self.forward(x))
        self.width = hidden.shape[1]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self._features(x)
        return hidden, hidden

    def _features(self, x: Tensor) -> Tensor:
        if not self.head:
            hidden = _output(self.model(x))
        else:
            read: list[Tensor] = []
            layer = self.model.get_submodule(self.head)
            hook = layer.register_forward_pre_hook(lambda _, received: read.append(received[0]))
            try:
                self.model(x)
            finally:
                hook.remove()
            if len(read) != 1:
                raise WrongValue(
                    f"head={self.head!r} is used {len(read)} times in a forward; name another, or give head=''"
                )
            hidden = read[0]
        if hidden.ndim != 2:
            raise WrongValue(
                f"heads need features of shape (n, d), and the module gives {tuple(hidden.shape)}; "
                "add a pooling and a flattening layer"
            )
        return hidden

    def first_head(self) -> nn.Linear | None:
        if not self.keep_head:
            return None
        head = self.model.get_submodule(self.head)
        assert isinstance(head, nn.Linear)
        return head

    def old_head(self) -> tuple[str, ...]:
        """Names of the parameters of the head that was there, which is not used any more."""
        return tuple(f"model.{self.head}.{name}" for name in ("weight", "bias")) if self.head else ()

    def example(self) -> Tensor:
        """Two images of noise."""
        like = next(self.model.parameters())
        noise = torch.rand(2, *self.shape, generator=torch.Generator().manual_seed(0))
        return noise.to(like.device, like.dtype)

    def _find_head(self) -> str:
        """The linear layer whose output is the module's; "" if there is none."""
        outputs: dict[str, Tensor] = {}
        hooks = [
            part.register_forward_hook(lambda _, __, out, name=name: outputs.__setitem__(name, out))
            for name, part in self.model.named_modules()
            if isinstance(part, nn.Linear) and name
        ]
        try:
            found = self._dry(lambda x: _output(self.model(x)))
        finally:
            for hook in hooks:
                hook.remove()
        return next((name for name, out in outputs.items() if out is found or _same(out, found)), "")

    def _dry(self, forward: Any) -> Any:
        """A forward in evaluation mode that changes nothing."""
        modes = {part: part.training for part in self.model.modules()}
        try:
            self.model.eval()
            with torch.no_grad():
                return forward(self.example())
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, AssertionError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise WrongValue(f"the module cannot take images of shape {self.shape}: {reason}") from error
        finally:
            for part, training in modes.items():
                part.training = training


def _output(out: Any) -> Tensor:
    """The tensor of a model's answer: itself, or what transformers call logits."""
    if isinstance(out, Tensor):
        return out
    logits = out.get("logits") if isinstance(out, Mapping) else getattr(out, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise WrongValue(
        f"the module returns {type(out).__name__}, not a tensor of logits or features; "
        "wrap one that does, e.g. a small module around it"
    )


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.data_ptr() == other.data_ptr()
