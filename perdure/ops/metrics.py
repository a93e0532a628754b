"""Figures of merit, read from an accuracy matrix: row t, column i is the accuracy on task i after lesson t, in percent.

Rows may stop at the diagonal. Plain Python, so that reports need no torch.
"""

import math
from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def average_accuracy(matrix: Matrix) -> float:
    """ACC: the mean of the last row.

    >>> average_accuracy([[80.0], [70.0, 90.0]])
    80.0
    """
    return sum(matrix[-1]) / len(matrix[-1])


def backward_transfer(matrix: Matrix) -> float | None:
    """BWT: how much tasks 1 … T−1 changed since they were learned, averaged over T−1; None where nothing could change.

    >>> backward_transfer([[80.0], [70.0, 90.0]])
    -10.0
    """
    changes = [last - row[i] for i, (last, row) in enumerate(zip(matrix[-1], matrix[:-1], strict=False))]
    return sum(changes) / len(changes) if changes else None


def learning_accuracy(matrix: Matrix) -> float | None:
    """Mean accuracy on each task just after it was learned; None where tasks were not learned one by one."""
    if len(matrix) != len(matrix[-1]):
        return None
    return sum(row[i] for i, row in enumerate(matrix)) / len(matrix)


def forgetting(matrix: Matrix) -> float | None:
    """Mean fall from each old task's best accuracy ever to its last, never negative for a task.

    >>> forgetting([[80.0], [85.0, 90.0], [70.0, 95.0, 60.0]])
    7.5
    """
    falls = [max(row[i] for row in matrix[i:]) - matrix[-1][i] for i in range(len(matrix) - 1)]
    return sum(falls) / len(falls) if falls else None


def wilson(hits: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's interval for a share of hits among n, in percent, at 95 % if not told otherwise. Unlike the usual one it
    stays within 0 and 100 and does not shrink to a point where nothing or everything was hit.

    >>> [round(bound, 1) for bound in wilson(5, 10)], [round(bound, 1) for bound in wilson(0, 100)]
    ([23.7, 76.3], [0.0, 3.7])
    """
    share = hits / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return 100 * max(0.0, middle - half), 100 * min(1.0, middle + half)
