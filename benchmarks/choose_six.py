"""Choose the preset of `six` on validation data: python benchmarks/choose_six.py [--seeds 1,2,3] [--valid-share 0.3]

Every setting learns the six tasks from the training images that are left and is scored on held-out training images;
test images are never used. Scored: final accuracy, and accuracy under FGSM at 4/255, both on validation data.
"""

import argparse
import statistics
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from perdure.data.benchmarks.six import six
from perdure.lab.build import build
from perdure.lab.spec import spec
from perdure.ops.metrics import backward_transfer
from perdure.probes.probe import TrainedMethod
from perdure.probes.robustness import FGSM
from perdure.train.learn import learn
from perdure.types import Stream

SETTINGS: dict[str, tuple[str, dict[str, str]]] = {  # plan.NAME is an option of the plan
    "gpm, threshold 0.95": ("gpm", {"threshold": "0.95"}),
    "gpm, threshold 0.97": ("gpm", {"threshold": "0.97"}),
    "dfgp, threshold 0.95": ("dfgp", {"threshold": "0.95"}),
    "rcl, no noise, threshold 0.95": ("rcl", {"phi_init": "0", "threshold": "0.95"}),
    "rcl, noise as released": ("rcl", {"phi_init": "1e-4", "phi_cap": "none"}),
    "rcl, noise capped at 0.1": ("rcl", {"phi_init": "1e-4", "phi_cap": "0.1"}),
    "rcl, noise capped at 0.5": ("rcl", {"phi_init": "1e-4", "phi_cap": "0.5"}),
    "rcl, κ 0.5": ("rcl", {"phi_init": "0", "ua_weight": "0.5"}),
    "mtl, batches of mixed tasks": ("mtl", {"batches": "mixed"}),
    "mtl, each batch of one task": ("mtl", {"batches": "apart"}),
    "mtl, mixed, 30 epochs": ("mtl", {"batches": "mixed", "plan.epochs": "30"}),
    "fsdgpm, rate .05, momentum 0": ("fsdgpm", {"plan.rate": "0.05", "plan.momentum": "0"}),
    "fsdgpm, rate .01, momentum .9": ("fsdgpm", {"plan.rate": "0.01", "plan.momentum": "0.9"}),
}


def validation_only(seed: int, share: float) -> Stream:
    """`six` with the validation images in the place of the test images."""
    stream = six(seed=seed, valid_share=share)
    return Stream("six", [replace(task, test=task.valid) for task in stream], stream.notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--valid-share", type=float, default=0.3)
    parser.add_argument("--only", default="", help="settings whose name contains this")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    title = f"validation share {given.valid_share:g}, seeds {given.seeds}; percent, mean (lowest … highest)"
    table = Table("setting", "ACC", "BWT", "ACC under FGSM 4/255", title=title, title_justify="left")
    for name, (method, options) in SETTINGS.items():
        if given.only not in name:
            continue
        scores = []
        for seed in seeds:
            plan = {name.removeprefix("plan."): value for name, value in options.items() if name.startswith("plan.")}
            values = {name: value for name, value in options.items() if not name.startswith("plan.")}
            wanted = spec(method, "six", seed=seed, values=values, plan=plan)
            stream = validation_only(seed, given.valid_share)
            learner = build(wanted, stream)
            learned = learn(learner, stream, wanted.plan, seed)
            attacked = FGSM(strengths=(4 / 255,)).measure(TrainedMethod(learner, learned.tasks)).figures["acc"][0]
            acc = sum(learned.matrix[-1]) / len(learned.matrix[-1])
            scores.append((acc, backward_transfer(learned.matrix), attacked))
        table.add_row(name, *map(spread, zip(*scores, strict=True)))
        Console(width=120, stderr=True).print(name, *map(spread, zip(*scores, strict=True)))
    Console(width=120).print(table)


def spread(values: tuple[float | None, ...]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.mean(known):.1f} ({min(known):.1f} … {max(known):.1f})" if known else "–"


if __name__ == "__main__":
    main()
