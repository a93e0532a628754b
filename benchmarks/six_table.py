"""All methods on `six`, over several seeds, as a table: python benchmarks/six_table.py [--seeds 1,2,3] [--jobs 2]

Each run is `perdure run METHOD six --seed N --probe fgsm` in its own process with one thread; a run whose record is
already in --out is read, not repeated. Prints Markdown: mean over the seeds and, in brackets, lowest and highest.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from perdure import registry
from perdure.lab.spec import spec
from perdure.lab.store import read_probes, run_directory


def one(method: str, seed: int, out: Path) -> dict[str, Any]:
    wanted = spec(method, "six", seed=seed)
    path = run_directory(out, "six", method, wanted.digest()) / "record.json"
    if not (path.is_file() and (path.parent / "probes/fgsm.json").is_file()):
        words = ["run", method, "six", "--seed", str(seed), "--probe", "fgsm", "--out", str(out), "--json"]
        command = [sys.executable, "-P", "-m", "perdure.cli.main", *words]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        print(
            f"{method}, seed {seed}: {'done' if done.returncode == 0 else done.stderr.splitlines()[-1]}",
            file=sys.stderr,
        )
        if done.returncode:
            return {}
    record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return {**record, "probes": read_probes(path.parent, record)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--methods", default=",".join(registry.methods))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    wanted = [(method, seed) for method in given.methods.split(",") for seed in seeds]
    with ThreadPoolExecutor(given.jobs) as pool:
        records = dict(zip(wanted, pool.map(lambda pair: one(*pair, given.out), wanted), strict=True))
    print("| method | ACC | BWT | new task | FGSM 1 | FGSM 2 | FGSM 4 | seconds | MB held |")
    print("|---|---|---|---|---|---|---|---|---|")
    for method in given.methods.split(","):
        done = [records[method, seed] for seed in seeds if records[method, seed]]
        if len(done) < len(seeds):
            print(f"| {method} | {len(seeds) - len(done)} of {len(seeds)} runs failed |")
            continue
        columns = [
            [record["acc"] for record in done],
            [record["bwt"] for record in done],
            [record["learning_accuracy"] for record in done],
            *([record["probes"]["fgsm"]["acc"][i] for record in done] for i in range(3)),
        ]
        seconds = statistics.median(record["seconds"] for record in done)
        held = statistics.mean(sum(record["memory_bytes"].values()) for record in done) / 1e6
        print(f"| {method} | {' | '.join(map(spread, columns))} | {seconds:.0f} | {held:.2f} |")


def spread(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{statistics.mean(known):.1f} ({min(known):.1f} … {max(known):.1f})"


if __name__ == "__main__":
    main()
