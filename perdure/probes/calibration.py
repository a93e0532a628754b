"""Whether a method is as often right as it says."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.ops.calibration import Reliability, brier, by_mass, by_width, reliability
from perdure.ops.metrics import wilson
from perdure.probes.probe import Cost, Probe, ProbeResult, TaskModel, TrainedMethod, accuracy, interval
from perdure.schema import Count


class Predictions(NamedTuple):
    """What a method said of some images; double precision, on the CPU."""

    confidence: Tensor  # (n,) the largest probability
    right: Tensor  # (n,) bool
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

    def cost(self, trained: TrainedMethod) -> Cost:
        return Cost(forwards=trained.images())

    def measure(self, trained: TrainedMethod) -> ProbeResult:
        found = [_predictions(model) for model in trained.models()]
        pooled = _joined(found)
        together = self._figures(pooled)
        tasks = [{"name": name, **self._figures(of)} for name, of in zip(trained.task_names, found, strict=True)]
        figures = {"bins": self.bins, "tasks": tasks, "together": together}
        headline = {"ECE": together["ece"], "NLL": together["nll"], "Brier": together["brier"]}
        return ProbeResult(figures, headline, self._arrays([*found, pooled]))

    def _bins(self, of: Predictions) -> Reliability:
        return reliability(of.confidence, of.right, by_width(of.confidence, self.bins), self.bins)

    def _figures(self, of: Predictions) -> dict[str, Any]:
        right, confidence = accuracy(of.right), 100 * float(of.confidence.mean())
        equal_mass = reliability(of.confidence, of.right, by_mass(of.confidence, self.bins), self.bins)
        return {
            "images": len(of.right),
            "ece": 100 * float(self._bins(of).expected_error()),
            "ece_equal_mass": 100 * float(equal_mass.expected_error()),
            "nll": float(of.nll.mean()),
            "brier": float(of.brier.mean()),
            "accuracy": right,
            "accuracy_interval": interval(of.right),
            "confidence": confidence,
            "overconfidence": confidence - right,
        }

    def _arrays(self, rows: list[Predictions]) -> dict[str, Tensor]:
        """One row per task and a last one for all images together; percent but for the count. The interval is
        Wilson's, of the accuracy in a bin."""
        found = [self._bins(of) for of in rows]
        pairs = [zip(bins.hits.tolist(), bins.count.tolist(), strict=True) for bins in found]
        intervals = [[wilson(hits, n) if n else (0.0, 0.0) for hits, n in row] for row in pairs]
        return {
            "count": torch.stack([bins.count for bins in found]),
            "confidence": 100 * torch.stack([bins.confidence for bins in found]),
            "accuracy": 100 * torch.stack([bins.accuracy for bins in found]),
            "interval": torch.tensor(intervals, dtype=torch.float64),
        }


def _predictions(model: TaskModel) -> Predictions:
    parts = []
    for x, y in model.batches():
        logits, labels = model.logits(x).cpu().double(), y.cpu()
        probabilities = logits.softmax(1)
        nll = F.cross_entropy(logits, labels, reduction="none")
        right = logits.argmax(1) == labels
        parts.append(Predictions(probabilities.amax(1), right, nll, brier(probabilities, labels)))
    return _joined(parts)


def _joined(parts: list[Predictions]) -> Predictions:
    return Predictions(*map(torch.cat, zip(*parts, strict=True)))
