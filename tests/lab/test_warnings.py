"""Warnings, and only where they are due."""

from pathlib import Path

import pytest

from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import UnknownName
from perdure.lab.build import build
from perdure.lab.run import run_spec as run
from perdure.lab.spec import spec
from perdure.lab.warnings import warnings_for
from perdure.train.callbacks import Callback


def said(method: str, *without: str, **options: object) -> str:
    wanted = spec(method, "synthetic", **options)  # type: ignore[arg-type]
    return "\n".join(warnings_for(wanted, build(wanted, synthetic(seed=1)), without))


@pytest.mark.parametrize("method", ["er", "agem", "fsdgpm", "mtl"])
def test_replay_where_storing_is_not_allowed_names_others(method: str) -> None:
    text = said(method, "stored-data")
    assert f"{method} keeps training images" in text
    remedy = text.split("take one of")[1]
    assert "gpm" in remedy
    assert "rcl" in remedy
    assert method not in remedy.replace(",", "").split()


def test_nothing_is_said_where_nothing_is_wrong() -> None:
    assert said("gpm", "stored-data") == ""
    assert said("rcl") == ""
    assert said("er", "stored-data", values={"memory": 0}) == ""
    assert said("gpm", plan={"batch": 4}, network="mlp") == ""


@pytest.mark.parametrize("method", ["ewc", "gpm"])
def test_without_task_identity_figures_do_not_apply(method: str) -> None:
    assert "decide the task first" in said(method, "task-identity")


def test_small_batches_have_poor_statistics() -> None:
    assert "use --plan batch=16 or more, or --net mlp" in said("gpm", plan={"batch": 4})


def test_an_unknown_constraint_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="unknown constraint 'stored-dat'; did you mean stored-data"):
        said("gpm", "stored-dat")


def test_warnings_reach_the_callback_and_the_record(tmp_path: Path) -> None:
    warnings: list[str] = []

    class Collector(Callback):
        def on_warning(self, text: str) -> None:
            warnings.append(text)

    wanted = spec("er", "synthetic", tasks=1, plan={"epochs": 1})
    record = run(wanted, out=tmp_path, without=["stored-data"], callback=Collector())
    assert record["cautions"] == warnings
    assert len(warnings) == 1
