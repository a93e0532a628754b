"""What checkpointing costs: the time of one checkpoint over the time of an epoch, AlexNet at CIFAR-100's sizes.

    python benchmarks/checkpoint_cost.py [--methods finetune gpm rcl] [--repeats 5] [--threads 2]

Images are random, since the cost does not depend on them: 4750 of 3×32×32, batch 64. The checkpoint is written in the
middle of the third task, with the best weights so far; bases have the sizes that AlexNet's have then. Epochs and
checkpoints alternate; medians. RCL's epoch is timed over a tenth of the images and multiplied.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from perdure import registry
from perdure.lab.checkpoint import save
from perdure.memory.gradient_memory import GradientMemory
from perdure.methods.method import Method
from perdure.nets.alexnet import AlexNet
from perdure.nets.network import Network
from perdure.train.schedules import Plateau
from perdure.train.state import FitState, Learned
from perdure.types import Lesson, Part, Split

IMAGES, BATCH = 4750, 64
BASIS = {"conv1": (48, 7), "conv2": (576, 110), "conv3": (512, 190), "fc1": (1024, 300), "fc2": (2048, 600)}


def make(name: str) -> Method:
    torch.manual_seed(1)
    net = Network(AlexNet((3, 32, 32)))
    for _ in range(3):
        net.add_head(10)
    method: Method = registry.methods.load(name)(net)
    memory = getattr(method, "memory", None)
    if isinstance(memory, GradientMemory):
        for layer, (rows, columns) in BASIS.items():
            memory[layer] = torch.linalg.qr(torch.randn(rows, columns))[0]
    return method


def epoch(method: Method, lesson: Lesson) -> float:
    """Seconds of one epoch of plain SGD steps."""
    weights = method.trainable()
    optimizer = torch.optim.SGD(weights.values(), lr=1e-3)
    method.train()
    started = time.perf_counter()
    for batch in lesson.batches(BATCH, torch.Generator().manual_seed(1)):
        gradient = method.gradient(batch)
        for name, weight in weights.items():
            weight.grad = gradient.get(name)
        optimizer.step()
    return (time.perf_counter() - started) * IMAGES / len(lesson)


def write(method: Method, folder: Path) -> tuple[float, int]:
    """Seconds and bytes of one checkpoint."""
    kept = {name: weight.detach().clone() for name, weight in method.trainable().items()}
    state = FitState(2, Plateau(0.01, 2, 6, 1e-5), kept)
    path = folder / "checkpoint.safetensors"
    started = time.perf_counter()
    save(path, "0" * 16, method, Learned(), state)
    return time.perf_counter() - started, path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", default=["finetune", "gpm", "rcl"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in args.methods:
        method = make(name)
        count = IMAGES // 10 if name in ("rcl", "dfgp", "fsdgpm") else IMAGES
        pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
        split = Split(pixels, torch.randint(0, 10, (count,)))
        lesson = Lesson(2, (Part(2, 10, split, split),))
        with tempfile.TemporaryDirectory() as folder:
            found = [(epoch(method, lesson), *write(method, Path(folder))) for _ in range(args.repeats)]
        epochs, writes, sizes = zip(*found, strict=True)
        share = statistics.median(one / other for one, other in zip(writes, epochs, strict=True))
        print(
            f"{name:9} epoch {statistics.median(epochs):6.1f} s, checkpoint {1000 * statistics.median(writes):5.0f} ms "
            f"({sizes[0] / 1e6:.0f} MB): one every epoch costs {100 * share:.2f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
