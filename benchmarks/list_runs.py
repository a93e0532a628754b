"""How long it takes to list a store of many finished runs: the first time, when the index is built, and later.

Each listing is timed twice: the function alone, and `perdure ls runs` as a process, including the start of Python.

    python benchmarks/list_runs.py [--runs 10000] [--repeats 7]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from perdure.lab import index, store

METHODS = ("finetune", "ewc", "er", "agem", "owm", "gpm", "trgp", "fsdgpm", "dfgp", "rcl")
TASKS = 10


def fill(root: Path, count: int) -> None:
    """Finished runs with correct checksums, records as large as those of ten tasks, and tiny models."""
    chance = Random(1)
    sync, os.fsync = os.fsync, lambda _handle: None  # writing is not what is measured here
    try:
        for number in range(count):
            method = METHODS[number % len(METHODS)]
            path = store.run_directory(root, "cifar100", method, f"{chance.getrandbits(64):016x}")
            store.write(path / "spec.toml", b'method = "gpm"\n')
            store.write(path / "epochs.jsonl", b"")
            store.write(path / "model.safetensors", b"no weights")
            store.finish(path, record(method, number, chance))
    finally:
        os.fsync = sync


def record(method: str, seed: int, chance: Random) -> dict[str, object]:
    matrix = [[chance.uniform(50, 90) for _ in range(TASKS)] for _ in range(TASKS)]
    names = {"method": method, "benchmark": "cifar100", "network": "alexnet", "seed": seed, "tasks": None}
    return {
        **names,
        "values": {"threshold": 0.97, "threshold_step": 0.003, "samples": 125},
        "plan": {"rate": 0.01, "epochs": 200, "batch": 64, "schedule": "plateau", "factor": 2.0, "patience": 6},
        "settings": {},
        "format": 4,
        "data": {"source": "made for a benchmark", "completeness": "complete", "fingerprint": ""},
        "task_names": [f"task {number + 1}" for number in range(TASKS)],
        "acc": sum(matrix[-1]) / TASKS,
        "bwt": -chance.uniform(0, 5),
        "learning_accuracy": sum(row[i] for i, row in enumerate(matrix)) / TASKS,
        "forgetting": chance.uniform(0, 5),
        "accuracy_matrix": matrix,
        "epochs_run": [50] * TASKS,
        "seconds": chance.uniform(1e3, 1e4),
        "memory_bytes": {"projection": 10_000_000},
        "facts": {},
        "versions": {"perdure": "0.1.0", "torch": "2"},
        "device": "cpu",
        "threads": 1,
        "cautions": [],
    }


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def listing(root: Path) -> int:
    words = [sys.executable, "-P", "-m", "perdure", "ls", "runs", "--out", str(root), "--json"]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE)
    return len(json.loads(done.stdout)["runs"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        print(f"{args.runs} runs made in {timed(lambda: fill(root, args.runs)):.1f} s")
        assert listing(root) == len(index.runs(root)) == args.runs
        for what, action in (("index.runs", lambda: index.runs(root)), ("perdure ls runs", lambda: listing(root))):
            first, later = [], []
            for _ in range(args.repeats):
                (root / index.INDEX).unlink()
                first.append(timed(action))
                later.append(timed(action))
            print(
                f"{what:16} first {statistics.median(first):.2f} s, later {statistics.median(later):.3f} s "
                f"(medians of {args.repeats}; slowest later {max(later):.3f} s)"
            )
        print(f"the index has {(root / index.INDEX).stat().st_size / 2**20:.1f} MB")


if __name__ == "__main__":
    main()
