"""Kill runs with SIGKILL at random moments, start them again until they finish, and compare with uninterrupted runs.

    python benchmarks/kill.py [--kills 20] [--methods rcl gpm …] [--net mlp] [--seed 1]

A checkpoint is written after every step, so that many kills happen while one is written. Each method learns two small
tasks, as often as it takes for so many kills; each time its final weights and its record (except for times) must equal
those of an uninterrupted run bit for bit.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure import registry
from perdure.lab.run import run_spec as run
from perdure.lab.spec import RunSpec, spec

TIMES = ("seconds", "evaluation_seconds", "finished", "files", "check")
# Forked from a process that has imported everything: a start takes no time, and most kills happen during the run.
forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload(
    ["perdure.lab.run", "perdure.data.benchmarks.synthetic", "perdure.nets.alexnet", "perdure.nets.mlp"]
)


@dataclass
class Tally:
    """How often a run was killed, how often while a checkpoint was written, and how often it finished."""

    kills: int = 0
    halves: int = 0
    ends: int = 0


def wanted(method: str, network: str | None = None) -> RunSpec:
    return spec(method, "synthetic", network=network, tasks=2, plan={"epochs": 3, "momentum": 0.5, "keep": "best"})


def kill_repeatedly(asked: RunSpec, folder: Path, kills: int, chance: random.Random) -> Tally:
    """Kill it so often; whenever it finishes, compare the result with that of an uninterrupted run."""
    _start(asked, folder / "warm", every=1e9)  # this also starts the fork server
    began = time.monotonic()
    assert _start(asked, folder / "alone", every=1e9).exitcode == 0
    length = 2 * (time.monotonic() - began)  # so that about every other run finishes
    whole, tally = outcome(folder / "alone"), Tally()
    while tally.kills < kills:
        out = folder / str(tally.ends)
        while (code := _start(asked, out, every=0, kill_after=chance.uniform(0, length)).exitcode) != 0:
            assert code == -signal.SIGKILL, f"{asked.method} failed with exit code {code}"
            halves = list(out.rglob("checkpoint/.*"))
            tally.kills, tally.halves = tally.kills + 1, tally.halves + bool(halves)
            for half in halves:
                half.unlink()  # to count each once
        tally.ends += 1
        assert outcome(out) == whole, f"{asked.method}, run {tally.ends}: differs from the uninterrupted run"
    return tally


def _start(asked: RunSpec, out: Path, every: float, kill_after: float | None = None) -> Any:
    running = forked.Process(target=run, args=(asked,), kwargs={"out": out, "every": every})
    running.start()
    running.join(kill_after)
    running.kill()  # does nothing if it has ended
    running.join()
    return running


def outcome(out: Path) -> tuple[bytes, dict[str, Any]]:
    (path,) = out.glob("synthetic/*/*")
    record = json.loads((path / "record.json").read_text("utf-8"))
    return (path / "model.safetensors").read_bytes(), {k: v for k, v in record.items() if k not in TIMES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="for each method")
    parser.add_argument("--methods", nargs="*", default=list(registry.methods))
    parser.add_argument("--net", default=None, help="another network than the preset's")
    parser.add_argument("--seed", type=int, default=1, help="of the random moments")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    total = Tally()
    for method in args.methods:
        with tempfile.TemporaryDirectory() as folder:
            chance = random.Random(f"{args.seed}/{method}")
            tally = kill_repeatedly(wanted(method, args.net), Path(folder), args.kills, chance)
        print(
            f"{method:9} {tally.kills} kills, {tally.halves} of them while a checkpoint was written, "
            f"{tally.ends} finished: all bit for bit as uninterrupted",
            flush=True,
        )
        total = Tally(total.kills + tally.kills, total.halves + tally.halves, total.ends + tally.ends)
    print(f"{'together':9} {total.kills} kills, {total.halves} while a checkpoint was written, {total.ends} finished")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"DIFFERENT: {error}")
