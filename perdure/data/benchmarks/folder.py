"""`folder:PATH`: your own image files, with no code. One folder per task, in each one folder per class."""

import hashlib
import os
import stat
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from perdure.data.arrays import task_from, too_few
from perdure.data.cache import Decoded, Facts, cached, fingerprint, fit_together
from perdure.data.images import (
    LARGEST_SIZE,
    SUFFIXES,
    list_dead_links,
    list_folder,
    list_folders,
    list_images,
    read_images,
)
from perdure.data.paths import first_few, one_line, reading
from perdure.data.tasks import check_shares, task_count
from perdure.errors import BadData, MissingFile, expanded
from perdure.schema import Limits, Share
from perdure.types import Stream, Task

Size = Annotated[int, Limits(ge=1, le=LARGEST_SIZE)]
LAYOUT = "FOLDER/task/class/image.jpg"
KEEP_COPIES = "PERDURE_CACHE_FOLDERS"  # set, decoded copies are kept in the cache, and a second start is quicker
TASK_FORM = "put images as FOLDER/class/image.jpg, a folder per class"
FORM = f"put images as {LAYOUT}, a folder per task and in it one per class"

# In the order in which they are reported, each with what to do.
MISTAKES = {
    "no class folders in": FORM,
    "images outside of class folders:": "put them into the folder of their class, or away",
    "folders beside train and test:": "put their images into train, from which validation images are drawn",
    "folders inside class folders:": f"a class folder holds images only; {FORM}",
    "no images in": f"add some ({' '.join(sorted(SUFFIXES))}), or remove the folder",
    "test classes without training images:": "add images to train on, or remove them from test",
    "names that differ only in how accents are stored:": "rename or join these folders",
    "only one class in": "a task needs two or more classes to tell apart",
}


@dataclass(frozen=True)
class TaskFolder:
    """The image files of one task, class by class."""

    name: str
    classes: tuple[str, ...]
    train: tuple[tuple[Path, ...], ...]
    test: tuple[tuple[Path, ...], ...] | None  # None: no folder `test`, so a share of the others is held out


@dataclass(frozen=True)
class FolderContent:
    """What a folder holds, before any image is decoded."""

    path: Path
    tasks: tuple[TaskFolder, ...]
    ignored: tuple[str, ...]  # files that do not end like an image
    dead: tuple[str, ...]  # links that lead nowhere

    def files(self, tasks: int | None = None) -> list[Path]:
        """All image files of the first tasks in the order in which they are read."""
        parts = [part for task in self.tasks[:tasks] for part in (task.train, task.test or ())]
        return [file for part in parts for group in part for file in group]


def folder(
    *,
    path: str | Path,
    seed: int,
    tasks: int | None = None,
    size: Size = 64,  # pixels: each image becomes size × size, once
    valid_share: Share = 0.1,  # of every class's training images, to validate with; at least one
    test_share: Share = 0.2,  # of every class, where a task has no test folder; at least one
    skip_unreadable: bool = False,  # leave out images that cannot be read, and list them
) -> Stream:
    """Tasks in natural order of their folders' names (task2 before task10), each image (3, size, size).

    PATH/task/class/image.jpg, and PATH/task/test/class/image.jpg where test images are given (the others may then
    lie in PATH/task/train/class). Without them a share of every class is held out to test. `seed` draws what
    validates and what is held out. Gray images get three equal channels, so tasks of both kinds can follow each other.

    Mean and deviation are measured for each task on its own training images: when a task arrives those are known,
    while constants over all tasks would look into the future.
    """
    check_shares(valid_share=valid_share, test_share=test_share)
    found = scan_folder(Path(path).expanduser())
    count = task_count(tasks, len(found.tasks))
    _check_counts(found, count, valid_share, test_share)
    decoded = _decoded(found, count, size, skip_unreadable)
    made = make_tasks(decoded, seed=seed, valid_share=valid_share, test_share=test_share)
    notes = {
        "source": "folder",
        "completeness": "own data",
        "size": f"{size} × {size}, short side scaled and the center cut out",
        "split": _split_note(found.tasks[:count], valid_share, test_share),
        "tasks": f"{count} of {len(found.tasks)}",
    }
    if unreadable := decoded.facts["unreadable"]:
        notes["unreadable"] = f"{len(unreadable)} left out: {', '.join(unreadable)}"
    if found.ignored:
        notes["ignored"] = f"{len(found.ignored)} files that do not end like an image: {first_few(found.ignored)}"
    if found.dead:
        notes["links"] = f"{len(found.dead)} that lead nowhere were left out: {first_few(found.dead)}"
    if copies := decoded.facts["copies"]:
        notes["copies"] = f"{len(copies)} image files are in more than one class: {first_few(copies)}"
    return Stream("folder", made, notes, decoded.facts["fingerprint"])


def _decoded(found: FolderContent, tasks: int, size: int, skip_unreadable: bool) -> Decoded:
    """The images of the first tasks. Copies would outlive the user's own files, so none is kept unless asked for."""

    def read() -> Decoded:
        return read_folder(found, size, tasks=tasks, skip_unreadable=skip_unreadable)

    if not os.environ.get(KEEP_COPIES):
        return read()
    options = {"size": size, "skip_unreadable": skip_unreadable}
    return cached("folder", found.path, found.files(tasks), read, partial(_fits, size=size), **options)


def scan_folder(path: Path) -> FolderContent:
    """What is where. All mistakes of a kind are named in one error."""
    path = expanded(path)
    return _scanned(path, _task_folders(path))


def scan_task(path: Path) -> FolderContent:
    """The same for one task: PATH/class/image.jpg."""
    path = expanded(path)
    if not path.is_dir():
        raise MissingFile(f"{_text(path)}: there is no such folder; {TASK_FORM}")
    return _scanned(path, [path])


def _scanned(path: Path, folders: Sequence[Path]) -> FolderContent:
    scan = _Scan(path, folders)
    for kind, places in scan.mistakes.items():
        if places:
            raise BadData(f"{_text(path)}: {kind} {first_few(places)}; {MISTAKES[kind]}")
    return FolderContent(path, tuple(scan.tasks), tuple(scan.ignored), tuple(scan.dead))


def read_folder(found: FolderContent, size: int, *, tasks: int | None = None, skip_unreadable: bool = False) -> Decoded:
    """The images of the first tasks, decoded: flat tensors and facts that JSON can hold, so that a copy can be kept.

    Tensors: `x` (n, 3, size, size) uint8 and `y` (n,) int64, the class within the task. Facts: `tasks`, each with
    `name`, `classes`, and the rows [first, stop] of `train` and of `test` (or none); `unreadable` files left out;
    `copies`, files that are in two classes or more; a `fingerprint` of all that changes numbers, which names and places
    do not.
    """
    chosen = found.tasks[:tasks]
    groups = [group for task in chosen for group in (task.train, task.test or ())]  # two per task
    parts = np.repeat(np.arange(len(groups)), [sum(map(len, group)) for group in groups])
    labels = np.concatenate([np.repeat(np.arange(len(group)), [len(files) for files in group]) for group in groups])
    images, rows, unreadable = read_images(found.files(tasks), size, 3, skip_unreadable)
    ends = np.searchsorted(parts[rows], np.arange(len(groups)), side="right").tolist()
    spans = [list(span) for span in zip([0, *ends], ends, strict=False)]
    about = [
        {"name": task.name, "classes": list(task.classes), "train": train, "test": None if task.test is None else test}
        for task, train, test in zip(chosen, spans[::2], spans[1::2], strict=True)
    ]
    x, y = torch.from_numpy(images), torch.from_numpy(labels[rows].astype(np.int64))
    facts = {
        "tasks": about,
        "unreadable": [_below(file, found.path) for file in unreadable],
        "copies": _copies(found, tasks),
        "fingerprint": fingerprint([x, y, torch.tensor(spans[::2])]),  # rows between those to train on test
    }
    return Decoded({"x": x, "y": y}, facts)


def _copies(found: FolderContent, tasks: int | None) -> list[str]:
    """Files that are, byte by byte, in more than one class: whatever is learned of one is wrong for the other."""
    owners = {
        file: (number, label)
        for number, task in enumerate(found.tasks[:tasks])
        for part in (task.train, task.test or ())
        for label, files in enumerate(part)
        for file in files
    }
    alike: dict[int, list[Path]] = {}
    for file in owners:
        with suppress(OSError):
            alike.setdefault(file.stat().st_size, []).append(file)
    by_content: dict[bytes, list[Path]] = {}
    for files in alike.values():
        for file in files if len(files) > 1 else ():
            with suppress(OSError), file.open("rb") as content:
                by_content.setdefault(hashlib.file_digest(content, "sha256").digest(), []).append(file)
    several = [files for files in by_content.values() if len({owners[file] for file in files}) > 1]
    return [" = ".join(_below(file, found.path) for file in files[:3]) for files in several]


Span = Annotated[list[int], Field(min_length=2, max_length=2)]


class _TaskFacts(Facts):
    name: str
    classes: list[str]
    train: Span
    test: Span | None


class _Facts(Facts):
    tasks: list[_TaskFacts]
    unreadable: list[str]
    copies: list[str]
    fingerprint: str


def _fits(copy: Decoded, size: int) -> bool:
    x, y = copy.tensors["x"], copy.tensors["y"]
    for task in _Facts.model_validate(copy.facts).tasks:
        for first, stop in filter(None, (task.train, task.test)):
            inside = 0 <= first <= stop <= len(y)
            if not (inside and fit_together(x[first:stop], y[first:stop], (3, size, size), len(task.classes))):
                return False
    return True


def make_tasks(decoded: Decoded, *, seed: int, valid_share: float, test_share: float) -> list[Task]:
    """Tasks of what `read_folder` gives, or of a copy of it."""
    x, y = decoded.tensors["x"], decoded.tensors["y"]
    make = partial(task_from, seed=seed, valid_share=valid_share, test_share=test_share)
    made = []
    for task in decoded.facts["tasks"]:
        train, test = (span and (x[slice(*span)], y[slice(*span)]) for span in (task["train"], task["test"]))
        try:
            made.append(make(task["name"], train, test, classes=task["classes"]))
        except BadData as error:
            if not decoded.facts["unreadable"]:
                raise
            raise BadData(f"{error} (some images could not be read and were left out)") from None
    return made


def _task_folders(path: Path) -> list[Path]:
    """The folders of the tasks, if that is what `path` holds."""
    shown = _text(path)
    try:
        with reading(path, "folder"):
            is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (MissingFile, ValueError):  # ValueError: no name that a file could have
        raise MissingFile(f"{shown}: no such folder; {FORM}") from None
    if not is_folder:
        raise BadData(f"{shown}: a file, not a folder; {FORM}")
    folders = list_folders(path)
    if not folders:
        raise BadData(f"{shown}: holds {'images' if list_images(path) else 'nothing'} instead of folders; {FORM}")
    parts = [folder.name for folder in folders if folder.name.casefold() in ("train", "test")]
    if parts:
        how = f"put them into a folder per task ({LAYOUT})"
        raise BadData(f"{shown}: holds {' and '.join(parts)}, as a task does; {how}")
    if all(list_images(folder) and not list_folders(folder) for folder in folders):
        names = first_few([folder.name for folder in folders])
        how = f"put your class folders into a folder per task ({LAYOUT})"
        raise BadData(f"{shown}: its folders ({names}) hold images; {how}")
    return folders


class _Scan:
    """The tasks below a folder, and what is wrong with it, kind by kind."""

    def __init__(self, path: Path, folders: Sequence[Path]) -> None:
        self.path = path
        self.mistakes: dict[str, list[str]] = {kind: [] for kind in MISTAKES}
        self.ignored: list[str] = []
        self.dead: list[str] = []
        self._outside_of_classes(path)
        self.tasks = [self._task(folder) for folder in folders]

    def _task(self, folder: Path) -> TaskFolder:
        inner = list_folders(folder)
        self._outside_of_classes(folder)
        test = next((place for place in inner if place.name.casefold() == "test"), None)
        # A folder `train` of images is a class, such as of toys; one of folders is the part to train on.
        train = next((place for place in inner if place.name.casefold() == "train" and list_folders(place)), None)
        others = [place for place in inner if place not in (test, train)]
        if train is None:
            groups = self._classes(folder, others)
        else:
            self._outside_of_classes(train)
            for place in others:
                self._mistake("folders beside train and test:", place)
            groups = self._classes(train, list_folders(train))
        if len(groups) == 1:
            self._mistake("only one class in", train or folder)
        held = None
        if test is not None:
            self._outside_of_classes(test)
            tests = self._classes(test, list_folders(test))
            for name in tests:
                if name not in groups:
                    self._mistake("test classes without training images:", test / name)
            held = tuple(tests.get(name, ()) for name in groups)
        return TaskFolder(_text(folder.name), tuple(groups), tuple(groups.values()), held)

    def _classes(self, parent: Path, folders: Sequence[Path]) -> dict[str, tuple[Path, ...]]:
        """Class → its image files."""
        if not folders:
            self._mistake("no class folders in", parent)
        found = {}
        for folder in folders:
            images = list_images(folder)
            if list_folders(folder):
                self._mistake("folders inside class folders:", folder)
            elif not images:
                self._mistake("no images in", folder)
            self._dead_links(folder)
            known = set(images)
            self.ignored += [
                _below(file, self.path) for file in list_folder(folder, os.DirEntry.is_file) if file not in known
            ]
            if (name := _text(folder.name)) in found:
                self._mistake("names that differ only in how accents are stored:", folder)
            found[name] = tuple(images)
        return found

    def _outside_of_classes(self, place: Path) -> None:
        for image in list_images(place):
            self._mistake("images outside of class folders:", image)
        self._dead_links(place)

    def _dead_links(self, place: Path) -> None:
        self.dead += [_below(link, self.path) for link in list_dead_links(place)]

    def _mistake(self, kind: str, place: Path) -> None:
        self.mistakes[kind].append(_below(place, self.path))


def _check_counts(found: FolderContent, count: int, valid_share: float, test_share: float) -> None:
    """Before anything is decoded: has every class enough images to be split?"""
    for given, share in ((True, None), (False, test_share)):
        counts = {
            f"{task.name}/{name}": len(files)
            for task in found.tasks[:count]
            if (task.test is not None) == given
            for name, files in zip(task.classes, task.train, strict=True)
        }
        if short := too_few(counts, valid_share, share):
            raise BadData(f"{_text(found.path)}: {short}")


def _split_note(tasks: Sequence[TaskFolder], valid_share: float, test_share: float) -> str:
    own = sum(task.test is not None for task in tasks)
    drawn = f"{test_share:g} of every class" if own < len(tasks) else ""
    given = "folder test" if own else ""
    both = f" ({own} of {len(tasks)} tasks), else " if own and drawn else ""
    return f"test: {given}{both}{drawn}; validation: {valid_share:g} of every class's other images; drawn by the seed"


def _below(place: Path, top: Path) -> str:
    return _text(place.relative_to(top)) if place != top else _text(top)


def _text(name: str | Path) -> str:
    """A name that can be printed and stored; letters with accents in their composed form, whoever wrote them.

    >>> _text("cafe\u0301")
    'café'
    """
    return one_line(unicodedata.normalize("NFC", str(name)))
