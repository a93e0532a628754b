"""Presets have the values of the papers, logs and released code that they name, and beyond those what we chose."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from perdure import registry
from perdure.errors import WrongValue
from perdure.lab.spec import RunSpec, complete, preset, presets, spec, usual
from perdure.nets.mlp import MLP
from perdure.schema import checked, values_of
from perdure.train.plan import Plan

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
PAPER = json.loads((VECTORS / "paper_tables.json").read_text("utf-8"))["hyperparameters"]
LOGS = json.loads((VECTORS / "published_runs.json").read_text("utf-8"))["runs"]
OURS = {"CIFAR100": "cifar100", "FIVE": "five", "MINI": "miniimagenet", "PMNIST": "pmnist"}
Rows = dict[str, tuple[Any, str]]  # name → value and source


def rows(content: Mapping[str, Any], before: str = "") -> Rows:
    """What a TOML file holds, its tables as parts of the names: `ewc.plan.rate`."""
    found: Rows = {}
    for name, inner in content.items():
        found |= rows(inner, f"{before}{name}.") if isinstance(inner, Mapping) else {before + name: tuple(inner)}
    return found


def entries(benchmark: str) -> Rows:
    """What a preset file holds; what it proposes for all methods has no method in its name."""
    content = presets()[benchmark]
    return rows({name: inner for name, inner in content.items() if name != "methods"} | content["methods"])


def read_published() -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Benchmark → name → value, and the methods' defaults."""
    table = tomllib.loads((Path(__file__).parent / "published.toml").read_text("utf-8"))
    columns, elsewhere, defaults = (table.pop(name) for name in ("columns", "elsewhere", "defaults"))
    found: dict[str, dict[str, Any]] = {benchmark: {} for benchmark in presets()}
    for name, (values, _) in rows(table.pop("all") | table).items():
        for benchmark, value in zip(columns, values, strict=True):
            if value != "–":
                found[benchmark][name] = value
    for benchmark, taken_over in elsewhere.items():
        found[benchmark] = {name: value for name, (value, _) in rows(taken_over).items()}
    return found, {name: value for name, (value, _) in rows(defaults).items()}


PUBLISHED, DEFAULTS = read_published()


def is_published(source: str) -> bool:
    """Whether it names a paper, a log or released code, and not only in a remark on a choice of our own."""
    return re.match(r"(?!own|chosen).*\b(paper|log|code|released|CIFAR-100)\b", source) is not None


def value_of(asked: RunSpec, name: str) -> Any:
    return getattr(asked.plan, name.removeprefix("plan.")) if name.startswith("plan.") else asked.values[name]


@cache
def ask(method: str, benchmark: str) -> RunSpec:
    return spec(method, "folder:photos" if benchmark == "folder" else benchmark)


# --- published values ---


@pytest.mark.parametrize("benchmark", presets())
def test_every_published_value_is_what_its_source_says(benchmark: str) -> None:
    """Also the other way round: nothing that is published is missing, or passed off as a choice of our own."""
    found = {name: value for name, (value, source) in entries(benchmark).items() if is_published(source)}
    assert found == PUBLISHED[benchmark]


def test_published_defaults_are_what_their_sources_say() -> None:
    """And no preset puts another value in their place."""
    for name, value in DEFAULTS.items():
        method, _, own = name.partition(".")
        assert ask(method, "cifar100").values[own] == value, name
        assert not any(name in entries(benchmark) for benchmark in presets()), name


def test_defaults_in_python_are_the_values_on_cifar100() -> None:
    """But for norms that learn on: two released scripts of CIFAR-100 have them, and they let old answers move."""
    for method in registry.methods:
        defaults = {name: value.default for name, value in values_of(registry.methods.load(method)).items()}
        assert defaults.get("learn_norms", False) is False
        learning = {"learn_norms": True} if method in ("trgp", "fsdgpm") else {}
        assert {**defaults, **learning} == ask(method, "cifar100").values, method


SYMBOLS = {
    "lr": "plan.rate",
    "regularization": "coefficient",
    "memory": "memory",
    "representation_size": "samples",
    "alpha": "concentration",
    "lambda": "mix_weight",
    "kappa": "ua_weight",
    "phi": "phi_init",
    "TRGP K": "related",
    "TRGP epsilon": "trust",
    "API K": "growth",
    "API rho": "floor",
    "DFGP rho": "radius",
}


def printed_values() -> Iterator[tuple[str, str, str, float]]:
    """The paper's table of hyperparameters: method, benchmark, name, value."""
    for printed, row in PAPER.items():
        method, benchmarks = printed.lower().replace("-", ""), list(row["lr"])
        for symbol, found in row.items():
            name = SYMBOLS.get(f"{printed} {symbol}") or SYMBOLS[symbol]
            for benchmark in found if isinstance(found, dict) else benchmarks:
                yield method, OURS[benchmark], name, found[benchmark] if isinstance(found, dict) else found


def test_runs_have_the_hyperparameters_that_the_paper_prints() -> None:
    """But where the authors' logs say that they ran with others."""
    printed = list(printed_values())
    assert len(printed) == 77
    ours = [(method, name, value_of(ask(method, where), name), value) for method, where, name, value in printed]
    assert {found for found in ours if found[2] != found[3]} == {
        ("dfgp", "concentration", 1, 20),
        ("dfgp", "mix_weight", 1e-4, 1e-3),
        ("rcl", "concentration", 1, 20),
    }


ARGUMENTS = {
    "lr": "plan.rate",
    "n_epochs": "plan.epochs",
    "batch_size_train": "plan.batch",
    "lr_factor": "plan.factor",
    "lr_patience": "plan.patience",
    "lr_min": "plan.floor",
    "gpm_thro": "threshold",
    "mixup_alpha": "concentration",
    "mixup_weight": "mix_weight",
    "ua_weight": "ua_weight",
    "weight_range": "phi_init",
    "robust_epoch": "phi_steps",
}


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log['method']}-{log['dataset']}-{log['seed']}")
def test_runs_have_the_arguments_of_the_logs(log: dict[str, Any]) -> None:
    given = {ARGUMENTS[name]: value for name, value in log["arguments"].items() if name in ARGUMENTS}
    asked = ask(log["method"].lower(), OURS[log["dataset"]])
    assert len(given) >= 8
    assert {name: value_of(asked, name) for name in given} == given


def test_the_network_of_permuted_digits_is_that_of_gpms_code() -> None:
    assert [layer.out_features for layer in MLP((1, 28, 28)).hidden] == [100, 100]  # type: ignore[union-attr]


# --- what presets say of themselves ---


@pytest.mark.parametrize("benchmark", list(presets()))
@pytest.mark.parametrize("method", list(registry.methods))
def test_every_preset_fits_its_method_and_names_its_sources(benchmark: str, method: str) -> None:
    proposed = preset(benchmark, method)
    registry.networks.find(proposed.network[0])
    pairs = {**proposed.plan, **proposed.values, "network": proposed.network}
    assert all(len(pair) == 2 and isinstance(pair[1], str) and pair[1] for pair in pairs.values())
    checked("plan", Plan, {name: pair[0] for name, pair in proposed.plan.items()})
    checked(method, registry.methods.load(method), {name: pair[0] for name, pair in proposed.values.items()})
    assert method in presets()[benchmark]["methods"]


@pytest.mark.parametrize("benchmark", presets())
def test_a_value_that_is_said_to_be_as_another_is_so(benchmark: str) -> None:
    for full_name, (value, source) in entries(benchmark).items():
        method, _, name = full_name.partition(".")
        if "as GPM" in source:
            assert value == ask("gpm", benchmark).values[name], full_name
        if "as in six" in source:
            assert value == value_of(ask(method, "six"), name), full_name
        if re.search(r"\bon CIFAR-100", source):
            assert value == value_of(ask(method, "cifar100"), name), full_name
        if "as many as new ones" in source:
            assert value == ask(method, benchmark).plan.batch, full_name


def test_a_methods_plan_beats_its_benchmarks_and_yours_beats_both() -> None:
    """FS-DGPM on CIFAR-100 has epochs and momentum of its own, and the rest of the plan from the benchmark."""
    asked = ask("fsdgpm", "cifar100").plan
    assert (asked.epochs, asked.momentum, asked.rate, asked.patience) == (50, 0.9, 0.01, 6)
    assert ask("gpm", "cifar100").plan.epochs == 200
    given = spec("fsdgpm", "cifar100", plan={"epochs": 3, "lr": 0.5}).plan
    assert (given.epochs, given.momentum, given.rate, given.patience) == (3, 0.9, 0.5, 6)


def test_a_methods_network_beats_its_benchmarks_and_yours_beats_both() -> None:
    assert (ask("fsdgpm", "cifar100").network, ask("gpm", "cifar100").network) == ("alexnet-fsdgpm", "alexnet")
    assert spec("fsdgpm", "cifar100", network="alexnet").network == "alexnet"
    assert ask("fsdgpm", "miniimagenet").network == "resnet18"


def test_a_variant_has_values_of_its_own_and_yours_beat_them() -> None:
    def rate(**values: Any) -> Any:
        return spec("rcl", "cifar100", values=values).values["phi_rate"]

    assert rate() == rate(variant="released") == 0.1
    assert rate(variant="paper") == 0.01
    assert rate(variant="paper", phi_rate=0.5) == 0.5
    assert spec("dfgp", "five", values={"variant": "paper"}).values["mix_weight"] == 1e-3
    assert "paper" not in preset("cifar100", "rcl").values


def test_what_is_usual_for_a_run_has_the_values_of_its_variant() -> None:
    for given in ({}, {"variant": "paper"}, {"variant": "paper", "phi_rate": 0.1}):
        asked = spec("rcl", "cifar100", values=given)
        other = {name: v for name, v in asked.values.items() if v != usual(asked.plain()).values[name]}
        assert other == given


OWN = {  # benchmark → hash of what is not published: choices of ours and defaults, which nobody else can tell us
    "synthetic": "885d0764a64959cc",
    "six": "d3b0520862fdc23c",
    "cifar100": "43364dc559eaae1d",
    "five": "140fd3ab028f115f",
    "miniimagenet": "5c988212856fb9e2",
    "pmnist": "42b22e7286813693",
    "folder": "881d3dcdd4e59253",
}


@pytest.mark.parametrize("benchmark", presets())
def test_no_choice_of_ours_changes_unnoticed(benchmark: str) -> None:
    """Another value would be another run: every one that anybody has would be computed again."""
    chosen: dict[str, Any] = {}
    for method in sorted(registry.methods):
        asked = ask(method, benchmark).plain()
        every = {"network": asked["network"], **asked["values"], **{f"plan.{n}": v for n, v in asked["plan"].items()}}
        said = {name: f"{method}.{name}" if f"{method}.{name}" in entries(benchmark) else name for name in every}
        chosen[method] = {name: value for name, value in every.items() if said[name] not in PUBLISHED[benchmark]}
    text = json.dumps([chosen, asked["settings"]], sort_keys=True)
    assert blake2b(text.encode(), digest_size=8).hexdigest() == OWN[benchmark], text


# --- values that came later ---


def test_values_that_came_later_are_read_as_they_were_before_and_written_where_they_differ() -> None:
    """TRGP's norms followed its variant, and ER had one kind of batches."""
    for method, variant, norms in (("trgp", "intended", False), ("trgp", "released", True)):
        for given in (False, True):
            asked = spec(method, "six", values={"variant": variant, "learn_norms": given})
            assert ("learn_norms" in asked.plain()["values"]) == (given != norms)
            assert RunSpec.from_plain(asked.plain()) == asked
    for asked in (spec("rcl", "cifar100"), spec("rcl", "cifar100", values={"eq8": True}, settings={"order": "random"})):
        whole = complete(asked.plain())
        assert (whole["values"], whole["settings"]) == (asked.values, asked.settings)
        assert whole["plan"] == json.loads(json.dumps(asdict(asked.plan))) | {"milestones": ()}
        assert RunSpec.from_plain(asked.plain()) == asked
    assert not {"eq8", "order"} & {
        *spec("rcl", "cifar100").plain()["values"],
        *spec("rcl", "cifar100").plain()["settings"],
    }
    assert "batches" not in spec("er", "six").plain()["values"]
    assert spec("er", "six", values={"batches": "apart"}).plain()["values"]["batches"] == "apart"


def test_runs_by_the_validation_loss_of_methods_that_changed_are_others_than_before() -> None:
    formats = {
        (method, schedule): spec(method, "six", plan={"schedule": schedule}).plain()["format"]
        for method in ("ewc", "owm", "gpm")
        for schedule in ("linear", "plateau")
    }
    assert {of for of, found in formats.items() if found == 5} == {("ewc", "plateau"), ("owm", "plateau")}
    assert set(formats.values()) == {4, 5}
    asked = spec("ewc", "six", plan={"keep": "best"})
    assert RunSpec.from_plain(asked.plain()) == asked
    with pytest.raises(WrongValue, match="format 4, but this perdure has 5; run it again"):
        RunSpec.from_plain({**asked.plain(), "format": 4})
