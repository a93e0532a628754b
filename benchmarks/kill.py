"""Kill runs with SIGKILL at random moments, start them again until they end, and compare with runs left alone.

    python benchmarks/kill.py [--kills 20] [--methods rcl gpm …] [--seed 1]

Checkpoints are written after every step, so that many kills fall into the writing of one. Each method learns two small
tasks; its final weights and its record (but for times) must equal the undisturbed ones bit for bit.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RUN = """
import sys
from pathlib import Path
from perdure.lab.run import run
from perdure.lab.spec import spec
wanted = spec(sys.argv[1], "synthetic", tasks=2, plan={"epochs": 3, "momentum": 0.5, "keep": "best"})
print("ready", flush=True)
run(wanted, out=Path(sys.argv[2]), every=float(sys.argv[3]))
"""
TIMES = ("seconds", "files", "check")


def start(method: str, out: Path, every: float) -> "subprocess.Popen[str]":
    """A run in a process of its own, past its imports."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", RUN, method, str(out), str(every)]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, env=environment, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    return running


def outcome(out: Path) -> tuple[bytes, dict[str, Any]]:
    (path,) = out.glob("synthetic/*/*")
    record = json.loads((path / "record.json").read_text("utf-8"))
    return (path / "model.safetensors").read_bytes(), {k: v for k, v in record.items() if k not in TIMES}


def torment(method: str, out: Path, kills: int, length: float, chance: random.Random) -> tuple[int, int]:
    """Run until the end, killed so often on the way; returns kills that hit, and checkpoints found half-written."""
    hits = halves = 0
    while True:
        running = start(method, out, every=0)
        assert running.stdout is not None
        if hits < kills:
            time.sleep(chance.uniform(0, length))
            running.kill()
        code = running.wait()
        running.stdout.close()
        if code == 0:
            return hits, halves
        assert code == -9, f"{method} failed with exit code {code}"
        hits += 1
        halves += sum(path.name.startswith(".") for path in out.rglob("checkpoint/.*"))
        for half in out.rglob("checkpoint/.*"):
            half.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="for each method")
    parser.add_argument("--methods", nargs="*", default=None)
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    args = parser.parse_args()
    from perdure import registry

    wrong = 0
    for method in args.methods or list(registry.methods):
        chance = random.Random(f"{args.seed}/{method}")
        with tempfile.TemporaryDirectory() as folder:
            left_alone, tormented = Path(folder) / "alone", Path(folder) / "tormented"
            running = start(method, left_alone, every=1e9)
            began = time.monotonic()
            assert running.wait() == 0
            assert running.stdout is not None
            running.stdout.close()
            # Kills fall mostly into the first half of what is left, so that there is something left for the next.
            length = 0.5 * (time.monotonic() - began)
            hits, halves = torment(method, tormented, args.kills, length, chance)
            same = outcome(left_alone) == outcome(tormented)
        wrong += not same
        print(
            f"{method:9} {hits} kills, {halves} of them while a checkpoint was written: "
            f"{'bit for bit the same' if same else 'DIFFERENT'}",
            flush=True,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
