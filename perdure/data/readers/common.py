"""What the readers share: opening files within limits, checking labels, reading one folder of images per class.

What is missing, damaged or of another set raises BadData (MissingFile): one line that says what to do.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from perdure import files
from perdure.data.images import Images, list_images, read_images, unreadable_error
from perdure.data.paths import reading
from perdure.errors import BadData

Labels = npt.NDArray[np.int64]
LabeledImages = tuple[Images, Labels]

UNPACK_AGAIN = "unpack its archive again, or fetch that anew"
FETCH_AGAIN = "fetch the file anew"
LARGEST_FILE = 4 * 10**9  # bytes; the pickles of MiniImageNet have 1.1 · 10⁹


@dataclass(frozen=True)
class ImageArrays:
    """What a reader found: images (n, channels, height, width) uint8 with labels (n,) int64."""

    train: LabeledImages
    test: LabeledImages
    classes: tuple[str, ...] | None = None  # where the files say them
    notes: Mapping[str, str] = field(default_factory=dict)  # e.g. "split", where the split is ours


def image_arrays(
    folder: Path,
    train: LabeledImages,
    test: LabeledImages,
    classes: tuple[str, ...] | None = None,
    notes: Mapping[str, str] | None = None,
) -> ImageArrays:
    """`ImageArrays` of the files in `folder`, checked: every class has images to train on and to test."""
    alone = np.setxor1d(train[1], test[1])
    if len(alone):
        name = classes[alone[0]] if classes else str(alone[0])
        where = "to train on but none to test" if alone[0] in train[1] else "to test but none to train on"
        raise BadData(f"{folder}: class {name} has images {where}; {UNPACK_AGAIN}")
    # Writeable, for torch warns of arrays that are not, such as those of a pickle.
    train, test = ((np.require(images, requirements=["C", "W"]), labels) for images, labels in (train, test))
    return ImageArrays(train, test, classes, notes or {})


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """A regular file of bounded size, open for reading."""
    with reading(path):
        try:
            files.check_plain(path, LARGEST_FILE)
        except files.NotPlainFile as error:
            raise BadData(f"{path}: cannot be read ({error.strerror}); put the file itself there") from None
        except files.FileTooLarge as error:
            raise BadData(f"{path}: has {error.size:,} bytes, far more than any image file; {UNPACK_AGAIN}") from None
        with path.open("rb") as file:
            yield file


def read_bytes(path: Path) -> bytes:
    with open_file(path) as file:
        return file.read()


def check_labels(path: Path, labels: npt.NDArray[Any], classes: int) -> Labels:
    """The labels as int64, if they are 0 to classes − 1; they may be of any size before."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        allowed = f"{classes} classes allow 0 to {classes - 1}"
        reach = f"labels reach from {low} to {high}" if max(-low, high) < 2**64 else "labels are beyond all bounds"
        raise BadData(f"{path}: {reach}, but {allowed}; {UNPACK_AGAIN}")
    return labels.astype(np.int64)


# --- one folder of images per class ---


def list_class(folder: Path) -> list[Path]:
    """The image files of a class, of which there must be some."""
    paths = list_images(folder)
    if not paths:
        raise BadData(f"{folder}: a class without images; {UNPACK_AGAIN}")
    return paths


def read_classes(
    classes: Sequence[Sequence[Path]], size: int, channels: int, broken: frozenset[str] = frozenset()
) -> LabeledImages:
    """Images (n, channels, size, size) and labels (n,) of the files of each class, less the `broken` ones.

    Those are files known to be unreadable, as "class/name"; any other is an error.
    """
    paths = [path for own in classes for path in own]
    labels = np.repeat(np.arange(len(classes)), [len(own) for own in classes])
    images, rows, unreadable = read_images(paths, size, channels, skip_unreadable=True)
    if others := [path for path in unreadable if f"{path.parent.name.upper()}/{path.name}" not in broken]:
        raise unreadable_error(others, len(paths), UNPACK_AGAIN)
    for label in np.setdiff1d(labels, labels[rows]):
        raise BadData(f"{classes[label][0].parent}: a class without images; {UNPACK_AGAIN}")
    return images, labels[rows]
