"""IDX, the format of MNIST and Fashion-MNIST, plain or gzipped."""

import gzip
import math
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from perdure.data.images import Images
from perdure.data.readers.common import (
    FETCH_AGAIN,
    UNPACK_AGAIN,
    ImageArrays,
    LabeledImages,
    check_labels,
    image_arrays,
    open_file,
)
from perdure.errors import BadData, MissingFile

LARGEST_ARRAY = 2 * 10**9  # bytes; the largest IDX file known, of all EMNIST, has 0.55 · 10⁹


def idx(folder: Path) -> ImageArrays:
    """train- and t10k-images-idx3-ubyte and -labels-idx1-ubyte, each plain or .gz; images (n, 1, 28, 28)."""
    return image_arrays(folder, read_idx_pair(folder, "train"), read_idx_pair(folder, "t10k"))


def read_idx_pair(folder: Path, part: str) -> LabeledImages:
    """Images (n, 1, 28, 28) and labels (n,), 0 to 9, of the `part` "train" or "t10k"."""
    images_path, images = _read_plain_or_gzipped(folder / f"{part}-images-idx3-ubyte")
    labels_path, labels = _read_plain_or_gzipped(folder / f"{part}-labels-idx1-ubyte")
    if images.ndim != 3 or images.shape[1:] != (28, 28):
        raise BadData(f"{images_path}: holds shape {images.shape} instead of n × 28 × 28; {UNPACK_AGAIN}")
    if labels.ndim != 1:
        raise BadData(f"{labels_path}: holds shape {labels.shape} instead of one label per image; {UNPACK_AGAIN}")
    if len(images) != len(labels):
        other = f"{len(images)} images in {images_path.name}"
        raise BadData(f"{labels_path}: holds {len(labels)} labels for {other}; fetch both files anew")
    if len(images) == 0:
        raise BadData(f"{images_path}: holds no images; {UNPACK_AGAIN}")
    return images[:, None], check_labels(labels_path, labels, 10)


def read_idx(path: Path) -> Images:
    """The array of bytes in an IDX file, in the shape that its header gives; gzip is noticed by itself.

    No more is read, or inflated, than the header promises.
    """
    with open_file(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            with gzip.open(file) if packed else file as plain:
                return _read(path, plain)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise BadData(f"{path}: the gzip stream is damaged or cut short; {FETCH_AGAIN}") from None


def _read(path: Path, file: IO[bytes] | gzip.GzipFile) -> Images:
    # Magic: two zeros, 8 for unsigned bytes, and the number of dimensions, each a big-endian 32-bit length.
    magic = file.read(4)
    if len(magic) < 4 or magic[:3] != b"\0\0\x08" or not 1 <= magic[3] <= 4:
        raise BadData(f"{path}: not an IDX file of bytes (it begins with {magic.hex() or 'nothing'}); {UNPACK_AGAIN}")
    header = 4 + 4 * magic[3]
    lengths = file.read(header - 4)
    if len(lengths) < header - 4:
        raise BadData(f"{path}: has {4 + len(lengths)} bytes, too few for a header of {header}; {UNPACK_AGAIN}")
    shape = tuple(np.frombuffer(lengths, ">u4").tolist())
    promised = math.prod(shape)
    if promised > LARGEST_ARRAY:
        limit = f"more than the {LARGEST_ARRAY:,} bytes that are allowed"
        raise BadData(f"{path}: its header asks for shape {shape}, {limit}; {UNPACK_AGAIN}")
    pixels = bytearray()
    while piece := file.read(min(2**20, promised + 1 - len(pixels))):
        pixels += piece
    if len(pixels) != promised:
        more = "at least " if len(pixels) > promised else ""
        needed = f"{header + promised} bytes for shape {shape}"
        raise BadData(f"{path}: has {more}{header + len(pixels)} bytes instead of {needed}; {UNPACK_AGAIN}")
    return np.frombuffer(pixels, np.uint8).reshape(shape)


def _read_plain_or_gzipped(path: Path) -> tuple[Path, Images]:
    packed = path.with_name(f"{path.name}.gz")
    for form in (path, packed):
        try:
            return form, read_idx(form)
        except MissingFile:
            continue
    how = "put it there, or point PERDURE_DATA at its folder"
    raise MissingFile(f"{path}: no such file, nor {packed.name}; {how}")
