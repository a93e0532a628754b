"""Protection in a training loop of one's own, with torch's optimizers."""

import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from zoo import ZOO

import perdure
from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import WrongValue
from perdure.train.projector import Projector

STREAM = synthetic(seed=1, tasks=2)
Batches = list[tuple[Tensor, Tensor]]
LOADERS: list[Batches] = [list(task.train.batches(16)) for task in STREAM.tasks]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Batches, projector: Projector | None) -> None:
    model.train()
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if projector is None:
                optimizer.step()
            elif isinstance(optimizer, torch.optim.SGD):
                projector.project_()
                optimizer.step()
            else:
                projector.step(optimizer)


def moved(name: str, maker: str, protected: bool) -> float:
    """How far the features of the first task's images move while the second is learned."""
    torch.manual_seed(1)
    model = ZOO[name]()
    head = [part for part, _ in model.named_parameters()][-1].removesuffix(".bias")
    projector = Projector(model, heads=[head], threshold=0.99)
    rates = {"SGD": 0.05, "AdamW": 0.001}
    features: list[Tensor] = []
    model.get_submodule(head).register_forward_pre_hook(lambda _, received: features.append(received[0]))
    x = STREAM.tasks[0].test.take(slice(0, 32))[0]
    answers = list[Tensor]()
    for task, loader in enumerate(LOADERS):
        optimizer = getattr(torch.optim, maker)(model.parameters(), rates[maker])
        train(model, optimizer, loader, projector if protected else None)
        projector.observe(loader, task)
        features.clear()
        model.eval()
        with torch.no_grad(), projector.statistics(0):
            model(x)
        answers.append(features[0])
    before, now = answers
    return float((now - before).norm() / before.norm())


@pytest.mark.parametrize("maker", ["SGD", "AdamW"])
@pytest.mark.parametrize("name", ["own CNN, BatchNorm", "timm ViT"])
def test_old_answers_move_less_than_a_twentieth(name: str, maker: str) -> None:
    assert moved(name, maker, protected=True) < moved(name, maker, protected=False) / 20


def test_before_the_first_task_is_observed_nothing_is_changed() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 4))
    projector, optimizer = perdure.Projector(model), torch.optim.SGD(model.parameters(), 0.1)
    F.cross_entropy(model(LOADERS[0][0][0]), LOADERS[0][0][1]).backward()
    gradient = model[1].weight.grad.clone()
    projector.project_()
    assert torch.equal(model[1].weight.grad, gradient)
    expected = model[1].weight.detach() - 0.1 * gradient
    projector.step(optimizer)
    assert torch.allclose(model[1].weight, expected)


def test_an_attached_projector_restricts_every_step_until_it_is_detached() -> None:
    """As `step` does, also where the optimizer itself asks for the loss, as Lightning has it."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 4))
    same = deepcopy(model)
    x, y = LOADERS[1][0]

    def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        """One step; the share of it that lies in the directions of the old task."""

        def loss() -> float:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            return 0.0

        before = model[1].weight.detach().clone()
        optimizer.step(loss)
        moved = model[1].weight.detach() - before
        return float((moved @ projector.memory["1"]).norm() / moved.norm())

    projector, optimizer = Projector(model), torch.optim.AdamW(model.parameters(), 0.01)
    projector.observe(LOADERS[0])
    detach = projector.attach(optimizer)
    assert stepped(model, optimizer) < 1e-4

    other, plain = Projector(same), torch.optim.AdamW(same.parameters(), 0.01)
    other.observe(LOADERS[0])
    F.cross_entropy(same(x), y).backward()
    other.step(plain)
    assert torch.equal(model[1].weight, same[1].weight)

    detach()
    assert stepped(model, optimizer) > 0.01
    assert stepped(same, plain) > 0.01  # `step` leaves nothing behind


def test_a_layer_whose_inputs_have_one_direction_is_protected_too() -> None:
    """The threshold is reached, not stayed below: a single direction may hold all of the energy."""
    projector = Projector(nn.Linear(8, 2))
    projector.observe(torch.ones(16, 8) + 1e-3 * torch.rand(16, 8))
    assert projector.sizes() == {"weight": (1, 8)}


def test_what_is_remembered_can_be_saved(tmp_path: Path) -> None:
    model = ZOO["own CNN, BatchNorm"]()
    projector = Projector(model, heads=["13"])
    projector.observe(LOADERS[0], "first")
    torch.save(projector.state_dict(), tmp_path / "projector.pt")
    again = Projector(model, heads=["13"])
    again.load_state_dict(torch.load(tmp_path / "projector.pt"), LOADERS[0][0])
    update = {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()}
    one, other = projector.allowed(update), again.allowed(update)
    assert one.keys() == other.keys() == {"0.weight", "5.weight", "10.weight", "13.weight", "13.bias"}
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(one["13.weight"], update["13.weight"])
    assert projector.sizes() == again.sizes()
    with pytest.raises(WrongValue, match="no layer 0 to protect"):
        Projector(nn.Linear(4, 2)).load_state_dict(projector.state_dict(), torch.rand(2, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Projector(nn.Linear(2, 2), threshold=1.5), "threshold=1.5: thresholds"),
        (lambda: Projector(nn.Linear(2, 2), heads=["fc"]), "no parameter of the model is called fc…"),
        (lambda: Projector(nn.Linear(2, 2)).observe([]), "nothing to observe"),
        (lambda: Projector(nn.Linear(2, 2)).observe(["text"]), "batches must be tensors, or begin with one, not str"),
        (lambda: Projector(nn.Linear(2, 2)).statistics("x").__enter__(), "task 'x' was not observed"),
    ],
)
def test_mistakes_are_told_in_a_line(make: object, message: str) -> None:
    with pytest.raises(WrongValue, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("good", [{"threshold": 1}, {"step": 0}, {"step": 1}, {"samples": 2}])
def test_the_least_and_the_most_are_allowed(good: dict[str, int]) -> None:
    Projector(nn.Sequential(nn.Linear(3, 2)), **good)


@pytest.mark.parametrize("bad", [{"threshold": 0}, {"threshold": 1.1}, {"step": -0.1}, {"step": 1.1}, {"samples": 1}])
def test_beyond_them_nothing_is(bad: dict[str, float]) -> None:
    with pytest.raises(WrongValue, match=next(iter(bad))):
        Projector(nn.Sequential(nn.Linear(3, 2)), **bad)


def test_two_images_are_the_fewest_to_observe() -> None:
    projector = Projector(nn.Sequential(nn.Linear(3, 2)))
    projector.observe(torch.rand(2, 3))
    with pytest.raises(WrongValue, match="two images or more"):
        projector.observe(torch.rand(1, 3))


def test_what_is_frozen_between_steps_stays_as_it_is_set() -> None:
    """Nothing of an earlier step comes back."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), nn.ReLU(), nn.Linear(8, 4))
    projector, optimizer = Projector(model, heads=["3"]), torch.optim.SGD(model.parameters(), 0.1)
    projector.observe(LOADERS[0], 0)
    projector.attach(optimizer)
    for frozen in (False, True):
        model[1].requires_grad_(not frozen)
        if frozen:
            nn.init.ones_(model[1].weight)
        F.cross_entropy(model(LOADERS[1][0][0]), LOADERS[1][0][1]).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert bool((model[1].weight == 1).all())


def test_statistics_are_kept_by_the_name_of_a_task_or_its_number() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 30 * 30, 4))
    projector = Projector(model, heads=["3"])
    projector.observe(LOADERS[0], "digits")
    projector.observe(LOADERS[1])
    assert list(projector.buffers) == ["digits", 1]


def test_statistics_of_a_task_are_there_for_a_while() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 30 * 30, 4))
    norm, projector = model[1], Projector(model, heads=["3"])
    assert isinstance(norm, nn.BatchNorm2d)
    norm.running_mean = torch.full((4,), 2.0)
    projector.observe(LOADERS[0], "digits")
    norm.running_mean.fill_(5.0)
    with projector.statistics("digits"):
        assert norm.running_mean.tolist() == [2.0] * 4
    assert norm.running_mean.tolist() == [5.0] * 4
