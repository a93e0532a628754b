"""The methods of the study `six`, over several seeds, as a table: python benchmarks/six_table.py [--seeds 1,2,3]
    [--jobs 2] [--methods gpm,sgp]

Each run is `perdure run METHOD six --seed N --probe fgsm` in its own process with one thread; a run whose record is
already in --out is read, not repeated. Prints Markdown: mean over the seeds and, in brackets, lowest and highest; then
what each method has more than GPM, paired by seed, with Student's 95 % interval.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from perdure.lab.spec import spec
from perdure.lab.store import read_probes, run_directory
from perdure.lab.study_file import read, specs
from perdure.ops.statistics import paired

Record = dict[str, Any]
COLUMNS: dict[str, Callable[[Record], float | None]] = {
    "ACC": lambda record: record["acc"],
    "BWT": lambda record: record["bwt"],
    "new task": lambda record: record["learning_accuracy"],
    "FGSM 1": lambda record: record["probes"]["fgsm"]["acc"][0],
    "FGSM 2": lambda record: record["probes"]["fgsm"]["acc"][1],
    "FGSM 4": lambda record: record["probes"]["fgsm"]["acc"][2],
}
COMPARED = ("ACC", "FGSM 1", "FGSM 2", "FGSM 4")  # with GPM


def one(method: str, seed: int, out: Path) -> Record:
    wanted = spec(method, "six", seed=seed)
    path = run_directory(out, "six", method, wanted.digest()) / "record.json"
    if not (path.is_file() and (path.parent / "probes/fgsm.json").is_file()):
        words = ["run", method, "six", "--seed", str(seed), "--probe", "fgsm", "--out", str(out), "--json"]
        command = [sys.executable, "-P", "-m", "perdure", *words]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        print(
            f"{method}, seed {seed}: {'done' if done.returncode == 0 else done.stderr.splitlines()[-1]}",
            file=sys.stderr,
        )
        if done.returncode:
            return {}
    record: Record = json.loads(path.read_text("utf-8"))
    return {**record, "probes": read_probes(path.parent, record)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--methods", default=",".join(dict.fromkeys(run.method for run in specs(read("six")))))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    wanted = [(method, seed) for method in given.methods.split(",") for seed in seeds]
    with ThreadPoolExecutor(given.jobs) as pool:
        records = dict(zip(wanted, pool.map(lambda pair: one(*pair, given.out), wanted), strict=True))
    methods = [method for method in given.methods.split(",") if all(records[method, seed] for seed in seeds)]
    if missing := set(given.methods.split(",")) - set(methods):
        print(f"left out, since runs failed: {', '.join(sorted(missing))}", file=sys.stderr)
    print(f"| method | {' | '.join(COLUMNS)} | MB held |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for method in methods:
        done = [records[method, seed] for seed in seeds]
        cells = [spread([column(record) for record in done]) for column in COLUMNS.values()]
        held = statistics.mean(sum(record["memory_bytes"].values()) for record in done) / 1e6
        print(f"| {method} | {' | '.join(cells)} | {held:.2f} |")
    if "gpm" not in methods or len(seeds) < 2:
        return
    print(f"\n| − gpm | {' | '.join(COMPARED)} |")
    print("|---" * (len(COMPARED) + 1) + "|")
    for method in methods:
        if method != "gpm":
            cells = [
                difference(*({seed: COLUMNS[name](records[m, seed]) for seed in seeds} for m in (method, "gpm")))
                for name in COMPARED
            ]
            print(f"| {method} | {' | '.join(cells)} |")


def difference(own: dict[int, float], other: dict[int, float]) -> str:
    found = paired(own, other)
    return f"{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"


def spread(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{statistics.mean(known):.1f} ({min(known):.1f} … {max(known):.1f})"


if __name__ == "__main__":
    main()
