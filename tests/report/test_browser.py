"""The page in a browser: no window scrolls sideways, tables sort, dark is dark, and nothing is asked of the network."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Tab, browser, installed
from finished_runs import finish_run

import perdure

PROGRAM = installed()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium here: the page is not looked at")
TASKS = [f"a task with a long name, number {number}" for number in range(12)]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two runs with many tasks, a long path and a long warning."""
    store = tmp_path_factory.mktemp("browsed") / "runs"
    rows = [[90.0 - task for task in range(row + 1)] for row in range(len(TASKS))]
    for place, (method, bwt) in enumerate({"gpm": -10.0, "rcl": -2.5}.items()):
        facts = {"method": method, "bwt": bwt, "accuracy_matrix": rows, "task_names": TASKS, "cautions": ["w" * 300]}
        finish_run(store / "six" / method / f"{place}123456789abcdef", facts)
    return perdure.write_report(store=store)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    assert PROGRAM is not None
    with browser(PROGRAM, tmp_path_factory.mktemp("profile")) as found:
        yield found


def test_the_page_in_a_browser(page: Path, tab: Tab) -> None:
    """One test, since a page is loaded once for all of it."""
    tab.open(page, 1400)
    for width in (360, 800, 1400):
        tab.resize(width)
        assert tab.run("innerWidth") == width
        assert tab.run("document.scrollingElement.scrollWidth") <= width
        assert tab.run("[...document.querySelectorAll('.scroll')].some((one) => one.scrollWidth > one.clientWidth)")

    first = "document.querySelector('#table-summary-1 tbody tr').cells[1].textContent"
    head = "document.querySelectorAll('#table-summary-1 thead th')[4]"
    assert tab.run(first) == "gpm"
    tab.run(f"{head}.querySelector('button').focus()")
    for order, best in (("descending", "rcl"), ("ascending", "gpm")):  # as numbers: −10 is less than −2.5
        for kind in ("keyDown", "keyUp"):
            tab.send(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
            )
        assert tab.run(f"{head}.getAttribute('aria-sort')") == order
        assert tab.run(first) == best

    ground = "getComputedStyle(document.documentElement).backgroundColor"
    line = "getComputedStyle(document.querySelector('.picture svg text')).fill"
    light = tab.run(ground), tab.run(line)
    tab.resize(1400, "dark")
    dark = tab.run(ground), tab.run(line)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    tab.run("document.getElementById('theme').click()")
    assert (tab.run(ground), tab.run(line)) == light

    tab.run("document.getElementById('run-2').open = false")
    told = "addEventListener('hashchange', () => setTimeout(done))"
    tab.run(f"new Promise((done) => {{ {told}; location.hash = '#run-2'; }})")
    assert tab.run("document.getElementById('run-2').open")
    tab.run("document.querySelector('#differing details').open = false")
    tab.run("dispatchEvent(new Event('beforeprint'))")
    assert tab.run("document.querySelector('#differing details').open")
    tab.run("dispatchEvent(new Event('afterprint'))")
    assert not tab.run("document.querySelector('#differing details').open")

    tab.run("document.querySelector('button.copy').click()")
    assert tab.problems() == []
    assert set(tab.requests()) == {page.resolve().as_uri()}


def test_the_page_forbids_what_is_not_its_own(page: Path, tab: Tab) -> None:
    tab.open(page, 800)
    tab.run(
        "document.body.insertAdjacentHTML('beforeend', '<p id=odd onclick=\"window.bad = 1\" style=\"color: red\">')"
    )
    tab.run("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.bad = 2'}))")
    tab.run("document.getElementById('odd').click()")
    assert tab.run("window.bad") is None
    assert tab.run("getComputedStyle(document.getElementById('odd')).color") != "rgb(255, 0, 0)"
