"""Adversarial images: how far the answers can be turned by moving images a little.

All attacks are untargeted and move a whole batch together, since batch norm may couple its images: the loss is the sum
over the batch, and what counts is the right answers on one actual batch. Where several points were tried, the best of
each image make up a batch that nobody has looked at; it is looked at, and the batch that is returned is, of all those
looked at as a whole, the one with the fewest right answers (then the highest loss). Without coupling this is the usual
best for each image.

Each attack takes the same number of looks whatever it finds; `..._takes` gives (looks, slopes) for each image.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.errors import WrongValue

Norm = Literal["linf", "l2"]
AttackLoss = Literal["ce", "dlr"]
Bounds = tuple[float, float]


class Victim(Protocol):
    """What is attacked: images in, logits out."""

    @property
    def bounds(self) -> Bounds: ...

    def logits(self, x: Tensor) -> Tensor: ...

    def slope(self, x: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, the loss of each image (n,), and the gradient of their sum by the images."""


@dataclass(frozen=True)
class Ball:
    """How far each image may move."""

    norm: Norm
    radius: float

    def __post_init__(self) -> None:
        if not 0 <= self.radius < math.inf:
            raise WrongValue(f"an attack's strength must be a number ≥ 0, not {self.radius}")

    def project(self, moved: Tensor, start: Tensor, bounds: Bounds) -> Tensor:
        """Back into the ball around `start`, then into the bounds; as `start` is within them, that leads inwards."""
        way = moved - start
        if self.norm == "linf":
            way = way.clamp(-self.radius, self.radius)
        else:
            way = way * (self.radius / _length(way).clamp_min(1e-30)).clamp_max(1)
        return (start + way).clamp(*bounds)

    def uniform(self, start: Tensor, bounds: Bounds, chance: torch.Generator) -> Tensor:
        """A random point of the ball, every one as likely, brought within the bounds."""
        if self.norm == "linf":
            way = self.radius * (2 * _uniform(start, chance) - 1)
        else:
            share = torch.rand(len(start), generator=chance).to(start) ** (1 / start[0].numel())
            way = self.radius * _wide(share, start) * self.steepest(_normal(start, chance))
        return self.project(start + way, start, bounds)

    def steepest(self, slope: Tensor) -> Tensor:
        """The direction of unit length in this norm along which the loss grows fastest; nowhere for a zero slope."""
        if self.norm == "linf":
            return slope.sign()
        tiny = torch.finfo(slope.dtype).tiny
        scaled = slope / slope.abs().amax(dim=_inner(slope), keepdim=True).clamp_min(tiny)  # squares might vanish
        return scaled / _length(scaled).clamp_min(tiny)


def fgsm(victim: Victim, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
    """One step of full radius (Goodfellow et al., ICLR 2015)."""
    _, _, slope = victim.slope(x, lambda logits: _cross_entropies(logits, y))
    return ball.project(x + ball.radius * ball.steepest(slope), x, victim.bounds)


def fgsm_takes() -> tuple[int, int]:
    return 0, 1


def pgd(
    victim: Victim,
    x: Tensor,
    y: Tensor,
    ball: Ball,
    *,
    steps: int = 20,
    rate: float | None = None,
    restarts: int = 1,
    chance: torch.Generator | None,
) -> Tensor:
    """Steps uphill within the ball (Madry et al., ICLR 2018), from a random point of it; without chance from x itself.

    `rate` is the length of a step, 2.5 · radius / steps if not told: enough to reach any point of the ball.
    """

    def loss(logits: Tensor) -> Tensor:
        return _cross_entropies(logits, y)

    stride = 2.5 * ball.radius / steps if rate is None else rate
    tried = _Tried(victim, x, y, loss)
    for _ in range(restarts):
        moved = x if chance is None else ball.uniform(x, victim.bounds, chance)
        for _ in range(steps):
            _, _, slope = victim.slope(moved, loss)
            moved = ball.project(moved + stride * ball.steepest(slope), x, victim.bounds)
        tried.forward(moved)
    return tried.worst()


def pgd_takes(steps: int, restarts: int) -> tuple[int, int]:
    return restarts + 2, restarts * steps


def apgd(
    victim: Victim,
    x: Tensor,
    y: Tensor,
    ball: Ball,
    *,
    loss: AttackLoss = "ce",
    steps: int = 50,
    restarts: int = 1,
    chance: torch.Generator,
) -> Tensor:
    """Auto-PGD (Croce & Hein, ICML 2020): strides of twice the radius at first, halved, image by image, at checkpoints
    where the loss has stopped growing, and then on from the best point so far. No rate to choose.

    The loss is cross-entropy, or the difference of logits ratio, which does not fade where the network is sure.
    """

    def chosen(logits: Tensor) -> Tensor:
        return _cross_entropies(logits, y) if loss == "ce" else logits_ratio(logits, y)

    tried = _Tried(victim, x, y, chosen)
    for _ in range(restarts):
        _climb(victim, x, ball, steps, ball.uniform(x, victim.bounds, chance), tried)
    return tried.worst()


def apgd_takes(steps: int, restarts: int) -> tuple[int, int]:
    return restarts + 2, restarts * steps


MOMENTUM = 0.75  # α of APGD: how much of a step is new
ENOUGH = 0.75  # ρ of APGD: the share of steps that must have gone up


def _climb(victim: Victim, x: Tensor, ball: Ball, steps: int, start: Tensor, tried: "_Tried") -> None:
    """One run of APGD from `start`; every point it comes to is tried."""
    here = before = best = start
    height, slope = tried.slope(here)
    top, top_slope = height, slope
    stride = torch.full_like(height, 2 * ball.radius)
    risen, halved = torch.zeros_like(height), torch.zeros_like(height, dtype=torch.bool)
    last_top, last_check, checks = top, 0, set(checkpoints(steps))
    for step in range(1, steps + 1):
        ahead = ball.project(here + _wide(stride, x) * ball.steepest(slope), x, victim.bounds)
        if step > 1:
            ahead = here + MOMENTUM * (ahead - here) + (1 - MOMENTUM) * (here - before)
            ahead = ball.project(ahead, x, victim.bounds)
        before, here = here, ahead
        if step == steps:  # nothing follows that would need its slope
            tried.forward(here)
            return
        below = height
        height, slope = tried.slope(here)
        risen += height > below
        better = height > top
        top = torch.where(better, height, top)
        best, top_slope = torch.where(_wide(better, x), here, best), torch.where(_wide(better, x), slope, top_slope)
        if step in checks:
            stuck = ~halved & (top <= last_top)  # neither a shorter stride nor a better point since the last checkpoint
            halved = (risen < ENOUGH * (step - last_check)) | stuck
            stride, height = torch.where(halved, stride / 2, stride), torch.where(halved, top, height)
            here, slope = torch.where(_wide(halved, x), best, here), torch.where(_wide(halved, x), top_slope, slope)
            risen, last_top, last_check = torch.zeros_like(risen), top, step


def checkpoints(steps: int) -> list[int]:
    """The steps of APGD after which its stride may be halved: ever closer together, at least 6 % of all steps apart.

    >>> checkpoints(100)
    [22, 41, 57, 70, 80, 87, 93, 99]
    """
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    return sorted({math.ceil(round(share * steps, 6)) for share in shares[1:-1]})


def logits_ratio(logits: Tensor, y: Tensor) -> Tensor:
    """The difference of logits ratio, −(z_y − max of the others) / (z_(1) − z_(3)), for each image: unlike
    cross-entropy it does not change when all logits are scaled.

    >>> logits_ratio(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor([-0.6667])
    """
    if logits.shape[1] < 3:
        raise WrongValue(f"the loss dlr needs three classes, and there are {logits.shape[1]}: use ce")
    top = logits.topk(3, dim=1).values
    return -_margins(logits, y) / (top[:, 0] - top[:, 2]).clamp_min(1e-12)


SHRINK = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of 10000 queries: where the Square attack halves its area
FIRST_SHARE = 0.8  # of the image, as in AutoAttack: few queries need large squares


def square(victim: Victim, x: Tensor, y: Tensor, ball: Ball, *, queries: int = 500, chance: torch.Generator) -> Tensor:
    """The Square attack (Andriushchenko et al., ECCV 2020), which sees answers only: random squares, smaller and
    smaller, kept wherever they lower the margin. The first query is vertical stripes, for l2 a grid of tiles.

    For l2 a square's worth of change moves from one random window to another, in the shape of two hills of opposite
    sign, so that always the whole radius is used.
    """
    propose = _linf_squares if ball.norm == "linf" else _l2_squares
    begin = _stripes if ball.norm == "linf" else _tiles
    tried = _Tried(victim, x, y, lambda logits: -_margins(logits, y))
    here = ball.project(begin(x, ball.radius, chance), x, victim.bounds)
    height = tried.forward(here)
    for query in range(1, queries):
        side = _side(query / queries, x, smallest=1 if ball.norm == "linf" else 3)
        ahead = ball.project(propose(here, x, ball.radius, side, chance), x, victim.bounds)
        reached = tried.forward(ahead)
        better = reached > height
        here, height = torch.where(_wide(better, x), ahead, here), torch.where(better, reached, height)
    return tried.worst()


def square_takes(queries: int) -> tuple[int, int]:
    return queries + 2, 0


def noise(x: Tensor, ball: Ball, bounds: Bounds, chance: torch.Generator) -> Tensor:
    """Chance alone, of full radius: ± radius at each pixel, for l2 any direction; then brought within the bounds."""
    way = _signs(x, x.shape, chance) if ball.norm == "linf" else ball.steepest(_normal(x, chance))
    return ball.project(x + ball.radius * way, x, bounds)


class _Tried:
    """Batches that were looked at, the images as they are first: knows the worst as a whole, and of each image."""

    def __init__(self, victim: Victim, x: Tensor, y: Tensor, loss: Callable[[Tensor], Tensor]) -> None:
        self.victim, self.y, self.loss = victim, y, loss
        self.fewest = (len(y) + 1, 0.0)  # right answers, − total loss
        self.whole = self.each = x
        self.right = torch.ones_like(y, dtype=torch.bool)
        self.height = torch.full(y.shape, -torch.inf, dtype=x.dtype, device=x.device)
        self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        """The loss of each image."""
        logits = self.victim.logits(x)
        loss = self.loss(logits)
        self._keep(x, logits, loss)
        return loss

    def slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each image, and the slope."""
        logits, loss, slope = self.victim.slope(x, self.loss)
        self._keep(x, logits, loss)
        return loss, slope

    def worst(self) -> Tensor:
        """Of all batches that were looked at, and of the one made up of the worst of each image: fewest right."""
        self.forward(self.each)
        return self.whole

    def _keep(self, x: Tensor, logits: Tensor, loss: Tensor) -> None:
        right = logits.argmax(1) == self.y
        count = int(right.sum()), -float(loss.sum())
        if count < self.fewest:
            self.fewest, self.whole = count, x
        worse = (self.right & ~right) | ((self.right == right) & (loss > self.height))
        self.right, self.height = torch.where(worse, right, self.right), torch.where(worse, loss, self.height)
        self.each = torch.where(_wide(worse, x), x, self.each)


def _cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


def _margins(logits: Tensor, y: Tensor) -> Tensor:
    """By how much the right class leads the best of the others."""
    own = logits.gather(1, y[:, None])
    others = logits.scatter(1, y[:, None], -torch.inf)
    return own[:, 0] - others.amax(1)


# ── squares ─────────────────────────────────────────────────────────────────────────────────────────────────


def _side(done: float, x: Tensor, smallest: int) -> int:
    """How wide the squares are when this share of the queries is done."""
    height, width = x.shape[2:]
    area = FIRST_SHARE / 2 ** sum(10000 * done > shrink for shrink in SHRINK)
    return min(max(round(math.sqrt(area * height * width)), smallest), height, width)


def _stripes(x: Tensor, radius: float, chance: torch.Generator) -> Tensor:
    n, channels, _, width = x.shape
    return x + radius * _signs(x, (n, channels, 1, width), chance)


def _linf_squares(here: Tensor, x: Tensor, radius: float, side: int, chance: torch.Generator) -> Tensor:
    """One square of each image, in each channel at + radius or − radius from the original throughout."""
    n, channels = x.shape[:2]
    spot = _windows(x, side, chance)
    moved = here.clone()
    moved[spot] = x[spot] + radius * _signs(x, (n, channels, 1, 1), chance)
    return moved


def _tiles(x: Tensor, radius: float, chance: torch.Generator) -> Tensor:
    """Five by five tiles with two hills each, of random sign in each tile and channel; of length radius together."""
    n, channels, height, width = x.shape
    side = max(min(height, width) // 5, 1)
    down, across = -(-height // side), -(-width // side)
    hills = _hills(x, side).repeat(down, across)[:height, :width]
    signs = _signs(x, (n, channels, down, across), chance)
    signs = signs.repeat_interleave(side, 2).repeat_interleave(side, 3)[:, :, :height, :width]
    return x + radius * Ball("l2", radius).steepest(hills * signs)


def _l2_squares(here: Tensor, x: Tensor, radius: float, side: int, chance: torch.Generator) -> Tensor:
    """In each channel, whatever change two windows have, and whatever the radius leaves unused, goes into one of them,
    with two hills added."""
    n, channels = x.shape[:2]
    way = here - x
    to, off = _windows(x, side, chance), _windows(x, side, chance)
    unused = (radius**2 - way.square().sum(dim=_inner(way), keepdim=True)).clamp_min(0)
    rest = way.clone()
    rest[to], rest[off] = 0.0, 0.0
    freed = (way.square() - rest.square()).sum(dim=(2, 3), keepdim=True).clamp_min(0)
    hills = _hills(x, side)
    hills = hills if bool(torch.rand((), generator=chance) < 0.5) else hills.T
    fresh = _signs(x, (n, channels, 1, 1), chance) * hills / _planar(hills) + way[to] / _planar(way[to])
    rest[to] = fresh / _planar(fresh) * (freed + unused / channels).sqrt()
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


def _windows(x: Tensor, side: int, chance: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Indices of a random square of each image, in all channels."""
    n, channels, height, width = x.shape
    span = torch.arange(side)
    top = torch.randint(height - side + 1, (n, 1), generator=chance)
    left = torch.randint(width - side + 1, (n, 1), generator=chance)
    return (
        torch.arange(n, device=x.device).view(n, 1, 1, 1),
        torch.arange(channels, device=x.device).view(1, channels, 1, 1),
        (top + span).view(n, 1, side, 1).to(x.device),
        (left + span).view(n, 1, 1, side).to(x.device),
    )


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────────────────


def _inner(x: Tensor) -> tuple[int, ...]:
    return tuple(range(1, x.ndim))


def _wide(each: Tensor, like: Tensor) -> Tensor:
    """One number for each image, shaped to broadcast over them."""
    return each.view(-1, *[1] * (like.ndim - 1))


def _length(x: Tensor) -> Tensor:
    """The length of each image, shaped to broadcast over them."""
    length: Tensor = torch.linalg.vector_norm(x, dim=_inner(x), keepdim=True)
    return length


def _planar(x: Tensor) -> Tensor:
    """The length of each channel, never zero."""
    length: Tensor = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True)
    return length.clamp_min(1e-12)


def _uniform(like: Tensor, chance: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=chance).to(like)


def _normal(like: Tensor, chance: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=chance).to(like)


def _signs(like: Tensor, shape: tuple[int, ...], chance: torch.Generator) -> Tensor:
    return torch.randint(2, shape, generator=chance).to(like) * 2 - 1
