"""Loss and hits, counted while answers go by."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.types import Batch


class Tally:
    """Sums over samples. They stay where the answers are until someone asks: no step on a GPU waits for them."""

    def __init__(self, loss: float = 0.0, hits: int = 0, samples: int = 0) -> None:
        self.loss: Tensor = torch.tensor(loss, dtype=torch.float64)
        self.hits: Tensor = torch.tensor(hits)
        self.samples = samples

    @torch.no_grad()
    def add(self, logits: Tensor, y: Tensor) -> None:
        self.loss = self.loss.to(y.device) + F.cross_entropy(logits, y, reduction="sum")
        self.hits = self.hits.to(y.device) + (logits.argmax(1) == y).sum()
        self.samples += len(y)

    def plain(self) -> dict[str, Any]:
        return {"loss": float(self.loss), "hits": int(self.hits), "samples": self.samples}


class Running(Tally):
    """Of the answers that a method gives while it learns: every batch counts once, when its loss is first computed.
    Weights move meanwhile and dropout is on, but it costs nothing. Old images that were joined to a batch do not count.
    """

    batch: Batch | None = None

    def expect(self, batch: Batch) -> None:
        """This batch is learned next."""
        self.batch = batch

    def see(self, batch: Batch, logits: Tensor) -> None:
        """A batch was answered; if it is not the one expected, nothing happens."""
        if (expected := self.batch) is not None and (batch is expected or batch.joined_to is expected):
            self.add(logits.detach()[: len(expected)], expected.y)
            self.batch = None
