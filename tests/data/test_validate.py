"""The check finds what is wrong, says where, and does not accuse what is right."""

import gzip
import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from image_files import idx, picture

from perdure.data import check
from perdure.data.benchmarks.five import five
from perdure.data.catalog import FASHION, MINIIMAGENET, MNIST, SETS, USES, sets_of
from perdure.data.load import load
from perdure.data.locate import content_md5, fetch_missing, locate
from perdure.data.validate import check_set
from perdure.errors import BadData, DownloadError, MissingFile, UnknownName, WrongValue


def digits(per_class, seed=0):
    y = np.tile(np.arange(10), per_class)
    return np.random.RandomState(seed).randint(0, 256, (len(y), 28, 28)), y


def put(root, train, test, folder="MNIST/raw", pack=lambda content: content, suffix=""):
    (root / folder).mkdir(parents=True, exist_ok=True)
    for part, (x, y) in (("train", train), ("t10k", test)):
        (root / folder / f"{part}-images-idx3-ubyte{suffix}").write_bytes(pack(idx(x)))
        (root / folder / f"{part}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(y)))
    return root


def texts(found, level):
    return [finding.text for finding in found.findings if finding.level == level]


def small(train=3, test=2, **changes):
    """MNIST, were it published with so few images of each class."""
    return replace(MNIST, counts=((train,) * 10, (test,) * 10), **changes)


# --- a set that is right ---


@pytest.mark.parametrize(("pack", "suffix"), [(bytes, ""), (gzip.compress, ".gz")], ids=["plain", "gzip"])
def test_official_files_are_complete_and_nothing_is_wrong(tmp_path, pack, suffix):
    put(tmp_path, digits(3, 1), digits(2, 2), pack=pack, suffix=suffix)
    md5 = {path.name.removesuffix(".gz"): content_md5(path) for path in (tmp_path / "MNIST/raw").iterdir()}
    official = small(layouts=(replace(MNIST.layouts[0], md5=md5),))
    found = check_set(official, tmp_path)
    assert found.completeness == "complete"
    assert found.verdict == "complete: figures may be compared with published ones (the official files, byte for byte)"
    assert texts(found, "bad") == texts(found, "note") == []
    assert "train: 30 images of 1 × 28 × 28, 3 of each class, labels 0 to 9" in texts(found, "good")
    assert load(official, tmp_path).completeness == "complete"


@pytest.mark.parametrize(
    ("train", "test", "says"),
    [(3, 2, "altered"), (4, 2, "subset"), (3, 9, "subset"), (2, 2, "altered"), (4, 1, "altered")],
)
def test_other_files_are_a_subset_or_altered(tmp_path, train, test, says):
    put(tmp_path, digits(3, 1), digits(2, 2))
    found = check_set(small(train, test), tmp_path)
    assert found.completeness == says
    assert found.verdict.startswith(f"{says}: compare methods with each other, not with published figures (")
    assert "\n" not in found.verdict


def test_a_set_without_checksums_is_judged_by_its_counts(tmp_path):
    put(tmp_path, digits(3, 1), digits(2, 2))
    found = check_set(small(layouts=(replace(MNIST.layouts[0], md5={}),)), tmp_path)
    assert found.completeness == "complete"
    assert "no official checksum exists" in found.verdict


# --- what can be wrong ---


def with_copies(pairs, test_pairs=()):
    """Images, of which some are copies of others: (from, to) within training, or from training to test."""
    (x, y), (tx, ty) = digits(3, 1), digits(2, 2)
    for source, target in pairs:
        x[target] = x[source]
    for source, target in test_pairs:
        tx[target] = x[source]
    return (x, y), (tx, ty)


def without(label):
    return tuple((x[y != label], y[y != label]) for x, y in (digits(3, 1), digits(2, 2)))


WRONG = {
    "two labels": (with_copies([(0, 1)]), "1 images are there with more than one label (train 0 (label 0) = train 1"),
    "three labels": (with_copies([(0, 1), (0, 2)]), "= train 1 (label 1) = train 2 (label 2))"),
    "leak": (with_copies([], [(4, 14)]), "1 images are there both to train on and to test (train 4"),
    "five leaks": (with_copies([], [(i, 10 + i) for i in range(5)]), "and 2 more"),
    "leak with another label": (with_copies([], [(4, 5)]), "1 images are there with more than one label"),
    "empty class": (without(4), "train: no images of 1 classes (4)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_images(tmp_path, kind):
    (train, test), says = WRONG[kind]
    found = check_set(small(), put(tmp_path, train, test))
    assert any(says in text for text in texts(found, "bad")), found.findings


def test_copies_with_the_same_label_and_blank_images_are_noted_only(tmp_path):
    (x, y), test = digits(3, 1), digits(2, 2)
    x[10], x[5] = x[0], 7
    found = check_set(small(), put(tmp_path, (x, y), test))
    assert texts(found, "bad") == []
    assert any("more than once in the same part with the same label (train 0 (label 0) = train 10" in t
               for t in texts(found, "note"))  # fmt: skip
    assert "train: 1 images of one color only (train 5 (label 5))" in texts(found, "note")


def test_another_set_under_this_name(tmp_path, monkeypatch):
    """The slip of the public loaders: MNIST's files where Fashion-MNIST's should be."""
    put(tmp_path, digits(3, 1), digits(2, 2), folder="FashionMNIST/raw")
    md5 = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in (tmp_path / "FashionMNIST/raw").iterdir()}
    monkeypatch.setitem(SETS, "mnist", small(layouts=(replace(MNIST.layouts[0], md5=md5),)))
    found = check_set(replace(FASHION, counts=small().counts), tmp_path)
    assert "train-images-idx3-ubyte: this is a file of MNIST" in texts(found, "bad")


def test_five_refuses_mnist_as_fashion_mnist(tmp_path, monkeypatch):
    for folder in ("MNIST/raw", "FashionMNIST/raw"):
        put(tmp_path, digits(30, 1), digits(2, 2), folder=folder)
    monkeypatch.setattr("perdure.data.benchmarks.five.PARTS", five.__globals__["PARTS"][1:4:2])
    monkeypatch.setenv("PERDURE_DATA", str(tmp_path))
    for root in (tmp_path, None):
        with pytest.raises(BadData, match=r"the files of Fashion-MNIST are those of MNIST.*legacy=true") as caught:
            five(seed=1, root=root)
        assert str(caught.value).startswith(f"{tmp_path}: ")
    assert five(seed=1, root=tmp_path, legacy=True).notes["fashion-mnist"].startswith("legacy")


def test_broken_files_are_one_line(tmp_path):
    put(tmp_path, digits(3, 1), digits(2, 2))
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadData, match="instead of"):
        check_set(small(), tmp_path)


def test_wrong_shape_is_one_line(tmp_path):
    put(tmp_path, digits(3, 1), digits(2, 2))
    with pytest.raises(BadData, match="1, 28, 28"):
        load(small(shape=(1, 32, 32)), tmp_path)


# --- all sets of a benchmark ---


def test_check_reports_what_is_there_and_what_is_not(tmp_path, monkeypatch):
    put(tmp_path, digits(3, 1), digits(2, 2))
    reports = {report.name: report for report in check("five", tmp_path)}
    assert list(reports) == ["cifar10", "mnist", "svhn", "fashion-mnist", "notmnist"]
    assert reports.pop("mnist") == check("mnist", tmp_path)[0] == check_set(MNIST, tmp_path)
    for report in reports.values():
        assert (report.completeness, report.findings) == ("unreadable", ())
        assert report.verdict.startswith(f"no {SETS[report.name].title} in {tmp_path}: ")
    monkeypatch.setenv("PERDURE_DATA", str(tmp_path))
    assert check("pmnist")[0].completeness == "subset"
    with pytest.raises(UnknownName, match="did you mean mnist"):
        check("mnst")
    with pytest.raises(WrongValue, match="say which folder, as folder:PATH"):
        check("folder:")


def test_check_of_a_folder(tmp_path):
    for name in ("pets/cat", "pets/dog"):
        for number in range(4):
            picture(tmp_path / name / f"{number}.png", 9 * number + len(name))
    (report,) = check(f"folder:{tmp_path}")
    assert (report.completeness, report.folder) == ("own data", str(tmp_path))
    assert report.verdict.startswith("own data: 8 images in 1 tasks")


def test_finding_files_does_not_import_torch():
    code = "import sys, perdure.data, perdure.data.locate; print('torch' in sys.modules, len(perdure.data.__all__))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False 3\n"


# --- where sets are looked for ---


@pytest.mark.parametrize("folder", ["MNIST/raw", "MNIST", "mnist", "mnist/raw"])
def test_folders_of_other_libraries_are_found(tmp_path, folder):
    put(tmp_path, digits(3, 1), digits(2, 2), folder=folder)
    assert locate(MNIST, tmp_path).folder == tmp_path / folder


def test_some_files_missing(tmp_path):
    put(tmp_path, digits(3, 1), digits(2, 2))
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(MissingFile, match=r"t10k-labels-idx1-ubyte: not there, though.*`perdure data fetch mnist`"):
        locate(MNIST, tmp_path)


def test_archive_that_waits_to_be_unpacked(tmp_path):
    (tmp_path / "notMNIST_small.tar.gz").write_bytes(b"")
    with pytest.raises(MissingFile, match=r"notMNIST_small.tar.gz is not unpacked yet: `perdure data fetch notmnist`"):
        locate(SETS["notmnist"], tmp_path)


@pytest.mark.parametrize("name", list(SETS))
def test_nothing_there(tmp_path, name):
    with pytest.raises(MissingFile) as caught:
        locate(SETS[name], tmp_path)
    said = str(caught.value)
    assert said.startswith(f"no {SETS[name].title} in {tmp_path}")
    assert "PERDURE_DATA" in said
    assert "\n" not in said


def test_what_cannot_be_fetched_says_which_files_to_put_where(tmp_path):
    ((_, outcome),) = fetch_missing(MINIIMAGENET, tmp_path)
    assert isinstance(outcome, DownloadError)
    said = str(outcome)
    assert f"train.pkl, test.pkl into {tmp_path / 'miniimagenet'}" in said
    assert "\n" not in said


def test_other_files_than_the_official_ones_are_not_fetched_over(tmp_path, monkeypatch):
    """What is fetched would not be read as long as they are there, and would be fetched again each time."""
    monkeypatch.setattr("perdure.data.locate.fetch", None)
    put(tmp_path, digits(3, 1), digits(2, 2))
    ((name, outcome),) = fetch_missing(MNIST, tmp_path)
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    assert name == path.name
    assert isinstance(outcome, BadData)
    assert str(outcome) == f"{path}: not the official file; move it away and run again"
    md5 = {path.name: content_md5(path) for path in (tmp_path / "MNIST/raw").iterdir()}
    official = small(layouts=(replace(MNIST.layouts[0], md5=md5),))
    assert list(fetch_missing(official, tmp_path)) == [("MNIST", "already there")]


def test_packed_files_count_only_where_they_are_read(tmp_path):
    for name in ("train_32x32.mat.gz", "test_32x32.mat.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b"digits"))
    with pytest.raises(MissingFile, match="no SVHN in"):
        locate(SETS["svhn"], tmp_path)
    put(tmp_path, digits(3, 1), digits(2, 2), folder="notMNIST", pack=gzip.compress, suffix=".gz")
    assert locate(SETS["notmnist"], tmp_path).layout.name == "notMNIST, IDX"


def test_folder_that_may_not_be_read_is_one_line(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    says = r"MNIST/raw/train-images-idx3-ubyte: cannot be read \(Permission denied\); check that you may read it"
    with pytest.raises(BadData, match=says) as caught:
        locate(MNIST, tmp_path)
    assert not isinstance(caught.value, MissingFile)
    ((_, outcome),) = fetch_missing(MNIST, tmp_path)
    assert isinstance(outcome, BadData)


def test_files_without_official_checksums_are_not_read_for_one(tmp_path, monkeypatch):
    put(tmp_path, digits(3, 1), digits(2, 2), folder="notMNIST")
    monkeypatch.setattr("perdure.data.locate.content_md5", None)
    assert load(SETS["notmnist"], tmp_path).completeness == "subset"


# --- the catalog itself ---


def test_every_benchmark_with_files_names_its_sets():
    assert set(USES) == {"cifar100", "five", "miniimagenet", "pmnist"}
    assert [published.name for published in sets_of("five")] == [
        "cifar10",
        "mnist",
        "svhn",
        "fashion-mnist",
        "notmnist",
    ]
    assert sets_of("svhn") == (SETS["svhn"],)
    with pytest.raises(UnknownName, match="did you mean cifar100 or cifar10"):
        sets_of("cifar1000")


@pytest.mark.parametrize("published", SETS.values(), ids=list(SETS))
def test_catalog_is_consistent(published):
    for layout in published.layouts:
        assert set(layout.md5) <= set(layout.files)
        assert (published.counts is None) == (layout.totals is not None)
        assert all(len(md5) == 32 for md5 in layout.md5.values())
    if published.counts:
        assert all(len(part) == len(published.classes) for part in published.counts)
    for download in published.downloads:
        assert len(download.md5) == 32
        assert download.size > 0
        assert all(url.endswith(download.name) for url in download.urls)
    # What is fetched lies where it is looked for.
    folders = {folder for layout in published.layouts for folder in layout.folders}
    assert all(download.members or download.folder in folders for download in published.downloads)
    totals = [sum(part) for part in published.counts] if published.counts else list(published.layouts[0].totals)
    assert (
        totals
        == {
            "cifar10": [50000, 10000],
            "cifar100": [50000, 10000],
            "mnist": [60000, 10000],
            "fashion-mnist": [60000, 10000],
            "svhn": [73257, 26032],
            "notmnist": [16853, 1873],
            "miniimagenet": [50000, 10000],
        }[published.name]
    )
