"""The gate: what old tasks lost since the revision before, against limits, on test images that the user kept."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from perdure import files
from perdure.errors import MissingFile, WrongValue
from perdure.learner.state import Verdict
from perdure.methods.method import Method
from perdure.ops.attacks import Ball, pgd
from perdure.ops.calibration import by_width, reliability
from perdure.probes.probe import TaskModel
from perdure.seeding import generator
from perdure.types import Split

Points = Annotated[float, Field(ge=0, le=100)]
Z = 1.959964  # of an interval of 95 %
BINS = 15


class GateLimits(BaseModel):
    """What may be lost of each old task, in percentage points; and what robustness is measured with.

    In a file, [tests] says where test images of tasks lie, relative to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    accuracy: Points = 2.0
    robust: Points | None = 5.0  # under attack; none leaves it out
    calibration: Points | None = 5.0  # rise of the expected calibration error; none leaves it out
    attack: Annotated[float, Field(gt=0, le=1)] = 2 / 255  # L∞, in pixels of [0, 1]
    steps: Annotated[int, Field(ge=1, le=1000)] = 10  # of PGD
    images: Annotated[int, Field(ge=1)] = 256  # of each task that are attacked
    certain: bool = False  # whether all of the interval must lie within the limit
    tests: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def read(cls, given: "GateLimits | Mapping[str, Any] | str | Path | None") -> "GateLimits":
        if given is None:
            return cls()
        if isinstance(given, GateLimits):
            return given
        where, content = "limits", given
        if isinstance(given, str | Path):
            where, place = str(given), Path(given)
            try:
                content = files.read_toml(place)
            except FileNotFoundError:
                raise MissingFile(f"{place}: there is no such file of limits") from None
            except (OSError, ValueError) as error:
                raise WrongValue(f"{place}: cannot be read as TOML ({error})") from None
            tests = content.get("tests", {})
            if isinstance(tests, dict):
                content["tests"] = {name: str(place.parent / str(path)) for name, path in tests.items()}
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)[0]
            name = ".".join(map(str, wrong["loc"]))
            known = ", ".join(cls.model_fields)
            raise WrongValue(f"{where}: {name}: {wrong['msg'].lower()}; it may hold {known}") from None


@dataclass(frozen=True)
class Check:
    """One figure of one task, before and after; all in percent."""

    task: str
    what: str  # accuracy, robust accuracy, calibration error
    before: float
    after: float
    loss: float  # how much worse it became
    low: float  # interval of the loss
    high: float
    limit: float
    images: int

    @property
    def holds(self) -> bool:
        return self.loss <= self.limit

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"holds": self.holds}

    def __str__(self) -> str:
        mark = "ok" if self.holds else "BROKEN"
        doubt = "" if self.high <= self.limit or not self.holds else "; too few images to be sure"
        return (
            f"{self.task}: {self.what} {self.before:.1f} → {self.after:.1f}, lost {self.loss:.1f} "
            f"({self.low:.1f} … {self.high:.1f}) of {self.limit:g} allowed, {self.images} images: {mark}{doubt}"
        )


@dataclass(frozen=True)
class Answers:
    """To the test images of one task."""

    right: Tensor  # (n,) bool
    confidence: Tensor  # (n,)
    robust: Tensor | None  # (m,) bool, of the first so many

    def calibration_error(self) -> float:
        bins = by_width(self.confidence, BINS)
        return 100 * float(reliability(self.confidence, self.right, bins, BINS).expected_error())


def answers(method: Method, task: int, split: Split, limits: GateLimits) -> Answers:
    model = TaskModel(method, task, split)
    right, confidence, robust = [], [], []
    ball = Ball("linf", limits.attack)
    for x, y in model.batches():
        logits = model.logits(x)
        right.append((logits.argmax(1) == y).cpu())
        confidence.append(logits.softmax(1).amax(1).double().cpu())
    if limits.robust is not None:
        for index, (x, y) in enumerate(model.batches(limits.images)):
            attacked = pgd(model, x, y, ball, steps=limits.steps, rng=generator(0, "gate", task, index))
            robust.append(model.right(attacked, y).cpu())
    return Answers(torch.cat(right), torch.cat(confidence), torch.cat(robust) if robust else None)


def compare(name: str, before: Answers, after: Answers, limits: GateLimits) -> list[Check]:
    """What was lost, on the same images: an image that is right before and wrong after counts against one that is the
    other way round."""
    found = [_paired(name, "accuracy", before.right, after.right, limits.accuracy)]
    if limits.robust is not None and before.robust is not None and after.robust is not None:
        found.append(_paired(name, "robust accuracy", before.robust, after.robust, limits.robust))
    if limits.calibration is not None:
        one, other = before.calibration_error(), after.calibration_error()
        low, high = _bootstrap(before, after)
        found.append(
            Check(name, "calibration error", one, other, other - one, low, high, limits.calibration, len(after.right))
        )
    return found


def verdict(checks: list[Check], unverified: list[str], limits: GateLimits) -> Verdict:
    """`unverified` are the old tasks without test images."""
    if any(not check.holds or (limits.certain and check.high > check.limit) for check in checks):
        return "broken"
    return "not verified" if unverified else "passed"


def _paired(name: str, what: str, before: Tensor, after: Tensor, limit: float) -> Check:
    """The interval is that of a mean of differences −1, 0, 1, with half an image added to either side, so that it does
    not vanish where no answer changed."""
    n = len(before)
    worse, better = int((before & ~after).sum()), int((~before & after).sum())
    loss = 100 * (worse - better) / n
    total = worse + better + 1
    spread = 100 * Z * math.sqrt(max(total - (worse - better) ** 2 / n, 0.0)) / n
    share = [100 * int(right.sum()) / n for right in (before, after)]
    return Check(name, what, share[0], share[1], loss, loss - spread, loss + spread, limit, n)


def _bootstrap(before: Answers, after: Answers, draws: int = 200) -> tuple[float, float]:
    n, rng = len(before.right), generator(0, "gate", "bootstrap")
    found = []
    for _ in range(draws):
        rows = torch.randint(n, (n,), generator=rng)
        one, other = (Answers(a.right[rows], a.confidence[rows], None).calibration_error() for a in (before, after))
        found.append(other - one)
    found.sort()
    return found[int(0.025 * draws)], found[int(0.975 * draws) - 1]
