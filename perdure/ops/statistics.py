"""Many runs in few numbers: mean ± deviation over seeds, and paired differences with their confidence intervals.

A run is given as its record or, where it is not done, as what was asked for: both name method, benchmark, network,
seed, tasks, values, plan and settings. Figures come from records alone.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from statistics import correlation as correlation_of
from typing import Any, NamedTuple

Run = Mapping[str, Any]
DDOF = 1  # deviations are those of a sample: the sum of squares is divided by n − 1
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """Mean and deviation over n runs; one run has no deviation."""

    mean: float
    deviation: float | None
    n: int


@dataclass(frozen=True)
class Interval:
    """A mean with the interval that holds the true one at a level of confidence; one value has no interval."""

    mean: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    method: str
    benchmark: str
    label: str  # what sets it apart from other groups of its method and benchmark; often nothing
    runs: tuple[Run, ...]
    row: str = ""  # what the study calls it, where it has a name for it

    @property
    def name(self) -> str:
        if self.row:
            return self.row
        method = without_file(self.method)
        return f"{method} ({self.label})" if self.label else method

    def figures(self, name: str) -> dict[int, float]:
        """Seed → figure, of the runs that have it."""
        return {run["seed"]: float(run[name]) for run in self.runs if run.get(name) is not None}

    def spread(self, name: str) -> Spread | None:
        return spread(list(self.figures(name).values()))


class Difference(NamedTuple):
    """What a group has over another, by figure."""

    group: Group
    other: Group
    figures: dict[str, Interval | None]


def without_file(name: str) -> str:
    """A name as tables and pictures show it.

    >>> without_file("my.py:Careful"), without_file("gpm")
    ('Careful', 'gpm')
    """
    return name.rpartition(".py:")[2]


def headlines(record: Run, own: Collection[str] = ()) -> dict[str, float]:
    """The few figures of each probe that stand in a table of many runs; where two have the same name, as PGD with one
    start and with five, that of the probes that are `own`.

    >>> headlines({"acc": 70.0, "probes": {"fgsm": {"acc": [60.0], "headline": {"FGSM 1/255": 60.0}}}})
    {'FGSM 1/255': 60.0}
    """
    measured = record.get("probes", {})
    own_last = sorted(measured, key=lambda key: key in own)
    return {name: figure for key in own_last for name, figure in measured[key]["headline"].items()}


def spread(values: Sequence[float], ddof: int = DDOF) -> Spread | None:
    """
    >>> spread([1.0, 2.0, 3.0]), spread([1.0, 3.0], ddof=0)
    (Spread(mean=2.0, deviation=1.0, n=3), Spread(mean=2.0, deviation=1.0, n=2))
    """
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return Spread(mean, math.sqrt(squares / (len(values) - ddof)) if len(values) > 1 else None, len(values))


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Student's interval for the mean, which takes the values for independent and normal."""
    found = spread(values)
    if found is None or found.deviation is None:
        return None if found is None else Interval(found.mean, None, None, found.n)
    half = t_quantile(0.5 + confidence / 2, found.n - 1) * found.deviation / math.sqrt(found.n)
    return Interval(found.mean, found.mean - half, found.mean + half, found.n)


def paired(one: Mapping[int, float], other: Mapping[int, float], confidence: float = CONFIDENCE) -> Interval | None:
    """What one has over the other, seed by seed; seeds that only one of them has do not count.

    With one seed two methods start from the same weights and see the same batches, so the chance that both share
    drops out of the difference.
    """
    return interval([one[seed] - other[seed] for seed in one if seed in other], confidence)


def differences(found: Sequence[Group], against: str | None = None, measured: Sequence[str] = ()) -> list[Difference]:
    """ACC, BWT and what probes measured of every group less those of its benchmark's reference, wherever they share a
    seed."""
    compared = []
    for group in found:
        other = reference(found, group.benchmark, against)
        if other is None or group is other:
            continue
        figures = {name: paired(group.figures(name), other.figures(name)) for name in ("acc", "bwt", *measured)}
        if any(value is not None for value in figures.values()):
            compared.append(Difference(group, other, figures))
    return compared


# --- whether two figures go together ---


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's correlation; None of fewer than two points, or where one of the two never changes.

    >>> correlation([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]), correlation([1.0, 1.0], [2.0, 3.0])
    (1.0, None)
    """
    if len(x) < 2 or len(set(x)) == 1 or len(set(y)) == 1:
        return None
    return correlation_of(x, y)


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each value in order, from 1; equal ones share the mean of their places. Pearson's correlation of
    ranks is Spearman's.

    >>> ranks([30.0, 10.0, 30.0, 20.0])
    [3.5, 1.0, 3.5, 2.0]
    """
    below = {value: sum(other < value for other in values) for value in values}
    return [below[value] + (1 + values.count(value)) / 2 for value in values]


# --- which runs belong together ---


def groups(runs: Sequence[Run]) -> list[Group]:
    """Runs alike but for their seed, by benchmark and method, in the order in which they come."""
    gathered: dict[tuple[str, str, str, str], list[Run]] = {}
    for run, label in zip(runs, labels(runs), strict=True):
        gathered.setdefault((run["benchmark"], run["method"], label, run.get("row", "")), []).append(run)
    benchmarks, methods = (list(dict.fromkeys(run[name] for run in runs)) for name in ("benchmark", "method"))
    found = [Group(method, where, label, tuple(alike), row) for (where, method, label, row), alike in gathered.items()]
    return sorted(found, key=lambda group: (benchmarks.index(group.benchmark), methods.index(group.method)))


def labels(runs: Sequence[Run]) -> list[str]:
    """For each run what sets it apart from the others of its method and benchmark, besides the seed. What a study has a
    name for is set apart by the name."""
    first: dict[tuple[str, ...], dict[str, Any]] = {}
    differing: dict[tuple[str, ...], set[str]] = {}
    for run in runs:
        own, key = _facts(run), _family(run)
        known = first.setdefault(key, own)
        differing.setdefault(key, set()).update(
            name for name in own.keys() | known.keys() if own.get(name) != known.get(name)
        )
    return [_label(_facts(run), differing[_family(run)]) for run in runs]


def _family(run: Run) -> tuple[str, ...]:
    return run["method"], run["benchmark"], run.get("row", "")


def reference(found: Sequence[Group], benchmark: str, method: str | None = None) -> Group | None:
    """The group of a benchmark that the others are compared with: the method's first, or the first of all."""
    rivals = [group for group in found if group.benchmark == benchmark and method in (None, group.method)]
    return rivals[0] if rivals else None


def _facts(run: Run) -> dict[str, Any]:
    """Everything that was asked for, flat."""
    own = {"network": run["network"], "tasks": run["tasks"], "outliers": run.get("outliers", "none")}
    own["judged_on"] = run.get("judged_on", "test")  # a search leaves runs whose figures are of validation data
    code = {f"{what} code": found["checksum"] for what, found in run.get("code", {}).items()}
    data = {f"data {name}": value for name, value in run["settings"].items()}
    plan = {f"plan {name}": value for name, value in run["plan"].items()}
    return {**own, **code, **data, **plan, **run["values"]}


def _label(facts: Mapping[str, Any], differing: set[str]) -> str:
    return ", ".join(f"{name}={_plain(value)}" for name, value in facts.items() if name in differing)


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return as_255ths(value) or f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_255ths(value: float) -> str:
    """A strength of an attack as one would give it; empty for numbers that are written as they are.

    >>> as_255ths(4 / 255), as_255ths(0.2), as_255ths(1.0)
    ('4/255', '', '')
    """
    levels = 255 * value
    return f"{round(levels)}/255" if len(str(value)) > 10 and abs(levels - round(levels)) < 1e-9 else ""


# --- Student's distribution ---


def t_quantile(share: float, freedom: int) -> float:
    """The t below which a share of Student's distribution lies, to about nine digits.

    >>> round(t_quantile(0.975, 2), 6)
    4.302653
    """
    if not 0 < share < 1 or freedom <= 0:
        raise ValueError(f"no quantile for a share of {share} and {freedom} degrees of freedom")
    if share < 0.5:
        return -t_quantile(1 - share, freedom)
    if freedom > 10_000:  # nearly normal
        z = NormalDist().inv_cdf(share)
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    low, high = 0.0, math.pi / 2
    while (middle := (low + high) / 2) not in (low, high):  # until no number lies between
        low, high = (middle, high) if _t_share(middle, freedom) < share else (low, middle)
    return math.tan(high) * math.sqrt(freedom)


def _t_share(angle: float, freedom: int) -> float:
    """The share of Student's distribution below t = tan(angle) · √freedom ≥ 0 (Abramowitz and Stegun, 26.7.3 and
    26.7.4)."""
    odd = freedom % 2
    total, term = 0.0, math.cos(angle) if odd else 1.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (k - 1) / k
    inside = math.sin(angle) * total
    return 0.5 + ((angle + inside) / math.pi if odd else inside / 2)
