"""Loss and accuracy of a method on held data."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from perdure.methods.method import Method
from perdure.types import Split


@dataclass(frozen=True)
class Score:
    loss: float  # mean cross-entropy
    accuracy: float  # percent
    samples: int


@torch.no_grad()
def evaluate(method: Method, split: Split, task: int, batch: int = 64) -> Score:
    """Evaluation mode, fixed batches in fixed order: batch norm may couple the images of a batch, so the same weights
    give the same figure only on the same batches."""
    method.eval()
    loss, hits = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
    loss, hits = loss.to(split.y.device), hits.to(split.y.device)
    weights = method.weights(task)
    for x, y in split.batches(batch):
        logits = method.look(x, task, weights).logits
        loss += F.cross_entropy(logits, y, reduction="sum")
        hits += (logits.argmax(1) == y).sum()
    return Score(float(loss) / len(split), 100 * int(hits) / len(split), len(split))


def evaluate_together(method: Method, splits: Iterable[tuple[int, Split]], batch: int = 64) -> Score:
    """One score over several tasks' splits, every image counting the same."""
    scores = [evaluate(method, split, task, batch) for task, split in splits]
    total = sum(score.samples for score in scores)
    loss = sum(score.loss * score.samples for score in scores) / total
    accuracy = sum(score.accuracy * score.samples for score in scores) / total
    return Score(loss, accuracy, total)
