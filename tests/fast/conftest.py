"""All paths are on here, whatever the environment says."""

import pytest


@pytest.fixture(autouse=True)
def all_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_PLAIN", raising=False)
