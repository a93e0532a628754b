"""Four months of new classes for a deployed model, without keeping a month's images.

    python examples/four_months.py [--quick] [--model cnn|resnet]

A classifier of photographs (CIFAR-10) gets five new classes each month: digits (MNIST), clothes (Fashion-MNIST), other
photographs. Each month's images are gone before the next begins; only test images are kept, for the gate. It is done
twice, by plain fine-tuning and by a protected learner. In the fifth month somebody mixes up all labels and raises the
learning rate a hundredfold: the gate refuses that month, and the model in use stays what it was.
"""

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import perdure
from perdure import Learner, Task
from perdure.learner.learner import ReleaseReport

MONTHS = {"2026-07": "cifar10-a", "2026-08": "mnist-a", "2026-09": "fashion-a", "2026-10": "cifar10-b"}


def small_cnn() -> nn.Module:
    """Somebody's own network, with batch norm and dropout."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1),
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 5),
    )  # fmt: skip


class Block(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.one, self.norm_one = nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.two, self.norm_two = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.short = nn.Sequential()
        if stride > 1 or width != out:
            self.short = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norm_one(self.one(x)))
        return torch.relu(self.norm_two(self.two(inner)) + self.short(x))


def resnet18() -> nn.Module:
    """The structure of the usual ResNet-18, an eighth as wide; its weights would come from a file."""
    torch.manual_seed(1)
    widths = (8, 8, 16, 32, 64)
    stages = [Block(a, b, 1 + (b > a)) for a, b in pairwise(widths)]
    more = [Block(b, b, 1) for b in widths[1:]]
    body = [block for pair in zip(stages, more, strict=True) for block in pair]
    stem = [nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5))


def labeled(task: Task, part: str, images: int | None = None) -> tuple[Tensor, list[str]]:
    """The images of a part with the names of their classes; all of them, or so many."""
    split = getattr(task, part)
    rows = torch.cat(split.pieces(64, images))
    return split.x[rows], [task.classes[number] for number in split.y[rows].tolist()]


def live(
    folder: Path, model: nn.Module, method: str, epochs: int, images: int | None = None
) -> tuple[Learner, dict[str, list[float]]]:
    """Four months; for each, the accuracy of its task as the months pass."""
    tasks = {task.name: task for task in perdure.benchmark("six")}
    plan = {"epochs": epochs, "rate": 0.02, "batch": 32}
    learner = Learner.create(folder / method, model, input=(3, 32, 32), method=method, plan=plan)
    history: dict[str, list[float]] = {}
    for month, name in MONTHS.items():
        learner.learn(month, labeled(tasks[name], "train", images))
        for known, of in zip(MONTHS, MONTHS.values(), strict=True):
            if known in {task.name for task in learner.tasks}:
                score = learner.evaluate(known, labeled(tasks[of], "test", images))
                history.setdefault(known, []).append(score.accuracy)
    return learner, history


def bad_month(learner: Learner, images: int | None = None) -> ReleaseReport:
    tasks = {task.name: task for task in perdure.benchmark("six")}
    x, names = labeled(tasks["cifar10-a"], "train", images)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(1)).tolist()
    kept = {month: labeled(tasks[name], "test", images) for month, name in MONTHS.items()}
    wrong = {"rate": 2.0, "epochs": 2, "keep": "last", "momentum": 0.9}
    return learner.learn(
        "2026-11", (x, [names[i] for i in order]), tests=kept, limits={"accuracy": 3, "steps": 5}, plan=wrong
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four epochs a month, of 100 images")
    parser.add_argument("--model", choices=["cnn", "resnet"], default="cnn")
    given = parser.parse_args()
    torch.set_num_threads(1)
    make, epochs, images = small_cnn if given.model == "cnn" else resnet18, 10, None
    if given.quick:
        epochs, images = 4, 100
    with tempfile.TemporaryDirectory() as folder:
        for method in ("finetune", "gpm"):
            learner, history = live(Path(folder), make(), method, epochs, images)
            print(f"{method}: accuracy of each month's task, as the months pass")
            for month, row in history.items():
                print(f"  {month}  " + " → ".join(f"{value:.1f}" for value in row))
        report = bad_month(learner, images)
        print(f"a bad month: {report}")
        print(f"in use: revision {learner.revision}, {', '.join(task.name for task in learner.tasks)}")


if __name__ == "__main__":
    main()
