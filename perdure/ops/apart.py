"""Several batches in one forward that know nothing of each other."""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class apart(TorchFunctionMode):  # noqa: N801 — reads as what it does: with apart(x, mixed) as both: net(both.joint)
    """Inside, batches of one size go through a network as one, and batch norm sees each by itself.

    Batch norm is met wherever a network calls it. Anything else that makes one image's answer depend on another's is
    not: only networks without such things may be called so.
    """

    def __init__(self, *batches: Tensor) -> None:
        super().__init__()
        self.batches, self.rows = batches, len(batches[0])
        self.joint = torch.cat(batches)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is not F.batch_norm:
            return func(*args, **(kwargs or {}))
        given = dict(kwargs or {})
        x, *rest = args or (given.pop("input"),)
        found = [func(part, *rest, **given) for part in x.split(self.rows)]
        return torch.cat(found) if len(found) > 1 else found[0]

    def __enter__(self) -> "apart":
        self._before: Token[apart | None] = _innermost.set(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _innermost.reset(self._before)


_innermost: ContextVar[apart | None] = ContextVar("innermost", default=None)


def parts(x: Tensor) -> tuple[Tensor, ...]:
    """The batches that were joined to `x`, for a network that treats them apart for a while; `x` alone if none were."""
    within = _innermost.get()
    return within.batches if within is not None and within.joint is x else (x,)
