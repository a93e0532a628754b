"""Real image files, where they can be had."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pytest

UNPACK = Path(__file__).resolve().parents[3] / "shared" / "data" / "unpack"


@pytest.fixture(scope="session")
def real_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the original layouts: CIFAR-100 complete, parts of the other sets.

    Tests that use it stand in one file, so that one worker unpacks once.
    """
    if named := os.environ.get("PERDURE_DATA"):
        yield Path(named)
        return
    if not UNPACK.is_file():
        pytest.skip("no real image files: PERDURE_DATA is not set, nor is shared/data/unpack beside the checkout")
    folder = tmp_path_factory.mktemp("real")
    subprocess.run([sys.executable, UNPACK, "--to", folder], check=True, capture_output=True)
    yield folder
    rmtree(folder)
