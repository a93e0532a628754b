"""States of learners to begin with."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from shop import PLAN, SHAPE, month, small_cnn

from perdure.learner.learner import Learner


@pytest.fixture(scope="session")
def two_months(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state after two months; copy it before it is changed."""
    path = tmp_path_factory.mktemp("learner") / "shop"
    learner = Learner.create(path, small_cnn(), input=SHAPE, method="gpm", plan=PLAN)
    learner.learn("first", month(0), limits={"robust": None})
    learner.learn("second", month(1), tests={"first": month(0, seed=1)}, test=month(1, seed=1))
    return path


@pytest.fixture
def state(two_months: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_months, tmp_path / "shop"))


@pytest.fixture
def opened(state: Path) -> Callable[[], Learner]:
    return lambda: Learner.open(state, small_cnn())
