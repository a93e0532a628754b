"""Outliers: as many as asked for, the same ones at every rate, and nothing else touched."""

from collections import Counter
from itertools import pairwise

import pytest
import torch

from perdure.errors import UnknownName, WrongValue
from perdure.ops.contamination import VISIBLE, contaminate, outlier_rows
from perdure.ops.corruptions import KINDS as ALL_KINDS
from perdure.seeding import generator
from perdure.types import Split

KINDS = ("labels", "corrupted", "adversarial", "foreign")
N, CLASSES = 150, 4


@pytest.fixture(params=[torch.uint8, torch.float32], ids=["bytes", "floats"])
def split(request):
    pixels = torch.randint(1, 255, (N, 3, 8, 8), generator=generator(0, "x"), dtype=torch.uint8)
    x = pixels if request.param == torch.uint8 else pixels / 255
    return Split(x, torch.arange(N) % CLASSES, (0.4, 0.5, 0.6), (0.2, 0.2, 0.3))


def adversary(pixels, y):
    """What it does to an image depends on those beside it, in batches of 64, as with batch norm."""
    del y
    return torch.cat([(x + 0.2 * (1 + x.mean())).clamp(0, 1) for x in pixels.split(64)])


def dirty(split, kind, rate, seed=0):
    foreign = torch.zeros(5, 3, 8, 8)
    foreign += torch.arange(5).view(5, 1, 1, 1) / 5
    return contaminate(
        split, kind, rate, classes=CLASSES, rng=generator(seed, "outliers"), foreign=foreign, adversary=adversary
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [0.1, 0.37, 1.0])
def test_exactly_so_many(split, kind, rate):
    x, y = split.x.clone(), split.y.clone()
    found = dirty(split, kind, rate)
    rows = outlier_rows(split, found)
    assert len(rows) == round(rate * N)
    assert found.x.dtype == split.x.dtype
    assert (found.mean, found.std) == (split.mean, split.std)
    assert torch.equal(split.x, x)
    assert torch.equal(split.y, y)
    assert torch.equal(found.y, y) is (kind != "labels")
    assert torch.equal(found.x, x) is (kind == "labels")


@pytest.mark.parametrize("kind", KINDS)
def test_none(split, kind):
    assert dirty(split, kind, 0) is split
    assert dirty(split, kind, 0.4 / N) is split


@pytest.mark.parametrize("kind", KINDS)
def test_rates_are_nested(split, kind):
    found = [dirty(split, kind, rate) for rate in (0.1, 0.2, 0.5, 0.9)]
    for lower, higher in pairwise(found):
        rows = outlier_rows(split, lower)
        assert set(rows.tolist()) < set(outlier_rows(split, higher).tolist())
        assert torch.equal(lower.x[rows], higher.x[rows])
        assert torch.equal(lower.y[rows], higher.y[rows])


@pytest.mark.parametrize("kind", KINDS)
def test_chance_decides(split, kind):
    first, again, other = (dirty(split, kind, 0.3, seed) for seed in (0, 0, 1))
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.y, again.y)
    assert not torch.equal(outlier_rows(split, first), outlier_rows(split, other))


def test_wrong_labels_are_uniform_among_the_others():
    split = Split(torch.zeros(3000, 1, 2, 2), torch.ones(3000, dtype=torch.long))
    counts = contaminate(split, "labels", 1, classes=4, rng=generator(0, "y")).y.bincount(minlength=4).tolist()
    assert counts[1] == 0
    assert all(abs(counts[label] - 1000) < 80 for label in (0, 2, 3))


def test_foreign_images_are_foreign(split):
    found = dirty(split, "foreign", 0.4)
    x = found.pixels(outlier_rows(split, found))
    levels = x[:, 0, 0, 0]
    assert torch.equal(x, levels.view(-1, 1, 1, 1).expand_as(x))
    assert len(levels.unique()) == 5
    as_bytes = (torch.arange(5).view(5, 1, 1, 1) * 51).expand(5, 3, 8, 8).to(torch.uint8)
    other = contaminate(split, "foreign", 0.4, classes=4, rng=generator(0, "outliers"), foreign=as_bytes)
    assert torch.allclose(other.pixels(slice(None)), found.pixels(slice(None)), atol=1e-6)


def test_adversary_sees_whole_batches_with_their_labels(split):
    seen = []

    def spy(pixels, y):
        seen.append((pixels, y))
        return adversary(pixels, y)

    found = contaminate(split, "adversarial", 0.1, classes=4, rng=generator(0, "outliers"), adversary=spy)
    ((pixels, y),) = seen
    assert pixels.dtype == torch.float32
    assert pixels.shape == (64, 3, 8, 8)
    rows = (pixels[:, None] == split.pixels(slice(None))).flatten(2).all(2).nonzero()[:, 1]  # images are all different
    assert torch.equal(y, split.y[rows])
    assert set(rows[:15].tolist()) == set(outlier_rows(split, found).tolist())
    wanted = adversary(pixels, y)[:15]
    assert torch.allclose(found.pixels(rows[:15]), wanted, atol=0.5 / 255 + 1e-6)


def test_grey_photos_become_outliers_all_of_them():
    assert "saturation" not in VISIBLE
    x = torch.rand(200, 1, 16, 16, generator=generator(0, "x")).expand(-1, 3, -1, -1).clone()
    split = Split(x, torch.zeros(200, dtype=torch.long))
    found = contaminate(split, "corrupted", 1, classes=2, rng=generator(0, "c"))
    assert len(outlier_rows(split, found)) == 200


def test_corruptions_are_all_that_can_be_seen_as_likely_and_as_severe_as_they_get(monkeypatch):
    seen = []

    def spy(x, kind, severity, rng):
        del rng
        seen.extend([(kind, severity)] * len(x))
        return x

    monkeypatch.setattr("perdure.ops.contamination.corrupt", spy)
    split = Split(torch.zeros(1100, 1, 2, 2), torch.zeros(1100, dtype=torch.long))
    contaminate(split, "corrupted", 1, classes=2, rng=generator(0, "kinds"))
    assert {severity for _, severity in seen} == {5}
    counts = Counter(kind for kind, _ in seen)
    assert set(counts) == {*ALL_KINDS} - {"saturation"}
    assert all(abs(count - 100) < 40 for count in counts.values())  # four deviations


@pytest.mark.parametrize(
    ("kind", "rate", "given", "says"),
    [
        ("labels", -0.1, {}, "rate=-0.1 is not allowed"),
        ("labels", 1.1, {}, "rate=1.1 is not allowed"),
        ("labels", float("nan"), {}, "rate=nan is not allowed"),
        ("labels", 0.5, {"classes": 1}, "two classes or more"),
        ("adversarial", 0.5, {}, "need an adversary"),
        ("adversarial", 0.5, {"adversary": lambda pixels, _: pixels[:1]}, "must keep their shape"),
        ("adversarial", 0.5, {"adversary": lambda pixels, _: pixels + 1}, r"pixels in \[0, 1\]"),
        ("foreign", 0.5, {}, "need foreign images"),
        ("foreign", 0.5, {"foreign": torch.zeros(0, 3, 8, 8)}, "need foreign images"),
        ("foreign", 0.5, {"foreign": torch.zeros(2, 3, 9, 8)}, r"are \(3, 9, 8\); they must be \(3, 8, 8\)"),
        ("foreign", 0.5, {"foreign": torch.full((2, 3, 8, 8), -1.0)}, r"pixels in \[0, 1\], these reach from -1 to -1"),
    ],
)
def test_what_cannot_be_is_said(split, kind, rate, given, says):
    with pytest.raises(WrongValue, match=says):
        contaminate(split, kind, rate, **{"classes": CLASSES, "rng": generator(0), **given})


def test_unknown_kind(split):
    with pytest.raises(UnknownName, match="unknown kind of outliers 'label'; did you mean labels"):
        contaminate(split, "label", 0.1, classes=2, rng=generator(0))


def test_rows_of_other_splits_do_not_compare(split):
    with pytest.raises(WrongValue, match="no rows to compare"):
        outlier_rows(split, Split(split.x[:3], split.y[:3]))
