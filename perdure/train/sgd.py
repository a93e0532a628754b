"""Plain gradient descent."""

import torch
from torch import Tensor, nn

from perdure.types import Gradient


class SGD:
    """v ← μ v + g, w ← w − η v, for all weights at once; a weight without a gradient stays where it is.

    The numbers are those of `torch.optim.SGD`, which would load torch's compiler first and double the time of a start.
    """

    def __init__(self, weights: dict[str, nn.Parameter], momentum: float, velocity: Gradient | None = None) -> None:
        self.weights, self.momentum = weights, momentum
        self.velocity: Gradient = dict(velocity or {})  # name → v, once it has moved

    @torch.no_grad()
    def step(self, gradient: Gradient, rate: float) -> None:
        moving = [name for name in self.weights if name in gradient]
        if moving:
            directions = self._directions(gradient, moving) if self.momentum else [gradient[name] for name in moving]
            torch._foreach_add_([self.weights[name] for name in moving], directions, alpha=-rate)

    def _directions(self, gradient: Gradient, moving: list[str]) -> list[Tensor]:
        if known := [name for name in moving if name in self.velocity]:
            velocities = [self.velocity[name] for name in known]
            torch._foreach_mul_(velocities, self.momentum)
            torch._foreach_add_(velocities, [gradient[name] for name in known])
        for name in moving:
            if name not in self.velocity:
                self.velocity[name] = gradient[name].detach().clone()
        return [self.velocity[name] for name in moving]
