"""OWM: projectors that shrink along what layers have received, and gradients that go through them."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perdure.data.benchmarks.synthetic import synthetic
from perdure.methods.finetune import FineTune
from perdure.methods.method import Method
from perdure.methods.owm import OWM
from perdure.nets.alexnet import AlexNet
from perdure.nets.mlp import MLP
from perdure.nets.network import Backbone, Network
from perdure.nets.resnet18 import ResNet18
from perdure.ops.gradients import grad, norm, project
from perdure.ops.layers import Layer
from perdure.train.evaluate import evaluate
from perdure.train.fit import fit
from perdure.train.learn import learn
from perdure.train.plan import Plan
from perdure.types import Batch, EpochStart, Lesson, Stream

PLAN = Plan(rate=0.05, epochs=2, batch=16, schedule="linear", keep="last")

Fresh = Callable[[], Network]


def begun(method: OWM, stream: Stream) -> Lesson:
    """The first lesson, begun."""
    lesson = next(iter(method.lessons(stream)))
    method.net.add_head(3)
    method.begin(lesson)
    method.train()
    return lesson


# --- the clip, which no golden vector reaches -----------------------------------------------------


def test_the_projected_gradient_is_clipped_and_a_short_one_is_left_alone(fresh_net: Fresh, stream: Stream) -> None:
    found = {}
    for limit in (1e6, 0.01):
        method = OWM(fresh_net(), clip=limit)
        torch.manual_seed(0)
        batch = begun(method, stream).sample(16)
        found[limit] = method.gradient(batch)
    free, clipped = found[1e6], found[0.01]
    assert norm(free) > 0.02
    assert float(norm(clipped)) == pytest.approx(0.01, rel=1e-3)
    factor = 0.01 / (float(norm(free)) + 1e-6)
    assert free.keys() == clipped.keys()
    for name, slope in free.items():  # one factor over all tensors, heads and batch norm, too
        torch.testing.assert_close(clipped[name], slope * factor)


# --- what a projector sees, and when --------------------------------------------------------------


def test_the_regularizer_falls_with_the_share_of_the_lesson(
    fresh_net: Fresh, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[float] = []

    def spy(projector: Tensor, inputs: Tensor, regularizer: float, out: Tensor) -> Tensor:  # noqa: ARG001
        met.append(regularizer)
        return projector

    monkeypatch.setattr("perdure.methods.owm.update", spy)
    method = OWM(fresh_net(), regularizer=2.0)
    lesson = next(iter(method.lessons(stream)))
    fit(method, lesson, PLAN, seed=1)
    layers, n = 5, len(lesson)
    starts = [(epoch + first / n) / 2 for epoch in range(2) for first in range(0, n, 16)]
    assert len(met) == layers * len(starts)
    for place, decay in enumerate((1e-5, 1e-5, 1e-5, 1e-4, 1e-2)):
        assert met[place::layers] == pytest.approx([2.0 * decay**share for share in starts])


def test_the_regularizer_comes_to_its_end_where_a_lesson_stops_early(stream: Stream) -> None:
    class Worse(OWM):
        penalty = staticmethod(iter(range(100)).__next__)  # the validation loss rises with every epoch

    method = Worse(Network(MLP(stream.shape, units=(8,))))
    lesson = next(iter(method.lessons(stream)))
    found: list[float] = []
    update = method.update_projectors
    method.update_projectors = lambda inputs: (found.append(method.fallen), update(inputs))[1]  # type: ignore[method-assign]
    history = fit(method, lesson, Plan(rate=0.02, epochs=50, batch=90, patience=2, factor=2, floor=0.004), seed=1)
    assert len(history) == 7  # of 50: a best one, and two at each of three rates
    assert found == [0, 0, 0, 0.5, 0.5, 1, 1]


def test_a_new_lesson_starts_with_the_first_regularizer_and_the_old_projectors(
    fresh_net: Fresh, stream: Stream
) -> None:
    method = OWM(fresh_net())
    first, second = method.lessons(stream)
    fit(method, first, PLAN, seed=1)
    held = {name: p.clone() for name, p in method.projectors.items()}
    method.net.add_head(3)
    method.begin(second)
    assert (method.epochs, method.seen) == (0, 0)
    method.train()
    method.gradient(second.sample(16))
    for name, old in held.items():  # P only ever shrinks
        assert float(torch.linalg.eigvalsh(old - method.projectors[name])[0]) > -1e-9
        assert float(method.projectors[name].trace()) < float(old.trace())


@pytest.mark.parametrize(
    ("backbone", "expected"),
    [
        (AlexNet, {"conv1": 1e-5, "conv2": 1e-5, "conv3": 1e-5, "fc1": 1e-4, "fc2": 1e-2}),
        (lambda shape: MLP(shape, units=(9, 8, 7)), {"hidden.0": 1e-4, "hidden.1": 1e-2, "hidden.2": 1e-2}),
    ],
)
def test_decays_by_kind_of_layer(backbone: Callable[..., Backbone], expected: dict[str, float]) -> None:
    assert OWM(Network(backbone((3, 32, 32)))).decays() == expected
    assert set(OWM(Network(ResNet18((3, 32, 32)))).decays().values()) == {1e-5}


def test_patches_at_the_layers_stride_or_at_another(fresh_net: Fresh) -> None:
    method = OWM(fresh_net())
    layer = Layer.of(nn.Conv2d(2, 3, 3, padding=1))
    assert layer is not None
    x = torch.randn(1, 2, 8, 8)
    assert method.patches(x, layer).shape == (18, 64)
    method.patch_stride = 2
    every_second = method.patches(x, layer)
    method.patch_stride = None
    assert torch.equal(every_second, method.patches(x, layer).view(18, 8, 8)[:, ::2, ::2].reshape(18, 16))
    assert layer.stride == (1, 1)
    method.patch_stride = 2
    linear = Layer.of(nn.Linear(5, 4))
    assert linear is not None
    assert method.patches(torch.randn(1, 5), linear).shape == (5, 1)


def test_one_forward_gives_gradient_and_inputs(stream: Stream) -> None:
    """Dropout included: the inputs are those that the gradient was taken with."""
    torch.manual_seed(0)
    net = Network(AlexNet((3, 32, 32), filters=(8, 8, 8), units=(32, 32)))
    method, calls = OWM(net), []
    batch = begun(method, stream).sample(16)
    net.backbone.register_forward_hook(lambda *_: calls.append(1))
    torch.manual_seed(3)
    loss, inputs = method.loss_and_inputs(batch)
    gradient = grad(loss, method.trainable())
    assert len(calls) == 1
    torch.manual_seed(3)
    expected = Method.gradient(method, batch)
    assert all(torch.equal(slope, expected[name]) for name, slope in gradient.items())
    assert (inputs["fc2"].x[0] == 0).float().mean() > 0.5  # half of what ReLU left is dropped


# --- what moves -----------------------------------------------------------------------------------


def test_a_step_hardly_touches_what_was_just_seen(fresh_net: Fresh, stream: Stream) -> None:
    method = OWM(fresh_net(), clip=1e6)
    lesson = begun(method, stream)
    method.begin_epoch(EpochStart(9, 10))
    batch = lesson.sample(16)
    loss, inputs = method.loss_and_inputs(batch)
    raw = grad(loss, method.trainable())
    method.update_projectors(inputs)
    projected = project(raw, method.projections())
    for layer, name in method.net.weight_names().items():
        mean = method.patches(inputs[layer].x[0].mean(0, keepdim=True), inputs[layer].layer)
        before, after = ((slope[name].flatten(1) @ mean).norm() for slope in (raw, projected))
        assert after < 0.1 * before, layer
    heads = {name for name in raw if name.startswith("heads.")}
    assert heads
    assert all(torch.equal(raw[name], projected[name]) for name in heads)


def test_batch_norm_moves_in_the_first_lesson_only(fresh_net: Fresh, stream: Stream) -> None:
    method = OWM(fresh_net())
    first, second = method.lessons(stream)
    norms = {name: p for name, p in method.net.named_parameters() if ".bn" in name}
    start = {name: p.detach().clone() for name, p in norms.items()}
    fit(method, first, PLAN, seed=1)
    after = {name: p.detach().clone() for name, p in norms.items()}
    assert any(not torch.equal(start[name], after[name]) for name in norms)
    fit(method, second, PLAN, seed=1)
    assert all(torch.equal(after[name], p) for name, p in norms.items())


@pytest.mark.thorough  # checks.py shows that what is remembered is answered as before
def test_it_forgets_less_than_plain_training() -> None:
    stream, change = synthetic(seed=1, tasks=4, size=16), {}
    plan = Plan(rate=0.1, epochs=10, batch=16, schedule="linear", keep="last")
    for maker in (FineTune, OWM):
        learned = learn(maker(Network(MLP((3, 16, 16)))), stream, plan)
        change[maker] = learned.bwt
        assert min(learned.matrix[task][task] for task in range(4)) > 60  # a third is chance
    assert change[FineTune] < -4
    assert change[OWM] > -1


# --- state, other networks and lessons ------------------------------------------------------------


@pytest.mark.thorough
def test_it_goes_on_from_its_state_bit_for_bit(fresh_net: Fresh) -> None:
    stream = synthetic(seed=1, tasks=3)
    method, other = OWM(fresh_net()), OWM(fresh_net())
    first, second, third = method.lessons(stream)
    for lesson in (first, second):
        fit(method, lesson, PLAN, seed=1)
    other.load_state_dict({name: tensor.clone() for name, tensor in method.state_dict().items()})
    for one in (method, other):
        fit(one, third, PLAN, seed=1)
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in method.state_dict().items())
    assert {p.dtype for _, p in other.projectors.items()} == {torch.float64}


def test_it_holds_a_square_matrix_a_layer(fresh_net: Fresh, stream: Stream) -> None:
    method = OWM(fresh_net())
    assert method.memory_bytes() == {"bases": 0}
    method.gradient(begun(method, stream).sample(16))
    widths = [layer.weight[0].numel() for layer in method.net.backbone.layers().values()]
    assert method.memory_bytes() == {"bases": 8 * sum(width**2 for width in widths)}
    free = method.facts()["free"]
    assert free.keys() == method.net.backbone.layers().keys()
    assert all(0 < share < 1 for share in free.values())


class Grouped(Backbone):
    """A grouped convolution, and a linear layer on positions, which is used twice; one layer is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=8)
        self.grouped = nn.Conv2d(8, 8, 2, groups=4)
        self.linear = nn.Linear(8, 8)
        self.unused = nn.Linear(4, 4)
        self.width = 8

    def forward(self, x: Tensor, quiet: bool = False) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        x = F.relu(self.grouped(F.relu(self.conv(x)))).flatten(2).transpose(1, 2)  # (n, positions, 8)
        x = F.relu(self.linear(F.relu(self.linear(x)))).mean(1)
        return x, x


@pytest.mark.thorough
@pytest.mark.parametrize("backbone", [lambda: ResNet18((3, 32, 32), filters=8), Grouped])
def test_it_runs_on_other_networks(backbone: Callable[[], Backbone], stream: Stream) -> None:
    torch.manual_seed(0)
    method = OWM(Network(backbone()))
    for lesson in method.lessons(stream):
        fit(method, lesson, PLAN, seed=1)
    assert set(method.projectors) == method.net.backbone.layers().keys() - {"unused"}
    assert evaluate(method, stream.tasks[1].test, 1).loss > 0


def test_a_lesson_may_be_of_several_tasks_and_precision_may_be_double(stream: Stream) -> None:
    torch.manual_seed(0)
    method = OWM(Network(MLP((3, 32, 32))))
    first, second = method.lessons(stream)
    fit(method, Lesson(0, (*first.parts, *second.parts)), PLAN, seed=1)
    double = OWM(Network(MLP((3, 32, 32))).double())
    batch = begun(double, stream).sample(8)
    gradient = double.gradient(Batch(batch.x.double(), batch.y, batch.task))
    assert {slope.dtype for slope in gradient.values()} == {torch.float64}
