"""What a method keeps comes back whole."""

import torch
from torch import nn

from perdure.memory.bank import TensorBank


def test_a_bank_comes_back_whatever_its_sizes() -> None:
    bank, other = TensorBank(), TensorBank()
    bank["s1b1.conv1"], bank["empty"] = torch.eye(4)[:, :2], torch.empty(3, 0)
    other["gone"] = torch.ones(1)
    other.load_state_dict(bank.state_dict())
    assert list(other) == ["s1b1.conv1", "empty"]
    assert torch.equal(other["s1b1.conv1"], bank["s1b1.conv1"])
    assert other.bytes() == 8 * 4
    del other["empty"]
    assert "empty" not in other
    assert list(other.parameters()) == []


def test_a_trainable_bank_holds_parameters() -> None:
    holder, again = nn.Module(), nn.Module()
    holder.grown, again.grown = TensorBank(trainable=True), TensorBank(trainable=True)
    holder.grown["fc1"] = torch.ones(2, 3)
    again.load_state_dict(holder.state_dict())
    assert [name for name, _ in again.named_parameters()] == ["grown.fc1"]
    assert isinstance(again.grown["fc1"], nn.Parameter)
    assert len(again.grown) == 1
