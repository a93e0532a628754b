"""Tensors that a method keeps, saved and moved like weights although their number and sizes are not known before."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

Key = str | tuple[str | int, ...]


class TensorBank(nn.Module):
    """Key → tensor. Keys are names, which may have dots, or tuples of names and numbers, as in `bank[task, "fc1"]`.

    With `trainable` the tensors are parameters, else plain state.
    """

    def __init__(self, trainable: bool = False) -> None:
        super().__init__()
        self.trainable = trainable

    def __iter__(self) -> Iterator[str]:
        return (_outer(name) for name in self._tensors())

    def __len__(self) -> int:
        return len(self._tensors())

    def __contains__(self, key: Key) -> bool:
        return _inner(key) in self._tensors()

    def __getitem__(self, key: Key) -> Tensor:
        tensor: Tensor = self._tensors()[_inner(key)]
        return tensor

    def __setitem__(self, key: Key, tensor: Tensor) -> None:
        # Laid out row by row, as it will be when it comes back from a file: products of other layouts round otherwise.
        tensor = tensor.detach().contiguous()
        if self.trainable:
            self.register_parameter(_inner(key), nn.Parameter(tensor.clone()))
        else:
            self.register_buffer(_inner(key), tensor)

    def __delitem__(self, key: Key) -> None:
        del self._tensors()[_inner(key)]

    def get(self, key: Key) -> Tensor | None:
        tensor: Tensor | None = self._tensors().get(_inner(key))
        return tensor

    def items(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, self[name]) for name in self)

    def by_parts(self) -> Iterator[tuple[tuple[str, ...], Tensor]]:
        """Keys as tuples, all of text."""
        return ((tuple(name.split("/")), tensor) for name, tensor in self.items())

    def clear(self) -> None:
        self._tensors().clear()

    def bytes(self) -> int:
        """How much it holds."""
        return sum(tensor.numel() * tensor.element_size() for _, tensor in self.items())

    def _tensors(self) -> dict[str, Any]:
        return self._parameters if self.trainable else self._buffers

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_: Any) -> None:
        """Take what was saved, whatever there is now."""
        self.clear()
        for key, tensor in state_dict.items():
            if key.startswith(prefix):
                self[_outer(key.removeprefix(prefix))] = tensor.clone()


# Module state may not have dots in its names; neither "|" nor "/" occurs in a module's path.
def _inner(key: Key) -> str:
    return (key if isinstance(key, str) else "/".join(map(str, key))).replace(".", "|")


def _outer(name: str) -> str:
    return name.replace("|", ".")
