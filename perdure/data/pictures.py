"""Image files (JPEG, PNG, …) and folders of them, as arrays of bytes.

A file that is no picture raises BadData, one that is not there MissingFile: one line that names it. Nothing is
printed or warned, but for what libtiff itself writes to stderr about a damaged compressed TIFF.
"""

import os
import re
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from perdure.data.formats import Images
from perdure.errors import BadData, MissingFile, WrongValue

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})

# Pillow looks at the content, not at the suffix, and knows formats that start other programs (EPS) or open other
# files. Only these are tried.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "PPM", "TIFF")

_FILTER = Image.Resampling.LANCZOS
_PIECE = 16  # pictures that a thread decodes in one go: by the single picture, small ones take a third longer
_Fault = BadData | tuple[int, ...] | None

_ORIENTATION = 0x0112  # the EXIF tag; 1 is upright
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def list_pictures(folder: Path) -> list[Path]:
    """The image files of a folder, known by their suffix, in natural order (img2 before img10).

    Hidden files and those in folders below are left out.
    """
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if _is_picture(entry.name) and entry.is_file()]
    except FileNotFoundError:
        raise MissingFile(f"{folder}: no such folder; put it there, or name another") from None
    except OSError as error:
        raise BadData(f"{folder}: cannot be read ({error.strerror}); check that it is a folder you may read") from None
    return [Path(folder) / name for name in sorted(names, key=natural)]


def natural(name: str) -> tuple[list[str | int], str]:
    """A key that sorts names as people count.

    >>> sorted(["img10.png", "img2.png", "img02.png"], key=natural)
    ['img02.png', 'img2.png', 'img10.png']
    """
    pieces = re.split("([0-9]+)", name)
    return [int(piece) if at % 2 else piece for at, piece in enumerate(pieces)], name


def read_pictures(
    paths: Sequence[Path],
    size: int | None,
    channels: int,
    skip_unreadable: bool = False,
) -> tuple[Images, list[int], list[Path]]:
    """Image files as (n, channels, height, width), the rows of `paths` they came from, and the unreadable files.

    Images are in colors or, with one channel, in gray; of an animation the first. With a `size` each becomes
    (channels, size, size): its short side is scaled and the center cut out. What else is done says `plain`.

    Unreadable are damaged, truncated, missing and enormous files. They are all found, and then named in one error,
    or left out if `skip_unreadable`: then n may be less than the number of paths, even 0.
    """
    _check_asked(size, channels)
    paths = [Path(path) for path in paths]
    # Filters of warnings belong to the process, so they are set once here and not by each thread.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shape = (channels, size, size) if size else _first_shape(paths, channels)
        images = _room(len(paths), shape)
        faults = _fill(images, paths, size)
    unreadable = [path for path, fault in zip(paths, faults, strict=True) if isinstance(fault, BadData)]
    if unreadable and not skip_unreadable:
        first = next(fault for fault in faults if isinstance(fault, BadData))
        how = "remove or replace them, or leave them out with skip_unreadable=true"
        raise first if len(paths) == 1 else unreadable_error(unreadable, len(paths), how)
    for path, other in zip(paths, faults, strict=True):
        if isinstance(other, tuple):
            model = paths[next(row for row, fault in enumerate(faults) if fault is None)]
            sizes = f"{_shown(model)} is {shape[1]}×{shape[2]} and {_shown(path)} is {other[1]}×{other[2]}"
            raise BadData(f"pictures differ in height×width: {sizes}; scale all to one size, as with size=32")
    rows = [row for row, fault in enumerate(faults) if fault is None]
    return (images[rows] if unreadable else images), rows, unreadable


def plain(image: Image.Image, channels: int) -> Image.Image:
    """A picture in mode L (one channel) or RGB (three), turned upright as its EXIF tag says.

    Transparent parts become white: pictures with them are mostly drawings in dark ink for a white page, which would
    vanish on black. Sixteen bits are brought down to eight.
    """
    return _flat(_upright(image), channels)


def scale_images(images: Images, size: int) -> Images:
    """Images (n, channels, height, width) as (n, channels, size, size), made as `read_pictures` makes them.

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
    try:
        folder = os.path.commonpath([Path(path).parent for path in paths])
        names = [os.path.relpath(path, folder) for path in paths[:5]]
    except ValueError:  # on different drives
        folder, names = "", [str(path) for path in paths[:5]]
    more = f" and {len(paths) - 5:,} more" if len(paths) > 5 else ""
    where = f"{_shown(folder)}: " if folder else ""
    return BadData(
        f"{where}{len(paths):,} of {total:,} pictures cannot be read: {', '.join(map(_shown, names))}{more}; {how}"
    )


def _is_picture(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES


def _check_asked(size: int | None, channels: int) -> None:
    if channels not in (1, 3):
        raise WrongValue(f"channels={channels} is not allowed; use 1 for gray or 3 for colors")
    if size is not None and size < 1:
        raise WrongValue(f"size={size} is not allowed; use 1 or more pixels, or leave it out")


def _first_shape(paths: Sequence[Path], channels: int) -> tuple[int, ...]:
    """The shape of the first readable picture, which all others must have."""
    for path in paths:
        try:
            return _decode(path, None, channels).shape
        except BadData:
            continue
    return channels, 0, 0


def _room(count: int, shape: tuple[int, ...]) -> Images:
    try:
        return np.empty((count, *shape), np.uint8)
    except (MemoryError, ValueError):  # ValueError: more than can be counted
        each = " × ".join(map(str, shape))
        raise BadData(
            f"{count:,} pictures of {each} bytes do not fit in memory; scale them to a smaller size"
        ) from None


def _fill(images: Images, paths: Sequence[Path], size: int | None) -> list[_Fault]:
    """Decode every path into its row; returns per row nothing, what was wrong, or the other shape that was met."""

    def decode(row: int) -> _Fault:
        try:
            pixels = _decode(paths[row], size, images.shape[1])
        except BadData as fault:
            return fault
        if pixels.shape != images.shape[1:]:
            return pixels.shape
        images[row] = pixels
        return None

    def decode_piece(first: int) -> list[_Fault]:
        return [decode(row) for row in range(first, min(first + _PIECE, len(paths)))]

    faults: list[_Fault] = []
    pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1))  # pillow decodes without Python's lock
    try:
        for piece in pool.map(decode_piece, range(0, len(paths), _PIECE)):
            faults += piece
    finally:
        pool.shutdown(cancel_futures=True)  # else Ctrl-C would wait for all that is left
    return faults


def _decode(path: Path, size: int | None, channels: int) -> Images:
    try:
        with path.open("rb") as file, Image.open(file, formats=_FORMATS) as image:
            _check_size(image)
            if size:
                image.draft(None, (2 * size, 2 * size))  # a JPEG can be decoded at 1/2, 1/4 or 1/8, much quicker
            image.load()
            made = plain(image, channels)
            if size:
                made = ImageOps.fit(made, (size, size), _FILTER)
            pixels = np.asarray(made)
    except FileNotFoundError:
        raise MissingFile(f"{_shown(path)}: no such file; put it there, or name another") from None
    except OSError as error:
        if error.errno:  # of the system; pillow's own have none
            how = "check that it is a file you may read"
            raise BadData(f"{_shown(path)}: cannot be read ({error.strerror}); {how}") from None
        known = not isinstance(error, UnidentifiedImageError)
        raise _unreadable(path, "a damaged or truncated image" if known else "not an image of a known format") from None
    except (_Refused, Image.DecompressionBombError) as refusal:
        why = str(refusal) if isinstance(refusal, _Refused) else "of far more pixels than an image has"
        raise _unreadable(path, why) from None
    except Exception as error:  # a damaged file can fail in any way at all
        raise _unreadable(path, f"a damaged image ({type(error).__name__})") from None
    return np.ascontiguousarray(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1))


class _Refused(Exception):
    pass


def _check_size(image: Image.Image) -> None:
    """Refuse what pillow only warns of: a small file can hold an image that fills the memory."""
    width, height = image.size
    if Image.MAX_IMAGE_PIXELS is not None and width * height > Image.MAX_IMAGE_PIXELS:
        raise _Refused(f"of {width}×{height} pixels, more than the {Image.MAX_IMAGE_PIXELS:,} that pillow allows")


def _upright(image: Image.Image) -> Image.Image:
    try:
        turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # a damaged tag does not make a good picture a bad one
        return image
    return image.transpose(turn) if turn is not None else image


def _flat(image: Image.Image, channels: int) -> Image.Image:
    """The image in mode L or RGB."""
    mode = "L" if channels == 1 else "RGB"
    if image.mode == "F" or image.mode.startswith("I"):
        image = _eight_bits(image)
    elif image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        drawing = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", drawing.size, "white"), drawing)
    return image if image.mode == mode else image.convert(mode)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Gray of 16 bits (0 to 65535) in 8; pillow would cut off at 255."""
    pixels = np.asarray(image)
    if image.mode == "F" or pixels.min() < 0 or pixels.max() > 65535:
        raise _Refused("an image whose pixels are floats or 32 bits wide, for which no range is agreed")
    return Image.fromarray(((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8))


def _unreadable(path: Path, why: str) -> BadData:
    return BadData(f"{_shown(path)}: {why}; remove it or put a good one there")


def _shown(name: Path | str) -> str:
    """A name as it can be printed on one line: file names may hold anything."""
    text = str(name)
    return text if text.isprintable() else ascii(text)
