"""Studies are read strictly, and give the runs they say."""

import json
import re
import signal
from pathlib import Path

import pytest

import perdure
from perdure.errors import PerdureError, UsageError
from perdure.lab import study as lab
from perdure.lab.execute.job import Event
from perdure.lab.execute.local import LocalExecutor
from perdure.lab.spec import RunSpec
from perdure.lab.study import StudyCallback
from perdure.lab.study_file import read, rows, shipped, specs

GRID = """
about = "a grid"
methods = ["gpm", "rcl"]
benchmarks = ["synthetic", "six"]
seeds = [1, 2]
tasks = 2
probes = ["fgsm"]
[plan]
epochs = 7
[values.rcl]
mix_weight = [0.01, 0.1]
radius = 0.2
phi_cap = "none"
[network]
six = "mlp"
[settings.synthetic]
classes = 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.toml"


def test_a_grid_is_all_combinations(file: Path) -> None:
    file.write_text(GRID)
    study = read(file)
    assert (study.name, study.about, study.probes, study.threads) == ("mine", "a grid", ("fgsm",), 1)
    runs = specs(study)
    assert [(run.seed, run.benchmark, run.method, run.values.get("mix_weight")) for run in runs[:7]] == [
        (1, "synthetic", "gpm", None),
        (1, "synthetic", "rcl", 0.01),
        (1, "synthetic", "rcl", 0.1),
        (1, "six", "gpm", None),
        (1, "six", "rcl", 0.01),
        (1, "six", "rcl", 0.1),
        (2, "synthetic", "gpm", None),
    ]
    assert len(runs) == 12
    assert {run.plan.epochs for run in runs} == {7}
    assert {run.tasks for run in runs} == {2}
    assert {run.network for run in runs if run.benchmark == "six"} == {"mlp"}
    assert {run.network for run in runs if run.benchmark == "synthetic"} == {"alexnet-slim"}
    assert {run.settings.get("classes") for run in runs} == {4, None}
    assert {run.values["radius"] for run in runs if run.method == "rcl"} == {0.2}
    assert {run.values["phi_cap"] for run in runs if run.method == "rcl"} == {None}
    assert specs(study) == runs


def test_scale_multiplies_epochs_and_leaves_one(file: Path) -> None:
    file.write_text(GRID)
    study = read(file)
    assert {run.plan.epochs for run in specs(study, 0.5)} == {4}
    assert {run.plan.epochs for run in specs(study, 0.01)} == {1}
    assert specs(study, 1.0) == specs(study)
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="scale="):
            specs(study, wrong)


def test_warmup_and_milestones_are_scaled_with_the_epochs(file: Path) -> None:
    plan = 'epochs = 20, warmup = 2, schedule = "steps", milestones = "10,16", opt = "adamw", wd = 0.01'
    file.write_text(f'methods = ["gpm"]\nbenchmarks = ["synthetic"]\nseeds = [1]\nplan = {{ {plan} }}')
    for scale, expected in {1: (20, 2, (10, 16)), 0.5: (10, 1, (5, 8)), 0.05: (1, 0, ())}.items():
        (run,) = specs(read(file), scale)
        assert (run.plan.epochs, run.plan.warmup, run.plan.milestones) == expected
        assert (run.plan.optimizer, run.plan.weight_decay) == ("adamw", 0.01)
        assert RunSpec.from_plain(json.loads(json.dumps(run.plain()))) == run


def test_blocks_are_joined_and_share_what_stands_above(file: Path) -> None:
    file.write_text("""
        seeds = [1]
        benchmarks = ["synthetic"]
        plan = { epochs = 3, lr = 0.5 }
        [[block]]
        methods = ["gpm"]
        plan = { epochs = 4 }
        [[block]]
        methods = ["ewc"]
        plan = { rate = 0.25 }
        seeds = [5, 6]
    """)
    found = [(run.method, run.seed, run.plan.epochs, run.plan.rate) for run in specs(read(file))]
    assert found == [("gpm", 1, 4, 0.5), ("ewc", 5, 3, 0.25), ("ewc", 6, 3, 0.25)]


BASE = 'methods = ["rcl"]\nbenchmarks = ["synthetic"]\nseeds = [1]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = [", "not a TOML file"),
        (BASE + "sedes = [2]", "key of MINE 'sedes'; did you mean seeds"),
        (BASE + "tasks = [1]", "tasks=[1] is not allowed; tasks takes a whole number"),
        (BASE.replace("seeds = [1]", ""), "seeds is missing"),
        (BASE.replace("[1]", "[]"), "seeds=[] is not allowed"),
        (BASE.replace("[1]", "[true]"), "whole numbers"),
        (BASE.replace("[1]", "[-1]"), "whole numbers ≥ 0"),
        (BASE.replace("[1]", "[1, 1]"), "rcl on synthetic with seed 1 is in it twice"),
        (BASE.replace('"rcl"', '"rlc"'), "unknown method 'rlc'; did you mean rcl"),
        (BASE.replace('"synthetic"', '"synthetc"'), "did you mean synthetic"),
        (BASE + 'probes = ["fgms"]', "did you mean fgsm"),
        (BASE + "threads = 0", "threads=0 is not allowed"),
        (BASE + 'against = "gpm"', "against=gpm, which is not among its methods"),
        (BASE + 'network = "mpl"', "did you mean mlp"),
        (BASE + '[network]\nsix = "mlp"', "unknown benchmark in a table of MINE: 'six'"),
        (BASE + "[plan]\nepochs = 1.5", "epochs takes a whole number"),
        (BASE + "[plan]\nepcohs = 1", "unknown plan option 'epcohs'; did you mean epochs"),
        (BASE + "[plan]\nlr = 1\nrate = 2", "one option under two names"),
        (BASE + "[plan]\nwd = -1e-4", "weight_decay takes a number"),
        (BASE + "[plan]\nepochs = [1, 2]", "plan takes a table of name = value"),
        (BASE + "[values.gpm]\nsamples = 3", "unknown method in [values.gpm] of MINE: 'gpm'"),
        (BASE + "[values.rcl]\nradios = 3", "did you mean radius"),
        (BASE + "[values.rcl]\nradius = -3", "radius takes a number ≥ 0"),
        (BASE + "[values.rcl]\nradius = []", "values={'rcl': {'radius': []}} is not allowed"),
        (BASE + "[values.rcl]\nradius = [0.1, 0.1]", "is in it twice"),
        (BASE + "[values]\nradius = 3", "values takes for each method"),
        (BASE + "[settings]\nclases = 3", "did you mean classes"),
        (BASE + "[settings.six]\nclasses = 3", "unknown benchmark in a table of MINE: 'six'"),
        (BASE + "block = 3", "block takes tables headed [[block]]"),
        (BASE + "[[block]]\nabout = 'x'", "key of MINE, block 1 'about'"),
        (BASE + "[[block]]\n[[block]]", "block 2: rcl on synthetic with seed 1 is in it twice"),
        (
            BASE + "[[block]]\nmethods = ['gpm']\n[block.values.rcl]\nradius = 1",
            "unknown method in [values.rcl] of MINE, block 1",
        ),
    ],
)
def test_slips_get_one_line_that_names_the_file(text: str, message: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        specs(read(file))
    said = str(caught.value)
    assert message.replace("MINE", str(file)) in said
    assert str(file) in said
    assert "\n" not in said


def test_names_and_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean smoke"):
        read("smok")
    with pytest.raises(UsageError, match="no such file"):
        read(tmp_path / "nothing.toml")
    with pytest.raises(UsageError, match="no such file"):
        read("nothing.toml")
    (tmp_path / "latin.toml").write_bytes(b"about = '\xe9'")
    with pytest.raises(UsageError, match="not a TOML file"):
        read(tmp_path / "latin.toml")


@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_studies_are_whole(name: str) -> None:
    study = read(name)
    assert study.about == shipped()[name] != ""
    runs = specs(study)
    assert len({json.dumps(run.plain(), sort_keys=True) for run in runs}) == len(runs)


def test_table1_has_the_cells_of_the_paper() -> None:
    printed = json.loads((Path(__file__).parent.parent / "golden/vectors/paper_tables.json").read_text("utf-8"))
    ours = {"CIFAR100": "cifar100", "FIVE": "five", "MINI": "miniimagenet"}
    cells = {
        (method.lower().replace("-", ""), ours[benchmark])
        for method, row in printed["main_table"].items()
        for benchmark, cell in row.items()
        if cell["ACC"] is not None
    }
    runs = specs(read("table1"))
    assert {(run.method, run.benchmark) for run in runs} == cells
    assert len(runs) == 5 * len(cells) == 150
    assert all(run.settings == {"legacy": True} for run in runs if run.benchmark == "five")


def test_sweeps_have_the_values_of_the_paper() -> None:
    printed = json.loads((Path(__file__).parent.parent / "golden/vectors/paper_tables.json").read_text("utf-8"))
    kappa = [run.values["ua_weight"] for run in specs(read("kappa")) if run.seed == 1]
    phi = [run.values["phi_init"] for run in specs(read("phi")) if run.seed == 1]
    assert kappa == printed["kappa_sensitivity_CIFAR100"]["kappa"]
    assert phi == printed["phi_sensitivity_CIFAR100"]["phi"]
    assert sorted({run.seed for run in specs(read("seeds"))}) == printed["seeds_CIFAR100"]["seeds"]
    ablation = [(row, run) for row, run in rows(read("ablation")) if (run.seed, run.benchmark) == (1, "cifar100")]
    assert [row for row, _ in ablation if row != "neither"] == [
        name.replace("phi", "φ") for name in printed["ablation"]
    ]
    first, *others = [run for _, run in ablation]
    assert (first.method, first.values["threshold"], first.values["mix_weight"]) == ("dfgp", 0.95, 0.1)
    parts = [(run.values["phi_init"], run.values["ua_weight"], run.values["ua_in"]) for run in others]
    assert parts == [(0, 0, "both"), (1e-4, 0, "both"), (0, 1, "both"), (1e-4, 1, "descent"), (1e-4, 1, "both")]
    assert {(run.method, run.values["threshold"]) for run in others} == {("rcl", 0.94)}


def test_the_page_about_studies_is_true(file: Path) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "studies.md").read_text("utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    runs = []
    for block in blocks:
        file.write_text(block)
        runs.append(len(specs(read(file))))
    assert runs == [30, 10]
    rows = re.findall(r"^\| (`.*?) \| ([\d, ]+) \|", page, re.MULTILINE)
    listed = {
        name.strip("`"): int(count)
        for names, counts in rows
        for name, count in zip(names.split(", "), counts.split(", "), strict=True)
    }
    assert listed == {name: len(specs(read(name))) for name in shipped()}


@pytest.mark.usefixtures("jobs_here")
@pytest.mark.parametrize("when", [0, 1])
def test_a_study_that_is_stopped_when_all_is_done_is_done(when: int, tmp_path: Path) -> None:
    """The signal comes with the end of a run."""

    class Stop(StudyCallback):
        done = 0

        def on_event(self, event: Event) -> None:
            if event.kind == "done":
                if self.done == when:
                    signal.raise_signal(signal.SIGTERM)
                self.done += 1

    (file := tmp_path / "mine.toml").write_text("""
methods = ["finetune"]
benchmarks = ["synthetic"]
seeds = [1, 2]
tasks = 1
network = "mlp"
plan = { epochs = 1 }
""")
    result = perdure.study(file, out=tmp_path / "runs", pictures=False, callback=Stop())
    assert [run.state for run in result.runs] == ["done", "done"]


def test_a_failure_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise PerdureError("cannot write: no space left")

    monkeypatch.setattr(lab, "save_failure", full)
    monkeypatch.setattr(
        LocalExecutor, "do", lambda _, jobs: iter([Event(n, "failed", {"error": "why"}) for n in range(len(jobs))])
    )
    heard: list[Event] = []

    class Hearing(StudyCallback):
        def on_event(self, event: Event) -> None:
            heard.append(event)

    (file := tmp_path / "mine.toml").write_text('methods = ["finetune"]\nbenchmarks = ["synthetic"]\nseeds = [1]')
    result = perdure.study(file, out=tmp_path / "runs", pictures=False, callback=Hearing())
    assert [(run.state, run.error) for run in result.failed] == [("failed", "why")]
    assert heard[-1] == Event(0, "warning", {"text": "cannot write: no space left"})
