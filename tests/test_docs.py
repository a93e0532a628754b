"""What the README and the docs show is run, and what they link to is there."""

import re
from pathlib import Path

import pytest

from perdure import registry

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def run_python_of(page: str) -> dict[str, object]:
    """Run the Python blocks of a page, one after another, and return their names."""
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.usefixtures("jobs_here")
def test_python_of_the_readme_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # runs are kept in ./runs
    names = run_python_of("README.md")
    assert re.search(r"FGSM 1/255.*\n\['\w+', .*\]\nLearned\(3 tasks: ACC .*\) \[\[", capsys.readouterr().out)
    from perdure.data.benchmarks.synthetic import synthetic
    from perdure.nets.mlp import MLP
    from perdure.nets.network import Network
    from perdure.train.learn import learn
    from perdure.train.plan import Plan

    careful = names["Careful"](Network(MLP((3, 32, 32))))  # type: ignore[operator]
    backbone = {}

    stream = synthetic(seed=1, tasks=2)
    for lessons in (1, 2):
        again = names["Careful"](Network(MLP((3, 32, 32))))  # type: ignore[operator]
        again.load_state_dict(careful.state_dict())
        learn(again, stream.tasks[:lessons], Plan(epochs=1, batch=16))
        backbone[lessons] = again.net.backbone.hidden[0].weight.detach().clone()
    assert backbone[1].equal(backbone[2])  # the second task left it alone


@pytest.mark.usefixtures("jobs_here")
@pytest.mark.parametrize(
    "page",
    [
        "docs/runs.md",
        "docs/own-data.md",
        "docs/python.md",
        "docs/own-things.md",
        pytest.param("docs/report.md", marks=pytest.mark.thorough),  # docs/python.md has most of it
        "docs/learner.md",
    ],
)
def test_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in registry.KINDS:
        monkeypatch.setattr(kind, "_own", {})  # what a page registers is gone with it
    run_python_of(page)


def test_python_of_the_laboratory_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from perdure.data.benchmarks.synthetic import synthetic
    from perdure.lab.run import run_spec as run
    from perdure.lab.spec import spec

    names = run_python_of("docs/laboratory.md")
    assert "PGD-5 2/255" in capsys.readouterr().out
    path = run(spec("gpm", "synthetic", tasks=2, plan={"epochs": 1}), out=tmp_path)["path"]
    module = names["as_module"](path, 1)  # type: ignore[operator]
    assert module(synthetic(seed=1).tasks[1].test.x[:4]).shape == (4, 3)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", list(registry.methods))
def test_every_method_has_a_page(name: str) -> None:
    assert (ROOT / "docs" / "methods" / f"{name}.md").is_file()


def test_the_table_of_equations_names_what_exists() -> None:
    import importlib

    text = (ROOT / "docs" / "equations.md").read_text("utf-8")
    found = re.findall(r"`(ops|methods|memory|probes)\.(\w+)\.(\w+)(?:\.(\w+))?", text)
    assert len(found) > 30
    for package, module, name, member in found:
        value = getattr(importlib.import_module(f"perdure.{package}.{module}"), name)
        assert not member or hasattr(value, member), f"{name} has no {member}"
    for number in range(1, 19):
        assert re.search(rf"^\| (\d+, )?{number}(, \d+)? \|", text, re.MULTILINE), f"Eq. {number} is missing"
