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
from perdure.lab.execute.job import Event, Executor, Job
from perdure.lab.spec import RunSpec, spec
from perdure.lab.store import lock_run
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
    if not seeds or len(set(seeds)) < len(seeds):
        raise WrongValue(f"seeds {', '.join(map(str, seeds)) or 'none'}: name at least one, and each once")
    search = Search(base, ranges, tuple(seeds), dict(wishes))
    for r in ranges:
        for value in r.choices or (r.low, r.high):
            search.specs({r.name: value})
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
    path = _place(search, out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PerdureError(f"cannot write {path.parent}: {error.strerror}; choose another place with --out") from None
    with lock_run(out, path):  # another process would ask again for the trials that are under way here
        study = _study(optuna, path, optuna.create_study, direction="maximize", load_if_exists=True)
        # Another seed each time, or a search that goes on would draw once more what it drew at first.
        study.sampler = optuna.samplers.TPESampler(seed=derive(search.seeds[0], "search", len(study.trials)) >> 32)
        _ask_again(optuna, study)
        left = trials - len(_ended(study))
        while left > 0:
            asked = [study.ask(_distributions(optuna, search)) for _ in range(min(at_once, left))]
            tried = _tried(search, [trial.params for trial in asked], executor, job, heard)
            for trial, (score, why) in zip(asked, tried, strict=True):
                if score is None:
                    trial.set_user_attr("error", why)
                    study.tell(trial, state=optuna.trial.TrialState.FAIL)
                else:
                    study.tell(trial, score)
                yield Trial(trial.number, dict(trial.params), score, why)
            left -= len(asked)


def results(search: Search, out: Path) -> list[Trial]:
    """All trials of a search so far, the best first; nothing is changed."""
    optuna, path = _optuna(), _place(search, out)
    if not path.exists():
        return []
    found = [
        Trial(trial.number, dict(trial.params), trial.value, trial.user_attrs.get("error", ""))
        for trial in _ended(_study(optuna, path, optuna.load_study))
    ]
    return sorted(found, key=lambda trial: (trial.score is None, -(trial.score or 0.0)))


def _tried(
    search: Search,
    proposals: Sequence[Mapping[str, Any]],
    executor: Executor,
    job: Callable[[RunSpec], Job],
    heard: Callable[[Event], None],
) -> list[tuple[float | None, str]]:
    """What each proposal came to: its score or its error. A run that several proposals share is done once."""
    runs: dict[str, tuple[RunSpec, list[int]]] = {}
    for index, chosen in enumerate(proposals):
        for one in search.specs(chosen):
            runs.setdefault(json.dumps(one.plain(), sort_keys=True), (one, []))[1].append(index)
    owners = [those for _, those in runs.values()]
    scores: dict[int, list[float]] = {index: [] for index in range(len(proposals))}
    errors: dict[int, str] = {}
    for event in executor.do([job(one) for one, _ in runs.values()]):
        heard(event)
        if event.kind == "stopped":
            raise PerdureError("interrupted; run the same command to resume the search")
        for index in owners[event.job]:
            if event.kind == "done":
                scores[index].append(event.facts["record"]["acc"])
            elif event.kind == "failed":
                errors[index] = event.facts["error"]
    return [(None, errors[index]) if index in errors else (sum(s) / len(s), "") for index, s in scores.items()]


def _place(search: Search, out: Path) -> Path:
    return out / "searches" / f"{search.base.method}-{search.base.benchmark_dir}-{search.digest()}.db"


def _study(optuna: ModuleType, path: Path, opened: Callable[..., Any], **how: Any) -> Any:
    """The study in a file, opened by one of Optuna's functions."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return opened(storage=f"sqlite:///{path}", study_name="search", **how)
    except Exception as error:  # whatever a damaged or foreign file makes of it
        raise PerdureError(
            f"{path}: not a readable search ({type(error).__name__}); move it away to begin anew, its runs are kept"
        ) from None


def _ask_again(optuna: ModuleType, study: Any) -> None:
    """Queue what a process that is gone was trying; what waits in the queue already stays there."""
    for trial in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
        study.enqueue_trial(trial.params)
        study._storage.set_trial_user_attr(trial._trial_id, "lost", True)
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def _ended(study: Any) -> list[Any]:
    """The trials that came to something; those that were asked again do not count."""
    return [trial for trial in study.trials if trial.state.is_finished() and not trial.user_attrs.get("lost")]


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
