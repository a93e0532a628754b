"""GPM's whole run, by the package and by the textbook: do both end with the same accuracy?

    python benchmarks/whole_run.py [--seed 1] [--tasks 10] [--width 8] [--threshold 0.97]

Steps and bases of both are equal to the last digits where weights and batches are (tests/benchmarks/test_textbook.py).
Here each draws its own, learns complete CIFAR-100 by the rule of the papers' code, and what comes out is compared.
The textbook is textbook.py, with the loop that the papers' scripts have, written here once more: plateaus of the loss
on shuffled batches of validation images, the best weights of all epochs, a random sample of 125 images for the bases.
The network is the papers', its layers by `--width` times narrower; the widest takes the textbook five hours. Images
are those of PERDURE_DATA.
"""

import argparse
import math
from copy import deepcopy

import numpy as np
import textbook
import torch
from torch import Tensor

from perdure import Network, Plan, Task, benchmark, learn
from perdure.methods.gpm import GPM
from perdure.nets.alexnet import AlexNet

PLAN = Plan(
    rate=0.01, epochs=200, batch=64, schedule="plateau", factor=2, patience=6, floor=1e-5, valid_order="shuffled"
)
THRESHOLD_STEP = 0.003

Found = tuple[list[list[float]], list[int]]  # accuracies after each task, sizes of the bases


def by_package(
    tasks: list[Task], seed: int, filters: tuple[int, int, int], units: tuple[int, int], threshold: float
) -> Found:
    net = Network(AlexNet((3, 32, 32), filters=filters, units=units, seed=seed))
    method = GPM(net, threshold=threshold, threshold_step=THRESHOLD_STEP)
    learned = learn(method, tasks, PLAN)
    return learned.matrix, [size[0] for size in method.memory.sizes().values()]


def by_textbook(
    tasks: list[Task], seed: int, filters: tuple[int, int, int], units: tuple[int, int], threshold: float
) -> Found:
    torch.manual_seed(seed)
    net = textbook.AlexNet(len(tasks), filters=filters, units=units)
    bases, matrix = None, []
    for number, task in enumerate(tasks):
        train, valid = (part.take(slice(None)) for part in (task.train, task.valid))
        learn_task(net, bases, train, valid, number)
        sample = train[0][torch.randperm(len(train[0]))[:125]]
        bases = textbook.update_memory(
            bases, textbook.representations(net, sample), threshold + THRESHOLD_STEP * number
        )
        seen = enumerate(tasks[: number + 1])
        matrix.append([100 * textbook.evaluate(net, *old.test.take(slice(None)), at)[1] for at, old in seen])
    return matrix, [basis.shape[1] for basis in bases or []]


def learn_task(
    net: textbook.AlexNet,
    bases: list[np.ndarray] | None,
    train: tuple[Tensor, Tensor],
    valid: tuple[Tensor, Tensor],
    task: int,
) -> None:
    """Until the learning rate has been halved too often; the weights of the best epoch stay."""
    projectors = None if bases is None else textbook.dense_projectors(bases)
    optimizer = torch.optim.SGD(net.parameters(), lr=PLAN.rate)
    best, kept, left = math.inf, {}, PLAN.patience
    x, y = train
    for _ in range(PLAN.epochs):
        net.train()
        for rows in torch.randperm(len(x)).split(PLAN.batch):
            textbook.gpm_step(net, optimizer, projectors, x[rows], y[rows], task)
        loss, _ = textbook.evaluate(net, *valid, task)
        if loss < best:
            best, kept, left = loss, deepcopy(net.state_dict()), PLAN.patience
            continue
        left -= 1
        if left == 0:
            optimizer.param_groups[0]["lr"] /= PLAN.factor
            left = PLAN.patience
            if optimizer.param_groups[0]["lr"] < PLAN.floor:
                break
    net.load_state_dict(kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--width", type=int, default=8, help="how many times narrower than the papers' network")
    parser.add_argument("--threshold", type=float, default=0.97)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tasks = list(benchmark("cifar100", seed=args.seed, tasks=args.tasks))
    filters, units = (64 // args.width, 128 // args.width, 256 // args.width), (2048 // args.width,) * 2
    for name, way in (("package", by_package), ("textbook", by_textbook)):
        matrix, sizes = way(tasks, args.seed, filters, units, args.threshold)
        last, new = matrix[-1], [row[-1] for row in matrix]
        bwt = np.mean(np.subtract(last, new)[:-1]) if len(new) > 1 else 0.0
        print(
            f"{name}: ACC {np.mean(last):.2f}, BWT {bwt:+.2f}, new task {np.mean(new):.2f}, bases {sizes}", flush=True
        )
        print(f"  new tasks: {' '.join(f'{accuracy:.1f}' for accuracy in new)}", flush=True)


if __name__ == "__main__":
    main()
