"""A batch that is too large for memory, piece by piece: batch norm still uses the statistics of all of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def uses_batch_statistics(part: nn.Module) -> bool:
    """Whether a layer is a batch norm that keeps no statistics."""
    return isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) and not part.track_running_stats


def forward_as_one(pieces: Sequence[Tensor], forward: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """What a network answers to each piece of a batch as if all went through together; no gradients.

    The pieces go through as far as the first batch norm, which gathers its statistics, then again as far as the
    second, and so on: once more than there are batch norms, and one piece at a time is in memory.
    """
    known: list[tuple[Tensor, Tensor]] = []
    while True:
        mode, answers = _Norms(known), []
        for piece in pieces:
            try:
                with torch.no_grad(), mode.from_the_first():
                    answers.append(forward(piece))
            except _Gathered:
                continue
        if len(answers) == len(pieces):
            return answers
        known.append(mode.statistics())


class _Gathered(Exception):
    """The rest of this forward is not needed."""


class _Norms(TorchFunctionMode):
    """Batch norms whose statistics are known use them; the next one gathers its own, and ends the forward."""

    def __init__(self, known: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.known, self.calls = known, 0
        self.count, self.sum, self.squares = 0, torch.zeros(()), torch.zeros(())

    def from_the_first(self) -> "_Norms":
        self.calls = 0
        return self

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not F.batch_norm:
            return func(*args, **(kwargs or {}))
        return self._norm(*args, **(kwargs or {}))

    def _norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:  # its own statistics, from before
            return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
        self.calls += 1
        if self.calls <= len(self.known):
            mean, variance = (part.to(input.dtype) for part in self.known[self.calls - 1])
            return F.batch_norm(input, mean, variance, weight, bias, False, momentum, eps)
        places = [dim for dim in range(input.ndim) if dim != 1]
        values = input.double()
        self.count += input.numel() // input.shape[1]
        self.sum = self.sum + values.sum(places)
        self.squares = self.squares + values.square().sum(places)
        raise _Gathered

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of each channel; sums are in double precision, so that their difference is precise."""
        mean = self.sum / self.count
        return mean, (self.squares / self.count - mean.square()).clamp_min(0)
