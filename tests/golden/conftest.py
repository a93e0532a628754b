"""Every golden case with all fast paths, and a few with none: that whole steps without them are the same is in
fast/test_steps.py, to eight digits."""

from collections.abc import Iterator

import pytest

from perdure import fast

BOTH = ("test_forward", "test_plain_step", "test_step", "test_alexnet_given")  # of the cheap ones


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("way", ["fast", "plain"] if metafunc.function.__name__ in BOTH else ["fast"], indirect=True)


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    with fast.without("all" if request.param == "plain" else ""):
        yield
