"""Tasks of your own in Python: from arrays, tensors, lists of images, or any torch Dataset."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from perdure.data.images import check_size, scale_images, to_plain
from perdure.data.paths import first_few
from perdure.data.tasks import check_shares, legacy_generator, split_rows_by_class, task_of_rows
from perdure.errors import BadData, WrongValue, short
from perdure.types import Stream, Task

Source = tuple[Any, Any] | Dataset[Any]
"""Images and labels, or a Dataset of (image, label)."""
Label = int | str

LEAST_STD = 1 / 255  # one step of 8-bit pixels: a channel that varies less is constant, and must not be divided by 0
LONGEST = 2**16  # pixels of a side while floats are scaled, before the center is cut out
PIECE = 64  # images worked on at a time, so that floats of all of them are never held at once


def task_from(
    name: str,
    train: Source,
    test: Source | None = None,
    *,
    classes: Sequence[Label] | None = None,
    valid_share: float = 0.1,
    test_share: float = 0.2,
    seed: int = 1,
    mean: Sequence[float] | None = None,  # per channel, of pixels in [0, 1]
    std: Sequence[float] | None = None,
    size: int | None = None,
) -> Task:
    """One task of your own images.

    `train` and `test` are each a pair (images, labels), or a Dataset of (image, label).

    Images are arrays or tensors (n, channels, height, width), (n, height, width, channels) or gray (n, height,
    width): channels are 1 or 3, and where both places could hold them, they come first. Pixels are whole numbers from
    0 to 255 or floats in [0, 1], not normalized yet. A Dataset, or a list, gives single arrays, tensors or PIL
    images. With a `size`, every image becomes size × size, once: its short side is scaled and the center cut out.

    Labels are whole numbers from 0 or texts. Classes are the sorted labels of `train`, or the `classes` given: texts
    name the whole numbers 0, 1, … or list the texts that are labels.

    Without a `test`, `test_share` of every class is held out, drawn by `seed`, and then `valid_share` of the rest to
    validate with; each time at least one image. `mean` and `std` are measured on the images that are left to train
    on, unless they are given.

    >>> chance = np.random.default_rng(1)
    >>> images = chance.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    >>> task = task_from("pets", (images, ["cat", "dog"] * 20))
    >>> task.classes, tuple(task.train.x.shape), len(task.valid), len(task.test)
    (('cat', 'dog'), (30, 3, 8, 8), 2, 8)
    """
    check_shares(valid_share=valid_share, test_share=test_share)
    check_size(size)
    legacy_generator(seed)
    where, where_test = f"task {name!r}, train", f"task {name!r}, test"
    x, labels = read_source(where, train, size)
    held = None if test is None else read_source(where_test, test, size)
    names, number_of = _number_classes(where, labels, classes)
    y = torch.tensor([number_of[label] for label in labels])
    counts = dict(zip(names, torch.bincount(y, minlength=len(names)).tolist(), strict=True))
    if short := too_few(counts, valid_share, test_share if held is None else None):
        raise BadData(f"{where}: {short}")
    if held is None:
        rows, test_rows = split_rows_by_class(y, test_share, seed, least=1)
        test_x, test_y = x[test_rows], y[test_rows]
    else:
        if strange := sorted({repr(label) for label in held[1] if label not in number_of}):
            how = "add such images to train"
            raise BadData(f"{where_test}: labels {first_few(strange)} are not among those to train on; {how}")
        x, test_x = _same_shape(f"task {name!r}", x, held[0].clone())
        rows, test_y = torch.arange(len(y)), torch.tensor([number_of[label] for label in held[1]])
    train_rows, valid_rows = (rows[part] for part in split_rows_by_class(y[rows], valid_share, seed, least=1))
    measured = mean_and_std(x[train_rows]) if mean is None or std is None else ((), ())
    means = measured[0] if mean is None else _finite(f"task {name!r}: mean", mean)
    stds = measured[1] if std is None else _finite(f"task {name!r}: std", std)
    return task_of_rows(name, names, x, y, (train_rows, valid_rows), (test_x, test_y), means, stds)


def stream_from(name: str, tasks: Sequence[Task]) -> Stream:
    """Tasks of your own, in the order in which they are to be learned.

    >>> images = np.zeros((8, 4, 4), np.uint8)
    >>> stream = stream_from("mine", [task_from(name, (images, [0, 1] * 4)) for name in ("first", "second")])
    >>> len(stream), stream.shape
    (2, (1, 4, 4))
    """
    names = [task.name for task in tasks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        how = "give each a name of its own"
        raise WrongValue(f"stream {name!r}: more than one task is called {first_few(twice)}; {how}")
    shapes = {task.name: tuple(task.train.x.shape[1:]) for task in tasks}
    if len(set(shapes.values())) > 1:
        found = first_few([f"{task} {shape}" for task, shape in shapes.items()])
        raise BadData(f"stream {name!r}: tasks differ in (channels, height, width): {found}; make all with one size=…")
    return Stream(name, tuple(tasks), {"source": "given in Python", "completeness": "own data"})


def images_from(images: Any, shape: tuple[int, int, int]) -> Tensor:
    """Images as `task_from` takes them, as (n, channels, height, width) of this (channels, height, width).

    Gray ones get three channels where three are wanted; ones of another size are scaled and cut as in `task_from`.

    >>> images_from(np.zeros((2, 10, 8), np.uint8), (3, 8, 8)).shape
    torch.Size([2, 3, 8, 8])
    """
    channels, height, width = shape
    x = _images("images", images, size=height if height == width else None)
    if x.shape[1] == 1 and channels == 3:
        x = x.expand(-1, 3, -1, -1)
    if tuple(x.shape[1:]) != shape:
        raise BadData(f"images are (channels, height, width) {tuple(x.shape[1:])}; the network has learned {shape}")
    return x


def mean_and_std(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of images (n, channels, height, width), as pixels in [0, 1].

    Bytes are summed exactly, so the same images give the same bits everywhere.

    >>> mean_and_std(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1))
    ((0.5,), (0.5,))
    """
    sums, squares = torch.zeros(2, x.shape[1], dtype=torch.float64)
    for piece in torch.split(x, PIECE):
        pixels = piece.double()
        sums += pixels.sum((0, 2, 3))
        squares += pixels.square().sum((0, 2, 3))
    count, one = x.numel() / x.shape[1], 255 if x.dtype == torch.uint8 else 1
    means = sums / count
    stds = (squares / count - means.square()).clamp(min=0).sqrt()
    return tuple((means / one).tolist()), tuple((stds / one).clamp(min=LEAST_STD).tolist())


def scale_floats(x: Tensor, size: int) -> Tensor:
    """Floats in [0, 1] as (n, channels, size, size): the short side scaled with antialiasing, the center cut out.

    Bytes are scaled by `images.scale_images`, so that they become what they would become as files in a folder.
    """
    height, width = x.shape[2:]
    if height == width == size:
        return x
    short = min(height, width)
    scaled = round(height * size / short), round(width * size / short)
    if max(scaled) > LONGEST:
        how = "cut them to about as high as wide"
        raise BadData(f"images of {height}×{width} pixels are too narrow to be scaled to size={size}; {how}")
    top, left = (scaled[0] - size) // 2, (scaled[1] - size) // 2
    made = x.new_empty(*x.shape[:2], size, size)
    for source, target in zip(torch.split(x, PIECE), torch.split(made, PIECE), strict=True):
        pixels = F.interpolate(source, scaled, mode="bilinear", antialias=True)
        target.copy_(pixels[:, :, top : top + size, left : left + size].clamp(0, 1))
    return made


def _finite(what: str, given: Any) -> tuple[float, ...]:
    try:
        found = tuple(float(one) for one in given)
    except (TypeError, ValueError, OverflowError):
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise WrongValue(f"{what}={short(given)} is not all finite numbers, one per channel; leave it out to measure")
    return found


def too_few(counts: Mapping[str, int], valid_share: float, test_share: float | None) -> str:
    """What is wrong with the number of images per class, if one has none left to train on; else nothing.

    >>> too_few({"cat": 12, "dog": 2}, 0.1, 0.2)
    'too few images of dog (2); a class needs 3 for valid_share=0.1 and test_share=0.2: add some, or leave it out'
    """

    def enough(count: int) -> bool:
        if test_share is not None:
            count -= max(1, int(test_share * count))
        return count - max(1, int(valid_share * count)) > 0

    short = [f"{name} ({count})" for name, count in counts.items() if not enough(count)]
    if not short:
        return ""
    needed = next((str(n) for n in range(2, 1000) if enough(n)), "1000 or more")
    shares = f"valid_share={valid_share:g}" + ("" if test_share is None else f" and test_share={test_share:g}")
    return f"too few images of {first_few(short)}; a class needs {needed} for {shares}: add some, or leave it out"


# --- from what is given to images and labels ---


def read_source(where: str, source: Source, size: int | None) -> tuple[Tensor, list[Label]]:
    """Images (n, channels, height, width), uint8 or float32 in [0, 1], and a label for each."""
    if isinstance(source, tuple | list):
        if len(source) != 2:
            raise BadData(f"{where}: has {len(source)} parts; give a pair (images, labels) or a Dataset")
        x, labels = _images(where, source[0], size), _labels(where, source[1])
    else:
        images, given = [], []
        for row, item in enumerate(_samples(where, source)):
            if not isinstance(item, tuple | list) or len(item) != 2:
                found = f"{len(item)} values" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
                raise BadData(f"{where}: sample {row} is {found}; a Dataset must give pairs (image, label)")
            images.append(_single(where, row, item[0], size))
            given.append(item[1])
        x, labels = _stack(where, images), _labels(where, given)
    if len(x) != len(labels):
        raise BadData(f"{where}: {len(x)} images but {len(labels)} labels; give one label per image")
    return x, labels


def _samples(where: str, source: Any) -> Iterator[Any]:
    """The samples of a Dataset, or of whatever can be counted or iterated like one."""
    if isinstance(source, DataLoader):
        raise BadData(f"{where}: is a DataLoader, which gives batches; give its dataset (loader.dataset)")
    if not isinstance(source, Mapping | str | Path | np.ndarray | Tensor):
        countable = hasattr(source, "__getitem__") and hasattr(source, "__len__")
        if countable and not isinstance(source, IterableDataset):
            return (source[row] for row in range(len(source)))
        if isinstance(source, Iterable):
            return iter(source)
    hint = " (for a folder of images: perdure.data.benchmarks.folder)" if isinstance(source, str | Path) else ""
    raise BadData(f"{where}: is a {type(source).__name__}; give a pair (images, labels) or a Dataset{hint}")


def _images(where: str, images: Any, size: int | None) -> Tensor:
    if not isinstance(images, Tensor | list | tuple):
        images = np.asarray(images)
        if images.dtype == object and images.ndim == 1:  # a list in disguise, such as images of different sizes
            images = list(images)
    if isinstance(images, list | tuple):
        return _stack(where, [_single(where, row, image, size) for row, image in enumerate(images)])
    return _batch(where, _array(where, images), size)


def _single(where: str, row: int, image: Any, size: int | None) -> Tensor:
    """One image (channels, height, width)."""
    where = f"{where}, image {row}"
    if isinstance(image, Image.Image):
        if image.mode == "F" or image.mode.startswith("I"):
            raise BadData(f"{where}: has pixels of more than 8 bits (mode {image.mode}); give floats in [0, 1] instead")
        gray = image.mode in ("1", "L") and "transparency" not in image.info
        image = np.asarray(to_plain(image, 1 if gray else 3))
    if not isinstance(image, np.ndarray | Tensor):
        raise BadData(f"{where}: is a {type(image).__name__}; give an array, a tensor or a PIL image")
    if image.ndim not in (2, 3):
        raise BadData(f"{where}: has shape {tuple(image.shape)}; an image is (height, width) or has channels besides")
    return _batch(where, _array(where, image)[None], size)[0]


def _stack(where: str, images: list[Tensor]) -> Tensor:
    """Single images as one tensor: gray among colored ones gets three channels, bytes among floats become floats."""
    if not images:
        raise BadData(f"{where}: no images; give it some, or leave the task out")
    if {len(image) for image in images} == {1, 3}:
        images = [image.expand(3, -1, -1) for image in images]
    if len({image.dtype for image in images}) > 1:
        images = [image / 255 if image.dtype == torch.uint8 else image for image in images]
    first_of: dict[tuple[int, ...], str] = {}
    for row, image in enumerate(images):
        high, wide = image.shape[1:]
        first_of.setdefault((high, wide), f"image {row} is {high}×{wide}")
    if len(first_of) > 1:
        found = first_few(list(first_of.values()))
        raise BadData(f"{where}: images differ in height×width: {found}; scale all to one size, as with size=64")
    return torch.stack(images)


def _array(where: str, values: Any) -> npt.NDArray[Any]:
    """Numbers as a numpy array; a tensor may lie anywhere and be of any kind."""
    if isinstance(values, Tensor):
        try:
            values = values.detach().cpu()
            values = (values.float() if values.is_floating_point() else values).numpy()
        except (TypeError, RuntimeError):  # sparse, quantized, …
            raise BadData(f"{where}: a tensor of kind {values.dtype}, {values.layout}; give a dense one") from None
    return np.asarray(values)


def _batch(where: str, array: npt.NDArray[Any], size: int | None) -> Tensor:
    """Images in any of the forms that `task_from` takes, as (n, channels, height, width), uint8 or float32."""
    shape = array.shape
    if shape[:1] == (0,):
        raise BadData(f"{where}: no images; give it some, or leave the task out")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and shape[1] not in (1, 3) and shape[3] in (1, 3):
        array = np.moveaxis(array, 3, 1)
    if array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in shape:
        alpha = "; leave out the fourth channel (alpha)" if len(shape) == 4 and 4 in (shape[1], shape[3]) else ""
        raise BadData(
            f"{where}: images of shape {shape} are neither (n, channels, height, width) nor (n, height, width, "
            f"channels) with 1 or 3 channels, nor gray (n, height, width){alpha}"
        )
    # A copy only where torch could not look at the memory: arrays may be read-only or run backwards.
    x = torch.from_numpy(np.require(_pixels(where, array), requirements=["C_CONTIGUOUS", "WRITEABLE"]))
    if size is None:
        return x
    return torch.from_numpy(scale_images(x.numpy(), size)) if x.dtype == torch.uint8 else scale_floats(x, size)


def _pixels(where: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Pixels as uint8 from 0 to 255 or float32 in [0, 1]."""
    kind = array.dtype.kind
    if kind == "b":
        return array.astype(np.uint8) * 255
    if kind not in "iuf":
        raise BadData(f"{where}: images are of kind {array.dtype}; give whole numbers 0 to 255 or floats in [0, 1]")
    if array.dtype == np.uint8:
        return array
    array = array.astype(np.float32) if kind == "f" else array
    low, high = array.min().item(), array.max().item()
    if kind != "f":
        if low < 0 or high > 255:
            raise BadData(f"{where}: whole pixels reach from {low} to {high}, not 0 to 255; give floats in [0, 1]")
        return array.astype(np.uint8)
    if not math.isfinite(low + high):
        rows = np.flatnonzero(~np.isfinite(array).all((1, 2, 3))).tolist()
        which = f" in images {first_few(rows)}" if len(array) > 1 else ""
        raise BadData(f"{where}: a pixel is not a finite number{which}; repair or remove it")
    if low < 0 or high > 1:
        how = "leave out their normalization" if low < 0 else "divide them by their largest possible value, such as 255"
        raise BadData(f"{where}: floats must lie in [0, 1], these reach from {low:.4g} to {high:.4g}; {how}")
    return array


def _labels(where: str, labels: Any) -> list[Label]:
    """Labels as plain whole numbers, or all as texts."""
    if not isinstance(labels, list | tuple):
        labels = _array(where, labels)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.ndim != 1:
            hint = "; for one-hot labels give labels.argmax(1)" if labels.ndim == 2 else ""
            raise BadData(f"{where}: labels of shape {labels.shape}; give one per image (n,){hint}")
        labels = labels.tolist()
    found = [_label(label) for label in labels]
    if missing := [row for row, label in enumerate(found) if label is None or (isinstance(label, str) and not label)]:
        raise BadData(f"{where}: no label (none, nan or empty) for images {first_few(missing)}; label or remove them")
    for row, label in enumerate(found):
        if not isinstance(label, int | str):
            shown = f"{label:g}" if isinstance(label, float) else f"a {type(label).__name__}"
            raise BadData(f"{where}: the label of image {row} is {shown}; labels are whole numbers or texts")
    if negative := [row for row, label in enumerate(found) if isinstance(label, int) and label < 0]:
        how = "count classes from 0, or remove these"
        raise BadData(f"{where}: negative labels for images {first_few(negative)}; {how}")
    for row, label in enumerate(found):
        if type(label) is not type(found[0]):
            both = f"({found[0]!r} for image 0, {label!r} for image {row})"
            raise BadData(f"{where}: labels mix whole numbers and texts {both}; use one kind")
    return found


def _label(label: Any) -> Any:
    """A label as int or str, None where there is none, and anything else as it is."""
    if isinstance(label, Tensor | np.ndarray | np.generic) and math.prod(label.shape) == 1:
        label = label.item()
    if isinstance(label, bytes):
        return label.decode("utf-8", "backslashreplace")
    if isinstance(label, bool):
        return int(label)
    if isinstance(label, float):
        return None if math.isnan(label) else int(label) if label.is_integer() else label
    return str(label) if isinstance(label, str) else label


def _number_classes(
    where: str, labels: list[Label], classes: Sequence[Label] | None
) -> tuple[tuple[str, ...], dict[Label, int]]:
    """The names of the classes, and which label is which of them."""
    found = sorted(set(labels), key=lambda label: (isinstance(label, str), label))
    if classes is not None and not isinstance(classes, Iterable):
        raise WrongValue(f"{where}: classes={short(classes)} is not allowed; give a list of their names")
    known = found if classes is None else _labels(f"{where}, classes", list(classes))
    names = tuple(map(str, known))
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise WrongValue(f"{where}: classes name {first_few(twice)} more than once; name each once")
    if isinstance(found[0], int) and isinstance(known[0] if known else "", str):
        known = list(range(len(known)))
    number_of = {label: number for number, label in enumerate(known)}
    if unknown := [label for label in found if label not in number_of]:
        allowed = f"the {len(known)} classes allow {first_few(known)}"
        raise BadData(f"{where}: labels {first_few(unknown)} are of no class; {allowed}")
    if missing := [name for name, label in zip(names, known, strict=True) if label not in found]:
        raise BadData(f"{where}: no images of class {first_few(missing)}; add some, or leave these classes out")
    if len(names) < 2:
        how = "a task needs two or more to tell apart"
        raise BadData(f"{where}: all images are of one class ({first_few(names)}); {how}")
    return names, number_of


def _same_shape(where: str, x: Tensor, test_x: Tensor) -> tuple[Tensor, Tensor]:
    """Training and test images of one shape: where one of them is gray, it gets three channels."""
    if {x.shape[1], test_x.shape[1]} == {1, 3}:
        x, test_x = x.expand(-1, 3, -1, -1), test_x.expand(-1, 3, -1, -1).contiguous()
    if x.shape[1:] != test_x.shape[1:]:
        sizes = " and ".join(f"{part.shape[2]}×{part.shape[3]}" for part in (x, test_x))
        raise BadData(f"{where}: images to train on and to test are {sizes}; scale all to one size, as with size=64")
    return x, test_x
