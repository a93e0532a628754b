"""The scores of the published runs, from their accuracy matrices."""

import json
from typing import Any

import pytest

from perdure.ops.metrics import average_accuracy, backward_transfer, learning_accuracy

from .golden import FOLDER

RUNS = json.loads((FOLDER / "published_runs.json").read_text())["runs"]
HALF_A_DIGIT = 0.0005 + 1e-9  # the recomputed figures are stored with three decimals
LOGGED = 0.05  # the logs print scores of unrounded accuracies, but matrices with one decimal


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run['method']}-{run['dataset']}-{run['seed']}")
def test_scores(run: dict[str, Any]) -> None:
    matrix, exact, printed = (
        run[key] for key in ("accuracy_matrix_lower_triangle", "recomputed_from_rounded_matrix", "printed")
    )
    assert average_accuracy(matrix) == pytest.approx(exact["ACC"], abs=HALF_A_DIGIT)
    assert backward_transfer(matrix) == pytest.approx(exact["BWT_over_T_minus_1"], abs=HALF_A_DIGIT)
    assert learning_accuracy(matrix) == pytest.approx(exact["mean_diagonal"], abs=HALF_A_DIGIT)
    assert average_accuracy(matrix) == pytest.approx(printed["ACC"], abs=LOGGED)
    assert backward_transfer(matrix) == pytest.approx(printed["BWT"], abs=LOGGED)


def test_the_other_divisor_is_told_apart() -> None:
    """FS-DGPM and API divide backward transfer by T: not this score, and the tolerance sees it."""
    scores = [(run["accuracy_matrix_lower_triangle"], run["recomputed_from_rounded_matrix"]) for run in RUNS]
    moved = [(matrix, exact["BWT_over_T"]) for matrix, exact in scores if abs(exact["BWT_over_T"]) > 0.1]
    assert moved, "no run with transfer, so nothing would be told apart"
    for matrix, over_all in moved:
        assert backward_transfer(matrix) != pytest.approx(over_all, abs=HALF_A_DIGIT)
