"""Torch's own calls, met on their way: a network is changed for a while without being written for it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch.overrides import TorchFunctionMode

Call = Callable[..., Any]


class Interception:
    """Inside, every call of `function` passes `meet`, unless there is `nothing_to_meet`.

    Of several that meet the same function, the innermost comes first. Any number of them is one function mode to torch,
    for a mode costs every call that a network makes some microseconds.
    """

    function: ClassVar[Call]
    nothing_to_meet = False

    def meet(self, call: Call, args: Sequence[Any], given: dict[str, Any]) -> Any:
        """What the call is to return; `call` is the function as it would be without this interception."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        if not self.nothing_to_meet:
            before = _active.get()
            if not before:
                _mode.__enter__()  # type: ignore[no-untyped-call]
            _active.set((*before, self))
        return self

    def __exit__(self, *error: Any) -> None:
        if not self.nothing_to_meet:
            left = _active.get()[:-1]
            _active.set(left)
            if not left:
                _mode.__exit__(*error)  # type: ignore[no-untyped-call]


_active: ContextVar[tuple[Interception, ...]] = ContextVar("active", default=())


class _Mode(TorchFunctionMode):
    def __torch_function__(
        self, func: Call, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _go(func, _active.get(), *args, **(kwargs or {}))


_mode = _Mode()


def _go(func: Call, active: Sequence[Interception], *args: Any, **given: Any) -> Any:
    """Through those that meet the function, from the last to the first."""
    for place in range(len(active) - 1, -1, -1):
        if type(active[place]).function is func:
            return active[place].meet(partial(_go, func, active[:place]), args, given)
    return func(*args, **given)


def unmet() -> AbstractContextManager[None]:
    """Inside, nothing is met, by anyone: for parts that make many small calls, none of which is any interception's."""
    return torch._C.DisableTorchFunction()
