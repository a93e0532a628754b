"""The page of a report: whole, alone, safe, and the same each time."""

import base64
import csv
import hashlib
import itertools
import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from finished_runs import finish_run, rewrite_record
from typer.testing import CliRunner, Result

import perdure
from perdure.cli.main import app
from perdure.errors import PerdureError, UnknownName, WrongValue
from perdure.lab import report as lab
from perdure.lab.spec import RunSpec, spec
from perdure.lab.store import write_json
from perdure.report import svg
from perdure.report.differing import differing_tables
from perdure.report.page import DARK_PAGE, ShownPicture
from perdure.report.render import heat_map
from perdure.report.style import LOOKS, on_dark

HOSTILE = ["<script>alert(1)</script>", "[red]b\"'&amp;"]
VOID = {"meta", "img", "br", "hr", "input", "link"}
TEMPLATES = Path(perdure.__file__).parent / "report" / "templates"


class Page(HTMLParser):
    """Elements in order, each with its attributes, its parents' names and its text."""

    def __init__(self, content: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[dict[str, Any]] = []
        self.stack: list[dict[str, Any]] = []
        self.feed(content.decode())
        assert not self.stack, f"not closed: {[one['tag'] for one in self.stack]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = {"tag": tag, "in": [one["tag"] for one in self.stack], "text": "", "inside": [], **dict(attrs)}
        self.elements.append(element)
        for outer in self.stack:
            outer["inside"].append(element)
        if tag not in VOID:
            self.stack.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.stack[-1]["tag"] == tag, f"</{tag}> closes <{self.stack[-1]['tag']}>"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        for element in self.stack:
            element["text"] += data

    def all(self, tag: str, **having: str) -> list[dict[str, Any]]:
        return [one for one in self.elements if one["tag"] == tag and having.items() <= one.items()]


def fgsm(accuracies: list[float]) -> dict[str, Any]:
    """What the probe saves, of two tasks with ten images each."""
    level = {"acc": 75.0, "interval": [70.0, 80.0], "loss": 0.5}
    return {
        "probe": "fgsm",
        "values": {"strengths": [2 / 255, 0.5], "images": 10},
        "headline": {"FGSM 2/255": accuracies[0]},
        "attack": "FGSM",
        "norm": "linf",
        "space": "pixels",
        "notes": [],
        "tasks": HOSTILE,
        "images": [10, 10],
        "strengths": [2 / 255, 0.5],
        "labels": ["2/255", "0.5"],
        "acc": accuracies,
        "loss": [0.7, 0.9],
        "in_pixels": [[0.01, 0.01], [0.5, 0.5]],
        "in_normalized": [[0.02, 0.03], [1.0, 2.0]],
        "intervals": {"pooled": [[50.0, 70.0]] * 2, "by_task": [[[40.0, 60.0]] * 2] * 2},
        "by_task": [[60.0, 50.0]] * 2,
        "clean": {**level, "by_task": [80.0, 70.0], "intervals": [[70.0, 90.0]] * 2},
        "arrays": {},
        "arrays_sum": "",
        "models": ["00000000"],
    }


def made_up(store: Path) -> Path:
    """Two methods with two seeds each, on tasks with names that nobody should trust."""
    for place, (method, seed) in enumerate(itertools.product(("gpm", "rcl"), (1, 2))):
        last = 70.0 + 2 * place
        facts = {
            "method": method,
            "seed": seed,
            "task_names": HOSTILE,
            "cautions": ["a <b>warning</b>"] * (place == 3),
            "accuracy_matrix": [[85.0], [last, 80.0]],
            "acc": last / 2 + 40,
            "bwt": last - 85,
            "forgetting": 85 - last,
            "learning_accuracy": 82.5,
            "memory_bytes": {"bases": 2e6 * place},
            "threads": 1 + place // 3,
        }
        path = finish_run(store / "six" / method / f"{place}123456789abcdef", facts)
        epoch = {"lesson": 0, "valid": {"accuracy": 50.0, "loss": 1.0}}
        (path / "epochs.jsonl").write_text("".join(json.dumps({**epoch, "lesson": n // 2}) + "\n" for n in range(4)))
        write_json(path / "probes" / "fgsm-0badcafe.json", fgsm([60.0 + place, 30.0]))
        mine = {"probe": "my.py:Mine", "headline": {"mine": 1.5}, "arrays": {}, "arrays_sum": "", "values": {"a": 1}}
        write_json(path / "probes" / "Mine.json", {**mine, "models": ["00000000"]})
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up(tmp_path_factory.mktemp("made-up") / "runs")


@pytest.fixture(scope="module")
def content(store: Path) -> bytes:
    return lab.gather(store=store)[0].html()


@pytest.fixture(scope="module")
def page(content: bytes) -> Page:
    return Page(content)


# --- the page ---


def test_it_is_whole_and_ids_are_there_once(page: Page) -> None:
    assert page.elements[0]["tag"] == "html"
    assert {"header", "nav", "main"} <= {element["tag"] for element in page.elements}
    listed = [element["id"] for element in page.elements if "id" in element]
    ids = set(listed)
    assert len(listed) == len(ids) > 20
    for element in page.elements:
        for name in ("aria-labelledby", "href"):
            target = element.get(name) or ""
            if target.startswith("#") or name == "aria-labelledby":
                assert not target or target.removeprefix("#") in ids, target
        for name in ("clip-path", "fill", "stroke"):
            reference = re.fullmatch(r"url\(#(.+)\)", element.get(name) or "")
            assert reference is None or reference[1] in ids


def test_nothing_comes_from_elsewhere(page: Page, content: bytes) -> None:
    for element in page.elements:
        for name in ("href", "xlink:href", "src", "srcset", "action", "data"):
            assert (element.get(name) or "#").startswith(("#", "data:image/png;")), element
        assert not [name for name in element if name == "style" or name.startswith("on")], element
    assert not re.search(rb"https?://|@import|//[a-z]+\.", content)
    assert not page.all("link")


def test_only_its_own_style_and_script_may_run(page: Page) -> None:
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    rules = dict(rule.strip().split(" ", 1) for rule in policy["content"].split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for tag in ("style", "script"):
        (element,) = page.all(tag)
        digest = base64.b64encode(hashlib.sha256(element["text"].encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    assert page.elements.index(policy) < page.elements.index(page.all("style")[0])


def test_names_are_text(page: Page) -> None:
    assert len(page.all("script")) == 1
    for name in HOSTILE:
        assert any(cell["text"] == name for cell in page.all("th"))
        assert any(name in text["text"] for text in page.all("text")), "in pictures"
    assert any("a <b>warning</b>" in item["text"] for item in page.all("li"))
    assert not page.all("b")


def test_every_picture_has_a_caption_and_the_command_that_makes_it(page: Page) -> None:
    pictures = [figure for figure in page.all("figure") if figure["class"].startswith("picture")]
    assert len(pictures) == 4 + 1 + 4 * 2  # methods compared, FGSM of all; of each run its curves and FGSM
    for picture in pictures:
        (caption,) = [one["text"] for one in picture["inside"] if one["tag"] == "figcaption"]
        (command,) = [one["text"] for one in picture["inside"] if one["tag"] == "code"]
        assert len(caption) > 20
        assert shlex.split(command)[:2] in (["perdure", verb] for verb in ("run", "probe", "report"))
        (drawn,) = [one for one in picture["inside"] if one["tag"] == "svg"]
        assert drawn["aria-label"] == caption
        assert drawn["role"] == "img"


def test_tables_can_be_sorted_and_copied(page: Page) -> None:
    tables = page.all("table", **{"class": "sortable"})
    assert len(tables) > 4
    for table in tables:
        heads = [one for one in table["inside"] if one["tag"] == "th" and one["scope"] == "col"]
        assert all(head["aria-sort"] == "none" and head["inside"][0]["tag"] == "button" for head in heads)
    (summary,) = [one for one in page.all("figure") if one.get("id") == "table-summary-1"]
    cells = {one["text"]: one["data-sort"] for one in summary["inside"] if one["tag"] == "td"}
    assert cells["75.50 ± 0.71"] == "75.5"  # gpm came to 75 and 76, rcl to 77 and 78
    assert [one["text"] for one in summary["inside"] if one["tag"] == "strong"] == ["77.50 ± 0.71", "−10.00 ± 1.41"]
    texts = [one["text"] for one in summary["inside"] if one["tag"] == "code"]
    assert next(csv.reader(StringIO(texts[0])))[:4] == ["benchmark", "method", "n", "ACC"]
    assert texts[1].startswith("\\begin{table}")


def test_cells_of_a_matrix_are_shaded_by_their_percents(page: Page) -> None:
    shaded = [one for one in page.all("td") if re.search(r"\bp\d+", one.get("class") or "")]
    assert len(shaded) == 2 * 3 + 4 * 3  # of two methods and of four runs
    assert all(f"p{round(float(one['text']))}" in one["class"].split() for one in shaded)


def test_means_over_seeds_are_means(page: Page) -> None:
    (first,) = [one for one in page.all("figure") if one.get("id") == "matrix-1"]
    assert [one["text"] for one in first["inside"] if one["tag"] == "td" and one["text"]] == ["85.0", "71.0", "80.0"]


def test_it_says_what_was_run_and_what_to_be_careful_with(page: Page) -> None:
    facts = {dt["text"]: dd["text"] for dt, dd in zip(page.all("dt"), page.all("dd"), strict=True)}
    assert facts["methods"] == "gpm, rcl"
    assert facts["seeds"] == "1, 2"
    assert facts["hash"] == "3123456789abcdef"
    (warnings,) = page.all("section", **{"class": "warnings"})
    assert "these runs differ in threads (1, 2)" in warnings["text"]


def test_runs_are_folded_where_they_are_many(page: Page, store: Path) -> None:
    assert [("open" in run) for run in page.all("details", **{"class": "run"})] == [False] * 4
    alone = Page(lab.gather("0123", store)[0].html())
    assert [("open" in run) for run in alone.all("details", **{"class": "run"})] == [True]
    assert not [one for one in alone.all("section") if one.get("id") in ("figures", "differing", "matrices", "probes")]
    assert alone.all("h1")[0]["text"] == "gpm on six, seed 1"


def test_the_report_of_one_run_belongs_to_it_and_that_of_several_to_the_store(store: Path) -> None:
    assert lab.gather("0123", store)[1].name.startswith("0123")
    assert lab.gather(store=store)[1] == store


def test_the_same_records_give_the_same_bytes(store: Path) -> None:
    first, again = (lab.gather("0123", store)[0].html() for _ in range(2))
    assert first == again


def test_what_shows_the_same_is_not_drawn_again(store: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    report = lab.gather(store=store)[0]
    monkeypatch.setattr("perdure.report.page._render", lambda *_: b"drawn")
    assert report.html(content) == content
    assert report.html(b"something else") == b"drawn"
    record = {**report.runs[3].record, "accuracy_matrix": [[85.0], [76.0, 80.5]]}
    changes: list[dict[str, Any]] = [{"title": "another"}, {"made_by": "2.0"}, {"warnings": ["new"]}]
    changes += [{"runs": [*report.runs[:3], replace(report.runs[3], record=record)]}]
    assert all(replace(report, **change).html(content) == b"drawn" for change in changes)


def test_tasks_learned_together_and_runs_that_say_little(tmp_path: Path) -> None:
    facts = {"method": "mtl", "bwt": None, "accuracy_matrix": [[70.0, 80.0]], "finished": None}
    finish_run(tmp_path / "six" / "mtl" / ("a" * 16), facts)
    found = Page(lab.gather(store=tmp_path)[0].html())
    assert "BWT –" in found.all("summary")[-2]["text"]


def test_facts_are_of_the_first_run_to_the_last(tmp_path: Path) -> None:
    for day, seed in ((5, 1), (2, 3), (3, 2)):
        path = finish_run(tmp_path / "six" / "gpm" / (str(seed) * 16), {"seed": seed})
        rewrite_record(path, finished=f"2026-01-0{day}T03:04:05+00:00")
    report, folder = lab.gather(store=tmp_path)
    assert report.facts["finished"] == "2026-01-02 03:04 to 2026-01-05 03:04 UTC"
    assert (report.facts["runs"], report.facts["seeds"], report.facts["methods"]) == ("3", "1, 2, 3", "gpm")
    assert (report.title, folder) == ("gpm on six", tmp_path)
    one, folder = lab.gather("2" * 16, tmp_path)
    assert (one.title, one.facts["finished"], folder.name) == (
        "gpm on six, seed 2",
        "2026-01-03 03:04 UTC",
        "2" * 16,
    )


def test_titles_name_what_is_compared_where_that_is_short(tmp_path: Path) -> None:
    for number, (method, benchmark) in enumerate([("gpm", "six"), ("rcl", "six"), ("gpm", "five")]):
        finish_run(tmp_path / benchmark / method / (str(number) * 16), {"method": method, "benchmark": benchmark})
    assert lab.gather(["six"], tmp_path)[0].title == "gpm, rcl on six"
    assert lab.gather(store=tmp_path)[0].title == f"3 runs of {tmp_path.name}"
    for number, method in enumerate(("ewc", "er", "agem"), start=3):
        finish_run(tmp_path / "six" / method / (str(number) * 16), {"method": method, "benchmark": "six"})
    assert lab.gather(["six"], tmp_path)[0].title == f"5 runs of {tmp_path.name}"


# --- colors ---


def luminance(color: str) -> float:
    """Of sRGB, as WCAG 2 defines it."""
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def themes(page: Page) -> Iterator[dict[str, str]]:
    """The variables of the light page and of the dark one."""
    (style,) = page.all("style")
    light, dark = (
        style["text"].split(selector)[1].split("}")[0] for selector in (":root {", ':root[data-theme="dark"] {')
    )
    names = {"black": "#000000", "white": "#ffffff"}
    for block in (light, dark):
        found = dict(re.findall(r"--([\w]+): (#[0-9a-f]{6}|black|white)", block))
        yield {name: names.get(color, color) for name, color in found.items()}


def test_everything_can_be_read_in_light_and_dark(page: Page) -> None:
    light, dark = themes(page)
    assert light.keys() == dark.keys()
    for theme in (light, dark):
        for name, ground in itertools.product(("ink", "faint", "link", "alarm", "care"), ("page", "soft")):
            assert contrast(theme[name], theme[ground]) >= 4.5, (name, ground)
        for percent in range(101):
            assert contrast(theme[f"g{percent}"], theme[f"i{percent}"]) >= 4.5, percent
    assert all(contrast(dark[name], dark["page"]) >= 4.5 for name in LOOKS if name not in ("mtl", "finetune"))
    assert dark["page"] == "#" + "".join(f"{part:02x}" for part in DARK_PAGE)


def test_a_color_is_made_lighter_only_where_it_must_be() -> None:
    assert on_dark("#ffffff", (0, 0, 0)) == "#ffffff"
    assert contrast("#332288", "#16181c") < 4.5 <= contrast(on_dark("#332288", DARK_PAGE), "#16181c")


# --- pictures inside it ---


def draw_line(figure: Any) -> None:
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#d55e00", marker="o")
    axes.plot([1, 0], [0, 1], color="black")
    axes.axhline(0.5, color="0.8")
    axes.text(0.5, 0.5, "on a cell", color="black")
    axes.set_title("a title")


def test_pictures_follow_the_page() -> None:
    found = Page(svg.inline_svg(draw_line, "x-", "about"))
    strokes = [(one["stroke"], one.get("stroke-opacity")) for one in found.all("path") if "clip-path" in one]
    assert strokes == [("var(--rcl)", None), ("currentColor", None), ("currentColor", "0.2")]
    texts = {one["text"]: one["fill"] for one in found.all("text")}
    assert texts["a title"] == "currentColor"
    assert texts["on a cell"] == "#000000"  # it stands on a ground that does not follow
    assert not [one for one in found.elements if "style" in one or one["tag"] in ("style", "metadata")]
    assert all(one["id"].startswith("x-") for one in found.elements if "id" in one)
    marked = [one for one in found.all("use") if one["fill"] == "var(--rcl)"]
    markers = [one for one in found.all("path") if one.get("id") in {use["href"][1:] for use in marked}]
    assert [("fill" in one) for one in markers] == [False]  # it would hide the color of where it is used
    assert {one["href"][1:] for one in found.all("use")} <= {one["id"] for one in found.elements if "id" in one}


def test_a_picture_that_is_too_large_is_a_png_on_a_white_card(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert svg.LARGEST == 200_000
    monkeypatch.setattr(svg, "LARGEST", 1000)
    found = Page(lab.gather("0123", store)[0].html())
    images = found.all("img")
    assert len(images) == 2
    assert all(base64.b64decode(one["src"].partition(",")[2]).startswith(b"\x89PNG") and one["alt"] for one in images)
    assert len(found.all("div", **{"class": "scroll card"})) == 2


def test_a_picture_that_holds_an_image_keeps_its_white_ground() -> None:
    plain, heat = (svg.inline_svg(draw, "x-", "about").decode() for draw in (draw_line, draw_cells))
    assert not ShownPicture("", "", svg=plain).card
    assert ShownPicture("", "", svg=heat).card


def draw_cells(figure: Any) -> None:
    heat_map(figure.subplots(), [[90.0], [10.0, 50.0]])


def test_pictures_are_small(content: bytes) -> None:
    """36 runs with a probe are below 3 MB: curves and a probe are below 40 kB, and what a run has besides below 25."""
    assert len(content) < 400_000
    sizes = [len(part) for part in re.findall(rb"<svg.*?</svg>", content, re.DOTALL)]
    assert len(sizes) == 13
    assert max(sizes) < 30_000


# --- where runs differ ---


def test_only_what_differs_is_side_by_side(store: Path) -> None:
    report = lab.gather(["0123", "3123"], store)[0]
    specification, results, same = differing_tables(report.runs_by_label())
    assert specification is not None
    assert results is not None
    assert same is not None
    rows = [[cell.text for cell in row] for row in specification.rows]
    assert rows == [["method", "gpm", "rcl"], ["seed", "1", "2"], ["threads", "1", "2"]]
    found = {row[0].text: [cell.text for cell in row[1:]] for row in results.rows}
    assert found["ACC"] == ["75.0", "78.0"]
    assert found["memory, MB"] == ["0.0", "6.0"]
    assert f"{HOSTILE[0]}, in the end" in found
    assert f"{HOSTILE[1]}, in the end" not in found  # 80 in both
    assert ["network", "mlp"] in [[cell.text for cell in row] for row in same.rows]
    assert differing_tables({"alone": [report.runs[0].record]}) == []


# --- commands ---

SPECS = [
    spec("finetune", "six"),
    spec("rcl", "synthetic", seed=3, tasks=2, values={"radius": 0.125, "mix_weight": 0.2}, plan={"epochs": 2}),
    spec("gpm", "six", network="mlp", values={"budget": "64MB"}, outliers="labels:0.2@2-4"),
    spec("er", "pmnist", plan={"schedule": "steps", "milestones": "5,8", "epochs": 10, "augment": "flip+crop"}),
    spec("ewc", "five", settings={"legacy": True}, plan={"optimizer": "adamw", "nesterov": False, "rate": 1e-4}),
    # what presets have otherwise and records leave out, since it came later
    spec("trgp", "cifar100", values={"variant": "intended", "learn_norms": False}),
    spec("fsdgpm", "cifar100", plan={"reset_momentum": False}),
    spec("rcl", "cifar100", values={"variant": "paper", "phi_rate": 0.1}, settings={"order": "random"}),
]


@pytest.mark.parametrize("wanted", SPECS, ids=lambda one: one.method)
def test_the_command_of_a_run_asks_for_the_same_run(wanted: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RunSpec] = []

    def run(method: str, benchmark: str, **options: Any) -> None:
        names = ("seed", "tasks", "values", "plan", "settings", "outliers")
        given = {name: options[name] for name in names}
        asked.append(spec(method, benchmark, network=options["net"], **given))
        raise PerdureError("enough")

    monkeypatch.setattr("perdure.lab.run.run", run)
    record = json.loads(json.dumps({**wanted.plain(), "threads": 1, "device": "cpu"}))
    words = shlex.split(lab.run_command(record))
    assert words[:2] == ["perdure", "run"]
    CliRunner().invoke(app, words[1:])
    assert [one.digest() for one in asked] == [wanted.digest()]


def test_commands_are_short_and_name_the_store() -> None:
    record = {**spec("gpm", "six", plan={"epochs": 3}).plain(), "threads": 2, "device": "cuda"}
    command = "perdure run gpm six --seed 1 --plan epochs=3 --threads 2 --device cuda --out 'my runs'"
    assert lab.run_command(record, Path("my runs")) == command
    values = {"strengths": [2 / 255, 0.5], "images": 10}
    assert lab.probe_command("mine", values, ["0123456789abcdef"]) == (
        "perdure probe mine 0123456789 --set strengths=2/255,0.5 --set images=10"
    )
    usual = {name: value.default for name, value in lab.values_of(lab.registry.probes.load("pgd")).items()}
    assert lab.probe_command("mine", {"at": 200 / 255}, ["0" * 16]).endswith("--set at=200/255")
    assert lab.probe_command("pgd", {**usual, "images": 7}, ["a" * 16]) == "perdure probe pgd aaaaaaaaaa --set images=7"


def test_files_of_ones_own_are_named_and_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "my.py"
    trap.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    code = {"method": {"where": f"{trap}:Careful", "checksum": "0"}}
    facts = {"method": "my.py:Careful", "code": code, "values": {"care": 2.0}}
    finish_run(tmp_path / "runs" / "six" / "Careful" / ("b" * 16), facts)
    report = lab.gather(store=tmp_path / "runs")[0]
    assert f"perdure run {trap}:Careful six --seed 1 --net mlp --set care=2.0" in report.runs[0].command
    assert report.title == "Careful on six, seed 1"
    assert not (tmp_path / "ran").exists()


# --- a study ---

STUDY = """
about = "two methods & <little> time"
methods = ["finetune", "gpm"]
benchmarks = ["synthetic"]
seeds = [1]
tasks = 2
probes = ["fgsm(images=20)"]
plan = { epochs = 1 }
"""


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a study whose runs are done, in `runs` beside it."""
    file = tmp_path_factory.mktemp("studied") / "tiny.toml"
    file.write_text(STUDY)
    options = {"tasks": 2, "plan": {"epochs": 1}, "probes": ["fgsm(images=20)"], "pictures": False}
    for method in ("finetune", "gpm"):
        perdure.run(method, "synthetic", out=file.parent / "runs", **options)
    return file


def test_a_study_ends_with_its_page_which_is_that_of_the_verb(studied: Path) -> None:
    out = studied.parent / "runs"
    result = perdure.study(studied, out=out)
    (file,) = [file for file in result.files if file.suffix == ".html"]
    assert file == out / "studies" / "tiny" / "report.html"
    written = file.read_bytes()
    report, folder = lab.gather(studied, out)
    assert folder == file.parent
    assert report.html(written) == written  # what it shows is the same
    found = Page(written)
    assert found.all("h1")[0]["text"] == "Study tiny"
    assert found.all("p", **{"class": "about"})[0]["text"] == "two methods & <little> time"
    assert found.all("code")[0]["text"].startswith(f"perdure study {studied}")
    sheet = perdure.write_report(result, studied.parent / "new" / "page.csv", format="csv")
    assert sheet.read_text().startswith("benchmark,method,n,ACC")


def test_a_study_is_shown_as_far_as_it_is_done_from_records_alone(
    studied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = tmp_path / "longer.toml"
    longer.write_text(STUDY.replace("[1]", "[1, 2, 3]"))

    def closed(*_: Any, **__: Any) -> None:
        raise AssertionError("no data are opened")

    monkeypatch.setattr("perdure.lab.study.open_clean", closed)
    report, folder = lab.gather(longer, studied.parent / "runs")
    assert report.facts["runs"] == "2 of 6 done"
    assert folder == studied.parent / "runs" / "studies" / "longer"
    assert [row[2].text for row in report.tables["summary"][0].rows] == ["1 of 3", "1 of 3"]
    other, _ = lab.gather(longer, studied.parent / "runs", scale=2)  # two epochs: other runs
    assert other.facts["runs"] == "0 of 6 done"
    assert other.facts["scale"] == "epochs × 2: not the plan's figures"
    assert [shlex.split(one.command)[:5] for one in (report, other)] == [
        ["perdure", "study", str(longer), "--out", str(studied.parent / "runs")],
        ["perdure", "study", str(longer), "--scale", "2"],
    ]
    assert Page(other.html()).all("h1")[0]["text"] == "Study longer"


def test_the_command_of_a_comparison_is_the_one_that_was_given() -> None:
    content = {
        "methods": ["finetune", "gpm"],
        "benchmarks": ["six"],
        "seeds": [1, 2],
        "tasks": 3,
        "network": "mlp",
        "plan": {"epochs": 3},
        "values": {"gpm": {"threshold": 0.9}},
        "outliers": "labels:0.2",
        "probes": ["pgd(images=50 steps=3)"],
    }
    command = lab.study_command(lab_in_memory(content), 1.0, Path("runs"))
    assert command == (
        "perdure compare finetune gpm six --seeds 1,2 --tasks 3 --net mlp --set gpm.threshold=0.9 --plan epochs=3 "
        "--outliers labels:0.2 --probe 'pgd(images=50 steps=3)'"
    )


def lab_in_memory(content: dict[str, Any]) -> Any:
    from perdure.lab.study_file import in_memory

    return in_memory("compare", content)


# --- other formats, and the verb ---


def verb(*words: str) -> Result:
    return CliRunner().invoke(app, ["report", *words], env={"COLUMNS": "200"})


def test_other_formats_have_the_same_tables(store: Path) -> None:
    report = lab.gather(["0123", "2123"], store)[0]
    markdown, latex, sheets = (report.text(form) for form in ("markdown", "latex", "csv"))
    assert "| six | rcl | 1 | **77.00** |" in markdown
    assert "gpm, seed 1, on six: accuracy on each task after each was learned" in markdown
    assert r"| after | \<script>alert(1)\</script> |" in markdown
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == sheets.count("\n\n") + 1
    assert "six,rcl,1,77.00,-11.00" in sheets
    assert verb("0123", "2123", "--out", str(store), "--format", "csv").stdout == sheets


def test_the_verb_writes_where_it_is_told(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "my.html"
    done = verb("0123", "--out", str(store), "--file", str(file))
    assert done.stdout == f"report: {file}\n"
    assert Page(file.read_bytes()).all("h1")
    done = verb("gpm", "six", "--out", str(store), "--format", "markdown", "--file", str(tmp_path / "my.md"))
    assert (tmp_path / "my.md").read_text().startswith("percent, mean")
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "nowhere"], "no finished run in nowhere; `perdure ls runs --out nowhere`"),
        (["--out", "page.html"], "--out names the store, --file the page"),
        (["--format", "pdf"], "unknown format of a report 'pdf'"),
        (["smoke", "gpm"], "smoke is a study: a report shows one study, or runs"),
        (["gpm", "--scale", "0.5"], "--scale 0.5 belongs to a study"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_line(words: list[str], message: str) -> None:
    done = verb(*words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_wrong_wishes_in_python(store: Path) -> None:
    with pytest.raises(UnknownName, match="format of a report"):
        perdure.write_report(store=store, format="pdf")
    with pytest.raises(WrongValue, match="no run 'ffff'"):
        perdure.write_report("ffff", store=store)


def test_runs_that_are_not_shown_are_named(tmp_path: Path) -> None:
    copied = made_up(tmp_path / "runs")
    damaged = copied / "six" / "gpm" / "0123456789abcdef" / "record.json"
    damaged.write_text("{")
    report = lab.gather(store=copied)[0]
    assert len(report.runs) == 3
    assert any("0123456789abcdef" in warning for warning in report.warnings)


def test_without_the_extra_it_says_how_to_install_it(studied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    out = studied.parent / "runs"
    with pytest.raises(PerdureError, match=r"a report needs jinja2: pip install .*\[report\]"):
        perdure.write_report(studied, store=out)
    (out / "studies" / "tiny" / "report.html").unlink(missing_ok=True)
    notes = [note for note in perdure.study(studied, out=out).notes if "report" in note]
    assert len(notes) == 1
    assert notes[0].startswith("warning: no report.html: a report needs jinja2: pip install")
