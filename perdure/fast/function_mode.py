"""Calls of torch that a network makes while it learns, answered in another way: networks are written as if nothing of
`fast` existed. A function mode costs each call some microseconds, so there is one for everything."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from perdure.fast.dropout import drop_rows
from perdure.fast.joint_batches import batch_norm
from perdure.fast.linear import linear


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return drop_rows(input, lambda rows: F.dropout(rows, p, training, inplace)) if training and p else input


def _dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return drop_rows(input, lambda rows: F.dropout2d(rows, p, training, inplace)) if training and p else input


_ANSWERS: dict[Any, Any] = {
    F.linear: linear,
    F.batch_norm: batch_norm,
    F.dropout: _dropout,
    F.dropout2d: _dropout2d,
}


class LearningMode(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _ANSWERS.get(func, func)(*args, **(kwargs or {}))
