"""One seed, independent sources of chance.

Each purpose (network, head, order, training, …) gets a stream of its own, so that a draw more in one
place changes nothing in another: two methods with one seed start from the same weights and see the same batches.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b

import torch


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose; stable across machines and Python versions.

    >>> derive(1, "order", 0, 3) == derive(1, "order", 0, 3) != derive(1, "order", 0, 4)
    True
    """
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A generator on the CPU for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


@contextmanager
def chance(seed: int, *purpose: str | int) -> Iterator[None]:
    """Inside, torch's global generators (dropout, mixing, initial weights) run on a stream of their own; afterwards
    they are as they were."""
    with torch.random.fork_rng():
        torch.manual_seed(derive(seed, *purpose))
        yield


def generator_states() -> dict[str, torch.Tensor]:
    """The states of torch's global generators, by device."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda:{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def set_generator_states(states: Mapping[str, torch.Tensor]) -> None:
    """Put torch's global generators back to where they were."""
    for device, state in states.items():
        if device == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, device)
