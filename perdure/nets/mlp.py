"""A plain multilayer perceptron."""

from itertools import pairwise
from math import prod

import torch.nn.functional as F
from torch import Tensor, nn

from perdure.nets.network import Backbone


class MLP(Backbone):
    """Linear layers with ReLU, no bias and no normalization, so that it takes single images too."""

    independent = True

    def __init__(self, shape: tuple[int, int, int], *, units: tuple[int, ...] = (100, 100)) -> None:
        super().__init__()
        sizes = [prod(shape), *units]
        self.hidden = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))
        self.width = sizes[-1]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.flatten(1)
        for layer in self.hidden:
            x = F.relu(layer(x))
        return x, x
