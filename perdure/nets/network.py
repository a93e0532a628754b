"""A network for many tasks: one backbone, one bias-free linear head per task, added when the task arrives."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perdure import fast
from perdure.errors import TooFewSamples
from perdure.ops.apart import parts
from perdure.ops.subspace import Layer, layers_of
from perdure.types import TaskIds


@dataclass(frozen=True)
class Output:
    """What one forward shows."""

    logits: Tensor  # (n, classes)
    features: Tensor  # (n, d), unit length

    def split(self, rows: int) -> "list[Output]":
        """Of so many images at a time."""
        pieces = zip(torch.split(self.logits, rows), torch.split(self.features, rows), strict=True)
        return [Output(logits, features) for logits, features in pieces]


class Backbone(nn.Module):
    """Images to features. What a projection method must know of a network stands here, with answers for any network."""

    width: int
    """How many features the heads read."""

    patch_images: dict[str, int] = {}  # noqa: RUF012 — read-only; each network that needs one sets its own
    """Layer → how many images its patches are cut from. Layers not named: see `GPM.representations`."""

    together: bool = False
    """Whether several batches may go through at once, only their batch norms kept apart: only if nothing else makes
    the answer to one image depend on another."""

    def forward(self, x: Tensor, quiet: bool = False) -> tuple[Tensor, Tensor]:
        """What the heads read (n, width), and what is laid on the unit sphere (n, d).

        `quiet` asks for the latter without dropout after convolutions, as the uniformity loss reads it.
        """
        raise NotImplementedError

    def layers(self) -> dict[str, Layer]:
        """The layers whose inputs are remembered and whose gradients are projected."""
        return layers_of(self)

    def noisy_layers(self) -> list[str]:
        """The layers whose first weights RCL perturbs."""
        return list(self.layers())


class Network(nn.Module):
    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        if fast.on("channels") and _wide(backbone):
            # A step is a quarter to a third faster with the channels last, on CPUs too; the numbers are the same.
            backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.backbone = backbone
        self.heads = nn.ModuleList()
        self.in_bf16 = False  # whether training forwards compute in bfloat16; weights, losses and gradients never are

    def add_head(self, classes: int) -> None:
        like = next(self.backbone.parameters())
        self.heads.append(nn.Linear(self.backbone.width, classes, bias=False, device=like.device, dtype=like.dtype))

    def forward(self, x: Tensor, task: TaskIds, quiet: bool = False) -> Output:
        """Logits of the task's own head, and features, which a `quiet` forward takes without dropout after
        convolutions. With one task per sample, rows of logits are padded with −∞ up to the largest head."""
        if len(parts(x)[0]) < 2 and self._needs_batch_statistics():
            raise TooFewSamples(
                "this network normalizes with the statistics of the batch, which one image does not have; "
                "give it two images or more at a time"
            )
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.in_bf16 and self.training):
            hidden, placed = self.backbone(x, quiet)
            logits = self._logits(hidden, task)
        return Output(logits.to(x.dtype), F.normalize(placed.to(x.dtype), dim=1))

    def _logits(self, hidden: Tensor, task: TaskIds) -> Tensor:
        if isinstance(task, int):
            logits: Tensor = self.heads[task](hidden)
            return logits
        present = sorted(set(task.tolist()))
        widest = max(self._classes(t) for t in present)
        logits = hidden.new_full((len(hidden), widest), -torch.inf)
        for t in present:
            rows = (task == t).nonzero().squeeze(1).to(hidden.device)
            logits[rows, : self._classes(t)] = self.heads[t](hidden[rows])
        return logits

    def _classes(self, task: int) -> int:
        head = self.heads[task]
        assert isinstance(head, nn.Linear)
        return head.out_features

    def _needs_batch_statistics(self) -> bool:
        return any(isinstance(part, nn.BatchNorm1d) and not part.track_running_stats for part in self.modules())

    def weight_names(self) -> dict[str, str]:
        """Remembered layer → its weight's name among the parameters."""
        return {layer: f"backbone.{layer}.weight" for layer in self.backbone.layers()}

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Grow the heads that the saved state has and this network has not yet."""
        while (saved := state_dict.get(f"{prefix}heads.{len(self.heads)}.weight")) is not None:
            self.add_head(len(saved))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _wide(module: nn.Module) -> bool:
    """Whether channels may come last: torch 2.13 corrupts memory in such networks on CPUs when a convolution has fewer
    than eight filters (docs/decisions/004)."""
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    return all(conv.out_channels >= 8 and conv.groups == 1 for conv in convolutions)
