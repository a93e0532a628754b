"""Image sets as their authors published them: where they are looked for, and whether all of them is there."""

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from perdure.data.files import Download, Progress, fetch, nothing
from perdure.data.layouts import Raw
from perdure.errors import BadData, DownloadError, MissingFile, PerdureError

Completeness = Literal["complete", "subset", "altered"]
Counts = tuple[int, ...]
"""Images of each class."""


@dataclass(frozen=True)
class Layout:
    """One way in which a set is stored: folders to look in, files that must be there, and their reader."""

    name: str  # as reports name it
    folders: tuple[str, ...]  # below the root, looked into in this order; "." is the root itself
    files: tuple[str, ...]  # that must be there; with / at the end a folder; * fits anything
    read: Callable[[Path], Raw]
    md5: Mapping[str, str] = field(default_factory=dict)  # of the official files, uncompressed if they are .gz
    totals: tuple[int, int] | None = None  # images to train on and to test, where no count per class is published
    also: tuple[str, ...] = ()  # files that are read if they are there, such as class names
    gzipped: bool = False  # whether its reader also opens the files with .gz


@dataclass(frozen=True)
class Published:
    """A set as it was published."""

    name: str
    title: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]  # (channels, height, width)
    layouts: tuple[Layout, ...]
    counts: tuple[Counts, Counts] | None = None  # per class, to train on and to test
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""  # how to get it where nothing can be fetched
    terms: str = ""


@dataclass(frozen=True)
class Place:
    """Where a set was found."""

    layout: Layout
    folder: Path
    files: tuple[Path, ...]  # those that must be there, in a fixed order
    also: tuple[Path, ...] = ()


def locate(published: Published, root: Path) -> Place:
    """The first layout of the set that is wholly there."""
    try:
        return _locate(published, root)
    except OSError as error:
        place = error.filename or root
        raise BadData(f"{place}: cannot be read ({error.strerror}); check that you may read it") from None


def _locate(published: Published, root: Path) -> Place:
    partial = ""
    for layout in published.layouts:
        for folder in (root / name for name in layout.folders):
            there = {name: _matches(folder, name, layout.gzipped) for name in layout.files}
            if all(there.values()):
                files = tuple(file for found in there.values() for path in found for file in _files(path))
                also = tuple(folder / name for name in layout.also if (folder / name).is_file())
                return Place(layout, folder, files, also)
            if any(there.values()):
                lacks = next(name for name, found in there.items() if not found)
                partial = partial or f"{folder / lacks}: not there, though other parts of {layout.name} are"
    again = f"`perdure data fetch {published.name}` gets it" if published.downloads else published.by_hand
    if partial:
        raise MissingFile(f"{partial}; unpack its archive again; or {again}")
    if waiting := [file.place(root) for file in published.downloads if file.members and file.place(root).is_file()]:
        raise MissingFile(f"{waiting[0]} is not unpacked yet: `perdure data fetch {published.name}` does that")
    raise MissingFile(
        f"no {published.title} in {root}: {again}; or put {_ways(published, root)}; "
        "or point PERDURE_DATA at the folder that has it"
    )


def obtain(published: Published, root: Path, progress: Progress = nothing) -> Iterator[tuple[str, str | PerdureError]]:
    """Fetch whatever of the set is not there; yields each file with what was done about it, or why it was not.

    One file that cannot be had does not keep the others away, so that all that are missing are named at once. Where
    other files than the official ones are read, nothing is fetched: they would still be the ones that are read.
    """
    try:
        place = locate(published, root)
    except MissingFile:
        pass
    except PerdureError as error:
        yield published.title, error
        return
    else:
        if not place.layout.md5:
            yield published.title, "found, but no checksum says whether it is complete"
        elif others := _unofficial(place):
            yield others[0].name, BadData(f"{others[0]}: not the official file; move it away and run again")
        else:
            yield published.title, "already there"
        return
    if not published.downloads:
        advice = f"{published.by_hand}; put {_ways(published, root)}"
        yield published.title, DownloadError(f"{published.title} cannot be fetched: {advice}")
    for download in published.downloads:
        try:
            yield download.name, fetch(download, root, progress, there=lambda: _is_official(published, root))
        except PerdureError as error:
            yield download.name, error


def _is_official(published: Published, root: Path) -> bool:
    """Whether a layout is wholly there, with the official bytes where those are known."""
    try:
        place = locate(published, root)
    except MissingFile:
        return False
    return not place.layout.md5 or not _unofficial(place)


def judge(published: Published, place: Place, raw: Raw) -> tuple[Completeness, str]:
    """Whether figures made with these files may be compared with published ones, and why."""
    layout = place.layout
    unofficial = _unofficial(place)
    if not unofficial:
        return "complete", "the official files, byte for byte"
    labels = [np.asarray(part[1]) for part in (raw.train, raw.test)]
    if published.counts and layout.totals is None:
        found = np.concatenate([np.bincount(y, minlength=len(published.classes)) for y in labels])
        wanted = np.concatenate(published.counts)
    else:
        found, wanted = np.array([len(y) for y in labels]), np.array(layout.totals)
    has = f"{len(labels[0])} images to train on and {len(labels[1])} to test"
    if (found == wanted).all():
        if layout.md5:
            return "altered", f"as many images as published, but {unofficial[0]} is not the official file"
        return "complete", f"{has}, as published; no official checksum exists"
    if (found <= wanted).all():
        whole = _totals(published, layout)
        return "subset", f"{has}, of {whole[0]} and {whole[1]} published"
    return "altered", f"{has}; some classes have more than were published"


def _totals(published: Published, layout: Layout) -> tuple[int, int]:
    if layout.totals is not None:
        return layout.totals
    assert published.counts is not None
    return sum(published.counts[0]), sum(published.counts[1])


def _matches(folder: Path, name: str, gzipped: bool) -> list[Path]:
    """What is there under this name: the file, or where that is allowed the file with .gz, or the folders."""
    if name.endswith("/"):
        return sorted(path for path in folder.glob(name) if path.is_dir())
    forms = (name, f"{name}.gz") if gzipped else (name,)
    return [folder / form for form in forms if (folder / form).is_file()][:1]


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _ways(published: Published, root: Path) -> str:
    """Every layout in words, which files in which folder; of many files the first and the last."""
    ways = []
    for layout in published.layouts:
        names = layout.files if len(layout.files) < 5 else (layout.files[0], "…", layout.files[-1])
        ways.append(f"{', '.join(names)} into {root / layout.folders[0]}")
    return ", or ".join(ways)


def _unofficial(place: Place) -> list[Path]:
    """The files that are not the official ones, or whose official bytes nobody knows."""
    official = place.layout.md5
    if not official:
        return list(place.files)
    return [file for file in place.files if content_md5(file) != official.get(file.name.removesuffix(".gz"))]


def content_md5(path: Path) -> str:
    """Of what a file holds, since gzip does not always write the same bytes; empty if it cannot be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except (OSError, EOFError, zlib.error):
        return ""
