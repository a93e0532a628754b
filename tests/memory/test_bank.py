"""What a method keeps comes back whole."""

import pytest
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


@pytest.mark.parametrize("trainable", [False, True])
def test_what_was_saved_stays_as_it_was(trainable: bool) -> None:
    """Projectors are written in place, scales are trained: neither may reach into a state that somebody else holds."""
    given, bank, again = torch.ones(2, 3), TensorBank(trainable), TensorBank(trainable)
    bank["fc1"] = given
    state = bank.state_dict()
    again.load_state_dict(state)
    with torch.no_grad():
        again["fc1"].zero_()
        assert bool(state["fc1"].all())
        if trainable:
            bank["fc1"].zero_()
            assert bool(given.all())


def test_tensors_are_laid_out_as_they_come_back_from_a_file() -> None:
    """Or a run that goes on from a file would round otherwise than one that went straight on."""
    for trainable in (False, True):
        bank = TensorBank(trainable)
        bank["fc1"] = torch.ones(3, 2).T
        assert bank["fc1"].is_contiguous()
