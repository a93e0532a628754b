"""`folder:PATH`: your own image files, with no code. One folder per task, in each one folder per class."""

import os
import stat
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from perdure.data.cache import Decoded, cached, fingerprint
from perdure.data.own import check_shares, few, one_line, task_from, too_few
from perdure.data.pictures import SUFFIXES, list_pictures, natural, read_pictures
from perdure.data.stream import task_count
from perdure.errors import BadData, MissingFile
from perdure.schema import Count, Share
from perdure.types import Stream, Task

LAYOUT = "FOLDER/task/class/image.jpg"
FORM = f"put images as {LAYOUT}, a folder per task and in it one per class"

# In the order in which they are told, each with what to do.
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
class Survey:
    """What a folder holds, before any image is decoded."""

    path: Path
    tasks: tuple[TaskFolder, ...]
    ignored: tuple[str, ...]  # files that do not end like an image

    def files(self, tasks: int | None = None) -> list[Path]:
        """All image files of the first tasks in the order in which they are read."""
        return [
            file
            for task in self.tasks[:tasks]
            for part in (task.train, task.test or ())
            for group in part
            for file in group
        ]


def folder(
    *,
    path: Path,
    seed: int,
    tasks: int | None = None,
    size: Count = 64,  # pixels: each image becomes size × size, once
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
    found = survey(path)
    count = task_count(tasks, len(found.tasks))
    _check_counts(found, count, valid_share, test_share)
    decoded = cached(
        "folder",
        found.path,
        found.files(count),
        lambda: read_folder(found, size, tasks=count, skip_unreadable=skip_unreadable),
        size=size,
        skip_unreadable=skip_unreadable,
    )
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
        notes["ignored"] = f"{len(found.ignored)} files that do not end like an image: {few(found.ignored)}"
    return Stream("folder", made, notes, decoded.facts["fingerprint"])


def survey(path: Path) -> Survey:
    """What is where. All mistakes of a kind are named in one error."""
    path = Path(path).expanduser()
    folders = _top(path)
    mistakes = _Mistakes(path)
    mistakes.strays(path)
    found = tuple(_survey_task(folder, mistakes) for folder in folders)
    mistakes.tell()
    return Survey(path, found, tuple(mistakes.ignored))


def read_folder(found: Survey, size: int, *, tasks: int | None = None, skip_unreadable: bool = False) -> Decoded:
    """The images of the first tasks, decoded: flat tensors and facts that JSON can hold, so that a copy can be kept.

    Tensors: `x` (n, 3, size, size) uint8 and `y` (n,) int64, the class within the task. Facts: `tasks`, each with
    `name`, `classes`, and the rows [first, stop] of `train` and of `test` (or none); `unreadable` files left out;
    a `fingerprint` of all that changes numbers, which names and places do not.
    """
    chosen = found.tasks[:tasks]
    paths = found.files(tasks)
    groups = [group for task in chosen for group in (task.train, task.test or ())]  # two per task
    parts = np.repeat(np.arange(len(groups)), [sum(map(len, group)) for group in groups])
    labels = np.concatenate([np.repeat(np.arange(len(group)), [len(files) for files in group]) for group in groups])
    images, rows, unreadable = read_pictures(paths, size, 3, skip_unreadable)
    ends = np.searchsorted(parts[rows], np.arange(len(groups)), side="right").tolist()
    spans = list(zip([0, *ends], ends, strict=False))
    about = [
        {
            "name": task.name,
            "classes": list(task.classes),
            "train": list(spans[2 * number]),
            "test": None if task.test is None else list(spans[2 * number + 1]),
        }
        for number, task in enumerate(chosen)
    ]
    x, y = torch.from_numpy(images), torch.from_numpy(labels[rows].astype(np.int64))
    facts = {
        "tasks": about,
        "unreadable": [_below(file, found.path) for file in unreadable],
        "fingerprint": fingerprint([x, y, torch.tensor(spans[::2])]),  # rows between those to train on test
    }
    return Decoded({"x": x, "y": y}, facts)


def make_tasks(decoded: Decoded, *, seed: int, valid_share: float, test_share: float) -> list[Task]:
    """Tasks of what `read_folder` gives, or of a copy of it."""
    x, y = decoded.tensors["x"], decoded.tensors["y"]

    made = []
    for task in decoded.facts["tasks"]:
        train, test = (
            None if span is None else (x[span[0] : span[1]], y[span[0] : span[1]])
            for span in (task["train"], task["test"])
        )
        assert train is not None
        try:
            made.append(
                task_from(
                    task["name"],
                    train,
                    test,
                    classes=task["classes"],
                    seed=seed,
                    valid_share=valid_share,
                    test_share=test_share,
                )
            )
        except BadData as error:
            if not decoded.facts["unreadable"]:
                raise
            raise BadData(f"{error} (some images could not be read and were left out)") from None
    return made


class _Mistakes:
    """What is wrong with a folder, kind by kind, so that all of a kind are told at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, list[str]] = {kind: [] for kind in MISTAKES}
        self.ignored: list[str] = []

    def add(self, kind: str, place: Path) -> None:
        self.found[kind].append(_below(place, self.path))

    def strays(self, place: Path) -> None:
        """Images where only folders should be."""
        for picture in list_pictures(place):
            self.add("images outside of class folders:", picture)

    def tell(self) -> None:
        for kind, places in self.found.items():
            if places:
                raise BadData(f"{_text(self.path)}: {kind} {few(places)}; {MISTAKES[kind]}")


def _top(path: Path) -> list[Path]:
    """The folders of the tasks, if that is what `path` holds."""
    shown = _text(path)
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, ValueError):  # ValueError: no name that a file could have
        raise MissingFile(f"{shown}: no such folder; {FORM}") from None
    except OSError as error:
        raise BadData(f"{shown}: cannot be read ({error.strerror}); check that it is a folder you may read") from None
    if not is_folder:
        raise BadData(f"{shown}: a file, not a folder; {FORM}")
    folders = _folders(path)
    if not folders:
        raise BadData(f"{shown}: holds {'images' if list_pictures(path) else 'nothing'} instead of folders; {FORM}")
    parts = [folder.name for folder in folders if folder.name.casefold() in ("train", "test")]
    if parts:
        raise BadData(
            f"{shown}: holds {' and '.join(parts)}, as a task does; put them into a folder per task ({LAYOUT})"
        )
    if all(list_pictures(folder) and not _folders(folder) for folder in folders):
        names = few([folder.name for folder in folders])
        raise BadData(
            f"{shown}: its folders ({names}) hold images; put your class folders into a folder per task ({LAYOUT})"
        )
    return folders


def _survey_task(folder: Path, mistakes: _Mistakes) -> TaskFolder:
    inner = _folders(folder)
    mistakes.strays(folder)
    test = next((place for place in inner if place.name.casefold() == "test"), None)
    # A folder `train` of images is a class, such as of toys; one of folders is the part to train on.
    train = next((place for place in inner if place.name.casefold() == "train" and _folders(place)), None)
    others = [place for place in inner if place not in (test, train)]
    if train is not None:
        mistakes.strays(train)
        for place in others:
            mistakes.add("folders beside train and test:", place)
    groups = _survey_classes(train or folder, others if train is None else _folders(train), mistakes)
    if len(groups) == 1:
        mistakes.add("only one class in", train or folder)
    if test is None:
        return TaskFolder(_text(folder.name), tuple(groups), tuple(groups.values()), None)
    mistakes.strays(test)
    tests = _survey_classes(test, _folders(test), mistakes)
    for name in tests:
        if name not in groups:
            mistakes.add("test classes without training images:", test / name)
    held = tuple(tests.get(name, ()) for name in groups)
    return TaskFolder(_text(folder.name), tuple(groups), tuple(groups.values()), held)


def _survey_classes(parent: Path, folders: Sequence[Path], mistakes: _Mistakes) -> dict[str, tuple[Path, ...]]:
    """Class → its image files."""
    if not folders:
        mistakes.add("no class folders in", parent)
    found = {}
    for folder in folders:
        pictures = list_pictures(folder)
        if _folders(folder):
            mistakes.add("folders inside class folders:", folder)
        elif not pictures:
            mistakes.add("no images in", folder)
        known = set(pictures)
        mistakes.ignored += [_below(file, mistakes.path) for file in _files(folder) if file not in known]
        if (name := _text(folder.name)) in found:
            mistakes.add("names that differ only in how accents are stored:", folder)
        found[name] = tuple(pictures)
    return found


def _check_counts(found: Survey, count: int, valid_share: float, test_share: float) -> None:
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


def _folders(place: Path) -> list[Path]:
    return _children(place, os.DirEntry.is_dir)


def _files(place: Path) -> list[Path]:
    return _children(place, os.DirEntry.is_file)


def _children(place: Path, wanted: Callable[[os.DirEntry[str]], bool]) -> list[Path]:
    """What a folder holds, in natural order; hidden names are left out."""
    try:
        with os.scandir(place) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".") and wanted(entry)]
    except OSError as error:
        how = "check that it is a folder you may read"
        raise BadData(f"{_text(place)}: cannot be read ({error.strerror}); {how}") from None
    return [place / name for name in sorted(names, key=natural)]


def _below(place: Path, top: Path) -> str:
    return _text(place.relative_to(top)) if place != top else _text(top)


def _text(name: str | Path) -> str:
    """A name that can be printed and stored; letters with accents in their composed form, whoever wrote them.

    >>> _text("cafe\u0301")
    'café'
    """
    return one_line(unicodedata.normalize("NFC", str(name)))
