"""How long a run takes alone and three at once, by how torch's threads wait for each other.

    python benchmarks/busy.py [--rounds 3] [--at-once 3] [--run "gpm six --net alexnet"] [--only "the default"]

Each setting does `perdure run gpm six --tasks 4 --plan epochs=4`, or another run, in a fresh store, in turns, and the
median over rounds is printed, in seconds of this machine and as a multiple of the fastest. Threads that spin while they
wait are the quickest on an idle machine and ruinous on a busy one: what they wait for does not run while they spin.
"""

import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from perdure.lab.execute.local import cores

RUN = "gpm six --tasks 4 --plan epochs=4"
ALL = {"OMP_NUM_THREADS": str(cores())}  # else small networks have one
SETTINGS: dict[str, dict[str, str]] = {
    "spin 300000, libgomp's own": {**ALL, "GOMP_SPINCOUNT": "300000"},
    "spin 100000": {**ALL, "GOMP_SPINCOUNT": "100000"},
    "spin 10000, perdure's own": ALL,
    "spin 1000": {**ALL, "GOMP_SPINCOUNT": "1000"},
    "passive": {**ALL, "OMP_WAIT_POLICY": "PASSIVE"},
    "one thread": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    "the default": {},
}


def seconds(run: str, setting: dict[str, str], at_once: int, folder: Path) -> float:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "MKL_"))}
    stores = [folder / str(number) for number in range(at_once)]
    started = time.perf_counter()
    running = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "perdure", "run", *shlex.split(run), "--json", "--out", str(store)],
            env={**inherited, **setting},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for store in stores
    ]
    assert all(process.wait() == 0 for process in running)
    taken = time.perf_counter() - started
    for store in stores:
        shutil.rmtree(store)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--run", default=RUN, metavar="WORDS", help="what follows `perdure run`")
    parser.add_argument("--only", action="append", choices=list(SETTINGS), help="this setting; may be given again")
    given = parser.parse_args()
    settings = {name: SETTINGS[name] for name in given.only or SETTINGS}
    found: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.rounds):
            for name, setting in settings.items():
                for count in (1, given.at_once):
                    found.setdefault((name, count), []).append(seconds(given.run, setting, count, Path(folder)))
    medians = {key: statistics.median(times) for key, times in found.items()}
    best = {count: min(value for (_, n), value in medians.items() if n == count) for count in (1, given.at_once)}
    print(f"| threads wait | alone, s | × best | {given.at_once} at once, s | × best |\n|---|---|---|---|---|")
    for name in settings:
        cells = [f"{medians[name, n]:.1f} | {medians[name, n] / best[n]:.2f}" for n in (1, given.at_once)]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
