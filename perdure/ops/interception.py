"""Torch's own calls, met on their way: a network is changed for a while without being written for it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from torch.overrides import TorchFunctionMode


class Interception(TorchFunctionMode):
    """Inside, every call of a torch function passes `meet`, unless there is `nothing_to_meet`."""

    nothing_to_meet = False

    def meet(self, func: Callable[..., Any], args: Sequence[Any], given: dict[str, Any]) -> Any:
        """What the call is to return; by default, what it returns."""
        return func(*args, **given)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self.meet(func, args, dict(kwargs or {}))

    def __enter__(self) -> Self:
        if not self.nothing_to_meet:
            super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        if not self.nothing_to_meet:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
