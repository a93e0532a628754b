"""Several batches in one forward that know nothing of each other."""

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar, Token
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.ops.interception import Interception


class apart(Interception):  # noqa: N801 — reads as what it does: with apart(x, mixed) as both: net(both.joint)
    """Inside, batches of one size go through a network as one, and batch norm sees each by itself.

    Batch norm is met wherever a network calls it. Anything else that makes one image's answer depend on another's is
    not: only networks without such things may be called so.
    """

    function = F.batch_norm

    def __init__(self, *batches: Tensor) -> None:
        self.batches, self.rows = batches, len(batches[0])
        self.joint = torch.cat(batches)

    def meet(self, call: Callable[..., Tensor], args: Sequence[Any], given: dict[str, Any]) -> Tensor:
        x, *rest = args or (given.pop("input"),)
        return joined(call(part, *rest, **given) for part in x.split(self.rows))

    def __enter__(self) -> Self:
        self._before: Token[apart | None] = _innermost.set(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _innermost.reset(self._before)


_innermost: ContextVar[apart | None] = ContextVar("innermost", default=None)


def parts(x: Tensor) -> tuple[Tensor, ...]:
    """The batches that were joined to `x`, or what has become of them, for a network that treats them apart for a
    while; `x` alone if none were joined."""
    within = _innermost.get()
    if within is None or len(x) != len(within.joint):
        return (x,)
    return within.batches if within.joint is x else torch.split(x, within.rows)


def joined(pieces: Iterable[Tensor]) -> Tensor:
    """`parts` put together again."""
    found = list(pieces)
    return torch.cat(found) if len(found) > 1 else found[0]
