"""Networks that people have: wrapped as they are, protected, or refused in a line."""

import sys
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from zoo import PROTECTION, REFUSED, ZOO, answers, cnn, drift, wrapped

import perdure
from perdure import Plan, learn
from perdure.data.benchmarks.synthetic import synthetic
from perdure.errors import TooFewSamples, WrongValue
from perdure.methods.finetune import FineTune
from perdure.methods.gpm import GPM
from perdure.methods.rcl import RCL
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.nets.resnet18 import ResNet18
from perdure.nets.wrap import coverage, wrap
from perdure.types import EpochStart, Task

SHAPE = (3, 32, 32)
FEW = (
    "own CNN, BatchNorm",
    "Embedding + Linear",
    "tied modules",
    "raw parameters",
    "MultiheadAttention",
    "partly frozen",
)
PLAN = Plan(rate=0.05, epochs=2, batch=16, schedule="constant", keep="last")


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return list(synthetic(seed=1, tasks=3))


def named(name: str) -> Any:
    """One of each kind, and the others in thorough tests."""
    return name if name in FEW else pytest.param(name, marks=pytest.mark.thorough)


@pytest.mark.parametrize("name", [named(name) for name in ZOO if name not in REFUSED])
def test_old_answers_hardly_move(name: str, tasks: list[Task]) -> None:
    """And one image alone is answered as among others, in any order."""
    free, _ = drift(wrapped(name, "finetune", 1), tasks, PLAN, 1)
    method = wrapped(name, "gpm", 1)
    before = {
        part: tensor.clone() for part, tensor in method.net.backbone.named_parameters() if not tensor.requires_grad
    }
    moved, _ = drift(method, tasks, PLAN, 1)
    assert moved < free / 5
    after = dict(method.net.backbone.named_parameters())
    assert all(torch.equal(after[part], tensor) for part, tensor in before.items())

    x, _ = tasks[0].test.take(slice(0, 8))
    together = answers(method, tasks[0], 0)
    with torch.no_grad():
        shuffled = method.forward(x.flip(0), 0).logits.flip(0).softmax(1)
        alone = torch.cat([method.forward(image[None], 0).logits for image in x]).softmax(1)
    assert len(together) == len(tasks[0].test)
    torch.testing.assert_close(alone, shuffled, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["dfgp", "rcl"])
def test_other_projection_methods_protect_them_too(kind: str, tasks: list[Task]) -> None:
    """benchmarks/zoo.py tries them on all networks."""
    name = "MultiheadAttention"
    free, _ = drift(wrapped(name, "finetune", 1), tasks, PLAN, 1)
    moved, _ = drift(wrapped(name, kind, 1), tasks, PLAN, 1)
    assert moved < free / 5


@pytest.mark.parametrize("kind", ["gpm", "dfgp", "rcl"])
def test_what_no_basis_protects_is_refused_before_training_unless_it_is_named(kind: str, tasks: list[Task]) -> None:
    method = wrapped("Embedding of each place", kind, 1)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    with pytest.raises(WrongValue, match=r"hidden.weight cannot be protected: .* free=\['hidden.weight'\]") as error:
        learn(method, tasks[:1], PLAN)
    assert "\n" not in str(error.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())
    assert method.state_dict().keys() == before.keys()
    named = wrap(ZOO["Embedding of each place"](), SHAPE, free=["hidden.weight"])
    learn(type(method)(named), tasks[:1], replace(PLAN, epochs=1))


@pytest.mark.parametrize(("images", "judged"), [(2, True), (1, False)])
def test_two_validation_images_are_the_fewest_it_is_refused_by(images: int, judged: bool, tasks: list[Task]) -> None:
    method = wrapped("Embedding of each place", "gpm", 1)
    valid = replace(tasks[0].valid, x=tasks[0].valid.x[:images], y=tasks[0].valid.y[:images])
    (lesson,) = method.lessons([replace(tasks[0], valid=valid)])
    with pytest.raises(WrongValue, match="cannot be protected") if judged else nullcontext():
        method.check(lesson)


def test_a_new_network_is_judged_by_the_statistics_of_the_images(tasks: list[Task]) -> None:
    """With its own, which are nobody's yet, hardly anything of the images may arrive at the last layers."""
    torch.manual_seed(1)
    blocks = [nn.Sequential(nn.Conv2d(n, 4, 1, bias=False), nn.BatchNorm2d(4)) for n in (3, *[4] * 29)]
    for block in blocks:
        nn.init.normal_(block[0].weight, std=0.02)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(4), *blocks, nn.Flatten(), nn.Linear(64, 3))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    method = GPM(wrap(model, SHAPE)).eval()
    (lesson,) = method.lessons(tasks[:1])
    method.check(lesson)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert not any(part.training for part in method.modules())


def test_a_basis_reaches_its_share_with_the_first_task() -> None:
    """A single direction may hold more than that; published networks have the released rule, which stays below."""
    inputs = torch.ones(8, 16) + 1e-3 * torch.rand(8, 16)
    for net, held in ((wrap(nn.Sequential(nn.Flatten(), nn.Linear(3072, 8)), SHAPE), 1), (Network(MLP(SHAPE)), 0)):
        method = GPM(net)
        method.remember({"layer": inputs}, 0.97)
        assert method.memory.sizes() == {"layer": (held, 8)}


def roles(net: Network) -> dict[str, str]:
    assert net.coverage is not None
    return {part.name.removeprefix("model."): part.role for part in net.coverage.parts}


def test_every_parameter_and_buffer_has_a_role() -> None:
    found = roles(wrap(ZOO["timm ViT"](), SHAPE))
    assert found["cls_token"] == found["pos_embed"] == found["blocks.0.norm1.weight"] == "fixed"
    assert found["patch_embed.weight"] == found["blocks.3.qkv.weight"] == "projected"
    assert found["head.weight"] == "frozen"  # replaced by heads of tasks
    found = roles(wrap(ZOO["MultiheadAttention"](), SHAPE))
    assert found["attention.in_proj_weight"] == found["encoder.self_attn.out_proj.weight"] == "projected"
    found = roles(wrap(ZOO["raw parameters"](), SHAPE))
    assert (found["raw"], found["product"]) == ("projected", "fixed")
    found = roles(wrap(ZOO["partly frozen"](), SHAPE))
    assert (found["0.weight"], found["1.running_mean"], found["6.running_mean"]) == ("frozen", "frozen", "per task")
    net = wrap(ZOO["unused layer"](), SHAPE)
    assert roles(net)["spare.weight"] == "fixed"
    assert "spare.weight" in str(net.coverage)
    assert "not used in a forward" in str(net.coverage)


def test_what_is_allowed_to_move_by_name_is_unprotected_and_moves(tasks: list[Task]) -> None:
    method = GPM(wrap(ZOO["timm ViT"](), SHAPE, free=["cls_token"]), **PROTECTION)
    assert roles(method.net)["cls_token"] == "unprotected"
    learned = learn(method, tasks[:1], PLAN)
    token = method.net.backbone.model.cls_token
    position = method.net.backbone.model.pos_embed
    before = token.detach().clone(), position.detach().clone()
    learn(method, tasks[1:2], PLAN, learned=learned)
    assert not torch.equal(token, before[0])
    assert torch.equal(position, before[1])


def test_wrapping_changes_nothing_of_the_module() -> None:
    model = ZOO["partly frozen"]().train()
    before = deepcopy(model)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    net = wrap(model, SHAPE)
    assert torch.equal(torch.get_rng_state(), state)
    for (name, old), (same, new) in zip(before.state_dict().items(), model.state_dict().items(), strict=True):
        assert name == same
        assert torch.equal(old, new)
        assert old.stride() == new.stride()
    flags = [parameter.requires_grad for parameter in before.parameters()]
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert [part.training for part in model.modules()] == [part.training for part in before.modules()]
    assert net.backbone.model is model


def test_given_weights_get_no_noise_unless_they_are_said_to_be_fresh(tasks: list[Task]) -> None:
    (lesson,) = RCL(wrap(cnn(nn.BatchNorm2d), SHAPE)).lessons(tasks[:1])
    for fresh in (False, True):
        model = cnn(nn.BatchNorm2d)
        before = model[0].weight.detach().clone()
        RCL(wrap(model, SHAPE, fresh=fresh), phi_steps=20).begin(lesson)
        assert torch.equal(model[0].weight, before) is not fresh


def test_the_head_that_was_there_may_be_the_first() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 16), nn.ReLU(), nn.Linear(16, 3))
    net = wrap(model, SHAPE, keep_head=True)
    net.add_head(3)
    net.add_head(2)
    x = torch.rand(4, *SHAPE)
    torch.testing.assert_close(net.eval()(x, 0).logits, model(x))
    assert net(x, 1).logits.shape == (4, 2)
    other = wrap(deepcopy(model), SHAPE, keep_head=True)
    other.load_state_dict(net.state_dict())  # heads grow, the first with its bias
    torch.testing.assert_close(other.eval()(x, 0).logits, model(x))
    with pytest.raises(WrongValue, match="has 3 classes and the first task 5"):
        wrap(deepcopy(model), SHAPE, keep_head=True).add_head(5)


def test_heads_are_found_named_or_absent() -> None:
    assert wrap(ZOO["resnet18"](), SHAPE).backbone.head == "fc"
    features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = wrap(features, SHAPE)
    assert (net.backbone.head, net.backbone.width) == ("", 8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 16), nn.ReLU(), nn.Linear(16, 3), nn.LogSoftmax(1))
    assert wrap(model, SHAPE).backbone.width == 3  # its output is no linear layer's
    assert wrap(model, SHAPE, head="3").backbone.width == 16


class Wordy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3072, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.fc(x.flatten(1))}


class Tangled(Wordy):
    def forward(self, x: Tensor) -> list[Tensor]:  # type: ignore[override]
        return [self.fc(x.flatten(1))]


REFUSED = {
    "needs no wrapping": lambda: wrap(ResNet18(SHAPE), SHAPE),
    "a torch module, not str": lambda: wrap("resnet18", SHAPE),  # type: ignore[arg-type]
    "no parameters to train": lambda: wrap(nn.Flatten(), SHAPE),
    "as in (3, 224, 224), not (32, 32)": lambda: wrap(nn.Linear(2, 2), (32, 32)),
    "cannot take images of shape (3, 32, 32): mat1": lambda: wrap(nn.Sequential(nn.Flatten(), nn.Linear(7, 2)), SHAPE),
    "features of shape (n, d), and the module gives (2, 8, 30, 30)": lambda: wrap(nn.Conv2d(3, 8, 3), SHAPE),
    "returns list, not a tensor": lambda: wrap(Tangled(), SHAPE),
    "head='0' is not a linear layer": lambda: wrap(nn.Sequential(nn.Flatten(), nn.Linear(3072, 2)), SHAPE, head="0"),
    "for any other module: perdure.wrap": lambda: Network(nn.Linear(2, 2)),  # type: ignore[arg-type]
    "give the shape of its images": lambda: coverage(nn.Linear(2, 2)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_wrapped_is_refused_in_a_line(words: str) -> None:
    with pytest.raises(WrongValue) as error:
        REFUSED[words]()
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_logits_may_be_inside_an_answer() -> None:
    assert wrap(Wordy(), SHAPE).backbone.width == 3072


def test_one_image_has_no_batch_statistics() -> None:
    """Under any batch norm: a residual network would take it, and answer at random."""
    net = Network(ResNet18(SHAPE, filters=4))
    net.add_head(2)
    with pytest.raises(TooFewSamples, match="give it two images or more"):
        net.eval()(torch.rand(1, *SHAPE), 0)
    stored = Network(ResNet18(SHAPE, filters=4), statistics="task")
    stored.add_head(2)
    assert stored.eval()(torch.rand(1, *SHAPE), 0).logits.shape == (1, 2)


def test_a_mean_over_all_batches_begins_anew_with_each_task(tasks: list[Task]) -> None:
    method = FineTune(wrap(cnn(lambda channels: nn.BatchNorm2d(channels, momentum=None)), SHAPE))
    learn(method, tasks[:2], PLAN)
    norm = method.net.backbone.model[1]
    steps = 2 * -(-len(tasks[1].train) // 16)
    assert int(norm.num_batches_tracked) == steps


def test_statistics_are_those_of_the_task_that_is_asked_about(tasks: list[Task]) -> None:
    method = FineTune(wrap(cnn(nn.BatchNorm2d), SHAPE))
    learn(method, tasks[:2], PLAN)
    running = method.net.backbone.model[1].running_mean
    kept = [method.net.statistics_of(task)["backbone.model.1.running_mean"] for task in (0, 1)]
    assert torch.equal(kept[1], running)
    assert not torch.equal(kept[0], running)
    seen: list[Tensor] = []
    hook = method.net.backbone.model[1].register_forward_pre_hook(
        lambda norm, _: seen.append(norm.running_mean.clone())
    )
    x, _ = tasks[0].test.take(slice(0, 4))
    method.eval()
    with torch.no_grad():
        method.forward(x, 0)
        method.forward(x, 1)
    hook.remove()
    assert torch.equal(seen[0], kept[0])
    assert torch.equal(seen[1], kept[1])


def test_stored_statistics_are_saved_and_loaded_with_a_run(tmp_path: Path) -> None:
    record = perdure.run("gpm", "synthetic", tasks=2, plan={"epochs": 1, "statistics": "task"}, out=tmp_path)
    loaded = perdure.load(record)
    x = loaded.tasks[0].test.x
    one, many = loaded.predict(x[:1], task=0), loaded.predict(x, task=0)
    torch.testing.assert_close(one.probabilities[0], many.probabilities[0], rtol=0, atol=1e-5)
    right = [
        name == many.names[label] for name, label in zip(many.classes, loaded.tasks[0].test.y.tolist(), strict=True)
    ]
    assert 100 * sum(right) / len(right) == pytest.approx(record["accuracy_matrix"][-1][0])


class Broken(GPM):
    """Fails in the second epoch of the second task."""

    def begin_epoch(self, start: EpochStart) -> None:
        super().begin_epoch(start)
        if len(self.net.heads) > 1 and start.epoch == 1:
            raise RuntimeError("the power is gone")


def test_a_lesson_that_fails_leaves_everything_as_it_was(tasks: list[Task]) -> None:
    method = Broken(wrap(cnn(nn.BatchNorm2d), SHAPE))
    learned = learn(method, tasks[:1], PLAN)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the power is gone"):
            learn(method, tasks[1:2], PLAN, learned=deepcopy(learned))
    assert method.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())


def test_a_task_is_not_learned_twice_and_another_size_is_refused(tasks: list[Task]) -> None:
    method = GPM(wrap(nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), nn.ReLU(), nn.Linear(8, 3)), SHAPE))
    (lesson,) = method.lessons(tasks[:1])
    perdure.fit(method, lesson, PLAN, 1)
    with pytest.raises(WrongValue, match="task 1 has been learned already"):
        perdure.fit(method, lesson, PLAN, 1)
    half = F.avg_pool2d(tasks[1].train.pixels(slice(None)), 2)
    small = perdure.data.task_from("small", (half, tasks[1].train.y))
    _, second = method.lessons([tasks[0], small])
    with pytest.raises(WrongValue, match=r"cannot take images of shape \(3, 16, 16\)"):
        perdure.fit(method, second, PLAN, 1)
    assert len(method.net.heads) == 1


def test_learned_tasks_hold_no_training_images(tasks: list[Task]) -> None:
    learned = learn(GPM(wrap(cnn(nn.BatchNorm2d), SHAPE)), tasks[:2], PLAN)
    assert [len(task.train) for task in learned.tasks] == [0, 0]
    assert [task.train.x.untyped_storage().nbytes() for task in learned.tasks] == [0, 0]
    assert [len(task.test) for task in learned.tasks] == [len(task.test) for task in tasks[:2]]
