"""Outlier streams: what was asked for, how it is named, and what is contaminated."""

import pytest
import torch

from perdure.errors import UnknownName, WrongValue
from perdure.lab.build import open_clean, open_stream
from perdure.lab.outlier_spec import OutlierSpec, outlier_specs
from perdure.lab.spec import RunSpec, spec
from perdure.ops.contamination import outlier_rows


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("none", ()),
        ("labels:0.2", (OutlierSpec("labels", 0.2),)),
        ("foreign:1@3,1-2", (OutlierSpec("foreign", 1.0, (1, 2, 3)),)),
        ("labels:1e-1+corrupted:.5@2", (OutlierSpec("labels", 0.1), OutlierSpec("corrupted", 0.5, (2,)))),
    ],
)
def test_reading(text: str, found: tuple[OutlierSpec, ...]) -> None:
    assert outlier_specs(text) == found
    assert outlier_specs("+".join(map(str, found))) == found


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("label:0.2", UnknownName, "did you mean labels"),
        ("labels", WrongValue, "KIND:RATE"),
        ("labels:20", WrongValue, "a share above 0 and at most 1"),
        ("labels:0", WrongValue, "a share above 0 and at most 1"),
        ("labels:1..2", WrongValue, "a share above 0 and at most 1"),
        ("labels:0.2@0", WrongValue, "counted from 1"),
        ("labels:0.2@3-2", WrongValue, "counted from 1"),
        ("labels:0.2@2-", WrongValue, "counted from 1"),
        ("labels:0.2@", WrongValue, "KIND:RATE"),
    ],
)
def test_asked_wrongly(text: str, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        spec("gpm", "synthetic", outliers=text)


def test_a_run_without_outliers_is_named_as_ever_and_one_with_them_is_another() -> None:
    plain, dirty = spec("gpm", "synthetic"), spec("gpm", "synthetic", outliers="labels:0.20")
    assert "outliers" not in plain.plain()
    assert dirty.digest() == spec("gpm", "synthetic", outliers="labels:.2").digest() != plain.digest()
    for one in (plain, dirty):
        assert RunSpec.from_plain(one.plain()) == one


@pytest.mark.parametrize("kind", ["labels", "corrupted", "adversarial", "foreign"])
def test_training_images_of_the_chosen_tasks_and_nothing_else(kind: str) -> None:
    wanted = spec("gpm", "synthetic", outliers=f"{kind}:0.2@2", plan={"epochs": 1})
    clean, dirty = open_clean(wanted, None), open_stream(wanted, None)
    for number, (before, after) in enumerate(zip(clean, dirty, strict=True)):
        rows = outlier_rows(before.train, after.train)
        assert len(rows) == (18 if number == 1 else 0)
        assert torch.equal(before.test.x, after.test.x)
        assert torch.equal(before.valid.x, after.valid.x)
        assert torch.equal(before.train.y, after.train.y) != (kind == "labels" and number == 1)
        if kind == "adversarial" and number == 1:
            moved = (after.train.x - before.train.x).abs().amax()
            assert 7.9 / 255 < float(moved) <= 8.001 / 255
    again = open_stream(wanted, None)
    assert all(torch.equal(a.train.x, b.train.x) for a, b in zip(dirty, again, strict=True))
    assert "outliers" in dirty.notes


def test_outliers_that_a_stream_cannot_have() -> None:
    with pytest.raises(WrongValue, match="no task 4; the stream has 3"):
        open_clean(spec("gpm", "synthetic", outliers="labels:0.2@4"), None)
    with pytest.raises(WrongValue, match="other tasks, and there are none"):
        open_clean(spec("gpm", "synthetic", tasks=1, outliers="foreign:0.2"), None)
