"""Odd values: each is refused in one line that can be read, at once, before anything is trained."""

import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perdure import registry
from perdure.cli.main import app, main
from perdure.cli.options import print_error, stderr
from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import UsageError, WrongValue
from perdure.lab.build import resolve_device
from perdure.lab.executors import make_executor
from perdure.lab.index import find_run
from perdure.lab.outlier_spec import outlier_specs
from perdure.lab.probe_run import probe_spec
from perdure.lab.search import make_search, parse_range
from perdure.lab.spec import assignments, spec
from perdure.lab.study_file import read

LONG = "9" * 400


def of_method(name, value):
    return spec("rcl", "synthetic", values={name: value})


def of_plan(name, value):
    return spec("finetune", "synthetic", plan={name: value})


def of_folder(name, value):
    return spec("finetune", "folder:pets", settings={name: value})


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (of_method, "threshold", "1.2.3/4"),
        (of_method, "radius", "./255"),
        (of_method, "radius", f"1/{LONG}"),
        (of_method, "radius", f"{LONG}/1"),
        (of_method, "radius", "1/0"),
        (of_method, "radius", 1e300),
        (of_method, "budget", f"{LONG}GB"),
        (of_method, "budget", LONG),
        pytest.param(of_method, "budget", 10**5000, id="long"),
        (of_method, "samples", LONG),
        (of_plan, "momentum", "2"),
        (of_plan, "momentum", 1),
        *((of_plan, "rate", value) for value in ("1e400", "inf", "-inf", "nan", "1e308", LONG, 10**400)),
        (of_plan, "epochs", LONG),
        (of_folder, "size", "100000"),
        (of_folder, "size", "1.5"),
    ],
)
def test_wrong_number(make, name, value):
    with pytest.raises(WrongValue, match=f"{name}=.* is (not allowed|too large); {name} takes ") as caught:
        make(name, value)
    assert len(str(caught.value)) < 250
    assert str(caught.value).isprintable()


def test_right_numbers():
    made = spec("rcl", "synthetic", values={"radius": "51/255", "budget": "1.5MB"}, plan={"momentum": "0.99"})
    assert (made.values["radius"], made.values["budget"], made.plan.momentum) == (0.2, 1_500_000, 0.99)


@pytest.mark.parametrize("tasks", ["1-2000000000", LONG, f"1-{LONG}", "1-10001", "0"])
def test_outliers_in_tasks_that_no_stream_has(tasks):
    with pytest.raises(WrongValue, match="tasks are counted from 1 to at most 10000") as caught:
        outlier_specs(f"labels:0.2@{tasks}")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "text",
    [
        "fgsm(strengths=1e300)",
        "fgsm(strengths=1e30 norm=l2)",
        "fgsm(strengths=20000 space=normalized)",
        "fgsm(strengths=2)",
        "over-time(strength=1e300)",
        "flatness(radius=1e300)",
        "smoothing(sigma=1e300)",
        "smoothing(alpha=0)",
        "smoothing(alpha=1)",
        "landscape(points=999999999999)",
        "plane(points=99999)",
        f"pgd(steps={LONG})",
    ],
)
def test_probes_of_values_beyond_all_bounds(text):
    with pytest.raises(WrongValue, match=r"is not allowed|is too large") as caught:
        probe_spec(text)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_the_least_and_the_largest_seed(seed):
    assert spec("finetune", "synthetic", seed=seed).seed == seed


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, pytest.param(10**5000, id="long")])
def test_seeds(seed):
    with pytest.raises(WrongValue, match=r"seed=.* is not allowed; use a whole number"):
        spec("finetune", "synthetic", seed=seed)
    with pytest.raises(WrongValue, match=r"seed=.* is not allowed; use a whole number"):
        make_search("finetune", "synthetic", ["plan.rate=0.01..0.1"], [1, seed])


def test_a_folder_whose_name_is_not_utf8():
    with pytest.raises(WrongValue, match=r"'folder:own\\udcfd': a name that is not UTF-8") as caught:
        spec("finetune", "folder:own\udcfd")
    assert str(caught.value).isprintable()


LONG_NAME = "x" * 5000


@pytest.mark.parametrize(
    "ask",
    [
        lambda: spec(LONG_NAME, "synthetic"),
        lambda: spec("gpm", LONG_NAME),
        lambda: spec("gpm", "synthetic", values={LONG_NAME: 1}),
        lambda: assignments([LONG_NAME]),
        lambda: resolve_device(LONG_NAME),
        lambda: probe_spec(f"pgd({LONG_NAME}"),
        lambda: parse_range(f"threshold={LONG_NAME}", "gpm"),
        lambda: parse_range(f"threshold={LONG_NAME}..1", "gpm"),
        lambda: parse_range(f"threshold=1..0.{'0' * 5000}", "gpm"),
        lambda: find_run(Path("runs"), "f" * 200),
        lambda: registry.methods.name(f"{LONG_NAME}.py:X"),
    ],
)
def test_a_long_name_is_not_repeated_in_full(ask):
    with pytest.raises(UsageError) as caught:
        ask()
    assert len(str(caught.value)) < 1100


def test_an_error_is_one_line_whatever_it_repeats():
    with stderr.capture() as captured:
        print_error("norm=\x1b[2J\nis\u2028not allowed")
    assert captured.get() == "perdure: norm=\\x1b[2J\\nis\\u2028not allowed\n"


def test_a_file_name_that_no_system_has_is_one_line():
    done = CliRunner().invoke(app, ["show", LONG_NAME])
    assert done.exit_code == 2
    assert done.stderr.startswith("perdure: xxx")
    assert done.stderr.endswith("xxx…: the name is too long; use a shorter one\n")
    assert len(done.stderr) < 150


def pipe(file):
    os.mkfifo(file)


def device(file):
    file.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [pipe, device, Path.mkdir])
def test_code_is_in_a_plain_file(make, tmp_path):
    make(tmp_path / "my.py")
    with pytest.raises(WrongValue, match=r"my\.py: cannot be read \(.*\); name a Python file of yours"):
        registry.methods.name(f"{tmp_path}/my.py:Careful")


@pytest.mark.parametrize("name", ["tasks", "classes", "size", "per_class"])
def test_a_synthetic_stream_beyond_all_memory(name):
    with pytest.raises(WrongValue, match=rf"synthetic: .*{name}=9223372036854775807.* do not fit in memory") as caught:
        synthetic(seed=1, **{name: 2**63 - 1})
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("words", [("run", "gpm", "synthetic"), ("study", "six"), ("search", "gpm", "six"), ("bench",)])
def test_more_threads_than_any_machine_has(words, monkeypatch):
    for threads in ("0", "1025", "9" * 20):
        monkeypatch.setattr(sys, "argv", ["perdure", *words, "--threads", threads])
        with stderr.capture() as captured, pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert captured.get().startswith("perdure: invalid value for '--threads': ")


@pytest.mark.parametrize("threads", [0, 1025, 10**20])
def test_more_threads_in_a_study(threads, tmp_path):
    with pytest.raises(WrongValue, match=rf"threads={threads} is not allowed; use a whole number from 1 to 1024"):
        make_executor(threads=threads)
    file = tmp_path / "study.toml"
    file.write_text(f'methods = ["gpm"]\nbenchmarks = ["synthetic"]\nseeds = [1]\nthreads = {threads}\n')
    with pytest.raises(
        WrongValue, match=rf"threads={threads} is not allowed; threads takes a whole number from 1 to 1024"
    ):
        read(file)


def test_usage_with_a_long_word_is_one_line_of_bounded_length(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["perdure", "data", LONG_NAME])
    with stderr.capture() as captured, pytest.raises(SystemExit):
        main()
    assert captured.get().startswith("perdure: no such command 'xxx")
    assert len(captured.get()) < 500
