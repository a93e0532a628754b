"""What networks ask of torch while they learn is answered by `fast`; outside of learning by torch alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perdure.fast.function_mode import LearningMode
from perdure.fast.joint_batches import ForwardMode, forward_mode
from perdure.nets.mlp import MLP
from perdure.nets.network import Network


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.Dropout2d(0.5)])
def test_torchs_own_dropout_is_applied_to_the_rows_that_want_it(layer: nn.Module) -> None:
    x = torch.ones(8, 16, 4, 4)
    with LearningMode(), forward_mode(ForwardMode(4, "fork")):
        forked = layer(x)
        second = layer(forked)
    assert torch.equal(forked[8:], x)
    assert set(forked[:8].unique().tolist()) == {0.0, 2.0}
    assert torch.equal(second[8:], x)
    assert set(second[:8].unique().tolist()) == {0.0, 4.0}
    if isinstance(layer, nn.Dropout2d):  # whole channels
        assert all(len(channel.unique()) == 1 for channel in forked[:8].flatten(0, 1))
    with LearningMode(), forward_mode(ForwardMode(conv_dropout="off")):
        assert torch.equal(layer(x), x)
        assert not torch.equal(nn.Dropout(0.5)(x.flatten(1)), x.flatten(1))  # not after a convolution


@pytest.mark.parametrize("call", [F.dropout, F.dropout2d])
def test_dropout_that_does_nothing_forks_nothing(call: object) -> None:
    x = torch.ones(8, 16, 4, 4)
    with LearningMode(), forward_mode(ForwardMode(4, "fork")) as mode:
        assert torch.equal(call(x, 0.0), x)  # type: ignore[operator]
        assert torch.equal(call(x, 0.5, training=False), x)  # type: ignore[operator]
        assert mode.conv_dropout == "fork"


def test_everything_else_is_torchs() -> None:
    x, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    with LearningMode():
        found = F.conv2d(x, weight).relu().mean()
    assert torch.equal(found, F.conv2d(x, weight).relu().mean())


def test_a_network_enters_it_while_it_learns_and_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[bool] = []

    class Spy(MLP):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            stack = torch.overrides._get_current_function_mode_stack()
            modes.append(any(isinstance(mode, LearningMode) for mode in stack))
            return super().forward(x)

    net = Network(Spy((3, 8, 8)))
    net.add_head(2)
    x = torch.rand(4, 3, 8, 8)
    net.train()(x, 0)
    assert modes == [True]
    assert not torch.overrides._get_current_function_mode_stack()
    net.eval()(x, 0)
    assert modes == [True, False]
    monkeypatch.setattr(net, "_single", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        net.train()(x, 0)
    assert not torch.overrides._get_current_function_mode_stack()
