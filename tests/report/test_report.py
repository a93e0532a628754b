"""Tables and pictures, from a record alone."""

from io import BytesIO, StringIO

from PIL import Image
from rich.console import Console

from perdure.ops.statistics import Group, Interval
from perdure.report.figures import accuracy_matrix
from perdure.report.tables import comparison, differences, matrix, summary

RECORD = {
    "method": "gpm",
    "benchmark": "six",
    "seed": 1,
    "acc": 81.25,
    "bwt": -2.5,
    "learning_accuracy": 82.5,
    "seconds": 12.3,
    "task_names": ["one", "two"],
    "accuracy_matrix": [[75.0], [72.5, 90.0]],
    "probes": {"fgsm": {"strengths": [1 / 255, 2 / 255], "acc": [60.0, 44.4]}},
}
JOINT = {**RECORD, "method": "mtl", "bwt": None, "learning_accuracy": None, "accuracy_matrix": [[72.5, 90.0]]}


def printed(*things: object) -> str:
    console = Console(file=StringIO(), width=120)
    for thing in things:
        console.print(thing)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_tables_say_what_the_record_says() -> None:
    text = printed(comparison([RECORD, JOINT]), matrix(RECORD))
    for figure in ("81.2", "-2.5", "82.5", "60.0", "44.4", "12", "72.5", "90.0", "FGSM 2", "–"):
        assert figure in text


def test_a_record_without_probes_has_no_attack_columns() -> None:
    plain = {name: value for name, value in RECORD.items() if name != "probes"}
    assert "FGSM 1" not in printed(comparison([plain]))


def test_the_picture_is_a_picture() -> None:
    for record in (RECORD, JOINT):
        image = Image.open(BytesIO(accuracy_matrix(record)))
        assert image.format == "PNG"
        assert min(image.size) > 200
        dark, light = image.convert("L").getextrema()
        assert dark < 100 < 200 < light


def test_tables_of_groups_say_what_is_missing() -> None:
    done = Group("gpm", "six", "", ({"seed": 1, "acc": 70.0}, {"seed": 2, "acc": 72.0}, {"seed": 3}))
    lone = Group("ewc", "six", "λ=1", ({"seed": 1, "acc": 60.0, "bwt": 1.0},))
    figures = {"acc": Interval(10.0, None, None, 1), "bwt": None}
    text = " ".join(printed(summary([done, lone], "; a note"), differences([(done, lone, figures)])).split())
    assert "(ddof 1); a note" in text
    assert "gpm │ 2 of 3 │ 71.00 ± 1.41 │ –" in text
    assert "ewc (λ=1) │ 1 │ 60.00 │ +1.00" in text
    assert "gpm − ewc (λ=1) │ 1 │ +10.00 │ –" in text
