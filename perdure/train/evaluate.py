"""Loss and accuracy of a method on held data."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from perdure.methods.method import Method
from perdure.ops.tally import Tally
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
    tally, weights = Tally(), method.weights(task)
    for x, y in split.batches(batch):
        tally.add(method.forward(x, task, weights).logits, y)
    return score(tally)


def score(tally: Tally) -> Score:
    """Of what was counted, one sample or more."""
    return Score(float(tally.loss) / tally.samples, 100 * int(tally.hits) / tally.samples, tally.samples)


def evaluate_together(method: Method, splits: Iterable[tuple[int, Split]], batch: int = 64) -> Score:
    """One score over several tasks' splits, every image counting the same."""
    scores = [evaluate(method, split, task, batch) for task, split in splits]
    total = sum(score.samples for score in scores)
    loss = sum(score.loss * score.samples for score in scores) / total
    accuracy = sum(score.accuracy * score.samples for score in scores) / total
    return Score(loss, accuracy, total)
