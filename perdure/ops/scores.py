"""Figures of merit, read from an accuracy matrix: row t, column i is the accuracy on task i after lesson t, in percent.

Rows may stop at the diagonal. Plain Python, so that reports need no torch.
"""

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
