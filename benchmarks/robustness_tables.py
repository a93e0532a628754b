"""The tables of docs/results/robustness.md, from the runs of two studies.

    perdure study robustness --out runs && perdure study outliers --out runs
    python benchmarks/robustness_tables.py --out runs [--seeds 1,2]

Nothing is trained or measured here: runs that are not in the store are left out of the means, and counted; figures that
some runs were not measured for are left out and named.
Figures are means over seeds with the lowest and the highest in brackets; differences are paired by seed, with Student's
95 % interval.
"""

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from statistics import correlation, fmean
from typing import Any

from perdure.lab.study import find_runs
from perdure.lab.study_file import read, specs
from perdure.ops.statistics import headlines, paired

METHODS = ("finetune", "gpm", "dfgp", "rcl")
AGAINST = ("gpm", "dfgp")  # what RCL is compared with
Record = dict[str, Any]

ROBUSTNESS = [
    "clean",
    "noise 2/255",
    "FGSM 1/255",
    "FGSM 2/255",
    "FGSM 4/255",
    "PGD-20 1/255",
    "PGD-20 2/255",
    "PGD-20 4/255",
    "clean, first 100",
    "APGD 2/255",
    "Square 2/255",
    "masking fails",
    "masking warns",
    "robust ACC",
    "robust BWT",
    "robust new task",
    "clean BWT",
    "clean new task",
    "corrupted",
    "flatness",
    "rise at 0.1",
    "top eigenvalue",
    "Hessian trace",
    "uniformity",
    "effective rank",
    "class overlap",
    "capacity taken",
    "ECE",
    "NLL",
    "Brier",
    "excess loss",
    "past gradient ×",
    "weight gradient ×",
    "weight span",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--seeds", default="1,2,3", help="only these")
    given = parser.parse_args()
    out, seeds = given.out, {int(seed) for seed in given.seeds.split(",")}
    records = records_of("robustness", out, seeds)
    if not records:
        sys.exit(f"no runs in {out}; run the two studies first, or name their store with --out")
    missing = [name for name in ROBUSTNESS if any(figure(record, name) is None for record in records)]
    print_head("figure")
    for name in ROBUSTNESS:
        if name not in missing:
            print_row(name, records, lambda record, name=name: figure(record, name))
    print()
    if missing:
        print(f"not measured on every run: {', '.join(missing)}")
    for methods in (METHODS, METHODS[1:]) if "flatness" not in missing else ():
        some = [record for record in records if record["method"] in methods]
        flat = [record["probes"]["flatness"]["headline"]["flatness"] for record in some]
        loss = [record["probes"]["fgsm"]["loss"][0] for record in some]
        r, names = correlation(flat, loss), ", ".join(methods)
        print(f"flatness and loss under FGSM 1/255, {len(some)} runs of {names}: r = {r:.2f}")
    by_outliers: dict[str, list[Record]] = {}
    for record in records_of("outliers", out, seeds):
        by_outliers.setdefault(record.get("outliers", "none"), []).append(record)
    for title, name in (("ACC", "acc"), ("BWT", "bwt")):
        print_head(f"{title}, outliers")
        for outliers, some in by_outliers.items():
            print_row(outliers, some, lambda record, name=name: record[name])
    print_head("ACC lost to outliers")
    clean = {(record["method"], record["seed"]): record["acc"] for record in by_outliers.pop("none", [])}
    for outliers, some in by_outliers.items():
        both = [record for record in some if (record["method"], record["seed"]) in clean]
        print_row(outliers, both, lambda record: clean[record["method"], record["seed"]] - record["acc"])


def records_of(study: str, out: Path, seeds: Collection[int]) -> list[Record]:
    planned = find_runs([one for one in specs(read(study)) if one.seed in seeds], out=out, root=None)
    records = [one.record for one in planned if one.record is not None]
    print(f"\n{study}: {len(records)} of {len(planned)} runs are there")
    return records


def figure(record: Record, name: str) -> float | None:
    known = {"clean": "acc", "clean BWT": "bwt", "clean new task": "learning_accuracy"}
    if name in known:
        return float(record[known[name]])
    if name == "robust new task":
        measured = record["probes"].get("over-time")
        return float(measured["robust"]["learning_accuracy"]) if measured else None
    if name == "clean, first 100":  # the images that APGD and Square are tried on
        measured = next((probe for key, probe in record["probes"].items() if key.startswith("apgd")), None)
        return float(measured["clean"]["acc"]) if measured else None
    return headlines(record).get(name)


def print_head(name: str) -> None:
    print("\n| " + " | ".join([name, *METHODS, *(f"rcl − {other}" for other in AGAINST)]) + " |")
    print("|---" * (1 + len(METHODS) + len(AGAINST)) + "|")


def print_row(name: str, records: Sequence[Record], value_of: Callable[[Record], float | None]) -> None:
    seeds = {
        method: {r["seed"]: value for r in records if r["method"] == method and (value := value_of(r)) is not None}
        for method in METHODS
    }
    values = [value for own in seeds.values() for value in own.values()]
    largest = max(map(abs, values), default=0.0)
    counted = all(value == round(value) for value in values)
    digits = 0 if counted or largest >= 200 else 1 if largest >= 10 else 2 if largest >= 1 else 3
    cells = [spread(list(seeds[method].values()), digits) for method in METHODS]
    differences = [difference(seeds["rcl"], seeds[other], digits) for other in AGAINST]
    print(f"| {name} | " + " | ".join([*cells, *differences]) + " |")


def spread(values: Sequence[float], digits: int) -> str:
    if not values:
        return "–"
    return f"{short(fmean(values), digits)} [{short(min(values), digits)}, {short(max(values), digits)}]"


def difference(one: dict[int, float], other: dict[int, float], digits: int) -> str:
    value = paired(one, other)
    if value is None:
        return "–"
    ends = [] if value.low is None else [short(end, digits, "+") for end in (value.low, value.high)]
    return short(value.mean, digits, "+") + (f" [{', '.join(ends)}]" if ends else "")


def short(value: float, digits: int, sign: str = "") -> str:
    return f"{value:{sign}.{digits}f}".replace("-", "−")


if __name__ == "__main__":
    main()
