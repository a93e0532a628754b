"""Twelve runs on two Ray nodes, while a worker and then a whole node are killed, against the same runs one by one.

    python benchmarks/ray_study.py

Both nodes are on this machine and listen on the loopback interface only. Prints what happened, and fails if a record or
a weight differs from that of the sequential runs, or if a finished run was lost.
"""

import json
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from perdure.lab.checkpoint import load
from perdure.lab.execute.job import Event, Job
from perdure.lab.execute.ray import LOOPBACK, SETTINGS, RayExecutor
from perdure.lab.run import run_spec as run
from perdure.lab.spec import RunSpec, spec

# Ray reads these when it is imported.
os.environ |= SETTINGS | LOOPBACK | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}

import ray
from ray.cluster_utils import Cluster

SPECS = [
    spec(method, "synthetic", tasks=2, seed=seed, plan={"epochs": 12})
    for method in ("gpm", "rcl", "er")
    for seed in range(1, 5)
]
NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 100 << 20}


def outcome(path: Path, asked: RunSpec) -> tuple[Any, ...]:
    record = json.loads((path / "record.json").read_text("utf-8"))
    timeless = {
        name: value for name, value in record.items() if name not in ("seconds", "evaluation_seconds", "files", "check")
    }
    state = load(path / "model.safetensors", asked.plan).state
    return timeless, {name: tensor.numpy().tobytes() for name, tensor in state.items()}


class Failures:
    """Kills a worker in mid-run, and when four runs are done the node that is not the driver's."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, [self.node] = cluster, cluster.worker_nodes
        self.workers: dict[int, int] = {}
        self.done = 0
        self.killed_worker = self.killed_node = False

    def on_event(self, event: Event) -> str | None:
        self.done += event.kind == "done"
        if event.kind == "started":
            self.workers[event.job] = event.facts["process"]
        if event.kind != "epoch" or event.facts["epoch"] < 2:
            return None
        if self.done >= 1 and not self.killed_worker:
            self.killed_worker = True
            os.kill(self.workers[event.job], signal.SIGKILL)
            return f"killed worker {self.workers[event.job]} during run {event.job}"
        if self.done >= 4 and not self.killed_node and self.workers[event.job] in self.node_processes():
            self.killed_node = True
            self.cluster.remove_node(self.node, allow_graceful=False)
            return f"killed the node that computes run {event.job}, with all its processes"
        return None

    def node_processes(self) -> set[int]:
        process = self.node.all_processes["raylet"][0].process.pid
        return {int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()}


def main() -> None:
    torch.set_num_threads(1)
    with TemporaryDirectory(prefix="ray-") as place:
        began = time.monotonic()
        alone = [Path(run(one, out=Path(place) / "alone")["path"]) for one in SPECS]
        print(f"{len(SPECS)} runs one by one: {time.monotonic() - began:.0f} s")

        os.environ["RAY_TMPDIR"] = place
        cluster = Cluster()
        cluster.add_node(include_dashboard=False, **NODE)
        cluster.add_node(**NODE)
        failures = Failures(cluster)
        jobs = [Job(one, f"{place}/runs", every=0.5) for one in SPECS]
        executor = RayExecutor(cluster.address)
        began = time.monotonic()
        ended, again = {}, []
        for event in executor.do(jobs):
            said = failures.on_event(event)
            if event.kind in ("lost", "failed", "done", "warning") or (event.kind == "started" and event.job in again):
                facts = {name: value for name, value in event.facts.items() if name != "record"}
                print(f"{time.monotonic() - began:6.1f} s  run {event.job:2}: {event.kind} {facts or ''}")
            if event.kind == "lost":
                again.append(event.job)
            if event.kind in ("done", "failed", "stopped"):
                assert event.job not in ended, "ended twice"
                ended[event.job] = event
            if said:
                print(f"{time.monotonic() - began:6.1f} s  *** {said}")
        print(f"{len(ended)} runs on two nodes, then one: {time.monotonic() - began:.0f} s")

        began = time.monotonic()
        second = [event for event in executor.do(jobs) if event.kind != "started"]
        computed = sum(event.kind == "epoch" for event in second)
        print(f"the same again: {computed} epochs computed, {time.monotonic() - began:.0f} s")

        wrong = [number for number, event in ended.items() if event.kind != "done"]
        wrong += [
            number
            for number, (one, path) in enumerate(zip(SPECS, alone, strict=True))
            if number not in wrong and outcome(Path(ended[number].facts["record"]["path"]), one) != outcome(path, one)
        ]
        print(f"records and weights as when run one by one: {len(SPECS) - len(wrong)} of {len(SPECS)}")
        ray.shutdown()
        cluster.shutdown()
    if wrong or computed or len(ended) != len(SPECS) or not (failures.killed_worker and failures.killed_node):
        sys.exit(f"wrong runs: {wrong}")


if __name__ == "__main__":
    main()
