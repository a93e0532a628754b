"""`perdure bench`: what it measures and how it says it. Times themselves are not tested: they belong to a machine."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from perdure import fast
from perdure.cli.main import app
from perdure.errors import PerdureError, UnknownName
from perdure.lab.bench import bench
from perdure.methods.gpm import GPM
from perdure.methods.sgp import SGP

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from speed import paths, steps
from speed.growth import Growth
from speed.ratios import ratios
from speed.subjects import SIZES, later, small_stream
from speed.turns import Bench, Times, Work, alternate, ratio


def test_everything_takes_its_turn_and_the_first_is_left_out() -> None:
    seen: list[str] = []
    times = alternate({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, rounds=3)
    assert "".join(seen) == "abbaabba"
    assert {name: len(found) for name, found in times.items()} == {"a": 3, "b": 3}


def test_a_ratio_is_the_median_of_the_turns() -> None:
    assert ratio({"a": [2.0, 4.0, 90.0], "b": [1.0, 1.0, 30.0]}, "a", "b") == 3.0


@pytest.mark.parametrize(("values", "slope"), [([1.0, 2.0, 4.0], 1.0), ([3.0, 3.0, 3.0], 0.0), ([1.0, 4.0, 16.0], 2.0)])
def test_slopes(values: list[float], slope: float) -> None:
    assert Growth("gpm", "size", (10, 20, 40), values, "s").slope == pytest.approx(slope)


@pytest.mark.parametrize("maker", [GPM, SGP])
def test_a_later_task_has_bases_of_the_sizes_said(maker: type[GPM]) -> None:
    method = later(maker, small_stream(2))
    assert isinstance(method, GPM)
    assert {layer: held for layer, (held, _) in method.memory.sizes().items()} == SIZES
    assert [of for _, of in method.memory.sizes().values()] == [48, 576, 512, 1024, 2048]
    if isinstance(method, SGP):
        assert {layer: len(values) for layer, values in method.importance.items()} == SIZES


@pytest.mark.thorough
def test_the_work_measured_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step moves the weights, a bare pass does not; and what is asked for comes back under its name."""
    before = torch.get_num_threads()
    done: list[str] = []

    def once(works: dict[str, Work], _rounds: int, _pause: float = 0.0) -> Times:
        for name, work in works.items():
            work()
            done.append(name)
        return {name: [float(place + 1)] for place, name in enumerate(works)}

    monkeypatch.setattr(steps, "alternate", once)
    found = ratios(Bench(threads=1, rounds=1, report=lambda _: None), None, names=["gpm", "ewc"])
    assert found["ratios"] == {"gpm_over_bare": 2.0, "gpm_projected_over_plain": 0.667, "ewc_over_bare": 2.0}
    assert done == [
        "bare passes of gpm",
        "step of gpm",
        "step of gpm, unprojected",
        "bare passes of ewc",
        "step of ewc",
    ]
    assert torch.get_num_threads() == before


def test_wrong_names_and_a_missing_textbook_are_said(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="rcl shared"):
        bench(only=["rcl"])
    with pytest.raises(PerdureError, match="clone the repository"):
        bench(folder=tmp_path)
    with pytest.raises(UnknownName, match="unknown measurement 'speed'"):
        bench("speed")  # type: ignore[arg-type]


def test_paths_are_left_out_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step without its path, the whole list at the end, and none of it left switched off."""
    off: list[frozenset[str]] = []
    monkeypatch.setattr(paths, "later", lambda *_: None)
    monkeypatch.setattr(paths, "step_of", lambda *_: lambda: off.append(fast.off()))
    found = paths.gains(Bench(threads=1, rounds=1, report=lambda _: None), names=["gpm"])
    taken = [path for path, takers in paths.TAKERS.items() if "gpm" in takers]
    each = [frozenset({path}) for path in taken]
    assert off == [state for paths_off in each for state in (frozenset(), paths_off, paths_off, frozenset())]
    assert found.keys() == {"gpm"}
    assert list(found["gpm"]) == taken
    assert paths.TAKERS.keys() | {"gram", "heap"} == fast.PATHS.keys()
    assert not fast.off()


def test_stopped_it_does_not_promise_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("perdure.lab.bench.bench", interrupted)
    done = CliRunner().invoke(app, ["bench"])
    assert done.exit_code == 130
    assert done.stderr.splitlines() == ["perdure: interrupted; times only mean something together, so nothing was kept"]


def test_what_is_asked_for_is_handed_to_what_lies_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "speed").mkdir()
    (tmp_path / "textbook.py").write_text("NAME = 'book'")
    (tmp_path / "speed" / "__init__.py").write_text("""
from types import SimpleNamespace
Bench = lambda threads, rounds, report: (threads, rounds, report)
growths = lambda how, only: [SimpleNamespace(plain=lambda: ("growth", how, only))]
gains = lambda how, only: ("gains", how, only)
ratios = lambda how, book, only: ("ratios", how, book and book.NAME, only)
""")

    def ask(what: Any, only: Sequence[str] = ()) -> Any:
        return bench(what, rounds=3, threads=1, only=only, folder=tmp_path, report=print)

    how = (1, 3, print)
    assert ask("scaling", ["gpm"]) == [("growth", how, ["gpm"])]
    assert ask("paths", ["gpm"]) == ("gains", how, ["gpm"])
    assert ask("ratios") == ("ratios", how, "book", ())
    assert ask("ratios", ["gpm"]) == ("ratios", how, None, ["gpm"])
    with pytest.raises(PerdureError, match=r"nowhere/speed/__init__\.py: not there; clone the repository"):
        bench(folder=tmp_path / "nowhere")
