"""Gradients as dictionaries, against torch alone."""

import pytest
import torch
from torch import Tensor, nn

from perdure.ops.gradients import ascent_grad, grad, project, projected_grad


def setting() -> tuple[nn.Module, Tensor, dict[str, nn.Parameter]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    weights = {**dict(net.named_parameters()), "unused": nn.Parameter(torch.ones(2).double())}
    return net, torch.randn(8, 6).double(), weights


def test_weights_that_the_loss_does_not_know_are_left_out() -> None:
    net, x, weights = setting()
    expected = dict(zip(weights, torch.autograd.grad(net(x).square().sum(), list(net.parameters())), strict=False))
    for found in (
        grad(net(x).square().sum(), weights),
        ascent_grad(net(x).square().sum(), weights),
        projected_grad(net(x).square().sum(), weights, {}),
    ):
        torch.testing.assert_close(found, expected)


def test_a_graph_is_kept_only_where_it_is_asked_for() -> None:
    net, x, weights = setting()
    loss = net(x).square().sum()
    assert not any(g.requires_grad for g in grad(loss, weights, retain_graph=True).values())
    again = grad(loss, weights, create_graph=True)
    assert all(g.requires_grad for name, g in again.items() if name.endswith("weight"))
    second = grad(again["0.weight"].square().sum(), {"w": net[2].weight}, retain_graph=True)
    (expected,) = torch.autograd.grad(again["0.weight"].square().sum(), net[2].weight, retain_graph=True)
    torch.testing.assert_close(second["w"], expected)
    grad(loss, weights)
    with pytest.raises(RuntimeError, match="second time"):
        grad(loss, weights)


def test_only_what_has_a_projection_is_projected() -> None:
    net, x, weights = setting()
    raw = grad(net(x).square().sum(), weights)
    projections = {"0.weight": lambda rows: 0.5 * rows, "elsewhere": lambda rows: 0 * rows}
    expected = {**raw, "0.weight": 0.5 * raw["0.weight"]}
    torch.testing.assert_close(project(raw, projections), expected)
    torch.testing.assert_close(projected_grad(net(x).square().sum(), weights, projections), expected)
