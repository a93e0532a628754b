"""Finished runs as the store leaves them, without training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.lab import store

RECORD = {
    "method": "gpm",
    "benchmark": "six",
    "network": "mlp",
    "seed": 1,
    "tasks": None,
    "values": {},
    "plan": {},
    "settings": {},
    "format": 4,
    "data": {"source": "made for a test", "fingerprint": ""},
    "acc": 80.0,
    "bwt": -2.5,
    "learning_accuracy": None,
    "forgetting": None,
    "accuracy_matrix": [[85.0], [80.0, 80.0]],
    "seconds": 3.0,
    "memory_bytes": {},
    "facts": {},
    "versions": {"perdure": "0.1.0", "torch": "2"},
    "device": "cpu",
    "threads": 1,
    "cautions": [],
}


def finish_run(path: Path, facts: Mapping[str, Any]) -> Path:
    """Write the files of a run in its directory; `facts` replace those of RECORD."""
    record = {**RECORD, **facts}
    names = [f"task {number + 1}" for number, _ in enumerate(record["accuracy_matrix"][-1])]
    store.write(path / "spec.toml", f'method = "{record["method"]}"\n'.encode())
    for name in ("epochs.jsonl", "model.safetensors"):
        store.write(path / name, b"")
    store.finish(path, {"task_names": names, **record})
    return path


def rewrite_record(path: Path, **facts: Any) -> None:
    """Change a record as somebody would who knows how its checksum is made; what is `...` is left out."""
    record = {**store.files.read_json(path / "record.json"), **facts}
    record = {name: value for name, value in record.items() if value is not ...}
    store.write_json(path / "record.json", {**record, "check": store._check(record)})
