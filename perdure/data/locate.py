"""Which image sets are on the disk, whether all of each is there, and how to get the others."""

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from perdure.data.catalog import Layout, PublishedSet
from perdure.data.download import Progress, fetch, no_progress
from perdure.data.readers.common import ImageArrays
from perdure.errors import BadData, DownloadError, MissingFile, PerdureError

Completeness = Literal["complete", "subset", "altered"]


@dataclass(frozen=True)
class Location:
    """Where a set was found."""

    layout: Layout
    folder: Path
    files: tuple[Path, ...]  # those that must be there, in a fixed order
    optional: tuple[Path, ...] = ()


def locate(published: PublishedSet, root: Path) -> Location:
    """The first layout of the set that is wholly there."""
    try:
        return _locate(published, root)
    except OSError as error:
        place = error.filename or root
        raise BadData(f"{place}: cannot be read ({error.strerror}); check that you may read it") from None


def _locate(published: PublishedSet, root: Path) -> Location:
    partial = ""
    for layout in published.layouts:
        for folder in (root / name for name in layout.folders):
            there = {name: _matches(folder, name, layout.gzipped) for name in layout.files}
            if all(there.values()):
                files = tuple(file for found in there.values() for path in found for file in _files(path))
                optional = tuple(folder / name for name in layout.optional if (folder / name).is_file())
                return Location(layout, folder, files, optional)
            if any(there.values()):
                lacks = next(name for name, found in there.items() if not found)
                partial = partial or f"{folder / lacks}: not there, though other parts of {layout.name} are"
    again = f"`perdure data fetch {published.name}` gets it" if published.downloads else published.by_hand
    if partial:
        raise MissingFile(f"{partial}; unpack its archive again; or {again}")
    if packed := [file.path(root) for file in published.downloads if file.members and file.path(root).is_file()]:
        raise MissingFile(f"{packed[0]} is not unpacked yet: `perdure data fetch {published.name}` does that")
    raise MissingFile(
        f"no {published.title} in {root}: {again}; or put {_where_to_put(published, root)}; "
        "or point PERDURE_DATA at the folder that has it"
    )


def fetch_missing(
    published: PublishedSet, root: Path, progress: Progress = no_progress
) -> Iterator[tuple[str, str | PerdureError]]:
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
        advice = f"{published.by_hand}; put {_where_to_put(published, root)}"
        yield published.title, DownloadError(f"{published.title} cannot be fetched: {advice}")
    for download in published.downloads:
        try:
            yield download.name, fetch(download, root, progress, is_unpacked=lambda: _is_official(published, root))
        except PerdureError as error:
            yield download.name, error


def completeness_of(published: PublishedSet, place: Location, found: ImageArrays) -> tuple[Completeness, str]:
    """Whether figures made with these files may be compared with published ones, and why."""
    layout = place.layout
    unofficial = _unofficial(place)
    if not unofficial:
        return "complete", "the official files, byte for byte"
    labels = found.train[1], found.test[1]
    has = f"{len(labels[0])} images to train on and {len(labels[1])} to test"
    if published.counts and layout.totals is None:
        totals = sum(published.counts[0]), sum(published.counts[1])
        wanted = np.concatenate(published.counts)
        counts = np.concatenate([np.bincount(y, minlength=len(published.classes)) for y in labels])
    else:
        assert layout.totals is not None  # a test says that every layout has one or the other
        totals = layout.totals
        wanted, counts = np.array(totals), np.array([len(y) for y in labels])
    if (counts == wanted).all():
        if layout.md5:
            return "altered", f"as many images as published, but {unofficial[0]} is not the official file"
        return "complete", f"{has}, as published; no official checksum exists"
    if (counts <= wanted).all():
        return "subset", f"{has}, of {totals[0]} and {totals[1]} published"
    return "altered", f"{has}; some classes have more than were published"


def content_md5(path: Path) -> str:
    """Of what a file holds, since gzip does not always write the same bytes; empty if it cannot be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except (OSError, EOFError, zlib.error):
        return ""


def _is_official(published: PublishedSet, root: Path) -> bool:
    """Whether a layout is wholly there, with the official bytes where those are known."""
    try:
        place = locate(published, root)
    except MissingFile:
        return False
    return not place.layout.md5 or not _unofficial(place)


def _unofficial(place: Location) -> list[Path]:
    """The files that are not the official ones, or whose official bytes nobody knows."""
    official = place.layout.md5
    if not official:
        return list(place.files)
    return [file for file in place.files if content_md5(file) != official.get(file.name.removesuffix(".gz"))]


def _matches(folder: Path, name: str, gzipped: bool) -> list[Path]:
    """What is there under this name: the file, or where that is allowed the file with .gz, or the folders."""
    if name.endswith("/"):
        return sorted(path for path in folder.glob(name) if path.is_dir())
    forms = (name, f"{name}.gz") if gzipped else (name,)
    return [folder / form for form in forms if (folder / form).is_file()][:1]


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _where_to_put(published: PublishedSet, root: Path) -> str:
    """Every layout in words, which files in which folder; of many files the first and the last."""
    ways = []
    for layout in published.layouts:
        names = layout.files if len(layout.files) < 5 else (layout.files[0], "…", layout.files[-1])
        ways.append(f"{', '.join(names)} into {root / layout.folders[0]}")
    return ", or ".join(ways)
