"""Break single lines of the package and see whether a test notices.

    python benchmarks/mutate.py [--rooms ops methods train lab] [--mutants 160] [--seed 1] [--work DIR]

First every test is run once while `coverage` notes which lines it executes and how long it takes; that is kept in
DIR/tests.json and used again while the sources are the same. Then mutants are drawn by the seed, as many in each room:
a comparison, an operator, a constant or a condition is changed, two arguments are exchanged, a statement is left out.
Each is written into a copy of the project, and the tests that execute its line are run there, the quickest first, until
one fails. A mutant that none notices within a minute of tests survives, and is printed with its line. The share that
survives is printed for each room; the exit code is 1 if it is 10 % or more anywhere.

Needs `coverage`, which `make setup` installs. Each mutant runs in a process forked from one that has torch loaded.
"""

import argparse
import ast
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
BUDGET = 60.0  # seconds of tests for one mutant, as they were measured
LIMIT = 10.0  # percent that may survive
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is"}
OPERATORS = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "@": "*", "**": "*", "%": "//", "|": "&", "&": "|"}
SYMBOLS: dict[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is",
    ast.IsNot: "is not", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.MatMult: "@",
    ast.Pow: "**", ast.Mod: "%", ast.BitOr: "|", ast.BitAnd: "&",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    file: str  # below the project
    line: int
    start: int  # in characters of the source
    end: int
    text: str  # what stands there instead
    lines: tuple[int, ...]  # that are executed if this is

    def apply(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]

    def __str__(self) -> str:
        source = (PROJECT / self.file).read_text()
        old, new = source[self.start : self.end], self.text
        return f"{self.file}:{self.line}: {' '.join(old.split())} → {' '.join(new.split())}"


class Mutator(ast.NodeVisitor):
    """Collects the mutants of one file. Messages, annotations and docstrings are left alone."""

    def __init__(self, file: str, source: str) -> None:
        self.file, self.source, self.found = file, source, list[Mutant]()
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.visit(ast.parse(source))

    def at(self, line: int, column: int) -> int:
        """Where a position of ast, whose columns count bytes, is in the source."""
        text = self.source[self.starts[line - 1] : self.starts[line]]
        return self.starts[line - 1] + len(text.encode()[:column].decode())

    def span(self, node: Any) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def text(self, node: Any) -> str:
        start, end = self.span(node)
        return self.source[start:end]

    def add(self, node: Any, text: str, span: tuple[int, int] | None = None) -> None:
        start, end = span or self.span(node)
        mutant = Mutant(self.file, node.lineno, start, end, text, tuple(range(node.lineno, node.end_lineno + 1)))
        with suppress(SyntaxError):
            ast.parse(mutant.apply(self.source))
            self.found.append(mutant)

    def between(self, left: Any, right: Any, old: str, new: str) -> None:
        """Exchange the operator between two operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.source[start:end]
        if gap.count(old) == 1:
            self.add(left, gap.replace(old, new), (start, end))

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            old = SYMBOLS.get(type(operator), "")
            if old in COMPARISONS:
                self.between(left, right, old, COMPARISONS[old])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        old = SYMBOLS.get(type(node.op), "")
        texts = isinstance(node.left, ast.JoinedStr) or (
            isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        )
        if old in OPERATORS and not texts:
            self.between(node.left, node.right, old, OPERATORS[old])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        self.between(node.values[0], node.values[1], old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self.add(node, f"({self.text(node.operand)})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.add(node.test, f"(not ({self.text(node.test)}))")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self.add(node.test, f"(not ({self.text(node.test)}))")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self.add(node, str(node.value + 1 if isinstance(node.value, int) else node.value * 1.5 or 0.5))

    def visit_Call(self, node: ast.Call) -> None:
        first_two = [] if self.text(node.func) == "isinstance" else node.args[:2]
        if len(first_two) == 2 and not any(isinstance(one, ast.Starred) for one in first_two):
            (start, _), (_, end) = map(self.span, first_two)
            one, other = map(self.text, first_two)
            if one != other:
                self.add(node, f"{other}, {one}", (start, end))
        for keyword in node.keywords:
            if keyword.arg is not None and len(node.keywords) > 1 and keyword is node.keywords[-1]:
                start = self.span(node.keywords[-2].value)[1]
                self.add(keyword, "", (start, self.span(keyword.value)[1]))
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add(node, "pass")
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node, "pass")
        self.generic_visit(node)

    # What is not behavior, or is tested by its words elsewhere.
    def visit_Raise(self, node: ast.Raise) -> None: ...
    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...
    def visit_Assert(self, node: ast.Assert) -> None: ...
    def visit_Import(self, node: ast.Import) -> None: ...
    def visit_arg(self, node: ast.arg) -> None: ...

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        for statement in node.body:
            self.visit(statement)


class Map:
    """A pytest plugin: which lines each test executes, and how long it takes."""

    def __init__(self, coverage: Any) -> None:
        self.coverage, self.seconds = coverage, dict[str, float]()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


def map_tests(file: Path, rooms: list[str], digest: str) -> None:
    """Run all tests and write which of them execute which line."""
    import coverage
    import pytest

    measuring = coverage.Coverage(data_file=None, source=[str(PROJECT / "perdure" / room) for room in rooms])
    measuring.start()
    plugin = Map(measuring)
    os.chdir(PROJECT)
    pytest.main(
        ["-p", "no:cacheprovider", "-q", "--no-header", "-W", "ignore::coverage.exceptions.CoverageWarning"], [plugin]
    )
    measuring.stop()
    data = measuring.get_data()
    lines: dict[str, dict[int, list[str]]] = {}
    for name in data.measured_files():
        where, executed = str(Path(name).relative_to(PROJECT)), data.contexts_by_lineno(name)
        lines[where] = {line: sorted(set(tests) & plugin.seconds.keys()) for line, tests in executed.items()}
    file.write_text(json.dumps({"digest": digest, "seconds": plugin.seconds, "lines": lines}))


def in_a_child(action: Any, *args: Any, seconds: float) -> int | None:
    """The exit code of an action in a forked process, or None if it took too long."""
    child = os.fork()
    if child == 0:
        os.setsid()
        os._exit(action(*args))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def run_tests(copy: Path, tests: list[str]) -> int:
    """Pytest in the copy, silently, until the first failure."""
    import pytest

    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.chdir(copy)
    sys.path[:] = [str(copy), *(entry for entry in sys.path if Path(entry or ".").resolve() != PROJECT)]
    os.environ["PYTHONPATH"] = str(copy)
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))


@contextmanager
def written(copy: Path, mutant: Mutant) -> Iterator[None]:
    """The copy of the project with the mutant in it."""
    target, source = copy / mutant.file, (PROJECT / mutant.file).read_text()
    target.write_text(mutant.apply(source))
    try:
        yield
    finally:
        target.write_text(source)


def tests_for(mutant: Mutant, known: dict[str, Any]) -> list[str]:
    """Those that execute its lines, the quickest first, as many as the budget allows."""
    lines = known["lines"].get(mutant.file, {})
    found = {test for line in mutant.lines for test in lines.get(str(line), [])}
    chosen, spent = list[str](), 0.0
    for test in sorted(found, key=lambda name: known["seconds"][name]):
        spent += known["seconds"][test]
        if chosen and spent > BUDGET:
            break
        chosen.append(test)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", nargs="+", default=["ops", "methods", "train", "lab"])
    parser.add_argument("--mutants", type=int, default=160)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "perdure-mutants")
    given = parser.parse_args()
    sys.dont_write_bytecode = True
    os.environ.update(PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
    given.work.mkdir(parents=True, exist_ok=True)

    sources = sorted(path for part in ("perdure", "tests") for path in (PROJECT / part).rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    file = given.work / "tests.json"
    if not file.exists() or json.loads(file.read_text())["digest"] != digest:
        print("running every test once to see which lines it executes …", flush=True)
        in_a_child(map_tests, file, given.rooms, digest, seconds=6 * 3600)
    known = json.loads(file.read_text())

    import numpy  # noqa: F401 — loaded once, for all children
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    copy = given.work / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    kept = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "runs", "demo", "*.egg-info")
    shutil.copytree(PROJECT, copy, ignore=kept)

    chance, worst = random.Random(given.seed), 0.0
    for room in given.rooms:
        mutants = [
            mutant
            for path in sorted((PROJECT / "perdure" / room).rglob("*.py"))
            for mutant in Mutator(str(path.relative_to(PROJECT)), path.read_text()).found
        ]
        drawn = chance.sample(mutants, min(len(mutants), given.mutants // len(given.rooms)))
        survivors = list[str]()
        for mutant in drawn:
            tests = tests_for(mutant, known)
            with written(copy, mutant):
                noticed = bool(tests) and in_a_child(run_tests, copy, tests, seconds=4 * BUDGET) != 0
            if not noticed:
                survivors.append(f"{mutant}  ({len(tests)} tests)")
                print(f"survived  {survivors[-1]}", flush=True)
        share = 100 * len(survivors) / len(drawn)
        worst = max(worst, share)
        print(
            f"{room}: {len(survivors)} of {len(drawn)} mutants survive ({share:.1f} %); {len(mutants)} in all",
            flush=True,
        )
    sys.exit(worst >= LIMIT)


if __name__ == "__main__":
    main()
