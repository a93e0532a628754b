"""What exactly is to be run: names, values and seed, with every default written out."""

import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Literal, Self

from perdure import registry
from perdure.errors import UnknownName, WrongValue, short
from perdure.files import parse_toml
from perdure.lab.outlier_spec import outlier_specs
from perdure.schema import Value, checked, meant, values_of
from perdure.train.plan import ADDED, Plan

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
UNATTACKED = {"attack": None, "attack_steps": 1, "attack_guard": True}  # of all methods, before there were such values
ATTACKING = ("pat",)  # methods that came with them
UNPERTURBED = {"noise": None}  # of all methods, before there was noise
REVISED = ("ewc", "owm")  # methods with other numbers since, but only where the validation loss decides


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
    return {name: parse_toml(file.read_bytes()) for name, file in shipped_files("presets").items()}


def preset(benchmark: str, method: str, variant: str = "") -> Preset:
    """The preset of a method on a benchmark; what no preset names keeps its default. A variant may have values of its
    own (`[methods.rcl.paper]`)."""
    table = presets().get(benchmark, {"network": ["resnet18", "default"]})
    own = table.get("methods", {}).get(method, {})
    plan = {**table.get("plan", {}), **own.get("plan", {})}
    values = {name: pair for name, pair in own.items() if name != "network" and isinstance(pair, list)}
    return Preset(
        network=tuple(own.get("network", table["network"])),
        plan={name: tuple(pair) for name, pair in plan.items()},
        values={name: tuple(pair) for name, pair in {**values, **own.get(variant, {})}.items()},
    )


def variants(benchmark: str, method: str) -> list[str]:
    """The variants of a method for which a preset has values of their own."""
    own = presets().get(benchmark, {}).get("methods", {}).get(method, {})
    return [name for name, inner in own.items() if name != "plan" and isinstance(inner, dict)]


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
    code: dict[str, dict[str, str]] = field(default_factory=dict)  # of the user's own: kind → where and checksum

    def plain(self) -> dict[str, Any]:
        """As data; what a run does without is left out, so that older runs keep their names."""
        content = {**asdict(self), "plan": self.plan.plain()}
        for part, before in _before(content).items():
            content[part] = {name: v for name, v in content[part].items() if (name, v) not in before.items()}
        content["format"] = _format(self.method, content["plan"])
        return {name: value for name, value in content.items() if value or name not in ("outliers", "code")}

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Self:
        """Back from `plain`, whose tuples JSON makes lists of."""
        if content["format"] != (known := _format(content["method"], content["plan"])):
            raise WrongValue(f"format {content['format']}, but this perdure has {known}; run it again")
        whole = complete(content)
        given = {own.name: whole[own.name] for own in fields(cls) if own.name in whole}
        options = plan_options(_tuples(content["plan"]))  # names that are not known are refused
        values, plan = _tuples(whole["values"]), Plan(**options)
        return cls(**{**given, "values": values, "plan": plan})

    def digest(self, data: str = "") -> str:
        """Sixteen letters that change with whatever changes numbers; `data` is the stream's fingerprint.

        Images and code that lie in another place are the same, so the place is left out.
        """
        content = {**self.plain(), "benchmark": split_name(self.benchmark)[0], "data": data}
        if self.code:
            content["code"] = {kind: code["checksum"] for kind, code in self.code.items()}
        text = json.dumps(content, sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def is_of(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is of this run: somebody may have exchanged two directories."""
        try:
            return self.from_plain(record).digest() == self.digest()
        except (WrongValue, UnknownName, KeyError, TypeError):
            return False

    @property
    def data_key(self) -> str:
        """Runs with one key see the same data, but for outliers."""
        code = self.code.get("benchmark", {}).get("checksum")
        return json.dumps([self.benchmark, self.seed, self.tasks, self.settings, code], sort_keys=True)

    @property
    def benchmark_dir(self) -> str:
        """The benchmark's name as a folder can bear it."""
        kind, place = split_name(self.benchmark)
        return f"{kind}-{Path(place).resolve().name}" if place else as_folder(kind)

    @property
    def method_dir(self) -> str:
        """The method's name as a folder can bear it."""
        return as_folder(self.method)

    def restore_code(self) -> None:
        """Make the user's own things known that it names, if their files may be run and are the same."""
        for what, code in self.code.items():
            kind, _, name = what.partition(" ")
            OWN_KINDS[kind].restore(name or getattr(self, kind), code)


OWN_KINDS = {
    "method": registry.methods,
    "network": registry.networks,
    "benchmark": registry.benchmarks,
    "augmentation": registry.augmentations,  # there may be several, so each has its name in `code`
}


def as_folder(name: str) -> str:
    """A name as a folder can bear it: of `my.py:Careful` the last part."""
    return name.rpartition(":")[2]


def _format(method: str, plan: Mapping[str, Any]) -> int:
    """Of a specification. Where EWC's penalty counts in the validation loss, and OWM's α follows the drops of the rate,
    older runs have other numbers."""
    revised = method in REVISED and (plan.get("schedule") == "plateau" or plan.get("keep") == "best")
    return FORMAT + 1 if revised else FORMAT


def _before(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What runs had before there was a value or a setting for it: those that came after format 4."""
    by_method = {
        "trgp": {"learn_norms": content["values"].get("variant") == "released"},
        "er": {"batches": "mixed"},
        "rcl": {"eq8": False},
    }
    by_benchmark = {"cifar100": {"order": "index"}}
    return {
        "values": {
            **by_method.get(content["method"], {}),
            **({} if content["method"] in ATTACKING else UNATTACKED),
            **UNPERTURBED,
        },
        "settings": by_benchmark.get(content["benchmark"], {}),
    }


def complete(content: Mapping[str, Any]) -> dict[str, Any]:
    """What `plain` made, or a record, with what was left out; a method of the user's own may not take what all of
    perdure's do."""
    before = _before(content)
    if not registry.methods.ships(content["method"]):
        before["values"] = {}
    before["plan"] = {option.name: option.default for option in fields(Plan) if option.name in ADDED}
    return {**content, **{part: {**known, **content[part]} for part, known in before.items()}}


def usual(content: Mapping[str, Any]) -> RunSpec:
    """A run like this one with nothing set; where it has another variant, with the values that a preset has for it."""
    asked = {"method": content["method"], "benchmark": content["benchmark"], "tasks": content["tasks"]}
    plain, variant = spec(**asked), content["values"].get("variant")
    if variant == plain.values.get("variant"):
        return plain
    own = spec(**asked, values={"variant": variant})
    return replace(own, values={**own.values, "variant": plain.values["variant"]})


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}


def spec(
    method: str | type,
    benchmark: str | Callable[..., Any],
    *,
    seed: int = 1,
    network: str | type | None = None,
    tasks: int | None = None,
    values: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    judged_on: Judged = "test",
    outliers: str = "",
) -> RunSpec:
    """A full specification: what is given, else the preset's value, else the default.

    Names may be those of files (`my.py:Careful`), and classes and functions of yours may stand for names.
    """
    check_seed(seed)
    method, benchmark = registry.methods.name(method), registry.benchmarks.name(benchmark)
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
    chosen = proposed.network[0] if network is None else registry.networks.name(network)
    registry.networks.find(chosen)
    own = values_of(maker)
    defaults = {name: value.default for name, value in own.items()}
    chosen_values = {meant(name, own): value for name, value in (values or {}).items()}
    if len(chosen_values) < len(values or {}):
        raise WrongValue(f"method {method}: a value is given twice, by its name and by its symbol; give it once")
    if "variant" in chosen_values:
        proposed = preset(kind, method, str(chosen_values["variant"]))
    given = {**{name: pair[0] for name, pair in proposed.values.items()}, **chosen_values}
    if required := [name for name, value in own.items() if value.default is Parameter.empty and name not in given]:
        raise WrongValue(f"method {method}: {required[0]} has no default; set it, or give it one")
    planned = {**{name: pair[0] for name, pair in proposed.plan.items()}, **plan_options(plan or {})}
    made = Plan(**_augmented(planned))
    named = {"method": method, "network": chosen, "benchmark": benchmark}
    for name in named.values():
        if any(unicodedata.category(letter) == "Cs" for letter in name):
            raise WrongValue(f"{name!a}: a name that is not UTF-8, which no record can hold; rename the file")
    named |= {f"augmentation {name}": name for name in made.augmentations()}
    return RunSpec(
        method=method,
        benchmark=benchmark,
        network=chosen,
        seed=seed,
        tasks=tasks,
        values={**defaults, **checked(f"method {method}", maker, given)},
        plan=made,
        settings=_settings(kind, opener, settings or {}),
        judged_on=judged_on,
        outliers="+".join(map(str, outlier_specs(outliers))),
        code={what: code for what, name in named.items() if (code := OWN_KINDS[what.split()[0]].own(name)) is not None},
    )


def check_seed(seed: int) -> None:
    """Whether a run can have it."""
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise WrongValue(f"seed={short(seed)} is not allowed; use a whole number ≥ 0")


def _augmented(plan: dict[str, Any]) -> dict[str, Any]:
    """With the short names of augmentations that are functions or in files of the user's own."""
    given = plan.get("augment")
    if given is None or given == "none":
        return plan
    parts = [part.strip() for part in given.split("+")] if isinstance(given, str) else [given]
    return {**plan, "augment": "+".join(registry.augmentations.name(part) for part in parts)}


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
    if registry.OWN.fullmatch(benchmark):  # a function in a file
        return benchmark, ""
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
            raise WrongValue(f"expected NAME=VALUE, got {short(text)!r}")
        found[name] = value
    return found
