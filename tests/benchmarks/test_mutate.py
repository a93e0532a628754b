"""The mutants of benchmarks/mutate.py."""

import ast

from test_tables import script

SOURCE = '''
"""A docstring with 3 < 4."""
def step(x: int = 2, *, λ: float = 0.5) -> int:
    """Another."""
    if x < 3 and not done(x, λ):
        x += 1
    log("ä", x - 1, level=2, end="")
    n = min(x, λ), zip(x, strict=True)
    assert x == 1
    raise ValueError(f"{x + 1}")
'''


def test_what_is_changed_and_what_is_left_alone() -> None:
    mutate = script("mutate")
    found = mutate.Mutator("some.py", SOURCE).found
    changed = {(mutant.line, SOURCE[mutant.start : mutant.end].strip(), mutant.text.strip()) for mutant in found}
    assert changed == {
        (3, "2", "3"),
        (3, "0.5", "0.75"),
        (5, "x < 3 and not done(x, λ)", "(not (x < 3 and not done(x, λ)))"),
        (5, "<", "<="),
        (5, "3", "4"),
        (5, "and", "or"),
        (5, "not done(x, λ)", "(done(x, λ))"),
        (5, "x, λ", "λ, x"),
        (6, "x += 1", "pass"),
        (6, "1", "2"),
        (7, 'log("ä", x - 1, level=2, end="")', "pass"),
        (7, '"ä", x - 1', 'x - 1, "ä"'),
        (7, "-", "+"),
        (7, "1", "2"),
        (7, "2", "3"),
        (7, ', end=""', ""),
    }
    for mutant in found:
        ast.parse(mutant.apply(SOURCE))


def test_quick_tests_that_execute_little_else_come_first() -> None:
    mutate = script("mutate")
    mutant = next(one for one in mutate.Mutator("some.py", SOURCE).found if one.line == 6)
    own = "tests/test_some.py::test_it"
    parts = [
        {"seconds": {"slow": 150.0, "quick": 0.1, "wide": 0.1}, "lines": {"some.py": {"6": ["slow", "quick", "wide"]}}},
        {"seconds": {"slower": 165.0, "last": 5.0}, "lines": {"some.py": {"6": ["slower", "last"]}}},
        {"seconds": {"elsewhere": 0.0}, "lines": {"some.py": {"5": ["elsewhere"]}, "a.py": {"1": ["elsewhere"]}}},
        {"seconds": {own: 0.05}, "lines": {"a.py": {str(line): ["wide"] for line in range(700)}}},
    ]
    known = mutate.merged(parts)
    chosen = mutate.tests_for(mutant, known)
    assert chosen == ["quick", "wide", "last", "slow"]  # three minutes in all
    assert mutate.likely(chosen, known) == 2  # five seconds
    known["lines"]["some.py"]["6"].append("elsewhere")
    assert mutate.tests_for(mutant, known)[0] == "elsewhere"
    default = next(one for one in mutate.Mutator("some.py", SOURCE).found if one.line == 3)
    assert mutate.tests_for(default, known)[:2] == [own, "elsewhere"]
