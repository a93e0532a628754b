"""Time and memory to load the complete CIFAR-100 as a stream, the first time and from its decoded copy.

Each load is a separate process; times exclude the import of torch and are medians.

    python benchmarks/load_cifar100.py [--root DIR] [--repeats 5]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LOAD = """
import json, resource, sys, time
from pathlib import Path
from perdure.data.benchmarks.cifar100 import cifar100
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1 << 20)
before, start = peak(), time.perf_counter()
stream = cifar100(seed=1, root=Path(sys.argv[1]) if sys.argv[1] else None)
seconds = time.perf_counter() - start
held = sum(part.x.nbytes + part.y.nbytes for task in stream for part in (task.train, task.valid, task.test))
print(json.dumps({"seconds": seconds, "peak": peak() - before, "held": held / 2**20, **stream.notes}))
"""


def load(root: str, cache: str) -> dict[str, float | str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", LOAD, root],
        env={**os.environ, "PERDURE_CACHE": cache},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float | str] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="", help="where the files are; PERDURE_DATA or the user's cache otherwise")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    runs: dict[str, list[dict[str, float | str]]] = {"first time": [], "decoded copy": []}
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as cache:
            for kind in runs:
                runs[kind].append(load(args.root, cache))
            copies = list((Path(cache) / "decoded").iterdir())
            size = sum(path.stat().st_size for path in copies) / 2**20
    some = runs["first time"][0]
    print(f"CIFAR-100 ({some['source']}, {some['completeness']}): {some['held']:.0f} MiB of images in the stream,")
    print(f"{size:.0f} MiB of decoded copy on the disk; {args.repeats} repeats, medians")
    for kind, found in runs.items():
        seconds, peak = (statistics.median(float(run[key]) for run in found) for key in ("seconds", "peak"))
        print(f"{kind:>12}: {seconds:.2f} s, peak memory {peak:.0f} MiB above the start")


if __name__ == "__main__":
    main()
