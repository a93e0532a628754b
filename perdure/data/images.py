"""Image files (JPEG, PNG, …) and folders of them, as arrays of bytes.

A file that is no image raises BadData, one that is not there MissingFile: one line that names it. Nothing is
printed or warned, but for what libtiff itself writes to stderr about a damaged compressed TIFF.
"""

import math
import os
import re
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from numbers import Integral
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from perdure.data.paths import first_few, one_line, reading
from perdure.errors import BadData, WrongValue, short

Images = npt.NDArray[np.uint8]

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})

LARGEST_SIZE = 4096

# Pillow looks at the content, not at the suffix, and knows formats that start other programs (EPS) or open other
# files. Only these are tried.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
_FILTER = Image.Resampling.LANCZOS
_FEW_PIXELS = 2**24  # 4096 × 4096: as many any file may have
_DENSEST = 500  # pixels that a byte may stand for in a larger one
_PIECE = 16  # images that a thread decodes in one go: one by one, small ones take a third longer
_Fault = BadData | tuple[int, ...]  # what is wrong, or another shape than that of the first


def list_images(folder: Path) -> list[Path]:
    """The image files of a folder, known by their suffix, in natural order (img2 before img10).

    Hidden files and those in folders below are left out.
    """
    return list_folder(folder, lambda entry: Path(entry.name).suffix.lower() in SUFFIXES and entry.is_file())


def list_folders(folder: Path) -> list[Path]:
    return list_folder(folder, os.DirEntry.is_dir)


def list_dead_links(folder: Path) -> list[Path]:
    """Links to what is not there, or to each other."""
    links = list_folder(folder, os.DirEntry.is_symlink)
    return [path for path in links if not os.path.exists(path)]  # noqa: PTH110 — never raises


def list_folder(folder: Path, wanted: Callable[[os.DirEntry[str]], bool]) -> list[Path]:
    """What a folder holds, in natural order; hidden names are left out, and links that lead in a circle."""

    def chosen(entry: os.DirEntry[str]) -> bool:
        with suppress(OSError):
            return not entry.name.startswith(".") and wanted(entry)
        return False

    with reading(folder, "folder"), os.scandir(folder) as entries:
        names = [entry.name for entry in entries if chosen(entry)]
    return [Path(folder) / name for name in sorted(names, key=natural_key)]


def natural_key(name: str) -> tuple[list[str | int], str]:
    """Sorts names as people count.

    >>> sorted(["img10.png", "img2.png", "img02.png"], key=natural_key)
    ['img02.png', 'img2.png', 'img10.png']
    """
    pieces = re.split("([0-9]+)", name)
    return [int(piece) if at % 2 else piece for at, piece in enumerate(pieces)], name


def read_images(
    paths: Sequence[Path],
    size: int | None,
    channels: int,
    skip_unreadable: bool = False,
) -> tuple[Images, list[int], list[Path]]:
    """Image files as (n, channels, height, width), the rows of `paths` they came from, and the unreadable files.

    Images are in colors or, with one channel, in gray; of an animation the first. With a `size` each becomes
    (channels, size, size): its short side is scaled and the center cut out. What else is done says `to_plain`.

    Unreadable are damaged, truncated, missing and enormous files. They are all found, and then named in one error,
    or left out if `skip_unreadable`: then n may be less than the number of paths, even 0.
    """
    if channels not in (1, 3):
        raise WrongValue(f"channels={channels} is not allowed; use 1 for gray or 3 for colors")
    check_size(size)
    paths = [Path(path) for path in paths]
    # Filters of warnings belong to the process, so they are set once here and not by each thread.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shape = (channels, size, size) if size else _first_shape(paths, channels)
        images = _room_for(len(paths), shape)
        faults = _decode_all(images, paths, size)
    unreadable = [paths[row] for row, fault in faults.items() if isinstance(fault, BadData)]
    if unreadable and not skip_unreadable:
        first = next(fault for fault in faults.values() if isinstance(fault, BadData))
        how = "remove or replace them, or leave them out with skip_unreadable=true"
        raise first if len(paths) == 1 else unreadable_error(unreadable, len(paths), how)
    rows = [row for row in range(len(paths)) if row not in faults]
    for row, other in faults.items():
        if isinstance(other, tuple):
            model, path = one_line(paths[rows[0]]), one_line(paths[row])
            sizes = f"{model} is {shape[1]}×{shape[2]} and {path} is {other[1]}×{other[2]}"
            raise BadData(f"images differ in height×width: {sizes}; scale all to one size, as with size=32")
    return (images[rows] if unreadable else images), rows, unreadable


def check_size(size: int | None) -> None:
    """The side that images are scaled to, if they are."""
    if size is not None and not (isinstance(size, Integral) and 1 <= size <= LARGEST_SIZE):
        how = f"use 1 to {LARGEST_SIZE} pixels, or leave it out"
        raise WrongValue(f"size={short(size)} is not allowed; {how}")


def to_plain(image: Image.Image, channels: int) -> Image.Image:
    """An image in mode L (one channel) or RGB (three), turned upright as its EXIF tag says.

    Transparent parts become white: images with them are mostly drawings in dark ink for a white page, which would
    vanish on black. Sixteen bits are brought down to eight.
    """
    with suppress(Exception):  # a damaged tag does not make a good image a bad one
        image = ImageOps.exif_transpose(image)
    mode = "L" if channels == 1 else "RGB"
    if image.mode == "F" or image.mode.startswith("I"):
        pixels = np.asarray(image)
        if image.mode == "F" or pixels.min() < 0 or pixels.max() > 65535:
            raise _Refused("an image whose pixels are floats or 32 bits wide, for which no range is agreed")
        image = Image.fromarray(((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8))  # pillow would cut at 255
    elif image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        drawing = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", drawing.size, "white"), drawing)
    return image if image.mode == mode else image.convert(mode)


def scale_images(images: Images, size: int) -> Images:
    """Images (n, channels, height, width) as (n, channels, size, size), made as `read_images` makes them.

    >>> scale_images(np.zeros((2, 1, 28, 28), np.uint8), 32).shape
    (2, 1, 32, 32)
    """
    if images.shape[2:] == (size, size):
        return images
    made = np.empty((*images.shape[:2], size, size), np.uint8)
    for image, target in zip(images.reshape(-1, *images.shape[2:]), made.reshape(-1, size, size), strict=True):
        target[:] = ImageOps.fit(Image.fromarray(image), (size, size), _FILTER)
    return made


def unreadable_error(paths: Sequence[Path], total: int, how: str) -> BadData:
    """One line that names up to five unreadable files of `total`, and says `how` to go on."""
    folder = os.path.commonpath([path.parent for path in paths])
    names = first_few([path.relative_to(folder) for path in paths])
    return BadData(f"{one_line(folder)}: {len(paths):,} of {total:,} images cannot be read: {names}; {how}")


def _room_for(count: int, shape: tuple[int, ...]) -> Images:
    """An array of so many images. The system would promise more memory than there is, and end the process later."""
    try:
        if count * math.prod(shape) > machine_memory():
            raise MemoryError
        return np.empty((count, *shape), np.uint8)
    except (MemoryError, ValueError):  # ValueError: more than can be counted
        each = " × ".join(map(str, shape))
        how = "scale them to a smaller size"
        raise BadData(f"{count:,} images of {each} bytes do not fit in memory; {how}") from None


def machine_memory() -> float:
    """Bytes that this machine has."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # systems that do not say
        return math.inf


def _first_shape(paths: Sequence[Path], channels: int) -> tuple[int, ...]:
    """The shape of the first readable image, which all others must have."""
    for path in paths:
        try:
            return _decode(path, None, channels).shape
        except BadData:
            continue
    return channels, 0, 0


def _decode_all(images: Images, paths: Sequence[Path], size: int | None) -> dict[int, _Fault]:
    """Decode every path into its row; returns of the other rows what was wrong, or the other shape that they have."""

    def decode_piece(first: int) -> dict[int, _Fault]:
        faults: dict[int, _Fault] = {}
        for row in range(first, min(first + _PIECE, len(paths))):
            try:
                pixels = _decode(paths[row], size, images.shape[1])
            except BadData as fault:
                faults[row] = fault
                continue
            if pixels.shape == images.shape[1:]:
                images[row] = pixels
            else:
                faults[row] = pixels.shape
        return faults

    faults: dict[int, _Fault] = {}
    pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1))  # pillow decodes without Python's lock
    try:
        for found in pool.map(decode_piece, range(0, len(paths), _PIECE)):
            faults |= found
    finally:
        pool.shutdown(cancel_futures=True)  # else Ctrl-C would wait for all that is left
    return faults


class _Refused(Exception):
    pass


def _decode(path: Path, size: int | None, channels: int) -> Images:
    with reading(path), path.open("rb") as file:
        return _decode_open(file, os.fstat(file.fileno()).st_size, one_line(path), size, channels)


def read_image(content: bytes, size: int | None, channels: int) -> Images:
    """One image of the bytes of a file, as `read_images` reads files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _decode_open(BytesIO(content), len(content), "the image", size, channels)


def _decode_open(file: IO[bytes], length: int, name: str, size: int | None, channels: int) -> Images:
    try:
        with Image.open(file, formats=_FORMATS) as image:
            _check_pixels(image.size, length)
            if size:
                image.draft(None, (2 * size, 2 * size))  # a JPEG can be decoded at 1/2, 1/4 or 1/8, much quicker
            image.load()
            made = to_plain(image, channels)
            pixels = np.asarray(ImageOps.fit(made, (size, size), _FILTER) if size else made)
    except Exception as error:  # a damaged file can fail in any way at all
        if isinstance(error, OSError) and error.errno:  # of the system; pillow's own have none
            raise
        raise BadData(f"{name}: {_why(error)}; remove it or put a good one there") from None
    return np.ascontiguousarray(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1))


def _check_pixels(size: tuple[int, int], content: int) -> None:
    """Before anything is decoded: a few bytes can ask for gigabytes."""
    pixels, shown = math.prod(size), f"{size[0]}×{size[1]} pixels"
    most = Image.MAX_IMAGE_PIXELS
    if most and pixels > most:  # of which pillow only warns
        raise _Refused(f"of {shown}, more than the {most:,} that are allowed")
    if pixels > _FEW_PIXELS and pixels > _DENSEST * content:
        raise _Refused(f"of {shown} in {content:,} bytes, which is no photograph")


def _why(error: Exception) -> str:
    if isinstance(error, _Refused):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    if isinstance(error, Image.DecompressionBombError):
        return "of far more pixels than an image has"
    return f"a damaged or truncated image ({type(error).__name__})"
