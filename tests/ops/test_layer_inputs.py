"""What a layer receives: a weight may move, wherever nothing of it looks, without a word to the answers."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perdure.ops.layers import ROWS, layer_inputs


class Called(nn.Module):
    """A module whose weight is given to torch's function by its name."""

    def __init__(self, weight: Tensor, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(weight), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(input=x, weight=self.weight)


IMAGES = torch.rand(2, 3, 6, 6)
CASES: dict[str, tuple[nn.Module, Tensor]] = {
    "linear": (nn.Linear(9, 4), torch.rand(5, 9)),
    "linear of a sequence": (nn.Linear(9, 4), torch.rand(2, 3, 9)),
    "conv1d": (nn.Conv1d(3, 4, 3, padding=1), torch.rand(1, 3, 7)),
    "conv2d": (nn.Conv2d(3, 4, 5, stride=2, padding=1), IMAGES),
    "conv2d, dilated, reflected": (nn.Conv2d(3, 4, 4, dilation=2, padding=2, padding_mode="reflect"), IMAGES[:1]),
    "conv2d, same": (nn.Conv2d(3, 4, (5, 4), padding="same"), IMAGES[:1, :, :4, :4]),
    "conv2d in groups": (nn.Conv2d(4, 4, 5, groups=2), torch.rand(2, 4, 6, 6)),
    "conv2d of one image": (nn.Conv2d(3, 4, 5), torch.rand(3, 6, 6)),
    "conv3d": (nn.Conv3d(2, 3, 3), torch.rand(1, 2, 3, 4, 4)),
    "conv2d by name": (Called(torch.rand(4, 3, 5, 5), F.conv2d), IMAGES),
    "transposed1d": (nn.ConvTranspose1d(9, 2, 3), torch.rand(1, 9, 5)),
    "transposed2d": (nn.ConvTranspose2d(40, 2, 3, stride=2), torch.rand(1, 40, 5, 5)),
    "transposed2d of one image": (nn.ConvTranspose2d(40, 2, 3), torch.rand(40, 5, 5)),
    "transposed3d": (nn.ConvTranspose3d(9, 2, 2), torch.rand(1, 9, 2, 2, 2)),
    "transposed by name": (Called(torch.rand(9, 2, 3), F.conv_transpose1d), torch.rand(1, 9, 5)),
    "embedding": (nn.Embedding(9, 4), torch.tensor([[1, 5], [5, 7]])),
    "sum of embeddings": (nn.EmbeddingBag(9, 4, mode="sum"), torch.tensor([[1, 5], [5, 7]])),
    "embedding by name": (Called(torch.rand(9, 4), F.embedding), torch.tensor([2, 3])),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", CASES)
def test_where_nothing_looks_a_weight_moves_unseen_and_elsewhere_it_is_seen(name: str) -> None:
    module, x = CASES[name]
    ((_, received),) = layer_inputs(module, lambda: module(x)).items()
    columns, weight = received.columns(), module.weight
    assert isinstance(weight, nn.Parameter)
    rows = received.layer.kind in ROWS
    if columns.ndim == 1:  # rows that were looked up
        looked = torch.diag(columns)
    else:
        vectors, values, _ = torch.linalg.svd(columns, full_matrices=False)
        basis = vectors[:, values / values[0] > 1e-5]
        looked = basis @ basis.T
    assert len(looked) == received.layer.directions
    assert 0 < float(torch.trace(looked)) < len(looked)  # something is left to move in
    torch.manual_seed(1)
    change = torch.randn(weight.shape)
    flat = change.flatten(1).T if rows else change.flatten(1)
    before = module(x).detach()
    for part, seen in ((flat - flat @ looked, False), (flat @ looked, True)):
        moved = (part.T if rows else part).reshape(weight.shape)
        assert float(moved.norm()) > 0.1
        with torch.no_grad():
            weight += moved
        after = module(x).detach()
        with torch.no_grad():
            weight -= moved
        assert torch.allclose(after, before, atol=1e-3) != seen, (name, seen)


def test_transposed_convolutions_in_groups_are_not_recorded() -> None:
    module = nn.ConvTranspose2d(4, 4, 3, groups=2)
    assert layer_inputs(module, lambda: module(torch.rand(1, 4, 3, 3))) == {}
