"""Whether a method is as often right as it says."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.ops.calibration import Reliability, brier, by_mass, by_width, reliability
from perdure.ops.metrics import wilson
from perdure.probes.probe import Measured, Probe, Sight, Subject, Work
from perdure.schema import Count


@dataclass(frozen=True)
class Answers:
    """What a method said of some images; double precision, on the CPU."""

    confidence: Tensor  # (n,) the largest probability
    hits: Tensor  # (n,) bool
    nll: Tensor  # (n,)
    brier: Tensor  # (n,)


class Calibration(Probe):
    """Calibration error, likelihood and Brier score on all test images, by task and over all images together.

    Together, a task that is too sure and one that is not sure enough may cancel in a bin, so the tasks' own errors are
    given, too; but these are the larger the fewer images a task has, even for a perfect method.
    """

    def __init__(
        self,
        *,
        bins: Count = 15,  # of confidence, in which it is compared with accuracy
    ) -> None:
        self.bins = bins

    def work(self, subject: Subject) -> Work:
        return Work(looks=subject.images())

    def measure(self, subject: Subject) -> Measured:
        answers = [_answers(subject.sight(task)) for task in range(len(subject.tasks))]
        pooled = _pooled(answers)
        together = self._figures(pooled)
        tasks = [{"name": task.name, **self._figures(of)} for task, of in zip(subject.tasks, answers, strict=True)]
        figures = {"bins": self.bins, "tasks": tasks, "together": together}
        headline = {"ECE": together["ece"], "NLL": together["nll"], "Brier": together["brier"]}
        return Measured(figures, headline, self._arrays([*answers, pooled]))

    def _bins(self, of: Answers) -> Reliability:
        return reliability(of.confidence, of.hits, by_width(of.confidence, self.bins), self.bins)

    def _figures(self, of: Answers) -> dict[str, Any]:
        hits, n = int(of.hits.sum()), len(of.hits)
        accuracy, confidence = 100 * hits / n, 100 * float(of.confidence.mean())
        even = reliability(of.confidence, of.hits, by_mass(of.confidence, self.bins), self.bins)
        return {
            "images": n,
            "ece": 100 * float(self._bins(of).expected_error()),
            "ece_equal_mass": 100 * float(even.expected_error()),
            "nll": float(of.nll.mean()),
            "brier": float(of.brier.mean()),
            "accuracy": accuracy,
            "accuracy_interval": list(wilson(hits, n)),
            "confidence": confidence,
            "overconfidence": confidence - accuracy,
        }

    def _arrays(self, rows: list[Answers]) -> dict[str, Tensor]:
        """One row per task and a last one for all images together; percent but for the count. The interval is
        Wilson's, of the accuracy in a bin."""
        found = [self._bins(of) for of in rows]
        pairs = [list(zip(bins.hits.tolist(), bins.count.tolist(), strict=True)) for bins in found]
        intervals = [[wilson(hits, n) if n else (0.0, 0.0) for hits, n in row] for row in pairs]
        return {
            "count": torch.stack([bins.count for bins in found]),
            "confidence": 100 * torch.stack([bins.confidence for bins in found]),
            "accuracy": 100 * torch.stack([bins.accuracy for bins in found]),
            "interval": torch.tensor(intervals, dtype=torch.float64),
        }


def _answers(sight: Sight) -> Answers:
    parts = []
    for x, y in sight.batches():
        logits, labels = sight.logits(x).cpu().double(), y.cpu()
        probabilities = logits.softmax(1)
        parts.append(
            Answers(
                probabilities.amax(1),
                logits.argmax(1) == labels,
                F.cross_entropy(logits, labels, reduction="none"),
                brier(probabilities, labels),
            )
        )
    return _pooled(parts)


def _pooled(parts: list[Answers]) -> Answers:
    return Answers(
        torch.cat([part.confidence for part in parts]),
        torch.cat([part.hits for part in parts]),
        torch.cat([part.nll for part in parts]),
        torch.cat([part.brier for part in parts]),
    )
