"""What all probes see of a method."""

import pytest
import torch

from perdure.methods.finetune import FineTune
from perdure.nets.network import Network
from perdure.ops.attacks import Ball, random_signs
from perdure.ops.metrics import wilson
from perdure.probes.probe import Cost, TaskModel, TrainedMethod, accuracy, at_most, interval
from perdure.seeding import generator
from perdure.types import Split

from . import plain


def test_models_are_those_of_all_tasks_and_answer_right_or_wrong(trained: TrainedMethod) -> None:
    models = trained.models("valid", space="normalized")
    assert [model.task for model in models] == [0, 1, 2]
    assert trained.task_names == [task.name for task in trained.tasks]
    model = models[1]
    assert (model.split, model.space, model.bounds) == (trained.tasks[1].valid, "normalized", (-torch.inf, torch.inf))
    x, y = next(iter(model.batches(20)))
    assert model.right(x, y).tolist() == (model.logits(x).argmax(1) == y).tolist()
    assert trained.progress.done == Cost(forwards=40)


def test_images_come_in_the_precision_of_the_network() -> None:
    """Also those that are stored as bytes."""
    net = Network(plain.Tiny()).double()
    net.add_head(2)
    split = Split(torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8), torch.zeros(4, dtype=torch.int64))
    ((x, _),) = TaskModel(FineTune(net), 0, split).batches()
    assert x.dtype == torch.float64
    assert 0 <= float(x.min()) < float(x.max()) <= 1


def test_accuracy_and_its_interval() -> None:
    right = torch.tensor([True, True, False, True])
    assert accuracy(right) == 75
    assert interval(right) == list(wilson(3, 4))
    assert (at_most(10, None), at_most(10, 3), at_most(2, 3)) == (10, 3, 2)


def test_cost_adds_up() -> None:
    assert (Cost(1, 2) + Cost(3, 4)) * 2 == Cost(8, 12)
    assert Cost(1, 2).units == 7


def test_a_step_of_the_ball_ends_at_its_edge_or_at_the_bounds() -> None:
    x, gradient = torch.tensor([[0.5, 0.95]]), torch.tensor([[-3.0, 1e-9]])
    assert Ball("linf", 0.1).step(x, gradient, (0, 1)).tolist()[0] == pytest.approx([0.4, 1.0])
    assert Ball("l2", 0.1).step(x, gradient, (0, 1)).tolist()[0] == pytest.approx([0.4, 0.95])


def test_signs_are_as_likely_as_not() -> None:
    signs = random_signs(torch.zeros(1, dtype=torch.float64), (4000,), generator(0, "signs"))
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert signs.dtype == torch.float64
    assert abs(float(signs.mean())) < 0.05
