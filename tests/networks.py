"""A network of nobody's own kind, for tests: what torch offers, with dropout and running statistics."""

import torch.nn.functional as F
from torch import Tensor, nn

from perdure.nets.network import Backbone


class Tracking(Backbone):
    """Convolutions and linear layers with biases, batch norm that remembers, and torch's own dropout after each."""

    independent = True

    def __init__(self, shape: tuple[int, int, int] = (3, 32, 32), *, dropout: float = 0.2) -> None:
        super().__init__()
        height, width = ((side - 4) // 4 - 2 for side in shape[1:])
        self.conv1, self.norm1, self.drop1 = nn.Conv2d(shape[0], 16, 5), nn.BatchNorm2d(16), nn.Dropout2d(dropout)
        self.conv2, self.norm2, self.drop2 = nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.Dropout(dropout)
        self.fc1, self.norm3, self.drop3 = nn.Linear(16 * height * width, 64), nn.BatchNorm1d(64), nn.Dropout(dropout)
        self.fc2, self.width = nn.Linear(64, 32), 32

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.max_pool2d(self.drop1(F.relu(self.norm1(self.conv1(x)))), 4)
        x = self.drop2(F.relu(self.norm2(self.conv2(x)))).flatten(1)
        features = self.fc2(self.drop3(F.relu(self.norm3(self.fc1(x)))))
        return F.relu(features), features
