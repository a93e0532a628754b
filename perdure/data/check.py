"""The data doctor: what is wrong with an image set, and whether its figures may be compared with published ones."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from perdure.data.catalog import SETS
from perdure.data.folder import read_folder, survey
from perdure.data.formats import Images, Labels
from perdure.data.paths import data_root
from perdure.data.published import Completeness, Place, Published, content_md5, judge, locate

Level = Literal["good", "note", "bad"]
EXAMPLES = 3  # of a kind, to look at
SIZE = 64  # pixels: one's own images are looked at as `folder:PATH` makes them unless told otherwise


@dataclass(frozen=True)
class Finding:
    level: Level
    text: str


@dataclass(frozen=True)
class Checkup:
    """What was found in one set of images."""

    name: str
    source: str
    folder: str
    completeness: Completeness | Literal["own data"]
    verdict: str  # one line: may published figures be compared?
    findings: tuple[Finding, ...]


Note = Callable[[Level, str], None]


def examine(published: Published, root: Path | None = None) -> Checkup:
    """Read a set's files anew, without the decoded copy, and look at everything that can be wrong with them."""
    place = locate(published, data_root(root))
    raw = place.layout.read(place.folder)
    completeness, reason = judge(published, place, raw)
    found: list[Finding] = []

    def note(level: Level, text: str) -> None:
        found.append(Finding(level, text))

    _look_at_files(place, note)
    parts = {"train": raw.train, "test": raw.test}
    _look_at_counts(parts, len(published.classes), note)
    _look_at_pixels(parts, note)
    look_for_copies(parts, note, "note" if completeness == "complete" else "bad")  # published ones have some too
    for key, text in raw.notes.items():
        note("note", f"{key}: {text}")
    if completeness == "complete":
        verdict = f"complete: figures may be compared with published ones ({reason})"
        if "split" in raw.notes:
            verdict = f"complete, but split otherwise than in published runs: compare with care ({reason})"
    else:
        verdict = f"{completeness}: compare methods with each other, not with published figures ({reason})"
    return Checkup(published.name, place.layout.name, str(place.folder), completeness, verdict, tuple(found))


def examine_folder(path: Path) -> Checkup:
    """Output over a folder of one's own images: what is in it, what cannot be read, what is there twice."""
    found: list[Finding] = []

    def note(level: Level, text: str) -> None:
        found.append(Finding(level, text))

    seen = survey(path)
    decoded = read_folder(seen, SIZE, skip_unreadable=True)
    x, y = (decoded.tensors[name].numpy() for name in ("x", "y"))
    if unreadable := decoded.facts["unreadable"]:
        note(
            "bad",
            f"{len(unreadable)} images cannot be read ({_some(unreadable)}); skip_unreadable=true leaves them out",
        )
    if seen.ignored:
        note("note", f"{len(seen.ignored)} files do not end like an image ({_some(seen.ignored)})")
    for task in decoded.facts["tasks"]:
        spans = {part: slice(*task[part]) for part in ("train", "test") if task[part] is not None}
        for part, rows in spans.items():
            counts = np.bincount(y[rows], minlength=len(task["classes"]))
            each = ", ".join(f"{name} {count}" for name, count in zip(task["classes"], counts, strict=True))
            note("good" if part == "test" or counts.min() > 2 else "bad", f"{task['name']}, {part}: {each}")
        parts = {part: (x[rows], y[rows]) for part, rows in spans.items()}
        look_for_copies(parts, lambda level, text, name=task["name"]: note(level, f"{name}: {text}"), "bad")  # type: ignore[misc]
    verdict = f"own data: {len(y)} images in {len(seen.tasks)} tasks; there are no published figures to compare with"
    if any(finding.level == "bad" for finding in found):
        verdict += ", and something to mend"
    return Checkup(f"folder:{path}", "folder", str(path), "own data", verdict, tuple(found))


def _look_at_files(place: Place, note: Note) -> None:
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


def _look_at_counts(parts: Mapping[str, tuple[Images, Labels]], classes: int, note: Note) -> None:
    for part, (x, y) in parts.items():
        counts = np.bincount(y, minlength=classes)
        each = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
        shape = " × ".join(map(str, x.shape[1:]))
        note("good", f"{part}: {len(y)} images of {shape}, {each} of each class, labels {y.min()} to {y.max()}")
        if empty := [str(label) for label in np.flatnonzero(counts == 0)]:
            note("bad", f"{part}: no images of {len(empty)} classes ({_some(empty)})")


def _look_at_pixels(parts: Mapping[str, tuple[Images, Labels]], note: Note) -> None:
    x = parts["train"][0]
    counts = [np.bincount(x[:, channel].ravel(), minlength=256) for channel in range(x.shape[1])]
    levels = np.arange(256) / 255
    means = [float(count @ levels / count.sum()) for count in counts]
    squares = [float(count @ levels**2 / count.sum()) for count in counts]
    deviations = [(square - mean**2) ** 0.5 for square, mean in zip(squares, means, strict=True)]
    note("good", f"train: mean per channel {_numbers(means)}, deviation {_numbers(deviations)}")
    for part, (x, y) in parts.items():
        flat = x.reshape(len(x), -1)
        blank = np.flatnonzero(flat.min(1) == flat.max(1))
        if len(blank):
            rows = [f"{part} {row} (label {y[row]})" for row in blank]
            note("note", f"{part}: {len(blank)} images of one color only ({_some(rows)})")


def look_for_copies(parts: Mapping[str, tuple[Images, Labels]], note: Note, gravity: Level) -> None:
    """Images that are there twice, pixel by pixel: with two labels, to train and to test, or just twice."""
    groups: dict[bytes, list[tuple[str, int, int]]] = defaultdict(list)
    for part, (x, y) in parts.items():
        for row, image in enumerate(x):
            groups[hashlib.blake2b(image.tobytes(), digest_size=16).digest()].append((part, row, int(y[row])))
    copies = [group for group in groups.values() if len(group) > 1]
    kinds = {
        "with more than one label": [g for g in copies if len({label for _, _, label in g}) > 1],
        "both to train on and to test": [g for g in copies if len({part for part, _, _ in g}) > 1],
        "more than once in the same part with the same label": [
            g for g in copies if len({(part, label) for part, _, label in g}) < len(g)
        ],
    }
    for kind, found in kinds.items():
        if not found:
            note("good", f"no image is there {kind}")
            continue
        shown = [" = ".join(f"{part} {row} (label {label})" for part, row, label in group[:3]) for group in found]
        level = "note" if kind.startswith("more than once") else gravity
        note(level, f"{len(found)} images are there {kind} ({_some(shown)})")


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:EXAMPLES]) + (f" and {len(texts) - EXAMPLES} more" if len(texts) > EXAMPLES else "")


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)
