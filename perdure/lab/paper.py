"""What was found here beside what the paper prints, and whether the two agree.

A cell is *reproduced* if the means differ by at most two pooled standard deviations, else *higher* or *lower*. It is
*not comparable*, with the reason, where something else was run: other epochs, part of the data, another network, or
settings that the paper does not tell.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from perdure.files import parse_toml
from perdure.lab.spec import complete, split_name, usual
from perdure.ops.statistics import Group, Run, Spread, spread

DDOF = 0  # of the paper's deviations: the sum of squares is divided by n
Word = Literal["reproduced", "higher", "lower", "not comparable", "not run"]


@dataclass(frozen=True)
class Comparison:
    """One figure of one row of a table: ours and the paper's."""

    benchmark: str
    row: str
    figure: str  # acc, bwt, minutes, or the headline of a probe
    ours: Spread | None
    printed: Spread
    logged: tuple[float, ...]  # the authors' published runs
    verdict: Word
    why: str  # it cannot be compared
    note: str  # what to know of the printed figure


@cache
def printed() -> dict[str, Any]:
    """The paper's tables, as lab/paper.toml has them."""
    return parse_toml(resources.files("perdure.lab").joinpath("paper.toml").read_bytes())


def compare_with_paper(table: str, groups: Sequence[Group]) -> list[Comparison]:
    """Every cell of a table that the paper prints, in the order of the groups; rows that it has not are left out."""
    return [one for group in groups for one in _compared(table, group)]


def verdict(ours: Spread, theirs: Spread) -> Word:
    """
    >>> gpm = Spread(73.01, 0.36, 5)
    >>> [verdict(Spread(mean, 0.5, 5), gpm) for mean in (73.8, 74.0, 72.0)]
    ['reproduced', 'higher', 'lower']
    """
    variances = [one.deviation**2 for one in (ours, theirs) if one.deviation is not None]
    if not variances:
        return "not comparable"
    pooled = math.sqrt(math.fsum(variances) / len(variances))
    if abs(ours.mean - theirs.mean) <= 2 * pooled:
        return "reproduced"
    return "higher" if ours.mean > theirs.mean else "lower"


def _compared(table: str, group: Group) -> Iterator[Comparison]:
    content = printed()
    row = content[table].get(split_name(group.benchmark)[0], {}).get(group.name, {})
    figures = {name: value for name, value in row.items() if isinstance(value, list)}
    why = "; ".join(_reasons(group, row, content["unknown"]))
    for name, value in figures.items():
        theirs = Spread(value[0], value[1] if len(value) > 1 else None, 0)
        ours = spread(list(group.figures(name).values()), DDOF)
        logged = tuple(row.get("logged", {}).get(name, ()))
        reason = why
        if ours is None:
            word: Word = "not run"
        elif reason:
            word = "not comparable"
        else:
            word = verdict(ours, theirs)
            reason = "" if word != "not comparable" else "neither has a standard deviation"
        yield Comparison(group.benchmark, group.name, name, ours, theirs, logged, word, reason, row.get("note", ""))


def _reasons(group: Group, row: Mapping[str, Any], unknown: Mapping[str, Any]) -> Iterator[str]:
    """Why these runs are something else than what the paper printed."""
    run = group.runs[0]
    yield from _differences(run, named=bool(group.row or group.label))
    incomplete = [
        one["data"]["completeness"]
        for one in group.runs
        if one.get("data", {}).get("completeness", "complete") != "complete"
    ]
    if incomplete:
        yield f"data: {incomplete[0]}"
    if split_name(run["benchmark"])[0] == "five" and not run["settings"].get("legacy"):
        yield "the paper's Fashion-MNIST is MNIST (legacy=true)"
    if group.method in unknown["methods"]:
        yield unknown["why"]
    if row.get("why"):
        yield row["why"]


def _differences(run: Run, named: bool) -> Iterator[str]:
    """What was asked for that the preset has not; a row that is named after its values has them on purpose."""
    published, whole = usual(run), complete(run)
    if run["network"] != published.network:
        yield f"network {run['network']}, not {published.network}"
    if run["tasks"] is not None:
        yield f"{run['tasks']} tasks only"
    for name, value in {**asdict(published.plan), **({} if named else published.values)}.items():
        given = {**whole["plan"], **whole["values"]}.get(name, value)
        if given != value:
            yield f"{name} {_text(given)}, not {_text(value)}"
    if run.get("outliers"):
        yield f"outliers {run['outliers']}"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
