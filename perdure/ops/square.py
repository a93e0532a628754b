"""The Square attack, which needs no gradient."""

import math

import torch
from torch import Tensor

from perdure.ops.attacks import Ball, Classifier, WorstBatch, inner_axes, margins, per_image, random_signs

SHRINK = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of 10000 queries: where the Square attack halves its area
FIRST_SHARE = 0.8  # of the image, as in AutoAttack: few queries need large squares


def square(model: Classifier, x: Tensor, y: Tensor, ball: Ball, *, queries: int = 500, rng: torch.Generator) -> Tensor:
    """The Square attack (Andriushchenko et al., ECCV 2020), which sees answers only: random squares, smaller and
    smaller, kept wherever they lower the margin. The first query is vertical stripes, for l2 a grid of tiles.

    For l2 a square's worth of change moves from one random window to another, in the shape of two hills of opposite
    sign, so that always the whole radius is used.
    """
    first, propose, smallest = (_stripes, _linf_squares, 1) if ball.norm == "linf" else (_tiles, _l2_squares, 3)
    worst = WorstBatch(model, x, y, lambda logits: -margins(logits, y))
    here = ball.project(first(x, ball.radius, rng), x, model.bounds)
    loss = worst.forward(here)
    height, width = x.shape[2:]
    for query in range(1, queries):
        area = FIRST_SHARE / 2 ** sum(10000 * (query / queries) > shrink for shrink in SHRINK)
        side = min(max(round(math.sqrt(area * height * width)), smallest), height, width)
        ahead = ball.project(propose(here, x, ball.radius, side, rng), x, model.bounds)
        loss_ahead = worst.forward(ahead)
        better = loss_ahead > loss
        here, loss = torch.where(per_image(better, x), ahead, here), torch.where(better, loss_ahead, loss)
    return worst.batch()


def square_cost(queries: int) -> tuple[int, int]:
    return queries + 2, 0


def _stripes(x: Tensor, radius: float, rng: torch.Generator) -> Tensor:
    n, channels, _, width = x.shape
    return x + radius * random_signs(x, (n, channels, 1, width), rng)


def _linf_squares(here: Tensor, x: Tensor, radius: float, side: int, rng: torch.Generator) -> Tensor:
    """One square of each image, in each channel at + radius or − radius from the original throughout."""
    spot = _windows(x, side, rng)
    moved = here.clone()
    moved[spot] = x[spot] + radius * random_signs(x, (*x.shape[:2], 1, 1), rng)
    return moved


def _tiles(x: Tensor, radius: float, rng: torch.Generator) -> Tensor:
    """Five by five tiles with two hills each, of random sign in each tile and channel; of length radius together."""
    n, channels, height, width = x.shape
    side = max(min(height, width) // 5, 1)
    down, across = -(-height // side), -(-width // side)
    hills = _hills(x, side).repeat(down, across)[:height, :width]
    signs = random_signs(x, (n, channels, down, across), rng)
    signs = signs.repeat_interleave(side, 2).repeat_interleave(side, 3)[:, :, :height, :width]
    return x + radius * Ball("l2", radius).steepest(hills * signs)


def _l2_squares(here: Tensor, x: Tensor, radius: float, side: int, rng: torch.Generator) -> Tensor:
    """In each channel, whatever change two windows have, and whatever the radius leaves unused, goes into one of them,
    with two hills added."""
    n, channels = x.shape[:2]
    change = here - x
    to, off = _windows(x, side, rng), _windows(x, side, rng)
    unused = (radius**2 - change.square().sum(dim=inner_axes(change), keepdim=True)).clamp_min(0)
    rest = change.clone()
    rest[to], rest[off] = 0.0, 0.0
    freed = (change.square() - rest.square()).sum(dim=(2, 3), keepdim=True).clamp_min(0)
    hills = _hills(x, side)
    hills = hills if bool(torch.rand((), generator=rng) < 0.5) else hills.T
    fresh = _unit(hills) * random_signs(x, (n, channels, 1, 1), rng) + _unit(change[to])
    rest[to] = _unit(fresh) * (freed + unused / channels).sqrt()
    return x + rest


def _hills(like: Tensor, side: int) -> Tensor:
    """A square of one hill beside another of opposite sign (side, side), steep towards their tops."""
    half = side // 2
    return torch.cat([_hill(like, side, half), -_hill(like, side, side - half)], dim=1)


def _hill(like: Tensor, height: int, width: int) -> Tensor:
    """How high each place is: Σ 1/(n + 1 − k)² over k from 0 to n − the distance from the middle; n is half a side."""
    n = height // 2
    rows = (torch.arange(height) - n).abs()[:, None]
    columns = (torch.arange(width) - width // 2).abs()[None, :]
    rings = torch.tensor([1 / (n + 1 - k) ** 2 for k in range(n + 1)]).cumsum(0)
    return rings[n - torch.maximum(rows, columns)].to(like) if width else like.new_zeros(height, 0)


def _windows(x: Tensor, side: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Indices of a random square of each image, in all channels."""
    n, channels, height, width = x.shape
    span = torch.arange(side)
    top = torch.randint(height - side + 1, (n, 1), generator=rng)
    left = torch.randint(width - side + 1, (n, 1), generator=rng)
    return (
        torch.arange(n, device=x.device).view(n, 1, 1, 1),
        torch.arange(channels, device=x.device).view(1, channels, 1, 1),
        (top + span).view(n, 1, side, 1).to(x.device),
        (left + span).view(n, 1, 1, side).to(x.device),
    )


def _unit(x: Tensor) -> Tensor:
    """Each channel with length 1, or 0."""
    length: Tensor = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True)
    return x / length.clamp_min(1e-12)
