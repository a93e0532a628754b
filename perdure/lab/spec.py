"""What exactly is to be run: names, values and seed, with every default written out."""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable
from inspect import signature
from pathlib import Path
from typing import Any, Literal, Self

from perdure import registry
from perdure.errors import UnknownName, WrongValue
from perdure.lab.outlier_spec import outlier_specs
from perdure.schema import Value, checked, meant, values_of
from perdure.train.plan import Plan

Judged = Literal["test", "valid"]
PLAN_ALIASES = {
    "lr": "rate",
    "learning_rate": "rate",
    "bs": "batch",
    "batch_size": "batch",
    "epoch": "epochs",
    "optim": "optimizer",
    "opt": "optimizer",
    "wd": "weight_decay",
    "sched": "schedule",
    "scheduler": "schedule",
}
FORMAT = 4  # rises when the same spec would give other numbers


@dataclass(frozen=True)
class Preset:
    """What a benchmark proposes for a method: each value with where it comes from."""

    network: tuple[str, str]
    plan: dict[str, tuple[Any, str]]
    values: dict[str, tuple[Any, str]]


def shipped_files(folder: str) -> dict[str, Traversable]:
    """The TOML files in a folder of this package, by name."""
    found = sorted((files("perdure.lab") / folder).iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file for file in found if file.name.endswith(".toml")}


@cache
def presets() -> dict[str, dict[str, Any]]:
    """Benchmark → its preset file."""
    return {name: tomllib.loads(file.read_text("utf-8")) for name, file in shipped_files("presets").items()}


def preset(benchmark: str, method: str) -> Preset:
    """The preset of a method on a benchmark; what no preset names keeps its default."""
    table = presets().get(benchmark, {"network": ["resnet18", "default"]})
    own = table.get("methods", {}).get(method, {})
    plan = {**table.get("plan", {}), **own.get("plan", {})}
    return Preset(
        network=tuple(table["network"]),
        plan={name: tuple(pair) for name, pair in plan.items()},
        values={name: tuple(pair) for name, pair in own.items() if name != "plan"},
    )


@dataclass(frozen=True)
class RunSpec:
    """One method, one benchmark, one seed."""

    method: str
    benchmark: str
    network: str
    seed: int
    tasks: int | None
    values: dict[str, Any]
    plan: Plan
    settings: dict[str, Any]  # of the benchmark
    judged_on: Judged = "test"  # which images fill the accuracy matrix
    outliers: str = ""  # among the training images, as `lab.outlier_spec` reads them

    def plain(self) -> dict[str, Any]:
        """As data; a stream without outliers is not said to have none, so that older runs keep their names."""
        content = {**asdict(self), "plan": self.plan.plain(), "format": FORMAT}
        return content if self.outliers else {name: value for name, value in content.items() if name != "outliers"}

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Self:
        """Back from `plain`, whose tuples JSON makes lists of."""
        if content["format"] != FORMAT:
            raise WrongValue(f"format {content['format']}, but this perdure has {FORMAT}; run it again")
        given = {field.name: content[field.name] for field in fields(cls) if field.name in content}
        values, plan = _tuples(content["values"]), Plan(**_tuples(content["plan"]))
        return cls(**{**given, "values": values, "plan": plan})

    def digest(self, data: str = "") -> str:
        """Sixteen letters that change with whatever changes numbers; `data` is the stream's fingerprint.

        Images that lie in another place are the same images, so the place is left out.
        """
        content = {**self.plain(), "benchmark": split_name(self.benchmark)[0], "data": data}
        text = json.dumps(content, sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def data_key(self) -> str:
        """Runs with one key see the same data, but for outliers."""
        return json.dumps([self.benchmark, self.seed, self.tasks, self.settings], sort_keys=True)

    @property
    def benchmark_dir(self) -> str:
        """The benchmark's name as a folder can bear it."""
        kind, place = split_name(self.benchmark)
        return f"{kind}-{Path(place).resolve().name}" if place else kind


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}


def spec(
    method: str,
    benchmark: str,
    *,
    seed: int = 1,
    network: str | None = None,
    tasks: int | None = None,
    values: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    judged_on: Judged = "test",
    outliers: str = "",
) -> RunSpec:
    """A full specification: what is given, else the preset's value, else the default."""
    maker = registry.methods.load(method)
    kind, place = split_name(benchmark)
    opener = registry.benchmarks.load(kind)
    if ("path" in signature(opener).parameters) != bool(place):
        raise WrongValue(
            f"{benchmark}: {kind} reads no folder of yours; leave out {place!r}"
            if place
            else f"{kind}: say which folder, as {kind}:PATH"
        )
    proposed = preset(kind, method)
    chosen = network or proposed.network[0]
    registry.networks.find(chosen)
    own = values_of(maker)
    defaults = {name: value.default for name, value in own.items()}
    chosen_values = {meant(name, own): value for name, value in (values or {}).items()}
    if len(chosen_values) < len(values or {}):
        raise WrongValue(f"method {method}: a value is given twice, by its name and by its symbol; give it once")
    given = {**{name: pair[0] for name, pair in proposed.values.items()}, **chosen_values}
    planned = {**{name: pair[0] for name, pair in proposed.plan.items()}, **plan_options(plan or {})}
    return RunSpec(
        method=method,
        benchmark=benchmark,
        network=chosen,
        seed=seed,
        tasks=tasks,
        values={**defaults, **checked(f"method {method}", maker, given)},
        plan=Plan(**checked("the plan", Plan, planned)),
        settings=_settings(kind, opener, settings or {}),
        judged_on=judged_on,
        outliers="+".join(map(str, outlier_specs(outliers))),
    )


def plan_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Plan options by the names of `Plan`, where habitual ones such as lr and bs were given.

    >>> plan_options({"lr": 0.1, "bs": 32})
    {'rate': 0.1, 'batch': 32}
    """
    options = {plan_option(name): value for name, value in given.items()}
    if len(options) < len(given):
        raise WrongValue(f"the plan has one option under two names ({', '.join(given)}); give it once")
    return options


def plan_option(name: str) -> str:
    known = values_of(Plan)
    found = meant(PLAN_ALIASES.get(name, name), known)
    if found not in known:
        raise UnknownName("plan option", name, [*known, *PLAN_ALIASES])
    return found


def split_name(benchmark: str) -> tuple[str, str]:
    """The benchmark's kind, and the place of one's own data where it has one.

    >>> split_name("folder:photos/2024"), split_name("six")
    (('folder', 'photos/2024'), ('six', ''))
    """
    kind, _, place = benchmark.partition(":")
    return kind, place


def settings_of(opener: Callable[..., Any]) -> dict[str, Value]:
    """A benchmark's own values: those of its signature that are not asked for elsewhere."""
    return {name: value for name, value in values_of(opener).items() if name not in ("seed", "tasks", "root", "path")}


def _settings(kind: str, opener: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    own = settings_of(opener)
    for name in given:
        if name not in own:
            raise UnknownName(f"setting of {kind}", name, own)
    return {**{name: value.default for name, value in own.items()}, **checked(f"benchmark {kind}", opener, given)}


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """["a=1", "b=x"] → {"a": "1", "b": "x"}."""
    found = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals):
            raise WrongValue(f"expected NAME=VALUE, got {text!r}")
        found[name] = value
    return found
