"""Break single lines of the package and see whether a test notices.

    python benchmarks/mutate.py [--rooms ops methods train lab] [--mutants 160] [--seed 1] [--jobs 2] [--work DIR]
                                [--tests PATH …]

First every test and doctest, or those named, is run once while `coverage` notes which lines it executes and how long it
takes; that is kept in DIR, and a file of tests is run again only when it or the package changed. Then mutants are drawn
by the seed, as many in each room: a comparison, an operator, a constant or a condition is changed, two arguments are
exchanged, a statement is left out. Each is written into a copy of the project, and the tests that execute its line are
run there until one fails: first a few seconds of those that execute little else, then the others. A mutant that none
notices in three minutes of tests survives, and is printed with its line. The share that survives is printed for each
room; the exit code is 1 if it is 10 % or more anywhere.

Needs `coverage`, which `make setup` installs. Each mutant runs in a process forked from one that has torch loaded.
"""

import argparse
import ast
import hashlib
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
BUDGET = 180.0  # seconds of tests for one mutant, as they were measured, perhaps on a busy machine
FIRST, FILES = 5.0, 3  # seconds of tests, and files of them, that are shown to a mutant before all others
# Tests that look at sources and signatures, so that they execute no line of what they would notice.
READERS = ("tests/test_layers.py::", "tests/test_front_door.py::test_defaults", "tests/methods/test_defaults.py::")
# Tests of code that runs only in processes of its own, whose lines the map of this process does not see.
ELSEWHERE = {"perdure/lab/execute/worker.py": "tests/lab/test_local.py::"}
LIMIT = 10.0  # percent that may survive
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is"}
OPERATORS = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "@": "*", "**": "*", "%": "//", "|": "&", "&": "|"}
UNORDERED = (
    "isinstance",
    "min",
    "max",
    "torch.minimum",
    "torch.maximum",
    "torch.equal",
    "suppress",
)  # calls whose arguments, exchanged, are an error at once or mean the same
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
        first_two = [] if self.text(node.func) in UNORDERED else node.args[:2]
        if len(first_two) == 2 and not any(isinstance(one, ast.Starred) for one in first_two):
            (start, _), (_, end) = map(self.span, first_two)
            one, other = map(self.text, first_two)
            if one != other:
                self.add(node, f"{other}, {one}", (start, end))
        for keyword in node.keywords:
            if keyword.arg is not None and len(node.keywords) > 1 and keyword is node.keywords[-1]:
                start = self.span(node.keywords[-2].value)[1]
                self.add(keyword, "", (start, self.span(keyword.value)[1]))
        for part in (node.func, *node.args, *(one for one in node.keywords if one.arg != "strict")):
            self.visit(part)  # strict=True of zip is an assertion

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
        self.coverage, self.seconds, self.failed = coverage, dict[str, float](), set[str]()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.outcome != "passed":
            self.failed.add(report.nodeid)  # it would notice anything


def map_tests(copy: Path, files: list[str], result: Path) -> int:
    """Run files of tests in a copy and write, for each file, which of its tests execute which line."""
    import coverage
    import pytest

    enter(copy)
    measuring = coverage.Coverage(data_file=None, source=[str(copy / "perdure")])
    measuring.start()
    plugin = Map(measuring)
    quietly = ["-p", "no:cacheprovider", "-q", "-W", "ignore::coverage.exceptions.CoverageWarning"]
    pytest.main([*quietly, *files], [plugin])
    measuring.stop()
    found: dict[str, dict[str, Any]] = {file: {"seconds": {}, "lines": {}} for file in files}
    for test, taken in plugin.seconds.items():
        if test not in plugin.failed:
            found[file_of(test)]["seconds"][test] = taken
    data = measuring.get_data()
    for name in data.measured_files():
        where = str(Path(name).relative_to(copy))
        for line, tests in data.contexts_by_lineno(name).items():
            for test in set(tests) - {""} - plugin.failed:
                found[file_of(test)]["lines"].setdefault(where, {}).setdefault(line, []).append(test)
    result.write_text(json.dumps(found))
    return 0


def file_of(test: str) -> str:
    return test.split("::")[0]


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What is known of all tests: their seconds, how many lines of the package each executes, and each line's tests."""
    seconds, lines = dict[str, float](), dict[str, dict[str, list[str]]]()
    executes = Counter[str]()
    for part in parts:
        seconds |= part["seconds"]
        for file, tests in part["lines"].items():
            for line, names in tests.items():
                lines.setdefault(file, {}).setdefault(line, []).extend(names)
                executes.update(names)
    return {"seconds": seconds, "executes": executes, "lines": lines}


def enter(copy: Path) -> None:
    """Work in a copy of the project, and import nothing of the project itself; what is printed goes to a file."""
    log = os.open(copy.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(copy)
    sys.path[:] = [str(copy), *(entry for entry in sys.path if Path(entry or ".").resolve() != PROJECT)]
    os.environ["PYTHONPATH"] = str(copy)


def run_tests(copy: Path, tests: list[str], first: int) -> int:
    """Pytest in a copy, silently, until the first failure."""
    import pytest

    enter(copy)
    for part in (tests[:first], tests[first:]):
        if part and (code := int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *part]))):
            return code
    return 0


@dataclass
class Child:
    """A forked process, ended when it takes too long."""

    process: int
    deadline: float

    @classmethod
    def start(cls, action: Callable[..., int], *args: Any, seconds: float) -> "Child":
        process = os.fork()
        if process == 0:
            os.setsid()
            code = 1
            try:
                code = action(*args)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        return cls(process, time.monotonic() + seconds)

    def ended(self) -> int | None:
        """Its exit code, once there is one; that of a process that took too long is that of a failure."""
        done, status = os.waitpid(self.process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() < self.deadline:
            return None
        with suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        return 1


def in_copies(
    copies: list[Path], work: list[Any], start: Callable[[Path, Any], Child | None]
) -> Iterator[tuple[Any, int]]:
    """Do all work, one piece in each copy at a time; each with its exit code, 0 for what was not started."""
    waiting, running, free = list(reversed(work)), dict[Path, tuple[Child, Any]](), list(copies)
    while waiting or running:
        while waiting and free:
            piece = waiting.pop()
            if (child := start(free[-1], piece)) is None:
                yield piece, 0
            else:
                running[free.pop()] = child, piece
        for copy, (child, piece) in list(running.items()):
            if (code := child.ended()) is not None:
                del running[copy]
                free.append(copy)
                yield piece, code
        time.sleep(0.05)


def tests_for(mutant: Mutant, known: dict[str, Any]) -> list[str]:
    """Those that execute its lines, those that execute little else and are quick first, as many as the budget allows.

    Lines that are executed when the module is imported, such as tables and defaults, belong to no test, or to one that
    happens to import it: there, those that execute anything of the file and those of the test file that is named as it
    is, which may only look at it. Those that look at sources and signatures of the whole package are always among them.
    """
    lines, seconds, executes = known["lines"].get(mutant.file, {}), known["seconds"], known["executes"]
    own = f"/test_{Path(mutant.file).stem}.py::"
    found = {test for line in mutant.lines for test in lines.get(str(line), [])}
    found |= {one for one in seconds if one.startswith((f"{mutant.file}::", *READERS))}  # its doctests among them
    if mutant.file in ELSEWHERE:
        found |= {one for one in seconds if one.startswith(ELSEWHERE[mutant.file])}
    if not any(lines.get(str(line)) for line in mutant.lines):
        found |= {test for tests in lines.values() for test in tests} | {one for one in seconds if own in one}

    def cost(test: str) -> tuple[float, str]:
        return (0.02 + seconds[test]) * (20 + executes.get(test, 0)) / (10 if own in test else 1), test

    chosen, spent = list[str](), 0.0
    for test in sorted(found, key=cost):
        if not chosen or spent + seconds[test] <= BUDGET:
            chosen.append(test)
            spent += seconds[test]
    return chosen


def likely(tests: list[str], known: dict[str, Any]) -> int:
    """How many of them are shown first: to collect the files of all the others takes longer than these do."""
    spent, files = 0.0, set[str]()
    for number, test in enumerate(tests):
        spent += known["seconds"][test]
        files.add(file_of(test))
        if number and (spent > FIRST or len(files) > FILES):
            return number
    return len(tests)


def mapped(work: Path, copies: list[Path], files: list[str]) -> list[dict[str, Any]]:
    """What is known of each file of tests; those of which nothing is known yet are run."""
    common = sorted((PROJECT / "perdure").rglob("*.py"))
    common += [path for path in sorted((PROJECT / "tests").rglob("*.py")) if not path.name.startswith("test_")]
    package = b"".join(path.read_bytes() for path in common)
    kept = {
        file: work / f"{hashlib.sha256(package + file.encode() + (PROJECT / file).read_bytes()).hexdigest()[:16]}.json"
        for file in files
    }
    if missing := [file for file in files if not kept[file].exists()]:
        print(f"running {len(missing)} files of tests once to see which lines they execute …", flush=True)
        parts = [(missing[number :: len(copies)], work / f"part-{number}.json") for number in range(len(copies))]
        for part, code in in_copies(
            copies, parts, lambda copy, part: Child.start(map_tests, copy, part[0], part[1], seconds=4e4)
        ):
            assert code == 0, f"see the .log files in {work}"
            for file, found in json.loads(part[1].read_text()).items():
                kept[file].write_text(json.dumps(found))
    return [json.loads(kept[file].read_text()) for file in files]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", nargs="+", default=["ops", "methods", "train", "lab"])
    parser.add_argument("--mutants", type=int, default=160)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="files and folders of tests; all, if none is named")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "perdure-mutants")
    given = parser.parse_args()
    sys.dont_write_bytecode = False
    os.environ.update(PYTHONDONTWRITEBYTECODE="", OMP_NUM_THREADS="1")

    for package in ("torch", "pytest", "pydantic", "typer", "rich", "matplotlib.pyplot", "jinja2"):
        importlib.import_module(package)  # once, for all children
    importlib.import_module("torch").set_num_threads(1)
    given.work.mkdir(parents=True, exist_ok=True)
    copies = [given.work / f"copy-{number}" for number in range(given.jobs)]
    kept = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "runs", "demo", "*.egg-info")
    for copy in copies:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(PROJECT, copy, ignore=kept)

    tests = sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "tests").rglob("test_*.py"))
    documented = (path for path in (PROJECT / "perdure").rglob("*.py") if ">>> " in path.read_text())
    tests += ["tests/checks.py", *sorted(str(path.relative_to(PROJECT)) for path in documented)]
    tests = [file for file in tests if any(file.startswith(path) for path in given.tests or [""])]
    known = merged(mapped(given.work, copies, tests))

    times = itertools.count(int(time.time()))

    def write(path: Path, text: str) -> None:
        """With a time of its own, since Python takes a compiled module of the same second and size for the same."""
        path.write_text(text)
        os.utime(path, (stamp := next(times), stamp))

    def start(copy: Path, mutant: Mutant) -> Child | None:
        """Each file of the copy is as in the project but for the mutant's."""
        for path in changed.pop(copy, []):
            write(copy / path, (PROJECT / path).read_text())
        tests = tests_for(mutant, known)
        if not tests:
            return None
        write(copy / mutant.file, mutant.apply((PROJECT / mutant.file).read_text()))
        changed[copy] = [mutant.file]
        return Child.start(run_tests, copy, tests, likely(tests, known), seconds=4 * BUDGET)

    quick = sorted(known["seconds"], key=known["seconds"].__getitem__)[:50]
    sound = lambda copy, tests: Child.start(run_tests, copy, tests, len(tests), seconds=4 * BUDGET)  # noqa: E731
    assert all(code == 0 for _, code in in_copies(copies, [quick] * given.jobs, sound)), "they fail without a mutant"

    chance, worst, changed = random.Random(given.seed), 0.0, dict[Path, list[str]]()
    for room in given.rooms:
        mutants = [
            mutant
            for path in sorted((PROJECT / "perdure" / room).rglob("*.py"))
            for mutant in Mutator(str(path.relative_to(PROJECT)), path.read_text()).found
        ]
        drawn = chance.sample(mutants, min(len(mutants), given.mutants // len(given.rooms)))
        survivors = 0
        for mutant, code in in_copies(copies, drawn, start):
            if code == 0:
                survivors += 1
                print(f"survived  {mutant}  ({len(tests_for(mutant, known))} tests)", flush=True)
        share = 100 * survivors / len(drawn)
        worst = max(worst, share)
        print(f"{room}: {survivors} of {len(drawn)} mutants survive ({share:.1f} %), of {len(mutants)}", flush=True)
    sys.exit(worst >= LIMIT)


if __name__ == "__main__":
    main()
