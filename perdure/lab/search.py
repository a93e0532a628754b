"""Search for values that do well on validation data; test data are never looked at.

Optuna proposes, the executors of studies do the runs, the store keeps them. A search has a file of its own in the store
named by the hash of what it searches, so that the same command resumes it.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin

from perdure import registry
from perdure.errors import Interrupted, PerdureError, UnknownName, WrongValue, install_hint, short
from perdure.lab.execute.job import Event, Executor, Job
from perdure.lab.executors import make_executor, stop_on_signal
from perdure.lab.spec import PLAN_ALIASES, RunSpec, check_seed, plan_option, plan_options, spec
from perdure.lab.store import lock_run
from perdure.schema import Value, meant, values_of
from perdure.seeding import derive
from perdure.train.plan import Plan

EXAMPLE = "mix_weight=0.01..1:log, samples=50..200, ua_in=both,descent or plan.rate=0.01..0.1:log"
ON_RAY = 8  # proposals a round where nobody knows how many runs fit


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
    fixed: dict[str, Any] = field(default_factory=dict)  # further arguments of `spec`

    def digest(self) -> str:
        ranges = [vars(r) for r in self.ranges]
        text = json.dumps([self.base.plain(), ranges, self.seeds], sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def file(self, out: Path) -> Path:
        return out / "searches" / f"{self.base.method_dir}-{self.base.benchmark_dir}-{self.digest()}.db"

    def specs(self, chosen: Mapping[str, Any]) -> list[RunSpec]:
        """The runs that try these values, one for each seed, judged on validation data."""
        values = {name: value for name, value in chosen.items() if not name.startswith("plan.")}
        plan = {name.removeprefix("plan."): value for name, value in chosen.items() if name not in values}
        given = {**self.fixed, "values": {**self.fixed["values"], **values}, "plan": {**self.fixed["plan"], **plan}}
        first = spec(self.base.method, self.base.benchmark, judged_on="valid", **given)
        return [replace(first, seed=seed) for seed in self.seeds]


@dataclass(frozen=True)
class Trial:
    """What a choice of values came to."""

    number: int
    values: dict[str, Any]
    score: float | None  # mean over seeds of ACC on validation data, percent; None if a run failed
    error: str = ""


@dataclass(frozen=True)
class SearchResult:
    """All trials of a search so far, the best first."""

    search: Search
    trials: list[Trial]

    @property
    def best(self) -> Trial | None:
        return self.trials[0] if self.trials and self.trials[0].score is not None else None

    def plain(self) -> dict[str, Any]:
        return {"search": self.search.digest(), "trials": [asdict(trial) for trial in self.trials]}


def search(
    method: str | type,
    benchmark: str | Callable[..., Any],
    space: Sequence[str],
    *,
    trials: int = 20,
    seeds: Sequence[int] = (1,),
    values: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    net: str | type | None = None,
    tasks: int | None = None,
    out: str | Path = "runs",
    root: str | Path | None = None,
    jobs: int | None = None,
    on: str = "local",
    threads: int = 1,
    at_once: int | None = None,
    device: str = "cpu",
    callback: Callable[[Trial | Event], None] = lambda _news: None,
) -> SearchResult:
    """Try values that Optuna proposes, scored on validation data alone: what `perdure search` does.

    - `space` says what may vary, e.g. ["lambda=0.01..1:log", "samples=50..200", "plan.lr=0.01,0.1"]; `values`, `plan`
      and `settings` are as in `perdure.run` for what does not.
    - There will be so many `trials` in all, those of earlier calls included; fewer where `space` has lists alone and
      every combination was tried. The score of each is the mean over `seeds`. Every round has `at_once` proposals, as
      many as `jobs` when left out, and waits for all their runs.
    - `out`, `root`, `jobs`, `on`, `threads` and `device` are as in `perdure.study`.
    - `callback` is called with every event of a run and with every trial that ends.
    """
    fixed = {"network": net, "tasks": tasks, "values": values, "plan": plan, "settings": settings}
    wanted = make_search(method, benchmark, space, seeds, **fixed)
    executor, parallel = make_executor(on, jobs=jobs, threads=threads, device=device)
    job = partial(Job, out=str(out), root=None if root is None else str(root), device=device)
    optuna, path = _optuna(), wanted.file(Path(out))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PerdureError(f"cannot write {path.parent}: {error.strerror}; choose another place with --out") from None
    with lock_run(Path(out), path), stop_on_signal(executor) as signals:  # nobody else may try the same meanwhile
        study = _open(path, optuna.create_study, direction="maximize", load_if_exists=True)
        # Another seed each time, or a search that is resumed would draw once more what it drew at first.
        study.sampler = optuna.samplers.TPESampler(seed=derive(wanted.seeds[0], "search", len(study.trials)) >> 32)
        _retry_lost(optuna, study)
        left, width = trials - len(_ended(study)), at_once or parallel or ON_RAY
        if all(r.choices for r in wanted.ranges):
            left = min(left, _queue_grid(optuna, study, wanted))
        try:
            while left > 0:
                asked = [study.ask(_distributions(optuna, wanted)) for _ in range(min(width, left))]
                for trial, (score, why) in zip(asked, _score(wanted, asked, executor, job, callback), strict=True):
                    if score is None:
                        trial.set_user_attr("error", why)
                        study.tell(trial, state=optuna.trial.TrialState.FAIL)
                    else:
                        study.tell(trial, score)
                    callback(Trial(trial.number, dict(trial.params), score, why))
                left -= len(asked)
        finally:
            if signals:
                raise Interrupted("interrupted; completed work is saved, run the same command to resume", signals[0])
    return SearchResult(wanted, read_trials(wanted, Path(out)))


# --- what is searched ---


def make_search(
    method: str | type,
    benchmark: str | Callable[..., Any],
    space: Sequence[str],
    seeds: Sequence[int],
    **fixed: Any,
) -> Search:
    """A search from what was asked for, checked before anything runs."""
    fixed = {**fixed, "values": fixed.get("values") or {}, "plan": plan_options(fixed.get("plan") or {})}
    base = spec(method, benchmark, judged_on="valid", **fixed)
    method = base.method
    own = values_of(registry.methods.load(method))
    fixed["values"] = {meant(name, own): value for name, value in fixed["values"].items()}
    if not space:
        raise WrongValue(f"nothing to search; say what may vary, e.g. --space {EXAMPLE}")
    ranges = tuple(parse_range(text, method) for text in space)
    if len({r.name for r in ranges}) < len(ranges):
        raise WrongValue("a value is named twice in the space; say each once")
    if not seeds or len(set(seeds)) < len(seeds):
        raise WrongValue(f"seeds {', '.join(map(str, seeds)) or 'none'}: name at least one, and each once")
    for seed in seeds:
        check_seed(seed)
    wanted = Search(base, ranges, tuple(seeds), fixed)
    for r in ranges:
        for value in r.choices or (r.low, r.high):
            wanted.specs({r.name: value})
    return wanted


def parse_range(text: str, method: str) -> Range:
    """A range from a text such as mix_weight=0.01..1:log; Greek names stand for the paper's symbols.

    >>> parse_range("lambda=0.01..1:log", "rcl")
    Range(name='mix_weight', low=0.01, high=1.0, log=True, whole=False, choices=())
    >>> parse_range("plan.lr=0.01,0.1", "rcl")
    Range(name='plan.rate', low=0.0, high=0.0, log=False, whole=False, choices=('0.01', '0.1'))
    """
    name, _, range_text = (part.strip() for part in text.partition("="))
    value = _value(name, method)
    span = re.fullmatch(r"([^.,:]+(?:\.[^.,:]+)?)\.\.([^,:]+)(:log)?", range_text)
    if span is None:
        choices = tuple(filter(None, (choice.strip() for choice in range_text.split(","))))
        if len(choices) < 2:
            raise WrongValue(
                f"{short(text)!r} is no range; write low..high, low..high:log, or choices with commas: {EXAMPLE}"
            )
        return Range(value.name, choices=choices)
    try:
        low, high = float(span[1]), float(span[2])
    except ValueError:
        raise WrongValue(f"{short(text)!r}: both ends of a range are numbers, e.g. {EXAMPLE}") from None
    if not low < high or (span[3] and low <= 0):
        raise WrongValue(f"{short(text)!r}: the first end is the lower one, and above 0 for :log")
    return Range(value.name, low, high, log=bool(span[3]), whole=_is_whole(value.type))


def _value(name: str, method: str) -> Value:
    """The value that is meant: by its name, by the paper's symbol, or plan.NAME."""
    own = values_of(registry.methods.load(method))
    if name.startswith("plan.") or (name in PLAN_ALIASES and name not in own):
        option = plan_option(name.removeprefix("plan."))
        return replace(values_of(Plan)[option], name=f"plan.{option}")
    if (found := meant(name, own)) not in own:
        raise UnknownName(
            f"value of {method} to search", name, [*own, *(f"plan.{option}" for option in values_of(Plan))]
        )
    return own[found]


def _is_whole(kind: Any) -> bool:
    return kind is int or (get_origin(kind) is not None and any(_is_whole(part) for part in get_args(kind)[:1]))


# --- trials ---


def read_trials(search: Search, out: Path) -> list[Trial]:
    """All trials of a search so far, the best first; nothing is changed."""
    optuna, path = _optuna(), search.file(out)
    if not path.exists():
        return []
    found = [
        Trial(trial.number, dict(trial.params), trial.value, trial.user_attrs.get("error", ""))
        for trial in _ended(_open(path, optuna.load_study))
    ]
    return sorted(found, key=lambda trial: (trial.score is None, -(trial.score or 0.0)))


def _score(
    search: Search,
    asked: Sequence[Any],
    executor: Executor,
    job: Callable[[RunSpec], Job],
    callback: Callable[[Trial | Event], None],
) -> list[tuple[float | None, str]]:
    """The score or the error of each proposal. A run that several proposals share is done once."""
    runs: dict[str, tuple[RunSpec, list[int]]] = {}
    for index, trial in enumerate(asked):
        for one in search.specs(trial.params):
            runs.setdefault(json.dumps(one.plain(), sort_keys=True), (one, []))[1].append(index)
    owners = [indices for _, indices in runs.values()]
    scores: list[list[float]] = [[] for _ in asked]
    errors: dict[int, str] = {}
    for event in executor.do([job(one) for one, _ in runs.values()]):
        callback(event)
        if event.kind == "stopped":
            raise PerdureError("interrupted; run the same command to resume the search")
        for index in owners[event.job]:
            if event.kind == "done":
                scores[index].append(event.facts["record"]["acc"])
            elif event.kind == "failed":
                errors[index] = event.facts["error"]
    return [(None, errors[i]) if i in errors else (sum(found) / len(found), "") for i, found in enumerate(scores)]


# --- Optuna ---


def _open(path: Path, opener: Callable[..., Any], **how: Any) -> Any:
    """The study in a file, opened by one of Optuna's functions."""
    try:
        return opener(storage=f"sqlite:///{path}", study_name="search", **how)
    except Exception as error:  # whatever a damaged or foreign file makes of it
        raise PerdureError(
            f"{path}: not a readable search ({type(error).__name__}); move it away to begin anew, its runs are kept"
        ) from None


def _retry_lost(optuna: ModuleType, study: Any) -> None:
    """Queue again what a process that is gone was trying; a trial that failed by itself has its error."""
    for trial in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
        if "error" not in trial.user_attrs:
            study.enqueue_trial(trial.params)
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def _queue_grid(optuna: ModuleType, study: Any, search: Search) -> int:
    """Where all ranges are lists, queue every combination that was not tried; how many there are. A second try of one
    would come to the same."""
    names = [r.name for r in search.ranges]
    for values in product(*(r.choices for r in search.ranges)):
        study.enqueue_trial(dict(zip(names, values, strict=True)), skip_if_exists=True)
    return len(study.get_trials(states=[optuna.trial.TrialState.WAITING]))


def _ended(study: Any) -> list[Any]:
    """The trials that have a score or an error; those that were lost have neither."""
    return [trial for trial in study.trials if trial.value is not None or "error" in trial.user_attrs]


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


def _optuna() -> ModuleType:
    try:
        import optuna
    except ImportError:
        raise PerdureError(f"a search needs optuna: {install_hint('search')}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
