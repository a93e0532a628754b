"""RCL: robust continual learning by data-aware and parameter-aware gradients.

DFGP's ascent, descent and projection, with a loss that also spreads the features evenly over the unit sphere and aligns
those of an image and its mixture (robust features). Before the first task the fresh weights are perturbed once by
trained noise, φ (robust weights).
"""

from typing import Any, ClassVar, Literal, Unpack

import torch

from perdure.methods.dfgp import DFGP, Losses, Pass
from perdure.methods.method import Shared
from perdure.nets.network import Network
from perdure.ops.losses import cross_entropy, released_uniform_alignment, uniform_alignment
from perdure.ops.mixup import Mixing, mix
from perdure.ops.phi import train_phi
from perdure.schema import Bytes, Count, Positive, Share, Variant, Weight
from perdure.types import Batch, Lesson, Weights

Features = Literal["separate", "shared", "ascent", "descent"]


class RCL(DFGP):
    state_attributes: ClassVar[tuple[str, ...]] = (*DFGP.state_attributes, "phi_ratios")
    begins_each_task: ClassVar[bool] = False  # φ is for the first alone

    def __init__(
        self,
        net: Network,
        *,
        threshold: Share = 0.94,  # ε: share of each layer's input energy that is protected
        threshold_step: Share = 0.0,  # what ε gains with each task
        samples: Count = 125,  # n: training images whose layer inputs are remembered
        concentration: Positive = 20.0,  # α: mixing shares are drawn from Beta(α, α)
        mix_weight: Weight = 0.1,  # λ: weight of the loss on mixed images
        ua_weight: Weight = 1.0,  # κ: weight of uniformity and alignment
        ua_in: Literal["both", "descent", "ascent"] = "both",  # which pass has κ; "descent" is the ablation w/G(ua)
        features: Features = "separate",  # κ's forward: its own, conv dropout off; the logits'; its own in one pass
        radius: Weight = 0.05,  # ρ: size of the worst-case steps of weights and mixing
        phi_init: Weight = 1e-4,  # φ: half-width of the first noise scales; 0 leaves the stage out
        phi_steps: Count = 200,  # training steps of φ
        phi_rate: Positive = 0.1,  # learning rate of φ
        phi_cap: Weight | None = None,  # largest ‖Δθ‖/‖θ‖ of a layer; none lets φ grow as released
        eq8: bool = False,  # paper: the mixing ascends Eq. 8 as printed, without κ; Eq. 17, its solution, has κ
        variant: Variant = "released",  # where paper and released code differ, which to follow
        budget: Bytes | None = None,  # most bytes of bases; none sets no limit
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(
            net,
            threshold=threshold,
            threshold_step=threshold_step,
            samples=samples,
            concentration=concentration,
            mix_weight=mix_weight,
            radius=radius,
            variant=variant,
            budget=budget,
            **shared,
        )
        self.ua_weight = ua_weight
        self.ua_in = ua_in
        self.features = features
        self.eq8 = eq8
        self.phi_init = phi_init
        self.phi_steps = phi_steps
        self.phi_rate = phi_rate
        self.phi_cap = phi_cap
        self.phi_ratios: dict[str, float] = {}  # layer → ‖Δθ‖/‖θ‖

    # ── before the first task: noise on the fresh weights (Eqs. 10, 11) ─────────────────────────────────────

    def begin(self, lesson: Lesson) -> None:
        """On weights that were drawn by a seed: those that are given stay what they are."""
        backbone = self.net.backbone
        if lesson.index > 0 or self.phi_init == 0 or backbone.seed is None:
            return
        for name, layer in self.layers().items():
            if name in backbone.auxiliary:
                continue
            weight = layer.weight
            noise = torch.randn_like(weight)
            phi = torch.empty_like(weight).uniform_(-self.phi_init, self.phi_init)
            last = self.variant == "paper"
            new, _ = train_phi(
                weight, noise, phi, steps=self.phi_steps, rate=self.phi_rate, cap=self.phi_cap, keep_last=last
            )
            old = weight.detach()
            self.phi_ratios[name] = float(torch.linalg.vector_norm(new - old) / torch.linalg.vector_norm(old))
            with torch.no_grad():
                weight.copy_(new)

    # ── each batch: DFGP's, with features on the sphere (Eqs. 6, 7, 9) ──────────────────────────────────────

    def losses(self, batch: Batch, weights: Weights, mixing: Mixing, going: Pass) -> Losses:
        if self.ua_weight == 0 or self.ua_in not in ("both", going):
            return super().losses(batch, weights, mixing, going)
        inputs = [batch.x, mix(batch.x, mixing)]
        shared = self.features not in ("separate", going)
        out, mixed_out = self.forward_each(inputs, batch.task, weights, conv_dropout=shared)
        if self.variant == "released":
            ua = released_uniform_alignment(out.features, mixed_out.features)
        else:
            ua = uniform_alignment(out.features, mixed_out.features, mixing.partner)
        return Losses(cross_entropy(out.logits, batch.y), self.mixed_loss(mixed_out, batch.y, mixing), ua)

    def total(self, losses: Losses) -> torch.Tensor:
        """J = L(x) + λ L(x̃) + κ L_ua."""
        total = super().total(losses)
        return total if losses.ua is None else total + self.ua_weight * losses.ua

    def unweighted(self, losses: Losses) -> torch.Tensor:
        more = super().unweighted(losses)
        return more if losses.ua is None or not self.eq8 else more + (1 - self.ua_weight) * losses.ua

    def facts(self) -> dict[str, Any]:
        return super().facts() | ({"phi_ratio": self.phi_ratios} if self.phi_ratios else {})
