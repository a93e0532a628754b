"""Decoded copies: used while they are whole and fit the files, made again otherwise, done without if need be."""

import os
from pathlib import Path

import pytest
import torch

from perdure.data.cache import Decoded, cached, decoded_folder, fingerprint


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


DAMAGES = {
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
