"""Loss and accuracy of a method on held data, and on the batches it learns."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.methods.method import Method
from perdure.types import Split


@dataclass(frozen=True)
class Score:
    loss: float  # mean cross-entropy
    accuracy: float  # percent
    samples: int


class RunningScore:
    """Sums over samples. They stay on their device until someone asks: no step on a GPU waits for them."""

    def __init__(self, loss: float = 0.0, hits: int = 0, samples: int = 0) -> None:
        self.loss: Tensor = torch.tensor(loss, dtype=torch.float64)
        self.hits: Tensor = torch.tensor(hits)
        self.samples = samples

    @torch.no_grad()
    def add(self, logits: Tensor, y: Tensor) -> None:
        """Old images that a method puts behind the new ones do not count."""
        logits = logits[: len(y)]
        self.loss = self.loss.to(y.device) + F.cross_entropy(logits, y, reduction="sum")
        self.hits = self.hits.to(y.device) + (logits.argmax(1) == y).sum()
        self.samples += len(y)

    def score(self) -> Score | None:
        if not self.samples:
            return None
        return Score(float(self.loss) / self.samples, 100 * int(self.hits) / self.samples, self.samples)

    def plain(self) -> dict[str, Any]:
        return {"loss": float(self.loss), "hits": int(self.hits), "samples": self.samples}


@torch.no_grad()
def evaluate(method: Method, split: Split, task: int, batch: int = 64, order: torch.Generator | None = None) -> Score:
    """Evaluation mode, fixed batches in fixed order unless `order` shuffles them: batch norm may couple the images of a
    batch, so the same weights give the same figure only on the same batches."""
    method.eval()
    running, weights = RunningScore(), method.weights(task)
    for x, y in split.batches(batch, order):
        running.add(method.forward(x, task, weights).logits, y)
    score = running.score()
    assert score is not None  # a split has images
    return score


def evaluate_together(
    method: Method, splits: Iterable[tuple[int, Split]], batch: int = 64, order: torch.Generator | None = None
) -> Score:
    """One score over several tasks' splits, every image counting the same."""
    scores = [evaluate(method, split, task, batch, order) for task, split in splits]
    total = sum(score.samples for score in scores)
    loss = sum(score.loss * score.samples for score in scores) / total
    accuracy = sum(score.accuracy * score.samples for score in scores) / total
    return Score(loss, accuracy, total)
