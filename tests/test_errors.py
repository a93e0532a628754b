"""Hints that work where perdure is."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from perdure import errors

ROOT = Path(__file__).parent.parent


def test_a_clone_is_installed_from_where_it_lies() -> None:
    assert errors.install_hint("report") == f"pip install -e '{ROOT}[report]'"


@pytest.mark.parametrize("missing", ["no package", "no url", "an index", "a clone"])
def test_a_package_is_installed_from_where_it_came(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone that pip copied is used again, wherever it is; an index knows the package by its name."""
    folder = tmp_path / "my clone"
    folder.mkdir()

    class Distribution:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            urls = {"an index": "https://example.org/perdure.whl", "a clone": folder.as_uri()}
            return json.dumps({"url": urls[missing]}) if missing in urls else None

    def distribution(_: str) -> Any:
        if missing == "no package":
            raise PackageNotFoundError
        return Distribution()

    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages/perdure/errors.py"))
    monkeypatch.setattr(errors, "distribution", distribution)
    wanted = str(folder) if missing == "a clone" else "perdure"
    assert errors.install_hint("ray") == f"pip install '{wanted}[ray]'"


def test_all_hints_come_from_one_place() -> None:
    texts = {path: path.read_text("utf-8") for path in (ROOT / "perdure").rglob("*.py")}
    assert [path.name for path, text in texts.items() if "pip install" in text] == ["errors.py"]
