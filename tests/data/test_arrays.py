"""Tasks from arrays, tensors, lists and Datasets; whatever cannot be learned from gives one clear line."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import one_line
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from perdure.data.arrays import LEAST_STD, mean_and_std, scale_floats, stream_from, task_from, too_few
from perdure.data.benchmarks.folder import read_folder, scan_folder
from perdure.data.paths import first_few
from perdure.errors import BadData, PerdureError, WrongValue

ROOT = Path(__file__).parent.parent.parent
CHANCE = np.random.RandomState(0)
N = 40
PIXELS = CHANCE.randint(0, 256, (N, 3, 6, 5)).astype(np.uint8)  # (n, channels, height, width)
LABELS = np.arange(N) % 2


class Listed(Dataset):
    """A map-style Dataset of whatever is in a list."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, row):
        return self.items[row]


class Streamed(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)

    def __len__(self):
        return len(self.items)


def pairs(images, labels=LABELS):
    return list(zip(images, labels, strict=True))


def rows_of(split, pixels=PIXELS):
    """Which of the original images a split holds."""
    known = {image.tobytes(): row for row, image in enumerate(pixels)}
    return [known[image.numpy().tobytes()] for image in split.x]


COLORED = PIXELS.transpose(0, 2, 3, 1)
FORMS = {
    "array, channels first": lambda: (PIXELS, LABELS),
    "array, channels last": lambda: (COLORED, LABELS),
    "list instead of tuple": lambda: [PIXELS, LABELS],
    "read-only array": lambda: (np.frombuffer(PIXELS.tobytes(), np.uint8).reshape(PIXELS.shape), LABELS),
    "array that runs backwards": lambda: (PIXELS[::-1].copy()[::-1], LABELS),
    "int64 pixels": lambda: (PIXELS.astype(np.int64), LABELS),
    "big-endian pixels": lambda: (PIXELS.astype(">i4"), LABELS),
    "tensor": lambda: (torch.tensor(PIXELS), torch.tensor(LABELS)),
    "int32 tensor": lambda: (torch.tensor(PIXELS).int(), torch.tensor(LABELS).int()),
    "list of arrays": lambda: (list(PIXELS), list(LABELS)),
    "array of objects": lambda: (as_objects(list(COLORED)), LABELS),
    "list of PIL images": lambda: ([Image.fromarray(image) for image in COLORED], LABELS),
    "labels (n, 1)": lambda: (PIXELS, LABELS[:, None]),
    "labels as whole floats": lambda: (PIXELS, LABELS.astype(float)),
    "labels as booleans": lambda: (PIXELS, LABELS == 1),
    "Dataset of tensors": lambda: TensorDataset(torch.tensor(PIXELS), torch.tensor(LABELS)),
    "Dataset of arrays": lambda: Listed(pairs(COLORED)),
    "Dataset of PIL images": lambda: Listed(pairs([Image.fromarray(image) for image in COLORED])),
    "Dataset of lists": lambda: Listed([list(pair) for pair in pairs(PIXELS)]),
    "Dataset to iterate": lambda: Streamed(pairs(PIXELS)),
    "generator": lambda: (pair for pair in pairs(PIXELS)),
    "labels (1,) in a Dataset": lambda: Listed(pairs(PIXELS, torch.tensor(LABELS)[:, None])),
}


def as_objects(images):
    array = np.empty(len(images), object)
    for row, image in enumerate(images):
        array[row] = image
    return array


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_task(form):
    task, plain = task_from("t", FORMS[form](), seed=3), task_from("t", (PIXELS, LABELS), seed=3)
    for part in ("train", "valid", "test"):
        one, other = getattr(task, part), getattr(plain, part)
        assert one.x.dtype == torch.uint8
        assert one.x.equal(other.x)
        assert one.y.equal(other.y)
        assert (one.mean, one.std) == (other.mean, other.std)
    assert task.classes == ("0", "1")


def test_split_holds_out_of_every_class_and_follows_the_seed():
    task = task_from("t", (PIXELS, LABELS), seed=3)
    parts = [rows_of(part) for part in (task.train, task.valid, task.test)]
    assert [len(part) for part in parts] == [32 - 2, 2, 8]  # of 20 per class 4 test, and 1 of the other 16 validates
    assert sorted(row for part in parts for row in part) == list(range(N))
    for split, rows in zip((task.train, task.valid, task.test), parts, strict=True):
        assert split.y.tolist() == [row % 2 for row in rows]
        assert sum(split.y) * 2 == len(split)
    assert rows_of(task_from("other", (PIXELS, LABELS), seed=3).test) == parts[2]
    assert rows_of(task_from("t", (PIXELS, LABELS), seed=4).test) != parts[2]


def test_shares():
    task = task_from("t", (PIXELS, LABELS), valid_share=0.5, test_share=0.1)
    assert [len(part) for part in (task.train, task.valid, task.test)] == [18, 18, 4]


def test_small_classes_give_one_image_to_each_part():
    labels = [0, 0, 0, *[1] * 37]
    task = task_from("t", (PIXELS, labels))
    for part in (task.train, task.valid, task.test):
        assert (part.y == 0).sum() == 1


def test_a_given_test_is_kept_whole_and_in_order():
    test = PIXELS[::-1], LABELS[::-1]
    task = task_from("t", (PIXELS, LABELS), test)
    assert rows_of(task.test) == list(range(N))[::-1]
    assert task.test.y.tolist() == LABELS[::-1].tolist()
    assert len(task.train) + len(task.valid) == N
    only_ones = task_from("t", (PIXELS, LABELS), Listed(pairs(PIXELS[1::2], LABELS[1::2])))
    assert set(only_ones.test.y.tolist()) == {1}


def test_memory_is_not_shared():
    x, y = PIXELS.copy(), LABELS.copy()
    tensor = torch.tensor(PIXELS)
    task = task_from("t", (x, y), (tensor, y))
    before = task.train.x.clone(), task.test.x.clone(), task.train.y.clone()
    x[:], y[:], tensor[:] = 0, 0, 0
    assert (task.train.x.equal(before[0]), task.test.x.equal(before[1]), task.train.y.equal(before[2])) == (True,) * 3


# --- images ---


@pytest.mark.parametrize(
    ("shape", "becomes"),
    [
        ((8, 6, 5), (1, 6, 5)),
        ((8, 1, 6, 5), (1, 6, 5)),
        ((8, 3, 6, 5), (3, 6, 5)),
        ((8, 6, 5, 1), (1, 6, 5)),
        ((8, 6, 5, 3), (3, 6, 5)),
        ((8, 3, 6, 3), (3, 6, 3)),  # both places could hold channels: they come first
        ((8, 1, 6, 3), (1, 6, 3)),
        ((8, 3, 3), (1, 3, 3)),
    ],
)
@pytest.mark.parametrize("single", [False, True])
def test_where_channels_are(shape, becomes, single):
    images = CHANCE.randint(0, 256, shape).astype(np.uint8)
    task = task_from("t", (list(images) if single else images, [0, 1] * 4))
    assert tuple(task.train.x.shape[1:]) == becomes
    first = (
        images.reshape(8, *becomes) if shape[-1] not in (1, 3) or shape[1] in (1, 3) else images.transpose(0, 3, 1, 2)
    )
    assert sorted(rows_of(task.train, first) + rows_of(task.valid, first) + rows_of(task.test, first)) == list(range(8))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, ">f8", torch.float64, torch.bfloat16])
def test_floats_become_float32(kind):
    values = (PIXELS > 127) * 0.5  # exact in all kinds
    images = torch.tensor(values).to(kind) if isinstance(kind, torch.dtype) else values.astype(kind)
    task = task_from("t", (images, LABELS))
    assert task.train.x.dtype == torch.float32
    assert sorted(set(task.train.x.flatten().tolist())) == [0, 0.5]


def test_booleans_are_black_and_white():
    task = task_from("t", (PIXELS > 127, LABELS))
    assert task.train.x.unique().tolist() == [0, 255]


def test_a_tensor_that_learns_is_taken_as_it_is():
    images = torch.rand(8, 3, 4, 4, requires_grad=True)
    assert not task_from("t", (images, [0, 1] * 4)).train.x.requires_grad


def test_gray_among_colored_images():
    colored, gray = Image.new("RGB", (4, 4), (9, 9, 9)), Image.new("L", (4, 4), 7)
    task = task_from("t", Listed([(colored, "a"), (gray, "b")] * 6))
    assert tuple(task.train.x.shape[1:]) == (3, 4, 4)
    for image, label in zip(task.train.x, task.train.y, strict=True):
        assert image.unique().tolist() == [[9], [7]][label]
    task = task_from("t", Listed([(gray, "a"), (gray, "b")] * 6), Listed([(colored, "a")]))
    assert task.train.x.shape[1] == task.test.x.shape[1] == 3
    task = task_from("t", Listed([(colored, "a"), (gray, "b")] * 6), Listed([(gray, "a")]))
    assert task.test.x.unique().tolist() == [7]
    assert task.train.x.shape[1] == task.test.x.shape[1] == 3


def test_bytes_among_floats():
    bright, half = np.full((4, 4, 3), 255, np.uint8), torch.full((3, 4, 4), 0.5)
    task = task_from("t", Listed([(bright, 0), (half, 1)] * 6))
    assert sorted(task.train.x.unique().tolist()) == [0.5, 1]


@pytest.mark.parametrize(
    ("mode", "color", "becomes"),
    [
        ("1", 1, [255]),
        ("L", 9, [9]),
        ("RGB", (1, 2, 3), [1, 2, 3]),
        ("RGBA", (1, 2, 3, 255), [1, 2, 3]),
        ("RGBA", (1, 2, 3, 0), [255, 255, 255]),
        ("LA", (9, 255), [9, 9, 9]),
    ],
)
def test_modes_of_pil_images(mode, color, becomes):
    task = task_from("t", Listed([(Image.new(mode, (4, 4), color), label) for label in [0, 1] * 4]))
    assert task.train.x[0, :, 0, 0].tolist() == becomes


def test_palette_of_pil_images():
    image = Image.new("RGB", (4, 4), (200, 10, 10)).convert("P")
    task = task_from("t", Listed([(image, label) for label in [0, 1] * 4]))
    assert task.train.x[0, :, 0, 0].tolist() == np.asarray(image.convert("RGB"))[0, 0].tolist()


def test_size_scales_the_short_side_and_cuts_out_the_center():
    wide = np.zeros((8, 40, 120), np.uint8)
    wide[:, :, 40:80] = 200  # the center, 40 × 40
    task = task_from("t", (wide, [0, 1] * 4), size=20)
    assert tuple(task.train.x.shape[1:]) == (1, 20, 20)
    assert task.train.x[:, :, :, 3:17].unique().tolist() == [200]  # nearer to the edge the filter sees the rest
    tall = task_from("t", (wide.transpose(0, 2, 1).astype(np.float64) / 255, [0, 1] * 4), size=20)
    assert tall.train.x[:, :, 3:17].unique().tolist() == [pytest.approx(200 / 255)]


def test_size_is_antialiased():
    stripes = np.tile(np.array([252, 0, 0, 0], np.uint8), (8, 32, 8))  # (8, 32, 32): every fourth column is bright
    small = task_from("t", (stripes, [0, 1] * 4), size=8).train.x[:, :, :, 2:6].float()
    assert 61 < small.min() <= small.max() < 65  # 252 / 4 everywhere, where picking pixels would find 0


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_photos_become_what_they_become_in_a_folder(tmp_path, mode):
    """Turned upright as their EXIF tag says, and scaled by the same filter."""
    turned = Image.Exif()
    turned[0x0112] = 6
    photo = Image.fromarray(CHANCE.randint(0, 256, (30, 50, 3)).astype(np.uint8)).convert(mode)
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        photo.save(tmp_path / "pets" / name / "a.jpg", exif=turned)
    by_folder = read_folder(scan_folder(tmp_path), 20).tensors["x"][0]
    with Image.open(tmp_path / "pets/cat/a.jpg") as image:
        given = task_from("t", Listed(pairs([image] * 8, [0, 1] * 4)), size=20).train.x[0]
        whole = task_from("t", Listed(pairs([image] * 8, [0, 1] * 4))).train.x[0]
    assert given.expand(3, -1, -1).equal(by_folder)
    assert whole.shape[1:] == (50, 30)


def test_size_makes_one_of_many():
    shapes = [(10, 7), (7, 10), (20, 20), (5, 5)]
    images = [np.full((*shape, 3), 99, np.uint8) for shape in shapes]
    task = task_from("t", Listed(pairs(images * 3, [0, 1] * 6)), size=6)
    assert tuple(task.train.x.shape[1:]) == (3, 6, 6)
    assert task.train.x.unique().tolist() == [99]


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40))
def test_square_gives_its_size_and_stays_in_range(height, width, size):
    chance = torch.Generator().manual_seed(height * width)
    x = torch.rand(2, 1, height, width, generator=chance)
    made = scale_floats(x, size)
    assert made.shape == (2, 1, size, size)
    assert made.dtype == x.dtype
    assert x.min() <= made.min() + 1e-6
    assert made.max() <= x.max() + 1e-6
    assert scale_floats(made, size) is made


def test_square_of_more_images_than_are_worked_on_at_a_time():
    x = (torch.arange(200) / 256).view(-1, 1, 1, 1).expand(-1, 2, 4, 4)
    assert (scale_floats(x, 2)[:, 0, 0, 0] * 256).round().tolist() == list(range(200))


# --- mean and std ---


@settings(max_examples=30, derandomize=True, deadline=None)
@given(st.integers(1, 130), st.integers(1, 3), st.integers(0, 9))
def test_measure_is_numpys(n, channels, seed):
    x = np.random.RandomState(seed).randint(0, 256, (n, channels, 3, 2)).astype(np.uint8)
    for images in (torch.tensor(x), torch.tensor(x) / 255):
        mean, std = mean_and_std(images)
        assert mean == pytest.approx((x / 255).mean((0, 2, 3)).tolist(), abs=1e-6)
        assert std == pytest.approx((x / 255).std((0, 2, 3)).clip(LEAST_STD).tolist(), abs=1e-6)


def test_constants_are_measured_on_training_rows_alone():
    task = task_from("t", (PIXELS, LABELS), seed=3)
    assert (task.train.mean, task.train.std) == mean_and_std(task.train.x)
    assert task.test.mean == task.valid.mean == task.train.mean
    assert task.train.mean != mean_and_std(torch.tensor(PIXELS))[0]
    bright = task_from("t", (PIXELS, LABELS), (np.full_like(PIXELS, 255), LABELS), seed=3)
    assert bright.train.mean == mean_and_std(bright.train.x)[0]


def test_constants_that_are_given():
    task = task_from("t", (PIXELS, LABELS), mean=(0.1, 0.2, 0.3))
    assert task.test.mean == (0.1, 0.2, 0.3)
    assert task.test.std == mean_and_std(task.train.x)[1]
    task = task_from("t", (PIXELS, LABELS), mean=[0.1], std=[2])
    assert (task.test.mean, task.test.std) == ((0.1,), (2.0,))


def test_a_constant_channel_is_not_divided_by_zero():
    x = np.full((8, 3, 4, 4), 77, np.uint8)
    task = task_from("t", (x, [0, 1] * 4))
    assert task.train.std == (LEAST_STD,) * 3
    assert task.train.take(slice(None))[0].abs().max() < 1e-4


# --- labels ---


@pytest.mark.parametrize(
    ("labels", "classes"),  # the labels of even rows and of odd ones
    [
        ([10, 9], ("9", "10")),  # by value, not by spelling
        (["10", "9"], ("10", "9")),
        (["zebra", "Ässe"], ("zebra", "Ässe")),
        (np.array(["b", "a"]), ("a", "b")),
        (np.array(["b", "a"], object), ("a", "b")),
        (np.array([b"b", b"a"]), ("a", "b")),
        (["🐈", "犬"], ("犬", "🐈")),
        (torch.tensor([7, 3]), ("3", "7")),
        (np.array([7, 3], np.uint8), ("3", "7")),
        ([True, False], ("0", "1")),
    ],
)
def test_classes_are_the_sorted_labels(labels, classes):
    repeated = [labels[row % 2] for row in range(N)]
    given = {torch.Tensor: torch.stack, np.ndarray: np.array, list: list}[type(labels)](repeated)
    task = task_from("t", (PIXELS, given))
    assert task.classes == classes
    names = [
        name.decode() if isinstance(name, bytes) else str(int(name) if not isinstance(name, str) else name)
        for name in labels
    ]
    for row, y in zip(rows_of(task.train), task.train.y.tolist(), strict=True):
        assert classes[y] == names[row % 2]


@pytest.mark.parametrize(
    ("labels", "classes", "first"),
    [
        ([0, 1], ["cat", "dog"], "cat"),  # texts name whole numbers
        ([1, 0], ["cat", "dog"], "dog"),
        (["dog", "cat"], ["cat", "dog"], "dog"),  # or list the texts
        (["dog", "cat"], ["dog", "cat"], "dog"),
        ([5, 3], [5, 3], "5"),
        ([5, 3], [3, 5], "5"),
        ([0, 1], "ab", "a"),
    ],
)
def test_classes_that_are_given(labels, classes, first):
    task = task_from("t", (PIXELS, labels * 20), (PIXELS, labels * 20), classes=classes)
    assert task.classes == tuple(map(str, classes))
    assert task.classes[task.test.y[0]] == first


# --- what cannot be learned from ---

NAN = np.where(np.arange(N) < 2, np.nan, 0)
GRAY16 = Image.fromarray(np.full((4, 4), 5000, np.uint16))
SPOILED = np.where(np.arange(N)[:, None, None, None] == 7, np.nan, PIXELS / 255)
BAD = {
    "nothing": ((PIXELS[:0], []), "no images"),
    "no samples": (Listed([]), "no images"),
    "no samples to iterate": (Streamed([]), "no images"),
    "empty list": (([], []), "no images"),
    "three parts": ((PIXELS, LABELS, LABELS), r"has 3 parts; give a pair"),
    "images alone": (PIXELS, "is a ndarray; give a pair"),
    "a dictionary": ({"x": PIXELS}, "is a dict; give a pair"),
    "a path": (Path("pets"), "for a folder of images: perdure.data.benchmarks.folder"),
    "a text": ("pets", "for a folder of images: perdure.data.benchmarks.folder"),
    "a number": (3, "is a int; give a pair"),
    "a loader": (DataLoader(Listed(pairs(PIXELS))), r"give its dataset"),
    "a Dataset of dictionaries": (Listed([{"image": 1}]), "sample 0 is a dict; a Dataset must give pairs"),
    "a Dataset of triples": (Listed([(PIXELS[0], 1, 2)]), "sample 0 is 3 values"),
    "a Dataset of paths": (Listed([("a.png", 1)]), "image 0: is a str; give an array"),
    "a Dataset of vectors": (Listed([(np.zeros(9), 1)]), r"image 0: has shape \(9,\)"),
    "a Dataset of batches": (Listed([(np.zeros((2, 3, 4, 4)), 1)]), r"image 0: has shape \(2, 3, 4, 4\)"),
    "one label less": ((PIXELS, LABELS[:-1]), "40 images but 39 labels; give one label per image"),
    "one image less": ((list(PIXELS[:-1]), LABELS), "39 images but 40 labels"),
    "vectors": ((PIXELS.reshape(N, -1), LABELS), r"\(40, 90\) are neither \(n, channels, height, width\) nor"),
    "two channels": ((PIXELS[:, :2], LABELS), r"\(40, 2, 6, 5\) are neither .* 1 or 3 channels"),
    "four channels": ((np.zeros((N, 4, 8, 8)), LABELS), r"leave out the fourth channel \(alpha\)"),
    "four channels last": ((np.zeros((N, 8, 8, 4)), LABELS), r"leave out the fourth channel \(alpha\)"),
    "no height": ((np.zeros((N, 3, 0, 8)), LABELS), r"\(40, 3, 0, 8\) are neither"),
    "video": ((np.zeros((N, 9, 3, 8, 8)), LABELS), r"\(40, 9, 3, 8, 8\) are neither"),
    "texts as images": ((np.full((N, 8, 8), "a"), LABELS), "images are of kind <U1"),
    "complex images": ((np.zeros((N, 8, 8), complex), LABELS), "images are of kind complex128"),
    "objects as images": (([object()] * N, LABELS), "image 0: is a object; give an array"),
    "different sizes": (([*PIXELS[:-1], PIXELS[0, :, :4]], LABELS), "image 0 is 6×5, image 39 is 4×5; .* size=64"),
    "different sizes in a Dataset": (Listed([(np.zeros((4, n)), 0) for n in (4, 5)]), "image 1 is 4×5; .* size=64"),
    "sparse": ((torch.eye(4).to_sparse(), [0, 1] * 2), "give a dense one"),
    "floats to 255": ((PIXELS.astype(float), LABELS), r"lie in \[0, 1\], these reach from 0 to 255; divide them"),
    "normalized floats": ((PIXELS / 127.5 - 1, LABELS), "from -1 to 1; leave out their normalization"),
    "sixteen bits": ((PIXELS.astype(np.uint16) * 257, LABELS), r"0 to 65535, not 0 to 255; give floats in \[0, 1\]"),
    "negative pixels": ((PIXELS.astype(int) - 1, LABELS), "from -1 to 254, not 0 to 255"),
    "a pixel is nan": ((SPOILED, LABELS), "not a finite number in images 7; repair"),
    "a pixel is infinite": ((np.where(np.isnan(SPOILED), np.inf, SPOILED), LABELS), "not a finite number in images 7"),
    "a pixel is nan in a Dataset": (Listed(pairs(SPOILED)), "image 7: a pixel is not a finite number; repair"),
    "PIL image of 16 bits": (Listed([(GRAY16, 0)]), r"image 0: has pixels of more than 8 bits \(mode I;16\)"),
    "labels are nan": ((PIXELS, NAN), "no label .* for images 0, 1; label or remove"),
    "labels are none": ((PIXELS, [None] * 7 + [0, 1, 2] * 11), "for images 0, 1, 2, 3, 4 and 2 more; label or remove"),
    "labels are empty texts": ((PIXELS, ["", "a"] * 20), r"no label .* and 15 more"),
    "negative labels": ((PIXELS, LABELS - 1), "negative labels for images 0, 2, 4, 6, 8 and 15 more; count classes"),
    "labels are halves": ((PIXELS, LABELS / 2), "label of image 1 is 0.5; labels are whole numbers or texts"),
    "labels are infinite": ((PIXELS, np.where(LABELS, np.inf, 0)), "label of image 1 is inf"),
    "labels are objects": ((PIXELS, [object()] * N), "label of image 0 is a object; labels are whole"),
    "labels are dates": ((PIXELS, np.full(N, "2020-01-01", "datetime64[D]")), "label of image 0 is a date"),
    "labels are lists": ((PIXELS, [[0, 1]] * N), "label of image 0 is a list"),
    "labels of two kinds": ((PIXELS, [0, "a"] * 20), r"mix whole numbers and texts \(0 for image 0, 'a' for image 1\)"),
    "one-hot labels": ((PIXELS, np.eye(2)[LABELS]), r"shape \(40, 2\); .* give labels.argmax\(1\)"),
    "one label for all": ((PIXELS, np.array(1)), r"labels of shape \(\); give one per image"),
    "one class": ((PIXELS, [3] * N), r"all images are of one class \(3\); a task needs two"),
    "a class of one image": ((PIXELS, [0] * 39 + [1]), r"too few images of 1 \(1\); a class needs 3 for"),
    "a class of two images": ((PIXELS, ["a\nb"] * 2 + ["b"] * 38), r"too few images of a\\nb \(2\); a class needs 3"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_data_to_train_on(case):
    source, says = BAD[case]
    with pytest.raises(BadData, match=says) as caught:
        task_from("mine", source)
    one_line(caught.value, "task 'mine', train", 300, ())


@pytest.mark.parametrize("case", [case for case in BAD if "class" not in case])
def test_bad_data_to_test(case):
    source, says = BAD[case]
    with pytest.raises(BadData, match=says) as caught:
        task_from("mine", (PIXELS, LABELS), source)
    one_line(caught.value, "task 'mine', test", 300, ())


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ((PIXELS, LABELS * 2), "labels 2 are not among those to train on"),
        ((PIXELS, ["a"] * N), "labels 'a' are not among those to train on"),
        ((PIXELS[:, :, :5], LABELS), "images to train on and to test are 6×5 and 5×5; .* size=64"),
    ],
)
def test_test_that_does_not_fit_train(test, says):
    with pytest.raises(BadData, match=says) as caught:
        task_from("mine", (PIXELS, LABELS), test)
    one_line(caught.value, "task 'mine'", 300, ())


def test_with_a_test_two_images_of_a_class_are_enough():
    few_images = PIXELS, [0] * 38 + [1] * 2
    assert (task_from("t", few_images, (PIXELS, LABELS)).train.y == 1).sum() == 1
    with pytest.raises(BadData, match=r"too few images of 1 \(1\); a class needs 2 for valid_share=0.1: add"):
        task_from("t", (PIXELS, [0] * 39 + [1]), (PIXELS, LABELS))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"valid_share": 0}, "valid_share=0 is not allowed"),
        ({"valid_share": 1.0}, "valid_share=1.0 is not allowed"),
        ({"test_share": 1.5}, "test_share=1.5 is not allowed"),
        ({"test_share": -0.1}, "test_share=-0.1 is not allowed"),
        ({"seed": -1}, "seed=-1 is not allowed"),
        ({"size": 0}, "size=0 is not allowed"),
        ({"classes": ["a", "a"]}, "classes name a more than once"),
        ({"classes": ["a"]}, "labels 1 are of no class; the 1 classes allow 0"),
        ({"classes": []}, "labels 0, 1 are of no class"),
        ({"classes": ["a", "b", "c"]}, "no images of class c; add some"),
        ({"classes": [1, 2]}, "labels 0 are of no class; the 2 classes allow 1, 2"),
        ({"mean": (0.1, 0.2)}, "mean and std need one value, or one per channel"),
        ({"std": (0,)}, "std above 0"),
        ({"std": (float("nan"),)}, "not all finite"),
        ({"mean": ["x"]}, r"mean=\['x'\] is not all finite numbers"),
        ({"mean": 0.5}, "mean=0.5 is not all finite numbers"),
        ({"seed": 1.5}, "seed=1.5 is not allowed"),
        ({"valid_share": "x"}, "valid_share=x is not allowed"),
        ({"size": 10**6}, "size=1000000 is not allowed; use 1 to 4096 pixels"),
        ({"size": 1.5}, "size=1.5 is not allowed"),
        ({"size": "x"}, "size=x is not allowed"),
        ({"classes": 3}, "classes=3 is not allowed"),
    ],
)
def test_wrong_values(values, says):
    with pytest.raises(PerdureError, match=says) as caught:
        task_from("mine", (PIXELS, LABELS), **values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("images", "labels", "says"),
    [
        (np.zeros((20, 8, 0), np.float32), [0, 1] * 10, r"images of shape \(20, 8, 0\) are neither"),
        ([np.zeros((0, 8), np.uint8)] * 20, [0, 1] * 10, r"image 0: images of shape \(1, 0, 8\) are neither"),
        (np.zeros((20, 8, 8), np.uint8), [np.zeros(0)] * 20, "the label of image 0 is a ndarray"),
    ],
)
def test_an_axis_without_anything(images, labels, says):
    with pytest.raises(BadData, match=says) as caught:
        task_from("mine", (images, labels))
    assert "\n" not in str(caught.value)


def test_floats_too_narrow_to_be_scaled():
    with pytest.raises(BadData, match="images of 1×3000 pixels are too narrow to be scaled to size=4096; cut them"):
        task_from("mine", (np.zeros((20, 1, 3000), np.float32), [0, 1] * 10), size=4096)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=2, max_size=4).filter(sum),
    st.floats(0.01, 0.99),
    st.floats(0.01, 0.99),
    st.booleans(),
)
def test_any_counts_are_split_or_refused(counts, valid_share, test_share, with_test):
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.zeros((len(labels), 2, 2), np.uint8)
    shares = {"valid_share": valid_share, "test_share": test_share}
    try:
        task = task_from("t", (images, labels), (images, labels) if with_test else None, **shares)
    except BadData as error:
        one_line(error, "task 't', train", 300, ())
        return
    present = {f"{count}" for count in counts if count}
    assert not too_few({c: int(c) for c in present}, valid_share, None if with_test else test_share)
    for part in (task.train, task.valid, task.test):
        assert set(part.y.tolist()) == set(range(len(task.classes)))


def test_how_many_images_a_class_needs_is_enough():
    for shares in [(0.1, 0.2), (0.5, 0.5), (0.9, 0.9), (0.1, None), (0.95, None)]:
        needed = int(re.search(r"needs (\d+)", too_few({"a": 1}, *shares)).group(1))
        assert too_few({"a": needed - 1}, *shares)
        assert not too_few({"a": needed}, *shares)
    assert "1000 or more" in too_few({"a": 1}, 0.999, 0.999)


# --- streams ---


def test_stream():
    tasks = [task_from(name, (PIXELS, LABELS)) for name in ("b", "a")]
    stream = stream_from("mine", tasks)
    assert [task.name for task in stream] == ["b", "a"]
    assert (stream.name, stream.shape) == ("mine", (3, 6, 5))
    assert stream.notes == {"source": "given in Python", "completeness": "own data"}


def test_stream_that_cannot_be():
    task = task_from("a", (PIXELS, LABELS))
    with pytest.raises(WrongValue, match=r"'mine': more than one task is called a; give each"):
        stream_from("mine", [task, task])
    other = task_from("b", (PIXELS, LABELS), size=4)
    with pytest.raises(BadData, match=r"a \(3, 6, 5\), b \(3, 4, 4\); make all with one size") as caught:
        stream_from("mine", [task, other])
    one_line(caught.value, "stream 'mine'", 300, ())
    with pytest.raises(BadData, match="no tasks"):
        stream_from("mine", [])


def test_few_are_on_one_line():
    assert first_few(["a\nb", 3]) == "a\\nb, 3"
    assert first_few(list(range(6))) == "0, 1, 2, 3, 4 and 1 more"


# --- what the page and the example show ---


def test_example_runs(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["own_images.py"])
    runpy.run_path(str(ROOT / "examples" / "own_images.py"), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out


def test_python_of_the_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "own-data.md").read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 2
    names = {}
    for block in blocks:
        exec(compile(block, "own-data.md", "exec"), names)
    assert "[[" in capsys.readouterr().out
