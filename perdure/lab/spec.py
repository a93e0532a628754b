"""What exactly is to be run: names, values and seed, with every default written out."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Any

from perdure import registry
from perdure.errors import UnknownName
from perdure.schema import checked, values_of
from perdure.train.fit import Plan

FORMAT = 1  # rises when the same spec would give other numbers


@dataclass(frozen=True)
class Preset:
    """What a benchmark proposes for a method: each value with where it comes from."""

    network: tuple[str, str]
    plan: dict[str, tuple[Any, str]]
    values: dict[str, tuple[Any, str]]


@cache
def presets() -> dict[str, dict[str, Any]]:
    """Benchmark → its preset file."""
    folder = files("perdure.lab") / "presets"
    return {
        file.name.removesuffix(".toml"): tomllib.loads(file.read_text("utf-8"))
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".toml")
    }


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

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "format": FORMAT}

    def digest(self) -> str:
        """Sixteen letters that change with whatever changes numbers."""
        text = json.dumps(self.plain(), sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()


def spec(
    method: str,
    benchmark: str,
    *,
    seed: int = 1,
    network: str | None = None,
    tasks: int | None = None,
    values: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
) -> RunSpec:
    """Names and wishes to a full specification: the wish, else the preset's value, else the default."""
    maker = registry.methods.load(method)
    registry.benchmarks.find(benchmark)
    proposed = preset(benchmark, method)
    chosen = network or proposed.network[0]
    registry.networks.find(chosen)
    defaults = {name: value.default for name, value in values_of(maker).items()}
    given = {**{name: pair[0] for name, pair in proposed.values.items()}, **(values or {})}
    planned = {**{name: pair[0] for name, pair in proposed.plan.items()}, **(plan or {})}
    return RunSpec(
        method=method,
        benchmark=benchmark,
        network=chosen,
        seed=seed,
        tasks=tasks,
        values={**defaults, **checked(f"method {method}", maker, given)},
        plan=Plan(**checked("the plan", Plan, planned)),
    )


def assignments(texts: list[str]) -> dict[str, str]:
    """["a=1", "b=x"] → {"a": "1", "b": "x"}."""
    pairs = [text.partition("=") for text in texts]
    for text, (name, equals, _) in zip(texts, pairs, strict=True):
        if not (name and equals):
            raise UnknownName("assignment", text, ["name=value"])
    return {name.strip(): value.strip() for name, _, value in pairs}
