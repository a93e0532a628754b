"""What training costs on `six`, as a multiple of GPM's: python benchmarks/robust_cost.py [--rounds 5] [--threads 1]

Every method of docs/results/robust.md has learned the first task for one epoch; then, in turns, an epoch of the second
task with its preset plan is timed, memory and validation included. The median over the rounds of each one's time ÷
that of GPM, and ÷ that of RCL, is printed.
"""

import argparse
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from speed.turns import alternate, ratio

import perdure
from perdure.lab.build import build
from perdure.lab.spec import spec
from perdure.train.learn import learn

ATTACK = {"attack": "4/255"}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpm": ("gpm", {}),
    "finetune + attack": ("finetune", ATTACK),
    "ewc + attack": ("ewc", ATTACK),
    "dfgp": ("dfgp", {}),
    "dfgp + attack": ("dfgp", ATTACK),
    "rcl": ("rcl", {}),
    "rcl + attack": ("rcl", ATTACK),
    "pat": ("pat", {}),
    "pat, 2 steps": ("pat", {"attack_steps": 2}),
    "pat, 7 steps": ("pat", {"attack_steps": 7}),
}


def epoch(method: str, values: dict[str, Any]) -> Callable[[], object]:
    """An epoch of the second task, always from the same state."""
    asked = spec(method, "six", values=values, seed=1)
    stream = perdure.benchmark("six")
    plan = replace(asked.plan, epochs=1)
    trained = build(asked, stream)
    learned = learn(trained, stream.tasks[:1], plan, seed=1)
    return lambda: learn(copy.deepcopy(trained), stream.tasks[1:2], plan, seed=1, learned=copy.deepcopy(learned))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    times = alternate({row: epoch(*asked) for row, asked in ROWS.items()}, given.rounds)
    table = Table("method", "÷ GPM", "÷ RCL", title=f"an epoch on six, median of {given.rounds} rounds")
    for row in ROWS:
        table.add_row(row, f"{ratio(times, row, 'gpm'):.2f}", f"{ratio(times, row, 'rcl'):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
