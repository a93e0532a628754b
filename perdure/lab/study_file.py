"""Studies: methods × benchmarks × seeds × values, written down in one file. docs/studies.md tells what it may hold."""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perdure.errors import UnknownName, UsageError, WrongValue
from perdure.lab.spec import RunSpec, spec

T = TypeVar("T")
Scalar = bool | int | float | str
Names = Annotated[list[str], Field(min_length=1)]
Seeds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Choice = Annotated[list[Scalar], Field(min_length=1)]


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


F = TypeVar("F", bound=Form)


class Block(Form):
    """A full grid: every method on every benchmark with every seed and every combination of its values."""

    methods: Names
    benchmarks: Names
    seeds: Seeds
    tasks: Annotated[int, Field(ge=1)] | None = None
    network: str | dict[str, str] | None = None  # one for all, or benchmark → network
    plan: dict[str, Scalar] = {}
    settings: dict[str, Scalar | dict[str, Scalar]] = {}  # for all benchmarks, or benchmark → its own
    outliers: str | Names = ""  # among the training images; one, or each in turn
    values: dict[str, dict[str, Scalar | Choice]] = {}  # method → value → one, or each in turn


class Whole(Form):
    """What concerns a study as a whole."""

    about: str = ""
    probes: list[str] = []
    threads: Annotated[int, Field(ge=1)] = 1
    against: str | None = None


@dataclass(frozen=True)
class Study:
    """A union of grids."""

    name: str
    where: str  # the file, for messages
    about: str
    probes: tuple[str, ...]
    threads: int  # of each run, however many run at once: another number would change the last digits
    against: str | None  # the method that the others are compared with; the first when left out
    blocks: tuple[Block, ...]


TAKES = {
    "methods": "a list of names, see `perdure ls methods`",
    "benchmarks": "a list of names, see `perdure ls benchmarks`",
    "seeds": "a list of whole numbers ≥ 0",
    "tasks": "a whole number ≥ 1",
    "network": "a name, or a table of benchmark = name",
    "plan": "a table of name = value",
    "settings": "a table of name = value, or one for each benchmark",
    "outliers": "KIND:RATE[@TASKS] such as labels:0.2, none, or a list of these",
    "values": "for each method a table of name = value, or name = [value, …]",
    "about": "a line of text",
    "probes": "a list of names, see `perdure ls probes`, each with values in brackets if need be: pgd(steps=50)",
    "threads": "a whole number ≥ 1",
    "against": "the name of a method",
    "block": "tables headed [[block]]",
}


# --- reading ---


def shipped() -> dict[str, str]:
    """The studies that come with perdure, each with a line about it."""
    return {name: _toml(file, str(file)).get("about", "") for name, file in _shipped().items()}


def read(asked: str | Path) -> Study:
    """A shipped study by its name, or one's own by its file; checked as far as names and values need not be known."""
    known = _shipped()
    if str(asked) in known:
        return _study(str(asked), str(asked), _toml(known[str(asked)], str(asked)))
    path = Path(asked)
    if not path.is_file():
        if isinstance(asked, str) and path.name == asked and not path.suffix:
            raise UnknownName("study", asked, known)
        raise WrongValue(f"{path}: no such file; `perdure ls studies` lists those that are shipped")
    return _study(path.stem, str(path), _toml(path, str(path)))


def _shipped() -> dict[str, Traversable]:
    found = (file for file in (files("perdure.lab") / "studies").iterdir() if file.name.endswith(".toml"))
    return {file.name.removesuffix(".toml"): file for file in sorted(found, key=lambda file: file.name)}


def _toml(file: Traversable | Path, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise WrongValue(f"{where}: cannot be read ({error.strerror}); check that you may read it") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise WrongValue(f"{where}: not a TOML file: {_one_line(error)}") from None


def _study(name: str, where: str, content: dict[str, Any]) -> Study:
    own, shared = _parted(where, content)
    tables = content.get("block", [{}])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise WrongValue(f"{where}: block takes {TAKES['block']}")
    whole = _checked(where, Whole, own)
    blocks = []
    for number, table in enumerate(tables, 1):
        place = where if "block" not in content else f"{where}, block {number}"
        for key in table:
            if key not in Block.model_fields:
                raise UnknownName(f"key of {place}", key, Block.model_fields)
        blocks.append(_checked(place, Block, _merged(shared, table)))
    _all_used(where, shared, blocks)
    for number, table in enumerate(tables, 1):
        _all_used(f"{where}, block {number}", table, blocks[number - 1 : number])
    against = whole.against
    if against is not None and not any(against in block.methods for block in blocks):
        raise WrongValue(f"{where}: against={against}, which is not among its methods")
    return Study(name, where, whole.about, tuple(whole.probes), whole.threads, against, tuple(blocks))


def _parted(where: str, content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What concerns the whole, and what all blocks share."""
    known = {**Whole.model_fields, **Block.model_fields, "block": None}
    for key in content:
        if key not in known:
            raise UnknownName(f"key of {where}", key, known)
    own = {key: value for key, value in content.items() if key in Whole.model_fields}
    return own, {key: value for key, value in content.items() if key in Block.model_fields}


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are joined name by name, whatever else a block says replaces what is shared."""
    joined = dict(shared)
    for key, value in own.items():
        both = isinstance(value, dict) and isinstance(joined.get(key), dict)
        joined[key] = _merged(joined[key], value) if both else value
    return joined


def _checked(where: str, form: type[F], content: Mapping[str, Any]) -> F:
    try:
        return form(**content)
    except ValidationError as error:
        wrong = error.errors()[0]
        key = str(wrong["loc"][0])
        if wrong["type"] == "missing":
            raise WrongValue(f"{where}: {key} is missing; it takes {TAKES[key]}") from None
        raise WrongValue(f"{where}: {key}={_one_line(content[key])} is not allowed; {key} takes {TAKES[key]}") from None


def _all_used(where: str, content: Mapping[str, Any], blocks: Sequence[Block]) -> None:
    """Tables for a method or a benchmark that is not in the grid are slips."""
    methods = {name for block in blocks for name in block.methods}
    benchmarks = {name for block in blocks for name in block.benchmarks}
    network, settings = content.get("network"), content.get("settings", {})
    for name in content.get("values", {}):
        if name not in methods:
            raise UnknownName(f"method in {where} that [values.{name}] could be for:", name, methods)
    tables = [name for name, value in settings.items() if isinstance(value, dict)]
    for name in [*tables, *(network if isinstance(network, dict) else ())]:
        if name not in benchmarks:
            raise UnknownName(f"benchmark in {where} that a table could be for:", name, benchmarks)


def _one_line(thing: object) -> str:
    return " ".join(str(thing).split())[:200]


# --- the runs ---


def specs(study: Study, scale: float = 1.0) -> list[RunSpec]:
    """Every run of a study, always in the same order: of each block all of the first seed, then of the next.

    `scale` multiplies the epochs of every plan; at least one is left.
    """
    from perdure.lab.probe_run import probe_spec  # not above: listing studies needs no torch

    if not 0 < scale < float("inf"):
        raise WrongValue(f"scale={scale:g} is not allowed; use a number above 0, such as 0.1")
    for probe in study.probes:
        _in_file(study.where, partial(probe_spec, probe))
    found: dict[str, RunSpec] = {}
    for number, block in enumerate(study.blocks, 1):
        place = study.where if len(study.blocks) == 1 else f"{study.where}, block {number}"
        cells = [_in_file(place, cell) for cell in _cells(block)]
        for seed, cell in product(block.seeds, cells):
            epochs = max(1, round(cell.plan.epochs * scale))
            made = replace(cell, seed=seed, plan=replace(cell.plan, epochs=epochs))
            key = json.dumps(made.plain(), sort_keys=True)
            if key in found:
                raise WrongValue(f"{place}: {made.method} on {made.benchmark} with seed {made.seed} is in it twice")
            found[key] = made
    return list(found.values())


def _cells(block: Block) -> Iterator[Callable[[], RunSpec]]:
    """The runs of a block, whatever their seed."""
    for benchmark, method in product(block.benchmarks, block.methods):
        network = block.network.get(benchmark) if isinstance(block.network, dict) else block.network
        shared = {name: value for name, value in block.settings.items() if not isinstance(value, dict)}
        own = block.settings.get(benchmark, {})
        settings = {**shared, **(own if isinstance(own, dict) else {})}
        outlier_specs = [block.outliers] if isinstance(block.outliers, str) else block.outliers
        for outliers, values in product(outlier_specs, _combinations(block.values.get(method, {}))):
            yield partial(
                spec,
                method,
                benchmark,
                network=network,
                tasks=block.tasks,
                values=values,
                plan=block.plan,
                settings=settings,
                outliers=outliers,
            )


def _combinations(values: Mapping[str, Scalar | list[Scalar]]) -> Iterator[dict[str, Scalar]]:
    """
    >>> list(_combinations({"a": 1, "b": [2, 3]}))
    [{'a': 1, 'b': 2}, {'a': 1, 'b': 3}]
    """
    choices = [value if isinstance(value, list) else [value] for value in values.values()]
    for chosen in product(*choices):
        yield dict(zip(values, chosen, strict=True))


def _in_file(where: str, make: Callable[[], T]) -> T:
    """What is asked wrongly is told with the file it stands in."""
    try:
        return make()
    except UsageError as error:
        raise WrongValue(f"{where}: {error}") from None
