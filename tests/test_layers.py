"""Who may import whom. The arrows are drawn in docs/architecture.md; any other is a mistake."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "perdure"
BOTTOM = {"errors", "files", "processes", "seeding", "schema", "registry", "types"}
ALLOWED: dict[str, set[str]] = {
    "__main__": {"cli", "processes"},
    "errors": set(),
    "files": set(),
    "processes": set(),
    "seeding": set(),
    "registry": {"errors"},
    "schema": {"errors"},
    "types": {"errors"},
    "fast": {"errors"},
    "ops": BOTTOM | {"fast"},
    "memory": BOTTOM | {"ops"},
    "nets": BOTTOM | {"ops", "memory", "fast"},
    "data": BOTTOM | {"ops"},
    "methods": BOTTOM | {"ops", "memory", "nets"},
    "train": BOTTOM | {"ops", "memory", "nets", "methods"},
    "probes": BOTTOM | {"ops", "memory", "nets", "methods", "train"},
    "lab": BOTTOM | {"fast", "ops", "memory", "nets", "data", "methods", "train", "probes", "report"},
    "report": {"errors", "files", "ops"},
    "learner": BOTTOM | {"fast", "ops", "memory", "nets", "data", "methods", "train", "probes", "lab"},
    "cli": BOTTOM | {"ops", "data", "train", "probes", "lab", "report", "learner"},
}
PRINTING = {"cli", "report"}
"""Folders that may know of a terminal."""


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


def roots(path: Path) -> set[str]:
    """Top-level packages that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    found = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    found |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name.split(".")[0] for name in found}


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def folder(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_follow_the_arrows() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} may not import {name}"
        for path in FILES
        for name in sorted(imports(path))
        if room(name) not in ALLOWED[folder(path)] | {folder(path)}
    ]
    assert not wrong, "\n".join(wrong)


def test_loop_and_probes_know_no_method_by_name() -> None:
    for path in FILES:
        if folder(path) in ("train", "probes"):
            assert {name for name in imports(path) if room(name) == "methods"} <= {"perdure.methods.method"}, path


def test_methods_hold_equations_and_nothing_of_fast() -> None:
    """Neither imported nor reached through something else; two that were once long stay short."""
    for path in (PACKAGE / "methods").glob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {part for name in imports(path) for part in name.split(".")}
        assert "fast" not in names, path
    for name in ("rcl", "fsdgpm"):
        assert len((PACKAGE / "methods" / f"{name}.py").read_text("utf-8").splitlines()) <= 150, name


def test_one_name_one_public_class() -> None:
    where: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    twice = {name: paths for name, paths in where.items() if len(paths) > 1}
    assert not twice


def test_only_reports_and_the_command_line_know_of_a_terminal() -> None:
    wrong = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if folder(path) not in PRINTING and roots(path) & {"rich", "typer"}
    }
    assert not wrong


def _fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_front_door_reports_and_the_command_line_do_not_import_torch() -> None:
    for module in ("perdure", "perdure.report.tables", "perdure.report.figures", "perdure.cli.main"):
        assert _fresh(f"import sys, {module}; print('torch' in sys.modules)") == "False", module


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
    assert callable(perdure.data.check)
    assert callable(perdure.fast.without)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = perdure.nothing


# Classes of data whose objects change: states of something under way, and what is filled in step by step.
CHANGING = {
    "ForwardMode", "JobStates", "Process", "LoadedRun", "StudyRun", "LayerInput", "Uses", "Plateau", "Constant",
    "Linear", "Cosine", "Steps", "Warmup", "FitState", "Learned",
}  # fmt: skip


def test_other_classes_of_data_are_frozen() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            decorators = [ast.unparse(one) for one in node.decorator_list] if isinstance(node, ast.ClassDef) else []
            if any(one.startswith("dataclass") and "frozen=True" not in one for one in decorators):
                found.add(node.name)
    assert found == CHANGING
