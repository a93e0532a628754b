"""FAB: an attack that looks for the nearest wrong answer."""

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.ops.attacks import (
    Ball,
    Bounds,
    Classifier,
    Norm,
    PerImage,
    WorstBatch,
    logit_of,
    margins,
    per_image,
    wrong_classes,
)

ALPHA_MAX, OVERSHOOT, BACKWARD = 0.1, 1.05, 0.9  # α_max, η and β of FAB


def fab(model: Classifier, x: Tensor, y: Tensor, ball: Ball, *, targets: int = 9, steps: int = 50) -> Tensor:
    """FAB (Croce & Hein, ICML 2020), towards one wrong class after another, as in AutoAttack: the nearest wrong answer,
    however far. A step goes a little beyond the boundary as the gradient draws it, with a bias towards the image, and
    from a wrong answer back towards it. It knows no radius: what is nearest is brought into the ball, and tried there.

    Starts are the images themselves, so that nothing depends on chance.
    """
    worst = WorstBatch(model, x, y, lambda logits: -margins(logits, y))
    clean = model.logits(x)
    nearest, least = x, torch.where(clean.argmax(1) == y, torch.inf, 0.0).to(x)
    for target in wrong_classes(clean, y, targets):
        here, lead = x, _lead(target, y)
        for _ in range(steps):
            _, ahead, gradient = model.input_gradient(here, lead)
            here = _beyond_the_boundary(here, x, ahead, gradient, ball, model.bounds)
            wrong, far = model.logits(here).argmax(1) != y, ball.length(here - x)
            closer = wrong & (far < least)
            nearest, least = torch.where(per_image(closer, x), here, nearest), torch.where(closer, far, least)
            here = torch.where(per_image(wrong, x), x + BACKWARD * (here - x), here)
        worst.forward(ball.project(nearest, x, model.bounds))
    return worst.batch()


def fab_cost(steps: int, targets: int) -> tuple[int, int]:
    """Each step looks where it came to; one pass chooses the targets."""
    return targets * (steps + 1) + 3, targets * steps


def _beyond_the_boundary(
    here: Tensor, x: Tensor, ahead: Tensor, gradient: Tensor, ball: Ball, bounds: Bounds
) -> Tensor:
    """One step of FAB, from where a class is ahead of the right one by so much."""
    own = to_plane(here, gradient, ahead, ball.norm, bounds)
    from_x = to_plane(x, gradient, ahead + (gradient * (x - here)).flatten(1).sum(1), ball.norm, bounds)
    one, other = ball.length(own).clamp_min(1e-12), ball.length(from_x).clamp_min(1e-12)
    alpha = per_image((one / (one + other)).clamp_max(ALPHA_MAX), x)
    return ((1 - alpha) * (here + OVERSHOOT * own) + alpha * (x + OVERSHOOT * from_x)).clamp(*bounds)


def to_plane(x: Tensor, gradient: Tensor, height: Tensor, norm: Norm, bounds: Bounds) -> Tensor:
    """The shortest change of each image after which a linear function of this gradient, of this height at x, is 0, and
    the image within its bounds; where these are in the way, the one that comes closest.

    Every pixel moves alike (for l2, by its part of the gradient) until it is at a bound. In the order in which they get
    there, the first pixel that the remaining way does not bring to its bound tells how far the others go.
    """
    slope = -height.sign()[:, None] * gradient.flatten(1)  # downhill to 0, or uphill
    size = slope.abs()
    low, high = bounds
    room = torch.where(slope > 0, high - x.flatten(1), x.flatten(1) - low).clamp_min(0)
    room = torch.where(size > 0, room, 0)
    pace = torch.ones_like(size) if norm == "linf" else size
    tiny = torch.finfo(x.dtype).tiny
    full, order = (room / pace.clamp_min(tiny)).sort(dim=1)  # after how many steps a pixel is at its bound
    gained, gain = ((size * part).gather(1, order) for part in (room, pace))
    before = F.pad(gained.cumsum(1)[:, :-1], (1, 0))
    after = gain.flip(1).cumsum(1).flip(1)
    steps = (height.abs()[:, None] - before) / after.clamp_min(tiny)
    enough = steps <= full
    taken = steps.gather(1, enough.to(torch.uint8).argmax(1, keepdim=True))
    way = torch.where(enough.any(1, keepdim=True), torch.minimum(taken * pace, room), room)
    return (slope.sign() * way).view_as(x)


def _lead(target: Tensor, y: Tensor) -> PerImage:
    return lambda logits: logit_of(logits, target) - logit_of(logits, y)
