"""What the bases of PAT should hold, on validation data of `six`: python benchmarks/pat_basis.py [--seeds 1,2,3]

After each task PAT remembers the directions of layer inputs. Of which images: as they are (clean), attacked, both, or
clean ones and in addition the tangents X(x + δ) − X(x), with a threshold of their own? Every choice learns the six
tasks and is scored on held-out training images, clean and under PGD-10 at 4/255; test images are never used.
"""

import argparse
from collections.abc import Callable

import torch
from choose_six import spread, validation_only
from rich.console import Console
from rich.table import Table
from torch import Tensor

from perdure.lab.build import make_network
from perdure.lab.spec import spec
from perdure.methods.method import Method
from perdure.methods.pat import PAT
from perdure.nets.network import first_weights
from perdure.ops.attacks import Ball, pgd
from perdure.probes.probe import TaskModel
from perdure.seeding import generator
from perdure.train.callbacks import Callback
from perdure.train.learn import learn
from perdure.train.state import Learned
from perdure.types import Lesson, Task

STRENGTH = 4 / 255
Inputs = dict[str, Tensor]  # layer → its inputs as columns
Remember = Callable[[PAT, Inputs, Inputs, float], None]


def clean(method: PAT, given: Inputs, _attacked: Inputs, threshold: float) -> None:
    method.remember(given, threshold)


def attacked(method: PAT, _given: Inputs, moved: Inputs, threshold: float) -> None:
    method.remember(moved, threshold)


def both(method: PAT, given: Inputs, moved: Inputs, threshold: float) -> None:
    method.remember({layer: torch.cat([x, moved[layer]], dim=1) for layer, x in given.items()}, threshold)


def tangent(share: float) -> Remember:
    def remember(method: PAT, given: Inputs, moved: Inputs, threshold: float) -> None:
        method.remember(given, threshold)
        method.remember({layer: moved[layer] - x for layer, x in given.items()}, share)

    return remember


CHOICES: dict[str, Remember] = {
    "clean": clean,
    "attacked": attacked,
    "both": both,
    "tangent, 0.5": tangent(0.5),
    "tangent, 0.8": tangent(0.8),
}


class Trial(PAT):
    """PAT with another memory; attacked images are those of the same sample, attacked as in training but without
    dropout."""

    choice: Remember

    def end(self, lesson: Lesson) -> None:
        self.eval()
        sample = lesson.sample(self.samples)
        moved = self.attacked(sample)
        self.choice(self, self.representations(sample), self.representations(moved), self.threshold_after(lesson))


class Robust(Callback):
    """Accuracy under PGD of each task just after it was learned, and of all tasks in the end."""

    def __init__(self, tasks: int) -> None:
        self.tasks, self.learned = tasks, list[float]()
        self.final: list[float] = []

    def on_task_end(self, method: Method, learned: Learned) -> None:
        latest = len(learned.tasks) - 1
        self.learned.append(under_attack(method, latest, learned.tasks[latest]))
        if latest + 1 == self.tasks:
            self.final = [under_attack(method, index, task) for index, task in enumerate(learned.tasks)]

    def bwt(self) -> float:
        changes = [after - before for after, before in zip(self.final[:-1], self.learned[:-1], strict=True)]
        return sum(changes) / len(changes)


def under_attack(method: Method, index: int, task: Task) -> float:
    """Percent of the images it is judged on."""
    model, hits = TaskModel(method, index, task.test), 0
    for number, (x, y) in enumerate(model.batches()):
        moved = pgd(model, x, y, Ball("linf", STRENGTH), steps=10, rng=generator(0, "trial", index, number))
        hits += int(model.right(moved, y).sum())
    return 100 * hits / len(task.test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--valid-share", type=float, default=0.3)
    parser.add_argument("--only", default="", help="choices whose name contains this")
    given = parser.parse_args()
    title = f"validation share {given.valid_share:g}, seeds {given.seeds}; percent, mean (lowest … highest)"
    columns = ("basis", "ACC", "BWT", "PGD-10 4/255", "robust BWT", "fc1 used")
    table = Table(*columns, title=title, title_justify="left")
    for name, choice in CHOICES.items():
        if given.only not in name:
            continue
        scores = [scored(choice, int(seed), given.valid_share) for seed in given.seeds.split(",")]
        row = [name, *map(spread, zip(*scores, strict=True))]
        table.add_row(*row)
        Console(width=150, stderr=True).print(*row)
    Console(width=150).print(table)


def scored(choice: Remember, seed: int, share: float) -> tuple[float | None, ...]:
    wanted = spec("pat", "six", seed=seed, values={"attack": STRENGTH, "attack_guard": False})
    stream = validation_only(seed, share)
    with first_weights(seed):
        learner = Trial(make_network(wanted.network, stream.shape), **wanted.values)
    learner.choice = choice
    robust = Robust(len(stream))
    learned = learn(learner, stream, wanted.plan, seed, robust)
    used = learner.memory.sizes()["fc1"][0]
    return learned.acc, learned.bwt, sum(robust.final) / len(robust.final), robust.bwt(), used


if __name__ == "__main__":
    main()
