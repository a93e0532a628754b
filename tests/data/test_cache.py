"""Decoded copies: used while they are whole and fit the files, made again otherwise, done without if need be."""

import json
import os
import zlib
from pathlib import Path

import pytest
import safetensors.torch
import torch
from image_files import picture
from image_sets import idx_files
from safetensors import safe_open

from perdure.data.benchmarks.folder import folder
from perdure.data.cache import Decoded, cached, decoded_folder, fingerprint
from perdure.data.catalog import MNIST
from perdure.data.load import load


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "images"
    path.mkdir()
    (path / "a.bin").write_bytes(b"first")
    return path


class Maker:
    """Counts how often it is asked."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        pixels = torch.arange(60, dtype=torch.uint8).view(5, 3, 2, 2)
        return Decoded({"x": pixels, "y": torch.arange(5)}, {"classes": ["a", "ä"], "calls": self.calls})


def ask(source, make, **options):
    return cached("things", source, sorted(source.iterdir()), make, **options)


def test_second_time_is_read_not_made(source):
    make = Maker()
    first, second = ask(source, make), ask(source, make)
    assert make.calls == 1
    assert second.facts == first.facts == {"classes": ["a", "ä"], "calls": 1}
    for found in (first, second):
        assert found.tensors["x"].equal(make().tensors["x"])
        assert found.tensors["x"].dtype == torch.uint8
        assert found.tensors["y"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_mapped_not_copied(source):
    """Taking a row of a large copy must not read the rest: its memory is the file's own pages."""
    big = torch.zeros(64 << 20, dtype=torch.uint8)
    make = lambda: Decoded({"x": big}, {})  # noqa: E731
    found = cached("big", source, sorted(source.iterdir()), make)
    assert "big-" in Path("/proc/self/maps").read_text()
    assert found.tensors["x"].equal(big)


def touch(source):
    path = source / "a.bin"
    path.write_bytes(b"other")
    os.utime(path, ns=(1, 1))


CHANGES = {
    "file written again": touch,
    "file longer": lambda source: (source / "a.bin").write_bytes(b"longer one"),
    "file added": lambda source: (source / "b.bin").write_bytes(b""),
    "file renamed": lambda source: (source / "a.bin").rename(source / "c.bin"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_files_are_decoded_anew(source, change):
    make = Maker()
    ask(source, make)
    CHANGES[change](source)
    assert ask(source, make).facts["calls"] == 2
    assert ask(source, make).facts["calls"] == 2
    assert len(list(decoded_folder().iterdir())) == 1  # the old copy is gone


def test_other_options_are_another_copy(source):
    make = Maker()
    assert [ask(source, make, size=size).facts["calls"] for size in (32, 64, 32, 64)] == [1, 2, 1, 2]


def damage(place):
    def spoil(path):
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)

    return spoil


def forged(change):
    """A copy with other content and the right checksums."""

    def rewrite(path):
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        facts = json.loads(metadata["facts"])
        raw = change(facts, tensors)
        sums = {name: zlib.crc32(tensor.numpy().data) for name, tensor in tensors.items()}
        facts = raw if isinstance(raw, str) else json.dumps(facts)
        path.unlink()
        safetensors.torch.save_file(tensors, path, {**metadata, "facts": facts, "sums": json.dumps(sums)})

    return rewrite


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def huge(path):
    os.truncate(path, 2**40)


DAMAGES = {
    "a pipe": pipe,
    "a terabyte": huge,
    "nested facts": forged(lambda _, __: "[" * 100_000),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_bytes(b"<html>"),
    "bit in the length of the header": damage(7),
    "bit in the header": damage(12),
    "bit in the last tensor": damage(-1),
    "bit in the first tensor": damage(-60 - 40 + 3),
    "one byte more": lambda path: path.write_bytes(path.read_bytes() + b"x"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_copy_is_made_anew(source, kind):
    make = Maker()
    ask(source, make)
    (path,) = decoded_folder().iterdir()
    path = path.rename(path)  # the copy that is open stays whole on the disk
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    DAMAGES[kind](path)
    assert ask(source, make).facts["calls"] == 2
    assert ask(source, make).facts["calls"] == 2


def test_a_copy_of_another_form_is_made_anew(source):
    def fits(copy):
        return copy.facts["calls"] == 1

    make = Maker()
    assert [ask(source, make, fits=fits).facts["calls"] for _ in range(2)] == [1, 1]
    (path,) = decoded_folder().iterdir()
    forged(lambda facts, _: facts.pop("calls"))(path)
    assert ask(source, make, fits=fits).facts["calls"] == 2
    assert ask(source, make, fits=fits).facts["calls"] == 3  # this one does not fit, either


# What `folder` and published sets keep: changes that leave a copy whole, but of no form that could be used.
OF_A_FOLDER = {
    "no labels": lambda _, tensors: tensors.pop("y"),
    "a single number": lambda _, tensors: tensors.update(x=tensors["x"].sum()),
    "images of another size": lambda _, tensors: tensors.update(x=tensors["x"][..., :-1].contiguous()),
    "images of floats": lambda _, tensors: tensors.update(x=tensors["x"].float()),
    "an image less": lambda _, tensors: tensors.update(x=tensors["x"][:-1]),
    "labels of int32": lambda _, tensors: tensors.update(y=tensors["y"].int()),
    "labels in two columns": lambda _, tensors: tensors.update(y=tensors["y"][:, None]),
    "a label too many": lambda _, tensors: tensors["y"].fill_(2),
    "a label below zero": lambda _, tensors: tensors["y"].fill_(-1),
    "a row beyond the last": lambda facts, _: facts["tasks"][1].update(train=[5, 99]),
    "a row before the first": lambda facts, _: facts["tasks"][0].update(train=[-9, 5]),
    "rows of text": lambda facts, _: facts["tasks"][0].update(train=["a", "b"]),
    "one row": lambda facts, _: facts["tasks"][0].update(train=[1]),
    "no names": lambda facts, _: facts["tasks"][0].pop("name"),
    "no list": lambda _, __: "5",
}
OF_A_SET = {
    "no labels": lambda _, tensors: tensors.pop("test_y"),
    "images of another size": lambda _, tensors: tensors.update(test_x=tensors["test_x"][..., :-1].contiguous()),
    "a label too many": lambda _, tensors: tensors["train_y"].fill_(10),
    "classes of numbers": lambda facts, _: facts.update(classes=list(range(10))),
    "another verdict": lambda facts, _: facts.update(completeness="perfect"),
    "a verdict more": lambda facts, _: facts.update(source="mine"),
}


@pytest.mark.parametrize("kind", OF_A_FOLDER)
def test_a_copy_of_a_folder_that_cannot_be_used_is_made_anew(source, kind, monkeypatch):
    monkeypatch.setenv("PERDURE_CACHE_FOLDERS", "1")
    for place in ("a/cat", "a/dog", "b/oak", "b/elm"):
        for number in range(4):
            picture(source / place / f"{number}.png", 10 * number + len(place))
    (source / "a.bin").unlink()
    first = folder(path=source, seed=1, size=4)
    (path,) = decoded_folder().iterdir()
    forged(OF_A_FOLDER[kind])(path)
    again = folder(path=source, seed=1, size=4)
    assert [task.classes for task in again] == [("cat", "dog"), ("elm", "oak")]
    for one, other in zip(first, again, strict=True):
        assert one.train.x.equal(other.train.x)
        assert one.train.y.equal(other.train.y)


@pytest.mark.parametrize("kind", OF_A_SET)
def test_a_copy_of_a_set_that_cannot_be_used_is_made_anew(source, kind):
    (source / "MNIST" / "raw").mkdir(parents=True)
    wanted = idx_files(source / "MNIST" / "raw")
    load(MNIST, source)
    (path,) = decoded_folder().iterdir()
    forged(OF_A_SET[kind])(path)
    again = load(MNIST, source)
    assert again.train[0].equal(torch.from_numpy(wanted.train[0]))
    assert again.test[1].equal(torch.from_numpy(wanted.test[1]))
    assert again.classes == tuple("0123456789")
    assert again.completeness == "subset"


def test_cache_that_cannot_be_written_is_done_without(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "file"))
    make = Maker()
    assert [ask(source, make).facts["calls"] for _ in range(2)] == [1, 2]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failed_write_leaves_nothing(source, monkeypatch, error):
    def fail(_tensors, path, _said):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    make = Maker()
    if isinstance(error, OSError):
        assert ask(source, make).facts["calls"] == 1
    else:
        with pytest.raises(KeyboardInterrupt):
            ask(source, make)
    assert list(decoded_folder().iterdir()) == []


def test_fingerprint_changes_with_every_value():
    base = torch.arange(6, dtype=torch.uint8)
    others = [base.flip(0), base.view(2, 3), base.to(torch.int8), base[:5], torch.cat([base, base])]
    seen = {fingerprint([tensor]) for tensor in (base, *others)} | {fingerprint([base, base])}
    assert len(seen) == 7
    assert fingerprint([base.clone()]) == fingerprint([base])


def test_no_copy_of_a_users_folder_is_kept_unless_asked_for(source):
    for place in ("a/cat", "a/dog"):
        for number in range(4):
            picture(source / place / f"{number}.png", 10 * number + len(place))
    (source / "a.bin").unlink()
    folder(path=source, seed=1, size=4)
    assert not decoded_folder().exists()
