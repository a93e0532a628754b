import json

import pytest
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from rich.console import Console

from perdure.probes.calibration import Calibration, Predictions
from perdure.probes.probe import ProbeResult, TrainedMethod
from perdure.report.probes import Result, calibration
from perdure.train.evaluate import evaluate


@pytest.fixture
def measured(trained: TrainedMethod) -> ProbeResult:
    return Calibration().measure(trained)


def test_cost_is_what_is_counted(trained: TrainedMethod) -> None:
    probe = Calibration(bins=4)
    found = probe.measure(trained)
    assert probe.cost(trained) == trained.progress.done
    assert found.arrays["count"].shape == (4, 4)  # three tasks and all together, four bins
    json.dumps(found.figures, allow_nan=False)


def test_accuracy_and_likelihood_are_those_of_the_record(trained: TrainedMethod, measured: ProbeResult) -> None:
    for number, of_task in enumerate(measured.figures["tasks"]):
        score = evaluate(trained.method, trained.tasks[number].test, number)
        assert of_task["accuracy"] == score.accuracy
        assert of_task["nll"] == pytest.approx(score.loss, rel=1e-5)


def test_answers_are_judged_in_double_precision(trained: TrainedMethod) -> None:
    """A confidence of 1 − 1e-9 is one in single precision; the loss beside it is not 0."""
    found = Calibration().measure(trained)
    model = trained.model(0)
    losses = [F.cross_entropy(model.logits(x).double(), y, reduction="none") for x, y in model.batches()]
    assert found.figures["tasks"][0]["nll"] == pytest.approx(float(torch.cat(losses).mean()), rel=1e-12)


def test_together_counts_every_image_once(measured: ProbeResult) -> None:
    tasks, together = measured.figures["tasks"], measured.figures["together"]
    for name in ("nll", "brier", "accuracy", "confidence", "overconfidence"):  # tasks have equally many images
        assert together[name] == pytest.approx(sum(task[name] for task in tasks) / 3)
    count = measured.arrays["count"]
    torch.testing.assert_close(count[-1], count[:-1].sum(0))
    assert int(count[-1].sum()) == together["images"] == 180


def test_error_follows_from_the_bins(measured: ProbeResult) -> None:
    count, confidence, accuracy, interval = (
        measured.arrays[name] for name in ("count", "confidence", "accuracy", "interval")
    )
    errors = (count * (confidence - accuracy).abs()).sum(1) / count.sum(1)
    found = [task["ece"] for task in measured.figures["tasks"]] + [measured.headline["ECE"]]
    assert errors.tolist() == pytest.approx(found)
    assert abs(measured.figures["together"]["overconfidence"]) <= measured.headline["ECE"] + 1e-9
    some = count > 0
    assert bool((interval[..., 0] <= accuracy + 1e-9)[some].all())
    assert bool((interval[..., 1] >= accuracy - 1e-9)[some].all())
    assert float(confidence[~some].abs().sum() + accuracy[~some].abs().sum() + interval[~some].abs().sum()) == 0


def test_both_errors_by_hand() -> None:
    """Two bins of six answers. By width 0 … 0.5 and 0.5 … 1: two are 0.45 sure on average and none is right, four 0.75
    and three are. By mass: three are 0.5 sure and one is right, three 0.8 and two are."""
    confidence = torch.tensor([0.4, 0.5, 0.6, 0.7, 0.8, 0.9], dtype=torch.float64)
    right = torch.tensor([False, False, True, True, True, False])
    found = Calibration(bins=2)._figures(Predictions(confidence, right, confidence, confidence))
    assert found["ece"] == pytest.approx(100 * (2 * 0.45 + 4 * 0.0) / 6)
    assert found["ece_equal_mass"] == pytest.approx(100 * (3 * (0.5 - 1 / 3) + 3 * (0.8 - 2 / 3)) / 6)
    assert found["overconfidence"] == pytest.approx(65 - 50)


def test_bins_are_as_many_as_those_of_guo_et_al(measured: ProbeResult) -> None:
    assert measured.figures["bins"] == 15
    assert measured.arrays["count"].shape == (4, 15)


def test_tables_fit_and_pictures_are_drawn(measured: ProbeResult) -> None:
    arrays = {name: array.numpy() for name, array in measured.arrays.items()}
    results = [Result(f"{name}, seed 1", {}, measured.figures, arrays) for name in ("finetune", "gpm", "rcl")]
    for some in (results[:1], results):
        console = Console(width=100)
        with console.capture() as printed:
            for part in calibration.tables(some):
                console.print(part)
        assert max(map(len, printed.get().splitlines())) <= 100
        assert "…" not in printed.get().replace("0 … 2", "")
        figure = Figure()
        calibration.draw(figure, some)
        above, _ = figure.axes
        labels = [text.get_text() for text in above.get_legend().get_texts()]
        assert labels == [f"{one.label}: ECE {measured.headline['ECE']:.1f} %" for one in some]
