"""Studies: methods × benchmarks × seeds × values, written down in one TOML file; see docs/studies.md."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perdure import registry
from perdure.errors import UnknownName, UsageError, WrongValue
from perdure.files import parse_toml, read_toml
from perdure.lab.spec import RunSpec, plan_options, shipped_files, spec
from perdure.processes import MOST_THREADS

Scalar = bool | int | float | str
Names = Annotated[list[str], Field(min_length=1)]
Seeds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Choice = Annotated[list[Scalar], Field(min_length=1)]
FACT_TABLES = ("datasets", "hyperparameters")  # of lab/fact_tables.py
FIGURES = {  # of report/paper_figures.py, and the probes that they show
    "landscapes": ("landscape",),
    "span": ("landscape",),
    "flatness": ("flatness", "fgsm"),
    "tradeoff": ("pgd",),
    "region": ("over-time",),
    "circle": ("geometry",),
}
PAPER_TABLES = ("table1", "ablation", "fgsm", "phi", "kappa", "seeds", "time")  # of lab/paper.toml


class Form(BaseModel):
    """Descriptions are for error messages."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


F = TypeVar("F", bound=Form)


class Grid(Form):
    """Every method on every benchmark with every seed and every combination of its values."""

    methods: Names = Field(description="a list of names, see `perdure ls methods`")
    benchmarks: Names = Field(description="a list of names, see `perdure ls benchmarks`")
    seeds: Seeds = Field(description="a list of whole numbers ≥ 0")
    tasks: Annotated[int, Field(ge=1)] | None = Field(None, description="a whole number ≥ 1")
    network: str | dict[str, str] | None = Field(None, description="a name, or a table of benchmark = name")
    plan: dict[str, Scalar] = Field({}, description="a table of name = value")
    settings: dict[str, Scalar | dict[str, Scalar]] = Field(
        {}, description="a table of name = value, or one for each benchmark"
    )
    outliers: str | Names = Field("", description="KIND:RATE[@TASKS] such as labels:0.2, none, or a list of these")
    row: str = Field("", description="a line of text: what tables call the runs of this block")
    values: dict[str, dict[str, Scalar | Choice]] = Field(
        {}, description="for each method a table of name = value, or name = [value, …]"
    )


class Header(Form):
    """What concerns a study as a whole."""

    about: str = Field("", description="a line of text")
    probes: list[str] = Field([], description="a list of names, see `perdure ls probes`, such as pgd or pgd(steps=50)")
    threads: int = Field(1, ge=1, le=MOST_THREADS, description=f"a whole number from 1 to {MOST_THREADS}")
    against: str | None = Field(None, description="the name of a method")
    table: str = Field("", description="a table that needs no runs: " + ", ".join(FACT_TABLES))
    figures: list[str] = Field([], description="a list of figures of the paper: " + ", ".join(FIGURES))
    paper: str = Field("", description="a table of the paper, to compare with: " + ", ".join(PAPER_TABLES))


@dataclass(frozen=True)
class Study:
    """A union of grids."""

    name: str
    where: str  # the file, for messages
    about: str
    probes: tuple[str, ...]
    threads: int  # of each run, however many run at once: another number would change the last digits
    against: str | None  # the method that the others are compared with; the first when left out
    paper: str  # the table of the paper that it is compared with, if any
    table: str  # what it is instead of runs, if it is a table of facts
    figures: tuple[str, ...]  # of the paper, drawn from what its probes find
    grids: tuple[Grid, ...]
    folder: Path = Path()  # where files such as my.py:Careful are looked for

    @property
    def methods(self) -> list[str]:
        """Of all its grids, each once."""
        return list(dict.fromkeys(method for grid in self.grids for method in grid.methods))


# --- reading ---


def shipped() -> dict[str, str]:
    """The studies that come with perdure, each with a line about it."""
    return {name: parse_toml(file.read_bytes()).get("about", "") for name, file in shipped_files("studies").items()}


def read(name: str | Path) -> Study:
    """A shipped study by its name, or your own by its file; names and values are checked by `specs`."""
    known = shipped_files("studies")
    if str(name) in known:
        return _study(str(name), str(name), parse_toml(known[str(name)].read_bytes()))
    path = Path(name)
    if not path.exists():
        if isinstance(name, str) and path.name == name and not path.suffix:
            raise UnknownName("study", name, known)
        raise WrongValue(f"{path}: no such file; `perdure ls studies` lists those that are shipped")
    found = _study(path.stem, str(path), _read(path))
    return replace(found, folder=path.parent, probes=tuple(_located(probe, path.parent) for probe in found.probes))


def in_memory(name: str, content: Mapping[str, Any]) -> Study:
    """A study of what a file would hold; what is None is left out. Its name ends in a hash of what it compares."""
    given = {key: value for key, value in content.items() if value is not None}
    text = json.dumps(given, sort_keys=True, default=str)
    return _study(f"{name}-{blake2b(text.encode(), digest_size=4).hexdigest()}", name, given)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except OSError as error:
        raise WrongValue(f"{path}: cannot be read ({error.strerror}); check that you may read it") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise WrongValue(f"{path}: not a TOML file: {_one_line(error)}") from None


def _study(name: str, where: str, content: dict[str, Any]) -> Study:
    _check_keys(where, content, {**Header.model_fields, **Grid.model_fields, "block": None})
    header = _checked(where, Header, {key: value for key, value in content.items() if key in Header.model_fields})
    shared = _canonical(where, {key: value for key, value in content.items() if key in Grid.model_fields})
    tables = content.get("block", [{}])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise WrongValue(f"{where}: block takes tables headed [[block]]")
    grids = []
    for number, table in enumerate(tables, 1):
        place = f"{where}, block {number}" if "block" in content else where
        _check_keys(place, table, Grid.model_fields)
        grids.append(_checked(place, Grid, _merged(shared, _canonical(place, table))))
        _check_tables_used(place, table, grids[-1:])
    _check_tables_used(where, shared, grids)
    if header.against is not None and not any(header.against in grid.methods for grid in grids):
        raise WrongValue(f"{where}: against={header.against}, which is not among its methods")
    if header.paper and header.paper not in PAPER_TABLES:
        raise UnknownName(f"table of the paper, in {where}:", header.paper, PAPER_TABLES)
    if header.table and header.table not in FACT_TABLES:
        raise UnknownName(f"table without runs, in {where}:", header.table, FACT_TABLES)
    _check_figures(where, header, grids)
    own = (header.about, tuple(header.probes), header.threads, header.against, header.paper, header.table)
    return Study(name, where, *own, tuple(header.figures), tuple(grids))


def _check_figures(where: str, header: Header, grids: Sequence[Grid]) -> None:
    """A figure shows runs of one benchmark, and what probes of the study find."""
    asked = {probe.partition("(")[0].strip() for probe in header.probes}
    for figure in header.figures:
        if figure not in FIGURES:
            raise UnknownName(f"figure of the paper, in {where}:", figure, FIGURES)
        for probe in FIGURES[figure]:
            if probe not in asked:
                raise WrongValue(f"{where}: figure {figure} shows the probe {probe}, which is not among its probes")
    if header.figures and len({name for grid in grids for name in grid.benchmarks}) > 1:
        raise WrongValue(f"{where}: a figure shows runs of one benchmark; make a study for each")


def _check_keys(where: str, content: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for key in content:
        if key not in known:
            raise UnknownName(f"key of {where}", key, known)


def _canonical(where: str, content: dict[str, Any]) -> dict[str, Any]:
    """With the plan's own names, so that a block's `rate` replaces an `lr` that all share."""
    if not isinstance(content.get("plan"), dict):
        return content
    with _naming(where):
        return {**content, "plan": plan_options(content["plan"])}


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
        key = str(error.errors()[0]["loc"][0])
        wrong = f"{key}={_one_line(content[key])} is not allowed" if key in content else f"{key} is missing"
        raise WrongValue(f"{where}: {wrong}; {key} takes {form.model_fields[key].description}") from None


def _check_tables_used(where: str, content: Mapping[str, Any], grids: Sequence[Grid]) -> None:
    """Tables for a method or a benchmark that is not in the study are mistakes."""
    methods = {name for grid in grids for name in grid.methods}
    benchmarks = {name for grid in grids for name in grid.benchmarks}
    network, settings = content.get("network"), content.get("settings", {})
    for name in content.get("values", {}):
        if name not in methods:
            raise UnknownName(f"method in [values.{name}] of {where}:", name, methods)
    tables = [name for name, value in settings.items() if isinstance(value, dict)]
    for name in [*tables, *(network if isinstance(network, dict) else ())]:
        if name not in benchmarks:
            raise UnknownName(f"benchmark in a table of {where}:", name, benchmarks)


def _one_line(thing: object) -> str:
    return " ".join(str(thing).split())[:200]


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Errors name the file they are in."""
    try:
        yield
    except UsageError as error:
        raise WrongValue(f"{where}: {error}") from None


# --- the runs ---


def specs(study: Study, scale: float = 1.0) -> list[RunSpec]:
    """Every run of a study, always in the same order: of each block all of the first seed, then of the next.

    `scale` multiplies the epochs of every plan; at least one is left.
    """
    return [run for _, run in rows(study, scale)]


def rows(study: Study, scale: float = 1.0) -> list[tuple[str, RunSpec]]:
    """The same, each with what tables call it, where the study has a name for it."""
    if not 0 < scale < float("inf"):
        raise WrongValue(f"scale={scale:g} is not allowed; use a number above 0, such as 0.1")
    with _naming(study.where):
        probe_keys(study)
    found: dict[str, tuple[str, RunSpec]] = {}
    if study.table:
        return []
    for number, grid in enumerate(study.grids, 1):
        place = study.where if len(study.grids) == 1 else f"{study.where}, block {number}"
        with _naming(place):
            cells = list(_cells(grid, study.folder))
        for seed, cell in product(grid.seeds, cells):
            epochs = max(1, round(cell.plan.epochs * scale))
            run = replace(cell, seed=seed, plan=cell.plan.lasting(epochs))
            key = json.dumps(run.plain(), sort_keys=True)
            if key in found:
                raise WrongValue(f"{place}: {run.method} on {run.benchmark} with seed {run.seed} is in it twice")
            found[key] = grid.row, run
    return list(found.values())


def _located(name: str, folder: Path) -> str:
    """Files of the user's own lie beside the study, unless they were found before; a probe may have values."""
    word, bracket, values = name.partition("(")
    known = any(word in kind for kind in registry.KINDS)
    if known or not registry.OWN.fullmatch(word):
        return name
    return f"{(folder / word).absolute()}{bracket}{values}"


def _cells(grid: Grid, folder: Path) -> Iterator[RunSpec]:
    """The runs of a grid, with one seed."""
    outliers = [grid.outliers] if isinstance(grid.outliers, str) else grid.outliers
    for benchmark, method in product(grid.benchmarks, grid.methods):
        own = grid.settings.get(benchmark, {})
        settings = {name: value for name, value in grid.settings.items() if not isinstance(value, dict)}
        lists = {
            name: value if isinstance(value, list) else [value] for name, value in grid.values.get(method, {}).items()
        }
        network = grid.network.get(benchmark) if isinstance(grid.network, dict) else grid.network
        for contamination, chosen in product(outliers, product(*lists.values())):
            yield spec(
                _located(method, folder),
                _located(benchmark, folder),
                network=None if network is None else _located(network, folder),
                tasks=grid.tasks,
                values=dict(zip(lists, chosen, strict=True)),
                plan=grid.plan,
                settings={**settings, **(own if isinstance(own, dict) else {})},
                outliers=contamination,
            )


def probe_keys(study: Study) -> list[str]:
    """Under which names the figures of its probes are kept."""
    from perdure.lab.probe_run import probe_spec  # not above: listing studies needs no torch

    return [probe_spec(probe).key for probe in study.probes]
