"""Outliers as they are asked for: which kind, how many, in which tasks. `labels:0.2@2-4+foreign:0.1`"""

import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

from perdure.errors import UnknownName, WrongValue, short

OutlierKind = Literal["labels", "corrupted", "adversarial", "foreign"]  # see `ops.contamination`
MOST_TASKS = 10_000
FORM = re.compile(r"(?P<kind>[a-z]+):(?P<rate>[0-9.eE+-]+?)(@(?P<tasks>[0-9,-]+))?")


@dataclass(frozen=True)
class OutlierSpec:
    """A share of the training images of some tasks."""

    kind: OutlierKind
    rate: float
    tasks: tuple[int, ...] = ()  # counted from 1; all of them when empty

    def __str__(self) -> str:
        return f"{self.kind}:{self.rate:g}" + (f"@{','.join(map(str, self.tasks))}" if self.tasks else "")


def outlier_specs(text: str) -> tuple[OutlierSpec, ...]:
    """What a text asks for; one way to write each, so that equal runs have equal names.

    >>> "+".join(map(str, outlier_specs("labels:.20@2-4 + foreign:0.1")))
    'labels:0.2@2,3,4+foreign:0.1'
    """
    if text.strip() in ("", "none"):
        return ()
    return tuple(_outlier_spec(part.strip()) for part in re.split(r"\+(?=\s*[a-z])", text))


def _outlier_spec(text: str) -> OutlierSpec:
    found = FORM.fullmatch(text)
    if found is None:
        raise WrongValue(
            f"outliers {short(text)!r}: write KIND:RATE or KIND:RATE@TASKS, such as labels:0.2 or labels:0.2@2-4"
        )
    kind = found["kind"]
    if kind not in get_args(OutlierKind):
        raise UnknownName("kind of outliers", short(kind), get_args(OutlierKind))
    try:
        rate = float(found["rate"])
    except ValueError:
        rate = 0.0
    if not 0 < rate <= 1:
        raise WrongValue(f"outliers {short(text)!r}: the rate is a share above 0 and at most 1, such as 0.2")
    return OutlierSpec(cast(OutlierKind, kind), rate, _tasks(text, found["tasks"] or ""))


def _counted(digits: str) -> int:
    return int(digits) if len(digits) < 10 else MOST_TASKS + 1


def _tasks(text: str, listed: str) -> tuple[int, ...]:
    chosen: set[int] = set()
    for piece in listed.split(",") if listed else ():
        first, dash, last = piece.partition("-")
        last = last if dash else first
        if not (first.isdigit() and last.isdigit() and 1 <= _counted(first) <= _counted(last) <= MOST_TASKS):
            known = f"tasks are counted from 1 to at most {MOST_TASKS}, such as @2 or @1,3-5"
            raise WrongValue(f"outliers {short(text)!r}: {known}")
        chosen |= set(range(int(first), int(last) + 1))
    return tuple(sorted(chosen))
