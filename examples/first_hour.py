"""The first hour with perdure: a network, a method and a benchmark of your own, compared, loaded and continued.

    python first_hour.py            about a minute on one core; runs, tables and pictures go to ./runs
    python first_hour.py --quick    seconds: one seed, one epoch, few images; the figures then mean nothing

Read it from top to bottom, then change it. The same steps on the command line: docs/first-hour.md.
"""

import sys

import torch
from torch import Tensor, nn

import perdure
from perdure import Backbone, Batch, Lesson, Method, Network, Task
from perdure.data import task_from
from perdure.memory.bank import TensorBank
from perdure.ops.gradients import grad
from perdure.schema import Count, Weight

# --- a network: images in; out, what the heads read and the features that are compared ---


class Small(Backbone):
    """Two convolutions and a linear layer, with batch norm and dropout."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = shape
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, 16, 5, stride=2, padding=2, bias=False), norm(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1, bias=False), norm(32), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1)),
        )
        self.width = 64  # of what the heads read; the heads themselves, one per task, are added by perdure
        self.last = nn.Linear(32 * (height // 8) * (width // 8), self.width, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.last(self.body(x).flatten(1))
        return features.relu(), features


def norm(filters: int) -> nn.Module:
    """As in the papers, without running statistics, which would be the latest task's when an old one is tested."""
    return nn.BatchNorm2d(filters, track_running_stats=False)


# --- a method: which gradient for this batch? ---


class Anchored(Method):
    """SGD with an L2 pull towards the weights that the last task left: EWC, if every weight mattered equally."""

    def __init__(
        self,
        net: Network,
        *,
        pull: Weight = 0.3,  # λ: strength of the pull
    ) -> None:
        super().__init__(net)
        self.pull = pull
        self.anchor = TensorBank()  # tensors by name, saved and loaded together with the weights

    def gradient(self, batch: Batch) -> dict[str, Tensor]:
        weights = self.trainable()
        gradient = grad(self.loss(batch), weights)
        for name in gradient.keys() & set(self.anchor):  # heads of other tasks have no gradient; this one, no anchor
            gradient[name] = gradient[name] + self.pull * (weights[name].detach() - self.anchor[name])
        return gradient

    def end(self, lesson: Lesson) -> None:  # noqa: ARG002
        for name, weight in self.trainable().items():
            self.anchor[name] = weight.detach().clone()

    def memory_bytes(self) -> dict[str, int]:  # for the record
        return {"anchor": self.anchor.bytes()}


# --- a benchmark: a function of the seed that returns tasks ---

GROUPS = {
    "animals": ["bird", "cat", "deer", "dog", "frog", "horse"],
    "digits": list("0123456789"),
    "clothes": ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Shirt"],
    "vehicles": ["airplane", "automobile", "ship", "truck"],  # not in the benchmark: learned later
}


def everyday(
    seed: int,
    *,
    images: Count = 100,  # of each class, to train and validate with
) -> list[Task]:
    """Animals, digits and clothes."""
    return [group(name, seed, images) for name in ("animals", "digits", "clothes")]


def group(name: str, seed: int, images: int = 100) -> Task:
    """One task of some of the thirty classes whose images come with perdure."""
    found: dict[str, tuple[list[Tensor], list[str]]] = {"train": ([], []), "test": ([], [])}
    for task in perdure.benchmark("six"):
        for part, (pixels, labels) in found.items():
            split = getattr(task, part)
            for number, label in enumerate(task.classes):
                if label in GROUPS[name]:
                    pixels.append(split.x[split.y == number][:images])
                    labels += [label] * len(pixels[-1])
    train, test = ((torch.cat(pixels), labels) for pixels, labels in found.values())
    return task_from(name, train, test, seed=seed)


# --- the hour ---


def main(quick: bool) -> None:
    # Three methods, three seeds: nine runs, in processes of their own. What is done already is not done again.
    result = perdure.compare(
        ["finetune", Anchored, "gpm"],
        everyday,
        net=Small,
        seeds=[1] if quick else [1, 2, 3],
        plan={"epochs": 1 if quick else 10, "lr": 0.05, "batch": 32, "schedule": "linear"},
        settings={"images": 10 if quick else 100},
    )
    for run in result.failed:
        sys.exit(f"{run.spec.method}, seed {run.spec.seed}: {run.error}")
    print(result)
    print("for the paper:", *(str(file) for file in result.files if file.suffix in (".tex", ".png")), sep="\n  ")

    # One of them, opened again: what it was, and what it says of images.
    loaded = perdure.load(str(result.runs[-1].path))
    print("loaded:", loaded)
    animals = loaded.tasks[0]
    images, labels = animals.test.x[::7], [animals.classes[number] for number in animals.test.y[::7]]
    predicted = loaded.predict(images, task="animals").classes
    print(f"{sum(p == t for p, t in zip(predicted, labels, strict=True))} of {len(labels)} animals are named right")

    # It learns a fourth task. The run on disk stays as it is.
    before = loaded.matrix[-1]
    vehicles = group("vehicles", loaded.spec.seed, loaded.spec.settings["images"])
    after = loaded.learn_more(vehicles).matrix[-1]
    for task, old, new in zip(loaded.tasks, [*before, None], after, strict=True):
        print(f"{task.name:9}", "  new " if old is None else f"{old:5.1f}", f"→ {new:5.1f}")
    print("picture:", loaded.plot(path="runs/four-tasks.png"))


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
