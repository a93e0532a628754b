"""Small streams and networks that many tests share."""

from collections.abc import Callable, Iterator

import pytest

from perdure.data.benchmarks.synthetic import synthetic
from perdure.nets.alexnet import SlimAlexNet
from perdure.nets.network import Network
from perdure.types import Stream


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or leaves anything in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERDURE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def stream() -> Stream:
    return synthetic(seed=1, tasks=2)


@pytest.fixture
def fresh_net() -> Callable[..., Network]:
    """The same slim AlexNet, new each time, or that of another seed."""

    def make(seed: int = 1) -> Network:
        return Network(SlimAlexNet((3, 32, 32), seed=seed))

    return make
