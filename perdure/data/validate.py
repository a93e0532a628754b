"""What is wrong with an image set, and whether its figures may be compared with published ones."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from perdure.data.benchmarks.folder import read_folder, scan_folder
from perdure.data.catalog import SETS, PublishedSet, sets_of
from perdure.data.images import Images
from perdure.data.locate import Completeness, Location, completeness_of, content_md5, locate
from perdure.data.paths import data_root, first_few
from perdure.data.readers.common import Labels
from perdure.errors import PerdureError, WrongValue, expanded

Level = Literal["good", "note", "bad"]
Parts = Mapping[str, tuple[Images, Labels]]
SIZE = 64  # pixels: one's own images are looked at as `folder:PATH` makes them unless asked otherwise


@dataclass(frozen=True)
class Finding:
    level: Level
    text: str


@dataclass(frozen=True)
class DataReport:
    """What was found in one set of images."""

    name: str
    source: str
    folder: str
    completeness: Completeness | Literal["own data", "unreadable"]
    verdict: str  # one line: may published figures be compared? or, if unreadable, why, and what to do
    findings: tuple[Finding, ...] = ()


Note = Callable[[Level, str], None]


def check(
    name: str,
    root: str | Path | None = None,
    *,
    on_report: Callable[[DataReport], None] = lambda _: None,  # called with each report as soon as it is there
) -> list[DataReport]:
    """Examine the files of a benchmark, of an image set, or of `folder:PATH`: one report per image set.

    Files are looked for in `root`, else $PERDURE_DATA, else the user's cache. A set that is missing or cannot be read
    is reported as "unreadable", so that the others are examined all the same.
    """
    kind, _, path = name.partition(":")
    if kind == "folder":
        if not path:
            raise WrongValue("folder: say which folder, as folder:PATH")
        reports = [check_folder(expanded(path))]
        on_report(reports[0])
        return reports
    reports = []
    for published in sets_of(name):
        try:
            report = check_set(published, root)
        except PerdureError as error:
            report = DataReport(published.name, "", str(data_root(root)), "unreadable", str(error))
        reports.append(report)
        on_report(report)
    return reports


def check_set(published: PublishedSet, root: str | Path | None = None) -> DataReport:
    """Read a set's files anew, without the decoded copy, and look at everything that can be wrong with them."""
    place = locate(published, data_root(root))
    found = place.layout.read(place.folder)
    completeness, reason = completeness_of(published, place, found)
    findings: list[Finding] = []

    def note(level: Level, text: str) -> None:
        findings.append(Finding(level, text))

    parts = {"train": found.train, "test": found.test}
    _check_files(place, note)
    _check_counts(parts, len(published.classes), note)
    _check_pixels(parts, note)
    _check_duplicates(parts, note, "note" if completeness == "complete" else "bad")  # published ones have some too
    for key, text in found.notes.items():
        note("note", f"{key}: {text}")
    if completeness == "complete":
        verdict = f"complete: figures may be compared with published ones ({reason})"
        if "split" in found.notes:
            verdict = f"complete, but split otherwise than in published runs: compare with care ({reason})"
    else:
        verdict = f"{completeness}: compare methods with each other, not with published figures ({reason})"
    return DataReport(published.name, place.layout.name, str(place.folder), completeness, verdict, tuple(findings))


def check_folder(path: Path) -> DataReport:
    """A folder of one's own images: what is in it, what cannot be read, what is there twice."""
    findings: list[Finding] = []

    def note(level: Level, text: str) -> None:
        findings.append(Finding(level, text))

    content = scan_folder(path)
    decoded = read_folder(content, SIZE, skip_unreadable=True)
    x, y = (decoded.tensors[name].numpy() for name in ("x", "y"))
    if unreadable := decoded.facts["unreadable"]:
        how = "skip_unreadable=true leaves them out"
        note("bad", f"{len(unreadable)} images cannot be read ({first_few(unreadable, 3)}); {how}")
    if content.ignored:
        note("note", f"{len(content.ignored)} files do not end like an image ({first_few(content.ignored, 3)})")
    if content.dead:
        note("note", f"{len(content.dead)} links lead nowhere ({first_few(content.dead, 3)})")
    if copies := decoded.facts["copies"]:
        note("note", f"{len(copies)} image files are in more than one class ({first_few(copies, 3)})")
    for task in decoded.facts["tasks"]:
        parts = {part: (x[slice(*task[part])], y[slice(*task[part])]) for part in ("train", "test") if task[part]}
        for part, (_, labels) in parts.items():
            counts = np.bincount(labels, minlength=len(task["classes"]))
            each = ", ".join(f"{name} {count}" for name, count in zip(task["classes"], counts, strict=True))
            note("good" if part == "test" or counts.min() > 2 else "bad", f"{task['name']}, {part}: {each}")
        _check_duplicates(parts, note, "bad", f"{task['name']}: ")
    verdict = f"own data: {len(y)} images in {len(content.tasks)} tasks; there are no published figures to compare with"
    if any(finding.level == "bad" for finding in findings):
        verdict += ", and something to mend"
    return DataReport(f"folder:{path}", "folder", str(path), "own data", verdict, tuple(findings))


def _check_files(place: Location, note: Note) -> None:
    size = sum(path.stat().st_size for path in place.files)
    note("good", f"{len(place.files)} files, {size / 1e6:,.1f} MB, all readable")
    if not place.layout.md5:
        note("note", "no official checksums exist: the files are judged by their counts")
        return
    owners = {md5: s for s in SETS.values() for layout in s.layouts for md5 in layout.md5.values()}
    for path in place.files:
        found, wanted = content_md5(path), place.layout.md5[path.name.removesuffix(".gz")]
        if found == wanted:
            note("good", f"{path.name}: the official file (md5 {found})")
        elif found in owners:
            note("bad", f"{path.name}: this is a file of {owners[found].title}")
        else:
            note("note", f"{path.name}: not the official file (md5 {found}, official {wanted})")


def _check_counts(parts: Parts, classes: int, note: Note) -> None:
    for part, (x, y) in parts.items():
        counts = np.bincount(y, minlength=classes)
        each = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
        shape = " × ".join(map(str, x.shape[1:]))
        note("good", f"{part}: {len(y)} images of {shape}, {each} of each class, labels {y.min()} to {y.max()}")
        if empty := np.flatnonzero(counts == 0).tolist():
            note("bad", f"{part}: no images of {len(empty)} classes ({first_few(empty, 3)})")


def _check_pixels(parts: Parts, note: Note) -> None:
    x = parts["train"][0]
    levels = np.arange(256) / 255
    shares = [np.bincount(x[:, channel].ravel(), minlength=256) / x[:, 0].size for channel in range(x.shape[1])]
    means = [float(share @ levels) for share in shares]
    stds = [max(float(share @ levels**2) - mean**2, 0) ** 0.5 for share, mean in zip(shares, means, strict=True)]
    note("good", f"train: mean per channel {_numbers(means)}, deviation {_numbers(stds)}")
    for part, (x, y) in parts.items():
        flat = x.reshape(len(x), -1)
        blank = np.flatnonzero(flat.min(1) == flat.max(1))
        if len(blank):
            rows = [f"{part} {row} (label {y[row]})" for row in blank]
            note("note", f"{part}: {len(blank)} images of one color only ({first_few(rows, 3)})")


def _check_duplicates(parts: Parts, note: Note, level: Level, where: str = "") -> None:
    """Images that are there twice, pixel by pixel: with two labels, to train and to test, or just twice."""
    groups: dict[bytes, list[tuple[str, int, int]]] = defaultdict(list)
    for part, (x, y) in parts.items():
        for row, image in enumerate(x):
            groups[hashlib.blake2b(image.tobytes(), digest_size=16).digest()].append((part, row, int(y[row])))
    copies = [group for group in groups.values() if len(group) > 1]
    repeated = "more than once in the same part with the same label"
    kinds = {
        "with more than one label": [g for g in copies if len({label for _, _, label in g}) > 1],
        "both to train on and to test": [g for g in copies if len({part for part, _, _ in g}) > 1],
        repeated: [g for g in copies if len({(part, label) for part, _, label in g}) < len(g)],
    }
    for kind, found in kinds.items():
        if not found:
            note("good", f"{where}no image is there {kind}")
            continue
        shown = [" = ".join(f"{part} {row} (label {label})" for part, row, label in group[:3]) for group in found]
        text = f"{where}{len(found)} images are there {kind} ({first_few(shown, 3)})"
        note("note" if kind == repeated else level, text)


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)
