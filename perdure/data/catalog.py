"""The image sets of the benchmarks, as their authors published them; the table is catalog.toml."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from perdure.data.readers import cifar, miniimagenet, notmnist
from perdure.data.readers.common import ImageArrays
from perdure.data.readers.idx import idx
from perdure.data.readers.svhn import svhn
from perdure.errors import UnknownName


@dataclass(frozen=True)
class Download:
    """A published file: what it must be, and where it can be had."""

    name: str
    size: int  # bytes
    md5: str
    urls: tuple[str, ...]  # tried in this order
    folder: str = ""  # below the root: where the file goes; an archive is unpacked there
    members: str = ""  # of an archive: which names to take out, a regular expression; without it, not an archive
    unpacked: int = 0  # of an archive: about so many bytes are taken out

    def path(self, root: Path) -> Path:
        """Where the file itself is looked for: an archive in the root, any other file where it is used."""
        return root / self.name if self.members else root / self.folder / self.name


@dataclass(frozen=True)
class Layout:
    """One way in which a set is stored: folders to look in, files that must be there, and their reader."""

    name: str  # as reports name it
    folders: tuple[str, ...]  # below the root, looked into in this order; "." is the root itself
    files: tuple[str, ...]  # that must be there; with / at the end a folder; * fits anything
    read: Callable[[Path], ImageArrays]
    md5: Mapping[str, str] = field(default_factory=dict)  # of the official files, uncompressed if they are .gz
    totals: tuple[int, int] | None = None  # images to train on and to test, where no count per class is published
    optional: tuple[str, ...] = ()  # files that are read if they are there, such as class names
    gzipped: bool = False  # whether its reader also opens the files with .gz


@dataclass(frozen=True)
class PublishedSet:
    """A set as it was published."""

    name: str
    title: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]  # (channels, height, width)
    layouts: tuple[Layout, ...]
    counts: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # of each class, to train on and to test
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""  # how to get it where nothing can be fetched
    terms: str = ""


def _read_catalog() -> dict[str, PublishedSet]:
    text = (files("perdure.data") / "catalog.toml").read_text("utf-8")
    return {name: _published(name, **table) for name, table in tomllib.loads(text).items()}


def _published(
    name: str,
    classes: int | list[str],
    shape: list[int],
    layouts: list[dict[str, Any]],
    counts: list[int] | list[list[int]] | None = None,
    hosts: Sequence[str] = (),
    folder: str = "",
    downloads: Sequence[dict[str, Any]] = (),
    **more: str,
) -> PublishedSet:
    named = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes)
    train, test = ((each,) * len(named) if isinstance(each, int) else tuple(each) for each in counts or ((), ()))
    urls = [tuple(host + download["name"] for host in hosts) for download in downloads]
    return PublishedSet(
        name=name,
        classes=named,
        shape=(shape[0], shape[1], shape[2]),
        layouts=tuple(_layout(**layout) for layout in layouts),
        counts=(train, test) if counts else None,
        downloads=tuple(Download(**d, urls=own, folder=folder) for d, own in zip(downloads, urls, strict=True)),
        **more,
    )


def _layout(read: str, md5: Mapping[str, str] | None = None, **values: Any) -> Layout:
    lists = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return Layout(read=READERS[read], md5=md5 or {}, **({"files": tuple(md5 or ())} | lists))


READERS: dict[str, Callable[[Path], ImageArrays]] = {
    read.__name__: read
    for read in (
        *(cifar.cifar10_binary, cifar.cifar10_python, cifar.cifar100_binary, cifar.cifar100_python, idx, svhn),
        *(notmnist.notmnist_pickles, notmnist.notmnist_split_folders, notmnist.notmnist_folder, notmnist.notmnist_idx),
        *(miniimagenet.miniimagenet_pickles, miniimagenet.miniimagenet_csv),
        *(miniimagenet.miniimagenet_folders, miniimagenet.miniimagenet_classes),
    )
}
SETS = _read_catalog()
CIFAR10, CIFAR100, MNIST, FASHION, SVHN, NOTMNIST, MINIIMAGENET = SETS.values()

USES = {
    "cifar100": (CIFAR100,),
    "five": (CIFAR10, MNIST, SVHN, FASHION, NOTMNIST),
    "miniimagenet": (MINIIMAGENET,),
    "pmnist": (MNIST,),
}
"""Benchmark → the sets it is made of."""


def sets_of(name: str) -> tuple[PublishedSet, ...]:
    """The sets of a benchmark, or the set of that name."""
    if name in USES:
        return USES[name]
    if name in SETS:
        return (SETS[name],)
    raise UnknownName("benchmark or image set with files", name, {*USES, *SETS})
