"""Every golden case with all fast paths, and with none."""

from collections.abc import Iterator

import pytest

from perdure import fast

NO_PATHS = ("test_c04_noise", "test_c06_ascent", "test_c10_er_reservoir", "test_published_runs")
"""Files whose numbers no fast path has a part in."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    ways = ["fast"] if metafunc.module.__name__.rpartition(".")[2] in NO_PATHS else ["fast", "plain"]
    metafunc.parametrize("way", ways, indirect=True)


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    with fast.without("all" if request.param == "plain" else ""):
        yield
