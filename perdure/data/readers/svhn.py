"""SVHN's cropped digits, two .mat files; needs the extra `svhn`."""

import subprocess
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perdure.data.readers.common import FETCH_AGAIN, ImageArrays, LabeledImages, image_arrays, open_file
from perdure.errors import BadData, PerdureError, install_hint
from perdure.processes import python, python_environment

MOST_BYTES = 100_000 * 3072  # of X; SVHN has 73 257 images to train on
MOST_MEMORY = 4 * 10**9  # bytes of addresses for the process that reads: several times what X may have
_TOO_MUCH = 3

# The headers say how much a file inflates to; the limit is for those that lie, where the system knows such limits.
_LOAD = """
import math, sys, numpy, scipy.io
most_bytes, most_memory, too_much = map(int, sys.argv[2:])
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (most_memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
except (ImportError, ValueError, OSError):
    pass
for name, shape, _ in scipy.io.whosmat(sys.argv[1], appendmat=False):
    if name in ("X", "y") and math.prod(map(int, shape)) > most_bytes:
        sys.exit(too_much)
found = scipy.io.loadmat(sys.argv[1], variable_names=("X", "y"), appendmat=False)
numpy.savez(sys.stdout.buffer, **{name: array for name, array in found.items() if name in ("X", "y")})
"""


def svhn(folder: Path) -> ImageArrays:
    """train_32x32.mat and test_32x32.mat."""
    train, test = (read_mat(folder / f"{part}_32x32.mat") for part in ("train", "test"))
    return image_arrays(folder, train, test)


def read_mat(path: Path) -> LabeledImages:
    """Images (n, 3, 32, 32) and labels (n,), 0 to 9, of a .mat file.

    The file holds `X` (32, 32, 3, n) and `y` (n, 1), where 10 stands for the digit 0.
    """
    found = _load(path)
    images, labels = found.get("X", np.empty(0)), found.get("y", np.empty(0))
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3) or images.size == 0:
        raise BadData(f"{path}: holds no X of 32 × 32 × 3 × n bytes; {FETCH_AGAIN}")
    count = images.shape[3]
    if labels.shape not in ((count, 1), (1, count)) or labels.dtype.kind not in "iuf":
        raise BadData(f"{path}: holds no y with one label for each of {count} images; {FETCH_AGAIN}")
    labels = labels.ravel()
    if not np.isin(labels, np.arange(1, 11)).all():
        reach = f"labels reach from {labels.min():g} to {labels.max():g}"
        raise BadData(f"{path}: {reach}, but SVHN's are whole, 1 to 9 and 10 for the digit 0; {FETCH_AGAIN}")
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10


def _load(path: Path) -> dict[str, npt.NDArray[Any]]:
    """X and y, read by scipy in a process of its own: some damaged files end the process that reads them."""
    if find_spec("scipy") is None:
        raise PerdureError(f"SVHN's .mat files need scipy: {install_hint('svhn')}")
    with open_file(path) as file:
        file.read(1)
    limits = (MOST_BYTES, MOST_MEMORY, _TOO_MUCH)
    done = subprocess.run(
        python("-W", "ignore", "-c", _LOAD, str(path.absolute()), *map(str, limits)),
        capture_output=True,
        env={**python_environment(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},  # threads take addresses
    )
    if done.returncode == _TOO_MUCH:
        raise BadData(f"{path}: says that it holds far more than SVHN does; {FETCH_AGAIN}")
    try:
        if done.returncode == 0:
            with np.load(BytesIO(done.stdout), allow_pickle=False) as arrays:
                return dict(arrays)
    except Exception:  # of objects, or cut short
        pass
    raise BadData(f"{path}: damaged, or not a MATLAB file of version 5; {FETCH_AGAIN}")
