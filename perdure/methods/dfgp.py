"""DFGP: Data-augmented Flat Gradient Projection (Yang et al., ICCV 2023).

Mix pairs of images; ascend, in one backward pass, to the worst weights and the worst mixture nearby; take the gradient
there, where only flat minima look good; project it away from what old tasks use.
"""

from dataclasses import dataclass, replace
from typing import Literal, Unpack

import torch
from torch import Tensor

from perdure.methods.gpm import GPM
from perdure.methods.method import Shared
from perdure.nets.network import Network, Output
from perdure.ops.gradients import ascent_grad, grad, perturb
from perdure.ops.losses import cross_entropy, mixed_cross_entropy, released_mixed_cross_entropy
from perdure.ops.mixup import Mixing, draw_mixing, mix, shift
from perdure.schema import Bytes, Count, Positive, Share, Variant, Weight
from perdure.types import Batch, Gradient, Weights

Pass = Literal["ascent", "descent"]


@dataclass(frozen=True)
class Losses:
    """The parts of the objective, not yet weighted."""

    plain: Tensor  # L(x)
    mixed: Tensor  # L(x̃)
    ua: Tensor | None = None  # RCL's uniformity and alignment


class DFGP(GPM):
    def __init__(
        self,
        net: Network,
        *,
        threshold: Share = 0.95,  # ε: share of each layer's input energy that is protected
        threshold_step: Share = 0.0,  # what ε gains with each task
        samples: Count = 125,  # n: training images whose layer inputs are remembered
        concentration: Positive = 20.0,  # α: mixing shares are drawn from Beta(α, α)
        mix_weight: Weight = 0.1,  # λ: weight of the loss on mixed images
        radius: Weight = 0.05,  # ρ: size of the worst-case steps of weights and mixing
        variant: Variant = "released",  # where paper and released code differ, which to follow
        budget: Bytes | None = None,  # most bytes of bases; none sets no limit
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(
            net,
            threshold=threshold,
            threshold_step=threshold_step,
            samples=samples,
            variant=variant,
            budget=budget,
            **shared,
        )
        self.concentration = concentration
        self.mix_weight = mix_weight
        self.radius = radius

    def gradient(self, batch: Batch) -> Gradient:
        """Ascend, descend, project (Alg. 1)."""
        weights, mixing = self.ascend(batch, self.draw(len(batch), batch.x))
        return self.projected_grad(self.total(self.losses(batch, weights, mixing, "descent")), weights)

    def draw(self, n: int, like: Tensor) -> Mixing:
        return draw_mixing(n, self.concentration, like)

    def ascend(self, batch: Batch, mixing: Mixing) -> tuple[Weights, Mixing]:
        """The worst weights Ŵ and the worst mixing shares γ̂ within the radius (Eqs. 8, 12, 13, 17)."""
        weights, share = self.trainable(), mixing.share.detach().requires_grad_()
        losses = self.losses(batch, weights, replace(mixing, share=share), "ascent")
        loss = self.total(losses)
        gradient = {}
        if self.variant == "paper":
            gradient = grad(loss + self.unweighted(losses), {"share": share}, retain_graph=True)
        gradient = ascent_grad(loss, {**weights, "share": share}) | gradient
        share_grad = gradient.pop("share", torch.zeros_like(share))
        return perturb(weights, gradient, self.radius), replace(mixing, share=shift(share, share_grad, self.radius))

    def unweighted(self, losses: Losses) -> Tensor:
        """What the mixing ascends besides J: Eq. 17 weighs the mixed loss by 1, not λ."""
        return (1 - self.mix_weight) * losses.mixed

    def losses(self, batch: Batch, weights: Weights, mixing: Mixing, going: Pass) -> Losses:  # noqa: ARG002
        out, mixed_out = self.forward_each([batch.x, mix(batch.x, mixing)], batch.task, weights)
        return Losses(cross_entropy(out.logits, batch.y), self.mixed_loss(mixed_out, batch.y, mixing))

    def mixed_loss(self, mixed_out: Output, y: Tensor, mixing: Mixing) -> Tensor:
        """L(x̃), against the labels of both images."""
        loss = released_mixed_cross_entropy if self.variant == "released" else mixed_cross_entropy
        return loss(mixed_out.logits, y, y[mixing.partner], mixing.share)

    def total(self, losses: Losses) -> Tensor:
        """J = L(x) + λ L(x̃)."""
        return losses.plain + self.mix_weight * losses.mixed
