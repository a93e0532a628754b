"""CIFAR-100 as ten tasks of ten classes, from the official files."""

import hashlib
from pathlib import Path

import numpy as np

from perdure.data.formats import Labels, read_cifar_binary, read_cifar_pickle, read_pickle
from perdure.data.stream import data_root, make_task, task_count
from perdure.errors import BadData, MissingFile
from perdure.types import Stream

MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)
VALID_SHARE = 0.05
TASKS, CLASSES = 10, 10
PER_CLASS = 500, 100  # images to train on (and validate with), and to test

# Training file, test file, and the file of class names, in the order in which they are looked for.
LAYOUTS = {
    "cifar-100-binary": ("train.bin", "test.bin", "fine_label_names.txt"),
    "cifar-100-python": ("train", "test", "meta"),
}
OFFICIAL = {  # md5
    "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
    "test.bin": "4499cfba6c016c1be1438163640a0898",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}


def cifar100(*, seed: int, root: Path | None = None, tasks: int | None = None) -> Stream:
    """Ten tasks of ten classes in the order of their indices: 4750 images to train on, 250 to validate with,
    1000 to test, each (3, 32, 32).

    `seed` draws the validation images of every task; `tasks` keeps the first few. The files are looked for in
    `root`, else $PERDURE_DATA, else the user's cache, and are never changed. The notes say whether they are the
    complete official ones, for only then may published figures be compared.
    """
    count = task_count(tasks, TASKS)
    kind, folder = _locate(data_root(root))
    *paths, names_path = (folder / name for name in LAYOUTS[kind])
    read = read_cifar_pickle if kind == "cifar-100-python" else lambda path: read_cifar_binary(path, 1)
    (train_x, train_y), (test_x, test_y) = map(read, paths)
    names = _class_names(names_path)

    made = []
    for task in range(count):
        first = task * CLASSES
        train, test = (np.flatnonzero(y // CLASSES == task) for y in (train_y, test_y))
        if len(train) == 0 or len(test) == 0:
            raise BadData(f"{folder}: no images of classes {first} to {first + CLASSES - 1}; ask for fewer tasks")
        made.append(
            make_task(
                f"cifar100-{task}",
                names[first : first + CLASSES],
                (train_x[train], train_y[train] - first),
                (test_x[test], test_y[test] - first),
                valid_share=VALID_SHARE,
                seed=seed,
                mean=MEAN,
                std=STD,
            )
        )
    notes = {
        "source": kind,
        "completeness": _completeness(paths, train_y, test_y),
        "tasks": f"{count} of {TASKS}",
    }
    return Stream("cifar100", made, notes)


def _locate(root: Path) -> tuple[str, Path]:
    """Which layout is there, and its folder: one of that name in `root`, or `root` itself."""
    partial = ""
    for kind, (train, test, _) in LAYOUTS.items():
        for folder in (root / kind, root):
            there = [(folder / name).is_file() for name in (train, test)]
            if all(there):
                return kind, folder
            if any(there):
                lacks = folder / (test if there[0] else train)
                partial = partial or f"{lacks}: not there, unlike its twin; unpack {kind}.tar.gz again"
    if partial:
        raise MissingFile(partial)
    binary, python = LAYOUTS
    raise MissingFile(
        f"no CIFAR-100 in {root}: put train.bin and test.bin of {binary}.tar.gz into {root / binary}, or train "
        f"and test of {python}.tar.gz into {root / python}, or point PERDURE_DATA at the folder that has them"
    )


def _class_names(path: Path) -> list[str]:
    """The hundred names, or their numbers where the file of names was left out."""
    if not path.is_file():
        return [str(label) for label in range(TASKS * CLASSES)]
    if path.suffix == ".txt":
        names = path.read_text(encoding="utf-8", errors="replace").split()
    else:
        given = read_pickle(path).get("fine_label_names")
        names = [_text(name) for name in given] if isinstance(given, list) else []
    if len(names) != TASKS * CLASSES:
        raise BadData(f"{path}: holds {len(names)} class names instead of 100; unpack its archive again or remove it")
    return names


def _text(name: object) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def _completeness(paths: list[Path], train_y: Labels, test_y: Labels) -> str:
    """`complete` for the official bytes, `subset` for fewer images of a class, else `altered`."""
    if all(_md5(path) == OFFICIAL[path.name] for path in paths):
        return "complete"
    found = (np.bincount(y, minlength=TASKS * CLASSES) for y in (train_y, test_y))
    missing = np.concatenate([full - count for full, count in zip(PER_CLASS, found, strict=True)])
    return "subset" if missing.min() >= 0 and missing.max() > 0 else "altered"


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
