"""Tensors that a method keeps, saved and moved like weights although their number and sizes are not known before."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


class TensorBank(nn.Module):
    """Name → tensor. Names may have dots. With `trainable` the tensors are parameters, else they are plain state."""

    def __init__(self, trainable: bool = False) -> None:
        super().__init__()
        self.trainable = trainable

    def __iter__(self) -> Iterator[str]:
        return (_outer(name) for name in self._shelf())

    def __len__(self) -> int:
        return len(self._shelf())

    def __contains__(self, name: str) -> bool:
        return _inner(name) in self._shelf()

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._shelf()[_inner(name)]
        return tensor

    def __setitem__(self, name: str, tensor: Tensor) -> None:
        # Laid out row by row, as it will be when it comes back from a file: products of other layouts round otherwise.
        tensor = tensor.detach().contiguous()
        if self.trainable:
            self.register_parameter(_inner(name), nn.Parameter(tensor.clone()))
        else:
            self.register_buffer(_inner(name), tensor)

    def __delitem__(self, name: str) -> None:
        del self._shelf()[_inner(name)]

    def get(self, name: str) -> Tensor | None:
        tensor: Tensor | None = self._shelf().get(_inner(name))
        return tensor

    def items(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, self[name]) for name in self)

    def clear(self) -> None:
        self._shelf().clear()

    def bytes(self) -> int:
        """How much it holds."""
        return sum(tensor.numel() * tensor.element_size() for _, tensor in self.items())

    def _shelf(self) -> dict[str, Any]:
        return self._parameters if self.trainable else self._buffers

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_: Any) -> None:
        """Take what was saved, whatever there is now."""
        self.clear()
        for key, tensor in state_dict.items():
            if key.startswith(prefix):
                self[_outer(key.removeprefix(prefix))] = tensor.clone()


# Module state may not have dots in its names; "|" occurs in no module path.
def _inner(name: str) -> str:
    return name.replace(".", "|")


def _outer(name: str) -> str:
    return name.replace("|", ".")
