"""Search for values that do well on validation data; test data are never looked at.

Optuna proposes, the executors of studies do the runs, the store keeps them. A search has a file of its own in the store
named by the hash of what it searches, so that the same command goes on with it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin

from perdure import registry
from perdure.errors import PerdureError, UnknownName, WrongValue
from perdure.lab.job import Event, Executor, Job
from perdure.lab.spec import RunSpec, spec
from perdure.schema import Value, meant, values_of
from perdure.seeding import derive
from perdure.train.plan import Plan

EXAMPLE = "mix_weight=0.01..1:log, samples=50..200, spread_in=both,descent or plan.rate=0.01..0.1:log"


@dataclass(frozen=True)
class Range:
    """What a value may be: between two numbers, or one of a few."""

    name: str  # of the method's value, or plan.NAME
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Search:
    """What is searched: a run with some of its values open."""

    base: RunSpec
    ranges: tuple[Range, ...]
    seeds: tuple[int, ...]
    wishes: dict[str, Any] = field(default_factory=dict)  # further arguments of `spec`

    def digest(self) -> str:
        text = json.dumps([self.base.plain(), [vars(r) for r in self.ranges], self.seeds], sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def specs(self, chosen: Mapping[str, Any]) -> list[RunSpec]:
        """The runs that try these values, one for each seed, judged on validation data."""
        values = {name: value for name, value in chosen.items() if not name.startswith("plan.")}
        plan = {name.removeprefix("plan."): value for name, value in chosen.items() if name.startswith("plan.")}
        given = {**self.wishes, "judged_on": "valid"}
        given["values"] = {**self.wishes.get("values", {}), **values}
        given["plan"] = {**self.wishes.get("plan", {}), **plan}
        first = spec(self.base.method, self.base.benchmark, **given)
        return [replace(first, seed=seed) for seed in self.seeds]


@dataclass(frozen=True)
class Trial:
    """What a choice of values came to."""

    number: int
    values: dict[str, Any]
    score: float | None  # mean over seeds of ACC on validation data, percent; None if a run failed
    error: str = ""


def make(method: str, benchmark: str, space: Sequence[str], seeds: Sequence[int], **wishes: Any) -> Search:
    """A search from what was asked for, checked before anything runs."""
    base = spec(method, benchmark, judged_on="valid", **wishes)
    if not space:
        raise WrongValue(f"nothing to search; say what may vary, e.g. --space {EXAMPLE}")
    ranges = tuple(parse(text, method) for text in space)
    if len({r.name for r in ranges}) < len(ranges):
        raise WrongValue("a value is named twice in the space; say each once")
    search = Search(base, ranges, tuple(seeds), dict(wishes))
    for end in ("low", "high"):
        search.specs({r.name: r.choices[0] if r.choices else getattr(r, end) for r in ranges})
    return search


def parse(text: str, method: str) -> Range:
    """A range from a word such as mix_weight=0.01..1:log; Greek names stand for the paper's symbols.

    >>> parse("lambda=0.01..1:log", "rcl")
    Range(name='mix_weight', low=0.01, high=1.0, log=True, whole=False, choices=())
    >>> parse("spread_in=both,descent", "rcl").choices
    ('both', 'descent')
    """
    name, _, wish = (part.strip() for part in text.partition("="))
    name, value = _value(name, method)
    span = re.fullmatch(r"([^.,:]+(?:\.[^.,:]+)?)\.\.([^,:]+)(:log)?", wish)
    if span is None:
        choices = tuple(filter(None, (choice.strip() for choice in wish.split(","))))
        if len(choices) < 2:
            raise WrongValue(f"{text!r} is no range; write low..high, low..high:log, or choices with commas: {EXAMPLE}")
        return Range(name, choices=choices)
    try:
        low, high = float(span[1]), float(span[2])
    except ValueError:
        raise WrongValue(f"{text!r}: both ends of a range are numbers, e.g. {EXAMPLE}") from None
    if not low < high or (span[3] and low <= 0):
        raise WrongValue(f"{text!r}: the first end is the lower one, and above 0 for :log")
    return Range(name, low, high, log=bool(span[3]), whole=_is_whole(value.type))


def go(
    search: Search,
    executor: Executor,
    *,
    out: Path,
    trials: int,
    at_once: int,
    job: Callable[[RunSpec], Job],
    heard: Callable[[Event], None] = lambda _event: None,
) -> Iterator[Trial]:
    """Try values until there are so many trials, those of earlier times included; yields each as it ends.

    Each round asks for `at_once` proposals and waits for all of their runs.
    """
    optuna = _optuna()
    study = _study(optuna, search, out)
    ended = [trial for trial in study.trials if trial.state.is_finished() and not trial.user_attrs.get("lost")]
    left = trials - len(ended)
    while left > 0:
        asked = [study.ask(_distributions(optuna, search)) for _ in range(min(at_once, left))]
        specs = [search.specs(trial.params) for trial in asked]
        jobs = [job(one) for group in specs for one in group]
        owners = [index for index, group in enumerate(specs) for _ in group]
        scores: dict[int, list[float]] = {index: [] for index in range(len(asked))}
        errors: dict[int, str] = {}
        for event in executor.do(jobs):
            heard(event)
            if event.kind == "done":
                scores[owners[event.job]].append(event.facts["record"]["acc"])
            elif event.kind == "stopped":
                raise PerdureError("stopped; the same command goes on with the search")
            elif event.kind == "failed":
                errors[owners[event.job]] = event.facts["error"]
        for index, trial in enumerate(asked):
            failed = index in errors
            score = None if failed else sum(scores[index]) / len(scores[index])
            if failed:
                trial.set_user_attr("error", errors[index])
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, score)
            yield Trial(trial.number, dict(trial.params), score, errors.get(index, ""))
        left -= len(asked)


def results(search: Search, out: Path) -> list[Trial]:
    """All trials of a search so far, the best first."""
    found = [
        Trial(trial.number, dict(trial.params), trial.value, trial.user_attrs.get("error", ""))
        for trial in _study(_optuna(), search, out).trials
        if trial.state.is_finished() and not trial.user_attrs.get("lost")
    ]
    return sorted(found, key=lambda trial: (trial.score is None, -(trial.score or 0.0)))


def _study(optuna: ModuleType, search: Search, out: Path) -> Any:
    """The search's own study; trials that a dead process left are asked again."""
    folder = out / "searches"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PerdureError(f"cannot write {folder}: {error.strerror}; choose another place with --out") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = folder / f"{search.base.method}-{search.base.shelf}-{search.digest()}.db"
    try:
        study = optuna.create_study(
            storage=f"sqlite:///{path}",
            study_name="search",
            direction="maximize",
            load_if_exists=True,
        )
    except Exception as error:  # whatever a damaged or foreign file makes of it
        raise PerdureError(
            f"{path}: not a readable search ({type(error).__name__}); move it away to begin anew, its runs are kept"
        ) from None
    # Another seed each time, or a search that goes on would draw once more what it drew at first.
    study.sampler = optuna.samplers.TPESampler(seed=derive(search.seeds[0], "search", len(study.trials)) >> 32)
    for trial in study.trials:
        if not trial.state.is_finished():
            study.enqueue_trial(trial.params)
            study._storage.set_trial_user_attr(trial._trial_id, "lost", True)
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    return study


def _distributions(optuna: ModuleType, search: Search) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for r in search.ranges:
        if r.choices:
            made[r.name] = optuna.distributions.CategoricalDistribution(r.choices)
        elif r.whole:
            made[r.name] = optuna.distributions.IntDistribution(int(r.low), int(r.high), log=r.log)
        else:
            made[r.name] = optuna.distributions.FloatDistribution(r.low, r.high, log=r.log)
    return made


def _value(name: str, method: str) -> tuple[str, Value]:
    """The value that is meant: by its name, by the paper's symbol, or plan.NAME."""
    own = values_of(registry.methods.load(method))
    known = {**own, **{f"plan.{key}": value for key, value in values_of(Plan).items()}}
    name = name if name in known else meant(name, own)
    if name not in known:
        raise UnknownName(f"value of {method} to search", name, known)
    return name, known[name]


def _is_whole(kind: Any) -> bool:
    return kind is int or (get_origin(kind) is not None and any(_is_whole(part) for part in get_args(kind)[:1]))


def _optuna() -> ModuleType:
    try:
        import optuna
    except ImportError:
        raise PerdureError("a search needs optuna: pip install 'perdure[search]'") from None
    return optuna
