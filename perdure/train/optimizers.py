"""From a gradient to a step: plain gradient descent and AdamW.

The numbers are those of `torch.optim`, which would load torch's compiler first and double the time of a start.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from perdure.train.plan import Plan
from perdure.types import Gradient

State = dict[str, Gradient]
"""What an optimizer remembers: kind → name of a weight → tensor."""


class Optimizer:
    """w ← w − η d for all weights at once, d the direction; a weight without a gradient stays where it is, and so does
    what is remembered of it."""

    kinds: ClassVar[tuple[str, ...]]  # of tensors that it remembers
    needs_projection: bool  # whether a direction may leave the span of the gradients so far

    def __init__(self, weights: dict[str, nn.Parameter], state: State | None = None) -> None:
        self.weights = weights
        self.state: State = {kind: dict((state or {}).get(kind, {})) for kind in self.kinds}

    @torch.no_grad()
    def step(self, gradient: Gradient, rate: float, project: Callable[[Gradient], Gradient] | None = None) -> None:
        """One step; a direction that may have left the gradients' span is projected again."""
        moving = {name: gradient[name] for name in self.weights if name in gradient}
        if moving:
            moving = self.direction(moving)
        if self.needs_projection and project is not None:
            moving = project(moving)
        if moving:
            torch._foreach_add_([self.weights[name] for name in moving], list(moving.values()), alpha=-rate)

    def reset(self) -> None:
        """Be as new."""
        self.state = {kind: {} for kind in self.kinds}

    def direction(self, gradient: Gradient) -> Gradient:
        raise NotImplementedError

    def remembered(self, kind: str, like: Gradient) -> list[Tensor]:
        """Tensors of one kind, zeros for weights that move for the first time."""
        known = self.state[kind]
        for name, g in like.items():
            if name not in known:
                known[name] = torch.zeros_like(g)
        return [known[name] for name in like]

    def with_decay(self, direction: Gradient, decay: float) -> Gradient:
        """Pulled towards zero weights."""
        weights: list[Tensor] = [self.weights[name] for name in direction]
        return dict(zip(direction, torch._foreach_add(list(direction.values()), weights, alpha=decay), strict=True))


class SGD(Optimizer):
    """v ← μ v + g, d = v, or g + μ v with Nesterov; weight decay is part of g."""

    kinds = ("momentum",)

    def __init__(
        self,
        weights: dict[str, nn.Parameter],
        momentum: float,
        state: State | None = None,
        *,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(weights, state)
        self.momentum, self.nesterov, self.weight_decay = momentum, nesterov, weight_decay
        self.needs_projection = weight_decay > 0  # momentum alone, new in each lesson, does not

    def direction(self, gradient: Gradient) -> Gradient:
        if self.weight_decay:
            gradient = self.with_decay(gradient, self.weight_decay)
        if not self.momentum:
            return gradient
        velocity = self._velocity(gradient)
        if not self.nesterov:
            return velocity
        ahead = torch._foreach_add(list(gradient.values()), list(velocity.values()), alpha=self.momentum)
        return dict(zip(gradient, ahead, strict=True))

    def _velocity(self, gradient: Gradient) -> Gradient:
        velocity = self.state["momentum"]
        if known := [name for name in gradient if name in velocity]:
            velocities = [velocity[name] for name in known]
            torch._foreach_mul_(velocities, self.momentum)
            torch._foreach_add_(velocities, [gradient[name] for name in known])
        for name, g in gradient.items():
            if name not in velocity:
                velocity[name] = g.detach().clone()
        return {name: velocity[name] for name in gradient}


class AdamW(Optimizer):
    """m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g², d = m̂/(√v̂ + ε) + decay · w (Loshchilov and Hutter, ICLR 2019).

    m̂ and v̂ are corrected by the number of steps that the weight has made: m/(1 − β₁ᵗ), v/(1 − β₂ᵗ).
    """

    kinds = ("momentum", "squares", "steps")
    needs_projection = True

    def __init__(
        self,
        weights: dict[str, nn.Parameter],
        state: State | None = None,
        *,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(weights, state)
        self.weight_decay, self.betas, self.eps = weight_decay, betas, eps

    def direction(self, gradient: Gradient) -> Gradient:
        gradients, (beta1, beta2) = list(gradient.values()), self.betas
        means, squares = self.remembered("momentum", gradient), self.remembered("squares", gradient)
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        counts = [self._count(name) for name in gradient]
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, [(1 - beta2**count) ** 0.5 for count in counts])
        torch._foreach_add_(roots, self.eps)
        torch._foreach_mul_(roots, [1 - beta1**count for count in counts])
        direction = dict(zip(gradient, torch._foreach_div(means, roots), strict=True))
        return self.with_decay(direction, self.weight_decay) if self.weight_decay else direction

    def _count(self, name: str) -> int:
        """Steps that a weight has made, this one included; on the CPU, where reading them waits for nothing."""
        steps = self.state["steps"]
        steps[name] = steps[name] + 1 if name in steps else torch.ones((), dtype=torch.int64)
        return int(steps[name])


def optimizer_for(plan: Plan, weights: dict[str, nn.Parameter], state: State | None = None) -> Optimizer:
    """The plan's optimizer, new, or as it was in a lesson that is resumed."""
    if plan.optimizer == "adamw":
        return AdamW(weights, state, weight_decay=plan.weight_decay)
    return SGD(weights, plan.momentum, state, nesterov=plan.nesterov, weight_decay=plan.weight_decay)
