"""Files of a store, changed as somebody would who knows how their checksums are made."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from perdure.lab.tensor_file import KEY


def forge(path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], object]) -> None:
    """Write a checkpoint again with other content and the right checksums.

    `change` gets what its header says and its tensors; a text that it leaves under "raw" becomes the header.
    """
    with safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()[KEY].partition(" ")[2])
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 — not a dictionary
    change(facts, tensors)
    facts["sums"] = {name: tensor_sum(tensor) for name, tensor in tensors.items()}
    header = facts.pop("raw", None) or json.dumps(facts)
    metadata = {KEY: f"{zlib.crc32(header.encode()):08x} {header}"}
    safetensors.torch.save_file(tensors, path, metadata)


def tensor_sum(tensor: Tensor) -> int:
    """As checkpoints have it, also of types that numpy does not know."""
    return zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data) if tensor.numel() else 0
