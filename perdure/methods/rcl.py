"""RCL: robust continual learning by data-aware and parameter-aware gradients.

Mix pairs of images; climb, in one backward pass, to the worst weights and the worst mixture nearby; take the gradient
there of a loss that also spreads the features over the unit sphere; project it away from what old tasks use. Before the
first task the fresh weights are perturbed once by trained noise.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from perdure import fast
from perdure.methods.gpm import GPM
from perdure.nets.network import Network, Output
from perdure.ops.apart import apart
from perdure.ops.losses import (
    cross_entropy,
    mixed_cross_entropy,
    released_mixed_cross_entropy,
    released_uniform_alignment,
    uniform_alignment,
)
from perdure.ops.mixup import Mixing, Mixture, draw_mixing, shift
from perdure.ops.noise import spread_weights
from perdure.ops.uphill import Nearby, Thinning, Uphill, worst_nearby
from perdure.schema import Bytes, Count, Positive, Share, Variant, Weight
from perdure.types import Batch, Gradient, Lesson, Weights

Pass = Literal["ascent", "descent"]
Features = Literal["separate", "shared", "ascent", "descent"]


@dataclass(frozen=True)
class Losses:
    """The three parts of the objective, not yet weighted."""

    plain: Tensor
    mixed: Tensor
    spread: Tensor


@dataclass(frozen=True)
class Climb:
    """The worst point nearby."""

    loss: Tensor
    uphill: Uphill  # the gradient at the weights, before scaling
    nearby: Nearby  # Ŵ = W + v
    mixing: Mixing  # γ̂


class RCL(GPM):
    remembers: ClassVar[tuple[str, ...]] = (*GPM.remembers, "noise_ratios")

    def __init__(
        self,
        net: Network,
        *,
        threshold: Share = 0.94,  # ε: share of each layer's input energy that is protected
        threshold_step: Share = 0.0,  # what ε gains with each task
        samples: Count = 125,  # n: training images whose layer inputs are remembered
        concentration: Positive = 20.0,  # α: mixing shares are drawn from Beta(α, α)
        mix_weight: Weight = 0.1,  # λ: weight of the loss on mixed images
        spread_weight: Weight = 1.0,  # κ: weight of uniformity and alignment
        spread_in: Literal["both", "descent", "ascent"] = "both",  # which pass has κ; "descent" is the ablation w/G(ua)
        features: Features = "separate",  # κ's forward: its own, conv dropout off; the logits'; its own in one pass
        radius: Weight = 0.05,  # ρ: size of the worst-case steps of weights and mixing
        noise_range: Weight = 1e-4,  # φ: half-width of the first noise scales; 0 leaves the stage out
        noise_steps: Count = 200,  # training steps of φ
        noise_rate: Positive = 0.1,  # learning rate of φ
        noise_cap: Weight | None = None,  # largest ‖Δθ‖/‖θ‖ of a layer; none lets φ grow as released
        variant: Variant = "released",  # where paper and released code differ, which to follow
        budget: Bytes | None = None,  # most bytes of bases; none sets no limit
    ) -> None:
        super().__init__(
            net,
            threshold=threshold,
            threshold_step=threshold_step,
            samples=samples,
            variant=variant,
            budget=budget,
        )
        self.concentration = concentration
        self.mix_weight = mix_weight
        self.spread_weight = spread_weight
        self.spread_in = spread_in
        self.features = features
        self.radius = radius
        self.noise_range = noise_range
        self.noise_steps = noise_steps
        self.noise_rate = noise_rate
        self.noise_cap = noise_cap
        self.noise_ratios: dict[str, float] = {}

    # ── before the first task: random perturbation of the fresh weights (Eqs. 10, 11) ───────────────────────

    def begin(self, lesson: Lesson) -> None:
        if lesson.index > 0 or self.noise_range == 0:
            return
        for name in self.net.backbone.noisy_layers():
            weight = self.net.get_parameter(f"backbone.{name}.weight")
            noise = torch.randn_like(weight)
            scale = torch.empty_like(weight).uniform_(-self.noise_range, self.noise_range)
            moved, _ = spread_weights(
                weight,
                noise,
                scale,
                steps=self.noise_steps,
                rate=self.noise_rate,
                cap=self.noise_cap,
                keep_last=self.variant == "paper",
            )
            change = torch.linalg.vector_norm(moved - weight.detach()) / torch.linalg.vector_norm(weight.detach())
            self.noise_ratios[name] = float(change)
            with torch.no_grad():
                weight.copy_(moved)

    # ── each batch (Alg. 1) ─────────────────────────────────────────────────────────────────────────────────

    def gradient(self, batch: Batch) -> Gradient:
        climb = self.climb(batch, self.draw(len(batch), batch.x))
        weights = climb.nearby.leaves()
        with self.shield(weights) as shield:
            loss = self.descent(batch, climb, weights)
        return self.project(shield.grad(loss, weights), shield.done)

    def draw(self, n: int, like: Tensor) -> Mixing:
        return draw_mixing(n, self.concentration, like)

    def climb(self, batch: Batch, mixing: Mixing) -> Climb:
        """The worst mixture and the worst weights within the radius, from one backward pass (Eqs. 8, 12, 13, 17)."""
        weights = self.trainable()
        share = mixing.share.detach().requires_grad_()
        with Thinning(weights) as thinning:
            losses = self.losses(batch, weights, replace(mixing, share=share), "ascent")
        loss = self.total(losses)
        if self.variant == "paper":  # Eq. 17 weighs the mixed loss by 1, not λ
            (share_slope,) = torch.autograd.grad(
                losses.mixed + self.spread_weight * losses.spread, share, retain_graph=True
            )
            uphill = thinning.grad(loss, weights)
        else:
            uphill = thinning.grad(loss, {**weights, "mixing share": share})
            share_slope = uphill.full.pop("mixing share", torch.zeros_like(share))
        worst = worst_nearby(weights, uphill, self.radius)
        return Climb(loss.detach(), uphill, worst, replace(mixing, share=shift(mixing.share, share_slope, self.radius)))

    def descent(self, batch: Batch, climb: Climb, weights: Weights) -> Tensor:
        """The same objective at the worst point, `weights` (Eq. 14): its gradient is the robust one."""
        with climb.nearby.moved(weights):
            return self.total(self.losses(batch, weights, climb.mixing, "descent"))

    def total(self, losses: Losses) -> Tensor:
        """J = L(x) + λ L(x̃) + κ L_ua."""
        return losses.plain + self.mix_weight * losses.mixed + self.spread_weight * losses.spread

    def losses(self, batch: Batch, weights: Weights, mixing: Mixing, going: Pass) -> Losses:
        spread = self.spread_weight > 0 and self.spread_in in ("both", going)
        quiet = spread and self.features in ("separate", going)
        partner_y = batch.y[mixing.partner]
        with Mixture(batch.x, mixing) as mixture:
            look, mixed_look = self.looks(batch, mixture.x, weights, quiet)
        self.running.see(batch, look.logits)
        of_labels = released_mixed_cross_entropy if self.variant == "released" else mixed_cross_entropy
        plain = cross_entropy(look.logits, batch.y)
        mixed = of_labels(mixed_look.logits, batch.y, partner_y, mixing.share)
        if not spread:
            return Losses(plain, mixed, plain.new_zeros(()))
        if self.variant == "released":
            return Losses(plain, mixed, released_uniform_alignment(look.features, mixed_look.features))
        return Losses(plain, mixed, uniform_alignment(look.features, mixed_look.features, mixing.partner))

    def looks(self, batch: Batch, mixed_x: Tensor, weights: Weights, quiet: bool) -> tuple[Output, Output]:
        """At raw and at mixed images, which never share batch statistics; both at once where the network allows it."""
        if not (fast.on("together") and self.net.backbone.together):
            return self.forward(batch.x, batch.task, weights, quiet), self.forward(mixed_x, batch.task, weights, quiet)
        task = batch.task if isinstance(batch.task, int) else torch.cat([batch.task, batch.task])
        with apart(batch.x, mixed_x) as both:
            look, mixed_look = self.forward(both.joint, task, weights, quiet).split(len(batch))
        return look, mixed_look

    def facts(self) -> dict[str, Any]:
        noise = {"noise_ratio": self.noise_ratios} if self.noise_ratios else {}
        return {**super().facts(), **noise}
