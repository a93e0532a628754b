"""How well a learner tells tasks apart, and what its bases tell of training images, on three tasks of `six`.

    python benchmarks/learner_six.py

Slim AlexNet, GPM, eight epochs a task at rate 0.02, seed 1, one thread. Printed: how often the task of single test
images is told right, with what was taken for what; for images of a task that was never learned, too; the AUC with which
what a basis leaves of an image tells members from others, for each task and linear layer.
"""

import tempfile

import torch

from perdure import Learner, Task, benchmark


def labeled(task: Task, part: str) -> tuple[torch.Tensor, list[str]]:
    split = getattr(task, part)
    return split.x, [task.classes[number] for number in split.y.tolist()]


def main() -> None:
    torch.set_num_threads(1)
    tasks = list(benchmark("six"))
    plan = {"epochs": 8, "rate": 0.02, "batch": 32, "momentum": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        learner = Learner.create(f"{folder}/six", "alexnet-slim", input=(3, 32, 32), method="gpm", plan=plan)
        tests: dict[str, tuple[torch.Tensor, list[str]]] = {}
        for task in tasks[:3]:
            learner.learn(task.name, labeled(task, "train"), tests=tests, test=labeled(task, "test"))
            tests[task.name] = labeled(task, "test")
        print("told right:", learner.about.inference)
        for task in [*tasks[:3], tasks[4]]:
            taken = [answer.task or "unknown" for answer in learner.predict(task.test.x)]
            print(f"{task.name}:", {name: taken.count(name) for name in sorted(set(taken))})
        for known in learner.tasks:
            print(f"{known.name}, AUC:", {layer: round(value, 3) for layer, value in known.membership.items()})


if __name__ == "__main__":
    main()
