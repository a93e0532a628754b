"""Learn tasks of your own images one after another: python examples/own_images.py [FOLDER]

FOLDER holds one folder per task, each with one folder per class. Without it, two small tasks are drawn here and given
as a torch Dataset, which is how your own arrays, tensors and Datasets come in.
"""

import random
import sys
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch.utils.data import Dataset

from perdure import Network, Plan, Stream, learn
from perdure.data import stream_from, task_from
from perdure.data.benchmarks.folder import folder
from perdure.methods.gpm import GPM
from perdure.nets.alexnet import SlimAlexNet


class Drawings(Dataset[tuple[Image.Image, str]]):
    """Pictures of different sizes, each with one of a few shapes in a random color, size and place."""

    def __init__(self, shapes: tuple[str, ...], per_shape: int) -> None:
        self.names = shapes * per_shape

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, row: int) -> tuple[Image.Image, str]:
        chance, name = random.Random(row), self.names[row]
        picture = Image.new("RGB", (chance.randint(60, 90), 60), "white")
        left, top, size = chance.randint(5, 15), chance.randint(5, 15), chance.randint(30, 40)
        color = tuple(chance.randrange(200) for _ in range(3))
        pen, box = ImageDraw.Draw(picture), (left, top, left + size, top + size)
        if name == "disk":
            pen.ellipse(box, fill=color)
        elif name == "square":
            pen.rectangle(box, fill=color)
        elif name == "ring":
            pen.ellipse(box, outline=color, width=6)
        else:
            pen.rectangle(box, outline=color, width=6)
        return picture, name


def drawn() -> Stream:
    filled = task_from("filled", Drawings(("disk", "square"), 60), size=32)
    hollow = task_from("hollow", Drawings(("ring", "frame"), 60), size=32)
    return stream_from("shapes", [filled, hollow])


def main() -> None:
    stream = folder(path=Path(sys.argv[1]), seed=1) if len(sys.argv) > 1 else drawn()
    torch.manual_seed(1)
    method = GPM(Network(SlimAlexNet(stream.shape)))
    learned = learn(method, stream, Plan(rate=0.05, epochs=10, batch=16, schedule="linear", keep="last"))
    for row in learned.matrix:
        scores = ", ".join(f"{task.name} {score:.0f}" for task, score in zip(stream, row, strict=False))
        print(f"accuracy in percent after {len(row)} of {len(stream)} tasks: {scores}")


if __name__ == "__main__":
    main()
