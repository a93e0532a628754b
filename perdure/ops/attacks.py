"""Adversarial images: how far the answers can be turned by moving images a little.

Any wrong answer will do, also where an attack heads for one class after another. All attacks move a whole batch
together, since batch norm may couple its images. The best points of each image make up a batch that was never tried; it
is tried too, and of all batches tried as a whole the one with the fewest right answers (then the highest loss) is
returned. Without coupling this is the usual best for each image.

Each attack takes the same number of passes whatever it finds; `…_cost` gives (forwards, gradients) for each image.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.errors import WrongValue

Norm = Literal["linf", "l2"]
AttackLoss = Literal["ce", "dlr"]
Bounds = tuple[float, float]
PerImage = Callable[[Tensor], Tensor]
"""Logits to the loss of each image."""


class Classifier(Protocol):
    """What is attacked: images in, logits out."""

    @property
    def bounds(self) -> Bounds: ...

    def logits(self, x: Tensor) -> Tensor: ...

    def input_gradient(self, x: Tensor, loss: PerImage) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, the loss of each image (n,), and the gradient of their sum by the images."""


@dataclass(frozen=True)
class PixelClassifier:
    """Pixels in [0, 1] to logits, by a function whose weights want no gradient."""

    forward: Callable[[Tensor], Tensor]
    bounds: Bounds = (0.0, 1.0)

    def logits(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.forward(x)

    def input_gradient(self, x: Tensor, loss: PerImage) -> tuple[Tensor, Tensor, Tensor]:
        return input_gradient(self.forward, x, loss)


class MeanOverPasses:
    """What a classifier whose answers depend on chance gives on average: logits, losses and gradients are means over so
    many passes. Attacks then follow the expectation (Athalye et al., ICML 2018) and not the luck of one pass."""

    def __init__(self, model: Classifier, passes: int) -> None:
        self.model, self.passes = model, passes

    @property
    def bounds(self) -> Bounds:
        return self.model.bounds

    def logits(self, x: Tensor) -> Tensor:
        return _mean([self.model.logits(x) for _ in range(self.passes)])

    def input_gradient(self, x: Tensor, loss: PerImage) -> tuple[Tensor, Tensor, Tensor]:
        logits, each, gradients = zip(*(self.model.input_gradient(x, loss) for _ in range(self.passes)), strict=True)
        return _mean(logits), _mean(each), _mean(gradients)


def input_gradient(forward: Callable[[Tensor], Tensor], x: Tensor, loss: PerImage) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (n, classes), the loss of each image (n,), and the gradient of their sum by the images."""
    start = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = forward(start)
        each = loss(logits)
        (gradient,) = torch.autograd.grad(each.sum(), start)
    return logits.detach(), each.detach(), gradient


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
        change = moved - start
        if self.norm == "linf":
            change = change.clamp(-self.radius, self.radius)
        else:
            change = change * (self.radius / _length(change).clamp_min(1e-30)).clamp_max(1)
        return (start + change).clamp(*bounds)

    def uniform(self, start: Tensor, bounds: Bounds, rng: torch.Generator) -> Tensor:
        """A random point of the ball, every one as likely, brought within the bounds."""
        if self.norm == "linf":
            change = self.radius * (2 * torch.rand(start.shape, generator=rng).to(start) - 1)
        else:
            share = torch.rand(len(start), generator=rng).to(start) ** (1 / start[0].numel())
            change = self.radius * per_image(share, start) * self.steepest(_normal(start, rng))
        return self.project(start + change, start, bounds)

    def length(self, change: Tensor) -> Tensor:
        """How far each image was moved (n,)."""
        inner = change.flatten(1)
        return inner.abs().amax(1) if self.norm == "linf" else torch.linalg.vector_norm(inner, dim=1)

    def steepest(self, gradient: Tensor) -> Tensor:
        """The direction of unit length in this norm along which the loss grows fastest; nowhere for a zero gradient."""
        if self.norm == "linf":
            return gradient.sign()
        tiny = torch.finfo(gradient.dtype).tiny
        largest = gradient.abs().amax(dim=inner_axes(gradient), keepdim=True)
        scaled = gradient / largest.clamp_min(tiny)  # whose squares do not vanish
        return scaled / _length(scaled).clamp_min(tiny)

    def step(self, x: Tensor, gradient: Tensor, bounds: Bounds) -> Tensor:
        """From the center to the edge, along the gradient."""
        return self.project(x + self.radius * self.steepest(gradient), x, bounds)


def fgsm(model: Classifier, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
    """One step of full radius (Goodfellow et al., ICLR 2015)."""
    _, _, gradient = model.input_gradient(x, _cross_entropy(y))
    return ball.step(x, gradient, model.bounds)


def pgd(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    ball: Ball,
    *,
    steps: int = 20,
    rate: float | None = None,
    restarts: int = 1,
    rng: torch.Generator | None,
) -> Tensor:
    """Steps uphill within the ball (Madry et al., ICLR 2018), from a random point of it; without `rng` from x itself.

    `rate` is the length of a step, 2.5 · radius / steps if not given: enough to reach any point of the ball.
    """
    rate = 2.5 * ball.radius / steps if rate is None else rate
    worst = WorstBatch(model, x, y, _cross_entropy(y))
    for _ in range(restarts):
        start = x if rng is None else ball.uniform(x, model.bounds, rng)
        worst.forward(_uphill(model, x, ball, start, worst.loss, steps, rate))
    return worst.batch()


def training_attack(model: Classifier, x: Tensor, y: Tensor, ball: Ball, *, steps: int, rng: torch.Generator) -> Tensor:
    """PGD as it is trained on: from a random point of the ball, and whatever the last step comes to. A single step is
    that of fast adversarial training (Wong et al., ICLR 2020).

    A step is 2.5 · radius / steps long, as in PGD, but 1.25 · radius at most: one of twice that would end in a corner
    of the ball wherever it began.
    """
    rate = min(1.25, 2.5 / steps) * ball.radius
    return _uphill(model, x, ball, ball.uniform(x, model.bounds, rng), _cross_entropy(y), steps, rate)


def _uphill(model: Classifier, x: Tensor, ball: Ball, start: Tensor, loss: PerImage, steps: int, rate: float) -> Tensor:
    """Where so many steps within the ball around x lead."""
    moved = start
    for _ in range(steps):
        _, _, gradient = model.input_gradient(moved, loss)
        moved = ball.project(moved + rate * ball.steepest(gradient), x, model.bounds)
    return moved


def pgd_cost(steps: int, restarts: int) -> tuple[int, int]:
    """Of PGD, and of APGD."""
    return restarts + 2, restarts * steps


def apgd(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    ball: Ball,
    *,
    loss: AttackLoss = "ce",
    steps: int = 50,
    restarts: int = 1,
    rng: torch.Generator,
) -> Tensor:
    """Auto-PGD (Croce & Hein, ICML 2020): steps of twice the radius at first, halved, image by image, at checkpoints
    where the loss has stopped growing, and then on from the best point so far. No rate to choose.

    The loss is cross-entropy, or the difference of logits ratio, which does not fade where the network is sure.
    """
    worst = WorstBatch(model, x, y, _cross_entropy(y) if loss == "ce" else lambda logits: logits_ratio(logits, y))
    for _ in range(restarts):
        _apgd_run(model, x, ball, steps, ball.uniform(x, model.bounds, rng), worst)
    return worst.batch()


def apgd_targeted(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    ball: Ball,
    *,
    targets: int = 9,
    steps: int = 50,
    restarts: int = 1,
    rng: torch.Generator,
) -> Tensor:
    """Auto-PGD towards one wrong class after another, those that are most likely for each image (Croce & Hein, ICML
    2020). All are wrong classes, so that points are kept by the lead of the right one, whatever they were made for."""
    worst = WorstBatch(model, x, y, lambda logits: -margins(logits, y))
    for target in wrong_classes(model.logits(x), y, targets):
        for _ in range(restarts):
            _apgd_run(model, x, ball, steps, ball.uniform(x, model.bounds, rng), worst, _towards(target, y))
    return worst.batch()


def apgd_targeted_cost(steps: int, restarts: int, targets: int) -> tuple[int, int]:
    """One pass chooses the targets."""
    return targets * restarts + 3, targets * restarts * steps


MOMENTUM = 0.75  # α of APGD: how much of a step is new
ENOUGH = 0.75  # ρ of APGD: the share of steps that must have gone up


def _apgd_run(
    model: Classifier,
    x: Tensor,
    ball: Ball,
    steps: int,
    start: Tensor,
    worst: "WorstBatch",
    climbed: PerImage | None = None,
) -> None:
    """One run of APGD from `start`, up the loss by which points are kept if no other is given; every point it comes to
    is tried."""
    here = before = best = start
    loss, gradient = worst.input_gradient(here, climbed)
    best_loss, best_gradient = loss, gradient
    rate = torch.full_like(loss, 2 * ball.radius)
    risen, halved = torch.zeros_like(loss), torch.zeros_like(loss, dtype=torch.bool)
    last_best, last_check, checks = best_loss, 0, set(checkpoints(steps))
    for step in range(1, steps + 1):
        ahead = ball.project(here + per_image(rate, x) * ball.steepest(gradient), x, model.bounds)
        if step > 1:
            ahead = here + MOMENTUM * (ahead - here) + (1 - MOMENTUM) * (here - before)
            ahead = ball.project(ahead, x, model.bounds)
        before, here = here, ahead
        if step == steps:  # nothing follows that would need its gradient
            worst.forward(here)
            return
        loss_before = loss
        loss, gradient = worst.input_gradient(here, climbed)
        risen += loss > loss_before
        better = loss > best_loss
        best_loss, best = torch.where(better, loss, best_loss), torch.where(per_image(better, x), here, best)
        best_gradient = torch.where(per_image(better, x), gradient, best_gradient)
        if step in checks:
            stuck = ~halved & (best_loss <= last_best)  # neither a shorter step nor a better point since the last one
            halved = (risen < ENOUGH * (step - last_check)) | stuck
            rate, loss = torch.where(halved, rate / 2, rate), torch.where(halved, best_loss, loss)
            here = torch.where(per_image(halved, x), best, here)
            gradient = torch.where(per_image(halved, x), best_gradient, gradient)
            risen, last_best, last_check = torch.zeros_like(risen), best_loss, step


def checkpoints(steps: int) -> list[int]:
    """The steps of APGD after which its rate may be halved: ever closer together, at least 6 % of all steps apart.

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
    return -margins(logits, y) / (top[:, 0] - top[:, 2]).clamp_min(1e-12)


def targeted_ratio(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """The difference of logits ratio towards a class t, −(z_y − z_t) / (z_(1) − (z_(3) + z_(4)) / 2), for each image;
    with fewer than four classes the difference alone, of which attacks use no more than the direction.

    >>> targeted_ratio(torch.tensor([[3.0, 1.0, 2.0, 0.0]]), torch.tensor([0]), torch.tensor([1]))
    tensor([-0.8000])
    """
    ahead = logit_of(logits, target) - logit_of(logits, y)
    if logits.shape[1] < 4:
        return ahead
    top = logits.topk(4, dim=1).values
    return ahead / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2).clamp_min(1e-12)


def wrong_classes(logits: Tensor, y: Tensor, count: int) -> list[Tensor]:
    """The most likely wrong class of each image (n,), the next, and so on: so many, or as many as there are."""
    others = logits.scatter(1, y[:, None], -torch.inf)
    return list(others.topk(min(count, logits.shape[1] - 1), dim=1).indices.T)


def noise(x: Tensor, ball: Ball, bounds: Bounds, rng: torch.Generator) -> Tensor:
    """Random, of full radius: ± radius at each pixel, for l2 any direction; then brought within the bounds."""
    return ball.step(x, random_signs(x, x.shape, rng) if ball.norm == "linf" else _normal(x, rng), bounds)


class WorstBatch:
    """Of the batches that were tried, the images as they are first: the worst as a whole, and of each image."""

    def __init__(self, model: Classifier, x: Tensor, y: Tensor, loss: PerImage) -> None:
        self.model, self.y, self.loss = model, y, loss
        self.fewest = (len(y) + 1, 0.0)  # right answers, − total loss
        self.whole = self.each = x
        self.right = torch.ones_like(y, dtype=torch.bool)
        self.highest = torch.full(y.shape, -torch.inf, dtype=x.dtype, device=x.device)
        self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        """The loss of each image."""
        logits = self.model.logits(x)
        loss = self.loss(logits)
        self._keep(x, logits, loss)
        return loss

    def input_gradient(self, x: Tensor, other: PerImage | None = None) -> tuple[Tensor, Tensor]:
        """The loss of each image, and the gradient; of another loss than that by which points are kept, if given."""
        logits, loss, gradient = self.model.input_gradient(x, other or self.loss)
        self._keep(x, logits, loss if other is None else self.loss(logits))
        return loss, gradient

    def batch(self) -> Tensor:
        """Of all batches that were tried, and of the one made up of the worst of each image: fewest right."""
        self.forward(self.each)
        return self.whole

    def _keep(self, x: Tensor, logits: Tensor, loss: Tensor) -> None:
        right = logits.argmax(1) == self.y
        count = int(right.sum()), -float(loss.sum())
        if count < self.fewest:
            self.fewest, self.whole = count, x
        worse = (self.right & ~right) | ((self.right == right) & (loss > self.highest))
        self.right, self.highest = torch.where(worse, right, self.right), torch.where(worse, loss, self.highest)
        self.each = torch.where(per_image(worse, x), x, self.each)


def _cross_entropy(y: Tensor) -> PerImage:
    return lambda logits: F.cross_entropy(logits, y, reduction="none")


def _towards(target: Tensor, y: Tensor) -> PerImage:
    return lambda logits: targeted_ratio(logits, y, target)


def margins(logits: Tensor, y: Tensor) -> Tensor:
    """By how much the right class leads the best of the others."""
    others = logits.scatter(1, y[:, None], -torch.inf)
    return logit_of(logits, y) - others.amax(1)


def logit_of(logits: Tensor, classes: Tensor) -> Tensor:
    """The logit that each image has for its class (n,)."""
    return logits.gather(1, classes[:, None])[:, 0]


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────────────────


def inner_axes(x: Tensor) -> tuple[int, ...]:
    return tuple(range(1, x.ndim))


def per_image(each: Tensor, like: Tensor) -> Tensor:
    """One number for each image, shaped to broadcast over them."""
    return each.view(-1, *[1] * (like.ndim - 1))


def _length(x: Tensor) -> Tensor:
    """The length of each image, shaped to broadcast over them."""
    length: Tensor = torch.linalg.vector_norm(x, dim=inner_axes(x), keepdim=True)
    return length


def _mean(several: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(several)).mean(0)


def _normal(like: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=rng).to(like)


def random_signs(like: Tensor, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """+1 and −1, as likely, drawn on the CPU: the same on every device."""
    return torch.randint(2, shape, generator=rng).to(like) * 2 - 1
