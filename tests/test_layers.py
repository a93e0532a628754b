"""Who may import whom. The arrows are drawn in docs/architecture.md; any other is a mistake."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "perdure"
PLAIN = {"types", "errors", "seeding", "schema", "fast"}
ALLOWED = {
    "errors": set(),
    "seeding": set(),
    "fast": {"errors"},
    "registry": {"errors"},
    "schema": {"errors"},
    "types": {"errors"},
    "ops": PLAIN,
    "memory": PLAIN | {"ops"},
    "nets": PLAIN | {"ops"},
    "data": PLAIN | {"ops"},
    "methods": PLAIN | {"ops", "memory", "nets"},
    "train": PLAIN | {"ops", "memory", "methods"},
    "probes": PLAIN | {"ops", "memory", "nets", "methods", "train"},
    "lab": PLAIN | {"registry", "ops", "memory", "nets", "data", "methods", "train", "probes", "report"},
    "report": {"errors", "ops"},
    "cli": PLAIN | {"registry", "ops", "data", "train", "probes", "lab", "report"},
}


def room(module: str) -> str:
    return module.split(".")[1]


def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports, at its top or inside a function."""
    tree = ast.parse(path.read_text("utf-8"))
    found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    found |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {
        f"perdure.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "perdure"
        for alias in node.names
    }
    return {name for name in found if name.startswith("perdure.")}


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    wrong = {name for name in imports(path) if room(name) not in ALLOWED[own] | {own}}
    assert not wrong, f"{own} may not import {sorted(wrong)}"


def test_only_command_line_and_report_print_with_rich() -> None:
    for path in FILES:
        if path.relative_to(PACKAGE).parts[0] not in ("cli", "report"):
            assert not re.search(r"^\s*(import|from) (rich|typer)\b", path.read_text("utf-8"), re.MULTILINE), path


@pytest.mark.parametrize("folder", ["train", "probes"])
def test_loop_and_probes_know_no_method_by_name(folder: str) -> None:
    for path in (PACKAGE / folder).glob("*.py"):
        assert {name for name in imports(path) if room(name) == "methods"} <= {"perdure.methods.method"}, path


def _fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["perdure", "perdure.report.tables", "perdure.report.figures", "perdure.cli.main"])
def test_these_do_not_import_torch(module: str) -> None:
    assert _fresh(f"import sys, {module}; print('torch' in sys.modules)") == "False"


def test_importing_perdure_is_quick() -> None:
    """Well under 0.2 s: 0.02 s is usual, so that a busy machine does not make this fail."""
    seconds = [
        float(_fresh("import time; t = time.perf_counter(); import perdure; print(time.perf_counter() - t)"))
        for _ in range(3)
    ]
    assert min(seconds) < 0.2


def test_every_name_of_the_front_door_opens() -> None:
    import perdure

    for name in perdure.__all__:
        assert getattr(perdure, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = perdure.nothing
