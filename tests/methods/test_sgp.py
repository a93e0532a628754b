"""SGP beside GPM, and what it says of itself."""

import pytest
import torch

from perdure.methods.gpm import GPM
from perdure.methods.sgp import SGP
from perdure.nets.mlp import MLP
from perdure.nets.network import Network

SPREAD = torch.diag(torch.tensor([8.0, 4.0, 1.0, 0.0]))  # inputs of a layer, of lengths that differ


def remembered(method: GPM) -> GPM:
    """A method that has met inputs of its first layer, twice: 8, 4 and 1 long, then 8 along the third direction."""
    method.remember({"hidden.0": SPREAD}, 0.999)
    method.remember({"hidden.0": SPREAD.roll(2, 0)[:, :1]}, 0.999)
    return method


def network() -> Network:
    torch.manual_seed(1)
    return Network(MLP((1, 2, 2), units=(3,)))


def test_a_large_scale_protects_all_that_gpm_protects() -> None:
    name, gradient = "backbone.hidden.0.weight", torch.randn(3, 4)

    def left(method: GPM) -> torch.Tensor:
        return remembered(method).project({name: gradient})[name]

    gpm = left(GPM(network()))
    torch.testing.assert_close(left(SGP(network(), scale=1e9)), gpm)
    assert not torch.allclose(left(SGP(network(), scale=1.0)), gpm, atol=0.05)


def test_facts_say_how_much_the_directions_of_a_layer_matter() -> None:
    method = remembered(SGP(network(), scale=0.0))  # λ = v/max v, and what comes later is added
    assert method.importance["hidden.0"].tolist() == pytest.approx([1, 0.5, 1])
    facts = method.facts()
    assert facts["basis"] == {"hidden.0": [3, 4]}
    assert facts["mean_importance"] == {"hidden.0": pytest.approx(2.5 / 3)}
