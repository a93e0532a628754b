"""Layer inputs, bases and projection against slow, obvious twins."""

import pytest
import torch
from torch import Tensor, nn

from perdure import fast
from perdure.memory.gradient_memory import GradientMemory
from perdure.ops.layers import Layer, LayerInput, columns, layer_inputs, layers_of, representations
from perdure.ops.subspace import extend, extended, project

CONVOLUTIONS = {
    "plain": {},
    "stride": {"stride": 2},
    "padding": {"padding": (1, 2)},
    "dilation": {"dilation": 2},
    "groups": {"groups": 2},
    "same": {"padding": "same", "dilation": (1, 3)},
    "valid": {"padding": "valid"},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "replicate": {"padding": 2, "padding_mode": "replicate"},
    "circular": {"padding": 1, "padding_mode": "circular"},
    "all": {"stride": (2, 1), "padding": (2, 1), "dilation": (1, 2), "groups": 2},
}


@pytest.mark.filterwarnings("ignore:Using padding=.same.")  # torch pads a copy for even kernels, and says so
@pytest.mark.parametrize("values", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_weight_rows_times_columns_are_the_convolution(values: dict[str, object]) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 6, (3, 2), bias=False, **values).double()
    x = torch.randn(5, 4, 9, 8, dtype=torch.float64)
    per_group = columns(x, conv)  # (d, groups · n · positions)
    expected = conv(x)
    n, out, *size = expected.shape
    blocks = per_group.reshape(len(per_group), conv.groups, -1)
    rows = conv.weight.reshape(conv.groups, out // conv.groups, -1)
    found = torch.einsum("god,dgp->gop", rows, blocks).reshape(out, n, *size).transpose(0, 1)
    torch.testing.assert_close(found, expected)


def test_linear_columns_take_any_number_of_leading_dimensions() -> None:
    x = torch.randn(2, 3, 5)
    assert torch.equal(columns(x, nn.Linear(5, 4)), x.reshape(6, 5).T)


def test_layer_inputs_meet_every_layer_and_leave_no_hook() -> None:
    shared = nn.Linear(4, 4)
    net = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), shared, nn.ReLU(), shared)
    x = torch.randn(3, 1, 2, 2)
    inputs = layer_inputs(net, lambda: net(x))
    assert list(inputs) == ["0", "2"] == list(layers_of(net))
    assert torch.equal(inputs["0"].x[0], x)
    assert inputs["2"].columns().shape == (4, 6)  # used twice
    with pytest.raises(ZeroDivisionError):
        layer_inputs(net, lambda: 1 / 0)
    assert not any(part._forward_pre_hooks for part in net.modules())


def test_where_no_count_is_given_columns_come_from_as_many_images_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.ops.layers.COLUMNS", 10)
    layers = {"named": nn.Conv2d(2, 1, 2), "other": nn.Conv2d(2, 1, 2), "linear": nn.Linear(5, 1)}
    inputs = {"named": torch.randn(20, 2, 2, 4), "other": torch.randn(20, 2, 2, 4), "linear": torch.randn(20, 5)}
    received = {name: LayerInput(Layer.of(layers[name]), [x]) for name, x in inputs.items()}
    found = representations(received, {"named": 5})
    shapes = {name: tuple(r.shape) for name, r in found.items()}
    assert shapes == {"named": (8, 15), "other": (8, 12), "linear": (5, 10)}  # three positions an image, or one
    assert torch.equal(found["other"], columns(inputs["other"][:4], layers["other"]))


def slow_extend(basis: Tensor | None, r: Tensor, threshold: float) -> Tensor:
    """The rule as it is told, one direction at a time, by a full singular value decomposition."""
    energy = float(r.square().sum())
    if basis is None:
        u, s, _ = torch.linalg.svd(r, full_matrices=False)
        held, count = 0.0, 0
        for value in s:
            held += float(value**2) / energy
            if held >= threshold:
                break
            count += 1
        return u[:, :count]
    rest = r - basis @ basis.T @ r
    u, s, _ = torch.linalg.svd(rest, full_matrices=False)
    held = (energy - float(rest.square().sum())) / energy
    new = []
    for i, value in enumerate(s):
        if held >= threshold or basis.shape[1] + len(new) == len(r):
            break
        held += float(value**2) / energy
        new.append(u[:, i])
    return torch.stack([*basis.T, *new]).T if new or basis.shape[1] else basis


@pytest.mark.parametrize("shape", [(12, 40), (30, 11), (20, 20)])
@pytest.mark.parametrize("threshold", [0.5, 0.9, 0.97, 0.995])
def test_extend_equals_its_slow_twin(shape: tuple[int, int], threshold: float) -> None:
    torch.manual_seed(shape[0])
    d, n = shape
    fast: Tensor | None = None
    slow: Tensor | None = None
    for _ in range(3):
        r = torch.randn(d, d, dtype=torch.float64) * 0.7 ** torch.arange(d) @ torch.randn(d, n, dtype=torch.float64)
        fast, slow = extend(fast, r, threshold), slow_extend(slow, r, threshold)
        assert fast.shape == slow.shape
        torch.testing.assert_close(fast @ fast.T, slow @ slow.T, atol=1e-9, rtol=0)
        torch.testing.assert_close(fast.T @ fast, torch.eye(fast.shape[1]).double(), atol=1e-9, rtol=0)


def test_first_basis_stays_below_the_threshold_and_later_ones_reach_it() -> None:
    r = torch.diag(torch.tensor([3.0, 2.0, 1.0, 1.0]))  # energies 9, 4, 1, 1 of 15
    assert extend(None, r, 0.9).shape == (4, 2)
    assert extend(torch.empty(4, 0), r, 0.9).shape == (4, 3)
    assert extend(None, r, 0.5).shape == (4, 0)


def test_a_threshold_that_is_met_exactly() -> None:
    """Energies 4, 1, 1, 1, 1 of 8: after two directions the share is 5/8, neither below it nor short of it."""
    r = torch.diag(torch.tensor([2.0, 1.0, 1.0, 1.0, 1.0]))
    assert extend(None, r, 5 / 8).shape == (5, 1)
    assert extend(torch.empty(5, 0), r, 5 / 8).shape == (5, 2)
    assert extend(torch.eye(5)[:, :1], r, 4 / 8).shape == (5, 1)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5)])
@pytest.mark.parametrize("plain", ["", "gram"])
def test_every_new_direction_comes_with_its_share(shape: tuple[int, int], plain: str) -> None:
    r = torch.zeros(shape, dtype=torch.float64)
    r[:4, :4] = torch.diag(torch.tensor([1.0, 3.0, 1.0, 2.0]))  # energies 1, 9, 1, 4 of 15
    with fast.without(plain):
        basis, shares = extended(None, r, 0.9)
        assert basis.abs().argmax(0).tolist() == [1, 3]
        torch.testing.assert_close(shares, torch.tensor([9 / 15, 4 / 15]).double())
        basis, shares = extended(basis[:, 1:], r, 0.9)  # which has the second of them already
        assert basis.abs().argmax(0).tolist()[:2] == [3, 1]
        torch.testing.assert_close(shares, torch.tensor([9 / 15, 1 / 15]).double())


def test_a_layer_that_receives_nothing_but_zeros_needs_no_direction() -> None:
    basis = torch.eye(4)[:, :1]
    assert extend(None, torch.zeros(4, 6), 0.9).shape == (4, 0)
    assert torch.equal(extend(basis, torch.zeros(4, 6), 0.9), basis)


def test_a_full_threshold_takes_no_direction_that_is_not_there() -> None:
    torch.manual_seed(0)
    for d, n in ((6, 9), (9, 6)):
        r = torch.randn(d, 2).double() @ torch.randn(2, n).double()
        for plain in ("", "gram"):
            with fast.without(plain):
                assert extend(r[:, :0], r, 1.0).shape == (d, 2)


def test_projection_leaves_nothing_in_the_basis_and_all_outside_it() -> None:
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(18, 5, dtype=torch.float64))[0]
    g = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    left = project(g, basis)
    assert left.shape == g.shape
    dense = torch.eye(18, dtype=torch.float64) - basis @ basis.T
    torch.testing.assert_close(left.reshape(4, -1), g.reshape(4, -1) @ dense)
    assert (left.reshape(4, -1) @ basis).abs().max() < 1e-12


def test_memory_survives_saving_whatever_its_sizes() -> None:
    memory = GradientMemory()
    memory["s1b1.conv1"] = torch.eye(4)[:, :2]
    memory["fc"] = torch.empty(3, 0)
    other = GradientMemory()
    other["fc"] = torch.eye(3)
    other.load_state_dict(memory.state_dict())
    assert other.sizes() == {"s1b1.conv1": (2, 4), "fc": (0, 3)}
    assert torch.equal(other["s1b1.conv1"], memory["s1b1.conv1"])


@pytest.mark.parametrize("threshold", [0.9, 0.99, 0.99999, 1.0])
def test_directions_from_gram_matrices(threshold: float) -> None:
    """Over three tasks: the same counts, the same space, and right angles that do not wear off."""
    torch.manual_seed(0)
    tasks = [torch.randn(30, 30) @ torch.diag(0.7 ** torch.arange(30)) @ torch.randn(30, 200) for _ in range(3)]
    quick: Tensor | None = None
    plain: Tensor | None = None
    for task in tasks:
        quick = extend(quick, task.double(), threshold)
        with fast.without("gram"):
            plain = extend(plain, task.double(), threshold)
        assert quick.shape == plain.shape
        torch.testing.assert_close(quick @ quick.T, plain @ plain.T, rtol=0, atol=1e-6)
        torch.testing.assert_close(quick.T @ quick, torch.eye(quick.shape[1], dtype=quick.dtype), rtol=0, atol=1e-9)
