"""Several batches in one forward against one forward for each."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from networks import Tracking
from torch import Tensor, nn

from perdure import fast
from perdure.fast import joint_batches
from perdure.fast.function_mode import LearningMode
from perdure.fast.joint_batches import ForwardMode, batch_norm, forward_mode, mode
from perdure.nets.network import Backbone, Network

from .steps import NETS, calls_of


def batches(count: int = 3, rows: int = 5, *shape: int) -> list[Tensor]:
    """As different as batches can be."""
    return [(1 + i) * torch.randn(rows, *(shape or (4,))).double() + 3 * i for i in range(count)]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("count", [2, 4])
def test_joint_batch_norm_is_one_for_each_batch(count: int, layout: torch.memory_format) -> None:
    """Forward, and the gradients of inputs, weight and bias."""
    torch.manual_seed(0)
    x = torch.cat(batches(count, 5, 8, 3, 3)).to(memory_format=layout).requires_grad_()
    weight, bias = torch.randn(8).double().requires_grad_(), torch.randn(8).double().requires_grad_()
    with forward_mode(ForwardMode(rows=5)), calls_of(joint_batches._JointBatchNorm, "apply") as taken:
        found = batch_norm(x, None, None, weight, bias, True, 0.1, 1e-3)
    assert len(taken) == 1
    expected = torch.cat([F.batch_norm(part, None, None, weight, bias, True, 0.1, 1e-3) for part in x.split(5)])
    torch.testing.assert_close(found, expected)
    weighted = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad((found * weighted).sum(), [x, weight, bias]),
        torch.autograd.grad((expected * weighted).sum(), [x, weight, bias]),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    together = F.batch_norm(x, None, None, weight, bias, True, 0.1, 1e-3)
    assert (found - together).abs().max() > 0.1  # as one batch they would be seen otherwise


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("track", [True, False])
def test_modules_keep_batches_and_running_statistics_apart(track: bool, affine: bool) -> None:
    """Running statistics have seen one batch after the other."""
    torch.manual_seed(0)
    values = {"affine": affine, "track_running_stats": track}
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, **values), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(8 * 36, **values)
    ).double()
    twin = deepcopy(net)
    parts = batches(3, 5, 3, 8, 8)
    with LearningMode(), forward_mode(ForwardMode(rows=5)):
        found = net(torch.cat(parts))
    expected = torch.cat([twin(part) for part in parts])
    torch.testing.assert_close(found, expected)
    found.square().mean().backward()
    expected.square().mean().backward()
    for weight, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, other.grad)
    if track:
        for at in (1, 4):
            torch.testing.assert_close(net[at].running_mean, twin[at].running_mean)
            torch.testing.assert_close(net[at].running_var, twin[at].running_var)
        with LearningMode(), forward_mode(ForwardMode(rows=5)):  # what was learned holds for all batches alike
            torch.testing.assert_close(net.eval()(torch.cat(parts)), torch.cat([twin.eval()(part) for part in parts]))


def test_half_precision_keeps_batches_apart() -> None:
    torch.manual_seed(0)
    parts = [part.bfloat16() for part in batches(2, 6, 8)]
    weight, bias = torch.randn(8), torch.randn(8)
    with forward_mode(ForwardMode(rows=6)):
        found = batch_norm(torch.cat(parts), None, None, weight, bias, True)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, torch.cat([F.batch_norm(part, None, None, weight, bias, True) for part in parts]))


def test_one_batch_is_left_to_torch() -> None:
    x, ones, zeros = torch.randn(6, 4), torch.ones(4), torch.zeros(4)
    with calls_of(joint_batches._JointBatchNorm, "apply") as taken:
        assert torch.equal(batch_norm(x, None, None, ones, zeros, True), F.batch_norm(x, None, None, ones, zeros, True))
        with forward_mode(ForwardMode(rows=6)):
            batch_norm(x, None, None, ones, zeros, True)
        with forward_mode(ForwardMode(rows=3)):
            batch_norm(x, zeros, ones, ones, zeros, False)
    assert not taken


# --- which rows have dropout ----------------------------------------------------------------------


def test_rows_fork_once_and_only_after_a_convolution() -> None:
    maps, vectors = torch.empty(6, 2, 3, 3), torch.empty(6, 2)
    forking = ForwardMode(3, "fork")
    assert not forking.forks(vectors)
    assert forking.dropped(maps) == 6
    assert forking.forks(maps)
    doubled = torch.empty(12, 2, 3, 3)
    assert not forking.forks(doubled)
    assert forking.dropped(doubled) == 6  # the first half
    assert forking.dropped(doubled.flatten(1)) == 12  # dropout after linear layers is everybody's
    assert ForwardMode(conv_dropout="off").dropped(maps) == 0
    assert ForwardMode(conv_dropout="off").dropped(vectors) == 6
    assert ForwardMode().dropped(maps) == 6


def test_modes_end_with_their_forward() -> None:
    usual = mode()
    with forward_mode(ForwardMode(3)) as outer:
        with pytest.raises(ZeroDivisionError), forward_mode(ForwardMode(5)):
            _ = 1 / 0
        assert mode() is outer
    assert mode() is usual
    assert usual == ForwardMode()


# --- networks -------------------------------------------------------------------------------------


def network(backbone: Backbone) -> Network:
    net = Network(backbone)
    net.add_head(3)
    return net.double()


@pytest.mark.parametrize("conv_dropout", [True, False])
@pytest.mark.parametrize("name", ["alexnet", "resnet18", "mlp", "tracking"])
def test_joint_forwards_are_separate_ones(name: str, conv_dropout: bool) -> None:
    """Outputs, gradients and running statistics."""
    torch.manual_seed(0)
    net = network(NETS[name]())
    twin, parts = deepcopy(net), batches(2, 6, 3, 32, 32)
    found = net.train()(parts, 0, conv_dropout)
    with fast.without("joint_batches"):
        expected = twin.train()(parts, 0, conv_dropout)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.logits, other.logits)
        torch.testing.assert_close(one.features, other.features)
    for outputs in (found, expected):
        sum(out.logits.square().sum() + out.features.sum() for out in outputs).backward()
    for (weight, of), other in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(of.grad, other.grad, msg=weight)
    for (buffer, of), other in zip(net.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(of, other, msg=buffer)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("conv_dropout", [True, False])
def test_running_statistics_see_each_batch_as_often_with_dropout(conv_dropout: bool, momentum: float | None) -> None:
    """Before the first dropout, where nothing is left to chance; also where they are the mean over all batches."""
    torch.manual_seed(0)
    net = network(Tracking())
    net.backbone.norm1.momentum = momentum
    twin, parts = deepcopy(net), batches(2, 6, 3, 32, 32)
    net.train()(parts, 0, conv_dropout)
    with fast.without("joint_batches"):
        twin.train()(parts, 0, conv_dropout)
    for (buffer, of), other in zip(net.backbone.norm1.named_buffers(), twin.backbone.norm1.buffers(), strict=True):
        torch.testing.assert_close(of, other, msg=buffer)


@pytest.mark.parametrize("learning", [True, False])
@pytest.mark.parametrize("graph", [True, False])
def test_batches_are_kept_apart_outside_of_learning_as_well(learning: bool, graph: bool) -> None:
    torch.manual_seed(0)
    net, parts = network(NETS["alexnet"]()).train(learning), batches(2, 6, 3, 32, 32)
    with torch.set_grad_enabled(graph), calls_of(Network, "_joint") as taken:
        found, expected = net(parts, 0), [net(part, 0) for part in parts]
    assert len(taken) == 1
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.logits, other.logits)


@pytest.mark.parametrize("rows", [(6, 6), (6, 5)])
@pytest.mark.parametrize("independent", [True, False])
def test_only_equal_batches_of_networks_that_allow_it_are_joined(independent: bool, rows: tuple[int, int]) -> None:
    net = network(NETS["alexnet"]()).train()
    net.backbone.independent = independent
    with calls_of(Network, "_joint") as taken:
        outputs = net([torch.rand(n, 3, 32, 32).double() for n in rows], 0)
    assert [len(out.logits) for out in outputs] == list(rows)
    assert len(taken) == (independent and rows == (6, 6))
