"""Where RCL's uniformity loss takes its features from, on real images: does a cheaper choice cost accuracy?

    python benchmarks/features.py --root DIR --out runs --seeds 1 2

Runs `perdure run rcl cifar100 --tasks 1 --plan epochs=5 --plan train_scores=true --set CHOICE` for each choice and
seed, one after another with one thread, and prints the training accuracy after each epoch. Finished runs are not
repeated.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

CHOICES = ("features=separate", "features=shared", "features=descent", "features=ascent", "ua_in=descent")


def run(choice: str, seed: int, root: str, out: str, epochs: int) -> Path:
    command = ["run", "rcl", "cifar100", "--seed", str(seed), "--tasks", "1", "--set", choice]
    plan = ["--plan", f"epochs={epochs}", "--plan", "train_scores=true", "--root", root, "--out", out, "--json"]
    done = subprocess.run(
        [Path(sys.executable).parent / "perdure", *command, *plan],
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    return Path(json.loads(done.stdout)["path"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="where the CIFAR-100 files are")
    parser.add_argument("--out", default="runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    for seed in args.seeds:
        for choice in CHOICES:
            path = run(choice, seed, args.root, args.out, args.epochs)
            epochs = [json.loads(line) for line in (path / "epochs.jsonl").read_text("utf-8").splitlines()]
            scores = "  ".join(f"{epoch['train']['accuracy']:.1f}" for epoch in epochs)
            print(f"seed {seed}  {choice:20s}  {scores}", flush=True)


if __name__ == "__main__":
    main()
