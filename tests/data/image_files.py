"""What several tests of data share: small files in official formats, and what an error must look like."""

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image

CHANCE = np.random.RandomState(0)
VERBS = ("unpack", "fetch", "put", "remove", "check", "use the file", "get ", "move ", "make room", "choose")


def pixels(*shape: int) -> np.ndarray:
    return CHANCE.randint(0, 256, shape).astype(np.uint8)


def idx(array: np.ndarray) -> bytes:
    """An IDX file."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.astype(np.uint8).tobytes()


def picture(path: Path, level: int = 99, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> Path:
    """An image file whose every pixel is `level`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    kind = {".jpg": "JPEG", ".gif": "GIF"}.get(path.suffix, "PNG")
    Image.new(mode, size, (level,) * 3 if mode == "RGB" else level).save(file, kind)
    path.write_bytes(file.getvalue())
    return path


class Touch:
    """A pickle of this runs a shell command when an ordinary unpickler reads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def one_line(error: Exception, start: object = "", most: int = 260, verbs: tuple[str, ...] = VERBS) -> str:
    """The message is one line that begins with what it is about, usually a file, and ends with what to do."""
    text = str(error)
    assert text.startswith(str(start))
    assert "\n" not in text
    assert len(text) < 2 * len(str(start)) + most
    assert not verbs or any(verb in text.split(";")[-1] for verb in verbs), text
    return text
